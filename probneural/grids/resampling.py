"""Interpolation between grids: matrices of interpolants, and fields at other points."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.contexts import outside_of_export, outside_of_transforms
from probneural.errors import GridError
from probneural.grids.axes import read_line, transfer
from probneural.grids.grid import Grid, check_grid, check_on_grid
from probneural.grids.mesh import barycentric

_CHUNK_ELEMENTS = 2**21
"""Largest number of entries of an interpolation matrix (16 MiB in float64)."""


def interpolation_matrix(grid: Grid, points: Tensor, *, orders: Sequence[int] | None = None) -> Tensor:
    """Return the matrix that evaluates the interpolant of a field, or its partial derivative, at points.

    Args:
        grid: A uniform grid, or one mesh, of p points in d dimensions.
        points: Coordinates, `(m, d)`, float64, in the grid's units, within the domain; the two ends of a periodic axis are
            one point.
        orders: Order of the derivative along each axis; all zero by default.

    Returns:
        `(m, p)`, float64.

    Raises:
        GridError: If the grid is scattered, the dimensions differ, or a point lies outside the domain.
    """
    if (cells := check_grid(grid).cells) is not None and not orders:
        indices, weights, is_inside = barycentric(grid.points, cells, points)
        if not bool(is_inside.all()):
            raise GridError(
                expected="locations inside the mesh",
                got=f"{int((~is_inside).sum())} outside, the first {points[~is_inside][0].tolist()}",
                remedy="move them into the domain",
            )
        return torch.zeros(len(points), grid.size, dtype=torch.float64).scatter_add_(1, indices, weights)
    _check_readable(grid, points)
    matrix = torch.ones(points.shape[0], 1, dtype=torch.float64, device="cpu")
    for number, axis in enumerate(grid.axes):
        factor = axis.matrix(points[:, number], order=orders[number] if orders else 0)
        matrix = (matrix[:, :, None] * factor[:, None, :]).flatten(1)
    return matrix


def _check_readable(grid: Grid, points: Tensor) -> None:
    """Raise a GridError unless the grid is uniform, and the points lie within its domain."""
    check_grid(grid, uniform=True, remedy="evaluate the operator there by query=")
    if points.ndim != 2 or points.shape[1] != grid.dimension:
        expected = f"points of shape (m, {grid.dimension})"
        raise GridError(expected=expected, got=str(tuple(points.shape)), remedy="one row per point")
    for number, axis in enumerate(grid.axes):
        along = points[:, number]
        slack = 1e-9 * axis.length
        outside = (along < axis.origin - slack) | (along > axis.origin + axis.length + slack) | ~torch.isfinite(along)
        if bool(outside.any()):
            raise GridError(
                expected=f"points in [{axis.origin:g}, {axis.origin + axis.length:g}] along axis {number}",
                got=f"{along[outside][0]:g}",
                remedy="take coordinates modulo the period" if axis.periodic else "move the point into the domain",
            )


def along_axis(values: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """Apply a matrix `(m, size)` along one (negative) axis of values, in the values' dtype and on their device."""
    moved = values.movedim(axis, -1) @ matrix.to(values).mT
    return moved.movedim(-1, axis)


