"""Files whose axes may have names (NetCDF, zarr, HDF5 with dimension scales or labels), read by xarray."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probneural.data.readers import ReopenedReader, SlicedReader, require
from probneural.data.sources import Source
from probneural.errors import DataError, FileError

_PHONY = "phony_dim_"
"""Prefix of xarray's names for axes that have none."""


@dataclass(frozen=True)
class NamedFile:
    """A file or store that xarray reads: its path, xarray's engine, and the group."""

    path: Path
    engine: str
    group: str | None = None


@dataclass
class XarrayReader(ReopenedReader):
    """A variable of a file that xarray reads.

    Args:
        file: The file or store.
        name: The variable.
        dims: Its dimensions, in the file's order.
        shape: Lengths of the axes.
        dtype: Of its numbers, decoded.
        chunks: Its chunks, or single entries if it is contiguous.
    """

    file: NamedFile
    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box."""
        return self._select(dict(zip(self.dims, box, strict=False)))

    def read_rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read ascending rows of the first axis."""
        return self._select({self.dims[0]: rows})

    def _select(self, index: dict[str, Any]) -> NDArray[Any]:
        return np.asarray(self._file.variables[self.name].isel(index).to_numpy())

    def _open(self) -> Any:
        return open_xarray(self.file.path, self.file.engine, self.file.group)


def open_xarray(path: Path, engine: str, group: str | None = None) -> Any:
    """Open a file without reading its variables; missing values, scales and offsets are decoded, times are not.

    Raises:
        UnsupportedError: If xarray or its library for the format is not installed.
        FileError: If the file cannot be read.
    """
    xarray = require("xarray", "NetCDF files and zarr stores")
    if engine != "scipy":
        require(engine, "NetCDF files" if engine == "h5netcdf" else "zarr stores")
    options: dict[str, Any] = {"group": group} if group and engine != "scipy" else {}
    if engine == "h5netcdf":
        options["phony_dims"] = "sort"
    try:
        if engine == "zarr":
            return xarray.open_dataset(_named_store(path, group), decode_times=False, cache=False, chunks=None)
        return xarray.open_dataset(path, engine=engine, decode_times=False, cache=False, chunks=None, **options)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = "list its groups with pn.data.list_variables(path), and name one: group=" if group else "write it again"
        raise FileError(expected=f"a file that {engine} reads, {path}", got=str(error), remedy=remedy) from error


def named_sources(path: Path, engine: str, group: str | None = None) -> dict[str, Source]:
    """The variables of a file by name; coordinates are left out.

    Raises:
        FileError: If the file cannot be read.
    """
    file = NamedFile(path, engine, group)
    with open_xarray(path, engine, group) as opened:
        placed = _with_outer_coordinates(opened, file)
        sources = {str(name): _source(file, variable) for name, variable in placed.data_vars.items()}
    if engine == "zarr":
        arrays = require("zarr", "zarr stores").open_group(path, mode="r", path=group, use_consolidated=False).arrays()
        unnamed = {name: SlicedReader(array) for name, array in arrays if not has_dimension_names(array)}
        sources |= {name: Source(name=name, reader=reader) for name, reader in sorted(unnamed.items())}
    if not sources:
        inner = groups_of(path, engine)
        raise DataError(
            expected=f"variables in {path}" if group is None else f"variables in group {group!r} of {path}",
            got=f"none; its groups are {', '.join(inner)}" if inner else "none",
            remedy=f'name the group: group="{inner[0]}"' if inner else "choose another file",
        )
    return sources


def has_dimension_names(array: Any) -> bool:
    """Whether the axes of an array of a zarr store have names, if it has axes."""
    return not array.shape or bool(getattr(array.metadata, "dimension_names", None)) or "_ARRAY_DIMENSIONS" in array.attrs


def _named_store(path: Path, group: str | None) -> Any:
    """A zarr store without the arrays that have no names of axes, which xarray does not read."""
    options = {"consolidated": False, "use_zarr_fill_value_as_mask": False}
    store = require("xarray.backends", "zarr stores").ZarrStore.open_group(path, group=group, **options)
    for name, member in list(store.members.items()):
        if hasattr(member, "dtype") and not has_dimension_names(member):
            del store.members[name]
    return store


def _with_outer_coordinates(opened: Any, file: NamedFile) -> Any:
    """The variables of a group with the coordinates that the groups around it have for its dimensions."""
    parts = (file.group or "").strip("/").split("/")
    for depth in range(len(parts) - 1, -1, -1) if file.group else ():
        with open_xarray(file.path, file.engine, "/".join(parts[:depth]) or None) as outer:
            coordinates = {
                name: (coordinate.dims, coordinate.to_numpy(), coordinate.attrs)
                for name, coordinate in outer.coords.items()
                if name not in opened.variables
                and coordinate.dims
                and all(opened.sizes.get(dim) == outer.sizes[dim] for dim in coordinate.dims)
            }
            opened = opened.assign_coords(coordinates)
    return opened


def groups_of(path: Path, engine: str) -> list[str]:
    """Full names of the groups of a file."""
    if engine == "scipy":
        return []
    if engine == "zarr":
        members = require("zarr", "zarr stores").open_group(path, mode="r", use_consolidated=False).members(max_depth=None)
        return sorted(name for name, member in members if hasattr(member, "members"))
    h5py = require("h5py", "NetCDF files")
    with h5py.File(path, "r") as file:
        if not any(file.get(name, getclass=True) is h5py.Group for name in file):
            return []  # else xarray reads all variables
    opened = require("xarray", "NetCDF files and zarr stores").open_datatree(
        path, engine=engine, decode_times=False, phony_dims="sort"
    )
    return [name.strip("/") for name in opened.groups if name != "/"]


def _source(file: NamedFile, variable: Any) -> Source:
    stored = tuple(str(dim) for dim in variable.dims)
    dims = tuple("" if dim.startswith(_PHONY) else dim for dim in stored)
    chunks = variable.encoding.get("chunksizes") or variable.encoding.get("chunks") or (1,) * variable.ndim
    reader = XarrayReader(
        file=file,
        name=str(variable.name),
        dims=stored,
        shape=tuple(variable.shape),
        dtype=variable.dtype,
        chunks=tuple(int(length) for length in chunks),
    )
    coordinates = {str(dim): variable.coords[dim] for dim in variable.dims if dim in variable.coords}
    return Source(
        name=str(variable.name),
        reader=reader,
        dims=dims,
        coordinates={dim: coordinate.to_numpy() for dim, coordinate in coordinates.items()},
        attributes=dict(variable.attrs),
        axis_attributes={dim: dict(coordinate.attrs) for dim, coordinate in coordinates.items()},
        labels={
            str(name): (str(coordinate.dims[0]), coordinate.to_numpy())
            for name, coordinate in variable.coords.items()
            if coordinate.ndim == 1 and str(name) not in coordinates
        },
    )
