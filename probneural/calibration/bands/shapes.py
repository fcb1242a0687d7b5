"""Bands on a grid, and their shapes: the local unit of width, and deviations in it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar, get_args, runtime_checkable

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from probneural.calibration.predictions import domain_average, moments
from probneural.checks import check_choice, check_finite, check_real
from probneural.contexts import Undisturbed
from probneural.distributions.base import FieldDistribution, check_values
from probneural.distributions.predictors.base import Predictor
from probneural.errors import GridError
from probneural.fields import Field, check_field
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
    """A method whose bands are a multiple of a local scale wide."""

    @property
    def level(self) -> float:
        """Nominal level."""
        ...

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


@dataclass(frozen=True, eq=False, repr=False)
class BandField(Undisturbed):
    """Bands around n functions.

    Args:
        mean: What was predicted, `(n, c, *grid)`, in physical units.
        half_width: Half the bands' width, `(n, c, *grid)`, in physical units.
        grid: Where they live.
        offset: By how much the middle of the bands lies above the mean, `(n, c, *grid)`, in physical units; None for bands
            that reach equally far below and above.

    Raises:
        ShapeError: If the shapes do not fit together.
    """

    mean: Float64[Tensor, "n c *grid"]
    half_width: Float64[Tensor, "n c *grid"]
    _: KW_ONLY
    grid: Grid
    offset: Float64[Tensor, "n c *grid"] | None = None

    def __post_init__(self) -> None:
        """Check that the shapes fit together."""
        check_values(self.mean, (*self.mean.shape[:2], *self.grid.shape), "mean")
        check_values(self.half_width, tuple(self.mean.shape), "half width")
        if self.offset is not None:
            check_values(self.offset, tuple(self.mean.shape), "offset")

    @property
    def middle(self) -> Float64[Tensor, "n c *grid"]:
        """What lies half-way between the edges, `(n, c, *grid)`, in physical units."""
        return self.mean if self.offset is None else self.mean + self.offset

    @property
    def lower(self) -> Float64[Tensor, "n c *grid"]:
        """Lower edge, `(n, c, *grid)`, in physical units."""
        return self.middle - self.half_width

    @property
    def upper(self) -> Float64[Tensor, "n c *grid"]:
        """Upper edge, `(n, c, *grid)`, in physical units."""
        return self.middle + self.half_width

    def contains(self, truth: Field) -> Bool[Tensor, " n"]:
        """Which functions lie inside at every point and in every channel, edges included.

        Raises:
            GridError: If the grids differ.
            ShapeError: If the shapes differ; nothing is broadcast.
            DataError: If a value is not finite.
        """
        return self.inside(truth).flatten(1).all(-1)

    def fraction_inside(self, truth: Field) -> Float64[Tensor, "n c"]:
        """The fraction of the domain, by quadrature, on which each function lies inside, `(n, c)`, dimensionless.

        Raises:
            GridError: If the grids differ.
            ShapeError: If the shapes differ; nothing is broadcast.
            DataError: If a value is not finite.
        """
        return domain_average(self.inside(truth).to(torch.float64), truth.grid)

    def inside(self, truth: Field) -> Bool[Tensor, "n c *grid"]:
        """Which values lie inside, `(n, c, *grid)`, edges included.

        Raises:
            GridError: If the grids differ.
            ShapeError: If the shapes differ; nothing is broadcast.
            DataError: If a value is not finite.
        """
        if not check_field(truth, "truth").grid.has_points_of(self.grid):
            raise GridError(
                expected=f"functions on the band's grid {self.grid!r}", got=repr(truth.grid), remedy="pass query=truth.grid"
            )
        check_values(truth.values, tuple(self.mean.shape), "truth")
        check_finite(truth.values, "true values")
        distance = (truth.values.detach().to(self.mean) - self.middle).abs()
        return truth.grid.fill(distance) <= self.half_width

    def width(self) -> Float64[Tensor, "n c"]:
        """Width averaged over the domain by quadrature, `(n, c)`, in physical units."""
        return 2.0 * domain_average(self.half_width, self.grid)

    def __len__(self) -> int:
        """Number of functions n."""
        return self.mean.shape[0]

    def __repr__(self) -> str:
        """A short description."""
        return f"BandField({len(self)} x {self.mean.shape[1]} on {self.grid!r})"


def band_around(shape: BandShape, quantile: Float64[Tensor, " n"], *, grid: Grid) -> BandField:
    """The band of each function's own quantile; an infinite one is the whole line, also where the local scale is zero."""
    q = quantile.to(shape.mean).reshape(-1, *(1,) * (shape.mean.ndim - 1))
    half = torch.where(torch.isinf(q), q, q * shape.scale)
    if shape.is_symmetric:
        return BandField(mean=shape.mean, half_width=half, grid=grid)
    finite = torch.where(torch.isinf(q), torch.zeros_like(q), q)  # an infinite band has no middle
    offset = shape.centre - shape.mean + 0.5 * finite * (shape.above - shape.below)
    return BandField(mean=shape.mean, half_width=half, grid=grid, offset=offset)


def predicted_bands(
    predictor: Predictor,
    inputs: Field,
    *,
    query: Grid | None,
    method: Modulated,
    quantiles: float | Float64[Tensor, " n"],
) -> BandField:
    """Predict n functions, and put around each the band of a quantile, or of its own one.

    Raises:
        DataError: If the inputs or predictions are not finite.
        ShapeError: If the number of channels is not the predictor's.
    """
    u = predictor(inputs, query)
    shape = band_shape(u, predictor, modulation=method.modulation, floor=method.floor)
    multiples = quantiles if isinstance(quantiles, Tensor) else shape.mean.new_full((len(inputs),), quantiles)
    return band_around(shape, multiples, grid=u.grid)


Method = TypeVar("Method", bound=Modulated)


@dataclass(frozen=True, eq=False, repr=False)
class FittedBand(Undisturbed, Generic[Method]):
    """A band of one quantile around the predictions of a predictor; call it on inputs.

    Args:
        predictor: The predictor it belongs to.
        quantile: Half width in units of the local scale.
        method: The method that it was calibrated with.
    """

    predictor: Predictor
    _: KW_ONLY
    quantile: float
    method: Method

    @property
    def level(self) -> float:
        """The method's level."""
        return self.method.level

    def __call__(self, inputs: Field, query: Grid | None = None) -> BandField:
        """Return the bands of n input functions.

        Args:
            inputs: Input functions, `(n, in_channels, *grid)`.
            query: Where to evaluate; the inputs' own grid by default.

        Raises:
            DataError: If the inputs or predictions are not finite.
            ShapeError: If the number of channels is not the predictor's.
        """
        return predicted_bands(self.predictor, inputs, query=query, method=self.method, quantiles=self.quantile)

    def __repr__(self) -> str:
        """The quantile and how it was found."""
        return f"{type(self).__name__}(quantile={self.quantile:.4g}, {self.method!r})"
