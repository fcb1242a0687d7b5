"""Pointwise variance factors from predicted values, slopes and position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.calibration.variance.stationary_process import box_of, evaluate_waves, waves_of
from probneural.contexts import remembered
from probneural.grids import Grid, along_axis, resample
from probneural.grids.axes import Axis
from probneural.grids.mesh import boundary_distances, nodal_gradients
from probneural.registry import stored

_FLOOR = 0.03
"""Floor of slopes and amplitudes relative to their root mean squares, added in quadrature."""
_TINY = 1e-30
"""Added to relative squares before a logarithm."""
_WAVES = 17
"""Fourier modes of the position in one dimension, with the constant; each further dimension adds half as many."""
_PLACES = 256
"""Maximum number of local averages along an axis."""
POINTWISE = 8
"""Number of features that are no Fourier modes."""
FINE = 2
"""Index of the feature without local average."""
_QUANTILES = (0.005, 0.02, 0.06, 0.15, 0.3, 0.5, 0.7, 0.85, 0.94, 0.98, 0.995)
"""Quantiles of log variances at which knots lie: dense at large variances, which dominate the squared error."""
_LEAST_SPAN = 0.1
"""Least distance of the outer knots for a curve."""


@stored(on_cpu=("slopes", "amplitudes", "units", "standards", "coefficients", "limits"))
@dataclass(frozen=True, eq=False, kw_only=True)
class LocalScale:
    """Factor h_c(x; u) = exp(sum over j of theta_cj phi_cj(x; u) + g_c) of the predictive variance t of one sample.

    The features phi are dimensionless and depend on the prediction only:

    * log t relative to its mean over the domain, and this mean;
    * log t relative to its local average, with a coefficient of at most 0: it removes small-scale variation of t;
    * the log slope of the predicted mean, its square, and the log root mean square slope;
    * the log distance of the predicted mean from its spatial average, at the point and as a root mean square;
    * Fourier modes of the position.

    So variances can grow at fronts, at walls, or for whole samples. All but the second are computed from local averages of
    variances and squares, so that h is smooth. Features and their weighted sum are clamped to their ranges over the
    calibration samples.

    The curve g corrects log variances as a function of themselves: piecewise linear between knots, constant beyond. It makes
    variances right that span many orders of magnitude.

    Features are evaluated on the calibration grid, to which mean and variance are interpolated, and log h is interpolated to
    the grid of the prediction. So h is the same function at all resolutions, up to walls.

    On meshes there are no local averages, and the position and the distance to the boundary replace the Fourier modes (see
    `mesh_positions`).

    Args:
        grid: Uniform grid of the calibration outputs, or their first mesh.
        width: Standard deviation of the Gaussian local average, relative to the length of the domain along each axis.
        slopes: Root mean square of each partial derivative, `(c, d)`, in physical units per the grid's units.
        amplitudes: Root mean square distance of the predicted mean from its spatial average, `(c,)`, in physical units.
        units: Square root of the mean predictive variance, `(c,)`, in physical units.
        standards: Mean, standard deviation (1 for a constant feature), least and largest standardised value of each feature,
            `(4, c, k)`.
        coefficients: theta of the constant and of each standardised feature, `(c, k + 1)`.
        limits: Least and largest log factor before the curve, `(2, c)`.
        curve: g of log variances relative to `units` squared; None for zero in every channel.
    """

    grid: Grid
    width: float
    slopes: Float64[Tensor, "c d"]
    amplitudes: Float64[Tensor, " c"]
    units: Float64[Tensor, " c"]
    standards: Float64[Tensor, "4 c k"]
    coefficients: Float64[Tensor, "c k1"]
    limits: Float64[Tensor, "2 c"]
    curve: VarianceCurve | None = None

    def covers(self, grid: Grid) -> bool:
        """Whether the factor is defined on a grid: uniform on the same domain, or any mesh after a fit on meshes."""
        if not self.grid.is_uniform:
            return is_mesh(grid) and grid.dimension == self.grid.dimension
        return grid.is_uniform and grid.domain == self.grid.domain

    def on(self, grid: Grid) -> LocalFactor:
        """The factor as a function of predictions on a covered grid."""
        reader = Reader.of(self.grid, width=self.width) if self.grid.is_uniform else MeshReader.of(grid)
        return LocalFactor(local=self, reader=reader, grid=grid)

    def standardised(self, feature: Float64[Tensor, "#n c p"], index: int) -> Float64[Tensor, "#n c p"]:
        """A standardised feature, clamped to its range over the calibration samples."""
        center, spread, lower, upper = (part[:, None].to(feature) for part in self.standards[..., index])
        return torch.minimum(torch.maximum((feature - center) / spread, lower), upper)

    def logs(self, read: Quantities) -> Float64[Tensor, "n c p"]:
        """Logarithms of locally averaged predictive variances, relative to `units` squared."""
        return (read.levels / _squares(self.units, read.levels)[:, None] + _TINY).log()

    def features(self, read: Quantities) -> Iterator[Float64[Tensor, "#n c p"]]:
        """Yield the features at all points, not standardised; Fourier modes are equal for all samples."""
        levels = self.logs(read)
        level = (levels * read.mean_weights).sum(-1, keepdim=True)
        yield levels - level
        yield level.expand_as(levels)
        yield (read.variances / _squares(self.units, read.levels)[:, None] + _TINY).log() - levels
        squares = (read.slopes / _squares(self.slopes, read.slopes)[..., None]).mean(2)
        steepness = 0.5 * (squares + _FLOOR**2).log()
        yield steepness
        yield steepness.square()
        yield 0.5 * ((squares * read.mean_weights).sum(-1, keepdim=True) + _TINY).log().expand_as(squares)
        sizes = read.sizes / _squares(self.amplitudes, read.sizes)[:, None]
        yield 0.5 * (sizes + _FLOOR**2).log()
        yield 0.5 * ((sizes * read.mean_weights).sum(-1, keepdim=True) + _TINY).log().expand_as(sizes)
        for wave in read.waves.movedim(-1, 0):
            yield wave[:, None].expand(-1, levels.shape[1], -1)


def interpolated(logs: Float64[Tensor, "*b p"], *, source: Grid, target: Grid) -> Float64[Tensor, "*b q"]:
    """Interpolate logarithms from one grid to another, clamped to their range."""
    if source == target:
        return logs
    values = resample(logs.unflatten(-1, source.shape), source, target).flatten(logs.ndim - 1)
    return torch.minimum(torch.maximum(values, logs.amin(-1, keepdim=True)), logs.amax(-1, keepdim=True))


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalFactor:
    """Factor of variances on one grid.

    Attributes:
        local: The local scale.
        reader: Computes the quantities of the features, on the calibration grid or on meshes.
        grid: Grid of the predictions.
    """

    local: LocalScale
    reader: Reader | MeshReader
    grid: Grid

    def __call__(self, mean: Float[Tensor, "n c *grid"], variance: Float[Tensor, "n c *grid"]) -> Float64[Tensor, "n c p"]:
        """Factors of the predictive variances of n samples, dimensionless.

        Args:
            mean: Predicted means, in physical units.
            variance: Predictive variances t, in physical units squared.
        """
        grid = self.grid.unmasked
        local, fitted_on = self.local, self.local.grid.unmasked if self.local.grid.is_uniform else grid
        read = self.reader(resample(mean, grid, fitted_on), resample(variance, grid, fitted_on).clamp_min(0.0))
        smooth, fine = self.linear(read)
        lower, upper = (limit[:, None].to(smooth) for limit in local.limits)
        total = torch.minimum(torch.maximum(smooth + fine, lower), upper)
        logs = total if local.curve is None else total + local.curve(smooth + local.logs(read))
        return interpolated(logs, source=fitted_on, target=grid).exp()

    def linear(self, read: Quantities) -> tuple[Float64[Tensor, "n c p"], Float64[Tensor, "n c p"]]:
        """Log factor before limits and curve, as the sum over all but the fine feature, and the fine feature's part."""
        weights = self.local.coefficients
        of_position = weights[:, 0, None].to(read.levels)[None]
        smooth, fine = torch.zeros_like(read.levels), torch.zeros_like(read.levels)
        for index, feature in enumerate(self.local.features(read)):
            part = weights[:, index + 1, None].to(feature) * self.local.standardised(feature, index)
            if index == FINE:
                fine = part
            elif index < POINTWISE:
                smooth = smooth + part
            else:
                of_position = of_position + part
        return smooth + of_position, fine


