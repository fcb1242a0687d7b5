"""Comparison of a distribution with the true fields, validated once: the argument of every score."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from probneural.checks import check_finite, check_instance, check_squares
from probneural.distributions.base import FieldDistribution, check_values, noise_variance
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.latent import draw_stream
from probneural.distributions.mixture import MixtureField
from probneural.errors import DataError, GridError
from probneural.fields import Field, check_field
from probneural.grids import Grid

_ROUNDING = 8.0
"""Units in the last place, of a function's largest value, up to which errors and deviations count as none."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Comparison:
    """Predicted and true functions in float64, from [`compare`][probneural.metrics.comparison.compare].

    Attributes:
        distribution: The prediction, without observation noise.
        grid: Grid of the samples with the weights of the truth: with its mask, or one mask per sample.
        mean: Its mean, `(n, c, *grid)`, in physical units.
        truth: The true functions, `(n, c, *grid)`, in physical units.
        noise: Variance of the observation noise, `(n, c, *grid)`, in physical units squared.
        variance: Predictive variance, that of the distribution plus `noise`, in physical units squared.
        rounding: Per function and channel, `(n, c, 1, ...)`, the size below which an error or a standard deviation is
            indistinguishable from zero in the dtype the values came in; in physical units.
    """

    distribution: FieldDistribution
    grid: Grid
    mean: Float64[Tensor, "n c *grid"]
    truth: Float64[Tensor, "n c *grid"]
    noise: Float64[Tensor, "n c *grid"]
    variance: Float64[Tensor, "n c *grid"]
    rounding: Float64[Tensor, "n c *ones"]

    @property
    def residual(self) -> Float64[Tensor, "n c *grid"]:
        """Truth minus mean, in physical units."""
        return self.truth - self.mean

    @property
    def certain(self) -> Bool[Tensor, "n c *grid"]:
        """Where the predictive variance is zero up to rounding."""
        return self.variance <= self.rounding.square()

    def standardise(self, deviation: Float64[Tensor, "..."], *, index: slice = slice(None)) -> Float64[Tensor, "..."]:
        """Divide deviations from the mean by the predictive standard deviation; dimensionless.

        Where the standard deviation is zero, the limit is taken: 0 for a deviation that is zero up to rounding (a value that a
        constraint prescribes, and that is right), infinite with the deviation's sign otherwise.

        Args:
            deviation: `(..., n, c, *grid)`, in physical units.
            index: Which of the n functions the deviations belong to.
        """
        variance, rounding = self.variance[index], self.rounding[index]
        standard_deviation, certain = variance.sqrt(), variance <= rounding.square()
        if not bool(certain.any()):  # several times as fast
            return deviation / standard_deviation
        none = certain & (deviation.abs() <= rounding)
        return torch.where(none, torch.zeros_like(deviation), deviation / standard_deviation)

    def average(self, values: Float64[Tensor, "n c *grid"]) -> Float64[Tensor, "n c"]:
        """Average over the domain by quadrature, so that it does not depend on the resolution; keeps the unit."""
        return domain_average(values, self.grid)


def compare(u: FieldDistribution, truth: Field, *, noise: float | Tensor = 0.0) -> Comparison:
    """Compare a distribution with the true samples, in float64 on the distribution's device.

    Args:
        u: The distribution, of n functions with c channels.
        truth: The true or observed functions, on the same grid; masked points do not count.
        noise: Variance of the observation noise in `truth`, in physical units squared: a number, or one per channel `(c,)`.

    Returns:
        The argument of the scores. It is detached: nothing is differentiated through a comparison.

    Raises:
        DataError: If `u` is no distribution or `truth` no `Field`, if there are no functions, or if a mean, variance or truth
            is not finite, or beyond what its dtype holds squared.
        GridError: If the grids differ.
        ShapeError: If the numbers of functions or channels differ; nothing is broadcast.
        ArgumentError: If the noise is negative, not finite, or of another shape.
    """
    check_instance(u, FieldDistribution, "u", remedy="score what a predictor returns")
    raw = u.mean.detach()
    true = checked_values(truth, "truth", grid=u.grid, shape=tuple(raw.shape))
    if true.numel() == 0:
        raise DataError(expected="at least one function", got=f"truth of shape {tuple(raw.shape)}", remedy="score some data")
    mean, variance = raw.to(torch.float64), u.variance.detach().to(torch.float64)
    # At masked points all are equal and certain of nothing: no score counts them.
    grid = truth.grid
    values, mean = grid.fill(true.detach().to(mean)), grid.fill(mean)
    variance = grid.fill(variance, 1.0)
    for tensor, name in ((mean, "predicted means"), (variance, "predicted variances")):
        check_finite(tensor, name)
    check_squares(mean, "predicted means")
    observed = noise_variance(noise, tuple(mean.shape), mean).detach()
    unit = _ROUNDING * max(torch.finfo(raw.dtype).eps, torch.finfo(truth.dtype).eps)
    axes = tuple(range(2, mean.ndim))
    rounding = unit * torch.maximum(mean.abs(), values.abs()).amax(axes, keepdim=True)
    return Comparison(
        distribution=u, grid=grid, mean=mean, truth=values, noise=observed, variance=variance + observed, rounding=rounding
    )


