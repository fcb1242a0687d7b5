"""Spread of predictions, and its relation to their errors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_flag, check_integer
from probneural.contexts import undisturbed
from probneural.distributions.base import FieldDistribution
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.mixture import MixtureField
from probneural.errors import DataError
from probneural.metrics.comparison import Comparison, check_comparison, flat_values, flat_weights
from probneural.metrics.reliability import central_quantile

_EXACT = 2**22
"""Values that are kept as they are (32 MiB)."""
_SHIFT = 36
"""Bits of a float64 that a bin leaves out, of 52 of the mantissa: bins are 2^-16 of their values wide."""


def sharpness(comparison: Comparison) -> Float64[Tensor, "n c"]:
    """The predictive standard deviation, averaged over the domain by quadrature.

    It says nothing about errors: of two calibrated predictions, the sharper one is better.

    Returns:
        `(n, c)`, in physical units.

    Reference:
        Gneiting, Balabdaoui and Raftery (2007), Probabilistic forecasts, calibration and sharpness, section 3.4.
    """
    check_comparison(comparison)
    return comparison.average(comparison.variance.sqrt())


def interval_score(comparison: Comparison, *, level: float = 0.9) -> Float64[Tensor, "n c"]:
    """The interval score (u - l) + 2/α (l - y)⁺ + 2/α (y - u)⁺ of the central intervals, with α = 1 - level.

    The interval [l, u] is mean ± z sd, as in [`coverage`][probneural.metrics.reliability.coverage], for empirical fields too; a
    mixture has its own quantiles.
    The score is averaged over the domain by quadrature; smaller is better. It is proper for the pair of quantiles.

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


def spread_skill(comparison: Comparison, *, corrects_size: bool = True) -> Float64[Tensor, " c"]:
    """The ratio of spread, the root of the mean predictive variance, to skill, the RMSE: 1 if errors are as large as stated.

    m equally likely members that are exchangeable with the truth have a ratio of 1 only after their variance (a division by m)
    is multiplied by (m + 1)/(m - 1): m/(m - 1) makes it unbiased, (m + 1)/m adds the mean's own error. Weighted members count
    as 1 / Σ w². Noise is not corrected.

    Args:
        comparison: Prediction and truth.
        corrects_size: Whether to correct empirical fields so; leave it out for members that are not a random sample.

    Returns:
        `(c,)`, dimensionless; below 1 is over-confident. Means are over the functions and, by quadrature, the domain.

    Raises:
        DataError: If the RMSE is zero, or there is one member to correct.

    Reference:
        Fortin et al. (2014), Why should ensemble spread match the RMSE of the ensemble mean?, equation 15.
    """
    check_comparison(comparison)
    square = comparison.average(comparison.residual.square()).mean(0)
    spread_skill_ratio(square, square)  # an RMSE of zero comes first
    factor = size_factor(comparison.distribution) if check_flag(corrects_size, "corrects_size") else 1.0
    return spread_skill_ratio(comparison.average(corrected_variance(comparison, factor)).mean(0), square)


def spread_skill_ratio(variance: Float64[Tensor, " c"], square: Float64[Tensor, " c"]) -> Float64[Tensor, " c"]:
    """The ratio from the mean predictive variance and the mean squared error.

    Raises:
        DataError: If the RMSE is zero.
    """
    if bool((square == 0).any()):
        raise DataError(expected="an RMSE above zero", got="a mean that is exactly right", remedy="read the sharpness")
    return variance.sqrt() / square.sqrt()


def size_factor(u: FieldDistribution) -> float:
    """What the variance of members is multiplied by to be that of the distribution they are a sample of.

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
    """The predictive variance with that of the distribution multiplied by a factor, by default `size_factor`."""
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
    """Error against stated standard deviation, where the latter is small, medium and large.

    Values of all functions are sorted by predictive variance and cut into bins of equal quadrature weight; a value at the end
    of a bin counts in both by parts of its weight.

    Args:
        comparison: Prediction and truth.
        bins: Number of bins, at most the number of values per channel.

    Returns:
        The curve. Nothing is corrected for the number of members.

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


