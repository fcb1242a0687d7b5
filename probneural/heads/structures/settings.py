"""What a structure may be told."""

from __future__ import annotations

from dataclasses import dataclass

from probneural.errors import ArgumentError


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

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("rank", "probes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ArgumentError(expected=f"{name} as a positive integer or None", got=repr(value), remedy="leave it out")
