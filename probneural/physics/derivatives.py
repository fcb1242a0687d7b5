"""Derivatives of fields that depend on the grid's boundary, and of outputs of operators at query points.

On a periodic axis the trigonometric interpolant is differentiated. On an axis with walls, polynomials of degree 5 through the
six nearest points are differentiated, one-sided near the ends: the derivative of order k has an error O(h^(6 - k)), and the
degree is lower with fewer points. On a mesh, values are linear in each cell; gradients are averages over the cells of a point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.arrays.plausibility import seam_jumps
from probneural.checks import check_count, check_instance, check_integer, check_least, check_sequence
from probneural.contexts import is_transformed, outside_of_transforms, plain_operations, remembered, undisturbed
from probneural.errors import ArgumentError, DataWarning, GridError, ShapeError, UnsupportedError, warn
from probneural.fields import Field, check_field, evaluate
from probneural.grids import Grid, check_grid, check_unmasked
from probneural.grids.axes import transfer
from probneural.grids.mesh import nodal_gradients
from probneural.operators import Operator, PointFNO

TIME = "t"
"""Name of the axis of time of a grid of space and time."""


def time_axis(grid: Grid) -> int | None:
    """Index of the axis named "t"; None without one."""
    return next((number for number, axis in enumerate(grid.axes) if axis.name == TIME), None)


def space_axes(grid: Grid) -> tuple[int, ...]:
    """Indices of the axes of space."""
    return tuple(number for number in range(grid.dimension) if number != time_axis(grid))


def partial(field: Field, axis: int, *, order: int = 1) -> Field:
    """The derivative of each channel along one axis of a uniform grid, or one coordinate of a mesh.

    Args:
        field: `(n, c, *grid)`.
        axis: Index of the axis.
        order: Order of the derivative, 1 to 4; only 1 on a mesh.

    Returns:
        `(n, c, *grid)`, in the field's units per length to the power of the order; differentiable.

    Raises:
        GridError: If the grid is a sphere's, masked, has points without cells, or no more points along the axis than the order.
        ArgumentError: If the axis does not exist, or the order is out of range.

    Warns:
        DataWarning: If values jump from the last point of a periodic axis to the first, by more than 3 times any step inside;
            values that autograd follows are not checked, nor axes of fewer than 8 points.

    Examples:
        >>> grid = Grid.uniform((9,), periodic=False)  # walls: nothing is wrapped around
        >>> partial(Field(grid.points.T[None] ** 2, grid), 0).values[0, 0, [0, 4, 8]].abs().round(decimals=9).tolist()
        [0.0, 1.0, 2.0]
    """
    grid = _check_grid(check_field(field, "field").grid)
    axis = check_integer(axis, "axis", least=0, most=grid.dimension - 1)
    order = check_integer(order, "order", most=4)
    if grid.is_uniform:
        return Field(_along(field, axis, order), grid)
    remedy = "values are linear in each cell: use laplacian"
    check_integer(order, "order of a derivative on a mesh", most=1, remedy=remedy, error=GridError)
    return Field(_mesh_gradient(field)[:, :, axis], grid)


def gradient(field: Field, *, axes: Sequence[int] | None = None) -> Field:
    """The first derivatives of each channel.

    Args:
        field: `(n, c, *grid)`.
        axes: Axes of the derivatives; by default all axes of space.

    Returns:
        `(n, c * d, *grid)` for d axes: the derivatives of the first channel come first.

    Raises:
        GridError: As in `partial`.
        ArgumentError: If an axis does not exist, or there is none.
    """
    grid = _check_grid(check_field(field, "field").grid)
    axes = _check_axes(axes, grid)
    if grid.is_uniform:
        parts = [partial(field, axis).values for axis in axes]
    else:
        parts = list(_mesh_gradient(field)[:, :, list(axes)].unbind(2))
    return Field(torch.stack(parts, 2).flatten(1, 2), grid)


def divergence(field: Field, *, axes: Sequence[int] | None = None) -> Field:
    """The divergence of vector fields, of d successive channels each, for d axes.

    Args:
        field: `(n, k * d, *grid)`.
        axes: Axes of the components; by default all axes of space.

    Returns:
        `(n, k, *grid)`.

    Raises:
        ShapeError: If the number of channels is not a multiple of d.
        GridError: As in `partial`.
        ArgumentError: If an axis does not exist, or there is none.
    """
    axes = _check_axes(axes, check_field(field, "field").grid)
    if field.channels % len(axes):
        raise ShapeError(
            expected=f"a multiple of {len(axes)} channels, one per axis", got=str(field.channels), remedy="give axes="
        )
    components = field.values.unflatten(1, (-1, len(axes)))
    parts = [partial(Field(components[:, :, number], field.grid), axis).values for number, axis in enumerate(axes)]
    return Field(torch.stack(parts).sum(0), field.grid)


def curl(field: Field) -> Field:
    """The curl of a vector field: dv/dx - du/dy of `(n, 2, *grid)`, or the vector of `(n, 3, *grid)`.

    Returns:
        `(n, 1, *grid)` or `(n, 3, *grid)`.

    Raises:
        ShapeError: If there is not one channel per axis of space, two or three.
        GridError: As in `partial`.
    """
    axes = space_axes(check_field(field, "field").grid)
    if len(axes) not in (2, 3) or field.channels != len(axes):
        raise ShapeError(
            expected="2 channels on 2 axes of space, or 3 on 3",
            got=f"{field.channels} on {len(axes)}",
            remedy="select channels",
        )

    def derivative(channel: int, number: int) -> Tensor:
        return partial(Field(field.values[:, channel : channel + 1], field.grid), axes[number]).values

    pairs = [(0, 1)] if len(axes) == 2 else [(1, 2), (2, 0), (0, 1)]
    # (curl u)_k = d_i u_j - d_j u_i for (i, j, k) cyclic
    return Field(torch.cat([derivative(j, i) - derivative(i, j) for i, j in pairs], 1), field.grid)


def laplacian(field: Field, *, axes: Sequence[int] | None = None) -> Field:
    """The Laplacian of each channel.

    On a mesh it is weak: minus the integral of grad u . grad phi_i over the weight of point i, for the hat function phi_i. It
    is zero on the boundary of the mesh, where it depends on the boundary condition. Its integrals against smooth functions
    that vanish there converge; its values converge on meshes of regular cells only.

    Args:
        field: `(n, c, *grid)`.
        axes: Axes of the second derivatives of a uniform grid; by default all axes of space.

    Returns:
        `(n, c, *grid)`, in the field's units per length squared.

    Raises:
        GridError: As in `partial`, or if axes of a mesh are selected.
        ArgumentError: If an axis does not exist, or there is none.
    """
    grid = _check_grid(check_field(field, "field").grid)
    if not grid.is_uniform:
        if axes is not None:
            raise GridError(expected="a uniform grid for axes=", got=repr(grid), remedy="leave out axes=")
        return Field(weak_laplacian(field), grid)
    axes = _check_axes(axes, grid)
    return Field(torch.stack([_along(field, axis, 2) for axis in axes]).sum(0), grid)


def time_derivative(field: Field, *, order: int = 1) -> Field:
    """The derivative along the axis of time, which is named "t": see `FieldTrajectories.space_time`.

    Raises:
        GridError: If no axis has this name, or the axis is periodic.
    """
    grid = check_field(field, "field").grid
    axis = time_axis(grid)
    if axis is None or grid.periodic[axis]:
        raise GridError(
            expected='an axis of time that is named "t" and not periodic',
            got=repr(grid),
            remedy='make pairs by trajectories.space_time(), or name it: grid.named(["t", "x"])',
        )
    return partial(field, axis, order=order)


def _check_axes(axes: Sequence[int] | None, grid: Grid) -> tuple[int, ...]:
    """Return axes, by default those of space, or raise an ArgumentError."""
    remedy = "give indices of axes, (0, 1) for example"
    listed = space_axes(grid) if axes is None else check_sequence(axes, "axes", remedy=remedy)
    if not listed:
        raise ArgumentError(expected="an axis or more", got=repr(grid if axes is None else axes), remedy=remedy)
    return tuple(check_integer(axis, "axis", least=0, most=grid.dimension - 1) for axis in listed)


def _along(field: Field, axis: int, order: int) -> Float[Tensor, "n c *grid"]:
    """The derivative along an axis of a uniform grid."""
    where = field.grid.axes[axis]
    check_least(where.size, order + 1, f"points along axis {axis}", remedy="use a finer grid", error=GridError)
    if where.periodic:
        _warn_of_jump(field, axis)
    return transfer(field.values, where, where, dim=2 + axis, order=order)


def _warn_of_jump(field: Field, axis: int) -> None:
    """Give a DataWarning if values jump at the end of a periodic axis; tensors that autograd follows are not read."""
    values = field.values
    if values.requires_grad or is_transformed() or torch.compiler.is_compiling():
        return
    if axis in seam_jumps(values, field.grid):
        name = field.grid.axes[axis].name or str(axis)
        warn(
            f"values jump from the last point of periodic axis {name} to the first: its derivative is wrong everywhere. Say "
            "periodic=False where there are walls",
            DataWarning,
        )


def _check_grid(grid: Grid) -> Grid:
    """Return a grid on which derivatives are defined, or raise a GridError."""
    if any(axis.latitudes is not None for axis in grid.axes):
        raise GridError(
            expected="Cartesian coordinates",
            got=repr(grid),
            remedy="derivatives on the sphere need the metric: project the field",
        )
    if not grid.has_points_per_sample:
        check_unmasked(grid, "derivatives")
    if not grid.is_uniform and grid.cells is None:
        raise GridError(
            expected="a uniform grid, or a mesh with cells", got=repr(grid), remedy="make it by Grid.mesh(points, cells)"
        )
    return grid


def _mesh_gradient(field: Field) -> Float[Tensor, "n c d p"]:
    """Gradients at the points of a mesh, averaged over the cells of each point."""

    def of_one(values: Tensor, grid: Grid) -> Tensor:
        return nodal_gradients(values, grid.points.to(values), _check_full(grid).to(values.device))

    return _on_each(field, of_one)


def weak_laplacian(field: Field, coefficient: Float[Tensor, "b 1 p"] | None = None) -> Float[Tensor, "n c p"]:
    """Minus the integral of a grad u . grad phi_i over the weight of each interior point of a mesh, a averaged in each cell."""

    def of_one(values: Tensor, grid: Grid) -> Tensor:
        points, cells = grid.points.to(values), _check_full(grid).to(values.device)
        edges = points[cells[:, 1:]] - points[cells[:, :1]]
        volumes = torch.linalg.det(edges).abs() / math.factorial(grid.dimension)
        # grad lambda_1 ... lambda_d are the columns of E^-1; those of all corners sum to zero
        inner = torch.linalg.inv(edges).mT
        slopes = torch.cat([-inner.sum(1, keepdim=True), inner], 1)  # (m, k, d)
        u, a = (values, None) if coefficient is None else (values[..., :-1, :], values[..., -1:, :])
        gradients = torch.einsum("mkd,...mk->...md", slopes, u[..., cells])
        if a is not None:
            gradients = gradients * a[..., cells].mean(-1, keepdim=True)
        # -integral of a grad u . grad phi_i
        flux = -torch.einsum("mkd,...md->...mk", slopes, gradients) * volumes[:, None]
        total = torch.zeros_like(u).index_add(-1, cells.flatten(), flux.flatten(-2))
        return total / grid.weights.to(u).clamp_min(torch.finfo(u.dtype).tiny)

    values = field.values
    if coefficient is not None:
        values = torch.cat([values, coefficient.expand(len(field), 1, -1)], 1)
    return _on_each(Field(values, field.grid), of_one) * interior(field.grid).to(values)


def boundary_points(mesh: Grid) -> Int64[Tensor, " b"]:
    """Indices of the boundary points of one mesh."""
    with outside_of_transforms():  # the hash of a mesh reads its points
        return _boundary_points(mesh)


@remembered(2**24)
def _boundary_points(mesh: Grid) -> Int64[Tensor, " b"]:
    return mesh.boundary.unique()


def interior(grid: Grid) -> Float64[Tensor, "..."]:
    """1 at the interior points of a mesh, 0 on its boundary and at padding: `(p,)`, or `(n, 1, p)` of one mesh per sample."""
    rows = []
    for single in grid.singles():
        row = torch.ones(single.size, dtype=torch.float64)
        row[boundary_points(single)] = 0.0
        rows.append(torch.nn.functional.pad(row, (0, grid.size - single.size)))
    return torch.stack(rows)[:, None] if grid.has_points_per_sample else rows[0]


def _on_each(field: Field, function: Callable[[Tensor, Grid], Tensor]) -> Tensor:
    """A function of values `(..., p)` and one mesh, on one mesh for all samples or on each sample's own."""
    if not field.grid.has_points_per_sample:
        return function(field.values, field.grid)
    parts = []
    for row, grid in enumerate(field.grid.singles()):
        part = function(field.values[row, ..., : grid.size], grid)
        parts.append(torch.nn.functional.pad(part, (0, field.grid.size - grid.size)))
    return torch.stack(parts)


