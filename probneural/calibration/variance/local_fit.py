"""Fit of a local scale: a convex likelihood, with a penalty chosen by cross-validation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from probneural.calibration.predictions import FOLDS, group_means, is_gain, mean_size, number_of
from probneural.calibration.variance.local_scale import (
    FINE,
    POINTWISE,
    LocalScale,
    VarianceCurve,
    bends,
    is_mesh,
    knots_of,
    positions,
    some_points,
)
from probneural.grids import Grid
from probneural.metrics.comparison import domain_average
from probneural.randomness import stream

_WIDTH = 0.08
"""Standard deviation of the local averages, relative to the length of the domain. Rougher factors make smooth residuals rough
and lose in joint density what they gain pointwise."""
_VALUES = 2**15
"""Approximate number of residuals in the fit, at random points that all samples share."""
_LEAST_SQUARE = 1e-8
"""Lower bound of squared standardised residuals in the fit: if many are zero, the likelihood has no maximum."""
_RIDGES = (300.0, 30.0, 3.0, 0.3)
"""Candidates of the penalty, in units of one sample or group."""
_BENDING = (30.0, 3.0, 0.3, 0.03)
"""Candidates of the penalty on slopes of the curve and their changes."""
_LEAST = 2 * FOLDS
"""Minimum number of samples or groups for a fit."""
_STEPS = 30
"""Maximum number of Newton steps."""
_GAIN = 1e-9
"""Relative gain at which Newton's method ends."""
_PART = 2**12
"""Residuals per block of a Gram matrix."""

Part = tuple[Float64[Tensor, "n c *grid"], Float64[Tensor, "n c *grid"], Float64[Tensor, "n c *grid"]]
"""Predicted means, predictive variances and squared standardised residuals of some samples."""


