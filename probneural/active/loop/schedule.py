"""Schedules of an active learning loop: samples that each round adds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from probneural.checks import assign, check_integer, check_real

Schedule = int | Callable[[int], int]
"""Functions a round adds: a number, or what makes one of the number of labels so far."""


@dataclass(frozen=True)
class Growth:
    """Rounds that grow with the data: each multiplies the number of labels by a factor.

    The number of trainings then grows like the logarithm of the number of labels.

    Args:
        factor: Labels after a round by labels before it, dimensionless, above 1.

    Raises:
        ArgumentError: If the factor is not above 1, or not finite.

    Examples:
        >>> Growth(2.0)(16), Growth(1.1)(16), Growth(1.1)(1)
        (16, 2, 1)
    """

    factor: float = 2.0

    def __post_init__(self) -> None:
        """Check the factor."""
        assign(self, factor=check_real(self.factor, "factor", above=1.0))

    def __call__(self, labels: int) -> int:
        """Functions to add to so many."""
        return max(1, round((self.factor - 1.0) * check_integer(labels, "labels")))


def next_target(schedule: Schedule, labels: int) -> int:
    """The number of labels after the next round.

    Raises:
        ArgumentError: If the schedule adds nothing.
    """
    added = schedule(labels) if callable(schedule) else schedule
    return labels + check_integer(added, f"batch at {labels} labels")
