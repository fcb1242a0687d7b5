"""Grids: where values live, how they are integrated, and how they are moved to other points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.checks import check_flag, check_instance, check_integer, check_positive, check_real, real_tensor
from probneural.contexts import outside_of_export, outside_of_transforms, remembered, undisturbed
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.interpolation import polynomial_matrix, trigonometric_matrix

_CHUNK_ELEMENTS = 2**24
"""Largest interpolation matrix built at once (128 MiB in float64)."""


@dataclass(frozen=True)
class Axis:
    """One equispaced axis of a grid.

    Args:
        size: Number of points.
        length: Extent of the domain along this axis, in the user's units.
        periodic: Whether the right end is the left end; then the right end point is excluded.
        endpoint: Whether the right end point is a grid point.
        origin: Coordinate of the left end.
    """

    size: int
    length: float
    periodic: bool
    endpoint: bool
    origin: float = 0.0

    @property
    def coordinates(self) -> Tensor:
        """Coordinates of the points, `(size,)`, float64."""
        intervals = max(self.size - 1, 1) if self.endpoint else self.size
        return self.origin + torch.arange(self.size, dtype=torch.float64, device="cpu") * self.length / intervals

    @property
    def weights(self) -> Tensor:
        """Quadrature weights, `(size,)`, float64, summing to the length.

        Uniform on a periodic axis (spectrally accurate there), trapezoidal between end points; without the right end
        point, the last cell extrapolates linearly. The two last are exact for linear functions.
        """
        if self.size == 1:
            return torch.tensor([self.length], dtype=torch.float64, device="cpu")
        intervals = self.size - 1 if self.endpoint else self.size
        weights = torch.full((self.size,), self.length / intervals, dtype=torch.float64, device="cpu")
        if self.periodic:
            return weights
        step = self.length / intervals
        weights[0] -= 0.5 * step
        if self.endpoint:
            weights[-1] -= 0.5 * step
        else:
            weights[-2] -= 0.5 * step
            weights[-1] += step
        return weights

    def matrix(self, points: Tensor, *, order: int = 0) -> Tensor:
        """Weights of the nodal values in the interpolant, or its derivative of some order, at `points`: `(m, size)`."""
        if self.periodic:
            return trigonometric_matrix(self.size, points, length=self.length, origin=self.origin, order=order)
        return polynomial_matrix(self.coordinates, points, order=order)


@remembered(128)
def _transfer(source: Axis, target: Axis, dtype: torch.dtype, device: torch.device) -> Tensor:
    return source.matrix(target.coordinates).to(device, dtype)


@dataclass(frozen=True, eq=False, repr=False)
class Grid:
    """Where values live: points, quadrature weights, and the shape that values on them take.

    Build one with [`Grid.uniform`][probneural.grids.Grid.uniform] or [`Grid.scattered`][probneural.grids.Grid.scattered].
    Coordinates and weights are float64 on the CPU whatever the values are.

    Attributes:
        shape: Lengths of the grid axes of a field's values; `(p,)` for scattered points.
        axes: The axes of a uniform grid, empty for scattered points.
    """

    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    _points: Tensor | None = None
    _weights: Tensor | None = None

    @classmethod
    def uniform(
        cls,
        shape: int | Sequence[int],
        *,
        lengths: float | Sequence[float] = 1.0,
        periodic: bool | Sequence[bool] = True,
        endpoint: bool | Sequence[bool] | None = None,
        origin: float | Sequence[float] = 0.0,
    ) -> Grid:
        """Make a tensor-product grid.

        Args:
            shape: Points per axis.
            lengths: Extent per axis, in the user's units.
            periodic: Whether each axis is periodic.
            endpoint: Whether the right end is a point; by default exactly on the axes that are not periodic.
            origin: Coordinate of the left end per axis, in the units of `lengths`.

        Returns:
            The grid; its points run with the last axis fastest.

        Raises:
            ArgumentError: If a size or length is not positive, an origin is not finite, a periodic axis includes its right
                end, or the arguments name different numbers of axes.

        Examples:
            >>> Grid.uniform((4,)).points[:, 0].tolist()
            [0.0, 0.25, 0.5, 0.75]
            >>> Grid.uniform((3,), periodic=False).weights.tolist()
            [0.25, 0.5, 0.25]
        """
        count = len(shape) if isinstance(shape, Sequence) else 1
        if not count:
            raise ArgumentError(expected="an axis or more in shape", got=repr(shape), remedy="give e.g. (64, 64)")
        sizes = per_axis(shape, count, "shape", check_integer)
        if math.prod(sizes) >= 2**63:
            raise ArgumentError(expected="fewer than 2^63 points", got=repr(shape), remedy="no tensor holds that many values")
        spans = per_axis(lengths, count, "lengths", check_positive)
        rounds = per_axis(periodic, count, "periodic", check_flag)
        ends = tuple(not flag for flag in rounds) if endpoint is None else per_axis(endpoint, count, "endpoint", check_flag)
        starts = per_axis(origin, count, "origin", check_real)
        if any(is_periodic and has_end for is_periodic, has_end in zip(rounds, ends, strict=True)):
            raise ArgumentError(
                expected="periodic axes without their right end point",
                got="periodic=True with endpoint=True",
                remedy="drop the repeated last point, or set periodic=False",
            )
        axes = tuple(Axis(*axis) for axis in zip(sizes, spans, rounds, ends, starts, strict=True))
        return cls(shape=sizes, axes=axes)

    @classmethod
    def scattered(cls, points: Tensor | Sequence[Sequence[float]], weights: Tensor | Sequence[float]) -> Grid:
        """Make a grid of scattered points.

        Args:
            points: Coordinates, `(p, d)`.
            weights: Quadrature weights, `(p,)`, not negative, in units of the domain's volume.

        Returns:
            The grid, with `shape == (p,)`.

        Raises:
            ShapeError: If the two do not have the shapes above.
            DataError: If either is not finite, or a weight is negative.
        """
        host = torch.device("cpu")
        with undisturbed():  # autograd refuses inference tensors, and the grid outlives the mode
            where = real_tensor(points, "points", dtype=torch.float64, device=host).detach() + 0.0  # -0.0 would break the hash
            mass = real_tensor(weights, "weights", dtype=torch.float64, device=host).detach().clone()
        if where.ndim != 2 or 0 in where.shape:
            raise ShapeError(expected="points of shape (p, d)", got=str(tuple(where.shape)), remedy="one row per point")
        if mass.shape != where.shape[:1]:
            raise ShapeError(
                expected=f"weights of shape ({where.shape[0]},)", got=str(tuple(mass.shape)), remedy="one weight per point"
            )
        if not bool(torch.isfinite(where).all() and torch.isfinite(mass).all() and (mass >= 0).all() and mass.sum() > 0):
            raise DataError(
                expected="finite points and weights >= 0 that are not all zero",
                got="others",
                remedy="check the arrays; equal weights volume / p are a safe choice",
            )
        return cls(shape=(where.shape[0],), axes=(), _points=where, _weights=mass)

    @property
    def points(self) -> Tensor:
        """Coordinates, `(p, d)`, float64, last axis fastest."""
        return self._tensors()[0] if torch.compiler.is_dynamo_compiling() else self._remembered_tensors[0]

    @property
    def weights(self) -> Tensor:
        """Quadrature weights, `(p,)`, float64; their sum is the domain's volume."""
        return self._tensors()[1] if torch.compiler.is_dynamo_compiling() else self._remembered_tensors[1]

    @cached_property
    def _remembered_tensors(self) -> tuple[Tensor, Tensor]:
        with outside_of_transforms():
            return self._tensors()

    def _tensors(self) -> tuple[Tensor, Tensor]:
        if self._points is not None and self._weights is not None:
            return self._points, self._weights
        mesh = torch.meshgrid(*(axis.coordinates for axis in self.axes), indexing="ij")
        weights = self.axes[0].weights
        for axis in self.axes[1:]:
            weights = weights[..., None] * axis.weights
        return torch.stack([coordinate.reshape(-1) for coordinate in mesh], dim=-1), weights.reshape(-1)

    @property
    def size(self) -> int:
        """Number of points p."""
        return int(torch.Size(self.shape).numel())

    @property
    def dimension(self) -> int:
        """Number of space dimensions d."""
        return len(self.axes) if self.axes else self.points.shape[1]

    @property
    def volume(self) -> float:
        """Measure of the domain, in the units of the lengths to the power d."""
        return float(self.weights.sum())

    @property
    def mean_weights(self) -> Tensor:
        """Quadrature weights of an average over the domain, `(p,)`, float64, dimensionless: they sum to one."""
        return self.weights / self.volume

    def mean(self, values: Float[Tensor, "... p"]) -> Float[Tensor, "..."]:
        """Average over the domain of values at the grid's points, flattened to one axis, by quadrature.

        Examples:
            >>> Grid.uniform((5,), periodic=False).mean(torch.linspace(0.0, 1.0, 5)).item()
            0.5
        """
        return values @ self.mean_weights.to(values)

    @property
    def is_uniform(self) -> bool:
        """Whether the grid is a tensor product of equispaced axes."""
        return len(self.axes) > 0  # bool(self.axes) breaks the graphs of torch.compile in PyTorch 2.11

    @property
    def periodic(self) -> tuple[bool, ...]:
        """Which axes are periodic; all False for scattered points."""
        return tuple(axis.periodic for axis in self.axes) or (False,) * self.dimension

    @property
    def endpoint(self) -> tuple[bool, ...]:
        """Which axes include their right end point; all False for scattered points."""
        return tuple(axis.endpoint for axis in self.axes) or (False,) * self.dimension

    @property
    def lengths(self) -> tuple[float, ...]:
        """Extent per axis of a uniform grid; empty for scattered points."""
        return tuple(axis.length for axis in self.axes)

    def resized(self, shape: int | Sequence[int]) -> Grid:
        """Return the uniform grid of the same domain with another number of points per axis; itself, if it has that many.

        Raises:
            GridError: If this grid is scattered.
            ArgumentError: If `shape` does not name one size per axis.
        """
        if not self.is_uniform:
            raise GridError(expected="a uniform grid", got=repr(self), remedy="a scattered grid has no resolution to change")
        if isinstance(shape, tuple) and shape == self.shape and all(type(size) is int for size in shape):
            return self  # whose points are known already
        sizes = per_axis(shape, self.dimension, "shape", check_integer)
        if sizes == self.shape:
            return self
        return Grid.uniform(
            sizes,
            lengths=self.lengths,
            periodic=self.periodic,
            endpoint=self.endpoint,
            origin=tuple(axis.origin for axis in self.axes),
        )

    def __eq__(self, other: object) -> bool:
        """Whether both describe the same points, weights and shape."""
        if not isinstance(other, Grid):
            return NotImplemented
        if self.axes or other.axes:
            return self.axes == other.axes
        with outside_of_export():
            return torch.equal(self.points, other.points) and torch.equal(self.weights, other.weights)

    def __hash__(self) -> int:
        """Hash on the axes, or on the scattered points."""
        return hash(self.axes) if self.axes else hash((self.shape, self.points.numpy().tobytes()))

    def __repr__(self) -> str:
        """A short description."""
        if not self.is_uniform:
            return f"Grid.scattered({self.size} points in {self.dimension} dimensions)"
        return f"Grid.uniform({self.shape}, lengths={self.lengths}, periodic={self.periodic}, endpoint={self.endpoint})"


