"""What files of HDF5 hold: which layout it is, and arrays of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from probneural.arrays import grid_of
from probneural.data.arrays import positional
from probneural.data.contents import Contents, Request
from probneural.data.readers import ArrayReader, HDF5Reader
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.grids import Grid


def array_of(file: Any, key: str) -> HDF5Reader:
    """An array of an open file, which is opened again to be read."""
    found = file[key]
    return HDF5Reader(Path(file.filename), key, found.shape, found.dtype, found.chunks or (1,) * found.ndim)


def described_file(file: Any, most: int = 30) -> str:
    """Keys, shapes and attributes of an open file, in a few words."""
    import h5py

    found: list[str] = [f"@{name}" for name in file.attrs]

    def visit(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset) and len(found) < most:
            found.append(f"{name} {thing.shape}")

    file.visititems(visit)
    return ", ".join(found) or "nothing"


def arrays_of(file: Any) -> dict[str, HDF5Reader]:
    """All arrays of an open file by their full names."""
    import h5py

    keys: list[str] = []
    file.visititems(lambda name, thing: keys.append(name) if isinstance(thing, h5py.Dataset) else None)
    return {key: array_of(file, key) for key in keys}


def texts(value: Any) -> tuple[str, ...]:
    """An attribute that is a text or several."""
    return tuple(entry.decode() if isinstance(entry, bytes) else str(entry) for entry in np.atleast_1d(value).tolist())


def positional_contents(path: Path, arrays: Mapping[str, ArrayReader], request: Request) -> Contents:
    """Variables of arrays without names of axes: functions first, then times if `time=` is given, channels, space.

    Raises:
        DataError: If variables are not named, or not there.
        ArgumentError: If neither `grid` nor `periodic` is given.
        ShapeError: If an array does not fit.
    """
    names = request.names({name: array.shape for name, array in arrays.items()}, path)
    times, has_time = request.axes.time, request.axes.time is not None
    if isinstance(times, str):
        if times not in arrays or len(arrays[times].shape) != 1:
            raise DataError(
                expected=f"the times, one axis, as {times!r} in {path}",
                got=f"shape {arrays[times].shape}" if times in arrays else "no such array",
                remedy="give time= as numbers",
            )
        times = arrays[times].read((slice(0, arrays[times].shape[0]),))
    variables, grids = {}, {}
    for name in names.both:
        stated = (request.out_grid or request.grid) if name not in names.inputs else request.grid
        grids[name] = stated or _grid(arrays[name].shape, name, request, has_time=has_time)
        variables[name] = positional(arrays[name], grids[name], name, has_time=has_time)
    return Contents(names=names, variables=variables, grids=grids, times=times)


def _grid(shape: tuple[int, ...], name: str, request: Request, *, has_time: bool) -> Grid:
    """The grid of an array whose axes of space the options count, or whose axis before space is channels where they do not."""
    if request.periodic is None:
        raise ArgumentError(
            expected="grid=, or periodic= to build one", got="neither", remedy="say whether the axes of space are periodic"
        )
    if len(shape) < 2:
        raise ShapeError(
            expected=f"{name} with an axis of functions, and of space", got=str(shape), remedy="stack functions along the first"
        )
    spatial = (shape[0], *shape[2 if has_time else 1 :])
    periodic = request.periodic
    if isinstance(periodic, bool) and not isinstance(request.lengths, (list, tuple)) and len(spatial) > 2:
        periodic = (periodic,) * (len(spatial) - 2)
    return grid_of(spatial, name, lengths=request.lengths, periodic=periodic, endpoint=None)
