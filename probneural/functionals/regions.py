"""Regions of a domain, by a box, a mask or an indicator function, and the maximum over a region."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from numpy.typing import ArrayLike
from torch import Tensor

from probneural.checks import as_array, check_finite, described, real_tensor
from probneural.contexts import Undisturbed, undisturbed
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.functionals.base import check_unbatched
from probneural.grids import Axis, Grid, along_axis, check_grid, check_on_grid
from probneural.linear_algebra.interpolation import POLYNOMIAL_DEGREE, polynomial_matrix

Indicator = Callable[[Float64[Tensor, "q d"]], Tensor]
"""Maps points `(q, d)` to truth values `(q,)`, or to fractions from 0 to 1."""
Corner = float | Sequence[float] | Tensor
"""Coordinates `(d,)`; on a line, one number."""

_AREA_NODES = 8
"""Gauss-Legendre nodes between two latitudes, where a polynomial of degree 5 times a cosine is integrated."""
_SLACK = 1e-9
"""Tolerance of coordinates at the domain's ends, as a fraction of the length."""
_MOST_PARTS = 32
"""Maximum number of subdivisions of a cell along each axis that locate the boundary of an indicator function."""
_MOST_POINTS = 2**21
"""Maximum number of points at which that function is evaluated (16 MiB per coordinate)."""
_WINDOW = 768
"""Number of points per evaluation of an axis' polynomials."""
_MARGIN = 2 * (POLYNOMIAL_DEGREE + 1)
"""Nodes to both sides of them, so that the polynomials are those of the whole axis."""
_MOST_ENTRIES = 2**25
"""Entries of the interpolation matrix of one axis (256 MiB)."""


