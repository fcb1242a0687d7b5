"""Pools of workers: single-process executors that can be killed one by one, or an executor of the user."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial

import torch

from probneural.active.simulation.workers import Outcome, Simulator, Task, pickled, run, run_pickled
from probneural.checks import check_callable
from probneural.errors import ArgumentError, FileError
from probneural.settings import Count, Positive, Settings


@dataclass(frozen=True, kw_only=True)
class SimulationOptions(Settings):
    """Executor, time limit and attempts of simulations; none of these options changes a result.

    Args:
        executor: Any `concurrent.futures.Executor`, for example Dask's `Client.get_executor()`; by default worker processes.
        workers: Number of worker processes, by default one per available core.
        timeout: Seconds for one simulation in a worker process, from its start; None for no limit. Also the longest wait for a
            function that another process simulates.
        attempts: Number of failures of a function after which it is dropped, earlier calls with the same store included.
        show_progress: Whether to show progress bars.

    Raises:
        ArgumentError: If an argument is of the wrong kind or out of range, or an executor is combined with workers or a
            timeout.

    Examples:
        >>> SimulationOptions(timeout=60).timeout
        60.0
    """

    executor: Executor | None = None
    workers: Count | None = None
    timeout: Positive | None = None
    attempts: Count = 2
    show_progress: bool = True

    def __post_init__(self) -> None:
        """Check the options."""
        if self.executor is not None:
            remedy = "give one of concurrent.futures; for Dask, pass Client.get_executor()"
            check_callable(getattr(self.executor, "submit", None), "submit of the executor", remedy=remedy)
        if self.executor is not None and (self.workers, self.timeout) != (None, None):
            raise ArgumentError(
                expected="an executor, or workers and a timeout of worker processes",
                got="both",
                remedy="drop workers and timeout: an executor has its own workers, which cannot be killed",
            )
        super().__post_init__()


START_METHOD = "spawn"
"""Start method of worker processes: a fork would copy locks held by threads of the parent."""


class WorkerPool:
    """Workers for the simulations of one or several calls, until `close`.

    Args:
        simulator: The simulator.
        options: Options with an executor, which is not shut down. Without executor, a thread per simulation watches a worker
            process; workers start with their first task and live until the pool is closed.
    """

    def __init__(self, simulator: Simulator, options: SimulationOptions) -> None:
        self._waiting: set[Future[Outcome]] = set()
        self._processes: _WorkerProcesses | None = None
        self._executor: Executor
        self._call: Callable[[Task], Outcome]
        if options.executor is None:
            self._processes = _WorkerProcesses(simulator, options.timeout)
            self._executor, self._call = ThreadPoolExecutor(options.workers or _cores()), self._processes.attempt
        elif isinstance(options.executor, ProcessPoolExecutor):
            self._executor, self._call = options.executor, partial(run_pickled, pickled(simulator))
        else:
            self._executor, self._call = options.executor, partial(run, simulator)

    def submit(self, task: Task) -> Future[Outcome]:
        """Submit a task.

        Raises:
            ArgumentError: If the executor was shut down.
        """
        try:
            future = self._executor.submit(self._call, task)
        except BrokenExecutor as error:
            future = Future()
            future.set_exception(error)
        except RuntimeError as error:
            raise ArgumentError(expected="an executor that takes work", got=str(error), remedy="open a new one") from error
        self._waiting.add(future)
        return future

    def outcome(self, future: Future[Outcome]) -> Outcome:
        """Return the outcome of a finished task.

        It is "lost" if the executor cancelled the task or is broken; the simulation itself did not fail.

        Raises:
            ArgumentError: If worker processes cannot start.
            FileError: If the store cannot be written to.
        """
        self._waiting.discard(future)
        if future.cancelled():
            return Outcome("lost", reason="the executor cancelled it")
        error = future.exception()
        if isinstance(error, ArgumentError | FileError):  # all simulations would raise it
            raise error
        if isinstance(error, BrokenExecutor):
            return Outcome("lost", reason=f"the executor is broken: {error}")
        if error is not None:  # an error of the executor: errors of simulators are outcomes
            return Outcome("lost", reason=f"the executor's own {type(error).__name__}: {error}")
        return future.result()

    def close(self) -> None:
        """Cancel queued tasks and end all worker processes, busy ones by force."""
        for future in self._waiting:
            future.cancel()
        if self._processes is not None:
            self._processes.close()
            self._executor.shutdown()


class _WorkerProcesses:
    """One worker process per thread that calls `attempt`, so that the death of one has no effect on others."""

    def __init__(self, simulator: Simulator, limit: float | None) -> None:
        self._simulator, self._limit = simulator, limit
        self._payload = b""
        self._of_thread = threading.local()
        self._workers: list[_Worker] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def attempt(self, task: Task) -> Outcome:
        """Run a task in this thread's process; the outcome is "died" if the process dies or exceeds the time limit.

        Raises:
            ArgumentError: If the process dies while starting.
        """
        worker, future = self._begun(task)
        start = time.monotonic()
        is_late = not wait([future], timeout=self._limit).done
        if is_late:
            worker.kill()
        elif not isinstance(future.exception(), BrokenProcessPool):
            return future.result()
        del self._of_thread.worker  # the next task starts another process
        reason = f"no result within {self._limit:g} s" if is_late else "the worker process died"
        return Outcome("died", time.monotonic() - start, reason)

    def close(self) -> None:
        """End all processes, busy ones by force."""
        with self._lock:
            self._is_closed = True
        for worker in self._workers:
            worker.end()

    def _begun(self, task: Task) -> tuple[_Worker, Future[Outcome]]:
        """Submit a task to this thread's process, or to a new one if there is none or it died."""
        if hasattr(self._of_thread, "worker"):
            with contextlib.suppress(BrokenProcessPool), self._open():
                return self._of_thread.worker, self._of_thread.worker.submit(task)
        with self._open():  # one at a time: a process must not inherit the pipes of another starting process
            self._payload = self._payload or pickled(self._simulator)
            worker = _Worker(self._payload, self._limit)
            self._workers.append(worker)
        worker.check_start()
        self._of_thread.worker = worker
        with self._open():
            return worker, worker.submit(task)

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Hold the lock, or raise if the processes are closed."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the worker processes are closed")
            yield


