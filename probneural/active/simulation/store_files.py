"""A store's folder: where its files are, its locks, and named values and tensors."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

from filelock import FileLock, Timeout
from torch import Tensor

from probneural import atomic
from probneural.errors import ArgumentError, DataError, FileError, ProbneuralError, warn
from probneural.training import files, schema
from probneural.training.schema import JSON

RESULTS = "results"
FAILURES = "failures"
DECISIONS = "decisions"
TENSORS = "tensors"
ROOMS = (RESULTS, FAILURES, DECISIONS, TENSORS)
LOCKS = "locks"
SUFFIX = ".safetensors"
MARK = f"store{SUFFIX}"
VERSION = {"format": "probneural-store-3", "files": files.FORMAT}
"""Of the folder's layout, and of the files in it."""

_KEY = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_RECORD = re.compile(rf"(?:{RESULTS}/{_KEY.pattern}|{FAILURES}/{_KEY.pattern}-[1-9][0-9]{{0,8}}){re.escape(SUFFIX)}")


class _Record(TypedDict):
    """Metadata of a named file."""

    name: str
    value: Any


class DamagedError(FileError):
    """A file was read and cannot be used, now or later."""


def is_key(key: object) -> bool:
    """Whether a value is a valid key, and thus a valid file name."""
    return isinstance(key, str) and _KEY.fullmatch(key) is not None


def check_key(key: object) -> None:
    """Raise an ArgumentError unless a value is a valid key."""
    if not is_key(key):
        raise ArgumentError(expected="a key of 40 hexadecimal digits", got=repr(key)[:100], remedy="use store.key(inputs)")


def check_name(name: object) -> None:
    """Raise an ArgumentError unless a value is a valid name of decisions and tensors, which cannot lead out of a folder."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ArgumentError(
            expected='a name of letters, digits, ".", "_" and "-"',
            got=repr(name)[:100],
            remedy='use a name such as "round-3.chosen"',
        )


def is_record(name: object) -> bool:
    """Whether a path below the store's folder is that of a result or a failure."""
    return isinstance(name, str) and _RECORD.fullmatch(name) is not None


def path_of(folder: Path, room: str, name: str) -> Path:
    """Return the path of a file in a subfolder of the store. A symbolic link there could lead out of it, and is renamed.

    Args:
        folder: Folder of the store.
        room: One of `ROOMS`.
        name: File name with its suffix, from a valid key or name.
    """
    path = folder / room / name
    if path.is_symlink():
        set_aside(
            path, DamagedError(expected=f"{name} as a file of the store", got="a symbolic link", remedy="copy its target")
        )
    return path


def set_aside(path: Path, error: Exception) -> None:
    """Rename an unusable file to `NAME.broken`, with a warning; leave it if renaming fails."""
    target = path.with_name(f"{path.name}.broken")
    fate = f"is now {target.name}"
    try:
        os.replace(path, target)
    except FileNotFoundError:  # another process was first
        pass
    except OSError as problem:
        fate = f"could not be renamed ({problem})"
    warn(f"{path} cannot be used and {fate}: {error}", RuntimeWarning)


def write_named(path: Path, name: str, *, value: JSON = None, tensors: Mapping[str, Tensor] | None = None) -> None:
    """Write a JSON value and tensors with their name, atomically and durably.

    Raises:
        FileError: If the folder cannot be written to.
    """
    files.write(path, tensors or {}, metadata={"name": name, "value": value})


def read_named(path: Path, name: str) -> tuple[JSON, dict[str, Tensor]]:
    """Read the value and the tensors that `write_named` wrote under a name.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedError: If it is damaged, or was written under another name.
        OSError: If it cannot be read at present.
    """
    check_readable(path)
    try:
        tensors, content = files.read(path)
        schema.check(content, _Record, where=path.name)
        if content["name"] != name:
            raise DataError(expected=f"the record {name!r}", got=repr(content["name"]), remedy="files keep their names")
    except ProbneuralError as error:
        raise _damaged(path, str(error)) from error
    return content["value"], tensors


def store_identity(folder: Path) -> str | None:
    """Return the identity of the store in a folder; None without a store of this version."""
    try:
        content, _ = read_named(folder / MARK, MARK)
    except OSError:
        return None
    if not isinstance(content, dict) or any(content.get(name) != value for name, value in VERSION.items()):
        return None
    return str(content.get("identity"))


def open_folder(path: Path) -> str:
    """Create the folder, or verify that it is a store of this version; return the store's identity."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if _is_unused(path):
            (path / LOCKS).mkdir(exist_ok=True)
            with locked(path, "create"):
                if not (path / MARK).exists():
                    for folder in ROOMS:
                        (path / folder).mkdir(exist_ok=True)
                    write_named(path / MARK, MARK, value={**VERSION, "identity": secrets.token_hex(16)})
    except OSError as error:
        raise FileError(expected=f"a folder for a store at {path}", got=str(error), remedy="choose another path") from error
    identity = store_identity(path)
    if identity is None:
        raise FileError(
            expected=f"a store of format {VERSION['format']} or an empty folder at {path}",
            got="a folder with other contents, or a store of another version",
            remedy="choose another path; nothing was changed",
        )
    return identity


def _is_unused(path: Path) -> bool:
    """Whether a folder is empty, or contains only a partly created store, of another process or of an earlier crash."""
    names = {file.name for file in path.iterdir() if not file.name.startswith(".")}
    if not names <= {*ROOMS, LOCKS}:
        return False
    return not any(any((path / name).iterdir()) for name in names - {LOCKS})


def remove_leftovers(path: Path) -> None:
    """Remove temporary files and locks of killed processes; those of living processes are locked."""
    for folder in (path, *(path / room for room in ROOMS)):
        atomic.remove_abandoned(folder)
    with contextlib.suppress(OSError):
        for file in (path / LOCKS).iterdir():
            with locked(path, file.name, wait=False):  # removes the file, unless another process holds the lock
                pass


@contextlib.contextmanager
def locked(folder: Path, name: str, *, wait: bool = True) -> Iterator[bool]:
    """Hold an advisory lock that the system releases when its holder dies.

    Args:
        folder: Folder of the store.
        name: Name of the lock.
        wait: Whether to wait for the lock.

    Yields:
        Whether the lock is held, always True with `wait`.

    Raises:
        FileError: If the folder cannot be written to.
    """
    path = folder / LOCKS / name
    lock = FileLock(path, timeout=-1 if wait else 0, fallback_to_soft=False)  # a killed process would leave a soft lock behind
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    except OSError as error:
        expected = "a store that can be written to, on a file system that knows flock"
        remedy = "check its permissions and the space left, or put the store on another file system"
        raise FileError(expected=expected, got=str(error), remedy=remedy) from error
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # while the lock is held: a waiting process notices it and creates a new file
        lock.release()


def check_readable(path: Path) -> None:
    """Open a file, so that later errors are due to its contents.

    Raises:
        DamagedError: If it is no regular file: opening a pipe, for example, would wait for its other end.
        OSError: If the file does not exist or cannot be read at present (permissions, too many open files).
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise _damaged(path, "no regular file")
    with path.open("rb"):
        pass


def _damaged(path: Path, got: str) -> DamagedError:
    return DamagedError(expected=f"a usable {path.name}", got=got, remedy="restore it from a copy, or do without it")
