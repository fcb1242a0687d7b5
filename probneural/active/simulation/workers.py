"""One simulation in a worker process."""

from __future__ import annotations

import os
import pickle
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from probneural.active.simulation.result_files import check_result, function_key, plain_text, write_failure, write_result
from probneural.active.simulation.store_files import RESULTS, SUFFIX, locked, path_of, store_identity
from probneural.errors import ArgumentError, FileError, ProbneuralError
from probneural.fields import Field

Simulator = Callable[[Field], Field]

_COMPLAINT = 1000
"""Characters from the end of a program's stderr that are stored with a failure."""


@dataclass(frozen=True)
class Task:
    """One simulation.

    Attributes:
        inputs: The input function, packed.
        folder: Folder of the store in the parent.
        identity: Identity of the store, which the worker reads in the folder too.
        number: Random number of the submission, so that no executor merges two submissions.
    """

    inputs: bytes
    folder: str
    identity: str
    number: int


@dataclass(frozen=True)
class Outcome:
    """Outcome of a task.

    Attributes:
        status: "done"; "reused" for a stored result; "busy" if another process simulates the function; "failed"; "died" for
            the worker; "lost" by the executor.
        seconds: Duration of the simulation.
        reason: Reason of a failure, in one line.
    """

    status: str
    seconds: float = 0.0
    reason: str = ""


def run(simulator: Simulator, task: Task) -> Outcome:
    """Simulate and store, unless the result is stored already or another process simulates the function.

    It holds the function's lock, which the system releases when this process ends. So the simulation of a worker that outlives
    its parent is waited for and not repeated.

    Raises:
        FileError: If the store is not visible to this process, or cannot be written to.
    """
    folder = Path(task.folder)
    if store_identity(folder) != task.identity:
        raise FileError(
            expected=f"the store at {folder} on the machine of each worker",
            got="none, or another one",
            remedy="put the store into a folder that all workers share",
        )
    key = function_key(unpacked(task.inputs))
    with locked(folder, f"simulate-{key}", wait=False) as is_held:
        if not is_held:
            return Outcome("busy")
        if path_of(folder, RESULTS, f"{key}{SUFFIX}").exists():
            return Outcome("reused")
        return _simulate(simulator, task.inputs, folder)


def run_pickled(payload: bytes, task: Task) -> Outcome:
    """Run a task with a simulator from `pickled`, whose tensors are then sent by value."""
    return run(pickle.loads(payload), task)  # noqa: S301 (from our own parent, never from a file)


def packed(function: Field) -> bytes:
    """Return a function as bytes: PyTorch would send its tensor as shared memory, which dies with the sender."""
    copied = function.values.detach().to("cpu", copy=True)  # not a view of a larger tensor
    return pickle.dumps(Field(copied, function.grid))


def unpacked(data: bytes) -> Field:
    """Return a function from the bytes of `packed`."""
    function: Field = pickle.loads(data)  # noqa: S301 (from our own parent or worker, never from a file)
    return function


def _simulate(simulator: Simulator, inputs: bytes, folder: Path) -> Outcome:
    """Simulate, and store the result or the failure."""
    start, reason = time.perf_counter(), ""
    try:
        outputs = _called(simulator, unpacked(inputs))
    except (Exception, SystemExit) as error:  # noqa: BLE001 (a simulator may raise any error, and the loop continues)
        reason = _reason(error)
    seconds = time.perf_counter() - start
    try:
        if not reason:
            check_result(outputs)
    except ProbneuralError as error:
        reason = f"{type(error).__name__}: {error}"
    if reason:
        write_failure(folder, unpacked(inputs), reason=reason, seconds=seconds)
        return Outcome("failed", seconds, reason)
    write_result(folder, unpacked(inputs), outputs, seconds=seconds)
    return Outcome("done", seconds)


def _called(simulator: Simulator, inputs: Field) -> Field:
    """Call the simulator, and end processes that it forked and that return from it."""
    process = os.getpid()
    try:
        return simulator(inputs)
    finally:
        if os.getpid() != process:
            os._exit(0)


def _reason(error: BaseException) -> str:
    """Last line of the traceback, its place in the code, and the end of a failed program's stderr."""
    last = " ".join(traceback.format_exception_only(error)[-1].split())[:500]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    complaint = _complaint(error)
    return plain_text(last + where + (f"; stderr: {complaint}" if complaint else ""))


def _complaint(error: BaseException | None) -> str:
    """Last lines of a program's stderr, from an error of `subprocess` or from its cause or context."""
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
        ArgumentError: If it cannot be pickled.
    """
    try:
        return pickle.dumps(simulator)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ArgumentError(
            expected="a simulator that can be sent to worker processes",
            got=str(error),
            remedy="define it at the top level of a module, or pass executor=concurrent.futures.ThreadPoolExecutor()",
        ) from error
