"""Spread of predictions, and its relation to their errors: ratio, curve, rank correlation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_integer
from probneural.contexts import undisturbed
from probneural.distributions.base import FieldDistribution
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.mixture import MixtureField
from probneural.errors import DataError
from probneural.metrics.comparison import Comparison, check_comparison, flat_values, flat_weights
from probneural.metrics.reliability import central_quantile
from probneural.randomness import stream, stream_seed

_DRAWS = 16
"""Draws of the attainable values."""


def sharpness(comparison: Comparison) -> Float64[Tensor, "n c"]:
    """Predictive standard deviation, averaged over the domain by quadrature.

    It does not depend on errors: of two calibrated predictions, the sharper one is better.

    Returns:
        `(n, c)`, in physical units.

    Reference:
        Gneiting, Balabdaoui and Raftery (2007), Probabilistic forecasts, calibration and sharpness, section 3.4.
    """
    check_comparison(comparison)
    return comparison.average(comparison.variance.sqrt())


def interval_score(comparison: Comparison, *, level: float = 0.9) -> Float64[Tensor, "n c"]:
    """The interval score (u - l) + 2/α (l - y)⁺ + 2/α (y - u)⁺ of the central intervals, with α = 1 - level.

    The interval [l, u] is that of [`coverage`][probneural.metrics.reliability.coverage]. The score is averaged over the domain
    by quadrature; smaller is better. It is proper for the pair of quantiles.

    Args:
        comparison: Prediction and truth.
        level: Nominal coverage, between 0 and 1; dimensionless.

    Returns:
        `(n, c)`, in physical units.

    Raises:
        ArgumentError: If the level is not between 0 and 1.

    Reference:
        Winkler (1972); Gneiting and Raftery (2007), Strictly proper scoring rules, equation 43.
    """
    check_comparison(comparison)
    half, u = central_quantile(level) * comparison.variance.sqrt(), comparison.distribution
    if isinstance(u, MixtureField):
        lower, upper = (end.detach() for end in u.interval(level, noise=comparison.noise))
        outside = (lower - comparison.truth).clamp(min=0.0) + (comparison.truth - upper).clamp(min=0.0)
        return comparison.average(upper - lower + 2.0 / (1.0 - level) * outside)
    outside = (comparison.residual.abs() - half).clamp(min=0.0)
    return comparison.average(2.0 * half + 2.0 / (1.0 - level) * outside)


def spread_skill(comparison: Comparison) -> Float64[Tensor, " c"]:
    """Ratio of spread, the root mean predictive variance, to skill, the RMSE: 1 if errors are as large as predicted.

    The variance of m members (with division by m) is multiplied by (m + 1)/(m - 1): the factor m/(m - 1) removes the bias,
    (m + 1)/m adds the sampling error of the mean. Members exchangeable with the truth then have a ratio of 1. For weighted
    members m = 1 / Σ w². Noise is not corrected.

    Args:
        comparison: Prediction and truth.

    Returns:
        `(c,)`, dimensionless; below 1 is over-confident. Means are over samples and, by quadrature, the domain.

    Raises:
        DataError: If the RMSE is zero, or there is one member.

    Reference:
        Fortin et al. (2014), Why should ensemble spread match the RMSE of the ensemble mean?, equation 15.
    """
    check_comparison(comparison)
    square = comparison.average(comparison.residual.square()).mean(0)
    spread_skill_ratio(square, square)  # reports an RMSE of zero first
    return spread_skill_ratio(comparison.average(corrected_variance(comparison)).mean(0), square)


def spread_skill_ratio(variance: Float64[Tensor, " c"], square: Float64[Tensor, " c"]) -> Float64[Tensor, " c"]:
    """The ratio from the mean predictive variance and the mean squared error.

    Raises:
        DataError: If the RMSE is zero.
    """
    if bool((square == 0).any()):
        raise DataError(expected="an RMSE above zero", got="a mean without error", remedy="use the sharpness")
    return variance.sqrt() / square.sqrt()


def size_factor(u: FieldDistribution) -> float:
    """Factor from the variance of members to that of the distribution from which they are drawn.

    Raises:
        DataError: If there is one member.
    """
    if not isinstance(u, EmpiricalField):
        return 1.0
    size = 1.0 / float(u.weights.square().sum())
    if size < 1.0 + 1e-9:
        raise DataError(expected="two or more members", got="one", remedy="one member has no spread to correct")
    return (size + 1.0) / (size - 1.0)


def corrected_variance(comparison: Comparison, factor: float | None = None) -> Float64[Tensor, "n c *grid"]:
    """Predictive variance with the distribution's part multiplied by a factor, by default `size_factor`."""
    factor = size_factor(comparison.distribution) if factor is None else factor
    return factor * (comparison.variance - comparison.noise) + comparison.noise


