"""Linear functionals: integrals and means over the domain, regions and lines, and values and derivatives at points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Int64
from numpy.typing import ArrayLike
from torch import Tensor

from probneural.checks import check_choice, check_finite, check_integer, check_shape, check_shape_among, real_tensor
from probneural.contexts import undisturbed
from probneural.errors import ArgumentError, GridError
from probneural.functionals.base import AlongAxis, Functional, MatrixFunctional, check_unbatched, on_each
from probneural.functionals.regions import (
    Corner,
    Indicator,
    box_corners,
    box_volume,
    fractions,
    gauss_legendre,
    indicator_weights,
    interval_weights,
    points_in_box,
)
from probneural.grids import Grid, check_grid, check_unmasked, interpolation_matrix
from probneural.grids.mesh import boundary_areas
from probneural.linear_algebra.interpolation import POLYNOMIAL_DEGREE

_LINE_NODES = 12
"""Gauss-Legendre nodes on a piece of line within one cell, where polynomials have degree 15 at most in three dimensions."""
_CHUNK_ELEMENTS = 2**22
"""Number of entries of interpolation matrices per chunk (32 MiB)."""


def integral(grid: Grid) -> Functional:
    """The integral over the domain by the grid's quadrature; one number per channel, in the values' units times volume.

    Examples:
        >>> total = integral(Grid.uniform((4,), lengths=2.0))
        >>> total(torch.ones(1, 1, 4)).item()
        2.0
    """
    check_unbatched(check_grid(grid))
    return MatrixFunctional(grid, grid.weights[..., None, :].clone(), labels=("integral",))


@undisturbed()
def average(grid: Grid, *, lower: Corner | None = None, upper: Corner | None = None) -> Functional:
    """The mean over the domain, or over a box: [`region`][probneural.functionals.region] with its two corners.

    Examples:
        >>> half = average(Grid.uniform((3,), periodic=False), upper=[0.5])
        >>> round(half(torch.tensor([[1.0, 2.0, 3.0]])).item(), 6)
        1.5
    """
    return region(grid, lower=lower, upper=upper)


@undisturbed()
def region(
    grid: Grid,
    where: Indicator | ArrayLike | Tensor | None = None,
    *,
    lower: Corner | None = None,
    upper: Corner | None = None,
    reduction: Literal["mean", "integral"] = "mean",
) -> Functional:
    """The mean of a field over a region, or its integral; one number per channel.

    On a uniform grid, a box is integrated exactly: it is the same box on every grid, up to the error of the
    field's interpolant. An indicator function is evaluated on a finer grid. A mask belongs to its grid, as do all regions of
    a scattered or a masked grid: points inside count with their quadrature weights, ends of boxes included.

    Args:
        grid: Any grid.
        where: A mask of the grid's shape, of truth values or of the fraction of each point's cell that is inside; or a
            function of points `(q, d)`, float64, that returns such numbers, `(q,)`. The whole domain by default.
        lower: Lower corner of a box, `(d,)`, in the grid's units; that of the domain by default. On periodic axes a box may
            cross the end.
        upper: Upper corner, likewise.
        reduction: "mean", in the values' units, or "integral", in the values' units times volume.

    Returns:
        A functional of size 1; `stack` several.

    Raises:
        ArgumentError: If both `where` and corners are given, a corner does not have one finite number per dimension, the
            corners are not in order, a number is given as `where`, or the reduction is another one.
        GridError: If a box leaves the domain, or nothing of the domain is inside.
        ShapeError: If the mask does not have the grid's shape, or the function does not return `(q,)`.
        DataError: If the mask or the values of the function are not from 0 to 1.

    Examples:
        >>> grid = Grid.uniform((9,), periodic=False)
        >>> middle = region(grid, lower=[0.3], upper=[0.7], reduction="integral")
        >>> round(middle(grid.points[:, 0].square()[None]).item(), 9) == round((0.7**3 - 0.3**3) / 3, 9)
        True
    """
    check_choice(reduction, ("mean", "integral"), "reduction")
    number: object = where
    if isinstance(number, float | int) and not isinstance(number, bool):
        raise ArgumentError(
            expected="a mask or a function of points as where",
            got=f"the number {number:g}",
            remedy=f"name the corners of a box: lower={number:g}, upper=...; lists of one per dimension",
        )
    is_box = lower is not None or upper is not None
    if where is not None and is_box:
        raise ArgumentError(expected="where, or the corners of a box", got="both", remedy="drop one")
    check_unbatched(check_grid(grid))
    if grid.has_points_per_sample:
        return on_each(grid, lambda single: region(single, where, lower=lower, upper=upper, reduction=reduction))
    if is_box and grid.is_uniform and not grid.is_masked:
        low, high = box_corners(grid, lower, upper)
        weights, volume = torch.ones(1, dtype=torch.float64), box_volume(grid, low, high)
        for axis, start, end in zip(grid.axes, low.tolist(), high.tolist(), strict=True):
            weights = (weights[:, None] * interval_weights(axis, start, end)).flatten()
    else:
        weights, volume = _weights_inside(grid, where, lower, upper)
    label = f"{reduction} over {_described(where, lower, upper)}"
    return MatrixFunctional(grid, (weights / volume if reduction == "mean" else weights)[None], labels=(label,))


@undisturbed()
def line_integral(grid: Grid, path: Tensor | Sequence[Sequence[float]]) -> Functional:
    """The integral of the field's interpolant along a polyline, over arc length in the coordinates; one number per channel.

    Divide by the length for a mean along it: `line_integral(grid, path) * (1 / length)`.

    Args:
        grid: A uniform grid.
        path: Vertices in order, `(k, d)`, two at least, in the grid's units, within the domain; on periodic axes the path may
            cross the end.

    Returns:
        A functional of size 1, in the values' units times length. It is exact, up to rounding, for polynomials of degree
        5 per axis, and Fourier modes that the grid resolves.

    Raises:
        GridError: If the grid is scattered, or the path leaves the domain.
        ShapeError: If the path is not of points of the grid's dimension.
        DataError: If a coordinate is not finite.
        ArgumentError: If the path has no length.

    Examples:
        >>> grid = Grid.uniform((9, 9), periodic=False)
        >>> diagonal = line_integral(grid, [[0.0, 0.0], [0.6, 0.8]])
        >>> round(diagonal(grid.points.sum(1).reshape(1, 9, 9)).item(), 9)  # x + y has mean 0.7 along a length of 1
        0.7
    """
    check_grid(grid, uniform=True, remedy="predict on a uniform grid, by query=")
    vertices = _checked_path(path, grid)
    row = torch.zeros(grid.size, dtype=torch.float64)
    for start, end in pairwise(vertices):
        if grid.dimension == 1:
            low, high = sorted((start.item(), end.item()))
            row += interval_weights(grid.axes[0], low, high)
            continue
        along, weights = gauss_legendre(_crossings(grid, start, end), _LINE_NODES)
        row += _weighted_rows(grid, start + along[:, None] * (end - start), weights * (end - start).norm())
    return MatrixFunctional(grid, row[None], labels=("line integral",))


def _weights_inside(
    grid: Grid, where: Indicator | ArrayLike | Tensor | None, lower: Corner | None, upper: Corner | None
) -> tuple[Tensor, float]:
    """Quadrature weights of a region, `(p,)`, and its volume."""
    check_grid(grid)
    if callable(where) and not isinstance(where, Tensor) and grid.is_uniform and not grid.is_masked:
        weights = indicator_weights(grid, where)
    elif where is not None:
        weights = grid.weights * fractions(grid, where)
    else:
        weights = grid.weights * points_in_box(grid, lower, upper)
    volume = float(weights.sum())
    if not volume > 0:
        raise GridError(
            expected=f"a region with points of {grid!r}",
            got=f"none inside {_described(where, lower, upper)}",
            remedy="enlarge the region, or refine the grid",
        )
    return weights, volume


def _described(where: object, lower: Corner | None, upper: Corner | None) -> str:
    if where is not None:
        name = getattr(where, "__name__", "")
        return name if name.isidentifier() else "a region"
    if lower is None and upper is None:
        return "the domain"
    ends = []
    for corner in (lower, upper):
        numbers = [] if corner is None else torch.as_tensor(corner, dtype=torch.float64).reshape(-1).tolist()
        text = ", ".join(f"{number:.4g}" for number in numbers)
        ends.append(f"({text})" if len(numbers) > 1 else text or "the end")
    return f"{ends[0]} to {ends[1]}"


def _checked_path(path: Tensor | Sequence[Sequence[float]], grid: Grid) -> Tensor:
    vertices = real_tensor(path, "path", dtype=torch.float64, device=torch.device("cpu")).detach()
    check_shape(vertices, "a path", "k", grid.dimension, remedy="one row per vertex")
    check_finite(vertices, "vertices", remedy="drop them")
    for number, axis in enumerate(grid.axes):
        slack, along = 1e-9 * axis.length, vertices[:, number]
        outside = (along < axis.origin - slack) | (along > axis.origin + axis.length + slack)
        if not axis.periodic and bool(outside.any()):
            raise GridError(
                expected=f"a path in [{axis.origin:g}, {axis.origin + axis.length:g}] along axis {number}",
                got=f"{along[outside][0]:g}",
                remedy="cut the path at the domain's ends",
            )
    if not float(vertices.diff(dim=0).norm(dim=1).sum()) > 0:
        raise ArgumentError(expected="a path of positive length", got="none", remedy="read a point with pn.functionals.sensors")
    return vertices


def _crossings(grid: Grid, start: Tensor, end: Tensor) -> Tensor:
    """Where a segment enters cells of the grid, as fractions of it from 0 to 1, ends included."""
    fractions = [torch.tensor([0.0, 1.0], dtype=torch.float64)]
    for axis, first, last in zip(grid.axes, start.tolist(), end.tolist(), strict=True):
        step = axis.length / (max(axis.size - 1, 1) if axis.endpoint else axis.size)
        low, high = ((value - axis.origin) / step for value in sorted((first, last)))
        planes = axis.origin + step * torch.arange(int(low) - 1, int(high) + 2, dtype=torch.float64)
        fraction = (planes - first) / (last - first) if first != last else planes.new_zeros(0)
        fractions.append(fraction[(fraction > 0) & (fraction < 1)])
    return torch.cat(fractions).unique()


def _weighted_rows(grid: Grid, points: Tensor, weights: Tensor) -> Tensor:
    """The sum of weights times the interpolant's values at points, as weights of the grid's values, `(p,)`."""
    total = torch.zeros(grid.size, dtype=torch.float64)
    rows = max(1, _CHUNK_ELEMENTS // max(grid.size // grid.shape[-1], *grid.shape))
    for block, mass in zip(points.split(rows), weights.split(rows), strict=True):
        *others, last = (axis.matrix(block[:, number]) for number, axis in enumerate(grid.axes))
        product = mass[:, None]
        for factor in others:
            product = (product[:, :, None] * factor[:, None, :]).flatten(1)
        total += (product.mT @ last).flatten()
    return total


def sensors(grid: Grid, locations: Tensor | Sequence[Sequence[float]]) -> Functional:
    """The values at m locations, of the field's interpolant: spectral on periodic axes, quintic on others, linear in cells.

    Args:
        grid: A uniform grid, a mesh, or a batch of meshes.
        locations: Coordinates, `(m, d)`, in the grid's units, within the domain; the two ends of a periodic axis are one point.

    Returns:
        A functional of size m.

    Raises:
        GridError: If the grid is scattered, or a location lies outside the domain.

    Examples:
        >>> grid = Grid.uniform((8,))
        >>> probe = sensors(grid, [[0.25], [0.3]])
        >>> probe(torch.sin(2 * torch.pi * grid.points[:, 0])[None])[0].tolist()[0]
        1.0
    """
    points = _locations(locations)
    if check_grid(grid).has_points_per_sample:
        return on_each(grid, lambda single: sensors(single, points))
    return MatrixFunctional(grid, interpolation_matrix(grid, points), labels=_labels("at", points))


def derivative(
    grid: Grid, *, axis: int = 0, order: int = 1, at: Tensor | Sequence[Sequence[float]] | None = None
) -> Functional:
    """A partial derivative of the field's interpolant: spectral on periodic axes, finite differences on others.

    Args:
        grid: A uniform grid.
        axis: Index of the space dimension to differentiate along.
        order: Order of the derivative, at least 1.
        at: Coordinates, `(m, d)`; every grid point by default.

    Returns:
        A functional of size m, in the values' units over the length's units to the power `order`.

    Raises:
        GridError: If the grid is scattered or a location lies outside it.
        ArgumentError: If the axis or the order does not exist, or the order exceeds the degree of the local polynomials.

    Examples:
        >>> grid = Grid.uniform((9,))
        >>> slope = derivative(grid, at=[[0.0]])
        >>> round(slope(torch.sin(2 * torch.pi * grid.points[:, 0])[None]).item() / torch.pi, 9)
        2.0
    """
    check_unmasked(check_grid(grid, uniform=True), "derivatives, or predict with query=grid.unmasked")
    axis = check_integer(axis, "axis", least=0, most=grid.dimension - 1)
    line, remedy = grid.axes[axis], "use more points, or apply lower orders one after the other"
    highest = math.inf if line.periodic else min(POLYNOMIAL_DEGREE, line.size - 1)  # the degree of the axis' interpolant
    order = check_integer(order, f"order along axis {axis}", most=highest, remedy=remedy)
    if at is not None:
        orders = [order if number == axis else 0 for number in range(grid.dimension)]
        points = _locations(at)
        name = f"derivative {order} along axis {axis} at" if order > 1 else f"derivative along axis {axis} at"
        return MatrixFunctional(grid, interpolation_matrix(grid, points, orders=orders), labels=_labels(name, points))
    return AlongAxis(grid, axis=axis, order=order)


@dataclass(frozen=True, eq=False)
class ValuesAt(Functional):
    """Values at a subset of the grid's points, `(m,)`, without a dense selection matrix."""

    grid: Grid
    points: Int64[Tensor, " m"]

    @property
    def size(self) -> int:
        """Number of points."""
        return len(self.points)

    def _forward(self, values: Tensor) -> Tensor:
        return values.flatten(values.ndim - len(self.grid.shape))[..., self.points.to(values.device)]

    def _adjoint(self, numbers: Tensor) -> Tensor:
        spread = numbers.new_zeros(*numbers.shape[:-1], self.grid.size)
        return spread.index_copy(-1, self.points.to(numbers.device), numbers).unflatten(-1, self.grid.shape)


