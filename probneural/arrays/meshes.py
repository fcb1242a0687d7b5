"""Files of meshes that ParaView reads, written by meshio."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probneural import atomic
from probneural.checks import check_path, optional
from probneural.errors import ArgumentError, GridError
from probneural.grids import Grid

_WRITERS = {".vtu": "vtu", ".vtk": "vtk"}
_CELLS = {2: "line", 3: "triangle", 4: "tetra"}
_NUMBER = "{}"
"""Part of a path that the number of the sample replaces."""


def write_meshes(path: str | os.PathLike[str], grid: Grid, arrays: Mapping[str, Tensor]) -> None:
    """Write values `(n, c, p)` by name as point data, one file per sample, each whole or not at all.

    Args:
        path: A file .vtu or .vtk; of several samples, with `{}` in place of their number: `"cases/{}.vtu"`.
        grid: A mesh, scattered points, or one of these per sample.
        arrays: Values by name; of several channels, names end in the number of the channel. Masked points are NaN.

    Raises:
        GridError: If the grid is uniform.
        ArgumentError: If the path has another ending, or lacks `{}` for several samples.
        FileError: If a file cannot be written.
        MissingPackageError: If meshio is not installed; the extra is `probneural[mesh]`.
    """
    target = check_path(path, "path")
    library = optional("meshio", "to_meshio", extra="mesh")
    if grid.is_uniform:
        raise GridError(expected="a mesh or scattered points", got=repr(grid), remedy="write uniform grids by to_xarray()")
    if target.suffix not in _WRITERS:
        raise ArgumentError(expected="a path that ends in .vtu or .vtk", got=str(target), remedy='write "u.vtu"')
    filled = {name: grid.fill(values.detach().cpu(), float("nan")) for name, values in arrays.items()}
    count = len(next(iter(filled.values())))
    if count > 1 and _NUMBER not in target.name:
        remedy = f'write "{target.with_suffix("")}_{_NUMBER}{target.suffix}", or choose one: u[0]'
        raise ArgumentError(expected=f"a path with {_NUMBER} for each of {count} samples", got=str(target), remedy=remedy)
    singles = grid.singles()
    for number in range(count):
        where = singles[number] if grid.has_points_per_sample else grid
        values = {name: array[number][:, : where.size].to(torch.float64).numpy() for name, array in filled.items()}
        mesh = _mesh(library, where, values)
        file = target.with_name(target.name.replace(_NUMBER, str(number)))
        with atomic.replacing(file) as temporary:
            getattr(library, _WRITERS[target.suffix]).write(str(temporary), mesh)


def _mesh(library: Any, grid: Grid, values: Mapping[str, NDArray[Any]]) -> Any:
    """A mesh of meshio with coordinates in three dimensions."""
    points = np.pad(grid.points.numpy(), ((0, 0), (0, 3 - grid.dimension)))
    cells = [("vertex", np.arange(grid.size)[:, None])]
    if grid.cells is not None:
        cells = [(_CELLS[grid.cells.shape[1]], grid.cells.numpy())]
    data = {
        name if len(channels) == 1 else f"{name}_{number}": np.ascontiguousarray(channel)
        for name, channels in values.items()
        for number, channel in enumerate(channels)
    }
    return library.Mesh(points, cells, point_data=data)