def n_merci(comparison: Comparison, *, level: float = 0.95) -> Float64[Tensor, " c"]:
    """The normalised mean rescaled confidence interval, (λ mean(sd) - MAE) / (Q - MAE).

    λ is the `level` quantile of |residual| / sd, the factor that makes intervals ± λ sd cover that fraction, and Q the `level`
    quantile of |residual|, the width that one constant needs. So 1 is a constant standard deviation, more is worse than that,
    and standard deviations in proportion to the errors reach 0. It judges how the standard deviation is distributed, not its
    size: it does not change if all are multiplied by a number. Lower is better; it is not a proper score.

    Args:
        comparison: Prediction and truth.
        level: Share that intervals are made to cover, between 0 and 1; the rest may be outliers.

    Returns:
        `(c,)`, dimensionless, over all functions and, by quadrature, the domain; infinite if no factor is enough.

    Raises:
        ArgumentError: If the level is not between 0 and 1.
        DataError: If Q is not above the MAE: errors then have no distribution to follow.

    Reference:
        Moukari et al. (2019), n-MeRCI: A new metric to evaluate the correlation between predictive uncertainty and true error.
    """
    check_comparison(comparison)
    central_quantile(level)
    sums = ErrorSums(level=level)
    sums.add(comparison)
    return sums.n_merci()


class ErrorSums:
    """What [`n_merci`][probneural.metrics.spread.n_merci] follows from, of functions that are given some at a time.

    Args:
        level: Fraction that intervals are made to cover.
    """

    def __init__(self, *, level: float = 0.95) -> None:
        self._level = level
        self._count = 0
        self._errors, self._ratios = WeightedQuantiles(), WeightedQuantiles()
        self._sums: Tensor | None = None

    def add(self, comparison: Comparison) -> None:
        """Add the values of some functions."""
        size = comparison.residual.abs()
        weights = flat_weights(comparison)
        self._errors.add(flat_values(comparison, size)[None], weights)
        self._ratios.add(flat_values(comparison, comparison.standardise(size))[None], weights)
        part = torch.stack([comparison.average(size).sum(0), sharpness(comparison).sum(0)])
        self._sums = part if self._sums is None else self._sums + part
        self._count += len(size)

    def n_merci(self) -> Float64[Tensor, " c"]:
        """The score of all functions so far.

        Raises:
            DataError: If errors have no distribution to follow.
        """
        assert self._sums is not None
        mae, std = self._sums / self._count
        constant = self._errors.at(self._level)
        if not bool((constant > mae).all()):
            raise DataError(
                expected=f"a {self._level:g} quantile of the errors above their mean",
                got="errors of one size, or outliers beyond the level",
                remedy="raise the level",
            )
        factor = self._ratios.at(self._level)
        scaled = torch.where(factor.isinf(), factor, factor * std)
        return (scaled - mae) / (constant - mae)


def _bin_means(weight: Float64[Tensor, "c n"], values: Float64[Tensor, "c n"], *, bins: int) -> Float64[Tensor, "c bins"]:
    """Means of sorted values over bins of equal weight: differences of their integral, which is linear within each weight."""
    reached = torch.nn.functional.pad(weight.cumsum(1), (1, 0))
    integral = torch.nn.functional.pad((weight * values).cumsum(1), (1, 0))
    edges = torch.linspace(0.0, 1.0, bins + 1).to(weight) * reached[:, -1:]
    last = torch.searchsorted(reached, edges).clamp(1, weight.shape[1])
    inside = (edges - reached.gather(1, last - 1)) / weight.gather(1, last - 1)
    at_edges = integral.gather(1, last - 1) + inside * (weight * values).gather(1, last - 1)
    return at_edges.diff(dim=1).clamp_min(0.0) * bins


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
        quantiles = []
        for row in values:
            ordered, order = row.sort()
            quantiles.append(_first_at(weights[order], level, values=ordered))
        return torch.stack(quantiles)

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
