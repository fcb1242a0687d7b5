"""Training the members of an ensemble: one after the other, or in worker processes of one thread each."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import io
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from probneural.errors import ProbneuralError, TrainingError, UnsupportedError
from probneural.fields import FieldPairs
from probneural.heads.resets import Initialisation
from probneural.randomness import seeded

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

State = dict[str, Tensor]
"""Parameters and buffers of one member by name."""
Recipe = Callable[..., object]
"""Called as train(operator, data, seed=seed); trains the operator in place."""
Job = tuple[int, int]
"""Number and seed of a member."""

START_SECONDS = 5.0
"""What starting workers may cost: 2 to 3 s for importing torch, twice that on a busy machine."""
_SLOWDOWN_PER_THREAD = 0.3
"""How much longer one thread may take than n, per thread beyond the first: two threads save 22 % at most."""
_CROWDING = 1.1
"""Processes share caches and memory."""


@dataclass(frozen=True)
class MemberTask:
    """Everything that training one member takes, but for its number and seed.

    Attributes:
        operator: Is copied, never changed.
        data: Training pairs, in the operator's dtype.
        train: The recipe.
        initialisation: Where a member's weights come from.
        members: How many there are, for messages.
        device: Where to train.
    """

    operator: nn.Module
    data: FieldPairs
    train: Recipe
    initialisation: Initialisation
    members: int
    device: torch.device

    def run(self, number: int, seed: int) -> State:
        """Train one member.

        Raises:
            TrainingError: If it fails, is left with values that are not finite, or was not trained in place.
        """
        options = {"show_progress": False} if _shows_progress(self.train) else {}
        with torch.enable_grad(), seeded(seed, "member training", devices=[self.device]):
            module = self.initialisation.member(self.operator, seed, self.device)
            start = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
            try:
                self.train(module, self.data.to(self.device), seed=seed, **options)
            except Exception as error:  # whatever a recipe raises, the member it failed on is named
                raise self._failed(number, f"{type(error).__name__}: {error}") from error
        state = state_of(module)
        self._check(number, start, state)
        return state

    def _check(self, number: int, start: State, state: State) -> None:
        changed = set(state) ^ set(state_of(self.operator))
        if changed:
            raise self._failed(number, f"other parameters or buffers than before it was trained: {sorted(changed)[0]}")
        for name, value in state.items():
            if not bool(torch.isfinite(value).all()):
                raise self._failed(number, f"values that are NaN or infinite in {name}")
        if all(torch.equal(value, state[name]) for name, value in start.items()):
            raise self._failed(number, "weights as they were: train(operator, data, seed=...) has to train in place")

    def _failed(self, number: int, got: str) -> TrainingError:
        return TrainingError(
            expected=f"member {number} (of 0 to {self.members - 1}) to train",
            got=got,
            remedy="try the recipe on one operator with the same data",
        )


def state_of(module: nn.Module) -> State:
    """Copies of all parameters and buffers by name, those that files leave out included."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def _shows_progress(train: Recipe) -> bool:
    """Whether a recipe takes `show_progress` and leaves it open: one bar over the members is enough."""
    if isinstance(train, functools.partial) and "show_progress" in train.keywords:
        return False
    try:
        return "show_progress" in inspect.signature(train).parameters
    except (TypeError, ValueError):  # some built-in callables have no signature
        return False


def train_here(task: MemberTask, jobs: Sequence[Job], *, tick: Callable[[], object]) -> dict[int, State]:
    """Train members one after the other, in this process."""
    states = {}
    for number, seed in jobs:
        states[number] = task.run(number, seed)
        tick()
    return states


def train_in_processes(task: MemberTask, jobs: Sequence[Job], *, workers: int, tick: Callable[[], object]) -> dict[int, State]:
    """Train members in worker processes of one thread each; they are ended on every way out.

    Raises:
        UnsupportedError: If the recipe, the reset, the factory or the operator cannot be sent to a process, or the main module
            cannot be imported by one.
        TrainingError: If a member fails, or its process dies.
    """
    payload = _packed(task)
    context = multiprocessing.get_context("spawn")
    processes: list[SpawnProcess] = []
    connections: list[Connection] = []
    states: dict[int, State] = {}
    try:
        with _one_thread_in_children():
            for _ in range(min(workers, len(jobs))):
                ours, theirs = context.Pipe()
                connections.append(ours)
                process = context.Process(target=_work, args=(theirs,))
                process.start()
                processes.append(process)
                theirs.close()  # so that a dead worker is noticed
        pending = list(jobs)
        busy: dict[Connection, Job] = {}
        for connection in connections:
            busy[connection] = pending.pop(0)
            with _naming_the_dead(task, busy[connection]):
                connection.send_bytes(payload)
                connection.send(busy[connection])
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                job = busy.pop(ready)
                with _naming_the_dead(task, job):
                    answer = ready.recv()
                    if isinstance(answer, ProbneuralError):
                        raise answer
                    states[job[0]] = torch.load(io.BytesIO(answer), weights_only=True, map_location=task.device)
                    tick()
                    if pending:
                        busy[ready] = pending.pop(0)
                    ready.send(busy.get(ready))
        for process in processes:  # idle ones go by themselves, and leave nothing behind
            process.join(START_SECONDS)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        for connection in connections:
            connection.close()
    return states


