"""Model discrepancy: division of a predictive variance into shared, per-sample and white-noise parts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.calibration.predictions import CalibrationPredictions, group_numbers, number_of
from probneural.calibration.variance.local_scale import LocalScale, some_points
from probneural.calibration.variance.stationary_process import LARGEST_RANK, StationaryProcess, Waves
from probneural.distributions.base import FieldDistribution
from probneural.distributions.mixture import gaussian_of
from probneural.distributions.predictors.base import Predictor
from probneural.errors import ArgumentError
from probneural.functionals.integrals import ValuesAt
from probneural.linear_algebra.densities import by_gram
from probneural.pairs import Dataset, evenly_spread_rows
from probneural.randomness import stream
from probneural.registry import stored

_POINTS = 1089
"""Maximum number of points per sample in the joint likelihood: all points, or a random subset.

The count must exceed the number of modes of rho by far: modes can explain any values at fewer points, or at neighbours alone.
"""
_VALUES = 4096
"""Values in the joint likelihood, from samples evenly spread over the calibration set, such as 64 samples of 64 points."""
_FUNCTIONS = 8
"""Minimum number of samples in the joint likelihood."""
_RANKS = (LARGEST_RANK, 128, 32)
"""Candidates of the number of modes of rho, tried in this order while the likelihood grows."""
ROOT_FRACTIONS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Candidates of w. Zero is excluded: samples would share nothing, and conditioning would have no effect on other samples."""
WHITE_FRACTIONS = (1e-4, 5e-4, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
"""Candidates of f. Zero is excluded: a field of finite rank has no density on a fine grid."""
START = (2, 5)
"""Indices of the candidates of w and f at which the search begins."""
_JITTER = 1e-9
"""Fraction of a variance added to it in the likelihood only: a correlation matrix may be singular up to rounding."""
_NARROW = 0.5
"""Latent dimensions per point below which densities use the latent; at 1,089 points the covariance is as fast at 0.6."""


@stored()
@dataclass(frozen=True, eq=False, kw_only=True)
class Decomposition:
    """Parameters w, f and rho of the covariance in `VarianceScale`.

    Args:
        process: Gaussian process with correlation rho; None for a field without discrepancy (w = 1, and b n is noise).
        root_fraction: w, the fraction of the head's variance that samples share, `(c,)`, from 0 to 1.
        white_fraction: f, the fraction of the discrepancy that is white noise, `(c,)`, from 0 to 1.
        variance: Mean variance of the discrepancy over the calibration samples, `(c,)`, in physical units squared.

    Raises:
        ArgumentError: If a fraction is not between 0 and 1, or their count is not that of the channels.
    """

    process: StationaryProcess | None
    root_fraction: Float64[Tensor, " c"]
    white_fraction: Float64[Tensor, " c"]
    variance: Float64[Tensor, " c"]

    def __post_init__(self) -> None:
        """Check the fractions."""
        for fraction in (self.root_fraction, self.white_fraction):
            if fraction.shape != self.variance.shape or not bool(((fraction >= 0) & (fraction <= 1)).all()):
                raise ArgumentError(
                    expected=f"{len(self.variance)} fractions between 0 and 1, one per channel",
                    got=str(fraction.tolist()),
                    remedy="fit them with VarianceScale",
                )


@torch.no_grad()
def decompose(
    predictor: Predictor,
    predicted: CalibrationPredictions,
    *,
    shared: Sequence[SharedCovariance],
    scale: Float64[Tensor, " c"],
    noise: Float64[Tensor, " c"],
    local: LocalScale | None = None,
) -> Decomposition:
    """Fit w, f and rho of the covariance of calibrated fields; see `VarianceScale`.

    Residuals are first divided by the square root of the local scale h. The power spectrum of rho is estimated on one half of
    the samples, and the joint likelihood of the other half selects w, f and the number of modes; both halves take both roles. A
    group, such as the windows of a trajectory, lies in one half. With fewer than four groups, all samples take both roles.

    Args:
        predictor: Predictor to calibrate.
        predicted: Its predictions of the calibration samples, in their order, with the predictor's noise.
        shared: The head's covariances of the samples `likelihood_rows`; see `shared_covariances`.
        scale: a, `(c,)`, dimensionless.
        noise: b n, `(c,)`, in physical units squared.
        local: Local scale h, or None for h = 1.
    """
    grid, count = predicted.pairs.outputs.grid, len(predicted.pairs)
    points, waves = some_points(grid, _POINTS, generator=stream(0, "likelihood points")), Waves(grid.unmasked)
    groups, rows = group_numbers(predicted.pairs), likelihood_rows(predicted.pairs)
    side = groups % 2
    head_noise = predictor.noise.detach().to("cpu", torch.float64)[:, None]
    powers = torch.zeros(3, len(scale), len(waves), dtype=torch.float64)  # of all fields, and of every other one
    examples: list[Example] = []
    start = 0
    for stated, truth in predicted:
        residual = (truth - stated.mean).flatten(2).cpu()
        # Residuals r / √h, standardised by √(a v + b n): their power spectrum is that of rho.
        explained = scale[:, None] * (stated.variance.flatten(2).cpu() - head_noise).clamp_min(0.0)
        total = explained + noise[:, None]
        ratio = torch.ones_like(total)
        if local is not None:
            ratio = local.on(stated.grid)(stated.mean.cpu(), total.unflatten(-1, grid.shape))
        residual = residual / ratio.sqrt()
        standardised = torch.where(total > 0, residual * total.clamp_min(torch.finfo(total.dtype).tiny).rsqrt(), 0.0)
        squares = waves.coefficients(standardised, stated.grid).square()
        halves_of = side[start : start + len(residual)]
        powers += torch.stack([squares.sum(0), squares[halves_of == 0].sum(0), squares[halves_of == 1].sum(0)])
        # Residuals are zero at masked points, so the spectrum is that of the process times the mask. The likelihood omits
        # points of variance zero, so masked points get the variance -noise + noise = 0.
        observed = stated.grid.observed.flatten(-len(grid.shape))
        visible = torch.where(observed[:, None] if stated.grid.is_batch else observed, explained, -noise[:, None])
        for row in rows[(rows >= start) & (rows < start + len(residual))] - start:
            examples.append(
                Example(
                    side=int(halves_of[row]),
                    residual=residual[row][:, points],
                    shared=shared[len(examples)],
                    explained=visible[row][:, points],
                )
            )
        start += len(residual)
    ones = int(side.sum())
    halves = [powers[1] / (count - ones), powers[2] / ones] if number_of(groups) >= 4 else [powers[0] / count] * 2
    most, starts = _RANKS[0], [START] * len(scale)
    highest, ranks = -math.inf, None
    for candidate in _RANKS:
        processes = [waves.process(half, most=candidate) for half in halves]
        if ranks == (ranks := [process.modes.shape[1] for process in processes]):
            continue  # the grid resolves no more modes than the last candidate
        where = grid.points[rows][:, points] if grid.has_points_per_sample else grid.points[points][None]
        roots = [[process.at(sample) for sample in where] for process in processes]
        best, height = search(examples, roots, scale=scale, noise=noise, starts=starts)
        if height <= highest:
            break
        most, starts, highest = candidate, best, height
    fractions = torch.tensor([[ROOT_FRACTIONS[w], WHITE_FRACTIONS[f]] for w, f in starts], dtype=torch.float64).mT
    return Decomposition(
        process=waves.process(powers[0] / count, most=most),
        root_fraction=fractions[0],
        white_fraction=fractions[1],
        variance=torch.zeros_like(scale),
    )


def likelihood_rows(pairs: Dataset) -> Int64[Tensor, " k"]:
    """Sorted rows of the samples in the joint likelihood, evenly spread, since neighbouring samples may be similar."""
    most = max(_FUNCTIONS, _VALUES // pairs.outputs.grid.size)
    return torch.arange(len(pairs), device="cpu")[evenly_spread_rows(len(pairs), most)]


@torch.no_grad()
def shared_covariances(u: FieldDistribution, rows: Int64[Tensor, " k"]) -> list[SharedCovariance]:
    """The head's covariances of some samples, at the points of the likelihood in `decompose`.

    Args:
        u: A prediction of calibration samples.
        rows: Rows of `u` among `likelihood_rows`.

    Raises:
        UnsupportedError: If the field is neither Gaussian nor empirical nor a mixture.
    """
    points = some_points(u.grid, _POINTS, generator=stream(0, "likelihood points"))
    covariances = []
    for index in rows.tolist():
        single = gaussian_of(u[index : index + 1])
        at_points = single if len(points) == u.grid.size else single.apply(ValuesAt(single.grid, points))
        alone = at_points.marginal(0)
        roots = [alone.root] if alone.discrepancy is None else [alone.root, alone.discrepancy]
        dense = torch.cat([root.dense()[0].to("cpu", torch.float64) for root in roots], dim=-1)
        covariances.append(SharedCovariance.of(dense))
    return covariances


@dataclass(frozen=True, eq=False)
class SharedCovariance:
    """The head's covariance of one sample at some points, stored as its root if the root has few columns.

    Args:
        matrix: The root, `(c, p, k)`, or the covariance, `(c, p, p)`.
        is_root: Whether `matrix` is the root.
    """

    matrix: Float64[Tensor, "c p q"]
    is_root: bool

    @classmethod
    def of(cls, root: Float64[Tensor, "c p k"]) -> SharedCovariance:
        """Store the root, or the covariance if that takes less memory."""
        is_narrow = root.shape[2] < _NARROW * root.shape[1]
        return cls(root if is_narrow else root @ root.mT, is_narrow)

    def of_channel(self, channel: int, *, scale: Tensor, points: Tensor) -> Float64[Tensor, "p q"]:
        """Scaled root or covariance of one channel at some of the points."""
        matrix = self.matrix[channel]
        if self.is_root:
            return matrix[points] * scale.sqrt()
        return scale * (matrix if len(points) == len(matrix) else matrix[points][:, points])


@dataclass(frozen=True, eq=False, kw_only=True)
class Example:
    """One sample at some points.

    Args:
        side: Half of the samples to which it belongs, 0 or 1.
        residual: Residual over the square root of the local scale, `(c, p)`.
        shared: The head's covariance.
        explained: The head's variance times a, `(c, p)`.
    """

    side: int
    residual: Float64[Tensor, "c p"]
    shared: SharedCovariance
    explained: Float64[Tensor, "c p"]


def search(
    examples: Sequence[Example],
    waves: Sequence[Sequence[Float64[Tensor, "c p _"]]],
    *,
    scale: Float64[Tensor, " c"],
    noise: Float64[Tensor, " c"],
    starts: Sequence[tuple[int, int]],
) -> tuple[list[tuple[int, int]], float]:
    """Indices of the most likely candidates (w, f) per channel under the process of the other half, and the log likelihood.

    Args:
        examples: Samples in the likelihood.
        waves: Root of the process of each half at their points: one for all samples, or one per sample.
        scale: a.
        noise: b n, in physical units squared.
        starts: Indices at which the search begins, one pair per channel.
    """
    candidates, total = [], 0.0
    for channel, start in enumerate(starts):
        halves = [[_Half(root[channel]) for root in roots] for roots in waves]
        cases = []
        for number, example in enumerate(examples):
            # Points without variance carry no information on w and f.
            points = ((example.explained[channel] + noise[channel]) > 0).nonzero()[:, 0]
            matrix = example.shared.of_channel(channel, scale=scale[channel], points=points)
            roots = halves[1 - example.side]
            half = roots[number % len(roots)]
            half = half if len(points) == len(half.waves) else _Half(half.waves[points])
            residual, explained = example.residual[channel, points], example.explained[channel, points]
            cases.append(_Case(residual, explained, noise[channel], half, matrix, example.shared.is_root))

        def log_density(weight: float, fraction: float, cases: Sequence[_Case] = cases) -> float:
            """Log density of all residuals, up to a constant, for one pair (w, f); -inf if there is no density."""
            densities = [case.log_density(weight, fraction) for case in cases]
            return sum(densities) if all(map(math.isfinite, densities)) else -math.inf

        best, height = most_likely(log_density, start)
        candidates.append(best)
        total += height
    return candidates, total


def most_likely(log_density: Callable[[float, float], float], start: tuple[int, int]) -> tuple[tuple[int, int], float]:
    """Indices of a local maximum over the candidates (w, f) and its log density, by ascent along f and w in turn.

    On 20 heads in one dimension this was always the global maximum over the 72 pairs.
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
    """First local maximum uphill from a start."""
    position = start
    while True:
        highest = max((place for place in (position, position - 1, position + 1) if 0 <= place < count), key=height)
        if highest == position:
            return position
        position = highest


@dataclass(frozen=True, eq=False)
class _Half:
    """Root of a process at some points, `(p, r)`."""

    waves: Float64[Tensor, "p r"]

    @cached_property
    def correlation(self) -> Float64[Tensor, "p p"]:
        """Covariance of the process."""
        return self.waves @ self.waves.mT


@dataclass(frozen=True, eq=False)
class _Case:
    """One channel of one sample: residuals and the parts of their covariance.

    Args:
        residual: Residuals, `(p,)`.
        explained: The head's variance times a.
        noise: b n.
        half: The process of the other half.
        matrix: The head's covariance times a, `(p, p)`, or its root, `(p, k)`.
        is_root: Whether `matrix` is the root.
    """

    residual: Float64[Tensor, " p"]
    explained: Float64[Tensor, " p"]
    noise: Float64[Tensor, ""]
    half: _Half
    matrix: Float64[Tensor, "p q"]
    is_root: bool

    def log_density(self, weight: float, fraction: float) -> float:
        """Log density for one pair (w, f), up to a constant; -inf or NaN if there is no density."""
        # C = w a R Rᵀ + (1 - f) D ρ ρᵀ D + f D², with D² = (1 - w) a v + b n.
        variance = (1.0 - weight) * self.explained + self.noise
        std = ((1.0 - fraction) * variance).sqrt()
        white = fraction * variance + _JITTER * (self.explained + self.noise)
        waves = self.half.waves
        if self.is_root and self.matrix.shape[1] + waves.shape[1] < _NARROW * len(waves):
            return _narrow(torch.cat([self.matrix * math.sqrt(weight), waves * std[:, None]], 1), self.residual, white)
        covariance = (std[:, None] * self.half.correlation).mul_(std).add_(self._shared, alpha=weight)
        covariance.diagonal().add_(white)
        # log p = -|L⁻¹ r|²/2 - log det L, with C = L Lᵀ.
        triangle, failed = torch.linalg.cholesky_ex(covariance, upper=True)  # faster than the lower one
        whitened = torch.linalg.solve_triangular(triangle.mT, self.residual[:, None], upper=False)
        density = float(-0.5 * whitened.square().sum() - triangle.diagonal().log().sum())
        return -math.inf if int(failed) != 0 else density

    @cached_property
    def _shared(self) -> Float64[Tensor, "p p"]:
        return self.matrix @ self.matrix.mT if self.is_root else self.matrix


def _narrow(root: Float64[Tensor, "p q"], residual: Float64[Tensor, " p"], white: Float64[Tensor, " p"]) -> float:
    """Log density under the covariance N + B Bᵀ, from the root B with q columns and the diagonal N of white noise.

    Eigenvalues of its Gram matrix have errors of about 1e-8, which is as accurate as the jitter.
    """
    inverse = white.rsqrt()
    try:
        quadratic, log_determinant = by_gram(root * inverse[:, None], residual * inverse)
    except RuntimeError:  # not positive definite
        return -math.inf
    return float(-0.5 * (quadratic + log_determinant + white.log().sum()))
