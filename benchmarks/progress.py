"""Progress of a benchmark: a bar on a terminal, else one line per finished job."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any, Self, TextIO

from tqdm import tqdm

FORMAT = "{percentage:3.0f}% |{bar}| {elapsed}, about {remaining} left {postfix}"


class Progress:
    """Counts work in units of its expected cost.

    Args:
        total: Total expected cost.
        stream: Output of the bar or lines; standard error by default.
    """

    def __init__(self, total: float, *, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._total = max(total, 1e-9)
        self._done = 0.0
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._is_terminal = self._stream.isatty()
        self._bar = (
            tqdm(total=self._total, file=self._stream, bar_format=FORMAT, smoothing=0.02, mininterval=0.5, dynamic_ncols=True)
            if self._is_terminal
            else None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()

    @property
    def fraction(self) -> float:
        """Fraction of the expected cost of finished work."""
        return min(1.0, self._done / self._total)

    def add(self, cost: float) -> None:
        """Count finished work."""
        with self._lock:
            self._done += cost
            if self._bar is not None:
                self._bar.update(min(cost, max(0.0, self._total - self._bar.n)))

    def finished(self, name: str) -> None:
        """Report the end of a job."""
        if self._bar is not None:
            self._bar.set_postfix_str(name, refresh=False)
            return
        minutes, seconds = divmod(round(time.monotonic() - self._start), 60)
        print(f"{100 * self.fraction:3.0f} %  {minutes}:{seconds:02d}  {name}", file=self._stream, flush=True)

    def listen(self, ticks: Any) -> None:
        """Count the costs that workers put into a queue, until None."""
        while (cost := ticks.get()) is not None:
            self.add(cost)

    def say(self, text: str) -> None:
        """Print to standard output, above a bar."""
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.clear()
            print(text, flush=True)
            self._bar.refresh()
