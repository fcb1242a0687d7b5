"""Shapes of bands: the local unit of width, and deviations in it."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.calibration.chunks import domain_average, moments
from probneural.checks import check_choice, check_finite, check_real
from probneural.distributions.base import FieldDistribution
from probneural.distributions.predictor import Predictor
from probneural.grids import Grid

Modulation = Literal["std", "constant", "quantiles"]
FLOOR = 0.1
"""Default floor of a band's local scale, as a fraction of its root mean square over the domain."""
QUANTILES = (0.05, 0.5, 0.95)
"""What "quantiles" reads off a distribution: the band of half width 1 is its central interval of 90 %, about the median."""
_ROUNDING = 1e-12
"""By how much a sum of quadrature weights may fall short of the fraction of the domain that it stands for."""


@runtime_checkable
class Modulated(Protocol):
    """A method whose bands are a number of local scales wide."""

    @property
    def modulation(self) -> Modulation:
        """What the local scale is."""
        ...

    @property
    def floor(self) -> float:
        """Its least value, as a fraction of its root mean square over the domain; dimensionless."""
        ...


class BandShape(NamedTuple):
    """A band of half width 1 in units of its local scale, which may differ below and above.

    Attributes:
        mean: What was predicted, `(n, c, *grid)`, in physical units.
        centre: Where the two sides meet, likewise.
        below: Local scale below the centre, likewise.
        above: Local scale above it, likewise.
    """

    mean: Float64[Tensor, "n c *grid"]
    centre: Float64[Tensor, "n c *grid"]
    below: Float64[Tensor, "n c *grid"]
    above: Float64[Tensor, "n c *grid"]

    @property
    def scale(self) -> Float64[Tensor, "n c *grid"]:
        """Half the width of the band, `(n, c, *grid)`, in physical units."""
        return 0.5 * (self.below + self.above)

    @property
    def is_symmetric(self) -> bool:
        """Whether it reaches equally far below and above what was predicted."""
        return self.below is self.above and self.centre is self.mean

    def ratios(self, truth: Float64[Tensor, "n c *grid"]) -> Float64[Tensor, "n c *grid"]:
        """By what factor the band has to grow to reach each value; dimensionless, or physical if the scale is 1."""
        deviation = truth - self.centre
        return ratios(deviation, torch.where(deviation > 0, self.above, self.below))


def band_shape(u: FieldDistribution, predictor: Predictor, *, modulation: Modulation, floor: float) -> BandShape:
    """Read the shape of a band off a prediction: a function of one input and the predictor only.

    Raises:
        DataError: If a prediction is not finite.
    """
    predicted = moments(u, predictor.noise)
    if modulation == "quantiles":
        return _between_quantiles(u, predictor, mean=predicted.mean, floor=floor)
    if modulation == "std":
        scale = floored_std(predicted.variance, u.grid, floor=floor)
    else:
        scale = _constant_scale(predicted.variance, predictor, u.grid)
    return BandShape(predicted.mean, predicted.mean, scale, scale)


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
    return _floored(variance.sqrt(), domain_average(variance, grid).sqrt(), floor=floor)


def check_modulation(modulation: str, floor: float) -> None:
    """Raise an ArgumentError unless the modulation exists and the floor lies between 0 and 1."""
    check_choice(modulation, get_args(Modulation), "modulation")
    check_real(floor, "floor", least=0.0, most=1.0)


def _floored(scale: Tensor, size: Float64[Tensor, "n c"], *, floor: float) -> Tensor:
    least = floor * size
    return torch.maximum(scale, least.reshape(*least.shape, *(1,) * (scale.ndim - 2)))


def _between_quantiles(
    u: FieldDistribution, predictor: Predictor, *, mean: Float64[Tensor, "n c *grid"], floor: float
) -> BandShape:
    lower, centre, upper = u.quantile(QUANTILES, noise=predictor.noise).detach()
    check_finite(lower, "predicted quantiles")
    check_finite(upper, "predicted quantiles")
    size = domain_average((0.5 * (upper - lower)).square(), u.grid).sqrt()
    below, above = (_floored(side, size, floor=floor) for side in (centre - lower, upper - centre))
    return BandShape(mean, centre, below, above)


def _constant_scale(variance: Float64[Tensor, "n c *grid"], predictor: Predictor, grid: Grid) -> Float64[Tensor, "n c *grid"]:
    """The root of each channel's residual variance, or the sample's root mean square deviation where that is zero."""
    if variance.shape[1] == 1:
        return torch.ones_like(variance)
    residual = predictor.residual_variance.to(variance)
    unit = torch.where(residual > 0, residual, domain_average(variance, grid)).sqrt()
    return unit.reshape(*unit.shape, *(1,) * (variance.ndim - 2)).expand(variance.shape)
