"""Accumulation of statistics of single samples over batches: of all samples of a data set, or of one lead of a forecast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Generic, TypeVar

import torch
from torch import Tensor

from probneural.distributions.base import FieldDistribution
from probneural.errors import ProbneuralError
from probneural.fields import Field
from probneural.pairs import FieldSource

_BATCH_VALUES = 2**16
"""Output values that are predicted and compared at once, each with all its members."""

Compared = TypeVar("Compared")


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """Predictions and truth of consecutive samples.

    Attributes:
        u: Their distribution.
        truth: The true fields.
        rows: Indices of the samples.
        lead: Lead of the forecast, from 1.
    """

    u: FieldDistribution
    truth: Field
    rows: slice
    lead: int = 1

    @property
    def eps(self) -> float:
        """Relative spacing of numbers in the dtype of prediction or truth, whichever is coarser."""
        return max(torch.finfo(self.u.mean.dtype).eps, torch.finfo(self.truth.dtype).eps)

    def first(self, count: int) -> Batch:
        """Select the first samples."""
        if count >= len(self.truth):
            return self
        index = slice(0, count)
        return replace(self, u=self.u[index], truth=self.truth[index])


def batch_size(truth: FieldSource) -> int:
    """Number of samples compared at once. Random numbers depend on it, so it depends on shapes alone."""
    return max(1, _BATCH_VALUES // max(1, truth.channels * truth.grid.size))


def batch_rows(truth: FieldSource) -> Iterator[slice]:
    """Indices of the samples of each batch."""
    size = batch_size(truth)
    return (slice(start, min(start + size, len(truth))) for start in range(0, len(truth), size))


class Accumulator(Generic[Compared]):
    """Statistics of single samples, accumulated over batches.

    A statistic maps compared samples to a tensor `(n, ...)`. One that raises an error for some batch is dropped, with the
    message as its reason.

    Args:
        compare: Maps a batch to the argument of the statistics.
        pointwise: Statistics of values, by name.
        joint: Statistics of whole fields, by name; they cost more.
        whole: Number of samples, the first ones, that `joint` is computed of; None for all.

    Attributes:
        reasons: Why a statistic is missing, by name.
    """

    def __init__(
        self,
        compare: Callable[[Batch], Compared],
        *,
        pointwise: Mapping[str, Callable[[Compared], Tensor]],
        joint: Mapping[str, Callable[[Compared], Tensor]],
        whole: int | None = None,
    ) -> None:
        self._compare, self._pointwise, self._joint, self._whole = compare, pointwise, joint, whole
        self._parts: dict[str, list[Tensor]] = {}
        self.reasons: dict[str, str] = {}

    def add(self, batch: Batch) -> Compared | None:
        """Add a batch; return the compared samples that joint statistics were computed of, if there are any."""
        compared = self._compare(batch)
        self._compute(self._pointwise, compared)
        count = len(batch.truth) if self._whole is None else self._whole - batch.rows.start
        if count <= 0:
            return None
        first = compared if count >= len(batch.truth) else self._compare(batch.first(count))
        self._compute(self._joint, first)
        return first

    def _compute(self, statistics: Mapping[str, Callable[[Compared], Tensor]], compared: Compared) -> None:
        for name, statistic in statistics.items():
            if name in self.reasons:
                continue
            try:
                self._parts.setdefault(name, []).append(statistic(compared).detach().cpu())
            except ProbneuralError as error:
                self.reasons[name] = str(error)
                del self._parts[name]

    def values(self) -> dict[str, Tensor]:
        """Each statistic of all samples, `(n, ...)`; those that some batch lacks are left out."""
        return {name: torch.cat(parts) for name, parts in self._parts.items()}

    def sums(self) -> dict[str, tuple[Tensor, int]]:
        """Each statistic summed over samples, batch by batch, and their number."""
        return {
            name: (reduce(torch.add, (part.sum(0) for part in parts)), sum(map(len, parts)))
            for name, parts in self._parts.items()
        }