class SpreadSkillCurve(NamedTuple):
    """Spread and skill of values sorted by their standard deviation, in bins of an equal fraction of the domain.

    Attributes:
        spread: Root mean predictive variance, `(c, bins)`, in physical units.
        skill: Root mean squared error, `(c, bins)`, in physical units; equal to the spread if calibrated.
    """

    spread: Float64[Tensor, "c bins"]
    skill: Float64[Tensor, "c bins"]


@undisturbed()
def spread_skill_curve(comparison: Comparison, *, bins: int = 10) -> SpreadSkillCurve:
    """Root mean squared error as a function of the predictive standard deviation.

    Values of all samples are sorted by predictive variance and divided into bins of equal quadrature weight; a value at the end
    of a bin counts in both with a part of its weight.

    Args:
        comparison: Prediction and truth.
        bins: Number of bins, at most the number of values per channel.

    Returns:
        The curve, without correction for the number of members.

    Raises:
        ArgumentError: If `bins` is not between 1 and the number of values per channel.

    Reference:
        Leutbecher and Palmer (2008), Ensemble forecasting, section 4.
    """
    check_comparison(comparison)
    variance, error, mean_weights = (
        flat_values(comparison, comparison.variance),
        flat_values(comparison, comparison.residual.square()),
        flat_weights(comparison) / len(comparison.truth),
    )
    bins = check_integer(bins, "bins", most=variance.shape[1])
    ordered, order = variance.sort(dim=1, stable=True)
    weight = mean_weights.expand_as(variance).gather(1, order)
    spread = _bin_means(weight, ordered, bins=bins)
    return SpreadSkillCurve(spread.sqrt(), _bin_means(weight, error.gather(1, order), bins=bins).sqrt())


def _bin_means(weight: Float64[Tensor, "c n"], values: Float64[Tensor, "c n"], *, bins: int) -> Float64[Tensor, "c bins"]:
    """Means of sorted values over bins of equal weight, by differences of their piecewise linear integral."""
    reached = torch.nn.functional.pad(weight.cumsum(1), (1, 0))
    integral = torch.nn.functional.pad((weight * values).cumsum(1), (1, 0))
    edges = torch.linspace(0.0, 1.0, bins + 1).to(weight) * reached[:, -1:]
    last = torch.searchsorted(reached, edges).clamp(1, weight.shape[1])
    inside = (edges - reached.gather(1, last - 1)) / weight.gather(1, last - 1)
    at_edges = integral.gather(1, last - 1) + inside * (weight * values).gather(1, last - 1)
    return at_edges.diff(dim=1).clamp_min(0.0) * bins


class RankCorrelation(NamedTuple):
    """Spearman's rank correlations of standard deviation and absolute error, and their attainable values.

    Errors are random, so even a right distribution has a correlation below 1: its expectation is the attainable value.

    Attributes:
        across: Correlation between samples, of root mean squares over the domain, `(c,)`, dimensionless.
        within: Correlation between the points of one sample, averaged over samples, `(c,)`, dimensionless.
        attainable_across: `across` for errors drawn from the predicted distribution, `(c,)`.
        attainable_within: `within` for such errors, `(c,)`.
    """

    across: Float64[Tensor, " c"]
    within: Float64[Tensor, " c"]
    attainable_across: Float64[Tensor, " c"]
    attainable_within: Float64[Tensor, " c"]


def rank_correlation(comparison: Comparison, *, draws: int = _DRAWS, seed: int = 0) -> RankCorrelation:
    """Rank correlation of the predictive standard deviation, noise included, with the absolute error.

    A constant standard deviation has correlation 0.

    Args:
        comparison: Prediction and truth.
        draws: Number of draws of all samples for the attainable values.
        seed: Seed of the draws.

    Raises:
        ArgumentError: If there are no draws.
        DataError: If there are fewer than three samples or three points.

    Reference:
        Spearman (1904), The proof and measurement of association between two things, with mean ranks at ties.

    Examples:
        >>> from probneural import distributions, fields, metrics
        >>> grid = fields.Grid.uniform((4,))
        >>> size = torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1) * torch.ones(3, 1, 4)
        >>> u = distributions.EmpiricalField(torch.stack([-size, size]), grid=grid)
        >>> round(rank_correlation(metrics.compare(u, fields.Field(0.5 * size, grid))).across.item(), 9)
        1.0
    """
    check_comparison(comparison)
    sums = RankSums(draws=draws, seed=seed)
    sums.add(comparison)
    return sums.result()


