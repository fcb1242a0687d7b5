"""Arrays of one's own as a data set, never copied whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from probneural.arrays import Mask, grid_of
from probneural.data.fields import Part
from probneural.data.pairs import StoredPairs, stored_pairs
from probneural.data.readers import ArrayReader, reader_of
from probneural.data.variables import FUNCTION, TIME, Variable
from probneural.errors import ArgumentError, ShapeError
from probneural.grids import Grid, check_grid


def from_arrays(
    inputs: Any,
    outputs: Any,
    *,
    grid: Grid | None = None,
    out_grid: Grid | None = None,
    lengths: float | Sequence[float] | None = None,
    periodic: bool | Sequence[bool] | None = None,
    endpoint: bool | Sequence[bool] | None = None,
    dtype: torch.dtype | None = None,
    mask: Mask | tuple[Mask, Mask] = None,
) -> StoredPairs:
    """Make a data set of arrays `(n, c, *grid)` of any kind that can be sliced, read a few functions at a time.

    A memory map of a file, `np.load(path, mmap_mode="r")`, is read by positions in the file, so that memory in use stays small.

    Args:
        inputs: Input functions: a NumPy array or memory map, a tensor, a `h5py.Dataset`, a zarr array; real, in physical units.
            Channels are the second axis, which may be missing where `grid`, or a sequence among the options, tells so.
        outputs: Output functions, likewise.
        grid: Where the inputs live, and the outputs unless `out_grid` says otherwise. In its place, the next three.
        out_grid: Where the outputs live.
        lengths: Extent per axis, 1 by default.
        periodic: Whether each axis is periodic, one entry per axis or one for all.
        endpoint: Whether the right end is a point; by default exactly on the axes that are not periodic.
        dtype: float32 or float64; by default float64 if either array is of it, else float32.
        mask: Which values are missing: True for those that are NaN, sample by sample; or truth values `(*grid,)`, True at
            points that are missing in all samples, land for example. A tuple of two where inputs and outputs differ.

    Returns:
        The data set. Values are checked where they are read.

    Raises:
        DataError: If an argument is no array of real numbers.
        ShapeError: If a shape does not fit, or the numbers of functions differ.
        ArgumentError: If neither `grid` nor `periodic` is given, or both, or `dtype` is another one.

    Examples:
        >>> import numpy as np
        >>> data = from_arrays(np.zeros((10, 1, 8)), np.zeros((10, 2, 8)), periodic=True)
        >>> len(data), data.outputs.channels, data[2:4].outputs.values.shape
        (10, 2, torch.Size([2, 2, 8]))
    """
    given = {"lengths": lengths, "periodic": periodic, "endpoint": endpoint}
    named = [name for name, value in given.items() if value is not None]
    if grid is not None and named:
        raise ArgumentError(expected="grid= alone", got=f"grid with {', '.join(named)}", remedy="the grid tells them")
    if dtype not in (None, torch.float32, torch.float64):
        raise ArgumentError(expected="dtype float32 or float64", got=str(dtype), remedy="leave it out to keep the arrays' own")
    sides = []
    for array, where, name in ((inputs, grid, "inputs"), (outputs, out_grid or grid, "outputs")):
        reader = reader_of(array, name)
        if where is None:
            where = _grid_with_channels(reader.shape, name, **given)
        sides.append((positional(reader, check_grid(where), name), where))
    (first, in_grid), (second, to_grid) = sides
    counts = [variable.count(FUNCTION) or 0 for variable in (first, second)]
    if counts[0] != counts[1]:
        raise ShapeError(
            expected="as many outputs as inputs", got=f"{counts[0]} and {counts[1]}", remedy="pair them one to one"
        )
    parts = [Part(variable=first)], [Part(variable=second)]
    masks = mask if isinstance(mask, tuple) else (mask, mask)
    in_grid, to_grid = (_land(where, one) for where, one in zip((in_grid, to_grid), masks, strict=True))
    pairs = stored_pairs(*parts, counts[0], grid=in_grid, out_grid=to_grid, dtype=dtype)
    return pairs.with_missing(inputs=masks[0] is True, outputs=masks[1] is True).looked_at()


def _land(grid: Grid, mask: Mask) -> Grid:
    """A grid with the mask that all samples have."""
    if mask is None or isinstance(mask, bool):
        return grid
    missing = torch.as_tensor(mask)
    if missing.dtype != torch.bool or tuple(missing.shape) != grid.shape:
        raise ShapeError(
            expected=f"truth values as mask, of shape {grid.shape}",
            got=f"{missing.dtype} of shape {tuple(missing.shape)}",
            remedy="pass mask=True where NaN means missing, sample by sample",
        )
    return grid.masked(~missing)


def positional(reader: ArrayReader, grid: Grid, name: str, *, has_time: bool = False) -> Variable:
    """An array whose axes are known by position: functions, times if so, channels if there is one more axis, space.

    Raises:
        ShapeError: If it has another number of axes, or does not fit the grid.
    """
    leading = (FUNCTION, TIME) if has_time else (FUNCTION,)
    extra = len(reader.shape) - len(leading) - len(grid.shape)
    if extra not in (0, 1):
        first = "(n, times, " if has_time else "(n, "
        raise ShapeError(
            expected=f"{name} of shape {first}*grid) or {first}c, *grid) with {len(grid.shape)} grid axes",
            got=str(reader.shape),
            remedy="functions come first, channels before space, space last; time= says that there is an axis of time",
        )
    return Variable(name=name, reader=reader, leading=leading, channel_axes=(0,) * extra, grid_shape=grid.shape)


def _grid_with_channels(shape: tuple[int, ...], name: str, **options: Any) -> Grid:
    """The grid of an array whose axes of space the options count, or whose second axis is channels where they do not."""
    if any(isinstance(option, Sequence) for option in options.values()) or len(shape) < 3:
        return grid_of(shape, name, **options)
    count = len(shape) - 2
    if options["periodic"] is not None:
        options["periodic"] = (options["periodic"],) * count
    return grid_of(shape, name, **options)