def _check_full(grid: Grid) -> Tensor:
    """Cells of full dimension, or a GridError."""
    cells = grid.cells
    assert cells is not None
    remedy = "curves and surfaces have no gradient in all coordinates"
    check_count(cells.shape[-1], grid.dimension + 1, "points of each cell", remedy=remedy, error=GridError)
    return cells


@undisturbed()
def derivatives_at(operator: Operator, inputs: Field, *, query: Grid, order: int = 1) -> Field:
    """The gradient or the Laplacian of an operator's outputs at query points, differentiable in weights and inputs.

    For operators whose output at a point depends on that point alone: `PointFNO`, `AttentionOperator`, `DeepONet`, and
    `ByConstruction` of them on uniform domains. One sum over points then has the derivatives at all points: for d coordinates,
    1 + d backward passes suffice, and 1 + 3 d of order 2.

    The local term of `PointFNO` is interpolated: from a mesh it is linear in each cell, so its gradient is that of the cell
    which holds the point, with an error of first order, and second derivatives are refused. From a uniform grid it is smooth
    enough for both orders.

    Args:
        operator: The operator.
        inputs: Input samples.
        query: Points of evaluation, any grid in the domain of d coordinates; one for all samples, or one per sample.
        order: 1 for the gradient, 2 for the Laplacian.

    Returns:
        Gradients `(n, c * d, *query)`, the derivatives of the first channel first, or Laplacians `(n, c, *query)`, in the units
        of the outputs per length to the power of the order.

    Raises:
        ArgumentError: If the operator is of another class, or the order is not 1 or 2.
        UnsupportedError: If the output does not depend on the query points by autograd.
        GridError: If a local term is interpolated from points without cells, or, of order 2, from a mesh.

    Examples:
        >>> from probneural.operators import DeepONet
        >>> grid = Grid.uniform((8, 8))
        >>> operator = DeepONet(1, 1, sensors=grid, basis=4, seed=0)
        >>> derivatives_at(operator, Field(torch.ones(3, 1, 8, 8), grid), query=Grid.uniform((5, 4))).values.shape
        torch.Size([3, 2, 5, 4])
    """
    check_instance(operator, Operator, "operator", remedy="give an operator of pn.operators", error=ArgumentError)
    inputs = check_field(inputs, "inputs")
    inputs, grid = inputs.detached() if inputs.values.is_inference() else inputs, inputs.grid
    order = check_integer(order, "order", most=2)
    check_grid(query, "query")
    is_interpolated = any(isinstance(module, PointFNO) for module in operator.modules()) and not grid.is_uniform
    if is_interpolated and (order == 2 or grid.cells is None):
        raise GridError(
            expected="inputs on a uniform grid" + (", or on a mesh" if order == 1 else ""),
            got=repr(grid),
            remedy="the local term of PointFNO has no derivative: use AttentionOperator",
        )
    with torch.enable_grad(), plain_operations():
        points = query.points.requires_grad_()
        where = Grid(shape=(query.size,), axes=(), _points=points, _weights=query.weights)
        coordinates = range(points.shape[-1])
        slopes = _along_coordinates(evaluate(operator, inputs, where), points, coordinates)
        if order == 2:
            slopes = [torch.stack([_along_coordinates(slopes[k], points, [k])[0] for k in coordinates]).sum(0)]
        values = torch.stack(slopes, 2).flatten(1, 2).unflatten(-1, query.shape)
    return Field(values if torch.is_grad_enabled() else values.detach(), query)


def _along_coordinates(
    values: Float[Tensor, "n c p"], points: Tensor, coordinates: Sequence[int]
) -> list[Float[Tensor, "n c p"]]:
    """Derivatives of values at p points along some coordinates, where each value depends on its own point alone."""
    # grad_v of the sum of g_k, where g = J^T v: J times the tangent e_k at all points
    cotangent = torch.zeros_like(values, requires_grad=True)
    pulled = torch.autograd.grad(values, points, cotangent, create_graph=True, allow_unused=True)[0]
    if pulled is None:
        raise UnsupportedError(
            expected="outputs that depend on the query points by autograd",
            got="others",
            remedy="use differences on a grid: physics.gradient",
        )
    return [
        torch.autograd.grad(pulled[..., number].sum(), cotangent, create_graph=True, retain_graph=True)[0]
        for number in coordinates
    ]
