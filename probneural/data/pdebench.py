"""Files of PDEBench: HDF5, whose keys determine the equation and the roles of axes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probneural.data.contents import Contents, Request
from probneural.data.hdf5 import array_of, described_file
from probneural.data.readers import ArrayReader, ReopenedReader, require
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
    if _seeds(file):
        return _of_seeds(file, request)
    if "x-coordinate" not in file:
        return _of_incompressible_flow(file, request)
    grid = _grid(file, {key: file[key][...] for key in _COORDINATES if key in file}, request)
    is_darcy = "nu" in file
    axes: dict[str, tuple[int, ...]]
    axes = {"nu": (), "tensor": (0,)} if is_darcy else {key: () for key in ("tensor", *_FLOW) if key in file}
    leading = (FUNCTION,) if is_darcy else (FUNCTION, TIME)
    sides = (["nu"], ["tensor"]) if is_darcy else (list(axes), list(axes))
    names = request.names({key: file[key].shape for key in axes}, Path(file.filename), *sides)
    variables = {
        key: _variable(file, key, array_of(file, key), leading, channel_axes=channels, grid=grid, request=request)
        for key, channels in axes.items()
    }
    stored = file["t-coordinate"][...] if "t-coordinate" in file else None
    times = None if is_darcy else _times(file, stored, variables, request)
    return Contents(names=names, variables=variables, grids=dict.fromkeys(axes, grid), times=times)


def _of_incompressible_flow(file: Any, request: Request) -> Contents:
    shape = file["velocity"].shape
    dimension = shape[-1]
    if request.grid is None and request.periodic is None:
        raise _without_periodic(file)
    grid = request.grid or Grid.uniform(
        shape[2:-1], lengths=request.lengths or 1.0, periodic=request.rounds(dimension), endpoint=(False,) * dimension
    )
    variables = {}
    for key in _INCOMPRESSIBLE:
        leading = (FUNCTION,) if key == "force" else (FUNCTION, TIME)
        variables[key] = _variable(
            file, key, array_of(file, key), leading, channel_axes=(dimension,), grid=grid, request=request
        )
    moving = ["velocity", "particles"]
    shapes = {key: variable.reader.shape for key, variable in variables.items()}
    names = request.names(shapes, Path(file.filename), [*moving, "force"], moving)
    times = _times(file, file["t"][...], variables, request)
    return Contents(names=names, variables=variables, grids=dict.fromkeys(variables, grid), times=times)


def _of_seeds(file: Any, request: Request) -> Contents:
    """Trajectories of a group per seed."""
    seeds = _seeds(file)
    first = file[seeds[0]]
    coordinates = {f"grid/{axis}": first[f"grid/{axis}"][...] for axis in "xyz" if f"grid/{axis}" in first}
    grid = _grid(file, coordinates, request)
    data = first["data"]
    chunks = (1, *(data.chunks or (1,) * data.ndim))
    reader = GroupsReader(Path(file.filename), tuple(seeds), "data", (len(seeds), *data.shape), data.dtype, chunks)
    axes = (len(grid.shape),)
    variables = {"data": _variable(file, "data", reader, (FUNCTION, TIME), channel_axes=axes, grid=grid, request=request)}
    times = _times(file, first["grid/t"][...] if "grid/t" in first else None, variables, request)
    names = request.names({"data": reader.shape}, Path(file.filename), ["data"], ["data"])
    return Contents(names=names, variables=variables, grids={"data": grid}, times=times)


@dataclass
class GroupsReader(ReopenedReader):
    """Arrays of equal shape, one per group of an HDF5 file, as one array.

    Args:
        path: The file.
        groups: Names of the groups, in order.
        key: The array's name in each.
        shape: Number of groups, then lengths of the arrays' axes.
        dtype: Of their numbers.
        chunks: Of the whole.
    """

    path: Path
    groups: tuple[str, ...]
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box.

        Raises:
            DataError: If an array has another shape than the first.
        """
        parts = []
        for group in self.groups[box[0]]:
            array = self._file[group][self.key]
            if array.shape != self.shape[1:]:
                raise DataError(
                    expected=f"{group}/{self.key} of shape {self.shape[1:]} in {self.path}, as in the first group",
                    got=str(array.shape),
                    remedy="trajectories of one data set have one grid and equally many times",
                )
            parts.append(array[box[1:]])
        return np.stack(parts)

    def _open(self) -> Any:
        return require("h5py", "HDF5 files").File(self.path, "r")


def _seeds(file: Any) -> list[str]:
    """Names of groups of one seed each, which are numbers, in their order."""
    keys = sorted(file)
    return keys if keys and all(key.isdigit() for key in keys) and "data" in file[keys[0]] and "grid" in file[keys[0]] else []


def _grid(file: Any, coordinates: dict[str, NDArray[Any]], request: Request) -> Grid:
    if request.grid is not None:
        return request.grid
    if request.periodic is None:
        raise _without_periodic(file)
    count = len(coordinates)
    return grid_of_coordinates(coordinates, periodic=request.rounds(count), lengths=request.spans(count))


def _variable(
    file: Any,
    key: str,
    reader: ArrayReader,
    leading: tuple[int, ...],
    *,
    channel_axes: tuple[int, ...],
    grid: Grid,
    request: Request,
) -> Variable:
    """A variable whose shape fits the coordinates, or a DataError."""
    layout = request.layouts[0]
    if layout is not None and len(layout.roles) == len(reader.shape):
        layout.check(reader.shape, key)
        return variable_of(reader, layout, grid, key)
    space = list(grid.shape)
    remaining = list(reader.shape[len(leading) :])
    for axis in channel_axes:
        space.insert(axis, remaining[axis] if axis < len(remaining) else 0)
    if remaining != space:
        words = ["n", "times"][: len(leading)]
        axes = ["c" if axis in channel_axes else str(length) for axis, length in enumerate(space)]
        coordinates, reader_axes = iter("xyz"), len(reader.shape)
        example = [*"nt"[: len(leading)], *("c" if axis in channel_axes else next(coordinates) for axis in range(len(space)))]
        raise DataError(
            expected=f"{key} of shape ({', '.join([*words, *axes])}) in {file.filename}, as its keys and coordinates say",
            got=f"{reader.shape}; the file has {described_file(file)}",
            remedy=f'state the roles of the axes: axes="{" ".join(["-"] * (reader_axes - len(example)) + example)}"',
        )
    return Variable(name=key, reader=reader, leading=leading, channel_axes=channel_axes, grid_shape=grid.shape)


def _times(file: Any, times: NDArray[Any] | None, variables: dict[str, Variable], request: Request) -> Any:
    """As many times as there are states, without the entry that some files have beyond the last."""
    steps = next((count for variable in variables.values() if (count := variable.count(TIME)) is not None), None)
    if steps is None:  # the user states other roles of the axes
        return None
    stated_times = times if request.axes.time is None else request.axes.time
    count = None if stated_times is None else np.asarray(stated_times).shape[-1]
    if stated_times is None or count not in (steps, steps + 1):
        raise DataError(
            expected=f"{steps} times, or one more, in {file.filename}",
            got=f"{count}; the file has {described_file(file)}",
            remedy="give them: time=[0.0, 0.1, ...]",
        )
    return np.asarray(stated_times)[..., :steps]


def _without_periodic(file: Any) -> ArgumentError:
    return ArgumentError(
        expected=f"periodic=, one entry per axis of space or one for all, for {file.filename}",
        got="None",
        remedy="files of PDEBench do not tell boundary conditions; those of 1-D advection and Burgers are periodic",
    )
