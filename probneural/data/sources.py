"""Sources: variables of a file before their axes have roles, and those of HDF5 files and of files that xarray reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probneural.arrays.layouts import CHANNEL, named_role
from probneural.data.readers import ArrayReader, ReopenedReader, SlicedReader, reader_of, require
from probneural.errors import DataError, FileError


@dataclass(frozen=True, kw_only=True)
class Source:
    """A variable of a file.

    Args:
        name: Name of the variable.
        reader: The array, its axes in the file's order.
        dims: Names of the axes, "" where an axis has none; by default none has.
        coordinates: Coordinates along named axes.
        attributes: Attributes of the variable.
        axis_attributes: Attributes of the coordinates.
        labels: Further coordinates by name: the axis that each belongs to, and its values.
    """

    name: str
    reader: ArrayReader
    dims: tuple[str, ...] = ()
    coordinates: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    axis_attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    labels: Mapping[str, tuple[str, NDArray[Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Give axes without names empty ones."""
        if not self.dims:
            object.__setattr__(self, "dims", ("",) * len(self.reader.shape))

    @property
    def has_names(self) -> bool:
        """Whether an axis has a name."""
        return any(self.dims)

    @property
    def axes(self) -> str:
        """Names and lengths of the axes, lengths alone where they have no names: `(member 100, lon 64)`."""
        if not self.has_names:
            return str(tuple(self.reader.shape))
        words = [f"{dim or '?'} {length}" for dim, length in zip(self.dims, self.reader.shape, strict=True)]
        return f"({', '.join(words)})"

    def named_role(self, dim: str) -> str:
        """The role of an axis by its name or attributes: "n", "t", "c", the name of an axis of space, or ""."""
        if dim == self.attributes.get("channel_dimension"):
            return CHANNEL
        return named_role(dim, self.axis_attributes.get(dim, {}))

    def descends(self, dim: str) -> bool:
        """Whether the coordinate of an axis descends, as latitudes often do."""
        points = self.coordinates.get(dim, np.empty(0))
        return points.ndim == 1 and len(points) > 1 and points.dtype.kind in "iuf" and bool((np.diff(points) < 0).all())


_DESCRIBED = 30
"""Largest number of entries in the description of a file."""
_AXIS = ("units", "axis", "standard_name")
"""Attributes of a scale that give the role of its axis."""


def _datasets(file: Any) -> dict[str, Any]:
    """All datasets of an open HDF5 file, by their full names."""
    import h5py

    arrays: dict[str, Any] = {}

    def visit(name: str, member: Any) -> None:
        if isinstance(member, h5py.Dataset):
            arrays[name] = member

    file.visititems(visit)
    return arrays


def described_file(file: Any) -> str:
    """Attributes, keys and shapes of an open file, in a few words."""
    shapes = [f"{name} {array.shape}" for name, array in _datasets(file).items()]
    return ", ".join([*(f"@{name}" for name in file.attrs), *shapes][:_DESCRIBED]) or "nothing"


def hdf5_sources(file: Any) -> dict[str, Source]:
    """All arrays of an open file by their full names, with the labels and scales of their axes; scales are left out."""
    sources = {}
    for name, array in _datasets(file).items():
        if array.shape is None or name.startswith("#") or array.is_scale:
            continue
        scales = [dim[0] if len(dim) else None for dim in array.dims]
        labels = [texts(dim.label)[0] for dim in array.dims]
        dims = [
            label or ("" if scale is None else scale.name.rpartition("/")[2])
            for label, scale in zip(labels, scales, strict=True)
        ]
        dims = dims[::-1] if "MATLAB_class" in array.attrs else dims
        pairs = [(dim, scale) for dim, scale in zip(dims, scales, strict=True) if dim and scale is not None]
        sources[name] = Source(
            name=name,
            reader=reader_of(array, name),
            dims=tuple(dims),
            coordinates={dim: scale[...] for dim, scale in pairs if scale.ndim == 1 and scale.dtype.kind in "iuf"},
            attributes={key: _plain(value) for key, value in array.attrs.items() if key == "units"},
            axis_attributes={
                dim: {key: _plain(value) for key, value in scale.attrs.items() if key in _AXIS} for dim, scale in pairs
            },
        )
    return sources


def _plain(value: Any) -> str:
    return texts(value)[0] if np.size(value) else ""


def texts(value: Any) -> tuple[str, ...]:
    """An attribute that is a text or several."""
    return tuple(entry.decode() if isinstance(entry, bytes) else str(entry) for entry in np.atleast_1d(value).tolist())


_PHONY = "phony_dim_"
"""Prefix of xarray's names for axes that have none."""


@dataclass(eq=False, kw_only=True)
class XarrayReader(ReopenedReader):
    """A variable of a file that xarray reads.

    Args:
        path: The file or store.
        engine: Engine of xarray.
        group: Group that holds the variable.
        name: The variable.
        dims: Its dimensions, in the file's order.
    """

    path: Path
    engine: str
    group: str | None
    name: str
    dims: tuple[str, ...]
    reads_rows: bool = field(default=True, init=False)

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box."""
        return self._select(dict(zip(self.dims, box, strict=False)))

    def read_rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read ascending rows of the first axis."""
        return self._select({self.dims[0]: rows})

    def _select(self, index: dict[str, Any]) -> NDArray[Any]:
        return np.asarray(self._file.variables[self.name].isel(index).to_numpy())

    def _open(self) -> Any:
        return open_xarray(self.path, self.engine, self.group)


def open_xarray(path: Path, engine: str, group: str | None = None) -> Any:
    """Open a file without reading its variables; missing values, scales and offsets are decoded, times are not.

    Raises:
        MissingPackageError: If xarray or its library for the format is not installed.
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
    with open_xarray(path, engine, group) as opened:
        placed = _with_outer_coordinates(opened, path, engine, group)
        sources = {str(name): _source(variable, path, engine, group) for name, variable in placed.data_vars.items()}
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


def _with_outer_coordinates(opened: Any, path: Path, engine: str, group: str | None) -> Any:
    """The variables of a group with the coordinates that the groups around it have for its dimensions."""
    parts = (group or "").strip("/").split("/")
    for depth in range(len(parts) - 1, -1, -1) if group else ():
        with open_xarray(path, engine, "/".join(parts[:depth]) or None) as outer:
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


def _source(variable: Any, path: Path, engine: str, group: str | None) -> Source:
    stored = tuple(str(dim) for dim in variable.dims)
    dims = tuple("" if dim.startswith(_PHONY) else dim for dim in stored)
    chunks = variable.encoding.get("chunksizes") or variable.encoding.get("chunks") or (1,) * variable.ndim
    reader = XarrayReader(
        path=path,
        engine=engine,
        group=group,
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
