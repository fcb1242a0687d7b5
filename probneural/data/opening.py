"""Data sets from files of any format, which is recognised from their contents, and the variables of a file."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probneural import checks
from probneural.arrays.layouts import layouts_of
from probneural.arrays.reading import Mask, check_dtype
from probneural.data.array_files import TABLE, csv_readers, is_torch, matlab_readers, npy_reader, npz_readers, torch_readers
from probneural.data.contents import Contents, FileLayout, Request, joined_contents
from probneural.data.fields import StoredFields, with_mask
from probneural.data.gate import check_hdf5, check_zarr, guarded, refuse
from probneural.data.hdf5_collections import ORDERS, is_pdebench, is_the_well, pdebench_contents, the_well_contents
from probneural.data.meshes import is_mesh, mesh_contents, mesh_variables
from probneural.data.pairs import StoredPairs, masked_pairs
from probneural.data.readers import ArrayReader, SlicedReader, require
from probneural.data.roles import contents_of
from probneural.data.sources import Source, groups_of, has_dimension_names, hdf5_sources, named_sources, texts
from probneural.data.trajectories import Trajectories, masked_trajectories
from probneural.errors import ArgumentError, DataError, DataWarning, FileError, warn

Paths = str | Path | Sequence[str | Path]
"""One file, several, or a pattern such as "runs/*.nc"."""


KNOWN = "NumPy (.npy, .npz, or a folder of .npy files), HDF5, NetCDF, zarr, MATLAB, PyTorch, CSV, The Well, PDEBench, meshes"
_HEAD, _USER_BLOCK = 520, 512
"""Bytes that identify the format, and those before the HDF5 part of a MATLAB 7.3 file."""

_VARIABLES = 500
"""Largest number of variables of a NetCDF-4 file: its readers take milliseconds for each."""


class Format(Enum):
    """File formats; the value is xarray's engine name, if xarray reads the format."""

    NPY = "a .npy file"
    NPZ = "an .npz archive"
    NPY_FOLDER = "a folder of .npy files"
    HDF5 = "HDF5 without names of axes"
    THE_WELL = "a file of The Well"
    PDEBENCH = "a file of PDEBench"
    ZARR = "zarr without names of axes"
    NETCDF3 = "scipy"
    NETCDF4 = "h5netcdf"
    NAMED_ZARR = "zarr"
    MATLAB = "a MATLAB file"
    TORCH = "a PyTorch file"
    CSV = "a CSV file"
    MESH = "a mesh file"

    @property
    def has_names(self) -> bool:
        """Whether xarray reads it, so that axes may have names."""
        return self in (Format.NETCDF3, Format.NETCDF4, Format.NAMED_ZARR)


@checks.checks_keywords
def open(
    path: Paths,
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    outputs_path: Paths | None = None,
    periodic: bool | Sequence[bool] | None = None,
    layout: FileLayout | None = None,
    mask: Mask | str = None,
    dtype: torch.dtype | None = None,
) -> StoredPairs | Trajectories:
    """Open files without reading their values: a data set of pairs, or trajectories if a variable has an axis of time.

    The format follows from the contents. The role of each axis follows from `layout.axes`, from names and attributes in the
    file, or from the other arguments. It is never guessed from the number of axes: an unknown role is an error.

    * NetCDF, zarr and HDF5 with names of dimensions: names such as `sample`, `time`, `channel`, `x`, `lat` give the role, CF
      attributes of coordinates too, and `sample`, `time`, `channel` of `layout` name the dimension. Coordinates give the grid;
      axes whose coordinates descend are turned round. Missing values, scales and offsets are decoded.
    * The Well: attributes give all roles and boundary conditions. Without `inputs` and `outputs`, all fields that vary
      in time are both, and constant ones are inputs.
    * PDEBench: keys name the equation's variables, axes and coordinates; `periodic` has to be stated. Without `inputs` and
      `outputs`, as in The Well; of Darcy files, `nu` to `tensor`.
    * Arrays without names (.npy, .npz, other HDF5 and zarr, MATLAB, PyTorch tensors, CSV): `layout.axes`, or samples, then
      times if `layout.time` is given, channels if there is one more axis, then the axes of `layout.grid` or of a sequence
      `periodic`.
    * Meshes (.vtu, .vtk, .msh, .xdmf, .med, .avs), one sample per file: point data; cell data are averaged to points by volume,
      and field data are constants. Cells other than simplices are split, points outside of all cells left out. Meshes stay in
      memory, values do not.

    Args:
        path: A file, a zarr store, a folder of .npy files; a list of them or a pattern with `*`, whose samples (or times,
            where those of each file follow the last) come one after the other.
        inputs: Names of the variables that are inputs, side by side as channels.
        outputs: Names of the variables that are outputs.
        outputs_path: Files of the outputs, where they are others than those of the inputs.
        periodic: Whether each axis of space is periodic, where the file does not state it.
        layout: Names and roles of the axes, grids, times and the group in the file, where the file does not tell them.
        mask: True where NaN means a missing value, sample by sample; "land" where the points that are NaN in the first sample
            are missing in all; or truth values `(*grid,)` in the file's order of axes, as the values are, True at points that
            are missing in all samples.
        dtype: float32 or float64; by default float64 if a variable is of it, else float32.

    Returns:
        The data set, which reads rows on access, and can be sent to other processes.

    Raises:
        FileError: If the file does not exist, or is of another format.
        DataError: If variables are missing, are not real numbers, or the layout contradicts keys or attributes.
        ShapeError: If shapes do not fit together.
        GridError: If coordinates are missing or not equispaced.
        ArgumentError: If `periodic` is missing, or an argument is of another kind.
        KeywordError: If a keyword is unknown.
        MissingPackageError: If the library that reads the format is not installed; the extra is `probneural[data]`.
    """
    request = _request(inputs, outputs, periodic=periodic, layout=layout, dtype=dtype)
    with guarded(path):
        data = _contents(path, request, outputs_path).data(dtype)
    if isinstance(data, StoredPairs):
        return masked_pairs(data, mask, mask)
    return masked_trajectories(data, mask)


