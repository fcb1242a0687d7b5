"""Search for the most likely division of a variance among candidates of w and f."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.linear_algebra.densities import lower_gram

ROOT_FRACTIONS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Candidates of w. Zero is none: data on some functions would then say nothing about others."""
WHITE_FRACTIONS = (1e-4, 5e-4, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
"""Candidates of f. Zero is none: a field of finite rank has no density on a fine grid."""
START = (2, 5)
"""Which candidates of w and f a search may begin with."""
_JITTER = 1e-9
"""Fraction of a variance added to it in the likelihood alone, where a correlation matrix may be singular up to rounding."""
_NARROW = 0.5
"""Latent dimensions per point below which a density comes from them: at 1,089 points, a covariance takes as long at 0.6."""


@dataclass(frozen=True, eq=False)
class SharedCovariance:
    """The covariance that a head itself states for one function at some points, by its root if that is narrow.

    Args:
        root: `(c, p, k)`, or None.
        gram: `(c, p, p)`, or None where there is a root.
    """

    root: Float64[Tensor, "c p k"] | None
    gram: Float64[Tensor, "c p p"] | None

    @classmethod
    def of(cls, root: Float64[Tensor, "c p k"]) -> SharedCovariance:
        """Keep a root, or what takes less memory."""
        return cls(root, None) if root.shape[2] < _NARROW * root.shape[1] else cls(None, root @ root.mT)

    def of_channel(self, channel: int, *, scale: Tensor, seen: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Root or Gram matrix of one channel at some of the points, scaled."""
        if self.root is not None:
            return self.root[channel, seen] * scale.sqrt(), None
        assert self.gram is not None
        gram = self.gram[channel]
        return None, scale * (gram if len(seen) == len(gram) else gram[seen][:, seen])


@dataclass(frozen=True, eq=False, kw_only=True)
class Example:
    """One function at some points.

    Args:
        side: Which half of the fields it belongs to.
        residual: Over the root of the local scale, `(c, p)`.
        shared: The head's covariance.
        explained: The head's variance times a, `(c, p)`.
    """

    side: int
    residual: Float64[Tensor, "c p"]
    shared: SharedCovariance
    explained: Float64[Tensor, "c p"]


def search(
    examples: Sequence[Example],
    waves: Sequence[Float64[Tensor, "c p _"]],
    *,
    scale: Float64[Tensor, " c"],
    noise: Float64[Tensor, " c"],
    starts: Sequence[tuple[int, int]],
) -> tuple[list[tuple[int, int]], float]:
    """Which candidates of w and f are most likely in each channel, under the process of the other half; and how likely.

    Args:
        examples: Some functions.
        waves: The root of the process of each half at the same points.
        scale: a.
        noise: b n, in physical units squared.
        starts: Candidates to begin with, one pair for each channel.
    """
    found, total = [], 0.0
    for channel, start in enumerate(starts):
        halves = [_Half(root[channel]) for root in waves]
        cases = []
        for one in examples:
            seen = ((one.explained[channel] + noise[channel]) > 0).nonzero()[:, 0]  # what is certain says nothing of w and f
            root, gram = one.shared.of_channel(channel, scale=scale[channel], seen=seen)
            half = halves[1 - one.side]
            half = half if len(seen) == len(half.waves) else _Half(half.waves[seen])
            cases.append(_Case(one.residual[channel, seen], one.explained[channel, seen], noise[channel], half, root, gram))
        best, height = most_likely(functools.partial(_log_density, cases), start)
        found.append(best)
        total += height
    return found, total


def most_likely(log_density: Callable[[float, float], float], start: tuple[int, int]) -> tuple[tuple[int, int], float]:
    """Numbers of the candidates (w, f) that no neighbour surpasses, and how likely; the search climbs along f and w in turn.

    Of 20 heads in one dimension it found the best of all 72 pairs for each.
    """
    at = functools.cache(lambda row, column: log_density(ROOT_FRACTIONS[row], WHITE_FRACTIONS[column]))
    row, column = start
    while True:
        before = row, column
        column = _climb(lambda index, row=row: at(row, index), column, len(WHITE_FRACTIONS))  # type: ignore[misc]
        row = _climb(lambda index, column=column: at(index, column), row, len(ROOT_FRACTIONS))  # type: ignore[misc]
        if (row, column) == before:
            return before, at(row, column)


def _climb(height: Callable[[int], float], start: int, count: int) -> int:
    """The first place, uphill from a start, that is higher than both of its neighbours."""
    here = start
    while True:
        there = max((place for place in (here, here - 1, here + 1) if 0 <= place < count), key=height)
        if there == here:
            return here
        here = there


def _log_density(cases: Sequence[_Case], weight: float, fraction: float) -> float:
    """Log density of some functions' residuals, up to a constant, for one pair (w, f); -inf where there is none."""
    total = 0.0
    for case in cases:
        density = case.log_density(weight, fraction)
        if not math.isfinite(density):
            return -math.inf
        total += density
    return total


@dataclass(frozen=True, eq=False)
class _Half:
    """A process at some points, `(p, r)`."""

    waves: Float64[Tensor, "p r"]

    @cached_property
    def correlation(self) -> Float64[Tensor, "p p"]:
        """Its covariance."""
        return self.waves @ self.waves.mT


@dataclass(frozen=True, eq=False)
class _Case:
    """One channel of one function: its residuals, and what their covariance is made of.

    Args:
        residual: `(p,)`.
        explained: The head's variance times a.
        noise: b n.
        half: The process.
        root: Of the head's covariance times a, `(p, k)`; or None, ...
        gram: ... and that covariance, `(p, p)`.
    """

    residual: Float64[Tensor, " p"]
    explained: Float64[Tensor, " p"]
    noise: Float64[Tensor, ""]
    half: _Half
    root: Float64[Tensor, "p k"] | None
    gram: Float64[Tensor, "p p"] | None

    def log_density(self, weight: float, fraction: float) -> float:
        """Log density for one pair (w, f), up to a constant; -inf or NaN where there is none."""
        std = ((1.0 - weight) * self.explained + (1.0 - fraction) * self.noise).sqrt()
        white = fraction * self.noise + _JITTER * (self.explained + self.noise)
        waves = self.half.waves
        if self.root is not None and self.root.shape[1] + waves.shape[1] < _NARROW * len(waves):
            return _narrow(torch.cat([self.root * math.sqrt(weight), waves * std[:, None]], 1), self.residual, white)
        covariance = (std[:, None] * self.half.correlation).mul_(std).add_(self._shared, alpha=weight)
        covariance.diagonal().add_(white)
        triangle, failed = torch.linalg.cholesky_ex(covariance, upper=True)  # faster than the lower one
        whitened = torch.linalg.solve_triangular(triangle.mT, self.residual[:, None], upper=False)
        density = float(-0.5 * whitened.square().sum() - triangle.diagonal().log().sum())
        return -math.inf if int(failed) != 0 else density

    @cached_property
    def _shared(self) -> Float64[Tensor, "p p"]:
        if self.root is not None:
            return self.root @ self.root.mT
        assert self.gram is not None
        return self.gram


def _narrow(root: Float64[Tensor, "p q"], residual: Float64[Tensor, " p"], white: Float64[Tensor, " p"]) -> float:
    """The same from the root, with q columns, of all but the variance of each value's own.

    Gram matrices here are right to some 1e-8 of each eigenvalue of 1, which is as good as the jitter.
    """
    inverse = white.rsqrt()
    rows, whitened = root * inverse[:, None], residual * inverse
    gram = lower_gram(rows)
    gram.diagonal().add_(1.0)
    triangle, failed = torch.linalg.cholesky_ex(gram)
    latent = torch.cholesky_solve((rows.mT @ whitened)[:, None], triangle)[:, 0]
    quadratic = (whitened - rows @ latent).square().sum() + latent.square().sum()
    density = float(-0.5 * (quadratic + white.log().sum()) - triangle.diagonal().log().sum())
    return -math.inf if int(failed) != 0 else density
