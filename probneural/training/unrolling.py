"""Training through several time steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probneural.errors import ArgumentError, DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.grids.grid import check_same_grid
from probneural.pairs import Dataset, FieldPairs, FieldSource, Rows
from probneural.settings import Count, Settings
from probneural.training.losses import Loss, check_loss


@dataclass(frozen=True, kw_only=True)
class Unroll(Settings):
    """Train a one-step operator on its own outputs, which are its inputs in a roll-out.

    A pair holds the states u_1, ..., u_K that follow its input, stacked as channels, as `windows(steps=K)` makes them. From
    û_0 = u_0, and û_k = G(û_{k-1}), the loss of a batch is

    - the mean over k of the loss of û_k, with the gradient through all steps; or
    - pushed forward, the mean of the losses of û_1 and of G(stopped û_{K-1}): the first steps are taken without gradients.

    An operator that is given several states of history maps them, the earliest first, to the next one, and the oldest is
    dropped. Channels after those of the history, parameters for example, are given to every step as they are. The validation
    loss is the mean over all K steps.

    Args:
        steps: K, the number of following states in a pair.
        loss: Loss of one step; by default the relative L2 error.
        history: States that an input holds.
        pushforward: Whether gradients stay within a step.

    Raises:
        ArgumentError: If a number is out of range, the loss is not callable, or `pushforward` has a single step.

    Reference:
        Brandstetter, Worrall and Welling (2022), Message passing neural PDE solvers, section 3.1, for the push-forward.
        Their number of steps is random for every batch; here it is K.
    """

    steps: Count = 1
    loss: Loss | None = None
    history: Count = 1
    pushforward: bool = False

    def __post_init__(self) -> None:
        """Validate the options."""
        super().__post_init__()
        check_loss(self.loss)
        if self.steps == 1 and self.pushforward:
            raise ArgumentError(
                expected="two steps or more to push forward", got=repr(self), remedy="give Unroll(steps=4) and windows(steps=4)"
            )

    def settings(self) -> dict[str, Any]:
        """All options but the loss, as JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "loss"}

    def targets(self, outputs: Float[Tensor, "n kc *grid"]) -> tuple[Float[Tensor, "n c *grid"], ...]:
        """The following states in order."""
        return outputs.unflatten(1, (self.steps, -1)).unbind(1)

    def following(self, inputs: Field, state: Float[Tensor, "n c *grid"]) -> Field:
        """The input of the next step: without the oldest state, and with the new one."""
        last = self.history * state.shape[1]
        values = inputs.values
        return Field(torch.cat([values[:, state.shape[1] : last], state, values[:, last:]], dim=1), inputs.grid)

    def check(self, sets: Sequence[Dataset]) -> None:
        """Raise an error unless pairs have enough states.

        Raises:
            DataError: If their channels do not fit.
            GridError: If steps cannot follow each other, because the sides have different grids.
        """
        for data in sets:
            channels, remainder = divmod(data.outputs.channels, self.steps)
            if remainder or data.inputs.channels < self.history * channels:
                raise DataError(
                    expected=f"pairs of {self.history} states and the {self.steps} that follow",
                    got=f"{data.inputs.channels} channels in and {data.outputs.channels} out",
                    remedy=f"make them by trajectories.windows(history={self.history}, steps={self.steps})",
                )
            if self.steps > 1:  # outputs become inputs
                check_same_grid(data.outputs.grid, data.inputs.grid, "outputs, as inputs are,", remedy="resample one of them")


@dataclass(frozen=True, eq=False)
class FirstStep:
    """Pairs with the first of several following states, from which a one-step operator takes its units.

    Args:
        windows: Pairs whose outputs are several states.
        steps: Number of states.
    """

    windows: Dataset
    steps: int

    @property
    def inputs(self) -> FieldSource:
        """The inputs."""
        return self.windows.inputs

    @property
    def outputs(self) -> FieldSource:
        """The first following states."""
        return _FirstChannels(self.windows.outputs, self.windows.outputs.channels // self.steps)

    @property
    def window_keys(self) -> Int64[Tensor, "n k"] | None:
        """Row keys that the windows supply; None if they supply none."""
        return getattr(self.windows, "window_keys", None)

    @property
    def clock(self) -> object:
        """Times of the windows; None if unknown."""
        return getattr(self.windows, "clock", None)

    @property
    def fingerprint(self) -> str:
        """That of the windows."""
        return self.windows.fingerprint

    def __len__(self) -> int:
        """Number of pairs n."""
        return len(self.windows)

    def __getitem__(self, index: Rows) -> FieldPairs:
        """Read some pairs into memory."""
        pairs = self.windows[index]
        channels = pairs.outputs.channels // self.steps
        return FieldPairs(pairs.inputs, Field(pairs.outputs.values[:, :channels], pairs.outputs.grid))

    def subset(self, index: Rows) -> FirstStep:
        """Choose some pairs without reading them."""
        return replace(self, windows=self.windows.subset(index))

    def split(self, count: int, *, seed: int) -> tuple[FirstStep, FirstStep]:
        """Split as the windows are."""
        first, second = self.windows.split(count, seed=seed)
        return replace(self, windows=first), replace(self, windows=second)

    def to(self, target: torch.device | torch.dtype | str) -> FirstStep:
        """The same pairs, on another device or in another dtype when they are read."""
        return replace(self, windows=self.windows.to(target))

    def detached(self) -> FirstStep:
        """The same pairs without a graph."""
        return replace(self, windows=self.windows.detached())


@dataclass(frozen=True, eq=False)
class _FirstChannels:
    """The first channels of a field source."""

    source: FieldSource
    channels: int

    @property
    def grid(self) -> Grid:
        return self.source.grid

    @property
    def dtype(self) -> torch.dtype:
        return self.source.dtype

    @property
    def device(self) -> torch.device:
        return self.source.device

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Rows) -> Field:
        read = self.source[index]
        return Field(read.values[:, : self.channels], read.grid)

    def to(self, target: torch.device | torch.dtype | str) -> _FirstChannels:
        return replace(self, source=self.source.to(target))
