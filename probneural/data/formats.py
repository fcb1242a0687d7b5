"""Formats of files, recognised from their contents, never from their names."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from probneural.checks import check_regular
from probneural.data.array_files import TABLE, is_torch
from probneural.data.gate import check_hdf5, check_zarr, guarded, refuse
from probneural.data.meshes import is_mesh
from probneural.data.pdebench import is_pdebench
from probneural.data.readers import require
from probneural.data.sources import has_dimension_names
from probneural.data.the_well import is_the_well
from probneural.errors import DataWarning, FileError, warn

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


def format_of(path: Path) -> Format:
    """The format of a file or folder that passes the checks of `probneural.data.gate`.

    Raises:
        FileError: If there is none, it is of another format, or a check refuses it.
        UnsupportedError: If the library for HDF5 or zarr is not installed.
    """
    if not path.is_dir():
        check_regular(path, "a file")
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
        expected=f"a file of a known format, {KNOWN}",
        got=f"a file that begins with {head[:8]!r}, {path}",
        remedy="convert it to one of them",
    )


def open_hdf5(path: Path) -> Any:
    """Open a file of HDF5.

    Raises:
        UnsupportedError: If h5py is not installed.
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
