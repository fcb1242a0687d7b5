"""Units of operators from one data set or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators import Operator
from probneural.pairs import Dataset, FieldPairs, FieldSource, Rows


def fit_units(operator: Operator, train: Sequence[Dataset]) -> None:
    """Give an operator the units of its training data.

    Args:
        operator: Whose normalisers are set.
        train: Data sets side by side; each pair counts once. Those after the first are read on the first one's grids.

    Raises:
        DataError: If the fields have other channels than the operator, or a scale that its dtype does not hold.
        GridError: If there are several data sets, and grids are scattered or of other domains.
    """
    operator.fit_normalizers(train[0] if len(train) == 1 else _SideBySide(tuple(train)))


@dataclass(frozen=True)
class _Side:
    """One side of several data sets, on the first one's grid."""

    parts: tuple[FieldSource, ...]

    @property
    def grid(self) -> Grid:
        return self.parts[0].grid

    @property
    def channels(self) -> int:
        return self.parts[0].channels

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, index: Rows, /) -> Field:
        found, first = [], 0
        rows = _numbers(index, len(self))
        for part in self.parts:
            own = rows[(rows >= first) & (rows < first + len(part))] - first
            if len(own):
                found.append(part[own].resample(self.grid))
            first += len(part)
        return Field.cat(found)

    def to(self, target: torch.device | torch.dtype | str, /) -> _Side:
        return _Side(tuple(part.to(target) for part in self.parts))


@dataclass(frozen=True)
class _SideBySide:
    """Several data sets as one, on the first one's grids, in their order: what `fit_normalizers` reads."""

    parts: tuple[Dataset, ...]

    @property
    def inputs(self) -> _Side:
        return self._side("inputs")

    @property
    def outputs(self) -> _Side:
        return self._side("outputs")

    @property
    def fingerprint(self) -> str:
        return "".join(part.fingerprint for part in self.parts)

    def _side(self, name: Literal["inputs", "outputs"]) -> _Side:
        return _Side(tuple(getattr(part, name) for part in self.parts))

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, index: Rows, /) -> FieldPairs:
        rows = _numbers(index, len(self)).sort().values
        return FieldPairs(self.inputs[rows], self.outputs[rows])

    def subset(self, index: Rows, /) -> Dataset:
        return self[index]

    def split(self, count: int, *, seed: int) -> tuple[Dataset, Dataset]:
        return self[:].split(count, seed=seed)

    def to(self, target: torch.device | torch.dtype | str, /) -> _SideBySide:
        return _SideBySide(tuple(part.to(target) for part in self.parts))

    def detached(self) -> _SideBySide:
        return _SideBySide(tuple(part.detached() for part in self.parts))


def _numbers(index: Rows, count: int) -> Tensor:
    """Rows as integers from 0."""
    every = torch.arange(count, device="cpu")
    return every[[index] if isinstance(index, int) else index]
