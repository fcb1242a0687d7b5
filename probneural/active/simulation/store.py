"""A durable store of simulated results, one file each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

from torch import Tensor

from probneural.active.simulation.result_files import function_key, read_record, write_failure, write_result
from probneural.active.simulation.store_files import (
    DECISIONS,
    FAILURES,
    RESULTS,
    SUFFIX,
    TENSORS,
    DamagedError,
    check_key,
    check_name,
    is_key,
    is_record,
    locked,
    open_folder,
    path_of,
    read_named,
    remove_leftovers,
    set_aside,
    write_named,
)
from probneural.checks import check_instance, check_least, check_path, check_real, check_text
from probneural.errors import ArgumentError, FileError
from probneural.fields import Field
from probneural.pairs import FieldPairs
from probneural.training import schema
from probneural.training.schema import JSON

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One failed attempt at a simulation.

    Attributes:
        key: Key of the input function.
        reason: Reason of the failure, in one line.
        seconds: Duration of the attempt.
        when: Time of its end, UTC in ISO 8601.
    """

    key: str
    reason: str
    seconds: float
    when: str


class _Entry(NamedTuple):
    """Cached metadata of a result or failure.

    Attributes:
        state: Size of the file in bytes and its time of modification in nanoseconds; a changed file is read again.
        created: Time of writing, in seconds since 1970.
        failure: The failed attempt; None for a result.
    """

    state: tuple[int, int]
    created: float
    failure: Failure | None


