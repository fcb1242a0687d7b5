"""How a predictive variance is divided: what functions share, what each has of its own, and what has no correlation at all."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.calibration.chunks import CalibrationPredictions, domain_average
from probneural.calibration.held_out import group_numbers, number_of
from probneural.calibration.local_scale import LocalScale
from probneural.calibration.stationary_process import StationaryProcess, Waves
from probneural.distributions.base import FieldDistribution
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.mixture import MixtureField
from probneural.distributions.predictor import Predictor
from probneural.errors import ArgumentError, UnsupportedError
from probneural.functionals import MatrixFunctional
from probneural.grids import Grid
from probneural.pairs import Dataset, evenly_spread_rows
from probneural.randomness import stream

_ROOT_FRACTIONS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Candidates of w. Zero is none: data on some functions would then say nothing about others."""
_WHITE_FRACTIONS = (1e-4, 5e-4, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
"""Candidates of f. Zero is none: a field of finite rank has no density on a fine grid."""
_POINTS = 256
"""Points at which the joint likelihood is taken, at most; chosen at random, so that neighbours are among them."""
_VALUES = 4096
"""Values whose joint likelihood decides: 64 functions of 64 points, 16 of 256, evenly spread over the calibration set."""
_JITTER = 1e-9
"""Fraction of a variance added to it in the likelihood alone, where a correlation matrix may be singular up to rounding."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Decomposition:
    """How much of a variance functions share, and what the rest is: w, f and rho of `VarianceScale`.

    Args:
        process: rho, or None for a field without a discrepancy: w is then 1, and all of b n is noise.
        root_fraction: w, `(c,)`, from 0 to 1.
        white_fraction: f, `(c,)`, from 0 to 1.
        variance: Mean variance of the discrepancy over the calibration fields, `(c,)`, in physical units squared.

    Raises:
        ArgumentError: If a fraction is not between 0 and 1, or there is not one for each channel.
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
    shared: Sequence[Float64[Tensor, "c p p"]],
    scale: Float64[Tensor, " c"],
    noise: Float64[Tensor, " c"],
    measured: Float64[Tensor, " c"],
    local: LocalScale | None = None,
) -> Decomposition:
    """Divide the predictive variance h (a v + b n) of calibrated fields; see `VarianceScale`.

    Residuals are divided by the root of the local scale h, and what is left of their covariance is divided.

    The spectrum of each half of the fields meets the other half, in turn, in the likelihood that chooses w and f. Whole groups
    of fields, such as the windows of a trajectory, are in one half. Fewer than four groups meet themselves.

    Args:
        predictor: What is calibrated.
        predicted: Its predictions of the calibration fields, in their order, its own noise included.
        shared: What the head itself states of the fields at `likelihood_rows`; see `shared_covariances`.
        scale: a, `(c,)`.
        noise: b n, `(c,)`, in physical units squared.
        measured: Measurement noise, the part of it that stays outside of the field.
        local: h, or None where it is 1.
    """
    grid, count = predicted.pairs.outputs.grid, len(predicted.pairs)
    points, waves = _points(grid), Waves(grid)
    groups, rows = group_numbers(predicted.pairs), likelihood_rows(predicted.pairs)
    side = groups % 2
    head_noise = predictor.noise.detach().to("cpu", torch.float64)[:, None]
    powers = torch.zeros(3, len(scale), len(waves), dtype=torch.float64)  # of all fields, and of every other one
    mean_explained, mean_factor = torch.zeros_like(scale), torch.zeros_like(scale)
    factor = None if local is None else local.on(grid)
    examples: list[tuple[Tensor, Tensor]] = []  # residual and explained variance at points
    start = 0
    for stated, truth in predicted:
        residual = (truth - stated.mean).flatten(2).cpu()
        explained = scale[:, None] * (stated.variance.flatten(2).cpu() - head_noise).clamp_min(0.0)
        total = explained + noise[:, None]
        ratio = torch.ones_like(total) if factor is None else factor(stated.mean.cpu(), total.unflatten(-1, grid.shape))
        residual = residual / ratio.sqrt()
        standardised = torch.where(total > 0, residual * total.clamp_min(torch.finfo(total.dtype).tiny).rsqrt(), 0.0)
        squares = waves.powers(standardised)
        here = side[start : start + len(residual)]
        powers += torch.stack([squares.sum(0), squares[here == 0].sum(0), squares[here == 1].sum(0)])
        mean_explained += domain_average((ratio * explained).unflatten(-1, grid.shape), grid).sum(0) / count
        mean_factor += domain_average(ratio.unflatten(-1, grid.shape), grid).sum(0) / count
        some = rows[(rows >= start) & (rows < start + len(residual))] - start
        examples += zip(residual[some][..., points], explained[some][..., points], strict=True)
        start += len(residual)
    ones = int(side.sum())
    halves = [powers[1] / (count - ones), powers[2] / ones] if number_of(groups) >= 4 else [powers[0] / count] * 2
    correlations = [root @ root.mT for root in (waves.process(half).evaluate(grid)[:, points] for half in halves)]
    candidates = list(itertools.product(_ROOT_FRACTIONS, _WHITE_FRACTIONS))
    fractions = torch.ones(2, len(scale), dtype=torch.float64)
    for channel in range(len(scale)):
        scores = torch.zeros(len(candidates), dtype=torch.float64)
        for row, gram, (residual, explained) in zip(rows.tolist(), shared, examples, strict=True):
            correlation = correlations[1 - int(side[row])][channel]
            parts = (scale[channel] * gram[channel], explained[channel], correlation)
            scores += _log_densities(residual[channel], parts, noise[channel], candidates)
        fractions[:, channel] = torch.tensor(candidates[int(scores.argmax())], dtype=torch.float64)
    return Decomposition(
        process=waves.process(powers[0] / count),
        root_fraction=fractions[0],
        white_fraction=fractions[1],
        variance=((1.0 - fractions[0]) * mean_explained + mean_factor * noise - measured).clamp_min(0.0),
    )


