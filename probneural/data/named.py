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
from probneural.data.variables import FUNCTION, TIME, AxisLabels, Variable
from probneural.errors import DataError, FileError, ShapeError
from probneural.grids import Grid


@dataclass(frozen=True)
class NamedFile:
    """A file or store whose axes have names, and xarray's name for what reads it."""

    path: Path
    engine: str


@dataclass
class XarrayReader:
    """A variable of a NetCDF file or zarr store, its axes in an order of our own; every process opens the file for itself.

    Args:
        file: The file or store.
        name: The variable.
        dims: Its dimensions, in the order in which axes are wanted.
        shape: Lengths of the axes.
        dtype: Of its numbers, decoded.
        chunks: Its chunks, or single entries if it is contiguous.
        descending: Dimensions of space whose coordinates descend in the file, as latitudes often do; they are turned round.
    """

    file: NamedFile
    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    descending: tuple[str, ...] = ()
    _opened: tuple[int, Any] | None = field(default=None, repr=False, compare=False)

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box."""
        return self._select(dict(zip(self.dims, box, strict=False)))

    def read_rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read ascending rows of the first axis."""
        return self._select({self.dims[0]: rows})

    def _select(self, index: dict[str, Any]) -> NDArray[Any]:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), open_xarray(self.file.path, self.file.engine)
        found = self._opened[1][self.name].isel(index).transpose(*self.dims)
        return np.asarray(found.isel(_backwards(self.descending)).to_numpy())

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
        ShapeError: If no dimension is that of functions, or of time.
        GridError: If coordinates of space are missing, not equispaced, or contradict `lengths`.
        ArgumentError: If `periodic` is missing or does not fit.
    """
    with open_xarray(path, engine) as opened:
        names = request.names({str(name): described_axes(one) for name, one in opened.data_vars.items()}, path)
        sample = _sample_dimension(opened, names.both, request)
        variables, grids, times = {}, {}, None
        for name in names.both:
            source = opened[name]
            time = _time_dimension(source, request, sample)
            stated = (request.out_grid or request.grid) if name not in names.inputs else request.grid
            variables[name], grids[name] = _variable(
                NamedFile(path, engine), source, request, sample=sample, time=time, grid=stated
            )
            if time in source.dims and times is None:
                times = _times(source, time, request)
    return Contents(names=names, variables=variables, grids=grids, times=times)


def _variable(
    file: NamedFile, source: Any, request: Request, *, sample: str, time: str, grid: Grid | None
) -> tuple[Variable, Grid]:
    """One variable, and the grid that it lives on."""
    channel = _channel_dimension(source, request)
    dims = [str(dim) for dim in source.dims]
    space = [dim for dim in dims if dim not in (sample, time, channel)]
    descending = tuple(dim for dim in space if _descends(source, dim))
    turned = source.isel(_backwards(descending))
    where = grid or grid_from_xarray(turned, space, periodic=request.periodic, lengths=request.lengths)
    order = tuple(dim for dim in (sample, time, channel, *space) if dim in dims)
    chunks = source.encoding.get("chunksizes") or source.encoding.get("chunks") or (1,) * source.ndim
    reader = XarrayReader(
        file=file,
        name=str(source.name),
        dims=order,
        shape=tuple(source.sizes[dim] for dim in order),
        dtype=source.dtype,
        chunks=tuple(chunks[dims.index(dim)] for dim in order),
        descending=descending,
    )
    variable = Variable(
        name=str(source.name),
        reader=reader,
        leading=tuple(column for column, dim in ((FUNCTION, sample), (TIME, time)) if dim in dims),
        channel_axes=(0,) if channel in dims else (),
        grid_shape=where.shape,
        labels=AxisLabels(
            sample=sample or "trajectory",
            space=tuple(space),
            coordinates={
                str(name): one.to_numpy() for name, one in turned.coords.items() if name in space or one.dims == (sample,)
            },
            attributes={dim: dict(turned.coords[dim].attrs) for dim in (sample, *space) if dim in turned.coords},
        ),
    )
    return variable, where


def described_axes(source: Any) -> str:
    """Names and lengths of a variable's dimensions: `(member 100, lon 64)`."""
    return f"({', '.join(f'{dim} {size}' for dim, size in source.sizes.items())})"


def _backwards(dims: tuple[str, ...]) -> dict[str, slice]:
    return {dim: slice(None, None, -1) for dim in dims}


def _descends(source: Any, dim: str) -> bool:
    points = source.coords[dim].to_numpy() if dim in source.coords else np.empty(0)
    return points.ndim == 1 and len(points) > 1 and points.dtype.kind in "iuf" and bool((np.diff(points) < 0).all())


def _sample_dimension(opened: Any, names: tuple[str, ...], request: Request) -> str:
    """The dimension that counts functions: the one that is named, or "sample", or the only one without coordinates.

    It is "" where there is none but time.

    Raises:
        ShapeError: If no variable has the one that is named, or none can be it and none is time.
    """
    sources = [opened[name] for name in names]
    dims = list(dict.fromkeys(str(dim) for source in sources for dim in source.dims))
    given, known = request.axes.sample, "sample" if "sample" in dims else ""
    times = {_time_dimension(source, request, given or known) for source in sources} & {*dims}
    others = {_channel_dimension(source, request) for source in sources} | times
    bare = [dim for dim in dims if dim not in opened.coords and dim not in others]
    if given is None and not known and len(bare) == 1:
        return bare[0]
    if (given is None and not known and not times) or (given is not None and given not in dims):
        raise ShapeError(
            expected=f"the dimension that counts the functions, one of {', '.join(dims)}",
            got="none that is called so or is alone without coordinates" if given is None else repr(given),
            remedy="name it: sample=",
        )
    return given or known


def _channel_dimension(source: Any, request: Request) -> str:
    return request.axes.channel or str(source.attrs.get("channel_dimension", "channel"))


def _time_dimension(source: Any, request: Request, sample: str) -> str:
    """Which dimension is time: the one that `time=` names, that CF attributes tell, or that is called "time".

    It is "" where that dimension counts the functions.
    """
    if isinstance(request.axes.time, str):
        return request.axes.time
    if sample == "time":
        return ""
    for dim in source.dims:
        if dim == sample:
            continue
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
