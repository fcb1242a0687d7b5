"""Uniform and scattered grids: points, quadrature and interpolation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from probneural import checks
from probneural.contexts import Undisturbed, outside_of_export, outside_of_transforms, undisturbed
from probneural.errors import ArgumentError, DataError, DataWarning, GridError, ShapeError, warn
from probneural.grids.axes import CIRCLE, POLE, SPACING_TOLERANCE, Axis, axis_in_degrees, check_latitudes
from probneural.grids.mesh import boundary_facets, check_cells, lumped_weights, triangulated
from probneural.registry import stored


@stored(build="_from_parts", on_cpu=("_points", "_weights", "_observed", "_cells"))
@dataclass(frozen=True, eq=False, repr=False)
class Grid(Undisturbed):
    """Points, quadrature weights, and the shape of values on them.

    Build one with [`Grid.uniform`][probneural.grids.Grid.uniform], [`Grid.mesh`][probneural.grids.Grid.mesh] or
    [`Grid.scattered`][probneural.grids.Grid.scattered]. Coordinates and weights are float64 on the CPU for values of any dtype
    and device. A mask sets weights to zero, see [`masked`][probneural.grids.Grid.masked]; with one mask per sample, the grid is
    a batch of grids with the same points. [`Grid.batch`][probneural.grids.Grid.batch] makes a batch of grids with points of
    their own, such as one mesh per sample.

    Attributes:
        shape: Lengths of the grid axes of a field's values; `(p,)` for scattered points.
        axes: The axes of a uniform grid, empty for scattered points.
    """

    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    _: KW_ONLY
    _points: Tensor | None = None
    _weights: Tensor | None = None
    _observed: Tensor | None = None
    _cells: Tensor | None = None

    @classmethod
    def _from_parts(
        cls,
        shape: tuple[int, ...],
        axes: tuple[Axis, ...],
        _points: Float64[Tensor, "p d"] | None,
        _weights: Float64[Tensor, " p"] | None,
        _observed: Bool[Tensor, " p"] | Bool[Tensor, "n p"] | None = None,
        _cells: Int64[Tensor, "m k"] | None = None,
    ) -> Grid:
        """Build the grid from the parts in a file, which holds no batch of meshes."""
        if _points is None or _weights is None:
            grid = cls.of_axes(axes)
        else:
            grid = cls.scattered(_points, _weights) if _cells is None else cls.mesh(_points, _cells)
        if grid.shape != shape or grid.axes != axes or (_points is None) != (_weights is None):
            raise GridError(
                expected="uniform axes, or points and weights", got=f"a mixture of shape {shape}", remedy="state one kind"
            )
        return grid if _observed is None else grid.masked(_observed.reshape(*_observed.shape[:-1], *grid.shape))

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
        sizes = per_axis(shape, count, "shape", checks.check_integer)
        if math.prod(sizes) >= 2**63:
            raise ArgumentError(expected="fewer than 2^63 points", got=repr(shape), remedy="no tensor holds that many values")
        spans = per_axis(lengths, count, "lengths", checks.check_positive)
        rounds = per_axis(periodic, count, "periodic", checks.check_flag)
        ends = (
            tuple(not flag for flag in rounds) if endpoint is None else per_axis(endpoint, count, "endpoint", checks.check_flag)
        )
        starts = per_axis(origin, count, "origin", checks.check_real)
        if any(is_periodic and has_end for is_periodic, has_end in zip(rounds, ends, strict=True)):
            raise ArgumentError(
                expected="periodic axes without their right end point",
                got="periodic=True with endpoint=True",
                remedy="drop the repeated last point, or set periodic=False",
            )
        axes = tuple(Axis(*axis) for axis in zip(sizes, spans, rounds, ends, starts, strict=True))
        return cls(shape=sizes, axes=axes)

    @classmethod
    def of_axes(cls, axes: Sequence[Axis]) -> Grid:
        """Make the tensor-product grid of some axes.

        Raises:
            ArgumentError: If a number of an axis is none that `uniform` takes, or the ends of latitudes are no latitudes.
        """
        remedy = "give the axes of a grid: grid.axes"
        axes = checks.check_sequence(axes, "axes", remedy=remedy)
        for axis in axes:
            checks.check_instance(axis, Axis, "an axis", remedy=remedy, error=ArgumentError)
        columns = {name: tuple(getattr(axis, name) for axis in axes) for name in ("periodic", "endpoint", "origin")}
        grid = cls.uniform(tuple(axis.size for axis in axes), lengths=tuple(axis.length for axis in axes), **columns)
        for checked, axis in zip(grid.axes, axes, strict=True):
            check_latitudes(checked, axis.latitudes)
        labelled = (
            replace(checked, latitudes=axis.latitudes, name=axis.name, unit=axis.unit)
            for checked, axis in zip(grid.axes, axes, strict=True)
        )
        return cls(shape=grid.shape, axes=tuple(labelled))

    @classmethod
    def latlon(
        cls,
        latitudes: Tensor | NDArray[Any] | Sequence[float],
        longitudes: Tensor | NDArray[Any] | Sequence[float],
        *,
        latitude_first: bool = True,
    ) -> Grid:
        """Make a grid of the sphere, whose quadrature weights are areas of its cells.

        Cells end half way between points. The outermost ones reach the poles from up to one spacing; the cells of a region end
        at its outermost points. Longitudes that go around make a periodic axis.

        Args:
            latitudes: Latitudes in degrees, ascending and equispaced, two or more.
            longitudes: Longitudes in degrees, ascending and equispaced, two or more.
            latitude_first: Whether latitude is the first axis of the values, and longitude the second.

        Returns:
            The grid. Its weights are in square degrees, of which the sphere has 129,600 / pi; coordinates are in degrees.

        Raises:
            GridError: If coordinates are not ascending or not equispaced, latitudes leave the sphere, or longitudes go around
                more than once.

        Examples:
            >>> grid = Grid.latlon(range(-90, 91, 30), range(0, 360, 45))
            >>> grid.periodic, round(grid.volume, 6) == round(129_600 / math.pi, 6)
            ((False, True), True)
        """
        along, around = axis_in_degrees(latitudes, "latitudes"), axis_in_degrees(longitudes, "longitudes")
        step = around.length / (around.size - 1)
        if abs(around.length + step - CIRCLE) <= SPACING_TOLERANCE * step:
            around = Axis(around.size, CIRCLE, periodic=True, endpoint=False, origin=around.origin)
        if around.length > CIRCLE - SPACING_TOLERANCE * step and not around.periodic:
            raise GridError(
                expected="longitudes that go around once at most, their first one not repeated",
                got=f"{around.origin:g} to {around.origin + around.length:g}",
                remedy="drop the repeated last longitude",
            )
        axes = (along, around) if checks.check_flag(latitude_first, "latitude_first") else (around, along)
        return cls.of_axes(axes).on_sphere(latitude=0 if latitude_first else 1)

    def on_sphere(self, *, latitude: int) -> Grid:
        """Return the same points in degrees, weighted by areas of the sphere: see [`latlon`][probneural.grids.Grid.latlon].

        Args:
            latitude: Index of the latitude axis.

        Raises:
            GridError: If the grid is scattered, or that axis is periodic, leaves the sphere or has one point.
            ArgumentError: If the axis does not exist.
        """
        number = checks.check_integer(latitude, "latitude", least=0, most=self.dimension - 1)
        axis = check_grid(self, uniform=True).axes[number]
        points = axis.coordinates
        step = float(points[1] - points[0]) * (1.0 + SPACING_TOLERANCE) if axis.size > 1 else 0.0
        south = -POLE if points[0] + POLE <= step else axis.origin
        north = POLE if POLE - points[-1] <= step else axis.origin + axis.length
        axes = [replace(entry, latitudes=(south, north) if index == number else None) for index, entry in enumerate(self.axes)]
        return Grid.of_axes(axes)

    @classmethod
    def scattered(cls, points: Tensor | Sequence[Sequence[float]], weights: Tensor | Sequence[float] | None = None) -> Grid:
        """Make a grid of scattered points.

        Args:
            points: Coordinates, `(p, d)`.
            weights: Quadrature weights, `(p,)`, not negative, in units of the domain's volume. By default those of a
                triangulation of the points' convex hull, with a warning.

        Returns:
            The grid, with `shape == (p,)`.

        Raises:
            ShapeError: If the two do not have the shapes above.
            DataError: If either is not finite, a weight is negative, or points without weights have no triangulation.
        """
        where = _coordinates(points)
        if weights is None:
            cells = triangulated(where)
            warn(
                "quadrature weights come from a triangulation of the points' convex hull: give cells by "
                "Grid.mesh(points, cells), or weights, for a domain that is not convex",
                DataWarning,
            )
            return cls.mesh(where, cells)
        with undisturbed():
            mass = checks.real_tensor(weights, "weights", dtype=torch.float64, device=torch.device("cpu")).detach().clone()
        checks.check_shape(mass, "weights", len(where), remedy="one weight per point")
        if not bool(torch.isfinite(mass).all() and (mass >= 0).all() and mass.sum() > 0):
            raise DataError(
                expected="finite weights >= 0 that are not all zero", got="others", remedy="use equal weights volume / p"
            )
        return cls(shape=(where.shape[0],), axes=(), _points=where, _weights=mass)

    @classmethod
    def mesh(cls, points: Tensor | Sequence[Sequence[float]], cells: Tensor | Sequence[Sequence[int]]) -> Grid:
        """Make a grid of the points of a mesh; each simplex gives every one of its points an equal part of its volume.

        Args:
            points: Coordinates, `(p, d)`.
            cells: Indices of the points of each simplex, `(m, k)`: k = d + 1 for a domain, fewer for a curve or a surface.

        Returns:
            The grid, with `shape == (p,)`. Values are linear in each cell.

        Raises:
            ShapeError: If the two do not have the shapes above.
            DataError: If points are not finite, or cells are not integers, out of range, degenerate, or repeated.

        Examples:
            >>> square = Grid.mesh([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[0, 1, 2], [1, 2, 3]])
            >>> round(square.volume, 12), square.boundary.shape
            (1.0, torch.Size([4, 2]))
        """
        where = _coordinates(points)
        if not isinstance(cells, Tensor):
            cells = checks.real_tensor(cells, "cells", dtype=torch.float64)
            cells = cells.to(torch.int64) if bool((cells == cells.trunc()).all()) else cells
        checked = check_cells(where, cells)
        return cls(shape=(len(where),), axes=(), _points=where, _weights=lumped_weights(where, checked), _cells=checked)

    @classmethod
    def batch(cls, grids: Sequence[Grid]) -> Grid:
        """Put one grid of scattered points or mesh per sample side by side, for a `Field` of as many samples.

        Smaller ones are padded to the largest by points of weight zero, which are masked.

        Args:
            grids: One per sample, or batches of them; in one number of dimensions, all with cells or all without.

        Returns:
            The batch, of points `(n, p, d)`.

        Raises:
            GridError: If the list is empty, a grid is uniform, or dimensions or kinds of cells differ.
        """
        listed = checks.check_sequence(grids, "grids", remedy="give a list with one grid per sample")
        parts = [part for grid in listed for part in check_grid(grid, "grids").singles()]
        kinds = {(part.is_uniform, part.dimension, None if part._cells is None else part._cells.shape[1]) for part in parts}
        if len(kinds) != 1 or next(iter(kinds))[0]:
            raise GridError(
                expected="one grid or more of scattered points, of one dimension and kind of cells",
                got=", ".join(sorted({repr(part) for part in parts})[:3]) or "none",
                remedy="make each by Grid.mesh(points, cells) or Grid.scattered(points, weights)",
            )
        sizes = torch.tensor([part.size for part in parts])
        tensors = [part._unmasked_tensors for part in parts]
        observed = torch.arange(int(sizes.max())) < sizes[:, None]
        return cls(
            shape=(int(sizes.max()),),
            axes=(),
            _points=_padded([points for points, _ in tensors], 0),
            _weights=_padded([weights for _, weights in tensors], 0),
            _observed=None if bool(observed.all()) else observed,
            _cells=None if parts[0]._cells is None else _padded([part._cells for part in parts if part._cells is not None], -1),
        )

    def singles(self) -> list[Grid]:
        """The grids of a batch without padding; for a single grid, the grid itself."""
        if not self.has_points_per_sample:
            return [self]
        points, weights = self._unmasked_tensors
        singles = []
        with outside_of_transforms():
            for index in range(len(points)):
                used = slice(None) if self._observed is None else self._observed[index]
                cells = None if self._cells is None else self._cells[index][(self._cells[index] >= 0).all(1)]
                where, mass = points[index][used], weights[index][used]
                singles.append(Grid(shape=(len(where),), axes=(), _points=where, _weights=mass, _cells=cells))
        return singles

    @property
    def cells(self) -> Tensor | None:
        """Indices of the points of each cell, `(m, k)`, or `(n, m, k)` of a batch, padded by -1; None without a mesh."""
        return None if self._cells is None else _lazy_copy(self._cells)

    @property
    def boundary(self) -> Tensor:
        """Facets of a mesh that belong to one cell only, `(b, k - 1)`: indices of their points.

        Raises:
            GridError: If this is not a mesh, or a batch.
        """
        if self._cells is None or self.has_points_per_sample:
            raise GridError(expected="one mesh", got=repr(self), remedy="make it by Grid.mesh(points, cells)")
        return boundary_facets(self._cells)

    @property
    def points(self) -> Tensor:
        """Coordinates, `(p, d)`, or `(n, p, d)` of a batch with points of their own; float64, last axis fastest; a copy."""
        return _lazy_copy(self._unmasked_tensors[0])

    @property
    def weights(self) -> Tensor:
        """Quadrature weights, `(p,)`, float64; their sum is the domain's volume. Of a batch of n grids, `(n, p)`. A copy."""
        weights = self._unmasked_tensors[1]
        return _lazy_copy(weights) if self._observed is None else weights * self._observed

    @property
    def _unmasked_tensors(self) -> tuple[Tensor, Tensor]:
        """Points and weights without a mask."""
        return self._tensors() if torch.compiler.is_dynamo_compiling() else self._remembered_tensors

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
        return len(self.axes) if self.axes else self._unmasked_tensors[0].shape[-1]

    @property
    def has_points_per_sample(self) -> bool:
        """Whether this is a batch of grids with different points."""
        return self._points is not None and self._points.ndim == 3

    def masked(self, observed: Tensor) -> Grid:
        """Return the grid with weights of zero at points whose values are missing: land, or gaps of some samples.

        Averages over the domain leave these points out, and [`Field`][probneural.Field] ignores values there.

        Args:
            observed: Where there are values, `(*shape,)` of truth values for all samples, or `(n, *shape)` for one mask per
                sample.

        Returns:
            The grid, or a batch of n grids with the same points and weights `(n, p)`, which a `Field` of n samples slices
            along with its values. An existing mask is replaced.

        Raises:
            ShapeError: If the mask has another shape.
            DataError: If it holds no truth values, or no point of a sample with a positive weight is observed.

        Examples:
            >>> grid = Grid.uniform(4)
            >>> grid.masked(torch.tensor([True, True, False, True])).weights.tolist()
            [0.25, 0.25, 0.0, 0.25]
        """
        if self.has_points_per_sample:
            raise GridError(expected="points per sample without a mask", got=repr(self), remedy="leave masked points out")
        mask = checks.check_instance(observed, Tensor, "observed", remedy="convert with torch.as_tensor(observed)")
        mask = mask.detach().cpu().clone()
        if mask.dtype != torch.bool:
            raise DataError(expected="truth values as observed", got=str(mask.dtype), remedy="write values.isfinite()")
        remedy = "a point is observed where all channels are: values.isfinite().all(1)"
        checks.check_shape(mask, "a mask", *["n"] * (mask.ndim > len(self.shape)), *self.shape, remedy=remedy)
        mask = mask.reshape(-1, self.size) if tuple(mask.shape) != self.shape else mask.flatten()
        empty = ~((self.unmasked.weights > 0) & mask).any(-1)
        if bool(empty.any()):
            where = f"sample {int(empty.nonzero()[0, 0])}" if mask.ndim == 2 else "the mask"
            raise DataError(
                expected="an observed point or more in each sample",
                got=f"none in {where}",
                remedy="leave out samples without values: select the others by their numbers",
            )
        return self.unmasked if mask.ndim == 1 and bool(mask.all()) else self._with_mask(mask)

    def _with_mask(self, mask: Tensor | None) -> Grid:
        """The same points with another mask, points and weights being computed once."""
        grid = replace(self, _observed=mask)
        if "_remembered_tensors" in self.__dict__:
            grid.__dict__["_remembered_tensors"] = self._remembered_tensors
        return grid

    @property
    def unmasked(self) -> Grid:
        """The grid without its mask, or masks; padding of a batch stays."""
        return self if self._observed is None or self.has_points_per_sample else self._with_mask(None)

    @property
    def shared(self) -> Grid:
        """The grid without masks that differ from sample to sample, itself otherwise; of a batch of meshes, a batch."""
        return self.unmasked if self.is_batch else self

    @property
    def first(self) -> Grid:
        """The grid of the first sample of a batch, without padding; otherwise the grid of all samples."""
        return self.select(slice(0, 1)).singles()[0] if self.has_points_per_sample else self.shared

    @property
    def is_masked(self) -> bool:
        """Whether there is a mask."""
        return self._observed is not None

    @property
    def is_batch(self) -> bool:
        """Whether there is one mask, or one set of points, per sample, so that weights are `(n, p)`."""
        return self.has_points_per_sample or (self._observed is not None and self._observed.ndim == 2)

    @property
    def observed(self) -> Tensor:
        """Where values are not missing, truth values `(*shape,)`, or `(n, *shape)` of a batch; a copy."""
        if self._observed is None:
            return torch.ones(self.shape, dtype=torch.bool, device="cpu")
        return _lazy_copy(self._observed).reshape(*self._observed.shape[:-1], *self.shape)

    def select(self, index: slice | Tensor) -> Grid:
        """Select grids of a batch; one grid for all samples is returned unchanged."""
        if not self.is_batch:
            return self
        with outside_of_transforms():
            rows = index.cpu() if isinstance(index, Tensor) else index
            observed = None if self._observed is None else self._observed[rows]
            if not self.has_points_per_sample:
                return self._with_mask(observed)
            points, weights = self._unmasked_tensors
            cells = None if self._cells is None else self._cells[rows]
            return replace(self, _points=points[rows], _weights=weights[rows], _observed=observed, _cells=cells)

    def has_points_of(self, grid: Grid) -> bool:
        """Whether the two differ in their masks at most."""
        return self.unmasked == check_grid(grid, "other").unmasked

    def fill(self, values: Tensor, number: float | int = 0.0) -> Tensor:
        """Replace values `(..., n, c, *shape)` at masked points by a number; without a mask, return the same tensor."""
        checks.check_instance(values, Tensor, "values", remedy="give a tensor on the grid")
        if not isinstance(number, int | float):
            raise ArgumentError(expected="a number", got=repr(number), remedy="give 0.0, or NaN")
        if self._observed is None:
            return values
        mask = self.observed.to(values.device)
        return values.masked_fill(~(mask[:, None] if self.is_batch else mask), number)

    @property
    def volume(self) -> float:
        """Measure of the domain without masked points, in the units of the lengths to the power d.

        Raises:
            GridError: If masks differ between samples.
        """
        return float(self._single().weights.sum())

    @property
    def mean_weights(self) -> Tensor:
        """Quadrature weights of an average over the domain, `(p,)`, float64, dimensionless: they sum to one.

        Raises:
            GridError: If masks differ between samples: use `sample_weights`.
        """
        weights = self._single().weights
        return weights / float(weights.sum())

    @property
    def sample_weights(self) -> Tensor:
        """Those of each sample, to be multiplied with values `(n, c, p)`: `(p,)`, or `(n, 1, p)` of a batch."""
        if not self.is_batch:
            return self.mean_weights
        return (self.weights / self.weights.sum(1, keepdim=True))[:, None]

    def mean(self, values: Float[Tensor, "... p"]) -> Float[Tensor, "..."]:
        """Average over the domain of values at the grid's points, flattened to one axis, by quadrature.

        Args:
            values: `(..., p)`; for a batch of n grids, `(..., n, c, p)`.

        Examples:
            >>> Grid.uniform((5,), periodic=False).mean(torch.linspace(0.0, 1.0, 5)).item()
            0.5
        """
        checks.check_instance(values, Tensor, "values", remedy="flatten the axes of the grid: values.flatten(2)")
        checks.check_shape(values, "values", "...", self.size, remedy="write values.flatten(2)")
        if self.is_batch:
            return (values * self.sample_weights.to(values)).sum(-1)
        return values @ self.mean_weights.to(values)

    def _single(self) -> Grid:
        """Itself, or a GridError: some computations need one grid for all samples."""
        if self.has_points_per_sample:
            raise GridError(
                expected="one mesh for all samples of this computation",
                got=repr(self),
                remedy="use PointFNO with LastLayerLaplace, Laplace or DeepEnsemble, which take one mesh per sample",
            )
        if self.is_batch:
            raise GridError(
                expected="one grid for all samples: this computation takes no masks that differ from sample to sample",
                got=repr(self),
                remedy="use LastLayerLaplace, DeepEnsemble or VarianceScale for example; or mask the points "
                "that any sample misses, Field(field.values, grid.masked(grid.observed.all(0)))",
            )
        return self

    @property
    def is_uniform(self) -> bool:
        """Whether the grid is a tensor product of equispaced axes."""
        return len(self.axes) > 0  # bool(self.axes) breaks the graphs of torch.compile in PyTorch 2.11

    @property
    def periodic(self) -> tuple[bool, ...]:
        """Whether each axis is periodic; all False for scattered points."""
        return tuple(axis.periodic for axis in self.axes) or (False,) * self.dimension

    @property
    def endpoint(self) -> tuple[bool, ...]:
        """Whether each axis includes its right end point; all False for scattered points."""
        return tuple(axis.endpoint for axis in self.axes) or (False,) * self.dimension

    @property
    def lengths(self) -> tuple[float, ...]:
        """Extent per axis of a uniform grid; empty for scattered points."""
        return tuple(axis.length for axis in self.axes)

    @property
    def domain(self) -> tuple[tuple[float, float, bool], ...]:
        """Origin, length and periodicity of each axis of a uniform grid; empty for scattered points."""
        return tuple((axis.origin, axis.length, axis.periodic) for axis in self.axes)

    def resized(self, shape: int | Sequence[int]) -> Grid:
        """Return the uniform grid of the same domain with another number of points per axis; itself, if it has that many.

        Raises:
            GridError: If this grid is scattered.
            ArgumentError: If `shape` does not name one size per axis.
        """
        check_grid(self, uniform=True, remedy="a scattered grid has no resolution to change")
        if isinstance(shape, tuple) and shape == self.shape and all(type(size) is int for size in shape):
            return self  # whose points are known already
        sizes = per_axis(shape, self.dimension, "shape", checks.check_integer)
        if sizes == self.shape:
            return self
        if self.is_masked:
            raise GridError(
                expected="a grid without a mask to change the resolution of",
                got=repr(self),
                remedy="a mask belongs to its points: write grid.unmasked.resized(shape)",
            )
        return Grid.of_axes([replace(axis, size=size) for axis, size in zip(self.axes, sizes, strict=True)])

    def named(self, names: Sequence[str], *, units: Sequence[str] = ()) -> Grid:
        """Return the uniform grid with names of its axes, and units of their coordinates; equal to this one.

        Args:
            names: One per axis; "" for none.
            units: One per axis, or none at all.

        Raises:
            GridError: If this grid is scattered.
            ArgumentError: If there is not one name per axis.
        """
        check_grid(self, uniform=True, remedy="scattered points have no axes")
        words = per_axis(names, self.dimension, "names", checks.check_text)
        units = (
            units if isinstance(units, str) else checks.check_sequence(units, "units", remedy="give one text per axis") or ""
        )
        kinds = per_axis(units, self.dimension, "units", checks.check_text)
        axes = (replace(axis, name=name, unit=unit) for axis, name, unit in zip(self.axes, words, kinds, strict=True))
        return replace(self, axes=tuple(axes))

    @property
    def description(self) -> str:
        """Names, points, extents and boundaries in words: `x 64 x y 32 over 1 x 2, periodic in x`."""
        if not self.is_uniform:
            cells = "" if self._cells is None else f" and {self._cells.shape[-2]} cells"
            most = f"{len(self.weights)} grids of at most " if self.has_points_per_sample else ""
            return f"{most}{self.size} points{cells} in {self.dimension} dimensions"
        names = [axis.name or f"x{number}" for number, axis in enumerate(self.axes)]
        units = list(dict.fromkeys(axis.unit for axis in self.axes))
        unit = f" {units[0]}" if len(units) == 1 and units[0] else ""
        points = " x ".join(f"{name} {axis.size}" for name, axis in zip(names, self.axes, strict=True))
        starts = [f" from {axis.origin:.6g}" if axis.origin else "" for axis in self.axes]
        kinds = ["" if unit or not axis.unit else f" {axis.unit}" for axis in self.axes]
        rows = zip(self.axes, starts, kinds, strict=True)
        extents = " x ".join(f"{axis.length:.6g}{start}{kind}" for axis, start, kind in rows)
        around = ", ".join(name for name, axis in zip(names, self.axes, strict=True) if axis.periodic)
        ends = "periodic" if all(self.periodic) else f"periodic in {around}" if around else "walls"
        missing = ""
        if self.is_masked:
            share = f"{1.0 - self.observed.double().mean().item():.0%} masked" if self.observed.numel() else "NaN masked"
            missing = f", {share}"
        return f"{points} over {extents}{unit}, {ends}{missing}"

    def __eq__(self, other: object) -> bool:
        """Whether both describe the same points, weights and shape."""
        if not isinstance(other, Grid):
            return NotImplemented
        if not _are_equal(self._observed, other._observed):
            return False
        if self.axes or other.axes:
            return self.axes == other.axes
        with outside_of_export():
            return _are_equal(self._cells, other._cells) and all(
                map(torch.equal, self._unmasked_tensors, other._unmasked_tensors)
            )

    def __hash__(self) -> int:
        """Hash on the axes, or on the scattered points."""
        return hash(self.axes) if self.axes else hash((self.shape, self._unmasked_tensors[0].numpy().tobytes()))

    def __repr__(self) -> str:
        """A short description."""
        if self.has_points_per_sample:
            return f"Grid.batch({self.description})"
        if self.is_masked:
            if not self.observed.numel():
                return f"{self.unmasked!r}, with masks that are read with the values"
            of = f" in {len(self.weights)} samples" if self.is_batch else ""
            return f"{self.unmasked!r}, masked ({1.0 - self.observed.double().mean().item():.0%} of the points{of})"
        if not self.is_uniform:
            return f"Grid.{'scattered' if self._cells is None else 'mesh'}({self.description})"
        origin = tuple(axis.origin for axis in self.axes)
        start = f", origin={origin}" if any(origin) else ""
        text = f"Grid.uniform({self.shape}, lengths={self.lengths}, periodic={self.periodic}, endpoint={self.endpoint}{start})"
        latitudes = [number for number, axis in enumerate(self.axes) if axis.latitudes is not None]
        return f"{text}.on_sphere(latitude={latitudes[0]})" if latitudes else text


