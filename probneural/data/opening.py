"""Data sets from files of any format."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from probneural.arrays.layouts import layouts_of
from probneural.arrays.reading import Mask
from probneural.checks import check_integer, check_path, check_sequence, check_text, real_tensor
from probneural.data.arranged import arranged
from probneural.data.contents import AxisNames, Contents, Request
from probneural.data.fields import StoredFields, with_mask
from probneural.data.formats import Format, format_of, open_hdf5, zarr_arrays
from probneural.data.gate import guarded
from probneural.data.hdf5 import hdf5_sources
from probneural.data.in_memory import TABLE, csv_readers, matlab_readers, torch_readers
from probneural.data.joining import joined_contents
from probneural.data.named import named_sources
from probneural.data.pairs import StoredPairs
from probneural.data.pdebench import pdebench_contents
from probneural.data.readers import ArrayReader, SlicedReader, npy_layout, npz_layouts
from probneural.data.roles import contents_of
from probneural.data.sources import Source
from probneural.data.the_well import the_well_contents
from probneural.data.trajectories import Trajectories
from probneural.errors import ArgumentError, FileError
from probneural.grids import Grid, check_grid

Paths = str | Path | Sequence[str | Path]
"""One file, several, or a pattern such as "runs/*.nc"."""


def open(  # noqa: PLR0913 (keyword-only settings, each with a default that works)
    path: Paths,
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    outputs_path: Paths | None = None,
    axes: str | None = None,
    grid: Grid | None = None,
    out_grid: Grid | None = None,
    periodic: bool | Sequence[bool] | None = None,
    lengths: float | Sequence[float] | None = None,
    sample: str | None = None,
    time: str | Sequence[float] | None = None,
    channel: str | None = None,
    group: str | None = None,
    mask: Mask | str = None,
    dtype: torch.dtype | None = None,
) -> StoredPairs | Trajectories:
    """Open files without reading their values: a data set of pairs, or trajectories if a variable has an axis of time.

    The format follows from the contents. The role of each axis follows from `axes`, from names and attributes in the file,
    or from the other arguments. It is never guessed from the number of axes: an unknown role is an error.

    * NetCDF, zarr and HDF5 with names of dimensions: names such as `sample`, `time`, `channel`, `x`, `lat` give the role, CF
      attributes of coordinates too, and `sample`, `time`, `channel` name the dimension. Coordinates give the grid; axes whose
      coordinates descend are turned round. Missing values, scales and offsets are decoded.
    * The Well: attributes give all roles and boundary conditions. Without `inputs` and `outputs`, all fields that vary
      in time are both, and constant ones are inputs.
    * PDEBench: keys name the equation's variables, axes and coordinates; `periodic` has to be stated. Without `inputs` and
      `outputs`, as in The Well; of Darcy files, `nu` to `tensor`.
    * Arrays without names (.npy, .npz, other HDF5 and zarr, MATLAB, PyTorch tensors, CSV): `axes`, or samples, then times if
      `time` is given, channels if there is one more axis, then the axes of `grid` or of a sequence `periodic`.

    Args:
        path: A file, a zarr store, a folder of .npy files; a list of them or a pattern with `*`, whose samples (or times,
            where those of each file follow the last) come one after the other.
        inputs: Names of the variables that are inputs, side by side as channels.
        outputs: Names of the variables that are outputs.
        outputs_path: Files of the outputs, where they are others than those of the inputs.
        axes: Roles of the axes in the file's order, separated by spaces: n samples, t times, c channels, - an axis of
            length 1, any other name an axis of space. `"n x y c"`, or `"n c -> n x y"` where outputs differ. Variables
            without an axis of space are parameters: constant channels.
        grid: Where the inputs live, and the outputs unless `out_grid` is given.
        out_grid: Where the outputs live.
        periodic: Whether each axis of space is periodic, where the file does not state it.
        lengths: Extent of each axis of space; by default from coordinates, and 1 without them.
        sample: Name of the dimension of samples or trajectories.
        time: Name of the dimension or array of times; or the times, one per step.
        channel: Name of the dimension of channels.
        group: Group of the file that holds the variables.
        mask: True where NaN means a missing value, sample by sample; "land" where the points that are NaN in the first sample
            are missing in all; or truth values `(*grid,)` in the file's order of axes, as the values are, True at points that
            are missing in all samples.
        dtype: float32 or float64; by default float64 if a variable is of it, else float32.

    Returns:
        The data set, which reads rows on access, and can be sent to other processes.

    Raises:
        FileError: If there is no such file, or it is of another format.
        DataError: If variables are missing, are no real numbers, or the layout contradicts keys or attributes.
        ShapeError: If shapes do not fit together.
        GridError: If coordinates are missing or not equispaced.
        ArgumentError: If `periodic` is missing, or an argument is of another kind.
        UnsupportedError: If the library that reads the format is not installed; the extra is `probneural[data]`.
    """
    request = _request(
        inputs=inputs,
        outputs=outputs,
        axes=axes,
        grid=grid,
        out_grid=out_grid,
        periodic=periodic,
        lengths=lengths,
        sample=sample,
        time=time,
        channel=channel,
        group=group,
        dtype=dtype,
    )
    with guarded(path):
        data = _contents(path, request, outputs_path).data(dtype)
    if isinstance(data, StoredPairs):
        masked = replace(data, inputs=with_mask(data.inputs, mask, partner=data.outputs), outputs=with_mask(data.outputs, mask))
        return masked.looked_at()
    data = replace(data, grid=with_mask(data.at(0), mask).grid)
    StoredPairs(data.at(0), data.at(-1)).looked_at(may_be_equal=True)
    return data


def open_inputs(  # noqa: PLR0913 (keyword-only settings, each with a default that works)
    path: Paths,
    *,
    inputs: Sequence[str] | None = None,
    axes: str | None = None,
    grid: Grid | None = None,
    parameter_grid: Grid | None = None,
    periodic: bool | Sequence[bool] | None = None,
    lengths: float | Sequence[float] | None = None,
    sample: str | None = None,
    time: str | Sequence[float] | None = None,
    channel: str | None = None,
    group: str | None = None,
    mask: Mask | str = None,
    history: int = 1,
    dtype: torch.dtype | None = None,
) -> StoredFields:
    """Open the inputs of files alone, to predict from: see [`open`][probneural.data.open].

    Args:
        path: A file, a zarr store, a folder of .npy files; a list of them or a pattern.
        inputs: Names of the variables, side by side as channels.
        axes: Roles of their axes, in the file's order.
        grid: Where they live.
        parameter_grid: Where inputs without an axis of space are constant.
        periodic: Whether each axis of space is periodic, where the file does not state it.
        lengths: Extent of each axis of space.
        sample: Name of the dimension of samples or trajectories.
        time: Name of the dimension or array of times; or the times, one per step.
        channel: Name of the dimension of channels.
        group: Group of the file that holds the variables.
        mask: As in `open`.
        history: Of trajectories, the neighbouring steps of an input: all windows are taken, up to the last step.
        dtype: float32 or float64; by default float64 if a variable is of it, else float32.

    Returns:
        The inputs, which are read on access.

    Raises:
        ProbneuralError: As `open` does.
    """
    request = _request(
        inputs=inputs,
        outputs=inputs,
        axes=axes,
        grid=grid,
        out_grid=parameter_grid,
        periodic=periodic,
        lengths=lengths,
        sample=sample,
        time=time,
        channel=channel,
        group=group,
        dtype=dtype,
    )
    steps = check_integer(history, "history")
    with guarded(path):
        fields = _contents(path, request).fields(dtype, history=steps)
    return with_mask(fields, mask)


def _request(*, dtype: torch.dtype | None, axes: str | None, sample: Any, time: Any, channel: Any, **options: Any) -> Request:
    """The arguments, checked as far as they can be without the file."""
    if dtype not in (None, torch.float32, torch.float64):
        raise ArgumentError(expected="dtype float32 or float64", got=str(dtype), remedy="leave it out to keep the file's own")
    for name in ("grid", "out_grid"):
        if options[name] is not None:
            check_grid(options[name], name)
    for side in ("inputs", "outputs"):
        options[side] = _names(options[side], side)
    for name, value in (("sample", sample), ("channel", channel), ("group", options["group"])):
        if value is not None:
            check_text(value, name)
    if time is not None and not isinstance(time, str):
        times = real_tensor(time, "time", error=ArgumentError)
        if times.ndim != 1 or not bool(times.isfinite().all()):
            raise ArgumentError(expected="finite times in one sequence", got=repr(time)[:100], remedy="give one per state")
    request = Request(**options, axes=AxisNames(sample=sample, time=time, channel=channel, layouts=layouts_of(axes)))
    if request.grid is not None:
        _refuse(request, "grid=", "periodic", "lengths")
    return request


def _names(names: Sequence[str] | None, side: str) -> tuple[str, ...] | None:
    if names is None:
        return None
    chosen = tuple(check_text(name, side) for name in check_sequence(names, side, remedy=f'write {side}=["u"]'))
    if len({*chosen}) < len(chosen):
        raise ArgumentError(expected=f"each name once in {side}=", got=f"{chosen}"[:100], remedy="leave the others out")
    return chosen


def _refuse(request: Request, why: str, *names: str) -> None:
    """Raise an ArgumentError for arguments without effect."""
    stated = {**vars(request), **vars(request.axes)}
    surplus = [name for name in names if stated[name] is not None]
    if surplus:
        raise ArgumentError(
            expected=f"no {', '.join(surplus)}= beside {why}", got="both", remedy="leave it out: it means nothing there"
        )


def _contents(path: Paths, request: Request, outputs_path: Paths | None = None) -> Contents:
    """The variables of files; inputs and outputs in two groups are read as those of two files."""
    groups = [{name.rpartition("/")[0] for name in names or ()} for names in (request.inputs, request.outputs)]
    if outputs_path is None and request.group is None and all(groups) and groups[0] != groups[1]:
        outputs_path = path
    if outputs_path is None:
        return _joined(path, request)
    second = _joined(outputs_path, request.for_side(1, grid=request.out_grid or request.grid))
    where = next(iter(second.grids.values()))
    return _joined(path, request.for_side(0, grid=request.grid, out_grid=where)).paired_with(second)


def _joined(path: Paths, request: Request) -> Contents:
    files = paths_of(path)
    return joined_contents(files, [_contents_of_file(file, request) for file in files])


def paths_of(path: object) -> list[Path]:
    """The files that a path, a list of them or a pattern names.

    Raises:
        FileError: If a pattern matches nothing.
        ArgumentError: If it is none of these.
    """
    if isinstance(path, list | tuple):
        if not path:
            raise ArgumentError(expected="one path or more", got="an empty list", remedy="name the files")
        return [file for entry in path for file in paths_of(entry)]
    where = check_path(path, "path")
    if os.path.exists(where) or not glob.has_magic(str(where)):
        return [where]
    files = sorted(Path(name) for name in glob.glob(str(where)))
    if not files:
        raise FileError(expected=f"files that match {where}", got="none", remedy="check the pattern")
    return files


def _contents_of_file(path: Path, request: Request) -> Contents:
    """The variables of a file, by the reader of its format."""
    kind = format_of(path)
    if kind is Format.THE_WELL:
        _refuse(request, kind.value, "periodic", "sample", "channel", "group")
        with open_hdf5(path) as file:
            return the_well_contents(file, request)
    if kind is Format.PDEBENCH:
        _refuse(request, kind.value, "sample", "channel", "group")
        with open_hdf5(path) as file:
            return pdebench_contents(file, request)
    request = _with_group(request) if kind.has_names else request
    sources = sources_of(path, kind, request.group)
    if not any(source.has_names for source in sources.values()):
        _refuse(request, kind.value if not kind.has_names else "axes without names", "sample", "channel")
    if list(sources) == [TABLE] or (kind is Format.CSV and request.inputs is None and request.outputs is None):
        request = replace(request, inputs=request.inputs or (TABLE,), outputs=request.outputs or (TABLE,))  # the one array
    return contents_of(path, sources, request)


def _with_group(request: Request) -> Request:
    """The group that names of variables begin with, as `list_variables` writes them: "train/a"."""
    names = [*(request.inputs or ()), *(request.outputs or ())]
    groups = {name.rpartition("/")[0] for name in names}
    if request.group is not None or len(groups) != 1 or groups == {""}:
        return request
    sides = {side: tuple(name.rpartition("/")[2] for name in getattr(request, side) or ()) for side in ("inputs", "outputs")}
    return replace(request, group=groups.pop(), inputs=sides["inputs"] or None, outputs=sides["outputs"] or None)


def sources_of(path: Path, kind: Format, group: str | None = None) -> Mapping[str, Source]:
    """The variables of a file by name."""
    if kind.has_names:
        return named_sources(path, kind.value, group)
    if kind in (Format.HDF5, Format.PDEBENCH):
        with open_hdf5(path) as file:
            sources = hdf5_sources(file)
    else:
        sources = {name: Source(name=name, reader=reader) for name, reader in _arrays(path, kind).items()}
    prefix = "" if group is None else f"{group.strip('/')}/"
    inside = {name.removeprefix(prefix): source for name, source in sources.items() if name.startswith(prefix)}
    return {name: replace(source, name=name) for name, source in inside.items()}


def _arrays(path: Path, kind: Format) -> Mapping[str, ArrayReader]:
    """The arrays of a file whose axes have no names."""
    if kind in _IN_MEMORY:
        return _IN_MEMORY[kind](path)
    if kind is Format.NPY:
        return {TABLE: _straight(*npy_layout(path))}
    if kind is Format.NPZ:
        return {name: _straight(*layout) for name, layout in npz_layouts(path).items()}
    if kind is Format.NPY_FOLDER:
        return {file.stem: _straight(*npy_layout(file)) for file in sorted(path.glob("*.npy"))}
    return {name: SlicedReader(array) for name, array in zarr_arrays(path).items()}


def _straight(reader: ArrayReader, is_reversed: bool) -> ArrayReader:
    """An array with its axes in order, where the file has them in Fortran order."""
    return arranged(reader, range(len(reader.shape))[::-1]) if is_reversed else reader


_IN_MEMORY: Mapping[Format, Callable[[Path], dict[str, ArrayReader]]] = {
    Format.MATLAB: matlab_readers,
    Format.TORCH: torch_readers,
    Format.CSV: csv_readers,
}
