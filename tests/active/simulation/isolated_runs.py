"""Runs of `simulate` that end badly, in processes of their own: `python isolated_runs.py FOLDER JOB ...` prints JSON.

A process that has imported everything forks each run, so that being killed fifty times does not mean importing fifty times. Its
own workers are forked likewise, unless a job says otherwise.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open

from probneural.active.simulation import worker_pools
from probneural.active.simulation.running import simulate
from probneural.active.simulation.store import ResultStore
from probneural.active.simulation.worker_pools import SimulationOptions
from probneural.active.simulation.workers import Task, packed
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.grids import Grid

GRID = Grid.uniform((16,))
WORKERS = 2

quiet = partial(SimulationOptions, show_progress=False)


def numbered_functions(count: int) -> Field:
    """Functions whose first value is their number."""
    values = torch.arange(count)[:, None, None] + torch.linspace(0, 1, 16).square()
    return Field(values, GRID)


def number_of(field: Field) -> int:
    return round(float(field.values[0, 0, 0]))


def note(log: Path, line: str) -> None:
    """Append a line in one system call, which processes do not tear apart."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


@dataclass(frozen=True)
class Logged:
    """A slow simulator that notes when it starts, whether the result is on disk by then, and when it has finished its work."""

    log: Path
    results: Path
    seconds: float = 0.02

    def __call__(self, inputs: Field) -> Field:
        number = number_of(inputs)
        note(self.log, f"start {number} {int(number in stored_numbers(self.results))}")
        time.sleep(self.seconds)
        outputs = Field(inputs.values.cumsum(-1).sin(), inputs.grid)
        note(self.log, f"end {number} -")
        return outputs


def stored_numbers(results: Path) -> set[int]:
    """The functions that have result files, read without the store's code."""
    found = set()
    for path in results.glob("[!.]*.safetensors"):
        with safe_open(path, framework="pt") as stream:
            found.add(round(float(stream.get_tensor("inputs")[0, 0, 0])))
    return found


def forked(work: Callable[[], object]) -> int:
    """Start `work` in a process that leads a session of its own."""
    process = os.fork()
    if process:
        return process
    try:
        os.setsid()
        work()
        os._exit(0)
    except BaseException:  # noqa: BLE001 (a fork must never return into the caller's code)
        traceback.print_exc()
        os._exit(1)


def ended(process: int) -> bool:
    return os.waitpid(process, os.WNOHANG)[0] == process


def wait_for_more(log: Path, process: int) -> None:
    """Wait until the log grows, at most as long as the process lives."""
    before = log.stat().st_size if log.exists() else 0
    while (log.stat().st_size if log.exists() else 0) == before and Path(f"/proc/{process}").exists():
        if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.002)


def killed_runs(
    folder: Path, *, kills: int, seed: int, kinds: tuple[str, ...], longest: float, count: int
) -> dict[str, object]:
    """Start a run, kill it at a random moment, and again; then let it finish."""
    draw = random.Random(seed)
    log, inputs = folder / "log", numbered_functions(count)
    simulator = Logged(log, folder / "store" / "results")

    def work() -> None:
        report = simulate(simulator, inputs, store=ResultStore(folder / "store"), options=quiet(workers=WORKERS))
        assert all(report.succeeded), report.failures

    lost, made, before, moments = 0, Counter(), set(), []
    while made.total() < kills:
        process = forked(work)
        kind = draw.choice(kinds)
        if draw.random() < 0.8:  # most runs get as far as a simulation; the others die while they start
            wait_for_more(log, process)
        time.sleep(draw.uniform(0.0, longest))
        if ended(process):
            break
        (os.killpg if kind == "tree" else os.kill)(process, signal.SIGKILL)
        os.waitpid(process, 0)
        made[kind] += 1
        now = stored_numbers(folder / "store" / "results")
        lost += len(before - now)
        moments.append(len(now))
        before = now
    final = forked(work)
    status = os.waitstatus_to_exitcode(os.waitpid(final, 0)[1])
    lost += len(before - stored_numbers(folder / "store" / "results"))

    lines = [line.split() for line in log.read_text().splitlines()]
    store = ResultStore(folder / "store")
    whole = ResultStore(folder / "whole")
    keys = simulate(
        Logged(folder / "other", folder / "whole" / "results"), inputs, store=whole, options=quiet(workers=WORKERS)
    ).keys
    one, other = store.pairs(keys), whole.pairs(keys)
    return {
        "status": status,
        "kills": dict(made),
        "moments": moments,
        "lost": lost,
        "repeated": sum(line[0] == "start" and line[2] == "1" for line in lines),
        "starts": sum(line[0] == "start" for line in lines),
        "ends": sum(line[0] == "end" for line in lines),
        "count": count,
        "results": len(store),
        "equal": bool(
            torch.equal(one.inputs.values, other.inputs.values) and torch.equal(one.outputs.values, other.outputs.values)
        ),
        "exact": bool(torch.equal(one.outputs.values, inputs.values.cumsum(-1).sin())),
        "broken": len(list((folder / "store").rglob("*.broken"))),
        "left": len(list((folder / "store" / "results").glob(".*"))),
        "failures": len(store.failures()),
    }


