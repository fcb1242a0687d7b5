"""Atomic writing of files and folders."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probneural.errors import FileError

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}")
"""Pattern of names of temporary files."""
_PREFIX = 48
"""Letters of a file's name that the name of its temporary file begins with: file systems allow some 255 bytes."""
_OLD = 24 * 3600.0
"""Age in seconds of abandoned temporary files, on systems without locks."""


def write(path: str | os.PathLike[str], payload: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, and durably: it survives a crash of the machine.

    The bytes go into a temporary file in the same folder, `.NAME.` and 16 hexadecimal digits, which is synced and renamed. A
    symbolic link stays one, and its target is written. An existing file keeps its permissions; a new one gets those that
    the user's umask asks for. Owner, group and other hard links of an existing file are not kept.

    Args:
        path: Path of the file; an existing file is replaced atomically.
        payload: All of its contents.

    Raises:
        FileError: If the folder cannot be written to, or the path is that of a folder, pipe, socket or device.
    """
    with replacing(path) as temporary, open(temporary, "r+b") as stream:
        stream.write(payload)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a file piece by piece and by name, as [`write`][probneural.atomic.write] does it whole.

    Args:
        path: Path of the file; an existing file is replaced atomically when the context ends without an error.

    Yields:
        The temporary file, which is empty; write into it, do not replace it.

    Raises:
        FileError: If the folder cannot be written to, or the path is that of a folder, pipe, socket or device.
    """
    target = Path(os.path.realpath(path))
    with _writing(target):
        mode = _mode(target)
        with _temporary(target, 0o666 if mode is None else mode | 0o600) as (temporary, descriptor):
            yield temporary
            if mode is not None:
                os.chmod(temporary, mode)  # independent of the umask
            os.fsync(descriptor)
            os.replace(temporary, target)


@contextlib.contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a folder that takes its name when it is whole.

    An existing folder is moved away first, so for an instant none exists; a killed process leaves `.NAME.` and 16
    hexadecimal digits behind, which `remove_abandoned` removes.

    Args:
        path: Path of the folder.

    Yields:
        An existing, empty folder to write into.

    Raises:
        FileError: If the folder above cannot be written to.
    """
    target = Path(os.path.realpath(path))
    temporary, old = (target.with_name(f".{target.name[:_PREFIX]}.{secrets.token_hex(8)}") for _ in range(2))
    with _writing(target):
        temporary.mkdir()
        descriptor = None if fcntl is None else os.open(temporary, os.O_RDONLY)
        try:
            if descriptor is not None:
                _claimed(descriptor, temporary)
            yield temporary
            try:
                if target.exists():
                    os.replace(target, old)
                os.replace(temporary, target)
            finally:
                if old.exists() and not target.exists():  # interrupted between the two
                    os.replace(old, target)
        finally:
            for folder in (temporary, old):
                shutil.rmtree(folder, ignore_errors=True)
            if descriptor is not None:
                os.close(descriptor)


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Make a rename durable, and its errors those of files."""
    try:
        yield
        _sync_folder(target.parent)
    except FileError:
        raise
    except OSError as error:
        raise FileError(
            expected=f"a folder to write {target.name} into", got=str(error), remedy="check path and space"
        ) from error


def _sync_folder(path: Path) -> None:
    """Make a rename survive a power cut."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_abandoned(folder: str | os.PathLike[str], *, name: str | None = None) -> None:
    """Remove the temporary files that killed processes have left in a folder.

    A writer holds an advisory lock on its temporary file, which the system releases when the process ends. A file whose lock
    is free is abandoned; files of live writers are not removed. On systems without such locks (Windows, some network file
    systems), a file is abandoned after a day.

    Args:
        folder: Folder to search; files that cannot be removed are skipped.
        name: Of the file or folder that was being written; by default any file. Folders are removed where the one of that name
            exists: otherwise one of them may be the old one.
    """
    prefix = "" if name is None else f".{name[:_PREFIX]}."
    with contextlib.suppress(OSError):
        for file in list(os.scandir(folder)):
            if _TEMPORARY.fullmatch(file.name) and file.name.startswith(prefix):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(Path(file.path), has_folders=name is not None and Path(folder, name).is_dir())


def check_regular(path: str | os.PathLike[str], state: os.stat_result) -> None:
    """Raise an OSError unless the path is a regular file: opening a pipe blocks, reading a device may not terminate."""
    if not stat.S_ISREG(state.st_mode):
        raise OSError(f"{os.fspath(path)} is no regular file")


def _mode(target: Path) -> int | None:
    """Permissions of an existing file, else None."""
    try:
        state = target.lstat()
    except FileNotFoundError:
        return None
    check_regular(target, state)
    return stat.S_IMODE(state.st_mode)


@contextlib.contextmanager
def _temporary(target: Path, mode: int) -> Iterator[tuple[Path, int]]:
    """A new file in the target's folder, locked while in use and removed afterwards unless renamed."""
    while True:
        path = target.with_name(f".{target.name[:_PREFIX]}.{secrets.token_hex(8)}")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        try:
            if _claimed(descriptor, path):
                yield path, descriptor
                return
        finally:
            with contextlib.suppress(OSError):  # nothing is left to remove after the rename
                path.unlink()
            os.close(descriptor)


def _claimed(descriptor: int, path: Path) -> bool:
    """Lock a new file; return whether it still exists: before the lock, it appeared abandoned."""
    if fcntl is None:
        return True
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _remove_if_abandoned(path: Path, *, has_folders: bool) -> None:
    state = path.lstat()
    is_folder = stat.S_ISDIR(state.st_mode) and has_folders
    if not (stat.S_ISREG(state.st_mode) or is_folder):
        return
    remove = shutil.rmtree if is_folder else os.unlink
    is_old = time.time() - state.st_mtime > _OLD
    if fcntl is None:
        if is_old:
            remove(path)
        return
    descriptor = os.open(path, (os.O_RDONLY if is_folder else os.O_RDWR) | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # its writer is alive
            return
        except OSError:  # a file system without locks
            if not is_old:
                return
        remove(path)  # removed under the lock: a writer that waits for the lock detects the removal and uses another file
    finally:
        os.close(descriptor)