class ResultStore:
    """Folder of simulation results, failed attempts and decisions of a loop, consistent after a crash at any time.

    Each result is one safetensors file, named by the key of its input function, with a digest. It is synced to disk when
    [`add`][probneural.active.ResultStore.add] returns. Digests of decisions and tensors include their names. A file is verified
    at its first request. Truncated, changed, damaged or foreign files and symbolic links are renamed to `*.broken` with a
    warning and count as missing. Keys and names cannot lead out of the folder. No pickle is read.

    Opening a store removes temporary files of killed processes. Files of living writers stay: a writer locks its temporary
    file, and the system releases the lock when the process dies.

    Several processes may use a store at once, on one machine or over a shared file system with `flock`. A folder without write
    permission can be read.

    Args:
        path: Folder of the store, created if it does not exist.

    Raises:
        FileError: If the folder has other contents or another format version, or cannot be created.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from probneural.fields import Field
        >>> from probneural.grids import Grid
        >>> field = Field(torch.ones(1, 1, 8), Grid.uniform((8,)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = ResultStore(folder)
        ...     key = store.add(field, field, seconds=0.5)
        ...     key in store, len(store), store.pairs([key]).outputs.values.sum().item()
        (True, 1, 8.0)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = check_path(path, "path").expanduser().absolute()
        self.identity = open_folder(self.path)
        remove_leftovers(self.path)
        self._entries: dict[Path, _Entry] = {}

    def key(self, inputs: Field) -> str:
        """Return the key of one input function: a digest of its values, dtype and grid.

        Args:
            inputs: One function, `(1, c, *grid)`.

        Returns:
            40 hexadecimal digits; equal functions have equal keys on every machine.

        Raises:
            DataError: If `inputs` is not one finite function.
        """
        return function_key(inputs)

    def __contains__(self, key: str) -> bool:
        """Whether the store has a usable result for a key."""
        return is_key(key) and self._entry(path_of(self.path, RESULTS, f"{key}{SUFFIX}")) is not None

    def __len__(self) -> int:
        """Number of usable results; it reads all files that were not read before."""
        return len(self._usable_entries(RESULTS))

    def add(self, inputs: Field, outputs: Field, *, seconds: float) -> str:
        """Store one result durably: it survives a crash of the process and of the machine.

        The file is written under a temporary name, synced and renamed, and the folder is synced. Adding a result twice has no
        effect.

        Args:
            inputs: One function, `(1, c, *grid)`.
            outputs: Result of the simulation, `(1, c', *grid')`.
            seconds: Duration of the simulation.

        Returns:
            The key of the input function.

        Raises:
            DataError: If either is not one finite function.
            FileError: If the store cannot be written to.
        """
        seconds = check_real(seconds, "seconds", least=0.0)
        key = write_result(self.path, inputs, outputs, seconds=seconds)
        if key not in self:  # an earlier file was damaged and is renamed now
            write_result(self.path, inputs, outputs, seconds=seconds)
        if key not in self:
            raise FileError(expected="the result just written", got="a damaged file", remedy="check the disk")
        return key

    def pairs(self, keys: Sequence[str]) -> FieldPairs:
        """Return the results of some keys as a data set on the CPU, in the order of the keys.

        Raises:
            DataError: If there are no keys, or results have different dtypes.
            FileError: If a key has no usable result.
            GridError: If results have different grids.
            ShapeError: If results have different channel counts.
        """
        check_least(len(keys), 1, "keys", remedy="pass keys of results")
        records = [self._result(key) for key in keys]
        return FieldPairs(*(Field.cat([record[side] for record in records]) for side in ("inputs", "outputs")))

    def fail(self, inputs: Field, *, reason: str, seconds: float) -> None:
        """Store one failed attempt durably, with its input function.

        Args:
            inputs: One function, `(1, c, *grid)`.
            reason: Reason of the failure, in one line.
            seconds: Duration of the attempt.

        Raises:
            DataError: If `inputs` is not one finite function.
            FileError: If the store cannot be written to.
        """
        write_failure(self.path, inputs, reason=check_text(reason, "reason"), seconds=check_real(seconds, "seconds", least=0.0))

    def failures(self) -> list[Failure]:
        """Return all failed attempts, oldest first, also of functions that succeeded later."""
        entries = sorted(self._usable_entries(FAILURES), key=lambda entry: entry.created)
        return [entry.failure for entry in entries if entry.failure is not None]

    def attempts(self, key: str) -> int:
        """Return the number of failed attempts at a function.

        Raises:
            ArgumentError: If the key is invalid.
        """
        check_key(key)
        return len(list((self.path / FAILURES).glob(f"{key}-*{SUFFIX}")))

    def remember(self, name: str, value: JSON) -> None:
        """Store a decision permanently, for example the candidates of a round.

        Args:
            name: Letters, digits, ".", "_" and "-".
            value: JSON content; tuples are returned as lists.

        Raises:
            ArgumentError: If the name or the value is invalid, or another value is stored under this name.
            FileError: If the store cannot be written to.
        """
        check_name(name)
        try:
            text = json.dumps(schema.parsed(json.dumps(value, sort_keys=True, allow_nan=False)), sort_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(expected="a value that JSON can hold", got=str(error), remedy="convert to lists") from error
        with locked(self.path, f"{DECISIONS}-{name}"):
            stored = self.recall(name)
            path = path_of(self.path, DECISIONS, f"{name}{SUFFIX}")
            if not path.exists():
                write_named(path, name, value=json.loads(text))
            elif json.dumps(stored, sort_keys=True) != text:
                raise ArgumentError(
                    expected=f"the decision stored as {name!r}, {json.dumps(stored)[:100]}",
                    got=text[:100],
                    remedy="decisions are kept once; recall this one, or choose another name or another store",
                )

    def recall(self, name: str) -> JSON | None:
        """Return the decision of a name, or None; a changed or damaged file is renamed with a warning.

        Raises:
            ArgumentError: If the name is invalid, see `remember`.
            FileError: If the file cannot be read at present.
        """
        check_name(name)
        return _usable(path_of(self.path, DECISIONS, f"{name}{SUFFIX}"), lambda path: read_named(path, name)[0])

    def save_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Store tensors under a name, replacing earlier ones atomically.

        Raises:
            ArgumentError: If the name is invalid, see `remember`.
            FileError: If the store cannot be written to.
        """
        check_name(name)
        remedy = "pass tensors by name"
        for tensor in check_instance(tensors, Mapping, "tensors", remedy=remedy).values():
            check_instance(tensor, Tensor, "one of the tensors", remedy=remedy)
        write_named(path_of(self.path, TENSORS, f"{name}{SUFFIX}"), name, tensors=tensors)

    def load_tensors(self, name: str) -> dict[str, Tensor] | None:
        """Return the tensors of a name on the CPU, or None; a damaged file is renamed with a warning.

        Raises:
            ArgumentError: If the name is invalid, see `remember`.
            FileError: If the file cannot be read at present.
        """
        check_name(name)
        return _usable(path_of(self.path, TENSORS, f"{name}{SUFFIX}"), lambda path: read_named(path, name)[1])

    def __reduce__(self) -> tuple[type[ResultStore], tuple[Path]]:
        """Pickle the store as its path."""
        return ResultStore, (self.path,)

    def __repr__(self) -> str:
        """A short description without access to files."""
        return f"ResultStore({str(self.path)!r})"

    def _result(self, key: str) -> dict[str, Field]:
        check_key(key)
        path = path_of(self.path, RESULTS, f"{key}{SUFFIX}")
        try:
            return read_record(path)[1]
        except OSError as error:
            if isinstance(error, DamagedError):
                set_aside(path, error)
            raise FileError(
                expected=f"a usable result for {key!r}", got=str(error), remedy="simulate that function again"
            ) from error

    def _usable_entries(self, room: str) -> list[_Entry]:
        """Metadata of usable results or failures."""
        paths = [path for path in sorted((self.path / room).iterdir()) if is_record(f"{room}/{path.name}")]
        return [entry for path in paths if (entry := self._entry(path)) is not None]

    def _entry(self, path: Path) -> _Entry | None:
        """Metadata of a usable file, read again after a change; None without a usable file."""

        def read(path: Path) -> _Entry:
            status = path.lstat()
            state = status.st_size, status.st_mtime_ns
            if path not in self._entries or self._entries[path].state != state:
                about, _ = read_record(path)
                failure = None
                if about["kind"] == "failure":
                    when = datetime.fromtimestamp(about["when"], UTC).isoformat(timespec="milliseconds")
                    failure = Failure(key=about["key"], reason=about["reason"], seconds=about["seconds"], when=when)
                self._entries[path] = _Entry(state, about["when"], failure)
            return self._entries[path]

        return _usable(path, read)


def _usable(path: Path, read: Callable[[Path], _T]) -> _T | None:
    """Content of a file, or None; a damaged file is renamed."""
    try:
        return read(path)
    except FileNotFoundError:  # never written, or renamed by another process
        return None
    except DamagedError as error:
        set_aside(path, error)
        return None
    except OSError as error:
        raise FileError(expected=f"a readable {path}", got=str(error), remedy="check its permissions and the disk") from error
