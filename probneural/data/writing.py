"""Write labelled fields part by part, so that they need never be in memory together."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probneural.data.readers import require

if TYPE_CHECKING:
    import xarray


def write_netcdf(path: Path, parts: Iterable[xarray.Dataset], *, along: str, count: int) -> None:
    """Write datasets one after the other along a dimension, as one NetCDF file.

    Args:
        path: The file to write, which exists.
        parts: One dataset or more; the first has the variables, dimensions, coordinates and attributes of all.
        along: The dimension that they follow each other along: the first of every variable that has it.
        count: Its length in the end.

    Raises:
        UnsupportedError: If h5netcdf is not installed.
        OSError: If the file cannot be written to, on a full disk for example.

    Examples:
        >>> import pathlib, tempfile, xarray
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "u.nc"
        >>> path.touch()
        >>> parts = [xarray.Dataset({"u": (("n", "x"), np.full((2, 3), number))}) for number in (1.0, 2.0)]
        >>> write_netcdf(path, parts, along="n", count=4)
        >>> xarray.open_dataset(path, engine="h5netcdf")["u"][:, 0].values.tolist()
        [1.0, 1.0, 2.0, 2.0]
    """
    ordered = iter(parts)
    first = next(ordered)
    library = require("h5netcdf", "NetCDF files")
    with _FailSafe(path, "r+b") as stream:
        try:
            with library.File(stream, "w") as file:
                _lay_out(file, first, along, count)
                start = 0
                for part in itertools.chain([first], ordered):
                    rows = slice(start, start + part.sizes[along])
                    for name, variable in part.variables.items():
                        if along in variable.dims and stream.error is None:
                            file.variables[str(name)][rows] = variable.to_numpy()
                    if stream.error is not None:
                        break
                    start = rows.stop
        finally:
            if stream.error is not None:
                raise stream.error


class _FailSafe(io.FileIO):
    """A file that records the first error of a write, and discards later writes.

    HDF5 cannot close a file that it failed to write to, by name or through a stream: it ends the process at exit.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all bytes, or discard them."""
        view, start = memoryview(data).cast("B"), 0
        while self.error is None and start < len(view):
            try:
                start += super().write(view[start:])
            except OSError as error:
                self.error = error
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Change the size, unless a write failed."""
        if self.error is None:
            try:
                return super().truncate(size)
            except OSError as error:
                self.error = error
        return self.tell() if size is None else size

    def readinto(self, buffer: Any) -> int:
        """Read bytes, zeros where a write failed."""
        view = memoryview(buffer).cast("B")
        count = super().readinto(view) or 0
        if self.error is not None:
            view[count:] = bytes(len(view) - count)
            return len(view)
        return count


def write_zarr(folder: Path, parts: Iterable[xarray.Dataset], *, along: str) -> None:
    """The same as a zarr store, in an empty folder; chunks are those of the first part.

    Raises:
        UnsupportedError: If zarr is not installed.
    """
    require("zarr", "zarr stores")
    options: dict[str, Any] = {"mode": "w"}
    for part in parts:
        part.to_zarr(folder, consolidated=False, **options)
        options = {"append_dim": along}


def _lay_out(file: Any, first: xarray.Dataset, along: str, count: int) -> None:
    """Dimensions, attributes, and variables, filled where they do not vary along the parts."""
    file.dimensions = {str(dim): count if dim == along else size for dim, size in first.sizes.items()}
    file.attrs.update(_plain(first.attrs))
    text = require("h5py", "NetCDF files").string_dtype()
    for name, variable in first.variables.items():
        is_text = variable.dtype.kind in "OU"
        made = file.create_variable(str(name), tuple(map(str, variable.dims)), text if is_text else variable.dtype)
        made.attrs.update(_plain(variable.attrs))
        if along not in variable.dims:
            made[...] = variable.to_numpy().astype(object) if is_text else variable.to_numpy()


def _plain(attributes: Any) -> dict[str, Any]:
    return {str(name): np.asarray(value) if isinstance(value, list | tuple) else value for name, value in attributes.items()}
