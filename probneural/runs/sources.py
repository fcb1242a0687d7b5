"""The one place where runs open data: what is read here today may be lazy tomorrow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from probneural.errors import ArgumentError, DataError, FileError, ProbneuralError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import Dataset, FieldPairs
from probneural.runs.config import Data
from probneural.runs.toml import nearest

if TYPE_CHECKING:
    import xarray

SUFFIXES = (".nc", ".nc4", ".cdf", ".h5", ".zarr", ".npz")
"""Of data files."""


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable of a data file.

    Attributes:
        name: In the file.
        dims: Names of its dimensions; numbers where the file has no names.
        shape: Its size along each.
        dtype: Of its values.
        bare: Its dimensions without coordinates.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    bare: tuple[str, ...]

    def __str__(self) -> str:
        """Name, dimensions and sizes: `u (member 100, lon 64)`."""
        sizes = ", ".join(f"{dim} {size}" for dim, size in zip(self.dims, self.shape, strict=True))
        return f"{self.name} ({sizes})"


@dataclass(frozen=True, kw_only=True)
class Axes:
    """How the functions of one side are laid out in a file.

    Attributes:
        sample: The dimension that counts them.
        names: The dimensions of space.
        coordinates: Those of the file along sample and space, by dimension.
    """

    sample: str
    names: tuple[str, ...]
    coordinates: Mapping[str, NDArray[Any]]


def variables_of(path: str | os.PathLike[str]) -> list[Variable]:
    """The variables of a data file, coordinates left out; values are not read from NetCDF and Zarr.

    Raises:
        FileError: If there is no such file, or it cannot be read.
    """
    file = Path(path)
    if file.suffix == ".npz":
        arrays = _arrays(file)
        return [
            Variable(name=name, dims=tuple(map(str, range(array.ndim))), shape=array.shape, dtype=str(array.dtype), bare=())
            for name, array in arrays.items()
        ]
    with _opened(file) as dataset:
        return [
            Variable(
                name=str(name),
                dims=tuple(map(str, variable.dims)),
                shape=tuple(variable.shape),
                dtype=str(variable.dtype),
                bare=tuple(str(dim) for dim in variable.dims if dim not in variable.coords),
            )
            for name, variable in dataset.data_vars.items()
        ]


def open_pairs(data: Data) -> tuple[Dataset, Axes]:
    """Open the pairs that a run learns from, and say how the outputs are laid out.

    Raises:
        FileError: If the file is missing or cannot be read.
        ArgumentError: If variables or periodicity are not given.
        DataError: If a variable is not there, or its values are not real, finite numbers.
        ShapeError: If dimensions do not fit.
        GridError: If coordinates are missing or not equispaced.
    """
    if not data.path:
        raise ArgumentError(expected="a data file", got="none", remedy="name it: data.nc, or path = ... in [data]")
    _check_named(data, variables_of(data.path))
    options = _options(data)
    if Path(data.path).suffix == ".npz":
        arrays = _arrays(Path(data.path))
        sides = [_stacked([arrays[name] for name in names]) for names in (data.inputs, data.outputs)]
        _check_periodic(data, "of the arrays")
        pairs = FieldPairs.from_numpy(sides[0], sides[1], **_per_axis(options, data.inputs, sides[0]))
        return pairs, Axes(sample="sample", names=_numbered(pairs.outputs.grid), coordinates={})
    with _opened(Path(data.path)) as dataset:
        sample = _sample(data, dataset[list(dict.fromkeys((*data.inputs, *data.outputs)))])
        first, second = (_selected(dataset, names, sample) for names in (data.inputs, data.outputs))
        axes = _axes(second, sample, data.channel)
        if "periodic" not in _first_variable(first).attrs:
            _check_periodic(data, ", ".join(axes.names))
        pairs = FieldPairs.from_xarray(first, second, sample=sample, channel=_channel(first, second, data.channel), **options)
    return pairs, axes


def open_inputs(path: str | os.PathLike[str], data: Data) -> tuple[Field, Axes]:
    """Open input functions alone, named as in the data that a run has learned from.

    Raises:
        ProbneuralError: As [`open_pairs`][probneural.runs.sources.open_pairs] does.
    """
    file = Path(path)
    _check_there(data.inputs, variables_of(file), file)
    options = _options(data)
    if file.suffix == ".npz":
        values = _stacked([_arrays(file)[name] for name in data.inputs])
        inputs = FieldPairs.from_numpy(values, values, **_per_axis(options, data.inputs, values)).inputs
        return inputs, Axes(sample="sample", names=_numbered(inputs.grid), coordinates={})
    with _opened(file) as dataset:
        sample = _sample(data, dataset[list(data.inputs)])
        chosen = _selected(dataset, data.inputs, sample)
        pairs = FieldPairs.from_xarray(chosen, chosen, sample=sample, channel=_channel(chosen, chosen, data.channel), **options)
        return pairs.inputs, _axes(chosen, sample, data.channel)


def _options(data: Data) -> dict[str, Any]:
    """What both readers take."""
    return {
        "periodic": (data.periodic if len(data.periodic) > 1 else data.periodic[0]) if data.periodic else None,
        "lengths": (data.lengths if len(data.lengths) > 1 else data.lengths[0]) if data.lengths else None,
        "dtype": getattr(torch, data.dtype),
    }


def _per_axis(options: dict[str, Any], names: tuple[str, ...], values: NDArray[Any]) -> dict[str, Any]:
    """One answer for all axes, repeated where variables were stacked: the second axis is channels then, the rest space."""
    periodic = options["periodic"]
    is_one = len(names) > 1 and isinstance(periodic, bool)
    return {**options, "periodic": (periodic,) * (values.ndim - 2) if is_one else periodic}


def _check_named(data: Data, found: list[Variable]) -> None:
    """Raise unless inputs and outputs are named and there."""
    held = "; ".join(map(str, found)) or "no variables"
    for side in ("inputs", "outputs"):
        names = getattr(data, side)
        if not names:
            raise ArgumentError(
                expected=f"the names of the {side}",
                got=f"none, and {Path(data.path).name} holds {held}",
                remedy=f"say --{side} NAME, or {side} = [...] in [data]",
            )
        _check_there(names, found, Path(data.path))


def _check_there(names: tuple[str, ...], found: list[Variable], file: Path) -> None:
    known = [variable.name for variable in found]
    for name in names:
        if name not in known:
            raise DataError(
                expected=f"a variable {name!r} in {file.name}",
                got="; ".join(map(str, found)) or "no variables",
                remedy=nearest(name, known),
            )


def _check_periodic(data: Data, axes: str) -> None:
    if not data.periodic:
        raise ArgumentError(
            expected=f"whether the axes ({axes}) are periodic, one answer for all or one for each",
            got="none, and coordinates cannot tell",
            remedy="say --periodic true or --periodic false, or periodic = [...] in [data]",
        )


def _sample(data: Data, chosen: xarray.Dataset) -> str:
    """The dimension of the chosen variables that counts the functions."""
    dims = [str(dim) for dim in chosen.dims]
    given = data.sample
    if given == "auto":
        bare = [dim for dim in dims if dim not in chosen.coords and dim != data.channel]
        given = "sample" if "sample" in dims else bare[0] if len(bare) == 1 else ""
    if given not in dims:
        got = f"{data.sample!r}" if data.sample != "auto" else "none that is called so or is alone without coordinates"
        raise ShapeError(
            expected=f"the dimension that counts the functions, one of {', '.join(dims)}",
            got=got,
            remedy="name it: --sample NAME, or sample = ... in [data]",
        )
    return given


def _channel(first: Any, second: Any, name: str) -> str | None:
    """The dimension of channels: its own for variables side by side, else the one that is named."""
    import xarray

    both = isinstance(first, xarray.Dataset) and isinstance(second, xarray.Dataset)
    return None if both else name


def _selected(dataset: xarray.Dataset, names: tuple[str, ...], sample: str) -> Any:
    """One variable, or several as channels; axes of space that descend, as latitudes often do, are turned round."""
    chosen = dataset[names[0]] if len(names) == 1 else dataset[list(names)]
    down = [dim for dim in chosen.dims if dim != sample and dim in chosen.coords and _descends(chosen.coords[dim].to_numpy())]
    return chosen.isel({dim: slice(None, None, -1) for dim in down})


def _descends(coordinates: NDArray[Any]) -> bool:
    return coordinates.ndim == 1 and coordinates.dtype.kind in "iuf" and bool((np.diff(coordinates) < 0).all())


def _first_variable(side: Any) -> xarray.DataArray:
    import xarray

    return next(iter(side.data_vars.values())) if isinstance(side, xarray.Dataset) else side


def _axes(side: Any, sample: str, channel: str) -> Axes:
    dims = [str(dim) for dim in _first_variable(side).dims]
    names = tuple(dim for dim in dims if dim not in (sample, channel))
    return Axes(
        sample=sample,
        names=names,
        coordinates={dim: side.coords[dim].to_numpy() for dim in (sample, *names) if dim in side.coords},
    )


def _numbered(grid: Grid) -> tuple[str, ...]:
    return tuple(f"x{number}" for number in range(grid.dimension))


def _stacked(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """One array, or several as channels."""
    if len({array.shape for array in arrays}) > 1:
        raise ShapeError(
            expected="channels of one shape", got=str([array.shape for array in arrays]), remedy="name one variable per side"
        )
    return arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=1)


def _arrays(file: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(file, allow_pickle=False) as opened:
            return {name: opened[name] for name in opened.files}
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(file, str(error), "write it with numpy.savez(path, a=..., u=...)") from error


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[xarray.Dataset]:
    """A NetCDF file or Zarr folder, read lazily."""
    try:
        import xarray
    except ModuleNotFoundError as error:
        raise ImportError(f"reading {file.name} needs {error.name}: pip install 'probneural[cli]'") from error

    if not file.exists():
        raise _unreadable(file, "nothing there", "check the path")
    if file.suffix not in SUFFIXES:
        raise _unreadable(file, f"the suffix {file.suffix!r}", f"known are {', '.join(SUFFIXES)}")
    try:
        dataset = xarray.open_zarr(file) if file.suffix == ".zarr" else xarray.open_dataset(file)
    except (ImportError, OSError, ValueError) as error:
        remedy = "NetCDF4 needs h5netcdf and Zarr needs zarr; is it a NetCDF file at all?"
        raise _unreadable(file, str(error).split("\n", maxsplit=1)[0], remedy) from error
    with dataset:
        try:
            yield dataset
        except ProbneuralError:
            raise
        except (OSError, ValueError, KeyError) as error:  # values are read late
            raise _unreadable(file, str(error), "it may be damaged") from error


def _unreadable(file: Path, got: str, remedy: str) -> FileError:
    return FileError(expected=f"functions in {file}", got=got, remedy=remedy)
