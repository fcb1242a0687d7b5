"""Run a simulator on many input functions, storing each result before it is used."""

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
from probneural.active.simulation.workers import Outcome, Simulator, Task, packed, unpacked
from probneural.checks import check_callable, check_instance, described
from probneural.errors import ArgumentError, DataError
from probneural.fields import Field

_TICK = 0.05
"""Seconds between looks at the queue while other processes are at work on functions in it."""
_PAUSE = 0.5
"""Seconds between attempts at such a function."""


@dataclass(frozen=True, kw_only=True)
class SimulationReport:
    """Outcome of the simulations of one call.

    Attributes:
        keys: Keys of the input functions, in their order.
        succeeded: Whether there is a result, in the same order.
        reused: Number of inputs whose result was there, came from another process, or is another input's of this call.
        simulated: Number of inputs that this call simulated with success.
        failures: Why there is no result, by key.
        seconds: Wall-clock time of the call.
        lost: Keys of those of them that say nothing about the simulation: the executor lost it.
    """

    keys: tuple[str, ...]
    succeeded: tuple[bool, ...]
    reused: int
    simulated: int
    failures: Mapping[str, str]
    seconds: float
    lost: frozenset[str] = frozenset()


def simulate(
    simulator: Simulator,
    inputs: Field,
    *,
    store: ResultStore,
    options: SimulationOptions | None = None,
) -> SimulationReport:
    """Simulate the input functions that a store has no result for, and store each result before it is used.

    A worker stores the result it computed itself, before it returns, if it finds the store's folder where the parent has
    it; only where it does not (another machine without a shared file system) does the parent store it. While a worker
    simulates, it holds an advisory lock on the function. So after a parent is killed and started again,

    * a result that was stored is never simulated again;
    * what an orphaned worker is still simulating is waited for, not repeated;
    * what a *killed* worker had in hand is simulated again: no result of it exists. This includes the milliseconds between
      the simulator's return and the end of the write, a gap that no program can close.

    The first two need workers that reach the folder, and a file system that knows `flock`. A simulation counts as failed
    if the simulator raises, returns anything but one finite function, has no result in time, or if its worker dies. It is
    tried until it has failed `attempts` times, attempts in earlier calls with this store included; then it is reported. A
    later call with more attempts tries again.

    Without an `executor`, each worker is a process of its own with one thread: one that hangs or dies is replaced, and
    the others do not notice. They start afresh in every call and import this package, which takes seconds (an `ActiveLearner`
    keeps them for all rounds of a `run`). An executor of yours is used as it is and not shut down. Its workers cannot be
    killed, so there is no timeout. Where the executor itself has trouble, as a `ProcessPoolExecutor` has when one of its
    workers dies, what it had is reported as lost, and not counted as an attempt.

    A simulator that runs a program should do so by `subprocess.run(..., check=True, capture_output=True)`: the end of what the
    program writes to stderr then stands in the reason of its failure.

    Args:
        simulator: Maps a Field of one function to a Field of one function, for example `problem.solve`. Processes need one
            that can be pickled. The same function has to give the same result, whoever computes it.
        inputs: n input functions; equal ones are simulated once.
        store: Store of the results.
        options: Executor, number of processes, time limit and attempts.

    Returns:
        The outcome of each input; the results are `store.pairs(keys)`.

    Raises:
        ArgumentError: If an argument is out of range, the simulator cannot be sent to processes, or own workers die as they
            start.
        DataError: If the inputs are not finite functions.
        FileError: If the store cannot be written to.

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
    remedy = "give SimulationOptions(workers=4) for example"
    options = SimulationOptions() if options is None else options
    check_instance(options, SimulationOptions, "options", remedy=remedy, error=ArgumentError)
    check_callable(simulator, "simulator", remedy="give a function of a Field of one function, e.g. problem.solve")
    check_instance(store, ResultStore, "store", remedy="open one: pn.active.ResultStore(path)", error=ArgumentError)
    with contextlib.closing(WorkerPool(simulator, options)) as pool:
        return simulate_in(pool, inputs, store=store, options=options)


def simulate_in(
    pool: WorkerPool,
    inputs: Field,
    *,
    store: ResultStore,
    options: SimulationOptions,
) -> SimulationReport:
    """Do what `simulate` does in a pool that stays open."""
    if not isinstance(inputs, Field) or len(inputs) == 0:
        raise DataError(
            expected="a Field of one function or more",
            got="none" if isinstance(inputs, Field) else described(inputs),
            remedy="nothing else is simulated",
        )
    return _Run(pool, inputs, store, options).report()


class _Run:
    """One call: the functions that wait in a queue, and those that workers have."""

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
        """Times at which another process was first and last found at work on a function."""

    def report(self) -> SimulationReport:
        """Work until every function has a result or a reason."""
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
                self.running[self.pool.submit(self._task(key))] = key
            if not self.running:
                time.sleep(_TICK)
                continue
            for future in wait(self.running, timeout=_TICK if self.queue else None, return_when=FIRST_COMPLETED).done:
                if self._is_settled(self.running.pop(future), self.pool.outcome(future)):
                    bar.set_postfix({"failed": len(self.failures)} if self.failures else {}, refresh=False)
                    bar.update()

    def _next(self) -> str | None:
        """The next key, unless another process has been at work on it just now."""
        now = time.monotonic()
        for key in self.queue:
            if key not in self.elsewhere or self.elsewhere[key][1] + _PAUSE <= now:
                self.queue.remove(key)
                return key
        return None

    def _function(self, key: str) -> Field:
        return self.inputs[self.rows[key]]

    def _task(self, key: str) -> Task:
        inputs = packed(self._function(key))
        number = secrets.randbits(62)  # another one in every call and every process
        return Task(inputs, str(self.store.path), self.store.identity, number)

    def _is_settled(self, key: str, outcome: Outcome) -> bool:
        """Whether a function has a result or a reason now; if not, it is in the queue again."""
        if outcome.status == "done" and outcome.outputs is not None:
            self.store.add(self._function(key), unpacked(outcome.outputs), seconds=outcome.seconds)
        if outcome.status in ("done", "reused", "died", "lost") and key in self.store:
            if outcome.status != "reused":
                self.simulated.add(key)
            return True
        if outcome.status in ("done", "reused", "busy"):  # damaged since and set aside, not yet visible over a network, or busy
            return self._has_waited_too_long(key)
        if outcome.status == "lost":
            self.lost.add(key)
        else:
            if not outcome.is_stored:
                self.store.fail(self._function(key), reason=outcome.reason, seconds=outcome.seconds)
            self.failed[key] += 1
            if self.failed[key] < self.options.attempts:
                self.queue.append(key)
                return False
        self.failures[key] = outcome.reason
        return True

    def _has_waited_too_long(self, key: str) -> bool:
        """Queue what another process is simulating, unless that has taken too long."""
        now, limit = time.monotonic(), self.options.timeout
        since, _ = self.elsewhere.get(key, (now, now))
        if limit is not None and now - since > limit:
            self.failures[key] = f"another process has been simulating it for more than {limit:g} s"
            return True
        self.elsewhere[key] = since, now
        self.queue.append(key)
        return False
