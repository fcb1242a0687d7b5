"""Simulations of many input functions, each result stored before it is used."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import NoReturn

from tqdm.auto import tqdm

from probneural.active.simulation.store import ResultStore
from probneural.active.simulation.worker_pools import SimulationOptions, WorkerPool
from probneural.active.simulation.workers import Outcome, Simulator, Task, packed
from probneural.checks import check_callable, check_instance, described
from probneural.errors import ArgumentError, DataError
from probneural.fields import Field

_TICK = 0.05
"""Seconds between checks of the queue while other processes simulate functions in it."""
_PAUSE = 0.5
"""Seconds between attempts at a function that another process simulates."""


@dataclass(frozen=True, kw_only=True)
class SimulationReport:
    """Outcome of the simulations of one call.

    Attributes:
        keys: Keys of the input functions, in their order.
        succeeded: Whether each input has a result, in the same order.
        reused: Number of inputs with a stored result, a result of another process, or the result of an equal input.
        simulated: Number of inputs that this call simulated with success.
        failures: Reasons of missing results by key.
        seconds: Wall-clock time of the call.
        lost: Keys of failures of the executor, which are no failures of the simulation.
    """

    keys: tuple[str, ...]
    succeeded: tuple[bool, ...]
    reused: int
    simulated: int
    failures: Mapping[str, str]
    seconds: float
    lost: frozenset[str] = frozenset()


def simulate(
    simulator: Simulator, inputs: Field, *, store: ResultStore, options: SimulationOptions | None = None
) -> SimulationReport:
    """Simulate the input functions without a stored result, and store each result before it is used.

    A worker stores its result before it returns, so all workers must see the store's folder: on several machines, use a shared
    file system. A worker holds an advisory lock on the function that it simulates. So after a parent is killed and started
    again,

    * stored results are never simulated again;
    * simulations of orphaned workers are waited for, not repeated;
    * simulations of *killed* workers are repeated, because they have no result. This includes workers that are killed in the
      milliseconds between the end of the simulation and the end of the write.

    The first two need a file system with `flock`. A simulation fails if the simulator raises, returns
    anything but one finite function, or exceeds the timeout, or if its worker dies. It is repeated until it has failed
    `attempts` times, earlier calls with this store included; then the failure is reported. A later call with more attempts
    tries again.

    Without an `executor`, each worker is a separate process with one thread; a worker that hangs or dies is replaced without
    effect on others. Workers start in every call, which takes seconds (an `ActiveLearner` keeps them for all rounds of a
    `run`). A given executor is not shut down. Its workers cannot be killed, so there is no timeout. If the executor fails, as a
    `ProcessPoolExecutor` does when a worker dies, its simulations are reported as lost and do not count as attempts.

    A simulator that runs a program should use `subprocess.run(..., check=True, capture_output=True)`: the reason of a failure
    then contains the end of its stderr.

    Args:
        simulator: Maps a Field of one function to a Field of one function, for example `problem.solve`. For processes it must
            be picklable. Equal inputs must give equal results in every process.
        inputs: n input functions; equal ones are simulated once.
        store: Store of the results.
        options: Executor, number of processes, time limit and attempts.

    Returns:
        The outcome of each input; the results are `store.pairs(keys)`.

    Raises:
        ArgumentError: If an argument is out of range, the simulator cannot be sent to processes, or worker processes die at
            their start.
        DataError: If the inputs are not finite functions.
        FileError: If a worker does not see the store, or it cannot be written to.

    Examples:
        >>> import tempfile
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from probneural.problems import Heat
        >>> problem = Heat(dimension=1)
        >>> pairs = problem.sample(4, resolution=64, seed=0)
        >>> with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as executor:
        ...     store, options = ResultStore(folder), SimulationOptions(executor=executor, show_progress=False)
        ...     first = simulate(problem.solve, pairs.inputs[:3], store=store, options=options)
        ...     again = simulate(problem.solve, pairs.inputs, store=store, options=options)
        >>> first.simulated, again.reused, again.simulated
        (3, 3, 1)
    """
    remedy = "pass SimulationOptions(workers=4), for example"
    options = SimulationOptions() if options is None else options
    check_instance(options, SimulationOptions, "options", remedy=remedy, error=ArgumentError)
    check_callable(simulator, "simulator", remedy="pass a function of a Field of one function, e.g. problem.solve")
    check_instance(store, ResultStore, "store", remedy="open one: pn.active.ResultStore(path)", error=ArgumentError)
    with contextlib.closing(WorkerPool(simulator, options)) as pool:
        return simulate_in(pool, inputs, store=store, options=options)


def simulate_in(pool: WorkerPool, inputs: Field, *, store: ResultStore, options: SimulationOptions) -> SimulationReport:
    """Run `simulate` in a pool that stays open."""
    if not isinstance(inputs, Field) or len(inputs) == 0:
        raise DataError(
            expected="a Field of one function or more",
            got="none" if isinstance(inputs, Field) else described(inputs),
            remedy="pass at least one input function",
        )
    return _Run(pool, inputs, store, options).report()


class _Run:
    """One call: queued functions, and functions in simulation."""

    def __init__(self, pool: WorkerPool, inputs: Field, store: ResultStore, options: SimulationOptions) -> None:
        self.pool, self.inputs, self.store, self.options = pool, inputs, store, options
        self.keys = tuple(store.key(inputs[row]) for row in range(len(inputs)))
        self.rows = {key: row for row, key in reversed(list(enumerate(self.keys)))}  # the first of equal functions
        self.failed: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        self.lost: set[str] = set()
        self.simulated: set[str] = set()
        self.queue: deque[str] = deque()
        self.running: dict[Future[Outcome], str] = {}
        self.elsewhere: dict[str, tuple[float, float]] = {}
        """First and last time at which another process was simulating a function."""

    def report(self) -> SimulationReport:
        """Run until every function has a result or a reason of failure."""
        start, reasons = time.perf_counter(), {}
        for failure in self.store.failures():
            self.failed[failure.key] += 1
            reasons[failure.key] = failure.reason
        for key in dict.fromkeys(self.keys):
            if key not in self.store and self.failed[key] >= self.options.attempts:
                self.failures[key] = reasons[key]
            elif key not in self.store:
                self.queue.append(key)
        if self.queue:
            settings = {"desc": "simulating", "unit": "simulation", "disable": not self.options.show_progress}
            with tqdm(total=len(self.queue), leave=None, **settings) as bar:  # None: the bar of a loop stays, this one goes
                self._work(bar)
        succeeded = tuple(key not in self.failures for key in self.keys)
        return SimulationReport(
            keys=self.keys,
            succeeded=succeeded,
            reused=sum(succeeded) - len(self.simulated),
            simulated=len(self.simulated),
            failures=self.failures,
            seconds=time.perf_counter() - start,
            lost=frozenset(self.lost),
        )

    def _work(self, bar: tqdm[NoReturn]) -> None:
        while self.queue or self.running:
            while (key := self._next()) is not None:
                number = secrets.randbits(62)  # unique per submission
                task = Task(packed(self._function(key)), str(self.store.path), self.store.identity, number)
                self.running[self.pool.submit(task)] = key
            if not self.running:
                time.sleep(_TICK)
                continue
            for future in wait(self.running, timeout=_TICK if self.queue else None, return_when=FIRST_COMPLETED).done:
                if self._is_settled(self.running.pop(future), self.pool.outcome(future)):
                    bar.set_postfix({"failed": len(self.failures)} if self.failures else {}, refresh=False)
                    bar.update()

    def _next(self) -> str | None:
        """The next key that no other process was simulating at the last check."""
        now = time.monotonic()
        for key in self.queue:
            if key not in self.elsewhere or self.elsewhere[key][1] + _PAUSE <= now:
                self.queue.remove(key)
                return key
        return None

    def _function(self, key: str) -> Field:
        return self.inputs[self.rows[key]]

    def _is_settled(self, key: str, outcome: Outcome) -> bool:
        """Whether a function has a result or a reason of failure; otherwise it is queued again."""
        if outcome.status in ("done", "reused", "died", "lost") and key in self.store:
            if outcome.status != "reused":
                self.simulated.add(key)
            return True
        if outcome.status in ("done", "reused", "busy"):  # busy, or the file was damaged, or is not yet visible over a network
            return self._has_waited_too_long(key)
        if outcome.status == "lost":
            self.lost.add(key)
        else:
            if outcome.status == "died":
                self.store.fail(self._function(key), reason=outcome.reason, seconds=outcome.seconds)
            self.failed[key] += 1
            if self.failed[key] < self.options.attempts:
                self.queue.append(key)
                return False
        self.failures[key] = outcome.reason
        return True

    def _has_waited_too_long(self, key: str) -> bool:
        """Queue a function that another process simulates; return True and fail if that exceeds the time limit."""
        now, limit = time.monotonic(), self.options.timeout
        since, _ = self.elsewhere.get(key, (now, now))
        if limit is not None and now - since > limit:
            self.failures[key] = f"another process has been simulating it for more than {limit:g} s"
            return True
        self.elsewhere[key] = since, now
        self.queue.append(key)
        return False
