"""Bands on a grid, and the local scale of their width."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from probneural.calibration.predictions import PredictedMoments
from probneural.checks import check_choice, check_finite, check_real
from probneural.contexts import Undisturbed
from probneural.distributions.base import check_values
from probneural.distributions.predictors.base import Predictor
from probneural.errors import GridError
from probneural.fields import Field, check_field
from probneural.grids import Grid
from probneural.metrics.comparison import domain_average

Modulation = Literal["std", "constant"]
FLOOR = 0.1
"""Default floor of a band's local scale, as a fraction of its root mean square over the domain."""
_ROUNDING = 1e-12
"""Tolerance of sums of quadrature weights relative to the requested fraction of the domain."""


def local_scale(
    predicted: PredictedMoments, predictor: Predictor, *, modulation: Modulation, floor: float
) -> Float64[Tensor, "n c *grid"]:
    """Half width of a band of quantile 1, `(n, c, *grid)`, a function of one input and the predictor only.

    Args:
        predicted: Moments of n samples.
        predictor: The predictor of these moments.
        modulation: As in [`SimultaneousBand`][probneural.calibration.SimultaneousBand].
        floor: Likewise.
    """
    if modulation == "std":
        return floored_std(predicted.variance, predicted.grid, floor=floor)
    return _constant_scale(predicted.variance, predictor, predicted.grid)


def ratios(deviation: Float64[Tensor, "n c *grid"], scale: Float64[Tensor, "n c *grid"]) -> Float64[Tensor, "n c *grid"]:
    """|deviation| / scale; a value predicted with certainty has ratio 0 if it is right, and infinity if it is not."""
    size = deviation.abs()
    return torch.where(size > 0, size / scale, torch.zeros_like(size))


def domain_quantile(ratios: Float64[Tensor, "n c *grid"], grid: Grid, *, fraction: float) -> Float64[Tensor, " n"]:
    """The least number that, in every channel, is not exceeded on the given fraction of the domain; 1 is the supremum.

    Fractions are by quadrature, so points of weight zero count for the supremum alone.

    Examples:
        >>> ratios = torch.tensor([[[3.0, 1.0, 2.0, 4.0]]], dtype=torch.float64)
        >>> [domain_quantile(ratios, Grid.uniform((4,)), fraction=part).item() for part in (0.5, 0.75, 1.0)]
        [2.0, 3.0, 4.0]
    """
    if fraction == 1.0:
        return ratios.flatten(1).amax(-1)
    weights = grid.sample_weights.to(ratios)
    ordered, order = ratios.flatten(2).sort(-1)
    mass = weights.expand_as(ordered).gather(-1, order) if grid.is_batch else weights[order]
    reached = mass.cumsum(-1) >= fraction - _ROUNDING
    first = torch.where(reached, ordered, torch.full_like(ordered, torch.inf)).amin(-1)
    return first.amax(-1)


def floored_std(variance: Float64[Tensor, "n c *grid"], grid: Grid, *, floor: float) -> Float64[Tensor, "n c *grid"]:
    """The standard deviation, at least the fraction `floor` of its root mean square over the domain."""
    least = floor * domain_average(variance, grid).sqrt()
    return torch.maximum(variance.sqrt(), least.reshape(*least.shape, *(1,) * (variance.ndim - 2)))


def check_modulation(modulation: str, floor: float) -> None:
    """Raise an ArgumentError unless the modulation exists and the floor lies between 0 and 1."""
    check_choice(modulation, get_args(Modulation), "modulation")
    check_real(floor, "floor", least=0.0, most=1.0)


def _constant_scale(variance: Float64[Tensor, "n c *grid"], predictor: Predictor, grid: Grid) -> Float64[Tensor, "n c *grid"]:
    """The root of each channel's residual variance, or the sample's root mean square deviation where that is zero."""
    if variance.shape[1] == 1:
        return torch.ones_like(variance)
    residual = predictor.residual_variance.to(variance)
    unit = torch.where(residual > 0, residual, domain_average(variance, grid)).sqrt()
    return unit.reshape(*unit.shape, *(1,) * (variance.ndim - 2)).expand(variance.shape)


@dataclass(frozen=True, eq=False, repr=False)
class BandField(Undisturbed):
    """Bands around n samples.

    Args:
        mean: Predicted mean, `(n, c, *grid)`, in physical units.
        half_width: Half the bands' width, `(n, c, *grid)`, in physical units.
        grid: Grid of the bands.

    Raises:
        ShapeError: If the shapes do not fit together.
    """

    mean: Float64[Tensor, "n c *grid"]
    half_width: Float64[Tensor, "n c *grid"]
    _: KW_ONLY
    grid: Grid

    def __post_init__(self) -> None:
        """Check that the shapes fit together."""
        check_values(self.mean, (*self.mean.shape[:2], *self.grid.shape), "mean")
        check_values(self.half_width, tuple(self.mean.shape), "half width")

    @property
    def lower(self) -> Float64[Tensor, "n c *grid"]:
        """Lower edge, `(n, c, *grid)`, in physical units."""
        return self.mean - self.half_width

    @property
    def upper(self) -> Float64[Tensor, "n c *grid"]:
        """Upper edge, `(n, c, *grid)`, in physical units."""
        return self.mean + self.half_width

    def contains(self, truth: Field) -> Bool[Tensor, " n"]:
        """Mask of the samples inside at every point and in every channel, edges included.

        Raises:
            GridError: If the grids differ.
            ShapeError: If the shapes differ; nothing is broadcast.
            DataError: If a value is not finite.
        """
        return self.inside(truth).flatten(1).all(-1)

    def fraction_inside(self, truth: Field) -> Float64[Tensor, "n c"]:
        """The fraction of the domain, by quadrature, on which each sample lies inside, `(n, c)`, dimensionless.

        Raises:
            GridError: If the grids differ.
            ShapeError: If the shapes differ; nothing is broadcast.
            DataError: If a value is not finite.
        """
        return domain_average(self.inside(truth).to(torch.float64), truth.grid)

    def inside(self, truth: Field) -> Bool[Tensor, "n c *grid"]:
        """Mask of the values inside, `(n, c, *grid)`, edges included.

        Raises:
            GridError: If the grids differ.
            ShapeError: If the shapes differ; nothing is broadcast.
            DataError: If a value is not finite.
        """
        if not check_field(truth, "truth").grid.has_points_of(self.grid):
            raise GridError(
                expected=f"samples on the band's grid {self.grid!r}", got=repr(truth.grid), remedy="pass query=truth.grid"
            )
        check_values(truth.values, tuple(self.mean.shape), "truth")
        check_finite(truth.values, "true values")
        distance = (truth.values.detach().to(self.mean) - self.mean).abs()
        return truth.grid.fill(distance) <= self.half_width

    def width(self) -> Float64[Tensor, "n c"]:
        """Width averaged over the domain by quadrature, `(n, c)`, in physical units."""
        return 2.0 * domain_average(self.half_width, self.grid)

    def __len__(self) -> int:
        """Number of samples n."""
        return self.mean.shape[0]

    def __repr__(self) -> str:
        """A short description."""
        return f"BandField({len(self)} x {self.mean.shape[1]} on {self.grid!r})"
