"""Comparison of a distribution with the true fields, validated once: the argument of every score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from probneural.checks import check_finite, check_instance, check_squares
from probneural.distributions.base import FieldDistribution, check_values, noise_variance
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.latent import draw_stream
from probneural.distributions.mixture import MixtureField
from probneural.distributions.scale_mixture import ScaleMixtureField, with_shared_discrepancy
from probneural.errors import DataError, GridError
from probneural.fields import Field, check_field
from probneural.grids import Grid

_DRAWN_VALUES = 2**22
"""Values that are drawn at a time (16 MiB in float32)."""
_ROUNDING = 8.0
"""Errors and deviations up to this many units in the last place of a sample's largest value count as zero."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Comparison:
    """Predicted and true samples in float64, from [`compare`][probneural.metrics.comparison.compare].

    Attributes:
        distribution: The prediction, without observation noise.
        grid: Grid of the samples with the weights of the truth: with its mask, or one mask per sample.
        mean: Mean of the prediction, `(n, c, *grid)`, in physical units.
        truth: The true fields, `(n, c, *grid)`, in physical units.
        noise: Variance of the observation noise, `(n, c, *grid)`, in physical units squared.
        variance: Predictive variance: that of the distribution plus `noise`, in physical units squared.
        rounding: Bound of the rounding errors of each sample and channel in the original dtype, `(n, c, 1, ...)`, in physical
            units; smaller errors and standard deviations count as zero.
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
        """True where the predictive variance is zero up to rounding."""
        return self.variance <= self.rounding.square()

    def standardise(self, deviation: Float64[Tensor, "..."], *, index: slice = slice(None)) -> Float64[Tensor, "..."]:
        """Divide deviations from the mean by the predictive standard deviation; dimensionless.

        Where the standard deviation is zero, the result is 0 for a deviation that is zero up to rounding (such as a value that
        a constraint fixes), otherwise infinite with the deviation's sign.

        Args:
            deviation: Deviations, `(..., n, c, *grid)`, in physical units.
            index: Samples of the deviations.
        """
        variance, rounding = self.variance[index], self.rounding[index]
        standard_deviation, certain = variance.sqrt(), variance <= rounding.square()
        if not bool(certain.any()):  # several times as fast
            return deviation / standard_deviation
        none = certain & (deviation.abs() <= rounding)
        return torch.where(none, torch.zeros_like(deviation), deviation / standard_deviation)

    def select(self, rows: Int64[Tensor, " k"]) -> Comparison:
        """The comparison of some samples."""
        parts = {name: getattr(self, name)[rows] for name in ("mean", "truth", "noise", "variance", "rounding")}
        return replace(self, distribution=self.distribution[rows], grid=self.grid.select(rows), **parts)

    def average(self, values: Float64[Tensor, "n c *grid"]) -> Float64[Tensor, "n c"]:
        """Average over the domain by quadrature, in the unit of the values."""
        return domain_average(values, self.grid)


def compare(u: FieldDistribution, truth: Field, *, noise: float | Tensor = 0.0) -> Comparison:
    """Compare a distribution with the true samples, in float64 on the distribution's device.

    Args:
        u: The distribution of n samples with c channels.
        truth: The true or observed fields, on the same grid; masked points do not count.
        noise: Variance of the observation noise in `truth`, in physical units squared: a number, or one per channel `(c,)`.

    Returns:
        The argument of the scores, detached from the graph.

    Raises:
        DataError: If `u` is no distribution or `truth` no `Field`, there are no samples, a mean, variance or true value is not
            finite, or a square overflows.
        GridError: If the grids differ.
        ShapeError: If the counts of samples or channels differ; nothing is broadcast.
        ArgumentError: If the noise is negative, not finite, or of another shape.
    """
    check_instance(u, FieldDistribution, "u", remedy="score what a predictor returns")
    raw = u.mean.detach()
    true = checked_values(truth, "truth", grid=u.grid, shape=tuple(raw.shape))
    if true.numel() == 0:
        raise DataError(expected="at least one function", got=f"truth of shape {tuple(raw.shape)}", remedy="score some data")
    mean, variance = raw.to(torch.float64), u.variance.detach().to(torch.float64)
    # Masked points get equal values and variance 1; scores ignore them.
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

    def pieces(
        self, u: FieldDistribution, count: int, *, samples: int, joint: bool = False
    ) -> Iterator[tuple[slice, Float[Tensor, "s b c *grid"]]]:
        """Rows of `samples` consecutive samples, and `count` draws from them.

        Args:
            u: The field.
            count: Number of draws.
            samples: Samples per piece.
            joint: Whether samples of a piece are drawn from their joint distribution; else each from its own.
        """
        size = u.mean[0].numel()
        field = u.field if isinstance(u, ScaleMixtureField) else u
        is_wide = isinstance(field, GaussianField) and field.latent.rank > size  # one sample then needs fewer random numbers
        together = 1
        if not joint and not is_wide:
            u = with_shared_discrepancy(u)
            together = max(1, _DRAWN_VALUES // (samples * count * size))  # products of several pieces share work
        step = 1 if is_wide and not joint else samples * together
        for start in range(0, len(u), step):
            drawn = self.of(u.marginal(start) if step == 1 and not joint else u[start : start + step], count)
            for first in range(0, drawn.shape[1], samples):
                part = drawn[:, first : first + samples]
                yield slice(start + first, start + first + part.shape[1]), part


def check_comparison(comparison: object) -> Comparison:
    """Return a comparison, or raise a DataError."""
    return check_instance(comparison, Comparison, "comparison", remedy="make one with pn.metrics.compare(u, truth)")


def flat_values(comparison: Comparison, values: Float64[Tensor, "n c *grid"]) -> Float64[Tensor, "c m"]:
    """Values of all samples in one axis, `(c, m)`, without points of weight zero."""
    inside = (comparison.grid.weights > 0).to(values.device)
    by_channel = values.flatten(2).movedim(1, 0)
    return by_channel[:, inside] if comparison.grid.is_batch else by_channel[..., inside].flatten(1)


def flat_weights(comparison: Comparison) -> Float64[Tensor, " m"]:
    """Weights of these values in averages over the domain, with sum 1 per sample."""
    weights = comparison.grid.sample_weights.to(comparison.truth)
    rows = weights[:, 0] if comparison.grid.is_batch else weights.expand(len(comparison.truth), -1)
    return rows[rows > 0]


def domain_average(values: Float[Tensor, "n c *grid"], grid: Grid) -> Float[Tensor, "n c"]:
    """Average over the domain by quadrature; values at points of weight zero may be infinite."""
    weights = grid.sample_weights.to(values)
    flat = values.flatten(2)
    return grid.mean(torch.where(weights > 0, flat, torch.zeros_like(flat)))


def relative_l2(prediction: Field, truth: Field) -> Float64[Tensor, "n c"]:
    """Relative L2 error of each sample and channel, ‖prediction - truth‖ / ‖truth‖, with norms by quadrature.

    Args:
        prediction: Predicted fields.
        truth: True fields on the same grid.

    Returns:
        `(n, c)`, dimensionless.

    Raises:
        DataError: If a true field is zero everywhere, an argument is no `Field`, or a value is not finite.
        GridError: If the grids differ.
        ShapeError: If the shapes differ.

    Reference:
        Li et al. (2021), Fourier Neural Operator, section 5. Deviation: each channel has an error of its own, so that the
        largest channel does not hide others.

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
            remedy="use the RMSE, or drop those functions",
        )
    return (error / size).sqrt()


def rmse(prediction: Field, truth: Field) -> Float64[Tensor, " c"]:
    """Root mean squared error of each channel over samples and, by quadrature, over the domain.

    Args:
        prediction: Predicted fields.
        truth: True fields on the same grid.

    Returns:
        `(c,)`, in physical units.

    Raises:
        DataError: If an argument is no `Field`, or a value is not finite.
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
    """Relative L2 error of the mean, see `relative_l2`."""
    return relative_l2(Field(comparison.mean, comparison.grid.unmasked), Field(comparison.truth, comparison.grid))
