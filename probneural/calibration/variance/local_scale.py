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
"""Slopes and amplitudes, relative to their root mean squares, below which they count as equal."""
_TINY = 1e-30
"""Added to relative squares before a logarithm."""
_WAVES = 17
"""Waves of the position in one dimension, the constant included; half as many more for each further dimension."""
_PLACES = 256
"""Places of the averages along an axis, at most."""
POINTWISE = 8
"""Features that are no waves."""
FINE = 2
"""The feature that is not averaged over neighbourhoods."""
_QUANTILES = (0.005, 0.02, 0.06, 0.15, 0.3, 0.5, 0.7, 0.85, 0.94, 0.98, 0.995)
"""Where knots lie among the logarithms: the largest variances make most of the squared error, so knots are dense there."""
_LEAST_SPAN = 0.1
"""Distance of the outer knots below which there is nothing to bend."""


@stored(on_cpu=("slopes", "amplitudes", "units", "standards", "coefficients", "limits"))
@dataclass(frozen=True, eq=False, kw_only=True)
class LocalScale:
    """h_c(x; u) = exp(sum over j of coefficients_cj phi_cj(x; u) + g_c), a factor of the predictive variance t of one function.

    Features phi are dimensionless and know nothing of the truth: the logarithm of t, relative to its mean along the function,
    and this mean; the logarithm of the predicted mean's slope, its square, and that of its root mean square; the
    logarithm of the distance of the predicted mean from its average, along the function and as a whole; and waves of the
    position. So errors may grow at a front, at a wall, or with the whole function. Variances and squares are first averaged
    over a neighbourhood, so that h is smooth. One more feature is t relative to its average over the neighbourhood: where
    such ups and downs say nothing of errors, h takes them out. Features are kept in the range that calibration fields span,
    and so is what they make of it together: nothing is extrapolated.

    The curve g corrects the result as a function of itself: of the logarithm of t times what the features make of it. It is
    straight between knots and constant beyond, so that variances over many orders of magnitude are right at each.

    Features are read off the interpolants of mean and variance at the points of the calibration grid, and the logarithm of the
    factor is interpolated to others: the factor is one function, seen at several resolutions, up to the walls.

    On meshes there are no averages over neighbourhoods. In place of waves, features are the position in the mesh and the
    distance to its boundary (see `mesh_positions`), so that errors may grow at a surface.

    Args:
        grid: That of the calibration outputs, uniform; or their first mesh.
        width: Standard deviation of the Gaussian neighbourhood, in lengths of the domain along each axis.
        slopes: Root mean square of each partial derivative, `(c, d)`, in physical units per the grid's units.
        amplitudes: Root mean square distance of the mean from its average, `(c,)`, in physical units.
        units: Square root of the mean predictive variance, `(c,)`, in physical units.
        standards: Mean of each feature, its standard deviation (1 where there is none), and the least and the largest
            standardised value, `(4, c, k)`.
        coefficients: Of the constant and then of each standardised feature, `(c, k + 1)`.
        limits: The least and the largest logarithm of the factor before the curve, `(2, c)`.
        curve: g, of logarithms of variances in units squared; None where it would be zero in every channel.
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
        """Whether the factor is defined on this grid: a uniform one of the domain, or any mesh if it was fitted on meshes."""
        if not self.grid.is_uniform:
            return is_mesh(grid) and grid.dimension == self.grid.dimension
        domains = [[(axis.origin, axis.length, axis.periodic) for axis in where.axes] for where in (grid, self.grid)]
        return grid.is_uniform and domains[0] == domains[1]

    def on(self, grid: Grid) -> LocalFactor:
        """The factor as a function of predictions on a grid that is covered."""
        reader = Reader.of(self.grid, width=self.width) if self.grid.is_uniform else MeshReader.of(grid)
        return LocalFactor(local=self, reader=reader, grid=grid)

    def standardised(self, feature: Float64[Tensor, "#n c p"], index: int) -> Float64[Tensor, "#n c p"]:
        """A feature less its mean, in units of its standard deviation, kept between its least and its largest value."""
        center, spread, lower, upper = (part[:, None].to(feature) for part in self.standards[..., index])
        return torch.minimum(torch.maximum((feature - center) / spread, lower), upper)

    def logs(self, read: Quantities) -> Float64[Tensor, "n c p"]:
        """Logarithms of the predictive variances, in units squared."""
        return (read.levels / _squares(self.units, read.levels)[:, None] + _TINY).log()

    def features(self, read: Quantities) -> Iterator[Float64[Tensor, "#n c p"]]:
        """The features at all points, one after another, not yet standardised; waves are the same for all functions."""
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
    """Logarithms at the points of one grid, read at those of another, within the range that they have."""
    if source == target:
        return logs
    values = resample(logs.unflatten(-1, source.shape), source, target).flatten(logs.ndim - 1)
    return torch.minimum(torch.maximum(values, logs.amin(-1, keepdim=True)), logs.amax(-1, keepdim=True))


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalFactor:
    """What a local scale multiplies variances by on one grid.

    Attributes:
        local: The local scale.
        reader: What reads predictions on the calibration grid.
        grid: Where predictions are.
    """

    local: LocalScale
    reader: Reader | MeshReader
    grid: Grid

    def __call__(self, mean: Float[Tensor, "n c *grid"], variance: Float[Tensor, "n c *grid"]) -> Float64[Tensor, "n c p"]:
        """The factor of the predictive variances of n functions, dimensionless.

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
        """What the features make of it: the logarithm of the factor before limits and curve, and what the fine one adds."""
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
    """What features are made of: quantities of n functions in float64.

    Attributes:
        variances: Predictive variance, `(n, c, p)`, in physical units squared.
        levels: The same, averaged over neighbourhoods.
        slopes: Squared partial derivatives of the predicted mean, `(n, c, d, p)`, in their units squared.
        sizes: Squared distance of the predicted mean from its average, `(n, c, p)`, in physical units squared.
        waves: Of the position, `(1, p, w)`, the constant left out; or features of the position in each mesh, `(n, p, w)`.
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
    """Reads predictions on one grid.

    Attributes:
        axes: Of the grid.
        averages: Over neighbourhoods, one per axis, see `average_matrix`.
        waves: Of the position, `(p, w)`.
        mean_weights: Weights of averages over the domain, `(p,)`.
    """

    axes: tuple[Axis, ...]
    averages: tuple[Float64[Tensor, "_ _"], ...]
    waves: Float64[Tensor, "p w"]
    mean_weights: Float64[Tensor, " p"]

    @classmethod
    def of(cls, grid: Grid, *, width: float) -> Reader:
        """What reads predictions on a grid, with averages of this width in lengths of the domain."""
        lower, lengths = box_of(grid)
        waves = evaluate_waves(wave_numbers(grid), grid.points, lower=lower, lengths=lengths, periodic=grid.periodic)
        averages = tuple(average_matrix(axis, width * axis.length) for axis in grid.axes)
        return cls(axes=grid.axes, averages=averages, waves=waves, mean_weights=grid.mean_weights)

    def __call__(self, mean: Float[Tensor, "n c *grid"], variance: Float[Tensor, "n c *grid"]) -> Quantities:
        """Read the predictions of n functions."""
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
        """Average over neighbourhoods."""
        for along, (axis, matrix) in enumerate(zip(self.axes, self.averages, strict=True)):
            dim = along - len(self.axes)
            values = along_axis(values, matrix, dim)
            if len(matrix) < axis.size:
                values = linear(values, axis.size, periodic=axis.periodic, dim=dim)
        return values


@dataclass(frozen=True, eq=False, kw_only=True)
class MeshReader:
    """Reads predictions on meshes, without averages over neighbourhoods.

    Attributes:
        grid: A mesh, or a batch of one per sample.
        meshes: Points and cells of each.
        places: Features of the position, see `mesh_positions`, `(n, w, p)`, or `(1, w, p)` of one mesh.
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
        """Read the predictions of n samples. Quantities at padding are those of the first point."""
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
    """Central differences along one axis, in the values' units per the grid's units; one-sided where the domain ends."""
    dim = along + 2
    if axis.periodic or axis.size == 1:
        return (values.roll(-1, dim) - values.roll(1, dim)) / (2.0 * spacing(axis))
    steps = values.diff(dim=dim) / spacing(axis)
    count = axis.size - 2
    inside = 0.5 * (steps.narrow(dim, 0, count) + steps.narrow(dim, 1, count))
    return torch.cat([steps.narrow(dim, 0, 1), inside, steps.narrow(dim, count, 1)], dim)


