"""Quantiles of weighted values that are given some at a time, in bounded memory."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

_EXACT = 2**22
"""Values that are kept as they are (32 MiB)."""
_SHIFT = 36
"""Bits of a float64 that a bin leaves out, of 52 of the mantissa: bins are 2^-16 of their values wide."""


class WeightedQuantiles:
    """The smallest of many values, none negative, with at least a fraction of the mass at or below it, per channel.

    Up to 4 million values are kept, and the quantile is exact. More are counted in bins whose width is 2^-16 of their values,
    so that the quantile is right within a relative 1e-5, and memory follows from the range of the values alone.

    Examples:
        >>> quantiles = WeightedQuantiles()
        >>> quantiles.add(torch.tensor([[[1.0, 3.0]], [[2.0, 4.0]]]).double(), torch.ones(2).double())
        >>> quantiles.at(0.75).tolist()
        [3.0]
    """

    def __init__(self) -> None:
        self._values: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._bins: list[tuple[Tensor, Tensor]] = []  # per channel: keys, rising, and the mass of each
        self._count = 0

    def add(self, values: Float64[Tensor, "n c p"], weights: Float64[Tensor, " p"]) -> None:
        """Add the values of some functions, with the weight of each point."""
        self._values.append(values.movedim(1, 0).flatten(1))
        self._weights.append(weights.repeat(len(values)))
        self._count += values.numel()
        if self._count > _EXACT:
            self._compress()

    def at(self, level: float) -> Float64[Tensor, " c"]:
        """The quantile of this level, between 0 and 1, per channel."""
        if self._bins:
            self._compress()
            return torch.stack([_first_at(mass, level, values=_middles(keys)) for keys, mass in self._bins])
        values, weights = torch.cat(self._values, dim=1), torch.cat(self._weights)
        found = []
        for row in values:
            ordered, order = row.sort()
            found.append(_first_at(weights[order], level, values=ordered))
        return torch.stack(found)

    def _compress(self) -> None:
        """Move the values that are kept to the bins."""
        if not self._values:
            return
        values, weights = torch.cat(self._values, dim=1), torch.cat(self._weights)
        self._values, self._weights, self._count = [], [], 0
        bins = []
        for channel, row in enumerate(values):
            keys, mass = row.contiguous().view(torch.int64) >> _SHIFT, weights
            if self._bins:
                keys, mass = torch.cat([self._bins[channel][0], keys]), torch.cat([self._bins[channel][1], mass])
            present, place = torch.unique(keys, return_inverse=True)
            bins.append((present, mass.new_zeros(len(present)).index_add_(0, place, mass)))
        self._bins = bins


def _middles(keys: Tensor) -> Tensor:
    """The middle of each bin."""
    return (keys << _SHIFT).view(torch.float64) * (1.0 + 2.0 ** (_SHIFT - 53))


def _first_at(mass: Tensor, level: float, *, values: Tensor) -> Tensor:
    """The first of rising values up to which there is a fraction `level` of the mass."""
    cumulated = (mass / mass.sum()).cumsum(0)
    index = (cumulated < level - 1e-12).sum().clamp(max=len(values) - 1)
    return values[index]
