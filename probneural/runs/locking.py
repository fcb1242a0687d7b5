"""One process at a time works in a run's folder."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probneural.errors import FileError
from probneural.training.atomic import check_regular

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK = ".lock"
"""The file that says who works in a folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder until the context ends, however this process ends.

    The system holds the lock and releases it when its process dies, so one that a killed process has left is taken over. Where
    file systems do not pass locks on to other machines, the file still names the host; such a lock is not taken over, as nobody
    here can tell whether that process lives. On Windows, and in a folder that nothing can be written into, there is no lock.

    Raises:
        FileError: If another process works in it; the message has its number and host.
    """
    path = folder / LOCK
    try:
        descriptor = None if fcntl is None else _acquired(path)
    except PermissionError:  # nothing can be written, so nobody can be disturbed
        descriptor = None
    if descriptor is None:
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # while the lock is held: who waits for it sees that
        os.close(descriptor)


def _acquired(path: Path) -> int | None:
    """Take the lock, or raise a FileError; None on a file system without locks."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
            check_regular(path, os.fstat(descriptor))
        except PermissionError:
            raise
        except OSError as error:  # a symbolic link, whose target would be overwritten, a pipe or a folder
            raise FileError(expected=f"a regular file {path}", got=str(error), remedy=f"remove {path}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise _taken(path, holder, "wait for it, end it, or name another folder: --folder NAME") from None
        except OSError:  # a file system without locks
            os.close(descriptor)
            return None
        holder = _holder(descriptor)
        if holder.get("host", socket.gethostname()) != socket.gethostname():
            os.close(descriptor)
            raise _taken(path, holder, f"if it has ended, remove {path}; or name another folder: --folder NAME")
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
                return descriptor
        os.close(descriptor)  # its holder has removed it in the meantime


def _holder(descriptor: int) -> dict[str, Any]:
    """What the file says; nothing if it has just been made."""
    try:
        content = json.loads(os.pread(descriptor, 1024, 0))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _taken(path: Path, holder: dict[str, Any], remedy: str) -> FileError:
    who = f"process {holder.get('pid', 'unknown')} on {holder.get('host', 'this machine')}"
    return FileError(expected=f"no other process at work in {path.parent}", got=who, remedy=remedy)
