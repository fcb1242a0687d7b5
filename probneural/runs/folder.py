"""A run's folder: configuration, split, and the results of each step; consistent at all times."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from filelock import FileLock, Timeout

from probneural import atomic
from probneural.checks import check_count, check_instance, check_path, check_regular
from probneural.data import StoredPairs
from probneural.errors import ArgumentError, FileError, UnsupportedError
from probneural.grids import Axis, Grid
from probneural.pairs import Dataset
from probneural.processes import launched, world_size
from probneural.runs.config import NO_OPERATOR, Config, with_paths
from probneural.runs.recipes import choose, resolved
from probneural.runs.sources import axis_names, open_pairs, resolved_split, rows_of_parts, with_names
from probneural.runs.toml import read_config, write_config
from probneural.training import schema

FORMAT = "probneural-run-2"
LOCK = ".lock"
"""Lock file of the process that works in a folder."""
_OWN = ("config.toml", "run.json")
_FREE = ("data.path ", "training.device ", "training.workers ")
"""Settings that may change from call to call: results do not belong to them."""
OF_ONE_STEP = "it is damaged: remove this file, and its step is done anew"
"""What to do about a file that one step of a run wrote."""
IN_MEMORY = 2**27
"""Bytes of a part up to which it is read at once (128 MiB): what is computed is the same, bit for bit."""


class _Record(TypedDict):
    """Contents of `run.json`.

    Attributes:
        format: Version of the layout.
        config: All settings.
        fingerprint: Of the data.
        split: Rows of each part.
        reading: Interpretation of the data, in one sentence.
        reason: Why this operator was chosen; empty where the settings named it.
        outputs: Grid of the outputs, if it is not the inputs' grid, and names of their dimensions.
        versions: Versions of the libraries that made the folder.
    """

    format: str
    config: dict[str, dict[str, Any]]
    fingerprint: str
    split: dict[str, list[int]]
    reading: str
    reason: str
    outputs: dict[str, Any]
    versions: dict[str, str]


@dataclass(frozen=True, eq=False)
class RunFolder:
    """A folder that belongs to one configuration and one data set.

    Attributes:
        path: The folder.
        config: The settings, resolved.
        record: Contents of `run.json`.
        data: All pairs, on disk; None where the data were not opened.
    """

    path: Path
    config: Config
    record: Mapping[str, Any]
    data: StoredPairs | None = None

    @classmethod
    @contextlib.contextmanager
    def open(cls, config: Config | None, folder: str | os.PathLike[str]) -> Iterator[RunFolder]:
        """Make a folder for a configuration, or go on in one that belongs to it; no other process may until the context ends.

        Args:
            config: The settings; None for those of the folder.
            folder: Where to.

        Raises:
            FileError: If the folder belongs to other settings or data, holds other files, cannot be written to, or another
                process works in it.
            UnsupportedError: If torchrun has started several processes.
            ProbneuralError: If the settings or the data are unusable.
        """
        _check_single()
        path = check_path(folder, "folder")
        if config is None:
            config = own_config(path)
        check_instance(config, Config, "config", remedy="read one with pn.runs.read_config(path)", error=ArgumentError)
        config = replace(config, data=with_paths(config.data, os.path.abspath))
        if (path / "run.json").exists():
            read_record(path)  # which says what is wrong with it, before data are
        data = open_pairs(config.data)
        config = replace(config, data=with_names(config.data, data), split=resolved_split(config.split, data))
        split = rows_of_parts(data, config)
        choice = choose(config, data, train=len(split["train"]))
        config = resolved(config, data, train=len(split["train"]))
        data.fingerprint  # noqa: B018 (values that cannot be used should be known before there is a folder)
        if not (path / "run.json").exists():
            _make(path)
        with locked(path):
            record = _record(path, config, data, split, reason="" if choice is None else str(choice.reason))
            yield cls(path, config, record, data)

    @classmethod
    def finished(cls, folder: str | os.PathLike[str]) -> RunFolder:
        """Open a folder without its data, to predict with what it holds.

        Raises:
            FileError: If it is no run's folder.
        """
        path = check_path(folder, "folder")
        record = read_record(path)
        return cls(path, Config.from_dict(record["config"]), record)

    @property
    def choice(self) -> str:
        """Operator and head, and the reason for the operator where the data decided."""
        names = (self.config.operator.name, self.config.head.name)
        reason = self.record["reason"]
        return ", ".join(name for name in names if name != NO_OPERATOR) + (f": {reason}" if reason else "")

    def file(self, name: str) -> Path:
        """A file of the folder."""
        return self.path / name

    def independent(self, name: str) -> int:
        """Number of pairs of a part, or of trajectories where whole trajectories were split."""
        rows = self.record["split"][name]
        groups = None if self.data is None or self.config.split.by != "random" else self.data.groups
        return len(rows) if groups is None else len(groups[rows].unique())

    @property
    def persists(self) -> bool:
        """Whether outputs are later states of the inputs' variables, on the same grid."""
        if self.data is None or self.data.clock is None or self.data.clock.lead == 0:
            return False
        names = self.config.data
        return {*names.outputs} <= {*names.inputs} and self.data.inputs.grid == self.data.outputs.grid

    def subset(self, name: str) -> Dataset:
        """The training, scaling, conformal or test pairs; in memory if they are few enough, else read when they are needed."""
        if self.data is None:
            raise FileError(expected="a folder opened with its data", got="none", remedy="use RunFolder.open")
        chosen = self.data.subset(self.record["split"][name])
        return chosen[:] if chosen.size_in_bytes <= IN_MEMORY else chosen

    @cached_property
    def output_grid(self) -> Grid | None:
        """Where outputs live; None where that is the inputs' grid."""
        axes = self.record["outputs"]["grid"]
        if axes is None:
            return None
        ends = (tuple(axis["latitudes"]) if axis.get("latitudes") else None for axis in axes)
        return Grid.of_axes([Axis(**axis | {"latitudes": pair}) for axis, pair in zip(axes, ends, strict=True)])

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write JSON, whole or not at all."""
        atomic.write(self.file(name), json.dumps(content, indent=1).encode())

    def read(self, name: str) -> dict[str, Any]:
        """Read JSON that a step has written.

        Raises:
            FileError: If the file is missing or damaged.
        """
        return read_json(self.file(name), remedy=OF_ONE_STEP)

    def remove(self, *names: str) -> None:
        """Remove files of later steps, which do not belong to what is written next."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self.file(name).unlink()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder until the context ends; the system releases the lock of a process that dies.

    A folder that nothing can be written into has no lock.

    Raises:
        FileError: If another process works in it, or the lock's path is that of a link.
    """
    lock = FileLock(folder / LOCK)
    try:
        with contextlib.suppress(PermissionError):
            lock.acquire(blocking=False)
    except Timeout:
        expected, remedy = f"no other process at work in {folder}", "wait for it, end it, or name another folder: --folder NAME"
        raise FileError(expected=expected, got=f"one that holds {folder / LOCK}", remedy=remedy) from None
    except OSError as error:
        raise FileError(expected=f"a regular file {lock.lock_file}", got=str(error), remedy="remove it") from error
    try:
        yield
    finally:
        lock.release()


def _check_single() -> None:
    """Raise an UnsupportedError in one of several processes that torchrun has started: they would all write one folder."""
    remedy = "leave torchrun out; or call pn.fit in a program of your own under torchrun: it shares the training out"
    check_count(max(launched(), world_size()), 1, "process for a run and its folder", remedy=remedy, error=UnsupportedError)


def _record(path: Path, config: Config, data: StoredPairs, split: dict[str, list[int]], *, reason: str) -> Mapping[str, Any]:
    """The record of the folder, which must belong to this run; written if the folder has no results."""
    former = read_record(path) if (path / "run.json").exists() else None
    if former is not None and _others(path):  # before a step has left results, other settings may take over
        _check_same(path, former, config, data)
        return former
    if former is not None and former["config"] == config.to_dict():
        reason = reason or former["reason"]
    outputs, inputs = data.outputs, data.inputs
    record = {
        "format": FORMAT,
        "config": config.to_dict(),
        "fingerprint": data.fingerprint,
        "split": split,
        "reading": data.summary,
        "reason": reason,
        "outputs": {
            "names": list(config.data.outputs),
            "axes": list(axis_names(outputs)),
            "grid": None if outputs.grid == inputs.grid else [asdict(axis) for axis in outputs.grid.axes],
        },
        "versions": versions(),
    }
    write_config(config, path / "config.toml")
    atomic.write(path / "run.json", json.dumps(record, indent=1).encode())
    return record


def versions() -> dict[str, str]:
    """Versions of this package, Python, PyTorch and NumPy."""
    return {
        "probneural": str(sys.modules["probneural"].__version__),  # an import of the whole package would be a circle
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def read_json(path: Path, *, remedy: str = "it is damaged: remove the folder") -> dict[str, Any]:
    """Read an object of JSON.

    Raises:
        FileError: If there is none.
    """
    check_regular(path, "JSON", remedy=remedy)
    try:
        content = schema.parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(expected=f"JSON at {path}", got=str(error), remedy=remedy) from error
    return schema.instance(content, dict, where=path.name)


def read_record(folder: Path) -> dict[str, Any]:
    """Read the record of a run's folder.

    Raises:
        FileError: If it is no run's folder, or damaged.
    """
    if not (folder / "run.json").is_file():
        raise FileError(
            expected=f"a run's folder at {folder}",
            got="none" if not folder.exists() else "a folder without run.json" if folder.is_dir() else "a file",
            remedy="make one: probneural report data.nc --folder NAME",
        )
    return check_record(read_json(folder / "run.json"))


def check_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of a `run.json`, or raise a FileError."""
    written = record.get("format", FORMAT)
    if written != FORMAT:  # first: a folder of another format may lack what this one has
        raise FileError(expected=f"a folder of format {FORMAT}", got=str(written)[:80], remedy="use the version that wrote it")
    schema.check(record, _Record, where="run.json")
    return record


