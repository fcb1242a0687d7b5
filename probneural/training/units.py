"""Units of operators from data sets that are not one in memory: read once, in blocks, and merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.operators import Operator
from probneural.pairs import Dataset, FieldPairs, batches

_BLOCK = 2**26
"""Bytes of values that are read at a time, about; data of less have the units of the same data in memory, to the bit."""


def fit_units(operator: Operator, train: Sequence[Dataset]) -> None:
    """Give an operator the units of its training data.

    Args:
        operator: Whose normalisers are set.
        train: Data sets side by side; each pair counts once.

    Raises:
        DataError: If the fields have other channels than the operator, or a scale that its dtype does not hold.
    """
    if len(train) == 1 and isinstance(train[0], FieldPairs):
        operator.fit_normalizers(train[0])
        return
    operator.fit_normalizers(cast("FieldPairs", _Streamed(train)))


class _Side:
    """One side of data sets: what a normaliser asks of a field."""

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self.count = 0
        self.known: tuple[Tensor, Tensor] | None = None

    def add(self, field: Any) -> None:
        """Merge the units of a block into those of the blocks before (Chan et al. 1982)."""
        mean, scale = field.units()
        flat = field.values.detach().flatten(2)
        is_constant = (flat == flat[:1, :, :1]).all(2).all(0)
        scale = torch.where(is_constant, torch.zeros_like(scale), scale)  # `units` gives a channel that does not vary scale 1
        if self.known is not None:
            before, spread = self.known
            share = len(field) / (self.count + len(field))
            gap = mean - before
            mean = before + share * gap
            scale = ((1 - share) * spread.square() + share * scale.square() + share * (1 - share) * gap.square()).sqrt()
        self.known = mean, scale
        self.count += len(field)

    def units(self) -> tuple[Float64[Tensor, " c"], Float64[Tensor, " c"]]:
        """Mean and standard deviation per channel; one that does not vary has scale 1."""
        assert self.known is not None
        mean, scale = self.known
        return mean, torch.where(scale > 0, scale, torch.ones_like(scale))


class _Streamed:
    """What `fit_normalizers` asks of pairs, from one pass over data sets."""

    def __init__(self, train: Sequence[Dataset]) -> None:
        self.inputs, self.outputs = _Side(train[0].inputs.channels), _Side(train[0].outputs.channels)
        for data in train:
            size = sum(side.grid.size * side.channels * side.dtype.itemsize for side in (data.inputs, data.outputs))
            for pairs in batches(data, max(1, _BLOCK // size)):
                self.inputs.add(pairs.inputs)
                self.outputs.add(pairs.outputs)