def per_axis(value: Any, count: int, name: str, check: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    """Spread a scalar over the axes, or take one entry per axis from a sequence; each entry is checked.

    Raises:
        ArgumentError: If a sequence has another number of entries, or one of them fails its check.
    """
    entries = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,) * count
    if len(entries) != count:
        raise ArgumentError(
            expected=f"one entry of {name} per axis ({count})",
            got=repr(value),
            remedy=f"give {count}, e.g. {name}={(entries or (value,))[:1] * count!r}",
        )
    return tuple(check(entry, name) for entry in entries)


def check_grid(grid: object, name: str = "grid", *, uniform: bool = False) -> Grid:
    """Return a grid.

    Raises:
        GridError: If it is none, or not uniform where it has to be.
    """
    checked = check_instance(grid, Grid, name, remedy="give a pn.Grid: inputs.grid.resized(128), for example", error=GridError)
    if uniform and not checked.is_uniform:
        raise GridError(
            expected=f"a uniform grid as {name}",
            got=repr(grid),
            remedy="interpolate values to one first, as scipy.interpolate.griddata does",
        )
    return checked


def interpolation_matrix(grid: Grid, points: Tensor, *, orders: Sequence[int] | None = None) -> Tensor:
    """Return the matrix that reads the interpolant of a field (or a partial derivative of it) at points.

    Args:
        grid: A uniform grid of p points in d dimensions.
        points: Coordinates, `(m, d)`, float64, in the grid's units, within the domain; the two ends of a periodic axis are
            one point.
        orders: Order of the derivative along each axis; all zero by default.

    Returns:
        `(m, p)`, float64.

    Raises:
        GridError: If the grid is scattered, the dimensions differ, or a point lies outside the domain.
    """
    if not check_grid(grid).is_uniform:
        raise GridError(
            expected="a uniform grid to interpolate from",
            got=repr(grid),
            remedy="evaluate the operator at the points by query=",
        )
    if points.ndim != 2 or points.shape[1] != grid.dimension:
        raise GridError(
            expected=f"points of shape (m, {grid.dimension})", got=str(tuple(points.shape)), remedy="one row per point"
        )
    matrix = torch.ones(points.shape[0], 1, dtype=torch.float64, device="cpu")
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
        factor = axis.matrix(along, order=orders[number] if orders else 0)
        matrix = (matrix[:, :, None] * factor[:, None, :]).flatten(1)
    return matrix


