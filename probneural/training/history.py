"""What training reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class History:
    """Losses by epoch.

    Attributes:
        train: Mean training loss of each epoch, dimensionless.
        validation: Loss on the validation split after each epoch, dimensionless; empty without a split.
        seconds: Wall time of each epoch.
    """

    train: tuple[float, ...]
    validation: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def epochs(self) -> int:
        """Number of epochs trained."""
        return len(self.train)

    @property
    def last_fall(self) -> float:
        """By what share the validation loss (training loss without a split) fell over the last fifth of training.

        Both ends are averages over a twentieth of the epochs, so that one lucky epoch does not decide. It does not tell whether
        longer training would help: a schedule that ends by lowering its rate makes losses fall at any length.
        """
        losses = self.validation or self.train
        if len(losses) < 5:
            return 1.0
        window = max(1, len(losses) // 20)
        start = len(losses) - len(losses) // 5
        before = sum(losses[start - window : start]) / window
        after = sum(losses[-window:]) / window
        return 1.0 - after / before if before > 0 else 0.0
