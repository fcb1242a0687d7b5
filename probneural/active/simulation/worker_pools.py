"""Where simulations run: own processes, whose hung ones can be killed one at a time, or somebody else's executor."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import torch

from probneural.active.simulation.workers import Outcome, Simulator, Task, attempt, attempt_pickled, pickled, run, too_late
from probneural.errors import ArgumentError, FileError

START_METHOD = "spawn"
"""How own workers start: a fork would copy locks that threads of the parent hold."""


class _OwnWorker:
    """State of a process of our own pool."""

    simulator: Simulator
    busy = threading.Lock()


def _start_worker(payload: bytes, limit: float | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_follow_parent, args=(limit,), daemon=True).start()  # first: what follows may take long
    torch.set_num_threads(1)  # one thread per worker: processes share the cores
    _OwnWorker.simulator = pickle.loads(payload)  # noqa: S301 (from our own parent, never from a file)


def _follow_parent(limit: float | None) -> None:
    """End this process when its parent has died, but not before the simulation at hand is stored or out of time."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    multiprocessing.connection.wait([parent.sentinel])
    _OwnWorker.busy.acquire(timeout=-1 if limit is None else limit)
    os._exit(0)


def _own_attempt(task: Task) -> Outcome:
    with _OwnWorker.busy:
        return run(_OwnWorker.simulator, task)


@dataclass
class _Slot:
    """One worker process, the future that gives its number once it has started, and when that was."""

    executor: ProcessPoolExecutor
    ready: Future[int]
    since: float | None = None
    is_killed: bool = False

    def seconds(self, submitted: float) -> float:
        """Seconds for which the worker, once started, has had a task."""
        return 0.0 if self.since is None else time.monotonic() - max(submitted, self.since)

    def started(self, ready: Future[int]) -> None:
        """Note that the process has started, and carry out what came before it had."""
        if ready.cancelled() or ready.exception() is not None:
            return
        self.since = time.monotonic()
        if self.is_killed:
            self.kill()

    def kill(self) -> None:
        """Kill the process, at once or as soon as it has started."""
        self.is_killed = True
        if self.since is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.ready.result(), getattr(signal, "SIGKILL", signal.SIGTERM))