@remembered(2**26)
def average_matrix(axis: Axis, width: float) -> Float64[Tensor, "q m"]:
    """Averages of nodal values under Gaussians of standard deviation `width`, in the grid's units: all weights are positive.

    The Gaussians stand at the nodes; of a long axis, at fewer places, a small fraction of the width apart.
    """
    places = axis.coordinates
    if axis.size > _PLACES:  # equispaced, from the first node to the last one, or around
        steps = torch.arange(_PLACES, dtype=torch.float64) / (_PLACES if axis.periodic else _PLACES - 1)
        extent = axis.length if axis.periodic else axis.coordinates[-1] - axis.coordinates[0]
        places = axis.coordinates[0] + steps * extent
    distance = (places[:, None] - axis.coordinates).abs()
    if axis.periodic:
        distance = torch.minimum(distance, axis.length - distance)
    kernel = axis.weights * torch.exp(-0.5 * (distance / width).square())
    return kernel / kernel.sum(1, keepdim=True)


def linear(values: Float64[Tensor, "*b"], size: int, *, periodic: bool, dim: int) -> Float64[Tensor, "*b"]:
    """Linear interpolation from equispaced places to more of them, between the same ends or around."""
    count = values.shape[dim]
    place = torch.arange(size, dtype=torch.float64, device=values.device)
    place = place * (count / size if periodic else (count - 1) / (size - 1))
    lower = place.long().clamp_max(count - 1 if periodic else count - 2)
    upper = (lower + 1) % count
    fraction = (place - lower).reshape(-1, *(1,) * (-1 - dim))
    return torch.lerp(values.index_select(dim, lower), values.index_select(dim, upper), fraction)


