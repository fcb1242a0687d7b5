"""Progress of a run: bars on a terminal, lines in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable

_LINES = 10
"""Lines of one training in a log, about."""


class Progress:
    """Says how far a run is, on the standard error stream.

    Args:
        is_shown: Whether to say anything.
    """

    def __init__(self, is_shown: bool) -> None:
        self.is_shown = is_shown

    @property
    def has_bars(self) -> bool:
        """Whether there is a terminal, where bars move."""
        return self.is_shown and sys.stderr.isatty()

    def say(self, text: str) -> None:
        """Write one line."""
        if self.is_shown:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def epochs(self, total: int) -> Callable[[int, dict[str, float]], None] | None:
        """What training calls after each epoch: in a log, it writes a tenth of them."""
        if not self.is_shown or self.has_bars:
            return None

        def tell(number: int, losses: dict[str, float]) -> None:
            if number * _LINES // total > (number - 1) * _LINES // total:
                shown = ", ".join(f"{name} {value:.3g}" for name, value in losses.items())
                self.say(f"  epoch {number} of {total}: {shown}")

        return tell