class RankSums:
    """Sums over batches from which rank correlations are computed.

    It stores root mean squares of each sample. If predictions share a latent, the draws of the attainable values are the same
    operators in all batches, with new discrepancies.

    Args:
        draws: Number of draws of all samples for the attainable values.
        seed: Seed of the draws.

    Raises:
        ArgumentError: If there are no draws.
    """

    def __init__(self, *, draws: int = _DRAWS, seed: int = 0) -> None:
        draws = check_integer(draws, "draws")
        self._seed = seed
        self._noise = [stream(seed, "rank correlation noise", number) for number in range(draws)]
        self._count = self._points = 0
        self._totals: list[Tensor] = []  # root mean squares of std, errors and drawn errors, (2 + draws, c, n) each
        self._within: Tensor | None = None  # sums over functions, (1 + draws, c)

    def add(self, comparison: Comparison) -> None:
        """Add a batch of samples."""
        inside = comparison.grid.weights > 0
        self._count, self._points = self._count + len(comparison.truth), int(inside.sum(-1).min())
        if self._points < 3:
            return
        std = comparison.variance.sqrt()
        inside = inside.to(std.device)
        errors = [comparison.residual, *self._drawn(comparison)]
        totals = [comparison.average(values.square()).sqrt().mT for values in (std, *errors)]
        rows_of = [slice(row, row + 1) for row in range(len(inside))] if comparison.grid.is_batch else [slice(None)]
        within = [std.new_zeros(std.shape[1]) for _ in errors]
        for rows, points in zip(rows_of, inside.reshape(len(rows_of), -1), strict=True):
            ranks = _ranks(std[rows].flatten(2)[..., points])
            for number, error in enumerate(errors):
                within[number] = within[number] + _correlation(ranks, _ranks(error[rows].abs().flatten(2)[..., points])).sum(0)
        self._totals.append(torch.stack(totals).cpu())
        part = torch.stack(within)
        self._within = part if self._within is None else self._within + part

    def _drawn(self, comparison: Comparison) -> Iterator[Tensor]:
        """Errors drawn from the predicted distribution."""
        is_noisy = bool((comparison.noise > 0).any())
        for number, generator in enumerate(self._noise):
            seed = stream_seed(self._seed, "rank correlation draws", number)
            drawn = comparison.distribution.rsample((1,), seed=seed)[0].detach()
            error = drawn.to(comparison.truth) - comparison.mean
            if is_noisy:
                white = torch.randn(drawn.shape, generator=generator, dtype=torch.float64, device="cpu")
                error = error + comparison.noise.sqrt() * white.to(error)
            yield error

    def result(self) -> RankCorrelation:
        """Return the correlations of all samples so far.

        Raises:
            DataError: If there are fewer than three samples or three points.
        """
        if min(self._count, self._points) < 3 or self._within is None:
            raise DataError(
                expected="at least three functions and three points",
                got=f"{self._count} and {self._points}",
                remedy="score more functions, or omit rank correlations",
            )
        ranks = [_ranks(total) for total in torch.cat(self._totals, dim=-1)]
        across = torch.stack([_correlation(ranks[0], error_ranks) for error_ranks in ranks[1:]]).to(self._within)
        within = self._within / self._count
        return RankCorrelation(across[0], within[0], across[1:].mean(0), within[1:].mean(0))


def _ranks(values: Tensor) -> Tensor:
    """Ranks along the last axis, averaged at ties, minus their mean."""
    from scipy.stats import rankdata  # loads much of SciPy

    ranks = torch.as_tensor(rankdata(values.cpu().numpy(), axis=-1), dtype=torch.float64, device="cpu")
    return (ranks - ranks.mean(-1, keepdim=True)).to(values.device)


def _correlation(first: Tensor, second: Tensor) -> Tensor:
    """Correlation of ranks along the last axis; 0 if one of the two is constant."""
    norm = first.norm(dim=-1) * second.norm(dim=-1)
    return torch.where(norm > 0, (first * second).sum(-1) / norm.clamp_min(torch.finfo(norm.dtype).tiny), 0.0)