class ProcessPool:
    """Single worker processes: when one dies or is killed, the others' simulations are not lost with it.

    In one `ProcessPoolExecutor` of several workers the death of one ends all.

    Workers start when there is a task for them, and live until the pool is closed, over any number of calls.

    Args:
        simulator: What the workers run.
        workers: How many at most.
        limit: Seconds that an orphaned worker may go on with its last simulation; None for no limit.
    """

    def __init__(self, simulator: Simulator, *, workers: int, limit: float | None) -> None:
        self._simulator = simulator
        self._limit = limit
        self._workers = workers
        self._context = multiprocessing.get_context(START_METHOD)
        self._payload = b""
        self._idle: list[_Slot] = []
        self._busy: dict[Future[Outcome], tuple[_Slot, float]] = {}

    @property
    def has_room(self) -> bool:
        """Whether a worker is free."""
        return bool(self._idle) or len(self._busy) < self._workers

    def submit(self, task: Task) -> Future[Outcome]:
        """Give a free worker a task; it is started if none is idle."""
        slot = self._idle.pop() if self._idle else self._slot()
        try:
            future = slot.executor.submit(_own_attempt, task)
        except BrokenProcessPool:  # it died idle
            self._check_start(slot)
            slot = self._slot()
            future = slot.executor.submit(_own_attempt, task)
        self._busy[future] = slot, time.monotonic()
        return future

    def settle(self, future: Future[Outcome]) -> Outcome:
        """Take a finished task back, with the outcome "died" if its worker did.

        Raises:
            ArgumentError: If the worker died while it started.
        """
        slot, submitted = self._busy.pop(future)
        seconds = slot.seconds(submitted)
        is_dead = isinstance(future.exception(), BrokenProcessPool)
        if is_dead:
            self._check_start(slot)
        if is_dead or slot.is_killed:
            slot.executor.shutdown(wait=False)  # the next task starts another
        else:
            self._idle.append(slot)
        if not is_dead:
            return future.result()
        reason = too_late(self._limit) if slot.is_killed and self._limit is not None else "the worker process died"
        return Outcome("died", seconds, reason, is_stored=False)

    def kill_overdue(self, limit: float) -> None:
        """Kill the workers that have had a task for more than `limit` seconds; these tasks end as "died"."""
        for slot, submitted in self._busy.values():
            if slot.seconds(submitted) > limit and not slot.is_killed:
                slot.kill()

    def close(self) -> None:
        """End all workers, those at work by force."""
        for slot, _ in self._busy.values():
            slot.kill()
        for slot in (*self._idle, *(slot for slot, _ in self._busy.values())):
            slot.executor.shutdown(wait=slot.since is not None, cancel_futures=True)

    def _slot(self) -> _Slot:
        self._payload = self._payload or pickled(self._simulator)
        executor = ProcessPoolExecutor(
            1, mp_context=self._context, initializer=_start_worker, initargs=(self._payload, self._limit)
        )
        slot = _Slot(executor, executor.submit(os.getpid))
        slot.ready.add_done_callback(slot.started)
        return slot

    @staticmethod
    def _check_start(slot: _Slot) -> None:
        if slot.ready.done() and slot.ready.exception() is not None:
            raise ArgumentError(
                expected="worker processes that start and can load the simulator",
                got="one that died at once; its messages are above",
                remedy="put the script's work under `if __name__ == '__main__':`, and define the simulator in a module "
                "that workers can import",
            ) from slot.ready.exception()


class BorrowedPool:
    """Somebody else's executor: it takes any number of tasks, and its workers cannot be killed.

    Args:
        executor: The executor; it is not shut down.
        simulator: What its workers run.
        limit: Seconds for one simulation; None for no limit.
    """

    has_room = True

    def __init__(self, executor: Executor, simulator: Simulator, *, limit: float | None) -> None:
        self._payload = pickled(simulator) if isinstance(executor, ProcessPoolExecutor) else None
        self._executor = executor
        self._simulator = simulator
        self._limit = limit
        self._waiting: set[Future[Outcome]] = set()

    def submit(self, task: Task) -> Future[Outcome]:
        """Hand a task over.

        Raises:
            ArgumentError: If the executor has been shut down.
        """
        try:
            if self._payload is None:
                future = self._executor.submit(attempt, self._simulator, task, self._limit)
            else:
                future = self._executor.submit(attempt_pickled, self._payload, task, self._limit)
        except BrokenExecutor as error:
            future = Future()
            future.set_exception(error)
        except RuntimeError as error:
            raise ArgumentError(expected="an executor that takes work", got=str(error), remedy="open a new one") from error
        self._waiting.add(future)
        return future

    def settle(self, future: Future[Outcome]) -> Outcome:
        """Take a finished task back.

        The outcome is "lost" if the executor has cancelled the task or is broken, which says nothing about the simulation.
        """
        self._waiting.discard(future)
        if future.cancelled():
            return Outcome("lost", reason="the executor cancelled it")
        error = future.exception()
        if isinstance(error, FileError):  # the store's, which every other simulation would meet too
            raise error
        if isinstance(error, BrokenExecutor):
            return Outcome("lost", reason=f"the executor is broken: {error}")
        if error is not None:  # what the simulator raises does not come this way: it is the executor's own trouble
            return Outcome("lost", reason=f"the executor's own {type(error).__name__}: {error}")
        return future.result()

    def kill_overdue(self, limit: float) -> None:
        """Do nothing: the workers watch the time themselves."""

    def close(self) -> None:
        """Take back what has not begun."""
        for future in self._waiting:
            future.cancel()
