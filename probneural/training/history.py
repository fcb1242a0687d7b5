"""Histories of training: losses per epoch, and time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class History:
    """Losses by epoch.

    They fall towards the end of any schedule that ends by lowering its rate, however long it is. So none of them tells
    whether longer training would help: only a second training of twice the epochs does.

    Attributes:
        train: Mean training loss of each epoch, dimensionless.
        validation: Loss on the validation split after each epoch, dimensionless; empty without a split.
        seconds: Wall time of each epoch.
        restored: Epoch, from 1, whose weights the operator got back because its validation loss was the least; None if it
            kept the last ones.
    """

    train: tuple[float, ...]
    validation: tuple[float, ...]
    seconds: tuple[float, ...]
    restored: int | None = None

    @property
    def epochs(self) -> int:
        """Number of epochs trained."""
        return len(self.train)
