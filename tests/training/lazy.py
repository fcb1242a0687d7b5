"""A data set that is read by rows and counts what is read: what a file would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs, Rows
from probneural.randomness import stream


@dataclass(frozen=True)
class LazySide:
    """One side: a field that is behind a door."""

    behind: Field
    rows: Tensor
    read: list[int]

    @property
    def grid(self) -> Grid:
        return self.behind.grid

    @property
    def channels(self) -> int:
        return self.behind.channels

    @property
    def dtype(self) -> torch.dtype:
        return self.behind.dtype

    @property
    def device(self) -> torch.device:
        return self.behind.device

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Rows) -> Field:
        chosen = self.rows[index if not isinstance(index, int) else [index]]
        self.read.extend(chosen.tolist())
        return self.behind[chosen]

    def to(self, target: torch.device | torch.dtype | str) -> LazySide:
        return replace(self, behind=self.behind.to(target))


@dataclass(frozen=True)
class LazyPairs:
    """Pairs that only give rows, at most `most` at a time, and note which ones, of pairs and of each side alone."""

    behind: FieldPairs
    rows: Tensor
    most: int = 10**9
    read: list[int] = field(default_factory=list)
    read_alone: dict[str, list[int]] = field(default_factory=lambda: {"inputs": [], "outputs": []})

    @property
    def inputs(self) -> LazySide:
        return LazySide(self.behind.inputs, self.rows, self.read_alone["inputs"])

    @property
    def outputs(self) -> LazySide:
        return LazySide(self.behind.outputs, self.rows, self.read_alone["outputs"])

    @property
    def fingerprint(self) -> str:
        return self.behind.fingerprint

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Rows) -> FieldPairs:
        chosen = self.rows[index if not isinstance(index, int) else [index]]
        assert len(chosen) <= self.most, "the whole set was asked for"
        self.read.extend(chosen.tolist())
        return self.behind[chosen]

    def subset(self, index: Rows) -> LazyPairs:
        return replace(self, rows=self.rows[index if not isinstance(index, int) else [index]])

    def split(self, count: int, *, seed: int) -> tuple[LazyPairs, LazyPairs]:
        order = torch.randperm(len(self), generator=stream(seed, "split"))
        return self.subset(order[:count]), self.subset(order[count:])

    def to(self, target: torch.device | torch.dtype | str) -> LazyPairs:
        return replace(self, behind=self.behind.to(target))

    def detached(self) -> LazyPairs:
        return self


def lazy(pairs: FieldPairs, *, most: int = 10**9) -> LazyPairs:
    """Pairs behind a door."""
    return LazyPairs(pairs, torch.arange(len(pairs)), most)


def rows_of(parts: Sequence[LazyPairs]) -> list[list[int]]:
    """What was read of each."""
    return [part.read for part in parts]