@torch.no_grad()
def fit_local_scale(
    parts: Callable[[], Iterator[Part]], *, groups: Int64[Tensor, " n"], grid: Grid, left_out: Bool[Tensor, " c"] | None = None
) -> LocalScale | None:
    """Fit the pointwise factor of variances by maximum likelihood.

    With the factor exp(theta . phi), the negative log likelihood of standardised residuals r is convex in theta: the mean of
    (theta . phi + r² exp(-theta . phi)) / 2. A sample counts as one observation on every grid, and so does a group of samples.
    Cross-validation over groups selects the penalty and whether to use the position. A channel has no factor if the gain is not
    significant (see `is_gain`). The curve is then fitted to the remaining residuals in the same way.

    Args:
        parts: Iterates over the calibration samples, some at a time, on the CPU; called three times.
        groups: Group of each sample, numbered from 0; cross-validation holds out whole groups.
        grid: Grid of the samples.
        left_out: Channels whose factor is 1; none by default.

    Returns:
        The factor, scaled such that chi² is 1 in each channel that is not left out; None if no channel gains, there are fewer
        than ten groups, or the grid has a mask or is neither uniform nor a mesh.
    """
    count = len(groups)
    if number_of(groups) < _LEAST or not (is_mesh(grid) or (grid.is_uniform and not grid.is_masked)):
        return None
    initial = _blank(parts, count=count, grid=grid)
    points = some_points(grid, max(1, _VALUES // count), generator=stream(0, "local scale points"))
    features: list[list[Tensor]] = [[] for _ in range(initial.standards.shape[2])]
    squares = []
    for mean, variance, ratios, where in _located(parts, grid):
        read = initial.on(where).reader(mean, variance)
        for columns, feature in zip(features, initial.features(read), strict=True):
            columns.append(feature[..., points].expand(len(mean), -1, -1))
        squares.append(ratios.flatten(2)[..., points].clamp_min(_LEAST_SQUARE))
    fitted = torch.ones(len(initial.units), dtype=torch.bool) if left_out is None else ~left_out
    stacked = torch.stack([torch.cat(columns) for columns in features], -1)
    # Area weights would hide errors at a surface, where cells are small: on meshes, points count equally.
    weights = (grid.mean_weights if grid.is_uniform else grid.observed.to(torch.float64))[..., points]
    weights = (weights / weights.sum(-1, keepdim=True)).expand(count, -1)
    sample = _Sample(features=stacked, squares=torch.cat(squares), weights=weights, groups=groups)
    local, gains = _fitted(initial, sample, fitted)
    local, bent = _bent(local, sample, fitted)
    if not bool((gains | bent).any()):
        return None
    chi2 = torch.zeros(len(initial.units), dtype=torch.float64)
    for mean, variance, ratios, where in _located(parts, grid):
        remaining = ratios / local.on(where)(mean, variance).unflatten(-1, grid.shape)
        chi2 += domain_average(remaining, where).sum(0) / count
    constant = local.coefficients.clone()
    raised = torch.where(gains & ~bent, chi2.log(), 0.0)  # chi² is 1 already in channels without a gain
    constant[:, 0] += raised
    curve, lift = local.curve, torch.where(bent, chi2.log(), 0.0)
    curve = None if curve is None else replace(curve, heights=curve.heights + lift[:, None])
    return replace(local, coefficients=constant, limits=local.limits + raised, curve=curve)


def _located(parts: Callable[[], Iterator[Part]], grid: Grid) -> Iterator[tuple[Tensor, Tensor, Tensor, Grid]]:
    """Yield the parts with the grids of their samples."""
    start = 0
    for mean, variance, squares in parts():
        yield mean, variance, squares, grid.select(slice(start, start + len(mean)))
        start += len(mean)


def _blank(parts: Callable[[], Iterator[Part]], *, count: int, grid: Grid) -> LocalScale:
    """A factor of 1 with the units of features."""
    mean, features = next(parts())[0], POINTWISE + positions(grid)
    zeros = torch.zeros(mean.shape[1], features, dtype=torch.float64)
    slopes, ones = torch.ones(len(zeros), grid.dimension, dtype=torch.float64), torch.ones(len(zeros), dtype=torch.float64)
    standards = torch.stack([zeros, zeros + 1.0, zeros - math.inf, zeros + math.inf])
    coefficients = torch.zeros(len(zeros), features + 1, dtype=torch.float64)
    limits = torch.tensor([[-math.inf], [math.inf]], dtype=torch.float64).expand(2, len(zeros)).clone()
    fit = {"standards": standards, "coefficients": coefficients, "limits": limits, "slopes": slopes, "units": ones}
    local = LocalScale(grid=grid.first, width=_WIDTH, amplitudes=ones, curve=None, **fit)
    squares = [torch.zeros_like(slopes), torch.zeros_like(ones), torch.zeros_like(ones)]
    for mean, variance, _, where in _located(parts, grid):
        read = local.on(where).reader(mean, variance)
        squares[0] += (read.slopes * read.mean_weights[..., None, :]).sum(-1).sum(0)
        squares[1] += (read.sizes * read.mean_weights).sum(-1).sum(0)
        squares[2] += (read.levels * read.mean_weights).sum(-1).sum(0)
    slopes, sizes, levels = ((total / count).sqrt() for total in squares)
    return replace(local, slopes=slopes, amplitudes=sizes, units=levels)


class _Sample(NamedTuple):
    """Data of the fit at some points.

    Attributes:
        features: Features of each sample and channel, not standardised.
        squares: Squared standardised residuals.
        weights: Weights of the points of each sample, with sum 1.
        groups: Group of each sample, numbered from 0.
    """

    features: Float64[Tensor, "n c m k"]
    squares: Float64[Tensor, "n c m"]
    weights: Float64[Tensor, "n m"]
    groups: Int64[Tensor, " n"]


def _fitted(initial: LocalScale, sample: _Sample, fitted: Bool[Tensor, " c"]) -> tuple[LocalScale, Bool[Tensor, " c"]]:
    """Standardise features and fit the coefficients of some channels; also return which channels gain."""
    features = sample.features
    flat = features.movedim(1, 0).flatten(1, 2)
    center, spread = flat.mean(1), flat.std(1, correction=0)
    spread = torch.where(spread > 1e-6, spread, torch.ones_like(spread))
    design = (features - center[:, None]) / spread[:, None]
    span = design.movedim(1, 0).flatten(1, 2)
    coefficients = torch.zeros_like(initial.coefficients)
    candidates = [mean_size(sample.groups) * ridge for ridge in _penalties(design.shape[3])]
    gains = torch.zeros(len(coefficients), dtype=torch.bool)
    for channel in range(len(coefficients)):
        likelihood = _Likelihood(design=design[:, channel], squares=sample.squares[:, channel], weights=sample.weights)
        ridge = likelihood.choose(candidates, groups=sample.groups) if fitted[channel] else None
        if ridge is not None:
            coefficients[channel], gains[channel] = _without_roughening(likelihood, ridge), True
    standards = torch.stack([center, spread, span.amin(1), span.amax(1)])
    totals = coefficients[:, :1] + torch.einsum("cmk,ck->cm", span, coefficients[:, 1:])
    limits = torch.stack([totals.amin(1), totals.amax(1)])
    return replace(initial, standards=standards, coefficients=coefficients, limits=limits), gains


def _without_roughening(likelihood: _Likelihood, ridge: Float64[Tensor, " k"]) -> Float64[Tensor, " k1"]:
    """Coefficients with that of the fine feature at most zero: a positive one loses joint density by rough samples."""
    coefficients = likelihood.minimiser(ridge)
    if not float(coefficients[FINE + 1]) > 0:
        return coefficients
    left_out = torch.arange(len(ridge)) == FINE
    return likelihood.minimiser(torch.where(left_out, math.inf, ridge))


def _penalties(width: int) -> list[Float64[Tensor, " k"]]:
    """Candidate penalties of `width` features: equal for all features, with and without the Fourier modes."""
    is_wave = torch.arange(width) >= POINTWISE
    pairs = itertools.product((is_wave, torch.zeros_like(is_wave)), _RIDGES)
    return [torch.where(left_out, math.inf, ridge).double() for left_out, ridge in pairs]


def _bent(local: LocalScale, sample: _Sample, fitted: Bool[Tensor, " c"]) -> tuple[LocalScale, Bool[Tensor, " c"]]:
    """Fit the curve of some channels to the remaining residuals; also return which channels gain."""
    features = sample.features
    standardised = torch.stack([local.standardised(features[..., index], index) for index in range(features.shape[3])], -1)
    # log h = θ_0 + Σ_k θ_k f_k(x); residuals r² / h remain, and the curve bends log h + log t.
    total = local.coefficients[:, :1] + torch.einsum("ncmk,ck->ncm", standardised, local.coefficients[:, 1:])
    smooth = total - local.coefficients[:, FINE + 1, None] * standardised[..., FINE]
    logs, squares = smooth + features[..., 0] + features[..., 1], sample.squares * torch.exp(-total)
    curves: list[tuple[Tensor, Tensor] | None] = []
    for channel in range(logs.shape[1]):
        knots = knots_of(logs[:, channel].flatten()) if fitted[channel] else None
        if knots is None:
            curves.append(None)
            continue
        likelihood = _Likelihood(design=bends(logs[:, channel], knots), squares=squares[:, channel], weights=sample.weights)
        sizes = [mean_size(sample.groups) * size for size in _BENDING]
        candidates = [torch.full((len(knots) - 1,), size, dtype=torch.float64) for size in sizes]
        ridge = likelihood.choose(candidates, groups=sample.groups)
        slopes = None if ridge is None else likelihood.minimiser(ridge)
        curves.append(None if slopes is None else (knots, slopes[0] + bends(knots, knots) @ slopes[1:]))
    is_bent = torch.tensor([curve is not None for curve in curves])
    if not bool(is_bent.any()):
        return local, is_bent
    count = next(len(curve[0]) for curve in curves if curve is not None)
    flat = torch.arange(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    knots, heights = (torch.stack(parts) for parts in zip(*(curve or flat for curve in curves), strict=True))
    return replace(local, curve=VarianceCurve(knots=knots, heights=heights)), is_bent


@dataclass(frozen=True, eq=False, kw_only=True)
class _Likelihood:
    """Twice the negative log likelihood of one channel's residuals.

    Attributes:
        design: Standardised features, `(n, m, k)`.
        squares: Squared standardised residuals, `(n, m)`.
        weights: Weights of the m points of each sample, with sum 1, `(n, m)`.
    """

    design: Float64[Tensor, "n m k"]
    squares: Float64[Tensor, "n m"]
    weights: Float64[Tensor, "n m"]

    @cached_property
    def rows(self) -> Float64[Tensor, "k1 nm"]:
        """The constant and the features of all residuals."""
        features = self.design.flatten(0, 1)
        return torch.cat([torch.ones(1, len(features), dtype=torch.float64), features.mT])

    def choose(
        self, candidates: Sequence[Float64[Tensor, " k"]], *, groups: Int64[Tensor, " n"]
    ) -> Float64[Tensor, " k"] | None:
        """Penalties selected by cross-validation, or None if the gain over groups is not significant."""
        width = self.design.shape[2]
        every = [torch.full((width,), math.inf, dtype=torch.float64), *candidates]
        scores = torch.zeros(len(every), len(self.design), dtype=torch.float64)
        part = groups % FOLDS
        starts: list[Tensor] = []
        for ridge in every:
            starts.append(self.minimiser(ridge, start=starts[-1] if starts else None))
        for fold in range(FOLDS):
            fitted, held = self._select(part != fold), self._select(part == fold)
            for index, ridge in enumerate(every):
                scores[index, part == fold] = held.values(fitted.minimiser(ridge, start=starts[index]))
        best = int(scores[1:].mean(1).argmin())
        gain = scores[0] - scores[1 + best]
        return candidates[best] if is_gain(group_means(gain, groups)) else None

    def minimiser(self, ridge: Float64[Tensor, " k"], *, start: Float64[Tensor, " k1"] | None = None) -> Float64[Tensor, " k1"]:
        """Coefficients, the constant first, that minimise the penalised sum, by Newton's method with step halving.

        Args:
            ridge: Penalties; a coefficient with an infinite penalty is 0.
            start: Initial coefficients, for example of another penalty; None for a constant factor.
        """
        free = torch.cat([torch.ones(1, dtype=torch.bool), ridge.isfinite()])
        rows = self.rows if bool(free.all()) else self.rows[free]
        squares, weights = self.squares.flatten(), self.weights.flatten()
        penalty = torch.cat([torch.zeros(1, dtype=torch.float64), ridge])[free]
        minimum = torch.zeros(len(rows), dtype=torch.float64)
        minimum[0] = (weights @ squares / weights.sum()).clamp_min(torch.finfo(torch.float64).tiny).log()
        if start is not None:
            minimum = start[free]
        moments, masses = rows @ weights, weights * squares

        def objective(at: Tensor) -> tuple[float, Tensor]:
            """The penalised sum, and the weights of the residuals at these coefficients."""
            # Σ w (θᵀx + q e^-θᵀx) + λ θ²/2, with squared residuals q.
            weighted = masses * torch.exp(-(at @ rows))
            return float(at @ moments + weighted.sum() + 0.5 * penalty @ at.square()), weighted

        value, weighted = objective(minimum)
        for _ in range(_STEPS):
            # Newton: θ <- θ - s H⁻¹ g, with g = Σ w (1 - q e^-θᵀx) x + λ θ and H = Σ w q e^-θᵀx x xᵀ + diag(λ).
            gradient = moments - rows @ weighted + penalty * minimum
            curvature = _gram(rows, weighted) + torch.diag(penalty + 1e-9 * weights.sum())
            step, size = torch.linalg.solve(curvature, gradient), 1.0
            after = objective(minimum - step)
            while size > 1e-6 and not after[0] <= value:
                size *= 0.5
                after = objective(minimum - size * step)
            before = value
            if not after[0] < before:
                break
            minimum, (value, weighted) = minimum - size * step, after
            if before - value <= _GAIN * abs(before):
                break
        coefficients = torch.zeros(len(free), dtype=torch.float64)
        coefficients[free] = minimum
        return coefficients

    def values(self, coefficients: Float64[Tensor, " k1"]) -> Float64[Tensor, " n"]:
        """Mean over the points of each sample, without the penalty."""
        along = coefficients[0] + self.design @ coefficients[1:]
        return ((along + self.squares * torch.exp(-along)) * self.weights).sum(1)

    def _select(self, index: Bool[Tensor, " n"]) -> _Likelihood:
        return replace(self, design=self.design[index], squares=self.squares[index], weights=self.weights[index])


def _gram(rows: Float64[Tensor, "k m"], weights: Float64[Tensor, " m"]) -> Float64[Tensor, "k k"]:
    """Weighted product of rows with their transpose, in blocks that fit the processor's caches."""
    total = rows.new_zeros(len(rows), len(rows))
    for part, weight in zip(rows.split(_PART, dim=1), weights.split(_PART), strict=True):
        total.addmm_(part * weight, part.mT)
    return total
