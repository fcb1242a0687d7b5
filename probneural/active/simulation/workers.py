"""One simulation in a worker process."""

from __future__ import annotations

import contextlib
import os
import pickle
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from probneural.active.simulation.result_files import check_result, function_key, plain_text, write_failure, write_result
from probneural.active.simulation.store_files import RESULTS, SUFFIX, locked, path_of, store_identity
from probneural.errors import ArgumentError, FileError, ProbneuralError
from probneural.fields import Field

Simulator = Callable[[Field], Field]

_COMPLAINT = 1000
"""Characters of a program's stderr that are kept with a failure: its end, where programs say what went wrong."""


@dataclass(frozen=True)
class Task:
    """One simulation.

    Attributes:
        inputs: The input function, packed.
        folder: The store's, as the parent sees it.
        identity: The store's; a worker that finds it in the folder writes results itself.
        number: Random number of this submission, so that no executor merges two of them.
    """

    inputs: bytes
    folder: str
    identity: str
    number: int


@dataclass(frozen=True)
class Outcome:
    """Outcome of a task.

    Attributes:
        status: "done"; "reused", if the result was there; "busy", if another process is simulating the function; "failed";
            "died", if its worker did; "lost", if the executor lost it.
        seconds: Duration of the simulation.
        reason: Reason of a failure, in one line.
        is_stored: Whether the worker has stored the result or the failure.
        outputs: The result, packed, where it is not stored.
    """

    status: str
    seconds: float = 0.0
    reason: str = ""
    is_stored: bool = True
    outputs: bytes | None = None


def run(simulator: Simulator, task: Task) -> Outcome:
    """Simulate and store, unless the result is there already or another process is at it.

    While it runs, it holds the function's lock, which the system releases when this process ends, however it ends. So a
    worker that outlives its parent is waited for, and its simulation is not repeated.
    """
    folder = Path(task.folder)
    if store_identity(folder) != task.identity:  # another machine, without the file system that the store is on
        return _simulate(simulator, task)
    key = function_key(unpacked(task.inputs))
    with locked(folder, f"simulate-{key}", wait=False) as is_held:
        if not is_held:
            return Outcome("busy")
        if path_of(folder, RESULTS, f"{key}{SUFFIX}").exists():
            return Outcome("reused")
        outcome = _simulate(simulator, task)
        if outcome.outputs is None:
            return _failed(task, outcome.reason, outcome.seconds)
        try:
            write_result(folder, unpacked(task.inputs), unpacked(outcome.outputs), seconds=outcome.seconds)
        except FileError:
            return outcome  # the parent tries, and raises what it meets
        return replace(outcome, is_stored=True, outputs=None)


def run_pickled(payload: bytes, task: Task) -> Outcome:
    """Do the same with a simulator that `pickled` made bytes of, whose tensors travel by value then."""
    return run(pickle.loads(payload), task)  # noqa: S301 (from our own parent, never from a file)


def packed(function: Field) -> bytes:
    """Return a function as bytes: PyTorch would send its tensor as shared memory, which is gone when the sender is."""
    copied = function.values.detach().to("cpu", copy=True)  # without what it may be a view of
    return pickle.dumps(Field(copied, function.grid))


def unpacked(data: bytes) -> Field:
    """Return the function that `packed` made bytes of, in memory of its own."""
    function: Field = pickle.loads(data)  # noqa: S301 (from our own parent or worker, never from a file)
    return function


def _simulate(simulator: Simulator, task: Task) -> Outcome:
    start = time.perf_counter()
    try:
        outputs = _called(simulator, unpacked(task.inputs))
    except (Exception, SystemExit) as error:  # noqa: BLE001 (a simulator may raise anything, and the loop goes on)
        return Outcome("failed", time.perf_counter() - start, _reason(error), is_stored=False)
    seconds = time.perf_counter() - start
    try:
        check_result(outputs)
    except ProbneuralError as error:
        return Outcome("failed", seconds, f"{type(error).__name__}: {error}", is_stored=False)
    return Outcome("done", seconds, is_stored=False, outputs=packed(outputs))


def _called(simulator: Simulator, inputs: Field) -> Field:
    """Call the simulator; a process that it has forked, and that returns from it as well, ends here."""
    process = os.getpid()
    try:
        return simulator(inputs)
    finally:
        if os.getpid() != process:
            os._exit(0)


def _failed(task: Task, reason: str, seconds: float) -> Outcome:
    folder, is_stored = Path(task.folder), False
    if store_identity(folder) == task.identity:
        with contextlib.suppress(FileError):
            write_failure(folder, unpacked(task.inputs), reason=reason, seconds=seconds)
            is_stored = True
    return Outcome("failed", seconds, reason, is_stored=is_stored)


def _reason(error: BaseException) -> str:
    """The last line of the traceback, where it came from, and the end of what a program that failed has complained about."""
    last = " ".join(traceback.format_exception_only(error)[-1].split())[:500]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    complaint = _complaint(error)
    return plain_text(last + where + (f"; stderr: {complaint}" if complaint else ""))


def _complaint(error: BaseException | None) -> str:
    """The last lines that a program wrote to stderr, as the errors of `subprocess` carry them, also those raised again."""
    while error is not None:
        written = getattr(error, "stderr", None)
        text = written.decode(errors="replace") if isinstance(written, bytes) else written
        if isinstance(text, str) and text.strip():
            lines = " | ".join(" ".join(line.split()) for line in text.splitlines() if line.strip())
            return lines if len(lines) <= _COMPLAINT else "... " + lines[-_COMPLAINT:]
        error = error.__cause__ or error.__context__
    return ""


def pickled(simulator: Simulator) -> bytes:
    """Return a simulator as bytes.

    Raises:
        ArgumentError: If it cannot be sent to another process.
    """
    try:
        return pickle.dumps(simulator)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ArgumentError(
            expected="a simulator that can be sent to worker processes",
            got=str(error),
            remedy="define it at the top level of a module, or pass executor=concurrent.futures.ThreadPoolExecutor()",
        ) from error
