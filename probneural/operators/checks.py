"""Checks of the arguments and inputs of operators and their layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from probneural.checks import check_count, check_instance, check_integer, check_least, check_sequence, check_shape
from probneural.errors import DataError, GridError, ResolutionError, ShapeError
from probneural.grids import Grid, check_grid


def check_input(values: Tensor, *, channels: int, dimension: int, dtype: torch.dtype) -> None:
    """Raise a ShapeError unless values are `(n, channels, *grid)` with `dimension` grid axes, a DataError unless of `dtype`."""
    check_instance(values, Tensor, "values", remedy="convert with torch.as_tensor(values), or call a predictor on a Field")
    if values.dtype != dtype and not torch.is_autocast_enabled(values.device.type):
        raise DataError(
            expected=f"values of the operator's {dtype}",
            got=str(values.dtype),
            remedy=f"convert the data, pairs.to({dtype}), or the operator, operator.to({values.dtype})",
        )
    if 0 in values.shape:
        raise ShapeError(expected="at least one sample", got=str(tuple(values.shape)), remedy="leave out empty batches")
    check_shape(values, "values", "n", channels, *["points"] * dimension, remedy="axis 1 is channels")


def check_where(grid: Grid | None, query: Grid | None) -> None:
    """Raise a GridError unless each is left out or a Grid."""
    for where, name in ((grid, "grid"), (query, "query")):
        if where is not None:
            check_grid(where, name)


def check_samples(grid: Grid, values: Tensor) -> None:
    """Raise a ShapeError if a batch of grids does not have one grid per sample of the values."""
    if grid.has_points_per_sample:
        check_count(len(grid.weights), len(values), "grids, one for each sample", remedy="use grid.select(rows)")


def grid_of_values(values: Tensor, grid: Grid | None, *, periodic: tuple[bool, ...]) -> Grid:
    """Return the grid, the unit one by default, or raise a GridError unless it is uniform, of the values, and as periodic."""
    grid = Grid.uniform(tuple(values.shape[2:]), periodic=periodic) if grid is None else grid
    if not check_grid(grid).is_uniform or grid.shape != tuple(values.shape[2:]) or grid.periodic != periodic:
        raise GridError(
            expected=f"a uniform grid of shape {tuple(values.shape[2:])} with periodic={periodic}",
            got=repr(grid),
            remedy="build the operator with the periodic= of its data, and pass the values' own grid",
        )
    return grid


def check_modes(modes: Sequence[int]) -> tuple[int, ...]:
    """Return a tuple of modes, or raise an ArgumentError unless there are 1 to 3, all of them positive integers."""
    entries = tuple(check_integer(mode, "modes") for mode in check_sequence(modes, "modes", remedy="give e.g. modes=(16,)"))
    check_integer(len(entries), "number of axes with modes", most=3, remedy="give e.g. modes=(16,)")
    return entries


def check_resolution(sizes: Sequence[int], modes: Sequence[int]) -> None:
    """Raise a ResolutionError unless each axis has 2m - 1 points or more."""
    for axis, (size, mode) in enumerate(zip(sizes, modes, strict=True)):
        remedy = "give the operator a finer grid, or build it with fewer modes"
        things = f"points along axis {axis} for {mode} modes"
        check_least(size, 2 * mode - 1, things, remedy=remedy, error=ResolutionError)


def stated_channels(operator: nn.Module, name: str) -> int:
    """Return the number of channels in an attribute of a module, or raise an ArgumentError."""
    return check_integer(getattr(operator, name, None), f"operator.{name}", remedy=f"set operator.{name} = 1")
