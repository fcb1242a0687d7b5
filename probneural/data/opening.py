"""Open a file of any format as a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from probneural.checks import check_integer, check_path, check_sequence
from probneural.data.contents import AxisNames, Contents, Request
from probneural.data.fields import StoredFields
from probneural.data.formats import Format, format_of, open_hdf5, zarr_arrays
from probneural.data.hdf5 import arrays_of, positional_contents
from probneural.data.named import named_contents
from probneural.data.pairs import StoredPairs
from probneural.data.pdebench import pdebench_contents
from probneural.data.readers import ArrayReader, SlicedReader, npy_reader, npz_readers
from probneural.data.the_well import the_well_contents
from probneural.data.trajectories import Trajectories
from probneural.errors import ArgumentError
from probneural.grids import Grid, check_grid


def open(
    path: str | Path,
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    grid: Grid | None = None,
    out_grid: Grid | None = None,
    periodic: bool | Sequence[bool] | None = None,
    lengths: float | Sequence[float] | None = None,
    sample: str | None = None,
    time: str | Sequence[float] | None = None,
    channel: str | None = None,
    dtype: torch.dtype | None = None,
) -> StoredPairs | Trajectories:
    """Open a file without reading its values: a data set of pairs, or trajectories if a variable has an axis of time.

    The format follows from the contents. Which axis is which follows from names, attributes and arguments, never from how
    many there are:

    * NetCDF, and zarr with names of dimensions: `sample` is functions, `channel` channels; time is the dimension that `time`
      names, whose coordinate says so by the CF attributes `axis` or `standard_name`, or that is called "time"; the others are
      space, and their coordinates give the grid. Axes whose coordinates descend are turned round.
    * The Well: attributes tell everything, boundary conditions included. Without `inputs` and `outputs`, all fields that vary
      in time are both, and constant ones are inputs.
    * PDEBench: keys tell the equation's variables, axes and coordinates; `periodic` has to be stated. Without `inputs` and
      `outputs`, as in The Well; of Darcy files, `nu` to `tensor`.
    * Other HDF5 and zarr, an .npz archive, a folder of .npy files, one .npy file: axes are functions, times if `time` is
      given, channels if there is one more axis, then those of `grid` (or of `periodic`).

    Args:
        path: A file, a zarr store, or a folder of .npy files.
        inputs: Names of the variables that are inputs, side by side as channels.
        outputs: Names of the variables that are outputs.
        grid: Where the inputs live, and the outputs unless `out_grid` says otherwise.
        out_grid: Where the outputs live.
        periodic: Whether each axis of space is periodic, where the file does not say so.
        lengths: Extent of each axis of space; by default coordinates tell, and 1 without them.
        sample: Name of the dimension of functions or trajectories; by default "sample", or else the only one without
            coordinates.
        time: Name of the dimension or array of times; or the times, one per step.
        channel: Name of the dimension of channels; "channel" by default.
        dtype: float32 or float64; by default float64 if a variable is of it, else float32.

    Returns:
        The data set, which reads rows when they are asked for, and can be sent to other processes.

    Raises:
        FileError: If there is no such file, or it is of another format.
        DataError: If variables are missing, are no real numbers, or the layout is another one than keys or attributes say.
        ShapeError: If shapes do not fit together.
        GridError: If coordinates are missing or not equispaced.
        ArgumentError: If `periodic` is missing, or an argument is of another kind.
        UnsupportedError: If the library that reads the format is not installed; the extra is `probneural[data]`.
    """
    where = check_path(path, "path")
    request = _request(
        inputs=inputs,
        outputs=outputs,
        grid=grid,
        out_grid=out_grid,
        periodic=periodic,
        lengths=lengths,
        sample=sample,
        time=time,
        channel=channel,
        dtype=dtype,
    )
    data = _contents(where, request).data(dtype)
    if periodic is not None or grid is not None:  # else the file itself says what is periodic
        (data if isinstance(data, StoredPairs) else StoredPairs(data.at(0), data.at(-1))).looked_at()
    return data


def open_inputs(
    path: str | Path,
    *,
    inputs: Sequence[str] | None = None,
    grid: Grid | None = None,
    periodic: bool | Sequence[bool] | None = None,
    lengths: float | Sequence[float] | None = None,
    sample: str | None = None,
    time: str | Sequence[float] | None = None,
    channel: str | None = None,
    history: int = 1,
    dtype: torch.dtype | None = None,
) -> StoredFields:
    """Open the input functions of a file alone, to predict from: see [`open`][probneural.data.open].

    Args:
        path: A file, a zarr store, or a folder of .npy files.
        inputs: Names of the variables, side by side as channels.
        grid: Where they live.
        periodic: Whether each axis of space is periodic, where the file does not say so.
        lengths: Extent of each axis of space.
        sample: Name of the dimension of functions or trajectories.
        time: Name of the dimension or array of times; or the times, one per step.
        channel: Name of the dimension of channels.
        history: Of trajectories, how many neighbouring steps an input has: all windows are taken, up to the last step.
        dtype: float32 or float64; by default float64 if a variable is of it, else float32.

    Returns:
        The functions, which are read when they are asked for.

    Raises:
        ProbneuralError: As `open` does.
    """
    where = check_path(path, "path")
    request = _request(
        inputs=inputs,
        outputs=inputs,
        grid=grid,
        out_grid=None,
        periodic=periodic,
        lengths=lengths,
        sample=sample,
        time=time,
        channel=channel,
        dtype=dtype,
    )
    return _contents(where, request).fields(dtype, history=check_integer(history, "history"))


def _request(
    *,
    inputs: Sequence[str] | None,
    outputs: Sequence[str] | None,
    grid: Grid | None,
    out_grid: Grid | None,
    periodic: bool | Sequence[bool] | None,
    lengths: float | Sequence[float] | None,
    sample: str | None,
    time: str | Sequence[float] | None,
    channel: str | None,
    dtype: torch.dtype | None,
) -> Request:
    """What is asked for, checked as far as it can be without the file."""
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
    return request


def _names(names: Sequence[str] | None, side: str) -> tuple[str, ...] | None:
    return None if names is None else check_sequence(names, side, remedy=f'write {side}=["u"]')


def _refuse(request: Request, why: str, *names: str) -> None:
    """Raise an ArgumentError if arguments are given that mean nothing there."""
    stated = {**vars(request), **vars(request.axes)}
    given = [name for name in names if stated[name] is not None]
    if given:
        raise ArgumentError(
            expected=f"no {', '.join(given)}= beside {why}", got="both", remedy="leave it out: it means nothing there"
        )


def _contents(path: Path, request: Request) -> Contents:
    """What a file holds, by the reader of its format."""
    kind = format_of(path)
    if kind.has_names:
        return named_contents(path, kind.value, request)
    _refuse(request, kind.value, "sample", "channel")
    if kind is Format.THE_WELL:
        _refuse(request, kind.value, "periodic")
        with open_hdf5(path) as file:
            return the_well_contents(file, request)
    if kind is Format.PDEBENCH:
        with open_hdf5(path) as file:
            return pdebench_contents(file, request)
    if kind is Format.NPY:
        _refuse(request, kind.value, "inputs", "outputs")
        request = replace(request, inputs=("values",), outputs=("values",))
    return positional_contents(path, arrays_in(path, kind), request)


def arrays_in(path: Path, kind: Format) -> dict[str, ArrayReader]:
    """All arrays of a file whose axes have no names."""
    if kind is Format.NPY:
        return {"values": npy_reader(path)}
    if kind is Format.NPZ:
        return npz_readers(path)
    if kind is Format.NPY_FOLDER:
        return {file.stem: npy_reader(file) for file in sorted(path.glob("*.npy"))}
    if kind is Format.ZARR:
        return {name: SlicedReader(array) for name, array in zarr_arrays(path).items()}
    with open_hdf5(path) as file:
        return {**arrays_of(file)}