def _locations(locations: Tensor | Sequence[Sequence[float]]) -> Tensor:
    points = real_tensor(locations, "locations", dtype=torch.float64, device=torch.device("cpu"))
    check_shape(points, "locations", "m", "d", remedy="write [[0.25], [0.75]] for two in 1-D")
    return points


def _labels(name: str, points: Tensor) -> tuple[str, ...]:
    """Names with locations: "at (0.25, 0.5)"."""
    return tuple(f"{name} ({', '.join(f'{coordinate:.4g}' for coordinate in point)})" for point in points.tolist())


@undisturbed()
def boundary_integral(
    grid: Grid,
    where: Indicator | ArrayLike | Tensor | None = None,
    *,
    direction: Tensor | Sequence[float] | Sequence[Sequence[float]] | None = None,
) -> Functional:
    """The integral over the boundary of a mesh of values that are linear in each facet; one number per channel.

        ∫_S u ds,   or with a direction e and the outward unit normal n   ∫_S u n·e ds

    It is exact for linear fields on the polygon or polyhedron of the mesh. On a curved boundary the error is of second order in
    the length of the facets.

    Args:
        grid: A mesh of full dimension, or a batch of meshes.
        where: The part S of the boundary: facets whose points are all inside. A function of points `(q, d)`, float64, that
            returns truth values `(q,)`, or of one mesh a mask `(p,)`; the whole boundary by default.
        direction: Vector e, `(d,)`, or `(n, d)` with one per mesh of a batch; dimensionless.

    Returns:
        A functional of size 1, in the values' units times area.

    Raises:
        GridError: If the grid has no cells, they are not of full dimension, or no facet is inside.
        ShapeError: If the direction does not have the shape above, or the mask or the function's values not theirs.
        DataError: If the direction is not finite, or the mask holds no truth values.

    Examples:
        >>> square = Grid.mesh([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[0, 1, 2], [1, 2, 3]])
        >>> x = square.points[:, 0]
        >>> boundary_integral(square)(x[None]).item()
        2.0
        >>> boundary_integral(square, direction=[1.0, 0.0])(x[None]).item()  # the divergence of (x, 0) is 1
        1.0
    """
    cells = check_grid(grid).cells
    if cells is None:
        raise GridError(expected="a mesh", got=repr(grid), remedy="make it by Grid.mesh(points, cells)")
    vector = None if direction is None else _checked_direction(direction, grid)
    if grid.has_points_per_sample:
        vectors = [None] * len(grid.weights) if vector is None else vector.expand(len(grid.weights), -1)
        return on_each(grid, lambda single, vector: boundary_integral(single, where, direction=vector), vectors)
    facets, areas = boundary_areas(grid.points, cells)
    if where is not None:
        inside = (fractions(grid, where)[facets] > 0).all(1)
        facets, areas = facets[inside], areas[inside]
    if not len(facets):
        raise GridError(
            expected="a part of the boundary", got="no facet inside", remedy="widen the part: where holds for points"
        )
    # each of the d points of a facet has 1/d of its area, or of the area's component along e
    weights = areas.norm(dim=1) if vector is None else areas @ vector
    per_point = (weights / grid.dimension).repeat_interleave(grid.dimension)
    row = torch.zeros(grid.size, dtype=torch.float64).index_add_(0, facets.flatten(), per_point)
    return MatrixFunctional(grid, row[None], labels=("boundary integral",))


def _checked_direction(direction: object, grid: Grid) -> Tensor:
    vector = real_tensor(direction, "direction", dtype=torch.float64, device=torch.device("cpu")).detach()
    shapes = [(grid.dimension,), (len(grid.weights), grid.dimension)][: 1 + grid.has_points_per_sample]
    check_shape_among(vector, "a direction", *shapes, remedy="one number per coordinate; one vector per mesh of a batch")
    check_finite(vector, "direction", remedy="give a finite vector")
    return vector
