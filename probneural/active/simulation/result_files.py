"""Simulated results as files: one safetensors file each, written whole or not at all, never a pickle."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from probneural.checks import check_finite
from probneural.errors import DataError, FileError, GridError, ProbneuralError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.training import files

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

RESULTS = "results"
FAILURES = "failures"
SUFFIX = ".safetensors"
MARK = "store.json"
VERSION = {"format": "probneural-store-1", "files": files.FORMAT}
"""Of the folder's layout, and of the files in it."""


class DamagedError(FileError):
    """A file was read and cannot be used, now or later."""


def function_key(inputs: Field) -> str:
    """Return the name of one input function: a digest of its values, its dtype and its grid.

    Args:
        inputs: One function, `(1, c, *grid)`.

    Returns:
        40 hexadecimal digits; equal functions have equal keys on every machine (-0.0 equals 0.0).

    Raises:
        DataError: If it is not one function, or not finite.

    Examples:
        >>> import torch
        >>> field = Field(torch.zeros(2, 1, 8), Grid.uniform((8,)))
        >>> function_key(field[0]) == function_key(field[1]), function_key(field[0]) == function_key(field[0].to(torch.float64))
        (True, False)
    """
    if not isinstance(inputs, Field) or len(inputs) != 1:
        raise DataError(expected="a Field of one function", got=repr(inputs), remedy="pass inputs[i]")
    check_finite(inputs.values, "input functions")
    described, tensors = describe_grid(inputs.grid)
    head = [str(inputs.dtype), list(inputs.values.shape), described]
    total = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for tensor in (inputs.values, *(tensors[name] for name in sorted(tensors))):
        plain = tensor.detach().to("cpu").contiguous() + 0.0  # -0.0 becomes 0.0, which it equals
        total.update(plain.numpy().tobytes())
    return total.hexdigest()[:40]


def describe_grid(grid: Grid) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Split a grid into what JSON can hold and tensors; `rebuild_grid` undoes it."""
    if not grid.is_uniform:
        return {"kind": "scattered"}, {"points": grid.points, "weights": grid.weights}
    axes = grid.axes
    return {
        "kind": "uniform",
        "shape": list(grid.shape),
        "lengths": [axis.length + 0.0 for axis in axes],
        "periodic": [axis.periodic for axis in axes],
        "endpoint": [axis.endpoint for axis in axes],
        "origin": [axis.origin + 0.0 for axis in axes],
    }, {}


def rebuild_grid(described: dict[str, Any], tensors: dict[str, Tensor]) -> Grid:
    """Return a grid equal to the one that was described.

    Raises:
        GridError: If it is of a kind that this version does not know.
    """
    if described.get("kind") == "scattered":
        return Grid.scattered(tensors["points"], tensors["weights"])
    if described.get("kind") != "uniform":
        raise GridError(expected="a uniform or scattered grid", got=str(described.get("kind")), remedy="upgrade the package")
    rest = {name: described[name] for name in ("lengths", "periodic", "endpoint", "origin")}
    return Grid.uniform(described["shape"], **rest)


def write_result(folder: Path, inputs: Field, outputs: Field, *, seconds: float) -> str:
    """Write one result, durably, and return its key; a result that is there already stays as it is.

    Args:
        folder: The store's.
        inputs: One function, `(1, c, *grid)`.
        outputs: Its result, `(1, c', *grid')`.
        seconds: What the simulation took.

    Raises:
        DataError: If either is not one finite function.
        FileError: If the folder cannot be written to.
    """
    key = function_key(inputs)
    check_result(outputs)
    path = folder / RESULTS / f"{key}{SUFFIX}"
    with locked(folder, f"write-{key}"):
        if not path.exists():
            tensors, grids = _packed(inputs=inputs, outputs=outputs)
            files.write(path, tensors, {"kind": "result", "key": key, "grids": grids, "seconds": seconds, "when": time.time()})
    return key


def plain_text(text: str) -> str:
    """Escape lone surrogates, which undecodable file names have and SQLite does not take."""
    return text.encode("utf-8", "backslashreplace").decode()


def write_failure(folder: Path, inputs: Field, *, reason: str, seconds: float) -> str:
    """Write one failed attempt with its input function, durably, and return its key.

    Raises:
        FileError: If the folder cannot be written to.
    """
    key = function_key(inputs)
    with locked(folder, f"write-{key}"):
        attempt = 1
        while (path := folder / FAILURES / f"{key}-{attempt}{SUFFIX}").exists():
            attempt += 1
        tensors, grids = _packed(inputs=inputs)
        about = {"kind": "failure", "key": key, "grids": grids, "seconds": seconds, "when": time.time()}
        about |= {"reason": plain_text(reason), "attempt": attempt}
        files.write(path, tensors, about)
    return key


def read_record(path: Path) -> tuple[dict[str, Any], dict[str, Field]]:
    """Read a result or a failure: what is known about it, and its functions by name ("inputs", "outputs").

    Raises:
        DamagedError: If it is damaged, or is not what its name says.
        OSError: If it cannot be read at present.
    """
    with path.open("rb"):  # what goes wrong here (permissions, too many open files) says nothing about the contents
        pass
    try:
        tensors, about = files.read(path)
        fields = {}
        for name, described in about["grids"].items():
            parts = {part: tensors[f"{name}.{part}"] for part in ("points", "weights") if f"{name}.{part}" in tensors}
            fields[name] = Field(tensors[name], rebuild_grid(described, parts))
        key = function_key(fields["inputs"])
        expected = f"{key}{SUFFIX}" if path.parent.name == RESULTS else f"{key}-{about['attempt']}{SUFFIX}"
        if path.name != expected or about["key"] != key or ("outputs" in fields) != (path.parent.name == RESULTS):
            raise DataError(expected=f"a file named {expected}", got=path.name, remedy="files keep their names")
    except (ProbneuralError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(expected=f"a usable {path.name}", got=str(error), remedy="simulate that function again") from error
    return about, fields


def check_result(outputs: object) -> None:
    """Raise a DataError unless a simulator's result is one finite function."""
    if not isinstance(outputs, Field) or len(outputs) != 1:
        raise DataError(
            expected="one output function as a Field (1, c, *grid)",
            got=repr(outputs) if isinstance(outputs, Field) else str(type(outputs)),
            remedy="the simulator maps a Field of one function to a Field of one function",
        )
    check_finite(outputs.values, "output functions")