@checks.checks_keywords
def open_inputs(
    path: Paths,
    *,
    inputs: Sequence[str] | None = None,
    periodic: bool | Sequence[bool] | None = None,
    layout: FileLayout | None = None,
    mask: Mask | str = None,
    history: int = 1,
    dtype: torch.dtype | None = None,
) -> StoredFields:
    """Open the inputs of files alone, to predict from: see [`open`][probneural.data.open].

    Args:
        path: A file, a zarr store, a folder of .npy files; a list of them or a pattern.
        inputs: Names of the variables, side by side as channels.
        periodic: Whether each axis of space is periodic, where the file does not state it.
        layout: As in `open`; inputs without an axis of space are constant on its `out_grid`.
        mask: As in `open`.
        history: Of trajectories, the neighbouring steps of an input: all windows are taken, up to the last step.
        dtype: float32 or float64; by default float64 if a variable is of it, else float32.

    Returns:
        The inputs, which are read on access.

    Raises:
        ProbneuralError: As `open` does.
    """
    request = _request(inputs, inputs, periodic=periodic, layout=layout, dtype=dtype)
    steps = checks.check_integer(history, "history")
    with guarded(path):
        fields = _contents(path, request).fields(dtype, history=steps)
    return with_mask(fields, mask)


def _request(
    inputs: Sequence[str] | None,
    outputs: Sequence[str] | None,
    *,
    periodic: bool | Sequence[bool] | None,
    layout: FileLayout | None,
    dtype: torch.dtype | None,
) -> Request:
    """The arguments, checked as far as they can be without the file."""
    check_dtype(dtype)
    stated = FileLayout() if layout is None else layout
    checks.check_instance(
        stated, FileLayout, "layout", remedy='write layout=pn.data.FileLayout(axes="n x y")', error=ArgumentError
    )
    request = Request(
        inputs=_names(inputs, "inputs"),
        outputs=_names(outputs, "outputs"),
        periodic=periodic,
        layout=stated,
        layouts=layouts_of(stated.axes),
    )
    if request.layout.grid is not None:
        _refuse(request, "grid=", "periodic", "lengths")
    return request


def _names(names: Sequence[str] | None, side: str) -> tuple[str, ...] | None:
    if names is None:
        return None
    chosen = tuple(checks.check_text(name, side) for name in checks.check_sequence(names, side, remedy=f'write {side}=["u"]'))
    if len({*chosen}) < len(chosen):
        raise ArgumentError(expected=f"each name once in {side}=", got=f"{chosen}"[:100], remedy="leave the others out")
    return chosen


def _refuse(request: Request, why: str, *names: str) -> None:
    """Raise an ArgumentError for arguments without effect."""
    stated = {"periodic": request.periodic, **vars(request.layout)}
    surplus = [name for name in names if stated[name] is not None]
    if surplus:
        raise ArgumentError(
            expected=f"no {', '.join(surplus)}= beside {why}", got="both", remedy="leave it out: it means nothing there"
        )


