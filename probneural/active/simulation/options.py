"""Options of simulations: executor, workers, time limit, attempts."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass

from probneural.checks import assign, check_flag, check_integer, check_positive
from probneural.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """Where simulations run, how long one may take, and how often it is tried; nothing here changes a result.

    Args:
        executor: Any `concurrent.futures.Executor`, for example Dask's `Client.get_executor()`; own processes by default.
        workers: Number of own processes, by default one per core that may be used.
        timeout: Seconds for one simulation, counted from its start; None for no limit. Also how long to wait for a function
            that another process is simulating.
        attempts: How often a function may fail, attempts in earlier calls with the same store included.
        show_progress: Whether to show progress bars.

    Raises:
        ArgumentError: If an argument is of the wrong kind or out of range, or both an executor and workers are given.

    Examples:
        >>> SimulationOptions(timeout=60).timeout
        60.0
    """

    executor: Executor | None = None
    workers: int | None = None
    timeout: float | None = None
    attempts: int = 2
    show_progress: bool = True

    def __post_init__(self) -> None:
        """Check the options."""
        if self.executor is not None and not callable(getattr(self.executor, "submit", None)):
            raise ArgumentError(
                expected="an executor with a method submit, as concurrent.futures has it",
                got=str(type(self.executor)),
                remedy="for Dask, pass Client.get_executor()",
            )
        if self.workers is not None and self.executor is not None:
            raise ArgumentError(
                expected="workers or an executor", got="both", remedy="an executor has its own number of workers"
            )
        assign(
            self,
            workers=None if self.workers is None else check_integer(self.workers, "workers"),
            timeout=None if self.timeout is None else check_positive(self.timeout, "timeout"),
            attempts=check_integer(self.attempts, "attempts"),
            show_progress=check_flag(self.show_progress, "show_progress"),
        )
