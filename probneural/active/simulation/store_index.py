"""An index of a store's files, which spares reading them all when the store is opened."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from probneural.active.simulation.store_files import is_key, is_record
from probneural.errors import warn


@dataclass(frozen=True)
class Entry:
    """What is known of one file that has been read and found good.

    Attributes:
        name: Of the file, below the store's folder.
        key: Of the input function.
        status: "done" or "failed".
        seconds: What the simulation took.
        created: When the file was written, in seconds since 1970.
        reason: Of a failure, else empty.
        size: Of the file in bytes. Where it or the next differs from the file's, the entry says nothing.
        changed: The file's time of modification in nanoseconds.
    """

    name: str
    key: str
    status: str
    seconds: float
    created: float
    reason: str
    size: int
    changed: int

    @property
    def when(self) -> str:
        """When the file was written, UTC in ISO 8601."""
        return datetime.fromtimestamp(self.created, UTC).isoformat(timespec="milliseconds")


_NAMES = [column.name for column in fields(Entry)]
_KINDS = {"seconds": "REAL", "created": "REAL", "size": "INTEGER", "changed": "INTEGER"}
_COLUMNS = ", ".join(_NAMES)
_DEFINITIONS = ", ".join(f"{name} {_KINDS.get(name, 'TEXT')} NOT NULL" for name in _NAMES)
_TABLE = f"CREATE TABLE IF NOT EXISTS entries ({_DEFINITIONS}, PRIMARY KEY (name))"

_TEMPORARY = (
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_READONLY",
    "SQLITE_CANTOPEN",
    "SQLITE_PERM",
    "SQLITE_FULL",
    "SQLITE_IOERR",
)
"""Troubles that do not speak against an index's contents."""


def _is_sound(row: tuple[object, ...]) -> bool:
    """Whether a row is an entry: SQLite takes any type in any column, and a name could lead out of the store."""
    values = dict(zip(_NAMES, row, strict=True))
    types = {"REAL": float, "INTEGER": int, "TEXT": str}
    typed = all(type(value) is types[_KINDS.get(name, "TEXT")] for name, value in values.items())
    return typed and is_record(values["name"]) and is_key(values["key"]) and values["status"] in ("done", "failed")


class StoreIndex:
    """Entries in an SQLite file with a write-ahead log; whatever goes wrong with it only costs time.

    Args:
        path: The SQLite file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Entry] = {}

    def read(self) -> dict[str, Entry]:
        """Return the entries by file name; none if there is no usable index, so that all files are read."""
        try:
            with self._connection() as connection:
                rows = connection.execute(f"SELECT {_COLUMNS} FROM entries").fetchall()
            self._known = {row[0]: Entry(*row) for row in rows if _is_sound(row)}
        except sqlite3.DatabaseError as error:
            self._give_up(error)
        return dict(self._known)

    def write(self, entries: dict[str, Entry]) -> None:
        """Write the entries that have changed, and delete those that have gone, since the last call."""
        new = [astuple(entry) for name, entry in entries.items() if self._known.get(name) != entry]
        gone = [(name,) for name in self._known.keys() - entries.keys()]
        if not new and not gone:
            return
        try:
            with self._connection() as connection, connection:
                connection.executemany("DELETE FROM entries WHERE name = ?", gone)
                marks = ", ".join("?" * len(_NAMES))
                connection.executemany(f"INSERT OR REPLACE INTO entries ({_COLUMNS}) VALUES ({marks})", new)
            self._known = dict(entries)
        except sqlite3.DatabaseError as error:
            self._give_up(error)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """One connection per use: it survives neither a fork nor a change of thread."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=10.0)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(_TABLE)
            yield connection

    def _give_up(self, error: sqlite3.DatabaseError) -> None:
        """Remove an index that is damaged; leave one alone that is busy, or on a disk that cannot be written to."""
        self._known = {}
        if getattr(error, "sqlite_errorname", "").startswith(_TEMPORARY):
            return
        warn(f"the index {self._path} is made again from the files: {error}", RuntimeWarning)
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                self._path.with_name(f"{self._path.name}{suffix}").unlink()