def _contents(path: Paths, request: Request, outputs_path: Paths | None = None) -> Contents:
    """The variables of files; inputs and outputs in two groups are read as those of two files."""
    groups = [{name.rpartition("/")[0] for name in names or ()} for names in (request.inputs, request.outputs)]
    if outputs_path is None and request.layout.group is None and all(groups) and groups[0] != groups[1]:
        outputs_path = path
    if outputs_path is None:
        return _joined(path, request)
    second = _joined(outputs_path, request.for_side(1, grid=request.layout.out_grid or request.layout.grid))
    where = next(iter(second.grids.values()))
    return _joined(path, request.for_side(0, grid=request.layout.grid, out_grid=where)).paired_with(second)


def _joined(path: Paths, request: Request) -> Contents:
    files = paths_of(path)
    if format_of(files[0]) is Format.MESH:
        _refuse(request, Format.MESH.value, "periodic", *(name for name in vars(request.layout) if name != "out_grid"))
        others = [file for file in files if format_of(file) is not Format.MESH]
        if others:
            raise FileError(expected="files of meshes", got=f"{others[0]}", remedy="open it by itself")
        return mesh_contents(files, request)
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
    where = checks.check_path(path, "path")
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
    sources = sources_of(path, kind, request.layout.group)
    if not any(source.has_names for source in sources.values()):
        _refuse(request, kind.value if not kind.has_names else "axes without names", "sample", "channel")
    if list(sources) == [TABLE] or (kind is Format.CSV and request.inputs is None and request.outputs is None):
        request = replace(request, inputs=request.inputs or (TABLE,), outputs=request.outputs or (TABLE,))  # the one array
    return contents_of(path, sources, request)


def _with_group(request: Request) -> Request:
    """The group that names of variables begin with, as `list_variables` writes them: "train/a"."""
    names = [*(request.inputs or ()), *(request.outputs or ())]
    groups = {name.rpartition("/")[0] for name in names}
    if request.layout.group is not None or len(groups) != 1 or groups == {""}:
        return request
    sides = {side: tuple(name.rpartition("/")[2] for name in getattr(request, side) or ()) for side in ("inputs", "outputs")}
    layout = replace(request.layout, group=groups.pop())
    return replace(request, layout=layout, inputs=sides["inputs"] or None, outputs=sides["outputs"] or None)


def sources_of(path: Path, kind: Format, group: str | None = None) -> Mapping[str, Source]:
    """The variables of a file by name."""
    if kind.has_names:
        return named_sources(path, kind.value, group)
    if kind in (Format.HDF5, Format.PDEBENCH):
        with open_hdf5(path) as file:
            sources = hdf5_sources(file)
    else:
        sources = {name: Source(name=name, reader=reader) for name, reader in _READERS[kind](path).items()}
    prefix = "" if group is None else f"{group.strip('/')}/"
    inside = {name.removeprefix(prefix): source for name, source in sources.items() if name.startswith(prefix)}
    return {name: replace(source, name=name) for name, source in inside.items()}


_READERS: Mapping[Format, Callable[[Path], Mapping[str, ArrayReader]]] = {
    Format.NPY: lambda path: {TABLE: npy_reader(path)},
    Format.NPY_FOLDER: lambda path: {file.stem: npy_reader(file) for file in sorted(path.glob("*.npy"))},
    Format.ZARR: lambda path: {name: SlicedReader(array) for name, array in zarr_arrays(path).items()},
    Format.NPZ: npz_readers,
    Format.MATLAB: matlab_readers,
    Format.TORCH: torch_readers,
    Format.CSV: csv_readers,
}
"""Readers of arrays whose axes have no names."""


@dataclass(frozen=True, kw_only=True)
class FileVariable:
    """A variable of a data file.

    Attributes:
        name: As `inputs=` and `outputs=` of [`open`][probneural.data.open] take it.
        axes: Names and lengths of its axes, lengths alone where they have no names.
    """

    name: str
    axes: str

    def __str__(self) -> str:
        """Name and axes: `u (member 100, lon 64)`."""
        return f"{self.name} {self.axes}"


def list_variables(path: str | os.PathLike[str]) -> list[FileVariable]:
    """The variables of a file of any format of [`open`][probneural.data.open]; no values are read.

    Args:
        path: A file, a zarr store, or a folder of .npy files.

    Returns:
        The variables, without coordinates where the format marks these.

    Raises:
        FileError: If the file does not exist, or it is of another format.
        MissingPackageError: If the library that reads the format is not installed; the extra is `probneural[data]`.

    Examples:
        >>> import numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/flow.npz", a=np.zeros((10, 8)), u=np.zeros((10, 2, 8)))
        ...     [str(variable) for variable in list_variables(f"{folder}/flow.npz")]
        ['a (10, 8)', 'u (10, 2, 8)']
    """
    where = checks.check_path(path, "path")
    kind = format_of(where)
    with guarded(where):
        return _listed(where, kind)