def spacing(axis: Axis) -> float:
    """Distance of neighbouring nodes; the length of an axis with one node."""
    return axis.length / max(1, axis.size - axis.endpoint)  # without a tensor, whose values an export cannot read


def wave_numbers(grid: Grid) -> Int64[Tensor, "w d"]:
    """The lowest waves that the grid resolves, without the constant."""
    return waves_of(grid)[0][1 : max(1, _WAVES * (1 + grid.dimension) // 2)]


def _squares(units: Tensor, like: Tensor) -> Tensor:
    """Squares to divide by: 1 where there is nothing to compare with."""
    squares = units.to(like).square()
    return torch.where(squares > 0, squares, torch.ones_like(squares))


def some_points(grid: Grid, most: int, *, generator: torch.Generator) -> Int64[Tensor, " m"]:
    """Return the sorted indices of all points of a grid, or of `most` random points."""
    if grid.size <= most:
        return torch.arange(grid.size)
    return torch.randperm(grid.size, generator=generator)[:most].sort().values


def knots_of(logs: Float64[Tensor, " n"]) -> Float64[Tensor, " k"] | None:
    """Knots at quantiles of the logarithms of variances; None where these hardly differ."""
    ordered = logs.sort().values
    places = (torch.tensor(_QUANTILES, dtype=torch.float64) * (len(ordered) - 1)).round().long()
    knots = ordered[places]
    return knots if bool((knots.diff() > _LEAST_SPAN / len(knots)).all()) else None


def bends(logs: Float64[Tensor, "*s"], knots: Float64[Tensor, " k"]) -> Float64[Tensor, "*s k1"]:
    """What spans the curves: the logarithm, kept between the outer knots, and its excess over each inner one.

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
    """What is added to the logarithm of a variance, as a function of it: straight between knots, constant beyond.

    Args:
        knots: Increasing, `(c, m)`.
        heights: At the knots, `(c, m)`; zero in channels to which nothing is added.

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
        """Heights at logarithms of variances."""
        knots, heights = self.knots.to(logs)[..., None], self.heights.to(logs)[..., None]
        widths = knots.diff(dim=1)
        slopes = heights.diff(dim=1) / widths
        total = heights[:, 0].expand_as(logs)
        for piece in range(widths.shape[1]):  # not a table lookup, which exported files could not hold
            beyond = (logs - knots[:, piece]).clamp_min(0.0)
            total = total + slopes[:, piece] * torch.minimum(beyond, widths[:, piece])
        return total
