"""Files of PDEBench: HDF5, whose keys determine the equation and the roles of axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probneural.arrays.layouts import Layout
from probneural.data.contents import Contents, Request
from probneural.data.readers import ArrayReader, hdf5_reader, stacked
from probneural.data.sources import described_file
from probneural.data.variables import FUNCTION, TIME, Variable, variable_of
from probneural.errors import ArgumentError, DataError
from probneural.grids import Grid
from probneural.grids.coordinates import grid_of_coordinates

_COORDINATES = ("x-coordinate", "y-coordinate", "z-coordinate")
_FLOW = ("density", "pressure", "Vx", "Vy", "Vz")
"""Variables of compressible flow."""
_INCOMPRESSIBLE = ("velocity", "particles", "force")


def is_pdebench(file: Any) -> bool:
    """Whether an open HDF5 file has the keys of a file of PDEBench."""
    keys = set(file)
    has_coordinates = "x-coordinate" in keys and bool(keys & {"tensor", *_FLOW})
    return has_coordinates or {"velocity", "particles", "force", "t"} <= keys or bool(_seeds(file))


def pdebench_contents(file: Any, request: Request) -> Contents:
    """Variables of a file of PDEBench.

    * `tensor` beside `t-coordinate`: trajectories `(n, times, *space)` of one variable; `density`, `pressure`, `Vx`, ...
      likewise.
    * `nu` and `tensor` `(n, 1, *space)`: coefficients and solutions of Darcy's equation.
    * A group per seed, "0000" and so on, of `data` `(times, *space, c)` and `grid`: trajectories of c variables.
    * `velocity`, `particles` `(n, times, *space, c)`, `force` `(n, *space, c)`, `t`: incompressible flow.

    The number of axes of space is that of the coordinates. `t-coordinate` may have one entry more than there are times, as
    the files of one dimension do, whose last entry belongs to no state.

    Raises:
        DataError: If shapes contradict keys and coordinates.
        ArgumentError: If `periodic` is missing: the files lack boundary conditions.
        GridError: If coordinates are not equispaced.

    Reference:
        Takamoto et al. (2022), PDEBench: An Extensive Benchmark for Scientific Machine Learning.
    """
    path, seeds = Path(file.filename), _seeds(file)
    if request.layout.grid is None and request.periodic is None:
        raise ArgumentError(
            expected=f"periodic=, one entry per axis of space or one for all, for {path}",
            got="None",
            remedy="files of PDEBench do not tell boundary conditions; those of 1-D advection and Burgers are periodic",
        )
    first = file[seeds[0]] if seeds else file
    fields: dict[str, ArrayReader]
    names = [f"grid/{axis}" for axis in "xyz"] if seeds else _COORDINATES
    coordinates = {key: first[key][...] for key in names if key in first}
    if seeds:
        fields = {"data": stacked([hdf5_reader(file[f"{group}/data"]) for group in seeds], "data")}
    else:
        fields = {key: hdf5_reader(file[key]) for key in ("nu", "tensor", *_FLOW, *_INCOMPRESSIBLE) if key in file}
    grid = request.layout.grid or _grid(coordinates, fields, request)
    is_darcy, has_channels = "nu" in fields, seeds or not coordinates
    axes = {key: (len(grid.shape),) if has_channels else (0,) * (is_darcy and key == "tensor") for key in fields}
    variables = {
        key: _variable(key, reader, _leading(key, is_darcy), axes[key], grid=grid, layout=request.layouts[0])
        for key, reader in fields.items()
    }
    moving = [key for key in fields if key != "force"]
    sides = (["nu"], ["tensor"]) if is_darcy else (list(fields), moving)
    chosen = request.names({key: reader.shape for key, reader in fields.items()}, path, *sides)
    stored = next((first[key][...] for key in ("grid/t", "t-coordinate", "t") if key in first), None)
    times = None if is_darcy else _times(file, stored, variables, request)
    return Contents(names=chosen, variables=variables, grids=dict.fromkeys(fields, grid), times=times)


def _grid(coordinates: dict[str, NDArray[Any]], fields: dict[str, ArrayReader], request: Request) -> Grid:
    """The grid of the coordinates; of incompressible flow, which has none, that of the unit cube or of `lengths`."""
    if coordinates:
        count = len(coordinates)
        return grid_of_coordinates(coordinates, periodic=request.rounds(count), lengths=request.spans(count))
    shape = fields["velocity"].shape[2:-1]
    periodic, ends = request.rounds(len(shape)), (False,) * len(shape)
    return Grid.uniform(shape, lengths=request.layout.lengths or 1.0, periodic=periodic, endpoint=ends)


def _seeds(file: Any) -> list[str]:
    """Names of groups of one seed each, which are numbers, in their order."""
    keys = sorted(file)
    return keys if keys and all(key.isdigit() for key in keys) and "data" in file[keys[0]] and "grid" in file[keys[0]] else []


def _variable(
    key: str, reader: ArrayReader, leading: tuple[int, ...], channel_axes: tuple[int, ...], *, grid: Grid, layout: Layout | None
) -> Variable:
    """A variable by the user's layout, if that has as many axes, or by the file's."""
    if layout is not None and len(layout.roles) == len(reader.shape):
        layout.check(reader.shape, key)
        return variable_of(reader, layout, grid, key)
    return Variable(name=key, reader=reader, leading=leading, channel_axes=channel_axes, grid_shape=grid.shape)


def _leading(key: str, is_darcy: bool) -> tuple[int, ...]:
    """The first axes of a variable: samples, and times where it varies in time."""
    return (FUNCTION,) if is_darcy or key == "force" else (FUNCTION, TIME)


def _times(file: Any, times: NDArray[Any] | None, variables: dict[str, Variable], request: Request) -> Any:
    """The times, without the entry that some files have beyond the last state."""
    steps = next((count for variable in variables.values() if (count := variable.count(TIME)) is not None), None)
    if steps is None:  # the user states other roles of the axes
        return None
    stated = times if request.layout.time is None else request.layout.time
    if stated is None:
        raise DataError(
            expected=f"{steps} times in {file.filename}",
            got=f"none; the file has {described_file(file)}",
            remedy="give them: time=[0.0, 0.1, ...]",
        )
    count = np.asarray(stated).shape[-1]
    return np.asarray(stated)[..., :steps] if count == steps + 1 else stated