def _listed(where: Path, kind: Format) -> list[FileVariable]:
    if kind is Format.THE_WELL:
        with open_hdf5(where) as file:
            groups = [group for group in (*ORDERS, "scalars") if group in file]
            names = [(group, name) for group in groups for name in texts(file[group].attrs.get("field_names", ()))]
            return [FileVariable(name=name, axes=str(file[group][name].shape)) for group, name in names if name in file[group]]
    if kind is Format.MESH:
        return [FileVariable(name=name, axes=axes) for name, axes in mesh_variables(where).items()]
    if kind.has_names:
        inside = [
            (group, variable) for group in (None, *groups_of(where, kind.value)) for variable in _in_group(where, kind, group)
        ]
        return [
            FileVariable(name=f"{group}/{variable.name}" if group else variable.name, axes=variable.axes)
            for group, variable in inside
        ]
    return [FileVariable(name=source.name, axes=source.axes) for source in sources_of(where, kind).values()]


def _in_group(path: Path, kind: Format, group: str | None) -> list[Source]:
    try:
        return list(named_sources(path, kind.value, group).values())
    except DataError:  # no variables
        return []


def format_of(path: Path) -> Format:
    """The format of a file or folder that passes the checks of `probneural.data.gate`.

    Raises:
        FileError: If there is none, it is of another format, or a check refuses it.
        MissingPackageError: If the library for HDF5 or zarr is not installed.
    """
    if not path.is_dir():
        checks.check_regular(path, "a file")
    with guarded(path):
        return _format_of_folder(path) if path.is_dir() else _format_of_file(path)


def _format_of_file(path: Path) -> Format:
    if is_mesh(path):  # a MED file is one of HDF5
        return Format.MESH
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(b"\x93NUMPY"):
        return Format.NPY
    if head.startswith(b"CDF"):
        return Format.NETCDF3
    if head.startswith(b"\x89HDF") or head[_USER_BLOCK:].startswith(b"\x89HDF"):
        return _format_of_hdf5(path)
    if head.startswith(b"MATLAB"):
        return Format.MATLAB
    if head.startswith(b"PK"):
        return Format.TORCH if is_torch(path) else Format.NPZ
    if path.suffix.lower() in (".csv", ".tsv"):  # which the contents do not show
        return Format.CSV
    raise FileError(
        expected=f"a file of {KNOWN}", got=f"a file that begins with {head[:8]!r}, {path}", remedy="convert it to one of them"
    )


def open_hdf5(path: Path) -> Any:
    """Open a file of HDF5.

    Raises:
        MissingPackageError: If h5py is not installed.
    """
    return require("h5py", "HDF5 files").File(path, "r")


def _format_of_hdf5(path: Path) -> Format:
    with open_hdf5(path) as file:
        count = check_hdf5(file)
        if "_NCProperties" not in file.attrs:
            if is_the_well(file):
                return Format.THE_WELL
            if is_pdebench(file):
                return Format.PDEBENCH
            return Format.HDF5
        if count > _VARIABLES:
            remedy = "write those that are needed into a file of their own: dataset[names].to_netcdf(path)"
            refuse(f"at most {_VARIABLES} variables in {path}", str(count), remedy)
        return Format.NETCDF4


def _format_of_folder(path: Path) -> Format:
    if any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zarray", ".zmetadata")):
        counts = check_zarr(path)
        arrays = zarr_arrays(path)
        for name, array in arrays.items():
            _warn_of_gaps(name, array, *counts["." if array.path == "" else array.path])
        return Format.NAMED_ZARR if not arrays or any(map(has_dimension_names, arrays.values())) else Format.ZARR
    if any(path.glob("*.npy")):
        return Format.NPY_FOLDER
    raise FileError(
        expected=f"a zarr store or .npy files in the folder {path}", got="neither", remedy=f"known formats are {KNOWN}"
    )


def zarr_arrays(path: Path) -> dict[str, Any]:
    """The arrays of a zarr store by name; one array alone is called "values"."""
    group = require("zarr", "zarr stores").open(path, mode="r", use_consolidated=False)
    return dict(sorted(group.arrays())) if hasattr(group, "arrays") else {TABLE: group}


def _warn_of_gaps(name: str, array: Any, count: int, written: int) -> None:
    """Warn of missing chunks, which read as the fill value: left out as such, or lost."""
    if not np.issubdtype(array.dtype, np.number):
        return
    missing = count - written
    if missing > 0 and np.isfinite(array.fill_value):  # values that are not finite raise an error when they are read
        warn(
            f"{missing} of {count} chunks of {name!r} are not there, and are read as {array.fill_value}: if they were "
            "not left out because they hold nothing else, copy the store again",
            DataWarning,
        )
