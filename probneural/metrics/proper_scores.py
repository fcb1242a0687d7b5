"""Proper scores of distributions: pointwise CRPS and likelihood, energy score and joint likelihood."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_flag, check_instance, check_integer
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.mixture import MixtureField
from probneural.distributions.roots.base import square_root
from probneural.errors import ArgumentError, DataError, UnsupportedError
from probneural.functionals.integrals import ValuesAt
from probneural.metrics.comparison import Comparison, check_comparison
from probneural.metrics.member_pool import ObservedDraws
from probneural.randomness import stream, stream_seed

_CHUNK_ELEMENTS = 2**20
"""Entries (members times points) per block."""


def crps(comparison: Comparison, *, is_fair: bool = False) -> Float64[Tensor, "n c"]:
    """The continuous ranked probability score ∫ (F(z) - 1[y <= z])² dz, averaged over the domain by quadrature.

    F is the distribution function of the predicted *observation* at a point: for a Gaussian field, the Gaussian with its
    variance plus the noise; for an empirical field, the weighted members convolved with the noise; for a mixture, the mixture
    of Gaussians, in closed form. Smaller is better. The score is pointwise, so it ignores correlations.

    Args:
        comparison: Prediction and truth.
        is_fair: Whether the members are a sample of the scored distribution, as in a forecast, instead of that distribution.
            The expected fair score does not depend on the number of members.

    Returns:
        `(n, c)`, in physical units; the absolute error where the predictive variance is zero. A fair score can be negative.

    Raises:
        UnsupportedError: If the distribution is neither Gaussian nor empirical nor a mixture.
        DataError: If `is_fair` and there is one member.

    Reference:
        Gneiting and Raftery (2007), Strictly proper scoring rules, section 4.2; Grimit et al. (2006), equation 5; Ferro
        (2014), Fair scores for ensemble forecasts, section 4.
    """
    check_comparison(comparison)
    check_flag(is_fair, "is_fair")
    u = comparison.distribution
    if isinstance(u, EmpiricalField):
        noise = comparison.noise if bool((comparison.noise > 0).any()) else None
        pointwise = mixture_crps(u.samples.detach(), comparison.truth, weights=u.weights, variance=noise, is_fair=is_fair)
    elif isinstance(u, MixtureField):
        truth = comparison.truth
        means = torch.stack([mean.detach().to(truth) for mean in u._component_means()])
        variances = torch.stack([variance.detach().to(truth) + comparison.noise for variance in u._component_variances()])
        shares = u.pointwise_weights.to(truth).expand_as(means)
        pointwise = gaussian_mixture_crps(means, truth, variances=variances, weights=shares)
    else:
        check_instance(u, GaussianField, "field", remedy="score an EmpiricalField", error=UnsupportedError)
        pointwise = gaussian_crps(comparison.residual, comparison.variance)
    return comparison.average(pointwise)


def gaussian_crps(residual: Float[Tensor, "*points"], variance: Float[Tensor, "*points"]) -> Float[Tensor, "*points"]:
    """CRPS of a Gaussian, s (z (2 Φ(z) - 1) + 2 φ(z) - 1/√π) with z = residual / s; differentiable.

    Args:
        residual: Truth minus mean, in physical units.
        variance: s², in physical units squared; where it is zero, the score is |residual|.

    Returns:
        The pointwise score, in physical units.

    Reference:
        Gneiting et al. (2005), Calibrated probabilistic forecasting using ensemble model output statistics, equation 5.

    Examples:
        >>> gaussian_crps(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)).item()  # (√2 - 1)/√π
        0.2336...
    """
    return _mean_absolute(residual, variance) - square_root(variance) / math.sqrt(math.pi)


def gaussian_mixture_crps(
    means: Float64[Tensor, "m *points"],
    truth: Float64[Tensor, "*points"],
    *,
    variances: Float64[Tensor, "m *points"],
    weights: Float64[Tensor, "m *points"],
) -> Float64[Tensor, "*points"]:
    """CRPS of a mixture of Gaussians, in closed form.

    With A(μ, s²) = E|N(μ, s²)|, it is Σ_i w_i A(y - μ_i, s_i²) - 1/2 Σ_i Σ_j w_i w_j A(μ_i - μ_j, s_i² + s_j²).

    Args:
        means: μ_i, `(m, ...)`, in physical units.
        truth: y, `(...)`, in physical units.
        variances: s_i², `(m, ...)`, in physical units squared, zeros allowed.
        weights: w_i, `(m, ...)`, dimensionless, with sum 1.

    Returns:
        The pointwise score, in physical units.

    Reference:
        Grimit et al. (2006), The continuous ranked probability score for circular variables, equation 5.

    Examples:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> gaussian_mixture_crps(0 * one, 0 * one[0], variances=one, weights=one).item()  # (√2 - 1)/√π
        0.2336...
    """
    score = (weights * _mean_absolute(truth - means, variances)).sum(0)
    for index in range(len(means)):
        spread = _mean_absolute(means[index:] - means[index], variances[index:] + variances[index])
        pairs = weights[index:] * spread
        score = score - weights[index] * (pairs.sum(0) - 0.5 * pairs[0])
    return score


def mixture_crps(
    samples: Float[Tensor, "s *points"],
    truth: Float[Tensor, "*points"],
    *,
    weights: Float[Tensor, " s"] | None = None,
    variance: Float[Tensor, "*points"] | None = None,
    is_fair: bool = False,
) -> Float64[Tensor, "*points"]:
    """CRPS of weighted members x_i, convolved with a Gaussian of variance s².

    With A(μ, s²) = E|N(μ, s²)|, it is Σ_i w_i A(y - x_i, s²) - 1/2 Σ_i Σ_j w_i w_j A(x_i - x_j, 2 s²). For s = 0 the double sum
    is a single sum over the sorted members, O(s log s) per point for s members; else it takes O(s²) time and O(s) memory.

    The fair score is the unbiased estimate of the score of the distribution that members are drawn from: its double sum omits
    i = j, and is divided by 1 - Σ w².

    Args:
        samples: Members, `(s, ...)`, in physical units.
        truth: Observed values, `(...)`, in physical units.
        weights: Weights of the members with sum 1, `(s,)`, dimensionless; equal by default.
        variance: s², `(...)`, in physical units squared, zeros allowed; zero by default.
        is_fair: Whether to compute the fair score.

    Returns:
        The pointwise score, in physical units, float64.

    Raises:
        DataError: If `is_fair` and there is one member.

    Reference:
        Grimit et al. (2006), The continuous ranked probability score for circular variables, equation 5; for s = 0, the exact
        score of the discrete distribution. Fair score: Ferro (2014), Fair scores for ensemble forecasts, section 4.

    Examples:
        >>> members, truth = torch.tensor([0.0, 1.0]), torch.tensor(0.5)
        >>> mixture_crps(members, truth).item(), mixture_crps(members, truth, is_fair=True).item()
        (0.25, 0.0)
    """
    count = len(samples)
    mass = truth.new_full((count,), 1.0 / count, dtype=torch.float64) if weights is None else weights
    mass = mass.to(samples.device, torch.float64)[:, None]
    pairs = fair_factor(mass[:, 0]) if is_fair else 1.0
    members, observed = samples.reshape(count, -1), truth.reshape(-1)
    blur = None if variance is None else variance.reshape(-1)
    step = max(1, _CHUNK_ELEMENTS // count)
    pieces = []
    for start in range(0, observed.shape[0], step):
        part = slice(start, start + step)
        offsets = members[:, part].to(torch.float64) - observed[part].to(samples.device, torch.float64)
        if blur is None:
            pieces.append(_sorted(offsets, mass, pairs))
        else:
            pieces.append(_blurred(offsets, mass, blur[part].to(offsets), pairs=pairs if is_fair else None))
    return torch.cat(pieces).reshape(truth.shape) if pieces else truth.to(torch.float64)


def fair_factor(weights: Float64[Tensor, " s"]) -> float:
    """Factor from a weighted mean over all pairs of members, with value 0 for i = j, to the mean over distinct pairs.

    Raises:
        DataError: If there is one member.
    """
    distinct = 1.0 - float(weights.square().sum())
    if distinct < 1e-9:
        raise DataError(expected="two or more members", got="one", remedy="one member has no fair score")
    return 1.0 / distinct


def _sorted(offsets: Tensor, mass: Tensor, pairs: float) -> Tensor:
    """Σ w |d| - pairs Σ_i w_i d_(i) (2 W_i - w_i - 1), with d = x - y sorted and W the cumulative weights."""
    ordered, order = offsets.sort(0)
    weights = mass.expand_as(offsets).gather(0, order)
    rank = 2.0 * weights.cumsum(0) - weights - 1.0
    return (weights * (ordered.abs() - pairs * ordered * rank)).sum(0)


def _blurred(offsets: Tensor, mass: Tensor, variance: Tensor, *, pairs: float | None) -> Tensor:
    """The double sum, one member against all later ones at a time; the diagonal is A(0, 2 s²) = 2 s/√π.

    A fair score omits the diagonal and multiplies the rest by `pairs`.
    """
    score = (mass * _mean_absolute(offsets, variance.expand_as(offsets))).sum(0)
    if pairs is None:
        score = score - mass.square().sum() * square_root(variance) / math.sqrt(math.pi)
    for index in range(offsets.shape[0] - 1):
        gaps = offsets[index + 1 :] - offsets[index]
        spread = (mass[index + 1 :] * _mean_absolute(gaps, (2.0 * variance).expand_as(gaps))).sum(0)
        score = score - (pairs or 1.0) * mass[index] * spread
    return score


def _mean_absolute(location: Float[Tensor, "*points"], variance: Float[Tensor, "*points"]) -> Float[Tensor, "*points"]:
    """A(μ, s²) = E|N(μ, s²)| = 2 s φ(μ/s) + μ (2 Φ(μ/s) - 1), and |μ| at s = 0; in the unit of μ."""
    safe = torch.where(variance > 0, variance, torch.ones_like(variance)).sqrt()
    z = location / safe
    spread = safe * math.sqrt(2.0 / math.pi) * torch.exp(-0.5 * z.square()) + location * torch.erf(z / math.sqrt(2.0))
    return torch.where(variance > 0, spread, location.abs())


_DRAWS = 128
"""Draws of a Monte Carlo energy score."""


def energy_score(
    comparison: Comparison, *, draws: int = _DRAWS, seed: int = 0, is_fair: bool = False
) -> Float64[Tensor, "n c"]:
    """The energy score E‖X - y‖ - 1/2 E‖X - X'‖ of output functions, in the root-mean-square norm of the domain.

    ‖f‖² is the average of f² over the domain by quadrature, so for a field that is constant in space the score is its CRPS.
    Unlike the CRPS it depends on correlations. Smaller is better; it is strictly proper.

    For an empirical field without noise it is exact, over all pairs of members. Otherwise independent draws X_1, ..., X_m of
    the *observation* give the unbiased estimate 1/m Σ ‖X_i - y‖ - 1/(2 m (m - 1)) Σ_{i≠j} ‖X_i - X_j‖. Noise is white, so with
    much noise the score depends on the resolution.

    Args:
        comparison: Prediction and truth.
        draws: Number m of draws.
        seed: Seed of the draws; samples with latents of equal size share them.
        is_fair: Whether the members are such draws from the scored distribution, instead of that distribution. The expected
            fair score does not depend on the number of members.

    Returns:
        `(n, c)`, in physical units. An estimate can be negative.

    Raises:
        ArgumentError: If there are fewer than two draws, or the seed is invalid.
        DataError: If `is_fair` and there is one member.

    Reference:
        Gneiting and Raftery (2007), Strictly proper scoring rules, equation 21, with β = 1; Gneiting et al. (2008), Assessing
        probabilistic forecasts of multivariate quantities, equation 7. Deviation: the norm is divided by √volume.
    """
    check_comparison(comparison)
    draws = check_integer(draws, "draws", least=2)
    is_fair = check_flag(is_fair, "is_fair")
    root = comparison.grid.sample_weights.sqrt().to(comparison.truth)
    observed = ObservedDraws(
        comparison,
        draws=draws,
        seed=stream_seed(seed, "energy score draws"),
        noise=stream(seed, "energy score noise"),
        takes_members=is_fair,
        width=comparison.truth[0].numel(),
    )
    weights = observed.weights
    factor = fair_factor(weights) if is_fair or not observed.are_members else 1.0
    scores = []
    start = 0
    for drawn, truth in observed:
        weight = root[start : start + len(truth), :, None] if comparison.grid.is_batch else root
        start += len(truth)
        offsets = (drawn - truth).flatten(3).movedim(0, 2) * weight  # (b, c, m, p)
        pairs = _distances(offsets, may_be_equal=observed.are_members)
        spread = factor * torch.einsum("i,bcij,j->bc", weights, pairs, weights)
        scores.append(offsets.square().sum(-1).sqrt() @ weights - 0.5 * spread)
    return torch.cat(scores)


def _distances(points: Float64[Tensor, "b c m p"], *, may_be_equal: bool) -> Float64[Tensor, "b c m m"]:
    """Distances of all pairs; if none are equal, from the Gram matrix, in a tenth of the time."""
    if may_be_equal:
        return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    # |x - y|² = |x|² + |y|² - 2 x·y, with x and y relative to the mean of all
    centred = points - points.mean(2, keepdim=True)
    gram = centred @ centred.mT
    squares = gram.diagonal(dim1=-2, dim2=-1)
    return (squares[..., None] + squares[..., None, :] - 2.0 * gram).clamp_min_(0.0).sqrt_()


def nll(comparison: Comparison) -> Float64[Tensor, "n c"]:
    """Negative log density of each value under the Gaussian of the same mean and predictive variance.

    It is averaged over the domain by quadrature. An empirical field is moment-matched at each point; a mixture uses its own
    density.

    Returns:
        `(n, c)`, in nats per value; lower is better. A density has the unit 1 / physical unit, so the score depends on units.

    Raises:
        ArgumentError: If the predictive variance is zero somewhere, up to rounding.

    Reference:
        Gneiting and Raftery (2007), Strictly proper scoring rules, section 4.1 (the logarithmic score). Moment matching of
        ensembles: Lakshminarayanan, Pritzel and Blundell (2017), section 2.4.
    """
    check_comparison(comparison)
    _check_density(comparison)
    u = comparison.distribution
    if isinstance(u, MixtureField):
        return comparison.average(-u.log_prob(comparison.truth, noise=comparison.noise, joint=False).detach())
    return comparison.average(gaussian_nll(comparison.residual, comparison.variance))


def joint_nll(comparison: Comparison) -> Float64[Tensor, " n"]:
    """Joint negative log density of all channels and points of each sample, divided by the number of values.

    Unlike the marginal score it depends on correlations. It counts grid points, so compare it at one resolution only. An
    empirical field is moment-matched to a Gaussian field.

    Returns:
        `(n,)`, in nats per value.

    Raises:
        ArgumentError: If the variance of a value, up to rounding, or of a direction is zero: without noise, a field of low rank
            has no density.
        UnsupportedError: If the distribution is neither Gaussian nor empirical nor a mixture.

    Reference:
        Gneiting and Raftery (2007), Strictly proper scoring rules, section 4.1; Rasmussen and Williams (2006), Gaussian
        Processes for Machine Learning, equation 2.30.
    """
    check_comparison(comparison)
    _check_density(comparison)
    u = comparison.distribution
    field = u.moment_matched() if isinstance(u, EmpiricalField) else u
    if not isinstance(field, MixtureField):
        field = check_instance(field, GaussianField, "field", remedy="use the marginal score", error=UnsupportedError)
    if comparison.grid.is_masked and not field.grid.is_masked:
        return _observed_nll(comparison, field)
    points = comparison.grid.observed.flatten(-len(comparison.grid.shape)).sum(-1)
    values_each = (comparison.truth.shape[1] * points).to(comparison.truth)
    return -field.log_prob(comparison.truth, noise=comparison.noise).detach() / values_each


def _observed_nll(comparison: Comparison, field: GaussianField | MixtureField) -> Float64[Tensor, " n"]:
    """Joint negative log density per value at points that are not masked, one sample at a time."""
    grid = comparison.grid
    rows = grid.observed.flatten(-len(grid.shape)).expand(len(comparison.truth), -1)
    scores = []
    for number, observed in enumerate(rows):
        points = observed.nonzero()[:, 0]
        values_at = ValuesAt(field.grid, points.to(comparison.truth.device))
        truth, noise = (values_at(part[number : number + 1]) for part in (comparison.truth, comparison.noise))
        scores.append(-field.marginal(number).apply(values_at).log_prob(truth, noise=noise).detach() / truth.numel())
    return torch.cat(scores)


def _check_density(comparison: Comparison) -> None:
    none = int(comparison.certain.sum())
    if none:
        expected, remedy = "a positive predictive variance at every value", "pass the observation variance as noise > 0"
        raise ArgumentError(expected=expected, got=f"none at {none} of {comparison.truth.numel()} values", remedy=remedy)


def gaussian_nll(residual: Float[Tensor, "*points"], variance: Float[Tensor, "*points"]) -> Float[Tensor, "*points"]:
    """1/2 (residual²/variance + log(2 π variance)), pointwise, in nats; differentiable.

    Args:
        residual: Truth minus mean, in physical units.
        variance: In physical units squared, positive.

    Examples:
        >>> gaussian_nll(torch.ones(1), torch.ones(1)).item()  # 1/2 + log(2 π)/2
        1.4189...
    """
    return 0.5 * (residual.square() / variance + torch.log(2.0 * math.pi * variance))
