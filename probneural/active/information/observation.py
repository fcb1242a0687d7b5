"""Observation of a whole field in the units of a posterior's latent, the same on every grid."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_instance, check_variances
from probneural.contexts import undisturbed
from probneural.distributions import GaussianField, Predictor
from probneural.errors import ShapeError
from probneural.grids import Grid, check_grid


@undisturbed()
def observation_weights(
    predictor: Predictor, grid: Grid, *, noise: float | Float[Tensor, " c"] | None = None
) -> Float64[Tensor, "c p"]:
    """Weights w of the misfit sum over c, p of w_cp (y - u)² / 2 that one observed function adds to the log posterior.

    w_cp = m_c q_p / (s_c² |D|) with m the predictor's effective observations, s² its noise variance, q the quadrature weights
    of the domain D. Their sum is m / s² on every grid, so that a finer grid does not pass for more data. A grid of fewer than m
    points counts one observation per point, for it cannot tell more; so does a predictor that does not say its m.

    Args:
        predictor: A predictor.
        grid: Where functions are observed.
        noise: Its s², in physical units squared; by default the predictor's `residual_variance`, noise and discrepancy.

    Returns:
        Inverse variances, in inverse physical units squared, on the CPU.

    Raises:
        ArgumentError: If a noise is not positive: an exact observation of a whole function is more than most latents can meet.
        ShapeError: If there is not one noise per channel.

    Examples:
        >>> import probneural as pn
        >>> pairs = pn.problems.Heat(dimension=1).sample(20, resolution=64, seed=0)
        >>> predictor = pn.heads.LastLayerLaplace(noise=1e-4).fit(pn.operators.LinearRegression.fitted(pairs), pairs)
        >>> coarse, fine = (observation_weights(predictor, pairs.inputs.grid.resized((n,))).sum() for n in (64, 256))
        >>> bool((coarse / fine - 1).abs() < 1e-12)
        True
    """
    channels = check_instance(predictor, Predictor, "predictor", remedy="fit a head, or calibrate one").out_channels
    value = predictor.residual_variance if noise is None else noise
    variance = check_variances(value, "noise", positive=True).detach().cpu()
    check_grid(grid)
    if variance.ndim == 0:
        variance = variance.expand(channels)
    if variance.shape != (channels,):
        raise ShapeError(
            expected=f"a noise variance for each of {channels} channels",
            got=str(tuple(variance.shape)),
            remedy="or one for all",
        )
    effective = predictor.effective_observations
    points = float(grid.size)
    counts = torch.full((channels,), points) if effective is None else effective.detach().cpu().clamp_max(points)
    mean_weights = grid.mean_weights
    return (counts.to(torch.float64) / variance)[:, None] * mean_weights


def whitened_rows(field: GaussianField, weights: Float64[Tensor, "c p"]) -> Float64[Tensor, "n cp k"]:
    """Rows of the root in units of the observation's standard deviation, differentiably in the inputs.

    With them, observing functions is Bayes' rule for xi ~ N(0, I) and standardised data y = rows xi + N(0, I).

    Args:
        field: The posterior at n inputs.
        weights: Of `observation_weights` on its grid.

    Returns:
        `(n, c * p, k)`, dimensionless, channels first.

    Raises:
        ShapeError: If the weights belong to another grid or number of channels.
    """
    shape = field.root.shape
    if tuple(weights.shape) != tuple(shape[1:3]):
        raise ShapeError(
            expected=f"weights (c, p) = {tuple(shape[1:3])}",
            got=str(tuple(weights.shape)),
            remedy="take those of the field's grid",
        )
    rows = field.root.dense().to(torch.float64)
    return (rows * weights.sqrt().to(rows)[..., None]).flatten(1, 2)
