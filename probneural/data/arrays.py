"""Data sets from arrays, which are never copied whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from probneural.arrays.layouts import layouts_of
from probneural.arrays.reading import Mask, array_layout, check_grid_alone, check_samples
from probneural.data.arranged import array_reader
from probneural.data.fields import Part, with_mask
from probneural.data.pairs import StoredPairs, stored_pairs
from probneural.data.variables import FUNCTION, Variable, variable_of
from probneural.errors import ArgumentError, ShapeError
from probneural.grids import Grid, check_grid


def from_arrays(
    inputs: Any,
    outputs: Any,
    *,
    axes: str | None = None,
    grid: Grid | None = None,
    out_grid: Grid | None = None,
    periodic: bool | Sequence[bool] | None = None,
    dtype: torch.dtype | None = None,
    mask: Mask | tuple[Mask, Mask] = None,
) -> StoredPairs:
    """Make a data set of arrays `(n, c, *grid)` of any kind that can be sliced, read a few samples at a time.

    A memory map of a file, `np.load(path, mmap_mode="r")`, is read by positions in the file, so that memory in use stays small.

    Args:
        inputs: A NumPy array or memory map, a tensor, a `h5py.Dataset`, a zarr array; real, in physical units.
        outputs: Outputs, likewise.
        axes: Roles of the axes, for example `"n x y c"`: see [`open`][probneural.data.open]. By default `(n, c, *grid)`, or
            `(n, *grid)` where `grid` or the entries of `periodic` state the number of axes of space.
        grid: Where the inputs live, and the outputs unless there is an `out_grid`; or `periodic` for the unit cube.
        out_grid: Where the outputs live.
        periodic: Whether each axis is periodic, one entry per axis or one for all.
        dtype: float32 or float64; by default float64 if either array is of it, else float32.
        mask: Which values are missing: True for those that are NaN, sample by sample; or truth values `(*grid,)` in the
            array's order of axes, True at points that are missing in all samples, land for example. A tuple of two where inputs
            and outputs differ.

    Returns:
        The data set. Values are checked where they are read.

    Raises:
        DataError: If an argument is no array of real numbers.
        ShapeError: If a shape does not fit or is ambiguous, or the numbers of samples differ.
        ArgumentError: If neither `grid` nor `periodic` is given, or both, or `dtype` is another one.

    Examples:
        >>> import numpy as np
        >>> data = from_arrays(np.zeros((10, 1, 8)), np.zeros((10, 2, 8)), axes="n c x", periodic=True)
        >>> len(data), data.outputs.channels, data[2:4].outputs.values.shape
        (10, 2, torch.Size([2, 2, 8]))
    """
    check_grid_alone(grid, periodic)
    if dtype not in (None, torch.float32, torch.float64):
        raise ArgumentError(expected="dtype float32 or float64", got=str(dtype), remedy="leave it out to keep the arrays' own")
    sides: list[tuple[Variable, Grid]] = []
    stated = layouts_of(axes)
    for array, where, layout, name in (
        (outputs, grid if out_grid is None else out_grid, stated[1], "outputs"),
        (inputs, grid, stated[0], "inputs"),
    ):
        reader = array_reader(array, name)
        if where is not None:
            check_grid(where)
        roles, own_grid = array_layout(reader.shape, name, stated=layout, grid=where, periodic=periodic)
        check_samples(roles, name)
        side_grid = own_grid or (sides[0][1] if sides else None)
        if side_grid is None:
            raise ArgumentError(
                expected="an axis of space of outputs", got=f'axes="{roles}"', remedy='name it: axes="n c -> n x"'
            )
        sides.append((variable_of(reader, roles, side_grid, name), side_grid))
    (second, to_grid), (first, in_grid) = sides
    counts = [variable.count(FUNCTION) or 0 for variable in (first, second)]
    if counts[0] != counts[1]:
        raise ShapeError(
            expected="as many outputs as inputs", got=f"{counts[0]} and {counts[1]}", remedy="pair them one to one"
        )
    parts = [Part(variable=first)], [Part(variable=second)]
    pairs = stored_pairs(*parts, counts[0], grid=in_grid, out_grid=to_grid, dtype=dtype)
    masks = mask if isinstance(mask, tuple) else (mask, mask)
    inputs, outputs = with_mask(pairs.inputs, masks[0], partner=pairs.outputs), with_mask(pairs.outputs, masks[1])
    masked = replace(pairs, inputs=inputs, outputs=outputs)
    return masked.looked_at()
