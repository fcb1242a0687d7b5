"""Division of a predictive variance: shared by samples, each sample's own, and white noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.calibration.chunks import CalibrationPredictions
from probneural.calibration.decomposition_search import (
    ROOT_FRACTIONS,
    START,
    WHITE_FRACTIONS,
    Example,
    SharedCovariance,
    search,
)
from probneural.calibration.held_out import group_numbers, number_of
from probneural.calibration.local_scale import LocalScale
from probneural.calibration.stationary_process import LARGEST_RANK, StationaryProcess, Waves
from probneural.distributions.base import FieldDistribution
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.mixture import MixtureField
from probneural.distributions.predictor import Predictor
from probneural.errors import ArgumentError, UnsupportedError
from probneural.functionals.integrals import ValuesAt
from probneural.grids import Grid
from probneural.pairs import Dataset, evenly_spread_rows
from probneural.randomness import stream
from probneural.registry import stored

_POINTS = 1089
"""Points of one function at which the joint likelihood is taken, at most: all, or some at random.

They are far more than rho has waves, which explain whatever happens at fewer points, or at neighbours alone.
"""
_VALUES = 4096
"""Values whose joint likelihood decides, of functions evenly spread over the calibration set: 64 of 64 points, ..."""
_FUNCTIONS = 8
"""... and at least so many functions."""
_RANKS = (LARGEST_RANK, 128, 32)
"""Candidates of the number of waves of rho; fewer are tried as long as they are more likely."""


@stored()
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
    shared: Sequence[SharedCovariance],
    scale: Float64[Tensor, " c"],
    noise: Float64[Tensor, " c"],
    local: LocalScale | None = None,
) -> Decomposition:
    """Divide the predictive variance h (a v + b n) of calibrated fields; see `VarianceScale`.

    Residuals are divided by the root of the local scale h, and what is left of their covariance is divided.

    The spectrum of each half of the fields meets the other half, in turn, in the likelihood that chooses w and f. Whole groups
    of fields, such as the windows of a trajectory, are in one half. Fewer than four groups meet themselves. So is the number of
    waves chosen.

    Args:
        predictor: What is calibrated.
        predicted: Its predictions of the calibration fields, in their order, its own noise included.
        shared: What the head itself states of the fields at `likelihood_rows`; see `shared_covariances`.
        scale: a, `(c,)`.
        noise: b n, `(c,)`, in physical units squared.
        local: h, or None where it is 1.
    """
    grid, count = predicted.pairs.outputs.grid, len(predicted.pairs)
    points, waves = _points(grid), Waves(grid.unmasked)
    groups, rows = group_numbers(predicted.pairs), likelihood_rows(predicted.pairs)
    side = groups % 2
    head_noise = predictor.noise.detach().to("cpu", torch.float64)[:, None]
    powers = torch.zeros(3, len(scale), len(waves), dtype=torch.float64)  # of all fields, and of every other one
    factor = None if local is None else local.on(grid)
    examples: list[Example] = []
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
        # Residuals are zero at masked points, so the spectrum is that of the process times the mask. In likelihoods, masked
        # points are left out as those are where nothing is uncertain: the sum with the noise is zero.
        observed = stated.grid.observed.flatten(-len(grid.shape))
        seen = torch.where(observed[:, None] if stated.grid.is_batch else observed, explained, -noise[:, None])
        for row in rows[(rows >= start) & (rows < start + len(residual))] - start:
            examples.append(
                Example(
                    side=int(here[row]),
                    residual=residual[row][:, points],
                    shared=shared[len(examples)],
                    explained=seen[row][:, points],
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
            continue  # there are no more waves than that
        roots = [process.at(grid.points[points]) for process in processes]
        found, height = search(examples, roots, scale=scale, noise=noise, starts=starts)
        if height <= highest:
            break
        most, starts, highest = candidate, found, height
    fractions = torch.tensor([[ROOT_FRACTIONS[w], WHITE_FRACTIONS[f]] for w, f in starts], dtype=torch.float64).mT
    return Decomposition(
        process=waves.process(powers[0] / count, most=most),
        root_fraction=fractions[0],
        white_fraction=fractions[1],
        variance=torch.zeros_like(scale),
    )


def likelihood_rows(pairs: Dataset) -> Int64[Tensor, " k"]:
    """The functions whose joint likelihood decides, in their order: spread over all, for neighbours may be alike."""
    most = max(_FUNCTIONS, _VALUES // pairs.outputs.grid.size)
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
def shared_covariances(u: FieldDistribution, rows: Int64[Tensor, " k"]) -> list[SharedCovariance]:
    """Covariance that a head itself states for some functions, at the points where `decompose` takes likelihoods.

    Args:
        u: A prediction of calibration fields.
        rows: Which of them, those among `likelihood_rows`.

    Raises:
        UnsupportedError: If the field is neither Gaussian nor empirical nor a mixture.
    """
    points = _points(u.grid)
    covariances = []
    for index in rows.tolist():
        single = gaussian_of(u[index : index + 1])
        at_points = single if len(points) == u.grid.size else single.apply(ValuesAt(u.grid, points))
        alone = at_points.marginal(0)
        roots = [alone.root] if alone.discrepancy is None else [alone.root, alone.discrepancy]
        dense = torch.cat([root.dense()[0].to("cpu", torch.float64) for root in roots], dim=-1)
        covariances.append(SharedCovariance.of(dense))
    return covariances