def is_record(name: str) -> bool:
    """Whether a file's name is a result's or a failure's, not that of a file being written or of one set aside."""
    return name.endswith(SUFFIX) and not name.startswith(".")


def store_identity(folder: Path) -> str | None:
    """Return the identity of the store in a folder, or None if there is none of this version."""
    try:
        content = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or any(content.get(name) != value for name, value in VERSION.items()):
        return None
    return str(content.get("identity"))


def write_text(path: Path, text: str) -> None:
    """Write a small text file whole or not at all, durably.

    Raises:
        FileError: If the folder cannot be written to.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("x", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise FileError(
            expected=f"a folder to write {path.name} into", got=str(error), remedy="check path and space"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def set_aside(path: Path, error: Exception) -> None:
    """Rename a file that cannot be used to `NAME.broken`, with a warning."""
    target = path.with_name(f"{path.name}.broken")
    with contextlib.suppress(FileNotFoundError):  # another process was first
        os.replace(path, target)
    warnings.warn(f"{path} cannot be used and is now {target.name}: {error}", RuntimeWarning, stacklevel=2)


@contextlib.contextmanager
def locked(folder: Path, name: str, *, wait: bool = True) -> Iterator[bool]:
    """Hold an advisory lock that the system releases when its holder dies, however it dies.

    Where `fcntl` is missing (Windows) there is no such lock, and this does nothing: one process at a time may use a store
    there, and none may be restarted while workers of a killed one still run.

    Args:
        folder: The store's.
        name: Of the lock.
        wait: Whether to wait for it.

    Yields:
        Whether the lock is held, always True with `wait`.

    Raises:
        FileError: If the folder cannot be written to.
    """
    if fcntl is None:
        yield True
        return
    path = folder / "locks" / name
    held = _acquire(path, wait=wait)
    try:
        yield held is not None
    finally:
        if held is not None:
            with contextlib.suppress(OSError):
                path.unlink()  # while it is held: who waited for it sees that and takes the next file
            os.close(held)


def _acquire(path: Path, *, wait: bool) -> int | None:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise FileError(
                expected="a store that can be written to", got=str(error), remedy="check its permissions and the space left"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            same = os.fstat(descriptor).st_ino == os.stat(path).st_ino
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            same = False
        except OSError as error:  # a file system without locks
            os.close(descriptor)
            raise FileError(
                expected="a file system that knows flock", got=str(error), remedy="put the store on another file system"
            ) from error
        except BaseException:  # Ctrl-C while it waits
            os.close(descriptor)
            raise
        if same:
            return descriptor
        os.close(descriptor)


def _packed(**fields: Field) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    grids = {}
    for name, field in fields.items():
        grids[name], parts = describe_grid(field.grid)
        tensors[name] = field.values
        tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
    return tensors, grids
