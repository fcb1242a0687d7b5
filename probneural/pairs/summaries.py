"""Descriptions of data sets in one sentence."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from probneural.grids import Grid


@runtime_checkable
class Side(Protocol):
    """Inputs or outputs of a data set."""

    @property
    def grid(self) -> Grid:
        """Their grid."""

    @property
    def channels(self) -> int:
        """Number of channels."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the channels, or none."""

    @property
    def units(self) -> tuple[str, ...]:
        """Units of the channels, or none."""

    def __len__(self) -> int:
        """Number of samples."""


def summary_of(inputs: Side, outputs: Side, *, time: str = "none") -> str:
    """Samples, channels, axes of space and times, in one sentence.

    Args:
        inputs: The inputs.
        outputs: The outputs.
        time: The axis of time in words.

    Examples:
        >>> import torch
        >>> from probneural.fields import Field
        >>> field = Field(torch.zeros(240, 1, 37, 49), Grid.uniform((37, 49), periodic=False), names=("t",))
        >>> summary_of(field, field)
        '240 samples; 1 channel (t) to 1 channel (t); x0 37 x x1 49 over 1 x 1, walls; time: none'
    """
    channels = f"{_channels(inputs)} to {_channels(outputs)}"
    where = inputs.grid.description
    if outputs.grid != inputs.grid:
        where = f"inputs on {where}; outputs on {outputs.grid.description}"
    count = len(inputs)
    return f"{count} sample{'s' * (count != 1)}; {channels}; {where}; time: {time}"


def _channels(side: Side) -> str:
    count = f"{side.channels} channel{'s' * (side.channels != 1)}"
    units = side.units or ("",) * len(side.names)
    labels = dict.fromkeys(zip(side.names, units, strict=True))
    words = [f"{name} in {unit}" if unit else name for name, unit in labels]
    return f"{count} ({', '.join(words)})" if any(words) else count