def checked_values(field: object, name: str, *, grid: Grid, shape: tuple[int, ...]) -> Tensor:
    """Return the values of a field on a grid.

    Raises:
        DataError: If it is no field, or a value or its square is not finite.
        GridError: If it has another grid.
        ShapeError: If it has another shape.
    """
    checked = check_field(field, name)
    if not checked.grid.has_points_of(grid):
        raise GridError(expected=f"{name} on the grid {grid!r}", got=repr(checked.grid), remedy="predict with query=truth.grid")
    check_values(checked.values, shape, name)
    label = "true values" if name == "truth" else name
    check_finite(checked.values, label)
    check_squares(checked.values, label)
    return checked.values


class RepeatedDraws:
    """Draws of several fields from one seed; fields with latents of equal size share the random numbers.

    Args:
        seed: Seed of the draws, which are those of `rsample(..., seed=seed)`.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._numbers: Tensor | None = None

    def of(self, u: FieldDistribution, count: int) -> Float[Tensor, "s n c *grid"]:
        """`count` draws from a field, detached."""
        if not isinstance(u, (GaussianField, MixtureField)):
            return u.rsample(torch.Size([count]), seed=self._seed).detach()
        shape = (count, *u.base_shape)
        if self._numbers is None or tuple(self._numbers.shape) != shape:
            self._numbers = torch.randn(shape, generator=draw_stream(self._seed), dtype=torch.float64, device="cpu")
        return u.rsample(torch.Size([count]), base_samples=self._numbers).detach()


def check_comparison(comparison: object) -> Comparison:
    """Return a comparison, or raise a DataError."""
    return check_instance(comparison, Comparison, "comparison", remedy="make one with pn.metrics.compare(u, truth)")


def flat_values(comparison: Comparison, values: Float64[Tensor, "n c *grid"]) -> Float64[Tensor, "c m"]:
    """Values of all functions, one after the other, `(c, m)`; points without weight are left out."""
    inside = (comparison.grid.weights > 0).to(values.device)
    by_channel = values.flatten(2).movedim(1, 0)
    return by_channel[:, inside] if comparison.grid.is_batch else by_channel[..., inside].flatten(1)


def flat_weights(comparison: Comparison) -> Float64[Tensor, " m"]:
    """Weights of those values in averages over the domain: those of one function sum to 1."""
    weights = comparison.grid.sample_weights.to(comparison.truth)
    rows = weights[:, 0] if comparison.grid.is_batch else weights.expand(len(comparison.truth), -1)
    return rows[rows > 0]


def domain_average(values: Float[Tensor, "n c *grid"], grid: Grid) -> Float[Tensor, "n c"]:
    """Average over the domain by the grid's quadrature; points of weight zero are left out even where infinite."""
    weights = grid.sample_weights.to(values)
    flat = values.flatten(2)
    return grid.mean(torch.where(weights > 0, flat, torch.zeros_like(flat)))


def relative_l2(prediction: Field, truth: Field) -> Float64[Tensor, "n c"]:
    """The relative L2 error of each function and channel, ‖prediction - truth‖ / ‖truth‖, with norms by quadrature.

    Args:
        prediction: Predicted functions.
        truth: True functions, on the same grid.

    Returns:
        `(n, c)`, dimensionless. Average it: channels of different magnitude then count alike.

    Raises:
        DataError: If a true function is zero everywhere, which leaves nothing to be relative to, a side is no `Field`, or a
            value is not finite.
        GridError: If the grids differ.
        ShapeError: If the shapes differ.

    Reference:
        Li et al. (2021), Fourier Neural Operator, section 5. Deviation: several channels are taken one by one, so that the
        largest does not hide the others.

    Examples:
        >>> from probneural.fields import Grid
        >>> grid = Grid.uniform((8,))
        >>> relative_l2(Field(torch.full((1, 1, 8), 3.0), grid), Field(torch.full((1, 1, 8), 2.0), grid)).item()
        0.5
    """
    error, size = _mean_squares(prediction, truth)
    if bool((size == 0).any()):
        raise DataError(
            expected="true functions that are not zero everywhere",
            got=f"{int((size == 0).sum())} of {size.numel()} (function, channel) pairs that are",
            remedy="read the RMSE, or leave those functions out",
        )
    return (error / size).sqrt()


def rmse(prediction: Field, truth: Field) -> Float64[Tensor, " c"]:
    """The root of the mean squared error of each channel, over the functions and, by quadrature, over the domain.

    Args:
        prediction: Predicted functions.
        truth: True functions, on the same grid.

    Returns:
        `(c,)`, in physical units.

    Raises:
        DataError: If a side is no `Field`, or a value is not finite.
        GridError: If the grids differ.
        ShapeError: If the shapes differ.
    """
    error, _ = _mean_squares(prediction, truth)
    return error.mean(0).sqrt()


def _mean_squares(prediction: Field, truth: Field) -> tuple[Tensor, Tensor]:
    """Mean squares over the domain of the error and of the truth, `(n, c)`."""
    shape = tuple(check_field(truth, "truth").values.shape)
    sides = ((prediction, "predictions"), (truth, "truth"))
    predicted, expected = (checked_values(side, name, grid=truth.grid, shape=shape).detach().double() for side, name in sides)
    expected = expected.to(predicted)
    return domain_average((predicted - expected).square(), truth.grid), domain_average(expected.square(), truth.grid)


def mean_relative_l2(comparison: Comparison) -> Float64[Tensor, "n c"]:
    """The relative L2 error of the mean, as in `relative_l2`."""
    return relative_l2(Field(comparison.mean, comparison.grid.unmasked), Field(comparison.truth, comparison.grid))