@dataclass(frozen=True, eq=False, kw_only=True)
class Quantities:
    """Quantities of n samples from which features are computed, in float64.

    Attributes:
        variances: Predictive variance, `(n, c, p)`, in physical units squared.
        levels: Local average of the predictive variance.
        slopes: Squared partial derivatives of the predicted mean, `(n, c, d, p)`, in their units squared.
        sizes: Squared distance of the predicted mean from its spatial average, `(n, c, p)`, in physical units squared.
        waves: Fourier modes of the position without the constant, `(1, p, w)`, or features of the position in each mesh,
            `(n, p, w)`.
        mean_weights: Weights of averages over the domain, `(p,)`, or `(n, 1, p)`.
    """

    variances: Float64[Tensor, "n c p"]
    levels: Float64[Tensor, "n c p"]
    slopes: Float64[Tensor, "n c d p"]
    sizes: Float64[Tensor, "n c p"]
    waves: Float64[Tensor, "_ p w"]
    mean_weights: Float64[Tensor, "*n p"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Reader:
    """Computes quantities of predictions on one uniform grid.

    Attributes:
        axes: Axes of the grid.
        averages: Matrices of local averages, one per axis, see `average_matrix`.
        waves: Fourier modes of the position, `(p, w)`.
        mean_weights: Weights of averages over the domain, `(p,)`.
    """

    axes: tuple[Axis, ...]
    averages: tuple[Float64[Tensor, "_ _"], ...]
    waves: Float64[Tensor, "p w"]
    mean_weights: Float64[Tensor, " p"]

    @classmethod
    def of(cls, grid: Grid, *, width: float) -> Reader:
        """Reader on a grid, with local averages of a width relative to the length of the domain."""
        lower, lengths = box_of(grid)
        waves = evaluate_waves(wave_numbers(grid), grid.points, lower=lower, lengths=lengths, periodic=grid.periodic)
        averages = tuple(average_matrix(axis, width * axis.length) for axis in grid.axes)
        return cls(axes=grid.axes, averages=averages, waves=waves, mean_weights=grid.mean_weights)

    def __call__(self, mean: Float[Tensor, "n c *grid"], variance: Float[Tensor, "n c *grid"]) -> Quantities:
        """Compute the quantities of n samples."""
        values = mean.to(torch.float64)
        differences = [difference(values, axis, along=along) for along, axis in enumerate(self.axes)]
        slopes = torch.stack([self._smooth(slope.square()).flatten(2) for slope in differences], 2)
        flat, weights = values.flatten(2), self.mean_weights.to(values)
        variances = variance.to(torch.float64)
        return Quantities(
            variances=variances.flatten(2),
            levels=self._smooth(variances).flatten(2),
            slopes=slopes,
            sizes=self._smooth((flat - (flat * weights).sum(-1, keepdim=True)).square().reshape(values.shape)).flatten(2),
            waves=self.waves.to(values)[None],
            mean_weights=weights,
        )

    def _smooth(self, values: Float64[Tensor, "n c *grid"]) -> Float64[Tensor, "n c *grid"]:
        """Compute local averages."""
        for along, (axis, matrix) in enumerate(zip(self.axes, self.averages, strict=True)):
            dim = along - len(self.axes)
            values = along_axis(values, matrix, dim)
            if len(matrix) < axis.size:
                values = linear(values, axis.size, periodic=axis.periodic, dim=dim)
        return values


@dataclass(frozen=True, eq=False, kw_only=True)
class MeshReader:
    """Computes quantities of predictions on meshes, without local averages.

    Attributes:
        grid: A mesh, or a batch of one mesh per sample.
        meshes: Points and cells of each mesh.
        places: Features of the position, see `mesh_positions`, `(n, w, p)`, or `(1, w, p)` for one mesh.
    """

    grid: Grid
    meshes: list[tuple[Tensor, Tensor]]
    places: Float64[Tensor, "_ w p"]

    @classmethod
    def of(cls, grid: Grid) -> MeshReader:
        """Reader on a mesh, or on a batch of meshes."""
        singles = grid.singles()
        meshes = [(mesh.points, mesh.cells) for mesh in singles if mesh.cells is not None]
        return cls(grid=grid, meshes=meshes, places=torch.stack([_extended(mesh_positions(mesh), grid) for mesh in singles]))

    def __call__(self, mean: Float[Tensor, "n c p"], variance: Float[Tensor, "n c p"]) -> Quantities:
        """Compute the quantities of n samples; at padding, those of the first point."""
        values, weights = mean.to(torch.float64), self.grid.sample_weights.to(mean.device)
        parts = []
        for part, mesh in zip(values.split(1) if self.grid.has_points_per_sample else [values], self.meshes, strict=True):
            points, cells = mesh[0].to(values), mesh[1].to(values.device)
            parts.append(_extended(nodal_gradients(part[..., : len(points)], points, cells).square(), self.grid))
        sizes = (values - (values * weights).sum(-1, keepdim=True)).square()
        observed = self.grid.observed.to(values.device).reshape(-1, 1, self.grid.size)
        sizes, variances = (torch.where(observed, part, part[..., :1]) for part in (sizes, variance.to(torch.float64)))
        places, slopes = self.places.mT.to(values), torch.cat(parts)
        return Quantities(variances=variances, levels=variances, slopes=slopes, sizes=sizes, waves=places, mean_weights=weights)


def _extended(values: Float64[Tensor, "*b q"], grid: Grid) -> Float64[Tensor, "*b p"]:
    """Values of one mesh of a batch, extended to all points of the batch by the first value."""
    return torch.cat([values, values[..., :1].expand(*values.shape[:-1], grid.size - values.shape[-1])], -1)


def mesh_positions(mesh: Grid) -> Float64[Tensor, "d3 p"]:
    """Features of the position in a mesh: coordinates, their squared norm, the log distance to the boundary and its square.

    Coordinates are relative to the centroid, in radii of gyration. Distances are relative to their mean.
    """
    weights, distances = mesh.mean_weights, boundary_distances(mesh.points, mesh.boundary)
    centred = mesh.points - weights @ mesh.points
    squares = centred.square().sum(1) / (weights @ centred.square()).sum()
    log = 0.5 * ((distances / (distances @ weights)).square() + _FLOOR**2).log()
    return torch.cat([centred.mT / (weights @ centred.square()).sum().sqrt(), torch.stack([squares, log, log.square()])])


def is_mesh(grid: Grid) -> bool:
    """Whether a grid is a mesh of full dimension, or a batch of these, without a mask."""
    is_full = grid.cells is not None and grid.cells.shape[-1] == grid.dimension + 1
    return is_full and (grid.has_points_per_sample or not grid.is_masked)


def positions(grid: Grid) -> int:
    """Number of features of the position."""
    return len(wave_numbers(grid)) if grid.is_uniform else grid.dimension + 3


def difference(values: Float64[Tensor, "n c *grid"], axis: Axis, *, along: int) -> Float64[Tensor, "n c *grid"]:
    """Central differences along one axis, in the values' units per the grid's units; one-sided at the ends of the domain."""
    dim = along + 2
    if axis.periodic or axis.size == 1:
        return (values.roll(-1, dim) - values.roll(1, dim)) / (2.0 * spacing(axis))
    steps = values.diff(dim=dim) / spacing(axis)
    count = axis.size - 2
    inside = 0.5 * (steps.narrow(dim, 0, count) + steps.narrow(dim, 1, count))
    return torch.cat([steps.narrow(dim, 0, 1), inside, steps.narrow(dim, count, 1)], dim)


@remembered(2**26)
def average_matrix(axis: Axis, width: float) -> Float64[Tensor, "q m"]:
    """Matrix of averages of nodal values under Gaussians of standard deviation `width`, in the grid's units.

    The Gaussians are centred at the nodes, or on axes with more than 256 nodes at 256 equispaced places. All weights are
    positive.
    """
    places = axis.coordinates
    if axis.size > _PLACES:  # equispaced from the first to the last node, or over the period
        steps = torch.arange(_PLACES, dtype=torch.float64) / (_PLACES if axis.periodic else _PLACES - 1)
        extent = axis.length if axis.periodic else axis.coordinates[-1] - axis.coordinates[0]
        places = axis.coordinates[0] + steps * extent
    distance = (places[:, None] - axis.coordinates).abs()
    if axis.periodic:
        distance = torch.minimum(distance, axis.length - distance)
    kernel = axis.weights * torch.exp(-0.5 * (distance / width).square())
    return kernel / kernel.sum(1, keepdim=True)


def linear(values: Float64[Tensor, "*b"], size: int, *, periodic: bool, dim: int) -> Float64[Tensor, "*b"]:
    """Linear interpolation along `dim` from equispaced nodes to `size` nodes with the same ends, or of the same period."""
    count = values.shape[dim]
    place = torch.arange(size, dtype=torch.float64, device=values.device)
    place = place * (count / size if periodic else (count - 1) / (size - 1))
    lower = place.long().clamp_max(count - 1 if periodic else count - 2)
    upper = (lower + 1) % count
    fraction = (place - lower).reshape(-1, *(1,) * (-1 - dim))
    return torch.lerp(values.index_select(dim, lower), values.index_select(dim, upper), fraction)


def spacing(axis: Axis) -> float:
    """Distance of neighbouring nodes; the length of an axis with one node."""
    return axis.length / max(1, axis.size - axis.endpoint)  # no tensor: its value is not available in exports


def wave_numbers(grid: Grid) -> Int64[Tensor, "w d"]:
    """Lowest Fourier modes that the grid resolves, without the constant."""
    return waves_of(grid)[0][1 : max(1, _WAVES * (1 + grid.dimension) // 2)]


def _squares(units: Tensor, like: Tensor) -> Tensor:
    """Squared units, with 1 in place of 0."""
    squares = units.to(like).square()
    return torch.where(squares > 0, squares, torch.ones_like(squares))


def some_points(grid: Grid, most: int, *, generator: torch.Generator) -> Int64[Tensor, " m"]:
    """Return the sorted indices of all points of a grid, or of `most` random points."""
    if grid.size <= most:
        return torch.arange(grid.size)
    return torch.randperm(grid.size, generator=generator)[:most].sort().values


def knots_of(logs: Float64[Tensor, " n"]) -> Float64[Tensor, " k"] | None:
    """Knots at quantiles of the log variances; None if knots are too close."""
    ordered = logs.sort().values
    places = (torch.tensor(_QUANTILES, dtype=torch.float64) * (len(ordered) - 1)).round().long()
    knots = ordered[places]
    return knots if bool((knots.diff() > _LEAST_SPAN / len(knots)).all()) else None


def bends(logs: Float64[Tensor, "*s"], knots: Float64[Tensor, " k"]) -> Float64[Tensor, "*s k1"]:
    """Basis of the curves: the logarithm, clamped to the outer knots, and its excess over each inner knot.

    Examples:
        >>> bends(
        ...     torch.tensor([0.0, 1.5, 9.0], dtype=torch.float64), torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
        ... ).tolist()
        [[0.0, 0.0], [1.5, 0.5], [2.0, 1.0]]
    """
    clamped = logs.clamp(knots[0], knots[-1])[..., None]
    return torch.cat([clamped, (clamped - knots[1:-1]).clamp_min(0.0)], -1)


@stored(on_cpu=("knots", "heights"))
@dataclass(frozen=True, eq=False, kw_only=True)
class VarianceCurve:
    """Correction of a log variance as a function of itself: piecewise linear between knots, constant beyond.

    Args:
        knots: Increasing knots, `(c, m)`.
        heights: Values at the knots, `(c, m)`; zero in channels without correction.

    Examples:
        >>> curve = VarianceCurve(
        ...     knots=torch.tensor([[0.0, 1.0, 3.0]]).double(), heights=torch.tensor([[2.0, 0.0, 1.0]]).double()
        ... )
        >>> curve(torch.tensor([[[-5.0, 0.5, 2.0, 7.0]]]).double()).tolist()
        [[[2.0, 1.0, 0.5, 1.0]]]
    """

    knots: Float64[Tensor, "c m"]
    heights: Float64[Tensor, "c m"]

    def __call__(self, logs: Float64[Tensor, "n c p"]) -> Float64[Tensor, "n c p"]:
        """Corrections at log variances."""
        knots, heights = self.knots.to(logs)[..., None], self.heights.to(logs)[..., None]
        widths = knots.diff(dim=1)
        slopes = heights.diff(dim=1) / widths
        total = heights[:, 0].expand_as(logs)
        for piece in range(widths.shape[1]):  # a table lookup cannot be exported
            beyond = (logs - knots[:, piece]).clamp_min(0.0)
            total = total + slopes[:, piece] * torch.minimum(beyond, widths[:, piece])
        return total