def resample(values: Tensor, source: Grid, target: Grid) -> Tensor:
    """Evaluate the interpolant of values on one grid at the points of another.

    The interpolant is trigonometric on periodic axes, exact for fields that the source grid resolves; on other axes it is a
    local polynomial of degree 5. On a mesh it is linear in each cell, with linear extrapolation beyond the boundary.

    Args:
        values: `(..., *source.shape)`; `(..., n, c, p)` for a batch of n meshes.
        source: A uniform grid, a mesh, or a batch of meshes.
        target: A grid in the same domain, or a batch of n grids.

    Returns:
        `(..., *target.shape)`.

    Raises:
        GridError: If the source is scattered or has a mask, `target` is not a grid, or the dimensions or domains differ.
        ShapeError: If the values do not fit the source grid.
    """
    check_on_grid(values, source)
    check_grid(target, "target")
    if source == target or ((source.is_masked or target.is_masked) and source.has_points_of(target)):
        return values
    if source.cells is not None:
        return _read_mesh(values, source, target)
    if source.is_masked:
        raise GridError(expected="values without a mask to interpolate", got=repr(source), remedy="fill them, on grid.unmasked")
    if target.is_uniform and source.is_uniform and target.dimension == source.dimension:
        for number, (have, want) in enumerate(zip(source.axes, target.axes, strict=True)):
            if (have.length, have.periodic, have.origin) != (want.length, want.periodic, want.origin):
                raise GridError(
                    expected=f"a target on the source's domain, {source!r}",
                    got=repr(target),
                    remedy="use source.resized(shape), or scattered points for a part of the domain",
                )
            if have != want:
                values = transfer(values, have, want, dim=number - source.dimension)
        return values
    if source.size * target.size <= _CHUNK_ELEMENTS or torch.compiler.is_exporting():
        with outside_of_export():
            matrix = interpolation_matrix(source, target.points)
        return (values.flatten(values.ndim - len(source.shape)) @ matrix.to(values).mT).unflatten(-1, target.shape)
    _check_readable(source, target.points)
    lines = values.numel() // max(1, source.shape[-1]) * (math.isqrt(source.shape[-1]) + 1)
    parts = target.points.split(max(1, _CHUNK_ELEMENTS // max(1, lines)))
    return torch.cat([_read(values, source, part) for part in parts], dim=-1).unflatten(-1, target.shape)


def _read_mesh(values: Tensor, source: Grid, target: Grid) -> Tensor:
    """Values of the piecewise linear interpolant of a mesh, or of one mesh per sample."""
    sources, targets = source.singles(), target.singles()
    count = max(len(sources), len(targets))
    read = []
    for index in range(count):
        mesh, where = sources[index % len(sources)], targets[index % len(targets)]
        assert mesh.cells is not None  # all grids of a batch have cells
        with outside_of_transforms():
            indices, weights, _ = barycentric(mesh.points, mesh.cells, where.points)
        sample = values if count == 1 else values.select(-3, index % values.shape[-3])
        parts = (sample[..., indices.to(values.device)] * weights.to(values)).sum(-1)
        read.append(torch.nn.functional.pad(parts, (0, target.size - where.size)))
    return (read[0] if count == 1 else torch.stack(read, -3)).unflatten(-1, target.shape)


def background(grid: Grid, *, size: int, margin: float) -> Grid:
    """Return a uniform grid of about `size` points on the box of all points of a mesh, or of a batch of meshes.

    Args:
        grid: The meshes.
        size: Approximate number of points.
        margin: Extent of the box beyond the points at both ends of an axis, in units of their extent.
    """
    points = grid.points[grid.weights > 0]
    lower, upper = points.amin(0), points.amax(0)
    lengths = (upper - lower) * (1.0 + 2.0 * margin)
    spacing = (lengths.prod() / size) ** (1.0 / grid.dimension)
    shape = tuple((lengths / spacing).round().to(torch.int64).clamp_min(3).tolist())
    origin = (lower - margin * (upper - lower)).tolist()
    return Grid.uniform(shape, lengths=lengths.tolist(), origin=origin, periodic=False)


def rasterised(values: Float[Tensor, "n c p"], source: Grid, target: Grid) -> Float[Tensor, "n c2 *target"]:
    """Return piecewise linear values of meshes on a shared grid, 0 outside; the last channel is 1 inside and 0 outside.

    Args:
        values: `(n, c, p)`.
        source: A mesh, or a batch of n meshes.
        target: A grid for all samples.

    Raises:
        GridError: If the source has no cells of full dimension.
    """
    meshes, parts = source.singles(), []
    for index, sample in enumerate(values):
        mesh = meshes[index % len(meshes)]
        if mesh.cells is None:
            raise GridError(expected="meshes with cells", got=repr(mesh), remedy="build them with Grid.mesh(points, cells)")
        indices, weights, is_inside = barycentric(mesh.points, mesh.cells, target.points)
        linear = (sample[:, indices.to(values.device)] * weights.to(values)).sum(-1)
        inside = is_inside.to(values)
        parts.append(torch.cat([torch.where(inside > 0, linear, 0.0), inside[None]]))
    empty = values.new_zeros(0, values.shape[1] + 1, target.size)
    return (torch.stack(parts) if parts else empty).unflatten(-1, target.shape)


def _read(values: Tensor, source: Grid, points: Tensor) -> Tensor:
    """Values `(..., *source.shape)` of the interpolant at points `(m, d)`: `(..., m)`, one axis after another."""
    *others, last = source.axes
    values = read_line(values, last, points[:, -1])
    for number in reversed(range(len(others))):
        values = (values * others[number].matrix(points[:, number]).to(values).mT).sum(-2)
    return values
