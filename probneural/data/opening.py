"""Open a file of any format as a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from probneural.checks import check_path, check_sequence
from probneural.data.contents import AxisNames, Contents, Request
from probneural.data.hdf5 import arrays_of, positional_contents
from probneural.data.named import named_contents
from probneural.data.pairs import StoredPairs
from probneural.data.pdebench import is_pdebench, pdebench_contents
from probneural.data.readers import SlicedReader, npy_reader, require
from probneural.data.the_well import is_the_well, the_well_contents
from probneural.data.trajectories import Trajectories
from probneural.errors import ArgumentError, FileError
from probneural.grids import Grid, check_grid

_FORMATS = "NumPy (.npy, or a folder of them), HDF5, NetCDF, zarr, The Well, PDEBench"


def open(
    path: str | Path,
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    grid: Grid | None = None,
    out_grid: Grid | None = None,
    periodic: bool | Sequence[bool] | None = None,
    lengths: float | Sequence[float] | None = None,
    sample: str = "sample",
    time: str | Sequence[float] | None = None,
    channel: str | None = None,
    dtype: torch.dtype | None = None,
) -> StoredPairs | Trajectories:
    """Open a file without reading its values: a data set of pairs, or trajectories if a variable has an axis of time.

    The format follows from the contents. Which axis is which follows from names, attributes and arguments, never from how
    many there are:

    * NetCDF, and zarr with names of dimensions: `sample` is functions, `channel` channels; time is the dimension that `time`
      names, whose coordinate says so by the CF attributes `axis` or `standard_name`, or that is called "time"; the others are
      space, and their coordinates give the grid.
    * The Well: attributes tell everything, boundary conditions included. Without `inputs` and `outputs`, all fields that vary
      in time are both, and constant ones are inputs.
    * PDEBench: keys tell the equation's variables, axes and coordinates; `periodic` has to be stated. Without `inputs` and
      `outputs`, as in The Well; of Darcy files, `nu` to `tensor`.
    * Other HDF5 and zarr, a folder of .npy files, one .npy file: axes are functions, times if `time` is given, channels if
      there is one more axis, then those of `grid` (or of `periodic`).

    Args:
        path: A file, a zarr store, or a folder of .npy files.
        inputs: Names of the variables that are inputs, side by side as channels.
        outputs: Names of the variables that are outputs.
        grid: Where the inputs live, and the outputs unless `out_grid` says otherwise.
        out_grid: Where the outputs live.
        periodic: Whether each axis of space is periodic, where the file does not say so.
        lengths: Extent of each axis of space; by default coordinates tell, and 1 without them.
        sample: Name of the dimension of functions or trajectories.
        time: Name of the dimension or array of times; or the times, one per step.
        channel: Name of the dimension of channels; "channel" by default.
        dtype: float32 or float64; by default float64 if a variable is of it, else float32.

    Returns:
        The data set, which reads rows when they are asked for, and can be sent to other processes.

    Raises:
        FileError: If there is no such file, or it is of another format.
        DataError: If variables are missing, are no real numbers, or the layout is another one than keys or attributes say.
        ShapeError: If shapes do not fit together.
        GridError: If coordinates are missing, descending, or not equispaced.
        ArgumentError: If `periodic` is missing, or an argument is of another kind.
        UnsupportedError: If the library that reads the format is not installed; the extra is `probneural[data]`.
    """
    where = check_path(path, "path")
    if dtype not in (None, torch.float32, torch.float64):
        raise ArgumentError(expected="dtype float32 or float64", got=str(dtype), remedy="leave it out to keep the file's own")
    for name, stated in (("grid", grid), ("out_grid", out_grid)):
        if stated is not None:
            check_grid(stated, name)
    request = Request(
        inputs=_names(inputs, "inputs"),
        outputs=_names(outputs, "outputs"),
        grid=grid,
        out_grid=out_grid,
        periodic=periodic,
        lengths=lengths,
        axes=AxisNames(sample=sample, time=time, channel=channel),
    )
    if grid is not None:
        _refuse(request, "grid=", "periodic", "lengths")
    return _contents(where, request).data(dtype)


def _names(names: Sequence[str] | None, side: str) -> tuple[str, ...] | None:
    return None if names is None else check_sequence(names, side, remedy=f'write {side}=["u"]')


def _refuse(request: Request, why: str, *names: str) -> None:
    """Raise an ArgumentError if arguments are given that mean nothing there."""
    stated = {**vars(request), **vars(request.axes), "sample": request.axes.sample if request.axes.sample != "sample" else None}
    given = [name for name in names if stated[name] is not None]
    if given:
        raise ArgumentError(
            expected=f"no {', '.join(given)}= beside {why}", got="both", remedy="leave it out: it means nothing there"
        )


def _contents(path: Path, request: Request) -> Contents:
    """What a file holds, by the reader of its format."""
    if path.is_dir():
        return _of_folder(path, request)
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise FileError(expected=f"a file at {path}", got=str(error), remedy="check the path") from error
    if head.startswith(b"\x93NUMPY"):
        _refuse(request, "a single .npy file", "inputs", "outputs", "sample", "channel")
        named = replace(request, inputs=("values",), outputs=("values",))
        return positional_contents(path, {"values": npy_reader(path)}, named)
    if head.startswith(b"CDF"):
        return named_contents(path, "scipy", request)
    if head.startswith(b"\x89HDF"):
        return _of_hdf5(path, request)
    got = "a zip archive" if head.startswith(b"PK") else f"a file that begins with {head!r}"
    remedy = "write its arrays with np.save, one file each" if head.startswith(b"PK") else f"convert it to one of {_FORMATS}"
    raise FileError(expected=f"a file of a known format, {_FORMATS}", got=f"{got}, {path}", remedy=remedy)


def _of_hdf5(path: Path, request: Request) -> Contents:
    h5py = require("h5py", "HDF5 files")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise FileError(expected=f"an HDF5 file at {path}", got=str(error), remedy="it is damaged or open elsewhere") from error
    with file:
        if "_NCProperties" in file.attrs:
            return named_contents(path, "h5netcdf", request)
        _refuse(request, "HDF5 without names of axes", "sample", "channel")
        if is_the_well(file):
            _refuse(request, "a file of The Well", "periodic")
            return the_well_contents(file, request)
        if is_pdebench(file):
            return pdebench_contents(file, request)
        return positional_contents(path, arrays_of(file), request)


def _of_folder(path: Path, request: Request) -> Contents:
    if any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zarray", ".zmetadata")):
        zarr = require("zarr", "zarr stores")
        group = zarr.open(path, mode="r")
        arrays = dict(sorted(group.arrays())) if hasattr(group, "arrays") else {"values": group}
        if arrays and all(_has_names(array) for array in arrays.values()):
            return named_contents(path, "zarr", request)
        _refuse(request, "zarr without names of axes", "sample", "channel")
        return positional_contents(path, {name: SlicedReader(array) for name, array in arrays.items()}, request)
    files = {file.stem: file for file in sorted(path.glob("*.npy"))}
    if not files:
        raise FileError(
            expected=f"a zarr store or .npy files in the folder {path}", got="neither", remedy=f"known formats are {_FORMATS}"
        )
    _refuse(request, "a folder of .npy files", "sample", "channel")
    return positional_contents(path, {name: npy_reader(file) for name, file in files.items()}, request)


def _has_names(array: Any) -> bool:
    return bool(getattr(array.metadata, "dimension_names", None)) or "_ARRAY_DIMENSIONS" in array.attrs