def own_config(path: Path) -> Config:
    """The settings stored in a run's folder.

    Raises:
        FileError: If it is no run's folder, of another format, or damaged.
    """
    read_record(path)  # first, since settings of another format would be refused for the wrong reason
    return read_config(path / "config.toml")


def _check_same(path: Path, record: Mapping[str, Any], config: Config, data: StoredPairs) -> None:
    """Raise a FileError that says in what a folder's settings or data differ."""
    theirs = Config.from_dict(record["config"])
    differences = [line for line in config.differences(theirs) if not line.startswith(_FREE)]
    if data.fingerprint != record["fingerprint"]:
        rows = sum(map(len, record["split"].values()))
        count = f"{len(data)} pairs, not {rows}" if len(data) != rows else "other values"
        differences.insert(0, f"the data in {Path(config.data.path).name} ({count})")
    if differences:
        expected, got = f"the settings and data that {path} belongs to", f"others: {'; '.join(differences)}"
        raise FileError(expected=expected, got=got, remedy="name another folder, --folder NAME, or remove this one")


def _others(path: Path) -> list[str]:
    """Files of a folder other than its configuration and record."""
    return [file.name for file in path.iterdir() if not file.name.startswith(".") and file.name not in _OWN]


def _make(path: Path) -> None:
    """Make an empty folder, or take one that is."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        others = _others(path)
    except OSError as error:
        raise FileError(expected=f"a folder at {path}", got=str(error), remedy="name another: --folder NAME") from error
    if others:
        expected, remedy = f"a new or empty folder, or one of a run, at {path}", "name another: --folder NAME"
        raise FileError(expected=expected, got=f"one with {', '.join(sorted(others)[:5])}", remedy=remedy)
