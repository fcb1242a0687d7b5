"""What a structure may be told."""

from __future__ import annotations

from dataclasses import dataclass

from probneural.checks import assign, check_flag, check_integer
from probneural.errors import ArgumentError

_READERS = {
    "rank": ("low_rank", "iterative"),
    "probes": ("full", "kronecker", "diagonal"),
    "corrected": ("kronecker",),
}
"""Which structures read what."""


@dataclass(frozen=True)
class Settings:
    """Settings of the structures; each reads those that concern it.

    Args:
        rank: Directions of a low-rank structure.
        probes: Random projections per function, or of the whole curvature, instead of every output value.
        corrected: Whether Kronecker eigenvalues are estimated anew in their eigenbasis.
        seed: Of random numbers.
        progress: Whether to show progress bars.
    """

    rank: int | None = None
    probes: int | None = None
    corrected: bool = False
    seed: int = 0
    progress: bool = False

    def check(self, structure: str) -> None:
        """Refuse settings that a structure does not read.

        Raises:
            ArgumentError: If one is given all the same.
        """
        for name, readers in _READERS.items():
            value = getattr(self, name)
            if value and structure not in readers:
                raise ArgumentError(
                    expected=f"settings that structure={structure!r} reads",
                    got=f"{name}={value!r}",
                    remedy=f"{name} belongs to {' and '.join(readers)}",
                )

    def __post_init__(self) -> None:
        """Check the settings."""
        for name in ("rank", "probes"):
            if getattr(self, name) is not None:
                assign(self, **{name: check_integer(getattr(self, name), name)})
        for name in ("corrected", "progress"):
            assign(self, **{name: check_flag(getattr(self, name), name)})
