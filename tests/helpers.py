"""What tests of all layers share: random numbers that follow from a seed or a name, grids, functions."""

from __future__ import annotations

import math
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from probneural.distributions import FieldDistribution, GaussianField, Predictor
from probneural.fields import Field, select_rows
from probneural.grids import Grid
from probneural.pairs import FieldPairs, Rows, split_order
from tests.device import simulated

DTYPE = torch.float64


def accelerator() -> str:
    """The device of tests marked `gpu`: CUDA, or else the simulated GPU; without either, the test is skipped."""
    if torch.cuda.is_available():
        return "cuda"
    if not simulated.library().exists():
        pytest.skip("needs CUDA, or the simulated GPU that `python -m tests.device.simulated` compiles")
    simulated.load()
    return simulated.NAME


class PerSetPredictor(Predictor):
    """Predicts each set of inputs on its own, by `_field`."""

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        return [self._field(inputs, query) for inputs, query in sets]

    @abstractmethod
    def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution: ...


def one_of_each(cases: Iterable[Any], kind: Callable[[Any], object]) -> list[Any]:
    """Parameters for a contract suite: the first case of each kind runs in `make test`, all others in `make test-all`."""
    seen: set[object] = set()
    parameters = []
    for case in cases:
        slow = [pytest.mark.slow] * (kind(case) in seen)
        seen.add(kind(case))
        parameters.append(pytest.param(*case, marks=slow) if type(case) is tuple else pytest.param(case, marks=slow))
    return parameters


def generator(seed: int | str = 0) -> torch.Generator:
    """A generator that follows from a number or a name."""
    return torch.Generator().manual_seed(zlib.crc32(seed.encode()) if isinstance(seed, str) else seed)


def normal(*shape: int, seed: int | str = 0, dtype: torch.dtype = DTYPE) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=generator(seed), dtype=dtype)


def uniform(*shape: int, seed: int | str = 0) -> Tensor:
    """Uniform numbers in [0, 1)."""
    return torch.rand(shape, generator=generator(seed), dtype=DTYPE)


def designs(*shape: int, dimension: int = 2, seed: int | str = 0) -> Tensor:
    """Points of the unit cube, `(*shape, dimension)`."""
    return uniform(*shape, dimension, seed=seed)


def scattered(count: int, dimension: int, *, seed: int = 0) -> Grid:
    """Points of the unit cube, with equal weights."""
    points = designs(count, dimension=dimension, seed=seed)
    return Grid.scattered(points, torch.full((count,), 1.0 / count))


def held_out(pairs: FieldPairs) -> FieldPairs:
    """Pairs on which nothing was fitted: the same inputs, and outputs that are larger by a thousandth."""
    return replace(pairs, outputs=Field(1.001 * pairs.outputs.values, pairs.outputs.grid))


class BandLimited:
    """A random real function whose frequencies have every sign and magnitudes up to `highest` along each axis."""

    def __init__(self, highest: Sequence[int], *, lengths: Sequence[float], origin: Sequence[float], seed: int = 0) -> None:
        ranges = [range(-top, top + 1) for top in highest]
        self.frequencies = torch.tensor(list(product(*ranges)), dtype=DTYPE)
        count = len(self.frequencies)
        self.cosines, self.sines = normal(2, count, seed=seed) / math.sqrt(count)
        self.lengths, self.origin = torch.tensor(lengths, dtype=DTYPE), torch.tensor(origin, dtype=DTYPE)

    def __call__(self, points: Tensor) -> Tensor:
        angle = 2 * math.pi * ((points - self.origin) / self.lengths) @ self.frequencies.T
        return angle.cos() @ self.cosines + angle.sin() @ self.sines

    def on(self, grid: Grid) -> Tensor:
        return self(grid.points).reshape(grid.shape)


@dataclass(frozen=True, eq=False)
class LazyPairs:
    """A data set whose pairs are read when they are asked for, and which remembers which rows of which side were, and when.

    Attributes:
        pairs: Where they are read.
        index: Which of them these are.
        targets: What they are converted to, in order.
        reads: One entry per reading: the side, and the rows among all `pairs`.
    """

    pairs: FieldPairs
    index: tuple[int, ...] = ()
    targets: tuple[object, ...] = ()
    reads: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)

    @classmethod
    def of(cls, pairs: FieldPairs) -> LazyPairs:
        return cls(pairs, tuple(range(len(pairs))))

    @property
    def inputs(self) -> LazySide:
        return LazySide(self, "inputs")

    @property
    def outputs(self) -> LazySide:
        return LazySide(self, "outputs")

    @property
    def fingerprint(self) -> str:
        return self.pairs.fingerprint

    @property
    def most(self) -> int:
        """The most rows ever asked for at once."""
        return max(len(rows) for _, rows in self.reads)

    def rows(self, index: Rows) -> tuple[int, ...]:
        chosen = torch.tensor(self.index, dtype=torch.long)[select_rows(index, len(self))]
        return tuple(chosen.tolist())

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: Rows) -> FieldPairs:
        return FieldPairs(self.inputs[index], self.outputs[index])

    def subset(self, index: Rows) -> LazyPairs:
        return replace(self, index=self.rows(index))

    def split(self, count: int, *, seed: int) -> tuple[LazyPairs, LazyPairs]:
        order = split_order(len(self), seed=seed)
        return self.subset(order[:count]), self.subset(order[count:])

    def to(self, target: torch.device | torch.dtype | str) -> LazyPairs:
        return replace(self, targets=(*self.targets, target))

    def detached(self) -> LazyPairs:
        return self


class LazySide:
    """One side of `LazyPairs`."""

    def __init__(self, data: LazyPairs, side: str, targets: tuple[object, ...] = ()) -> None:
        self.data, self.side, self.targets = data, side, targets
        self.like = getattr(data.pairs, side)[:0]
        for target in (*data.targets, *targets):
            self.like = self.like.to(target)

    grid = property(lambda self: self.like.grid)
    channels = property(lambda self: self.like.channels)
    dtype = property(lambda self: self.like.dtype)
    device = property(lambda self: self.like.device)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Rows) -> Field:
        rows = self.data.rows(index)
        self.data.reads.append((self.side, rows))
        values = getattr(self.data.pairs, self.side)[list(rows)]
        for target in (*self.data.targets, *self.targets):
            values = values.to(target)
        return values

    def to(self, target: torch.device | torch.dtype | str) -> LazySide:
        return LazySide(self.data, self.side, (*self.targets, target))


def cross_covariance(first: GaussianField, second: GaussianField) -> Tensor:
    """The joint covariance of all values of two fields of one latent, `(n * c * p, n' * c' * p')`."""
    assert (first.latent.id, first.latent.rank) == (second.latent.id, second.latent.rank)
    left, right = first.root.dense().flatten(0, 2), second.root.dense().flatten(0, 2)
    covariance = left @ right.mT.to(left)
    sets = first._functions, second._functions
    if first.discrepancy is None or second.discrepancy is None or sets[0].prediction is not sets[1].prediction:
        return covariance
    left, right = first.discrepancy.dense().flatten(1, 2), second.discrepancy.dense().flatten(1, 2)
    covariance = covariance.unflatten(1, (len(right), -1)).unflatten(0, (len(left), -1)).clone()
    for row, column in (sets[0].rows[:, None] == sets[1].rows).nonzero().tolist():
        covariance[row, :, column] += (left[row] @ right[column].mT.to(left)).to(covariance)
    return covariance.flatten(2, 3).flatten(0, 1)
