"""Bands around functions, evaluated on a grid."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from probneural.calibration.band_shapes import BandShape, Modulated, band_shape
from probneural.calibration.chunks import domain_average
from probneural.checks import check_finite
from probneural.contexts import Undisturbed
from probneural.distributions.base import check_values
from probneural.distributions.predictor import Predictor
from probneural.errors import GridError
from probneural.fields import Field, check_field
from probneural.grids import Grid


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
    each = quantiles if isinstance(quantiles, Tensor) else shape.mean.new_full((len(inputs),), quantiles)
    return band_around(shape, each, grid=u.grid)
