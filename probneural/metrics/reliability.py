"""Reliability of uncertainty: chi², coverage of intervals and bands, calibration error, PIT."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_instance, check_integer, check_real
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.mixture import MixtureField
from probneural.errors import UnsupportedError
from probneural.metrics.comparison import Comparison, RepeatedDraws, check_comparison
from probneural.randomness import stream, stream_seed

_DRAWS = 512
"""Draws of a quantile of suprema; its coverage at level 0.9 has a standard error of 0.013."""
LEVELS = tuple(step / 20 for step in range(1, 20))
"""Nominal levels .05, .10, ..., .95 of the calibration error."""
_CHUNK_ELEMENTS = 2**19
"""Values per block of draws (4 MiB in float64): larger blocks exceed the cache and are three times slower."""


def chi2(comparison: Comparison) -> Float64[Tensor, "n c"]:
    """Mean over the domain of residual² / predictive variance: 1 if errors are as large as predicted.

    Where the variance is zero, a residual of zero (up to rounding) contributes 0, and any other residual infinity.

    Returns:
        `(n, c)`, dimensionless; above 1 is over-confident.

    Examples:
        >>> from probneural import metrics, fields, distributions
        >>> grid = fields.Grid.uniform((4,))
        >>> u = distributions.EmpiricalField(torch.tensor([-1.0, 1.0]).reshape(2, 1, 1, 1).expand(2, 1, 1, 4), grid=grid)
        >>> chi2(metrics.compare(u, fields.Field(torch.full((1, 1, 4), 2.0), grid))).item()
        4.0
    """
    check_comparison(comparison)
    return comparison.average(comparison.standardise(comparison.residual).square())


def pit(comparison: Comparison) -> Float64[Tensor, "n c *grid"]:
    """The probability integral transform F(y) of every value: uniform on [0, 1] if the marginals are right.

    F is the predictive distribution function: Gaussian, of a mixture, or of the weighted members convolved with the noise. At
    jumps (members without noise, zero variance) it is the middle of the jump. An exact value of variance zero, both up to
    rounding, has the transform 1/2.

    Returns:
        `(n, c, *grid)`, dimensionless. Values of one sample are dependent, so a histogram needs many samples.

    Raises:
        UnsupportedError: If the distribution is neither Gaussian nor empirical nor a mixture.

    Reference:
        Gneiting, Balabdaoui and Raftery (2007), Probabilistic forecasts, calibration and sharpness, section 3.1. Deviation:
        the mid-distribution function at jumps instead of a randomised transform.
    """
    u = check_comparison(comparison).distribution
    if isinstance(u, GaussianField):
        return torch.special.ndtr(comparison.standardise(comparison.residual))
    probabilities = (
        u.cdf(comparison.truth, noise=comparison.noise).detach() if isinstance(u, MixtureField) else _member_pit(comparison)
    )
    settled = comparison.certain & (comparison.residual.abs() <= comparison.rounding)
    return torch.where(settled, torch.full_like(probabilities, 0.5), probabilities)


def _member_pit(comparison: Comparison) -> Float64[Tensor, "n c *grid"]:
    """Probability integral transform of the weighted members, convolved with the noise."""
    remedy = "use an EmpiricalField"
    u = check_instance(comparison.distribution, EmpiricalField, "field", remedy=remedy, error=UnsupportedError)
    total = torch.zeros_like(comparison.truth)
    for weight, member in zip(u.weights, u.samples.detach(), strict=True):
        gap = comparison.truth - member.to(comparison.truth)
        z = torch.where(gap == 0, torch.zeros_like(gap), gap / comparison.noise.sqrt())
        total += weight * torch.special.ndtr(z)
    return total


def pit_histogram(comparison: Comparison, *, bins: int = 20) -> Float64[Tensor, "n c bins"]:
    """Density of the probability integral transform in equal bins of [0, 1]: 1 in all bins if calibrated.

    Args:
        comparison: Prediction and truth.
        bins: Number of bins.

    Returns:
        `(n, c, bins)`, dimensionless, by quadrature over the domain; its mean over bins is 1. Average it over samples.

    Raises:
        ArgumentError: If there are no bins.
        UnsupportedError: If the distribution is neither Gaussian nor empirical nor a mixture.
    """
    check_comparison(comparison)
    bins = check_integer(bins, "bins")
    values = pit(comparison)
    number = (values * bins).long().clamp(max=bins - 1)
    return bins * torch.stack([comparison.average((number == index).to(values)) for index in range(bins)], dim=-1)


def coverage(comparison: Comparison, *, level: float = 0.9) -> Float64[Tensor, "n c"]:
    """Fraction of the domain where the truth lies in the central interval mean ± z sd of the level.

    The interval is that of the Gaussian with the predictive mean and variance, also for empirical fields: a few members do not
    determine a 90 % interval. A mixture uses its own quantiles.

    Args:
        comparison: Prediction and truth.
        level: Nominal coverage, between 0 and 1; dimensionless.

    Returns:
        `(n, c)`, dimensionless; its average should be `level`.

    Raises:
        ArgumentError: If the level is not between 0 and 1.
    """
    z = central_quantile(level)
    if isinstance(check_comparison(comparison).distribution, MixtureField):
        inside = _central_probability(comparison) <= level
    else:
        inside = comparison.standardise(comparison.residual).abs() <= z
    return comparison.average(inside.to(comparison.truth))


def interval_width(comparison: Comparison, *, level: float = 0.9) -> Float64[Tensor, "n c"]:
    """Width 2 z sd of the central intervals of `coverage`, averaged over the domain by quadrature.

    Args:
        comparison: Prediction and truth.
        level: Nominal coverage, between 0 and 1; dimensionless.

    Returns:
        `(n, c)`, in physical units. Of two calibrated predictions the sharper one is better.

    Raises:
        ArgumentError: If the level is not between 0 and 1.
    """
    check_comparison(comparison)
    z, u = central_quantile(level), comparison.distribution
    if isinstance(u, MixtureField):
        return comparison.average(u.interval(level, noise=comparison.noise).width.detach())
    return 2.0 * z * comparison.average(comparison.variance.sqrt())


def calibration_error(comparison: Comparison) -> Float64[Tensor, " c"]:
    """Mean over the levels .05, .10, ..., .95 of |coverage - level|, with coverage over all samples and the domain.

    Returns:
        `(c,)`, dimensionless, between 0 and 1/2. An exact value of variance zero lies in every interval.

    Reference:
        Kuleshov, Fenner and Ermon (2018), Accurate uncertainties for deep learning using calibrated regression (the
        calibration error among its diagnostic tools). Deviation: central instead of one-sided intervals, and absolute instead
        of squared differences, so that the result is a mean error of coverage.
    """
    check_comparison(comparison)
    covered = level_coverages(comparison).mean(1)
    return (covered - torch.tensor(LEVELS, device="cpu").to(covered)[:, None]).abs().mean(0)


def level_coverages(comparison: Comparison) -> Float64[Tensor, "levels n c"]:
    """Fraction of the domain inside the central intervals of the levels .05, .10, ..., .95."""
    if isinstance(comparison.distribution, MixtureField):
        size, thresholds = _central_probability(comparison), LEVELS
    else:
        size, thresholds = comparison.standardise(comparison.residual).abs(), tuple(map(central_quantile, LEVELS))
    return torch.stack([comparison.average((size <= threshold).to(size)) for threshold in thresholds])


def simultaneous_coverage(
    comparison: Comparison, *, level: float = 0.9, draws: int = _DRAWS, seed: int = 0
) -> Float64[Tensor, " n"]:
    """Return 1 for samples inside mean ± q sd at all points, with q the `level` quantile of sup |draw - mean| / sd.

    The supremum is over channels and grid points. Draws are samples of the distribution plus white noise. Each sample has its
    own q, the ⌈(draws + 1) level⌉-th smallest supremum, or the largest.

    Args:
        comparison: Prediction and truth.
        level: Nominal coverage, between 0 and 1; dimensionless.
        draws: Number of draws; the quantile's standard error in coverage is √(level (1 - level) / draws).
        seed: Seed of the draws; samples with latents of equal size share them.

    Returns:
        `(n,)`, 1 inside and 0 outside; its average should be `level`. The supremum of white noise grows with the number of
        points, so with much noise the bands, but not their coverage, depend on the resolution.

    Raises:
        ArgumentError: If the level is not between 0 and 1, there are no draws, or the seed is invalid.

    Reference:
        Montiel Olea and Plagborg-Møller (2019), Simultaneous confidence bands, section 2 (the sup-t band).
    """
    check_comparison(comparison)
    central_quantile(level)
    draws = check_integer(draws, "draws")
    rank = min(draws, math.ceil((draws + 1) * level - 1e-9))
    worst = true_supremum(comparison)
    below, rows, undecided = torch.zeros_like(worst), torch.arange(len(worst), device=worst.device), comparison
    for number, start, count in _batches(comparison, draws):
        drawn = _suprema(undecided, [1.0], count=count, seed=seed, number=number)[0]
        below[rows] += (drawn < worst[rows]).sum(0)
        # Outside if q < worst, so `rank` draws are below it; inside if so many are above that fewer than `rank` can be below.
        is_open = (below[rows] < rank) & (start + count - below[rows] <= draws - rank)
        if not bool(is_open.any()):
            break
        if not bool(is_open.all()):
            rows, undecided = rows[is_open], undecided.select(is_open.nonzero()[:, 0])
    return (below < rank).to(worst)


def true_supremum(comparison: Comparison) -> Float64[Tensor, " n"]:
    """The supremum of |truth - mean| / sd over channels and grid points."""
    return comparison.standardise(comparison.residual).abs().flatten(1).amax(-1)


def drawn_suprema(comparison: Comparison, *, draws: int, seed: int, lead: int | None = None) -> Float64[Tensor, "draws n"]:
    """The suprema of |draw - mean| / sd over channels and grid points, for draws of observations.

    Args:
        comparison: Prediction and truth.
        draws: Number of draws.
        seed: Seed of the draws.
        lead: Lead of a forecast with a shared latent: a draw is then one trajectory at all leads, with independent noise.
    """
    return scaled_suprema(comparison, [1.0], draws=draws, seed=seed, lead=lead)[0]


def scaled_suprema(
    comparison: Comparison, scales: Sequence[float], *, draws: int, seed: int, lead: int | None = None
) -> Float64[Tensor, "k draws n"]:
    """The suprema of `drawn_suprema` for scaled deviations from the mean, with unscaled noise and sd.

    Args:
        comparison: Prediction and truth.
        scales: k factors of deviations, dimensionless.
        draws: Number of draws, the same for all scales.
        seed: Seed of the draws.
        lead: See `drawn_suprema`.
    """
    suprema = [
        _suprema(comparison, scales, count=count, seed=seed, number=number, lead=lead)
        for number, _, count in _batches(comparison, draws)
    ]
    return torch.cat(suprema, dim=1)


def _batches(comparison: Comparison, draws: int) -> Iterator[tuple[int, int, int]]:
    """Number, first draw and size of each batch of draws."""
    size = min(draws, max(1, _CHUNK_ELEMENTS // comparison.truth[0].numel()))
    return ((number, start, min(size, draws - start)) for number, start in enumerate(range(0, draws, size)))


def _suprema(
    comparison: Comparison, scales: Sequence[float], *, count: int, seed: int, number: int, lead: int | None = None
) -> Float64[Tensor, "k count n"]:
    """Suprema of standardised draws, `(k, count, n)`, for one batch of draws, a few samples at a time."""
    samples = max(1, _CHUNK_ELEMENTS // (count * comparison.truth[0].numel()))
    noisy = bool((comparison.noise > 0).any())
    repeated = RepeatedDraws(stream_seed(seed, "sup-quantile draws", number))
    generator = stream(seed, "sup-quantile noise", number, *([] if lead is None else [lead]))
    # All samples share one noise draw: only the distribution of each sample's supremum matters.
    shape = (count, 1, *comparison.truth.shape[1:])
    white = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(comparison.truth) if noisy else None
    suprema = []
    for part, drawn in repeated.pieces(comparison.distribution, count, samples=samples, joint=lead is not None):
        deviation = drawn.to(comparison.truth) - comparison.mean[part]
        noise = None if white is None else comparison.noise[part].sqrt() * white
        by_scale = []
        for scale in scales:
            scaled = deviation * scale if noise is None else torch.add(noise, deviation, alpha=scale)
            standardised = comparison.grid.select(part).fill(comparison.standardise(scaled, index=part))
            by_scale.append(standardised.abs_().flatten(2).amax(-1))
        suprema.append(torch.stack(by_scale))
    return torch.cat(suprema, dim=2)


def _central_probability(comparison: Comparison) -> Float64[Tensor, "n c *grid"]:
    """Level of the central interval with one end at the truth, from 0 to 1, for every value."""
    return (2.0 * pit(comparison) - 1.0).abs()


def central_quantile(level: float) -> float:
    """Quantile z with P(|N(0, 1)| <= z) = level."""
    level = check_real(level, "level", above=0.0, below=1.0)
    return float(torch.special.ndtri(torch.tensor(0.5 * (1.0 + level), dtype=torch.float64, device="cpu")))