def along_axis(values: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """Apply a matrix `(m, size)` along one (negative) axis of values, in the values' dtype and on their device."""
    moved = values.movedim(axis, -1) @ matrix.to(values).mT
    return moved.movedim(-1, axis)


def resample(values: Tensor, source: Grid, target: Grid) -> Tensor:
    """Evaluate the interpolant of values on one grid at the points of another.

    The interpolant is trigonometric on periodic axes, so a field whose frequencies the source resolves is moved exactly, up
    or down; elsewhere it is a local polynomial of degree 5.

    Args:
        values: `(..., *source.shape)`.
        source: A uniform grid.
        target: Any grid in the same domain.

    Returns:
        `(..., *target.shape)`.

    Raises:
        GridError: If the source is scattered, the target is no grid, or the grids have different dimensions or domains.
        ShapeError: If the values do not fit the source grid.
    """
    check_on_grid(values, source)
    check_grid(target, "target")
    if source == target:
        return values
    if target.is_uniform and source.is_uniform and target.dimension == source.dimension:
        for number, (have, want) in enumerate(zip(source.axes, target.axes, strict=True)):
            if (have.length, have.periodic, have.origin) != (want.length, want.periodic, want.origin):
                raise GridError(
                    expected=f"a target on the source's domain, {source!r}",
                    got=repr(target),
                    remedy="use source.resized(shape), or scattered points for a part of the domain",
                )
            if have != want:
                values = along_axis(values, _transfer(have, want, values.dtype, values.device), number - source.dimension)
        return values
    flat = values.flatten(values.ndim - len(source.shape))
    rows = max(1, _CHUNK_ELEMENTS // source.size)
    parts = [slice(start, start + rows) for start in range(0, target.size, rows)]
    pieces = [flat @ _matrix_at(source, target, part).to(values).mT for part in parts]
    return torch.cat(pieces, dim=-1).unflatten(-1, target.shape)


def _matrix_at(source: Grid, target: Grid, part: slice) -> Tensor:
    with outside_of_export():
        return interpolation_matrix(source, target.points[part])


def check_on_grid(values: Tensor, grid: Grid) -> None:
    """Raise a ShapeError unless the last axes of `values`, a tensor, are the grid's."""
    check_instance(values, Tensor, "values", remedy="convert with torch.as_tensor(values)")
    check_grid(grid)
    if values.ndim < len(grid.shape) or tuple(values.shape[values.ndim - len(grid.shape) :]) != grid.shape:
        raise ShapeError(
            expected=f"values that end in the grid's shape {grid.shape}",
            got=str(tuple(values.shape)),
            remedy="channels come before the grid axes: (n, c, *grid.shape)",
        )
