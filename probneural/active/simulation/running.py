"""Run a simulator on many input functions, storing each result before it is used."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tqdm.auto import tqdm

from probneural.active.simulation.store import ResultStore
from probneural.active.simulation.worker_pools import BorrowedPool, ProcessPool
from probneural.active.simulation.workers import Outcome, PlainField, PlainGrid, Simulator, Task
from probneural.checks import check_callable, check_flag, check_instance, check_integer, check_positive, described
from probneural.errors import ArgumentError, DataError
from probneural.fields import Field
from probneural.grids import Grid, check_grid

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
"""Seconds between looks at a simulation that another process has in hand."""

_TICK = 0.05
"""Seconds between looks at the clocks of own workers."""


@dataclass(frozen=True)
class SimulationReport:
    """What became of the input functions of one call.

    Attributes:
        keys: Of the input functions, in their order.
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
    executor: Executor | None = None,
    workers: int | None = None,
    timeout: float | None = None,
    attempts: int = 2,
    out_grid: Grid | None = None,
    progress: bool = True,
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
    killed, so a simulation with a timeout runs in a thread there, which is abandoned when time is up: it goes on using its
    core, and is not tried again in this call; a result that comes late is stored, and found by the next call. Simulators that
    never release Python's interpreter lock can only be stopped in own processes. Where the executor itself has trouble, as a
    `ProcessPoolExecutor` has when one of its workers dies, what it had is reported as lost, and not counted as an attempt.

    A simulator that runs a program should do so by `subprocess.run(..., check=True, capture_output=True)`: the end of what the
    program writes to stderr then stands in the reason of its failure.

    Args:
        simulator: Maps a Field of one function to a Field of one function, for example `problem.solve`. Processes need one
            that can be pickled. The same function has to give the same result, whoever computes it.
        inputs: n input functions; equal ones are simulated once.
        store: Where results are kept.
        executor: Any `concurrent.futures.Executor`, for example Dask's `Client.get_executor()`; own processes by default.
        workers: Number of own processes, by default one per core that may be used.
        timeout: Seconds for one simulation, counted from its start; None for no limit. Also how long to wait for a function
            that another process is simulating.
        attempts: How often a function may fail.
        out_grid: Where results have to live; by default any grid will do.
        progress: Whether to show a progress bar.

    Returns:
        What became of each input; the results are `store.pairs(keys)`.

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
        ...     store = ResultStore(folder)
        ...     first = simulate(problem.solve, pairs.inputs[:3], store=store, executor=executor, progress=False)
        ...     again = simulate(problem.solve, pairs.inputs, store=store, executor=executor, progress=False)
        >>> first.simulated, again.reused, again.simulated
        (3, 3, 1)
    """
    _check(inputs, executor, workers, timeout, attempts)
    check_callable(simulator, "simulator", remedy="give a function of a Field of one function, e.g. problem.solve")
    check_instance(store, ResultStore, "store", remedy="open one: pn.active.ResultStore(path)", error=ArgumentError)
    progress = check_flag(progress, "progress")
    if out_grid is not None:
        check_grid(out_grid, "out_grid")
    with contextlib.closing(open_pool(simulator, executor, workers=workers, timeout=timeout)) as pool:
        return simulate_in(pool, inputs, store=store, timeout=timeout, attempts=attempts, out_grid=out_grid, progress=progress)


def open_pool(
    simulator: Simulator, executor: Executor | None, *, workers: int | None, timeout: float | None
) -> ProcessPool | BorrowedPool:
    """Where simulations are to run, to be closed by the caller; processes start with the first tasks."""
    if executor is None:
        return ProcessPool(simulator, workers=workers or _cores(), limit=timeout)
    return BorrowedPool(executor, simulator, limit=timeout)


def simulate_in(
    pool: ProcessPool | BorrowedPool,
    inputs: Field,
    *,
    store: ResultStore,
    timeout: float | None,
    attempts: int,
    out_grid: Grid | None,
    progress: bool,
    out_kind: tuple[int, str] | None = None,
) -> SimulationReport:
    """Do what `simulate` does in a pool that stays open; results may have to be of one kind, see `kind_of`."""
    start = time.perf_counter()
    _check(inputs, None, None, timeout, attempts)
    keys = tuple(store.key(inputs[row]) for row in range(len(inputs)))
    first = {key: row for row, key in reversed(list(enumerate(keys)))}
    run = _Run(store=store, inputs=inputs, first=first, timeout=timeout, attempts=attempts)
    run.out_grid, run.out_kind = None if out_grid is None else PlainGrid.of(out_grid), out_kind
    for failure in store.failures():
        run.failed[failure.key] += 1
        run.reasons[failure.key] = failure.reason
    missing = [key for key in dict.fromkeys(keys) if key not in store]
    run.queue.extend(key for key in missing if run.failed[key] < attempts)
    run.failures = {key: run.reasons[key] for key in missing if run.failed[key] >= attempts}
    if run.queue:
        settings = {"desc": "simulating", "unit": "simulation", "leave": None}  # None: the bar of a loop stays, this one goes
        with tqdm(total=len(run.queue), disable=not progress, **settings) as run.bar:
            run.go(pool)
    succeeded = tuple(key not in run.failures for key in keys)
    return SimulationReport(
        keys=keys,
        succeeded=succeeded,
        reused=sum(succeeded) - len(run.simulated),
        simulated=len(run.simulated),
        failures=run.failures,
        seconds=time.perf_counter() - start,
        lost=frozenset(run.lost),
    )


@dataclass
class _Run:
    """The state of one call: keys that wait in the queue, and those that workers have."""

    store: ResultStore
    inputs: Field
    first: Mapping[str, int]
    timeout: float | None
    attempts: int
    out_grid: PlainGrid | None = None
    out_kind: tuple[int, str] | None = None
    failed: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    simulated: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    queue: deque[str] = field(default_factory=deque)
    running: dict[Future[Outcome], str] = field(default_factory=dict)
    elsewhere: dict[str, _Elsewhere] = field(default_factory=dict)
    bar: tqdm[NoReturn] | None = None

    def go(self, pool: ProcessPool | BorrowedPool) -> None:
        """Work until every key has a result or a reason."""
        while self.queue or self.running:
            while pool.has_room and (key := self._next()) is not None:
                self.running[pool.submit(self._task(key))] = key
            if not self.running:
                time.sleep(_TICK)
                continue
            patience = None if self.timeout is None and not self.queue else _TICK
            for future in wait(self.running, timeout=patience, return_when=FIRST_COMPLETED).done:
                self._settle(self.running.pop(future), pool.settle(future))
            if self.timeout is not None:
                pool.kill_overdue(self.timeout)

    def _next(self) -> str | None:
        """The next key that is not to be left alone for now."""
        now = time.monotonic()
        for key in self.queue:
            if key not in self.elsewhere or self.elsewhere[key].until <= now:
                self.queue.remove(key)
                return key
        return None

    def _one(self, key: str) -> Field:
        return self.inputs[self.first[key]]

    def _task(self, key: str) -> Task:
        inputs = PlainField.of(self._one(key))
        folder, number = str(self.store.path), secrets.randbits(62)  # another one in every call and every process
        return Task(inputs, folder, self.store.identity, self.out_grid, number, self.out_kind)

    def _settle(self, key: str, outcome: Outcome) -> None:
        if outcome.status == "done" and outcome.outputs is not None:
            self.store.add(self._one(key), outcome.outputs.field(), seconds=outcome.seconds)
        if outcome.status in ("done", "reused", "died", "lost") and key in self.store:
            if outcome.status != "reused":
                self.simulated.add(key)
            self._finish()
        elif outcome.status in (
            "done",
            "reused",
            "busy",
        ):  # damaged since and set aside, not yet visible over a network, or busy
            self._wait_for(key)
        elif outcome.status == "lost":
            self.lost.add(key)
            self._finish(key, outcome.reason)
        else:
            if not outcome.is_stored:
                self.store.fail(self._one(key), reason=outcome.reason, seconds=outcome.seconds)
            self.failed[key] += 1
            if outcome.status != "abandoned" and self.failed[key] < self.attempts:
                self.queue.append(key)
            else:
                self._finish(key, outcome.reason)

    def _wait_for(self, key: str) -> None:
        """Look again later at what another process is simulating."""
        now = time.monotonic()
        known = self.elsewhere.get(key)
        if known is not None and self.timeout is not None and now - known.since > self.timeout:
            self._finish(key, f"another process has been simulating it for more than {self.timeout:g} s")
            return
        pause = _FIRST_PAUSE if known is None else min(2 * known.pause, _LONGEST_PAUSE)
        self.elsewhere[key] = _Elsewhere(now if known is None else known.since, pause, now + pause)
        self.queue.append(key)

    def _finish(self, key: str | None = None, reason: str = "") -> None:
        if key is not None:
            self.failures[key] = reason
        if self.bar is not None:
            if key is not None:
                self.bar.set_postfix(failed=len(self.failures), refresh=False)
            self.bar.update()


@dataclass(frozen=True)
class _Elsewhere:
    """Since when another process has had a function, and until when to leave it alone."""

    since: float
    pause: float
    until: float


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check(inputs: Any, executor: Any, workers: Any, timeout: Any, attempts: Any) -> None:
    if not isinstance(inputs, Field) or len(inputs) == 0:
        raise DataError(
            expected="a Field of one function or more",
            got="none" if isinstance(inputs, Field) else described(inputs),
            remedy="nothing else is simulated",
        )
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise ArgumentError(
            expected="an executor with a method submit, as concurrent.futures has it",
            got=str(type(executor)),
            remedy="for Dask, pass Client.get_executor()",
        )
    check_integer(attempts, "attempts")
    if workers is not None:
        check_integer(workers, "workers")
    if workers is not None and executor is not None:
        raise ArgumentError(expected="workers or an executor", got="both", remedy="an executor has its own number of workers")
    if timeout is not None:
        check_positive(timeout, "timeout")
