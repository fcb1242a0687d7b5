"""Sources of a benchmark's samples: an exactly solvable problem, or a user's file."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import probneural as pn
from benchmarks import data

SEEDS = {"train": 7000, "calibration": 7001, "test": 7002, "bands": 7003, "shift": 7004}
"""Seeds by purpose. Seeds 0 to 4 and 1000 to 1003 were used during development of the library."""


@dataclass(frozen=True)
class ProblemSource:
    """Pairs of an exactly solvable problem.

    Attributes:
        problem: The problem.
        resolution: Points per axis of training, calibration and test samples.
        finer: Points per axis of the finer test grid, or None.
        pairs: Number of training pairs.
        fields: Number of calibration samples, of samples per test set, and of half the pool of conformal bands.
        finer_fields: Number of test samples on the finer grid, by default `fields`.
    """

    problem: pn.problems.Problem
    resolution: tuple[int, ...]
    finer: tuple[int, ...] | None
    pairs: int = 1000
    fields: int = 200
    finer_fields: int | None = None

    @property
    def name(self) -> str:
        return self.problem.name

    @property
    def identity(self) -> str:
        """Identity of these samples."""
        return repr(self)

    @property
    def points(self) -> int:
        """Points of the training grid."""
        return math.prod(self.resolution)

    @property
    def dimension(self) -> int:
        """Dimension of the training grid."""
        return len(self.resolution)

    @property
    def train(self) -> pn.FieldPairs:
        return self._sample(self.problem, "train", self.pairs, self.resolution)

    @property
    def calibration(self) -> pn.FieldPairs:
        return self._sample(self.problem, "calibration", self.fields, self.resolution)

    @property
    def pool(self) -> pn.FieldPairs:
        """Samples for conformal bands, to be divided into calibration sets, and for intervals of functionals."""
        return self._sample(self.problem, "bands", 2 * self.fields, self.resolution)

    def places(self) -> dict[str, pn.FieldPairs]:
        """Test sets by name, on the training grid first."""
        found = {"in distribution": self._sample(self.problem, "test", self.fields, self.resolution)}
        if self.finer is not None:
            found["finer grid"] = self._sample(self.problem, "test", self.finer_fields or self.fields, self.finer)
        for name, shifted in self.problem.shifts().items():
            found[name] = self._sample(shifted, "shift", self.fields, self.resolution)
        return found

    def _sample(self, problem: pn.problems.Problem, purpose: str, count: int, resolution: tuple[int, ...]) -> pn.FieldPairs:
        return problem.sample(count, resolution=resolution, seed=SEEDS[purpose])


@dataclass(frozen=True)
class FileSource:
    """Pairs from a file, see `benchmarks.data.read`. A fifth of the training pairs is held out for scales and bands.

    Attributes:
        path: The file, or a prefix of file names.
    """

    path: Path
    pairs: int | None = field(default=None)

    @cached_property
    def _data(self) -> Any:
        return data.read(self.path)

    @cached_property
    def _parts(self) -> tuple[pn.FieldPairs, pn.FieldPairs, pn.FieldPairs]:
        train, rest = self._data.train.split(len(self._data.train) * 4 // 5, seed=SEEDS["train"])
        calibration, conformal = rest.split(len(rest) // 2, seed=SEEDS["bands"])
        return (train if self.pairs is None else train[: self.pairs]), calibration, conformal

    @property
    def name(self) -> str:
        return str(self._data.name)

    @property
    def identity(self) -> str:
        """Identity of these samples, by the file's contents."""
        digest = hashlib.sha256()
        for part in (self.train.inputs, self.train.outputs):
            digest.update(repr((part.grid, part.values.shape)).encode())
            digest.update(part.values.contiguous().numpy().tobytes())
        return digest.hexdigest()

    @property
    def points(self) -> int:
        """Points of the training grid."""
        return self.train.inputs.grid.size

    @property
    def dimension(self) -> int:
        """Dimension of the training grid."""
        return self.train.inputs.grid.dimension

    @property
    def train(self) -> pn.FieldPairs:
        return self._parts[0]

    @property
    def calibration(self) -> pn.FieldPairs:
        return self._parts[1]

    @property
    def assumed(self) -> str:
        """Assumptions about missing information, in a sentence; may be empty."""
        return str(self._data.assumed)

    @property
    def pool(self) -> pn.FieldPairs:
        """Pairs for conformal bands."""
        return self._parts[2]

    def places(self) -> dict[str, pn.FieldPairs]:
        """The test sets by name."""
        return dict(self._data.tests)


Source = ProblemSource | FileSource