def likelihood_rows(pairs: Dataset) -> Int64[Tensor, " k"]:
    """The functions whose joint likelihood decides, in their order: spread over all, for neighbours may be alike."""
    most = max(1, _VALUES // len(_points(pairs.outputs.grid)))
    return torch.arange(len(pairs), device="cpu")[evenly_spread_rows(len(pairs), most)]


def _points(grid: Grid) -> Tensor:
    """Some points of a grid, in their order."""
    if grid.size <= _POINTS:
        return torch.arange(grid.size)
    return torch.randperm(grid.size, generator=stream(0, "likelihood points"))[:_POINTS].sort().values


def gaussian_of(u: FieldDistribution) -> GaussianField:
    """The Gaussian field that a prediction is, or that has the moments of its draws.

    Raises:
        UnsupportedError: If the field is neither Gaussian nor empirical nor a mixture.
    """
    matched = u.moment_matched() if isinstance(u, EmpiricalField | MixtureField) else u
    if not isinstance(matched, GaussianField):
        raise UnsupportedError(
            expected="a predictor of Gaussian or empirical fields",
            got=type(u).__name__,
            remedy="wrap its samples as an EmpiricalField",
        )
    return matched


@torch.no_grad()
def shared_covariances(u: FieldDistribution, rows: Int64[Tensor, " k"]) -> list[Float64[Tensor, "c p p"]]:
    """Covariance that a head itself states for some functions, at the points where `decompose` takes likelihoods.

    Args:
        u: A prediction of calibration fields.
        rows: Which of them, those among `likelihood_rows`.

    Raises:
        UnsupportedError: If the field is neither Gaussian nor empirical nor a mixture.
    """
    points = _points(u.grid)
    chosen = torch.zeros(len(points), u.grid.size, dtype=torch.float64)
    chosen[torch.arange(len(points)), points] = 1.0
    covariances = []
    for index in rows.tolist():
        single = gaussian_of(u[index : index + 1])
        at_points = single if len(points) == u.grid.size else single.apply(MatrixFunctional(u.grid, chosen))
        alone = at_points.marginal(0)
        roots = [alone.root] if alone.discrepancy is None else [alone.root, alone.discrepancy]
        rows = torch.cat([root.dense()[0].to("cpu", torch.float64) for root in roots], dim=-1)
        covariances.append(rows @ rows.mT)
    return covariances


def _log_densities(
    residual: Tensor, parts: tuple[Tensor, Tensor, Tensor], noise: Tensor, candidates: Sequence[tuple[float, float]]
) -> Tensor:
    """Log densities of one function's residual, up to a constant, for every pair (w, f); -inf where there is none."""
    gram, explained, correlation = parts
    found = []
    for weight, some in itertools.groupby(candidates, key=operator.itemgetter(0)):  # few matrices at a time: they stay in cache
        fraction = torch.tensor([fraction for _, fraction in some], dtype=torch.float64)[:, None]
        std = ((1.0 - weight) * explained + (1.0 - fraction) * noise).sqrt()
        covariance = (std[:, :, None] * correlation).mul_(std[:, None, :]).add_(weight * gram)
        covariance.diagonal(dim1=1, dim2=2).add_(fraction * noise + _JITTER * (explained + noise))
        triangle, failed = torch.linalg.cholesky_ex(covariance)
        whitened = torch.linalg.solve_triangular(triangle, residual.expand(len(covariance), -1)[..., None], upper=False)
        density = -0.5 * whitened.square().sum((1, 2)) - triangle.diagonal(dim1=1, dim2=2).log().sum(1)
        found.append(torch.where((failed == 0) & density.isfinite(), density, -torch.inf))
    return torch.cat(found)