def _coordinates(points: Tensor | Sequence[Sequence[float]]) -> Float64[Tensor, "p d"]:
    """Coordinates as float64 on the CPU, checked."""
    with undisturbed():  # autograd refuses inference tensors, and the grid outlives the mode
        host = torch.device("cpu")
        where = (
            checks.real_tensor(points, "points", dtype=torch.float64, device=host).detach() + 0.0
        )  # -0.0 would break the hash
    if where.ndim != 2 or 0 in where.shape:
        raise ShapeError(expected="points of shape (p, d)", got=str(tuple(where.shape)), remedy="one row per point")
    checks.check_finite(where, "points", remedy="check the array")
    return where


def _padded(parts: Sequence[Tensor], number: int) -> Tensor:
    """Tensors `(p_i, ...)` as one `(n, p, ...)`, padded at the end."""
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=number)


def _lazy_copy(tensor: Tensor) -> Tensor:
    """A copy that shares memory until one of the two is written to, so that no caller changes a grid in place."""
    if torch.compiler.is_dynamo_compiling():
        return tensor
    with outside_of_transforms():
        if tensor.is_shared():  # memory that came from another process
            return tensor.clone()
        return torch._lazy_clone(tensor)


def _are_equal(first: Tensor | None, second: Tensor | None) -> bool:
    """Whether two tensors are equal, or both are missing."""
    if first is None or second is None:
        return first is second
    with outside_of_export():
        return torch.equal(first, second)


