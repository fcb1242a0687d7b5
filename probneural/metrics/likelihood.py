"""Negative log likelihoods: of each value by itself, and of whole functions."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.mixture import MixtureField
from probneural.errors import ArgumentError, UnsupportedError
from probneural.functionals.integrals import ValuesAt
from probneural.metrics.comparison import Comparison, check_comparison


def nll(comparison: Comparison) -> Float64[Tensor, "n c"]:
    """The negative log density of each value under the Gaussian of the same mean and predictive variance.

    It is averaged over the domain by quadrature. For an empirical field this is the moment-matched Gaussian at each point; a
    mixture has its own density.

    Returns:
        `(n, c)`, in nats per value; the density's unit is 1 / physical unit, so it depends on the units (lower is better).

    Raises:
        ArgumentError: If the predictive variance is zero somewhere, up to rounding: there is no density there.

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
    """The negative log density of each whole function (all channels and points jointly), divided by its number of values.

    Unlike the marginal score it rewards the right correlations. It counts grid points, so compare it at one resolution only.
    An empirical field enters through the Gaussian field of the same mean and covariance.

    Returns:
        `(n,)`, in nats per value.

    Raises:
        ArgumentError: If some value, up to rounding, or some direction has no variance: without noise, a field of low rank
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
    if not isinstance(field, GaussianField | MixtureField):
        raise UnsupportedError(
            expected="a Gaussian or an empirical field, or a mixture", got=type(u).__name__, remedy="read the marginal score"
        )
    if comparison.grid.is_masked:
        return _observed_nll(comparison, field)
    values_each = comparison.truth[0].numel()
    return -field.log_prob(comparison.truth, noise=comparison.noise).detach() / values_each


def _observed_nll(comparison: Comparison, field: GaussianField | MixtureField) -> Float64[Tensor, " n"]:
    """That of the values at points that are not masked, one function at a time."""
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
        raise ArgumentError(
            expected="a positive predictive variance at every value",
            got=f"none at {none} of {comparison.truth.numel()} values",
            remedy="pass the observation variance as noise > 0",
        )


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