class _Worker:
    """One process in a separate executor: in an executor of several processes the death of one ends all."""

    def __init__(self, payload: bytes, limit: float | None) -> None:
        context = multiprocessing.get_context(START_METHOD)
        self._executor = ProcessPoolExecutor(1, mp_context=context, initializer=_start_worker, initargs=(payload, limit))
        self._process_id = self._executor.submit(os.getpid)

    def check_start(self) -> None:
        """Wait until the process has started."""
        error = self._process_id.exception()
        if error is not None:
            raise ArgumentError(
                expected="worker processes that start and can load the simulator",
                got="a process that died at its start; its messages are above",
                remedy="put the script under `if __name__ == '__main__':`, and define the simulator in a module "
                "that workers can import",
            ) from error

    def submit(self, task: Task) -> Future[Outcome]:
        """Submit a task to the process."""
        return self._executor.submit(_attempt_in_worker, task)

    def kill(self) -> None:
        """Kill the process and all processes that the simulator forked, which hold the same pipes."""
        if self._process_id.exception() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(self._process_id.result(), signal.SIGKILL)
            else:
                os.kill(self._process_id.result(), signal.SIGTERM)

    def end(self) -> None:
        """End the process; an idle process has stored its results."""
        self.kill()
        self._executor.shutdown(cancel_futures=True)


class _InWorker:
    """State of a worker process."""

    simulator: Simulator
    busy = threading.Lock()


def _start_worker(payload: bytes, limit: float | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    threading.Thread(target=_follow_parent, args=(limit,), daemon=True).start()  # first, since unpickling may take long
    torch.set_num_threads(1)  # one thread per worker: processes share the cores
    _InWorker.simulator = pickle.loads(payload)  # noqa: S301 (from our own parent, never from a file)


def _follow_parent(limit: float | None) -> None:
    """End this process after its parent died and its current simulation is stored or out of time."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    multiprocessing.connection.wait([parent.sentinel])
    _InWorker.busy.acquire(timeout=-1 if limit is None else limit)
    os._exit(0)


def _attempt_in_worker(task: Task) -> Outcome:
    with _InWorker.busy:
        return run(_InWorker.simulator, task)


def _cores() -> int:
    """Number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