def _packed(task: MemberTask) -> bytes:
    """The task in memory, on the CPU; no file is written or read.

    Raises:
        UnsupportedError: If it cannot be sent.
    """
    if not _main_can_be_imported():
        raise UnsupportedError(
            expected="a main module that worker processes can import without running it",
            got=f"{getattr(sys.modules['__main__'], '__file__', None)}, which has no `if __name__ == '__main__':`",
            remedy="put the script's work under that line, or choose execution='loop'",
        )
    try:
        return pickle.dumps(replace(task, operator=copy.deepcopy(task.operator).cpu(), data=task.data.to("cpu")))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _unsendable(error) from error


def _unsendable(error: Exception) -> UnsupportedError:
    return UnsupportedError(
        expected="a recipe, a reset or factory, and an operator that can be sent to other processes",
        got=f"{type(error).__name__}: {error}",
        remedy="define them at the top of a module instead of as a lambda, inside a function or in a notebook; or choose "
        "execution='loop'",
    )


def _main_can_be_imported() -> bool:
    """Whether spawned processes, which import a script again, would stop short of running it."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None:
        return True  # interactive: nothing is imported again
    try:
        return "__name__" in Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return True


@contextlib.contextmanager
def _naming_the_dead(task: MemberTask, job: Job) -> Iterator[None]:
    """Turn what a broken pipe raises into an error that names the member."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise task._failed(job[0], "the end of its worker process, perhaps for want of memory") from error


@contextlib.contextmanager
def _one_thread_in_children() -> Iterator[None]:
    """Processes that start in here have numerical libraries of one thread."""
    name = "OMP_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _work(connection: Connection) -> None:
    """What a worker does: train the members it is told to, until it is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt reaches the parent, which ends its workers
    torch.set_num_threads(1)
    try:
        payload = connection.recv_bytes()
        try:
            task: MemberTask = pickle.loads(payload)  # noqa: S301 (from our own parent's memory)
        except (AttributeError, ImportError, pickle.UnpicklingError) as error:
            connection.send(_unsendable(error))
            return
        while (job := connection.recv()) is not None:
            connection.send(_answer(task, *job))
    except (EOFError, ConnectionError):  # the parent has gone
        return


def _answer(task: MemberTask, number: int, seed: int) -> bytes | ProbneuralError:
    try:
        state = task.run(number, seed)
    except ProbneuralError as error:
        return error
    buffer = io.BytesIO()
    torch.save({name: tensor.cpu() for name, tensor in state.items()}, buffer)
    return buffer.getvalue()


def available_cores() -> int:
    """Cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def idle_cores() -> int:
    """Cores that nothing else used in the last minute, and the one that this process runs on."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, available_cores() - max(0, round(load - 1.0)))


@dataclass(frozen=True)
class Stopwatch:
    """How long a member took in this process.

    Attributes:
        wall: Seconds.
        cpu: Seconds of all threads together.
    """

    wall: float
    cpu: float

    @classmethod
    def of(cls, work: Callable[[], object]) -> Stopwatch:
        """Time some work."""
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        return cls(time.perf_counter() - wall, time.process_time() - cpu)


def processes_pay(first: Stopwatch, remaining: int, workers: int, *, threads: int) -> bool:
    """Whether worker processes are sure to train the remaining members sooner than this process would.

    One thread takes at most as long as all threads together have worked, and at most 30 % longer per thread it lacks. What is
    saved has to exceed twice the cost of starting, so that an estimate wrong by that much does no harm.
    """
    if workers < 2 or remaining < 2:
        return False
    single = min(first.cpu, first.wall * (1.0 + _SLOWDOWN_PER_THREAD * (threads - 1)))
    rounds = -(-remaining // min(workers, remaining))
    return first.wall * remaining - max(single, first.wall) * _CROWDING * rounds > 2.0 * START_SECONDS