def faulty(inputs: Field) -> Field:
    """Go wrong in a way that depends on the function's number."""
    number = number_of(inputs)
    if number in (1, 7):
        raise RuntimeError("no convergence")
    if number == 2:
        time.sleep(600)
    if number == 3:
        return Field(inputs.values * torch.nan, inputs.grid)
    if number == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 5:
        return Field(inputs.values.repeat(2, 1, 1), inputs.grid)
    if number == 6:
        return inputs.values  # type: ignore[return-value]
    if number == 8:
        sys.exit(2)
    return Field(inputs.values * 2, inputs.grid)


def left_after_a_while() -> int:
    """Number of worker processes that do not end within some seconds."""
    end = time.monotonic() + 20
    while multiprocessing.active_children() and time.monotonic() < end:
        time.sleep(0.01)
    return len(multiprocessing.active_children())


def faults(folder: Path) -> dict[str, object]:
    """All that a simulator can do wrong, in own workers; then the same call again, and with more attempts."""
    inputs = numbered_functions(10)
    inputs = inputs[[*range(10), 0, 1, 9]]
    store = ResultStore(folder)
    settings = {"store": store, "options": quiet(workers=WORKERS, timeout=0.3)}
    first = simulate(faulty, inputs, **settings)
    again = simulate(faulty, inputs, **settings)
    more = simulate(faulty, inputs[:2], **settings | {"options": quiet(workers=WORKERS, timeout=0.3, attempts=3)})
    numbers = {key: number for number, key in reversed(list(enumerate(first.keys)))}
    return {
        "succeeded": first.succeeded,
        "reused": first.reused,
        "simulated": first.simulated,
        "failures": {numbers[key]: reason for key, reason in first.failures.items()},
        "attempts": [store.attempts(key) for key in first.keys],
        "again": [again.reused, again.simulated, again.failures == first.failures, again.seconds],
        "more": [more.reused, more.simulated, len(more.failures)],
        "children": left_after_a_while(),
    }


def together(folder: Path) -> dict[str, object]:
    """Two processes make one store and write to it at once; they share ten results, a decision and a contested one."""
    inputs = numbered_functions(30)

    def work(first: int) -> None:
        store = ResultStore(folder / "store")
        for row in range(first, first + 20):
            store.add(inputs[row], inputs[row], seconds=0.0)
            store.fail(inputs[0], reason=str(first), seconds=0.0)
        store.remember("same", [1, 2])
        try:
            store.remember("contested", first)
        except ArgumentError:
            note(folder / "refused", str(first))

    processes = [forked(lambda first=first: work(first)) for first in (0, 10)]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    store = ResultStore(folder / "store")
    keys = [store.key(inputs[row]) for row in range(30)]
    return {
        "statuses": statuses,
        "equal": bool(torch.equal(store.pairs(keys).outputs.values, inputs.values)),
        "results": len(store),
        "attempts": store.attempts(keys[0]),
        "same": store.recall("same"),
        "contested": [store.recall("contested"), int((folder / "refused").read_text())],
        "left": [
            path.name for path in (folder / "store").rglob("*") if path.name.startswith(".") or path.parent.name == "locks"
        ],
    }


class Unloadable:
    """Can be sent and not received."""

    def __call__(self, inputs: Field) -> Field:
        return inputs

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("no number",)


def troubles(folder: Path) -> dict[str, object]:
    """A borrowed pool whose worker dies; workers that cannot start; workers ended while they work."""
    inputs = numbered_functions(6)
    store = ResultStore(folder)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor:
        broken = simulate(faulty, inputs[[0, 4, 4]], store=store, options=quiet(executor=executor))
    try:
        simulate(Unloadable(), inputs[1], store=store, options=quiet(workers=1))
        message = ""
    except ArgumentError as error:
        message = str(error)
    pool = worker_pools.WorkerPool(faulty, SimulationOptions(workers=2))
    future = pool.submit(Task(packed(inputs[2]), str(folder), store.identity, 0))
    while not (folder / "locks" / f"simulate-{store.key(inputs[2])}").exists():
        time.sleep(0.01)
    at_work = len(multiprocessing.active_children())
    start = time.monotonic()
    pool.close()
    other = worker_pools.WorkerPool(faulty, SimulationOptions(workers=1))
    early = other.submit(Task(packed(inputs[2]), str(folder), store.identity, 1))
    other.close()
    return {
        "broken": [broken.succeeded, list(broken.failures.values()), store.attempts(broken.keys[1])],
        "message": message,
        "closing": [time.monotonic() - start, future.result(60).reason, at_work, left_after_a_while()],
        "closing early": [left_after_a_while(), early.done()],
    }


def run(job: str, folder: Path) -> dict[str, object]:
    name, _, number = job.partition(":")
    folder.mkdir()
    kills = int(number or 0)
    if name == "faults":
        return faults(folder)
    if name == "together":
        return together(folder)
    if name == "troubles":
        return troubles(folder)
    if name == "mixed":
        return killed_runs(folder, kills=kills, seed=kills, kinds=("tree", "parent"), longest=0.08, count=10 + 4 * kills)
    if name == "parent":
        return killed_runs(folder, kills=kills, seed=kills, kinds=("parent",), longest=0.08, count=10 + 4 * kills)
    worker_pools.START_METHOD = "spawn"
    return killed_runs(folder, kills=kills, seed=kills, kinds=("tree", "parent"), longest=0.3, count=10 + 12 * kills)


if __name__ == "__main__":
    torch.set_num_threads(1)
    worker_pools.START_METHOD = "fork"
    where = Path(sys.argv[1])
    print(json.dumps({job: run(job, where / f"run {number}") for number, job in enumerate(sys.argv[2:])}))