def gauss_legendre(ends: Float64[Tensor, " k"], count: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of composite Gauss-Legendre quadrature between increasing numbers, `((k - 1) count,)` each."""
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(count))
    half, middle = 0.5 * ends.diff(), 0.5 * (ends[1:] + ends[:-1])
    return (middle[:, None] + half[:, None] * nodes).flatten(), (half[:, None] * weights).flatten()


def box_corners(grid: Grid, lower: Corner | None, upper: Corner | None) -> tuple[Tensor, Tensor]:
    """The corners of a box on a uniform grid, `(d,)` each; None stands for the corner of the domain.

    Raises:
        ArgumentError: If a corner is not d finite numbers, or the lower one is not below the upper one.
        GridError: If the box leaves the domain, or on periodic axes is longer than the period.
    """
    ends = torch.tensor([axis.ends for axis in grid.axes], dtype=torch.float64)
    origin, length = ends[:, 0], torch.tensor(grid.lengths, dtype=torch.float64)
    length = torch.where(torch.tensor([axis.latitudes is None for axis in grid.axes]), length, ends[:, 1] - origin)
    low = origin if lower is None else check_corner(lower, grid)
    high = origin + length if upper is None else check_corner(upper, grid)
    check_order(low, high)
    around, slack = torch.tensor(grid.periodic), _SLACK * length
    leaves = (~around & ((low < origin - slack) | (high > origin + length + slack))) | (high - low > length + slack)
    if bool(leaves.any()):
        raise GridError(
            expected=f"a box inside the domain from {origin.tolist()} to {(origin + length).tolist()}, or one that crosses the "
            "ends of a periodic axis and is no longer than it",
            got=f"{low.tolist()} to {high.tolist()}",
            remedy="cut the box at the domain's ends",
        )
    return low, high


def box_volume(grid: Grid, low: Float64[Tensor, " d"], high: Float64[Tensor, " d"]) -> float:
    """The volume of a box on a uniform grid; latitudes count by their area on the sphere."""
    extents = high - low
    for number, axis in enumerate(grid.axes):
        if axis.latitudes is not None:
            extents[number] = torch.rad2deg(torch.deg2rad(high[number]).sin() - torch.deg2rad(low[number]).sin())
    return float(extents.prod())


def check_corner(corner: object, grid: Grid) -> Tensor:
    """Return one coordinate per dimension, `(d,)`; on a line, a number will do.

    Raises:
        ArgumentError: If it is not d finite numbers.
    """
    bound = real_tensor(corner, "a corner", dtype=torch.float64, device=torch.device("cpu"), error=ArgumentError).detach()
    bound = bound.reshape(1) if bound.ndim == 0 and grid.dimension == 1 else bound
    if bound.shape != (grid.dimension,) or not bool(torch.isfinite(bound).all()):
        raise ArgumentError(
            expected=f"a corner of {grid.dimension} finite numbers",
            got=repr(corner),
            remedy=f"give a list of one per dimension: {[0.5] * grid.dimension}",
        )
    return bound


def check_order(lower: Tensor, upper: Tensor) -> None:
    """Raise an ArgumentError unless one corner is below the other."""
    if not bool((lower < upper).all()):
        raise ArgumentError(
            expected="a lower corner below the upper one", got=f"{lower.tolist()} and {upper.tolist()}", remedy="swap them"
        )


def points_in_box(grid: Grid, lower: Corner | None, upper: Corner | None) -> Tensor:
    """Mask of the points in a box, ends included, `(p,)`; on periodic axes the box may cross the domain's ends.

    Raises:
        ArgumentError: If a corner is not d finite numbers, or the lower one is not below the upper one.
        GridError: If the box leaves a uniform grid's domain, or on periodic axes is longer than the period.
    """
    if grid.is_uniform:
        return _inside(grid, *box_corners(grid, lower, upper))
    inside = torch.ones(grid.size, dtype=torch.bool)
    low, high = (None if corner is None else check_corner(corner, grid) for corner in (lower, upper))
    if low is not None and high is not None:
        check_order(low, high)
    for corner, sign in ((low, 1.0), (high, -1.0)):
        if corner is not None:
            inside &= (sign * (grid.points - corner) >= 0).all(1)
    return inside


def _inside(grid: Grid, low: Tensor, high: Tensor) -> Tensor:
    """Mask of the points of a uniform grid between two corners, up to rounding and modulo periods, `(p,)`."""
    length = torch.tensor(grid.lengths, dtype=torch.float64)
    slack, beyond = _SLACK * length, grid.points - low
    around = torch.remainder(beyond + slack, length) - slack
    along = torch.where(torch.tensor(grid.periodic), around, beyond)
    return ((along >= -slack) & (along <= high - low + slack)).all(1)


def fractions(grid: Grid, where: Indicator | ArrayLike | Tensor) -> Float64[Tensor, " p"]:
    """Fraction of each point's cell inside a region, `(p,)`: a mask, or an indicator function at the points.

    Raises:
        DataError: If it is neither, or not from 0 to 1.
        ShapeError: If a mask does not have the grid's shape, or the function does not return `(q,)`.
    """
    check_grid(grid)
    if callable(where) and not isinstance(where, Tensor):
        return _asked(where, grid.points)
    return _numbers(where, grid.shape, "where", "a mask has the grid's shape; a function takes points (q, d)").flatten()


def indicator_weights(grid: Grid, inside: Indicator) -> Float64[Tensor, " p"]:
    """Weights of the integral of a uniform grid's interpolant over the inside of an indicator function.

    The cells between grid points are divided into parts, and the function decides in the middle of each.
    """
    intervals = [_intervals(axis) for axis in grid.axes]
    along = [_MOST_ENTRIES / (count * axis.size) for count, axis in zip(intervals, grid.axes, strict=True) if not axis.periodic]
    parts = int(min(_MOST_PARTS, (_MOST_POINTS / math.prod(intervals)) ** (1.0 / grid.dimension), *along))
    if parts < 1:  # the grid itself is as fine as that
        return grid.weights * _asked(inside, grid.points)
    axes = []
    for count, axis in zip(intervals, grid.axes, strict=True):
        origin, length = axis.ends[0], axis.length if axis.latitudes is None else axis.ends[1] - axis.ends[0]
        first = origin + 0.5 * length / (count * parts)
        axes.append(Axis(count * parts, length, periodic=True, endpoint=False, origin=first))
    fine = Grid(shape=tuple(axis.size for axis in axes), axes=tuple(axes))
    weights = (fine.weights * _asked(inside, fine.points)).reshape(fine.shape)
    for number, axis in enumerate(grid.axes):
        if axis.latitudes is not None:
            density = _area_density(axes[number].coordinates)
            weights = weights * density.reshape(-1, *(1,) * (grid.dimension - 1 - number))
    for number, (axis, middle) in enumerate(zip(grid.axes, axes, strict=True)):
        along_this = number - grid.dimension
        if axis.periodic:
            weights = _shifted_back(weights.movedim(along_this, -1), parts).movedim(-1, along_this)
        else:
            weights = along_axis(weights, axis.matrix(_within(axis, middle.coordinates)).mT, along_this)
    return weights.flatten()


def _intervals(axis: Axis) -> int:
    """Number of intervals between points, and beyond the outermost latitudes."""
    count = max(axis.size - 1, 1) if axis.endpoint else axis.size
    return count if axis.latitudes is None else math.ceil(count * (axis.ends[1] - axis.ends[0]) / axis.length - 1e-9)


def _within(axis: Axis, points: Float64[Tensor, " q"]) -> Float64[Tensor, " q"]:
    """Points of evaluation, clipped to the outermost latitudes."""
    if axis.latitudes is None:
        return points
    nodes = axis.coordinates
    return points.clamp(nodes[0], nodes[-1])


def _area_density(latitudes: Float64[Tensor, " q"]) -> Float64[Tensor, " q"]:
    """Square degrees of the sphere per degree of latitude and of longitude: the cosine."""
    return torch.deg2rad(latitudes).cos()


def _shifted_back(weights: Tensor, parts: int) -> Tensor:
    """From weights of a periodic interpolant's values at the middles of parts to those of its nodes, along the last axis.

    Values at the j-th parts of all cells are the interpolant shifted by (j + 1/2) / parts of a cell: a phase per wave. This is
    the transposed map, which shifts back.
    """
    size = weights.shape[-1] // parts
    spectrum = torch.fft.rfft(weights.unflatten(-1, (size, parts)), dim=-2)
    turns = torch.arange(size // 2 + 1, dtype=torch.float64)[:, None] * (torch.arange(parts, dtype=torch.float64) + 0.5)
    phases = -2.0 * math.pi / (size * parts) * turns
    return torch.fft.irfft((spectrum * torch.polar(torch.ones_like(phases), phases)).sum(-1), n=size)


def interval_weights(axis: Axis, lower: float, upper: float) -> Float64[Tensor, " size"]:
    """Weights of the exact integral of an axis' interpolant between two coordinates.

    On a periodic axis the interpolant is a sum of Fourier modes, with integrals in closed form; elsewhere it is a polynomial of
    degree 5 at most from point to point, for which three Gauss-Legendre nodes are enough. Latitudes count by their area on the
    sphere.
    """
    if axis.periodic:
        wavenumbers = torch.arange(axis.size // 2 + 1, dtype=torch.float64)
        width, middle = (upper - lower) / axis.length, (0.5 * (upper + lower) - axis.origin) / axis.length
        size = width * axis.length * torch.sinc(wavenumbers * width)
        return torch.fft.irfft(torch.polar(torch.ones_like(size), -2.0 * math.pi * wavenumbers * middle) * size, n=axis.size)
    nodes = axis.coordinates
    between = nodes[(nodes > lower) & (nodes < upper)]
    ends = torch.cat([torch.tensor([lower], dtype=torch.float64), between, torch.tensor([upper], dtype=torch.float64)])
    points, weights = gauss_legendre(ends, 3 if axis.latitudes is None else _AREA_NODES)
    if axis.latitudes is not None:
        points, weights = _within(axis, points), weights * _area_density(points)
    total = torch.zeros_like(nodes)
    for block, mass in zip(points.split(_WINDOW), weights.split(_WINDOW), strict=True):
        positions = (block[[0, -1]] - nodes[0]) / (axis.length / max(axis.size - axis.endpoint, 1))
        first = min(max(int(positions[0]) - _MARGIN, 0), max(axis.size - _MARGIN, 0))
        window = slice(first, int(positions[1]) + 1 + _MARGIN)
        total[window] += mass @ polynomial_matrix(nodes[window], block)
    return total


def _asked(inside: Indicator, points: Tensor) -> Tensor:
    return _numbers(inside(points), (len(points),), "the result of the function", "it takes points (q, d) and returns (q,)")


def _numbers(values: object, shape: tuple[int, ...], name: str, remedy: str) -> Tensor:
    """Truth values or fractions as float64 on the CPU."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else as_array(values)
    if array.dtype.kind not in "biuf":
        raise DataError(expected=f"truth values as {name}", got=described(values), remedy=remedy)
    if array.shape != shape:
        raise ShapeError(expected=f"{name} of shape {shape}", got=str(array.shape), remedy=remedy)
    numbers = torch.from_numpy(array.astype(np.float64))
    check_finite(numbers, name, remedy=remedy)
    if not bool(((numbers >= 0) & (numbers <= 1)).all()):
        raise DataError(expected=f"truth values, or fractions from 0 to 1, as {name}", got="others", remedy=remedy)
    return numbers


@dataclass(frozen=True, eq=False)
class Maximum(Undisturbed):
    """The largest value at some of a grid's points; see [`maximum`][probneural.functionals.maximum].

    Args:
        grid: Grid of the fields.
        inside: Mask of the region, `(p,)`.
        labels: The name of the number.
    """

    grid: Grid
    inside: Bool[Tensor, " p"]
    _: KW_ONLY
    labels: tuple[str, ...] | None = ("maximum",)

    @property
    def size(self) -> int:
        """One number per channel."""
        return 1

    def __call__(self, values: Float[Tensor, "..."]) -> Float[Tensor, "... 1"]:
        """Find the maximum of values `(..., *grid.shape)`, in their dtype and on their device; arrays will do.

        Raises:
            DataError: If they are not real numbers.
            ShapeError: If the values do not end in the grid's shape.
        """
        numbers = real_tensor(values, "values")
        check_on_grid(numbers, self.grid)
        flat = numbers.flatten(numbers.ndim - len(self.grid.shape))
        return flat[..., self.inside.to(flat.device)].amax(-1, keepdim=True)


@undisturbed()
def maximum(
    grid: Grid, where: Indicator | ArrayLike | Tensor | None = None, *, lower: Corner | None = None, upper: Corner | None = None
) -> Maximum:
    """The largest value at the grid's points, or at those in a region; one number per channel, in the values' units.

    Masked points are left out.

    It is not linear. `maximum(grid)(values)` is the maximum of given fields; for a distribution,
    `u.apply_by_draws(maximum(grid))` is an empirical distribution with quantiles and intervals, and the maximum of the mean is
    not the mean of the maximum. Between points a field can be larger: predict on a finer grid by `query=`.

    Args:
        grid: Any grid.
        where: A mask of the grid's shape, or a function of points `(q, d)` that returns truth values `(q,)`; every point by
            default.
        lower: Lower corner of a box, `(d,)`, in the grid's units; ends are included. On periodic axes a box may cross the
            domain's ends.
        upper: Upper corner, likewise.

    Raises:
        ArgumentError: If both `where` and corners are given, or a corner does not have one finite number per dimension.
        GridError: If a box leaves the domain, or no point is inside.
        ShapeError: If the mask does not have the grid's shape, or the function does not return `(q,)`.
        DataError: If the mask or the values of the function are not boolean.

    Examples:
        >>> maximum(Grid.uniform((4,)), upper=[0.3])([[1.0, 2.0, 9.0, 9.0]]).item()
        2.0
    """
    check_unbatched(check_grid(grid), takes_meshes=False)
    if where is not None and (lower is not None or upper is not None):
        raise ArgumentError(expected="where, or the corners of a box", got="both", remedy="drop one")
    inside = points_in_box(grid, lower, upper) if where is None else fractions(grid, where) > 0
    inside = inside & grid.observed.flatten()
    if not bool(inside.any()):
        raise GridError(
            expected=f"a region with points of {grid!r}", got="none inside", remedy="enlarge the region, or refine the grid"
        )
    return Maximum(grid, inside)