def per_axis(value: Any, count: int, name: str, check: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    """Spread a scalar over the axes, or take one entry per axis from a sequence; each entry is checked.

    Raises:
        ArgumentError: If a sequence has another number of entries, or one of them fails its check.
    """
    entries = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,) * count
    remedy = f"give {count}, e.g. {name}={(entries or (value,))[:1] * count!r}"
    checks.check_count(len(entries), count, f"entries of {name}", remedy=remedy, error=ArgumentError)
    return tuple(check(entry, name) for entry in entries)


_INTERPOLATE = "interpolate values by scipy.interpolate.griddata"


def check_grid(
    grid: object, name: str = "grid", *, uniform: bool = False, dimension: int | None = None, remedy: str = _INTERPOLATE
) -> Grid:
    """Return a grid.

    Raises:
        GridError: If it is not a Grid, not uniform where required, or not of the required dimension.
    """
    checked = checks.check_instance(
        grid, Grid, name, remedy="give a pn.Grid: inputs.grid.resized(128), for example", error=GridError
    )
    if uniform and not checked.is_uniform:
        raise GridError(expected=f"a uniform grid as {name}", got=repr(grid), remedy=remedy)
    if dimension not in (None, checked.dimension):
        raise GridError(expected=f"a grid in {dimension} dimensions as {name}", got=repr(grid), remedy=remedy)
    return checked


def check_same_grid(grid: Grid, expected: Grid, name: str, *, remedy: str) -> None:
    """Raise a GridError unless two grids are equal."""
    if grid != expected:
        raise GridError(expected=f"{name} on {expected!r}", got=repr(grid), remedy=remedy)


def check_unmasked(grid: Grid, purpose: str) -> Grid:
    """Return a grid without a mask, or raise a GridError."""
    if grid.is_masked:
        raise GridError(
            expected=f"a grid without a mask, for {purpose}",
            got=repr(grid),
            remedy="fill the missing values, and wrap them in a Field on grid.unmasked; or use averages, pointwise scores "
            "and RelativeL2, which support masks",
        )
    return grid


def check_on_grid(values: Tensor, grid: Grid) -> None:
    """Raise a ShapeError unless the last axes of `values`, a tensor, are the grid's."""
    checks.check_instance(values, Tensor, "values", remedy="convert with torch.as_tensor(values)")
    check_grid(grid)
    remedy = "channels come before the grid axes: (n, c, *grid.shape)"
    checks.check_shape(values, "values", "...", *grid.shape, remedy=remedy)
