"""Files whose axes have names, NetCDF and zarr, through xarray."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probneural.arrays import grid_from_xarray
from probneural.data.contents import Contents, Request
from probneural.data.readers import require
from probneural.data.variables import FUNCTION, TIME, Variable
from probneural.errors import DataError, FileError


@dataclass
class XarrayReader:
    """A variable of a NetCDF file or zarr store, its axes in an order of our own; every process opens the file for itself.

    Args:
        path: The file or store.
        engine: xarray's name for what reads it.
        name: The variable.
        dims: Its dimensions, in the order in which axes are wanted.
        shape: Lengths of the axes.
        dtype: Of its numbers, decoded.
        chunks: Its chunks, or single entries if it is contiguous.
    """

    path: Path
    engine: str
    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    _opened: tuple[int, Any] | None = field(default=None, repr=False, compare=False)

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box."""
        return self._select(dict(zip(self.dims, box, strict=False)))

    def read_rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read ascending rows of the first axis."""
        return self._select({self.dims[0]: rows})

    def _select(self, index: dict[str, Any]) -> NDArray[Any]:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), open_xarray(self.path, self.engine)
        return np.asarray(self._opened[1][self.name].isel(index).transpose(*self.dims).to_numpy())

    def __getstate__(self) -> dict[str, Any]:
        """All but the open file."""
        return self.__dict__ | {"_opened": None}


def open_xarray(path: Path, engine: str) -> Any:
    """Open a file without reading its variables, now or for good.

    Raises:
        UnsupportedError: If xarray or what it needs for the format is not installed.
        FileError: If the file cannot be read.
    """
    xarray = require("xarray", "NetCDF files and zarr stores")
    if engine != "scipy":
        require(engine, "NetCDF files" if engine == "h5netcdf" else "zarr stores")
    options = {"consolidated": False, "use_zarr_fill_value_as_mask": False} if engine == "zarr" else {}
    try:
        return xarray.open_dataset(path, engine=engine, decode_times=False, cache=False, chunks=None, **options)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(expected=f"a file that {engine} reads, {path}", got=str(error), remedy="write it again") from error


def named_contents(path: Path, engine: str, request: Request) -> Contents:
    """Variables of a file whose axes have names.

    Raises:
        DataError: If variables are not named, or not there, or times have no coordinate.
        GridError: If coordinates of space are missing, descending, not equispaced, or contradict `lengths`.
        ArgumentError: If `periodic` is missing or does not fit.
    """
    opened = open_xarray(path, engine)
    names = request.names([str(name) for name in opened.data_vars], path)
    variables, grids, times = {}, {}, None
    for name in names.both:
        source = opened[name]
        time = _time_dimension(source, request)
        channel = request.axes.channel or str(source.attrs.get("channel_dimension", "channel"))
        dims = [str(dim) for dim in source.dims]
        space = [dim for dim in dims if dim not in (request.axes.sample, time, channel)]
        stated = (request.out_grid or request.grid) if name not in names.inputs else request.grid
        grids[name] = stated or grid_from_xarray(source, space, periodic=request.periodic, lengths=request.lengths)
        order = tuple(dim for dim in (request.axes.sample, time, channel, *space) if dim in dims)
        chunks = source.encoding.get("chunksizes") or source.encoding.get("chunks") or (1,) * source.ndim
        reader = XarrayReader(
            path=path,
            engine=engine,
            name=name,
            dims=order,
            shape=tuple(source.sizes[dim] for dim in order),
            dtype=source.dtype,
            chunks=tuple(chunks[dims.index(dim)] for dim in order),
        )
        variables[name] = Variable(
            name=name,
            reader=reader,
            leading=tuple(column for column, dim in ((FUNCTION, request.axes.sample), (TIME, time)) if dim in dims),
            channel_axes=(0,) if channel in dims else (),
            grid_shape=grids[name].shape,
        )
        if time in dims and times is None:
            times = _times(source, str(time), request)
    opened.close()
    return Contents(names=names, variables=variables, grids=grids, times=times)


def _time_dimension(source: Any, request: Request) -> str:
    """Which dimension is time: the one that `time=` names, that CF attributes tell, or that is called "time"."""
    if isinstance(request.axes.time, str):
        return request.axes.time
    for dim in source.dims:
        attributes = source.coords[dim].attrs if dim in source.coords else {}
        if attributes.get("axis") == "T" or attributes.get("standard_name") == "time":
            return str(dim)
    return "time"


def _times(source: Any, dim: str, request: Request) -> Any:
    if request.axes.time is not None and not isinstance(request.axes.time, str):
        return request.axes.time
    if dim not in source.coords:
        raise DataError(expected=f"times as a coordinate {dim!r}", got="none", remedy="give them: time=[0.0, 0.1, ...]")
    return source.coords[dim].to_numpy()
