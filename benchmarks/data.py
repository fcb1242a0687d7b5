"""User data from a file or a folder."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

import probneural as pn
from probneural.errors import DataError, FileError, ShapeError

SPLIT_SEED = 7100
_SIDES = ("inputs", "outputs")
_NOT_PERIODIC = "its axis is taken as not periodic, with a point at each end; save periodic=[True] with the arrays if it is."


@dataclass(frozen=True)
class OwnData:
    """Pairs for training with calibration, and for testing.

    Attributes:
        name: Name in tables.
        train: Pairs for training and calibration.
        tests: Test pairs by name, on the training grid first.
        assumed: Assumptions about missing information, in a sentence; may be empty.
    """

    name: str
    train: pn.FieldPairs
    tests: dict[str, pn.FieldPairs]
    assumed: str = ""


def read(path: str | Path) -> OwnData:
    """Read pairs of functions; without test pairs, a random fifth with a fixed seed is for testing.

    Args:
        path: One of
            - an `.npz` file with arrays `inputs` and `outputs`, `(n, *grid)` or `(n, c, *grid)`, and optional
              `periodic`, `lengths` and `endpoint` (one entry per axis); `test_inputs` and `test_outputs` are a test set.
              Without `periodic`, arrays `(n, points)` are not periodic, and others are refused: axes could be channels or
              space;
            - a NetCDF file (`.nc`) or Zarr folder (`.zarr`) with variables `inputs` and `outputs`, as `to_xarray` writes, or
              with a global attribute `periodic`;
            - a folder, or a prefix of names in it, of `.safetensors` files with `train` or `test` in their names,
              with `inputs` and `outputs`, or `x` and `y`, on the unit cube, not periodic, without the right edge.

    Raises:
        FileError: If the path does not exist, cannot be read, or has another suffix.
        DataError: If arrays are missing or invalid.
        ShapeError: If arrays of more than two axes have no information on space axes.
    """
    place = Path(path)
    if place.suffix == ".npz":
        return _from_npz(place)
    if place.suffix in (".nc", ".nc4", ".h5", ".zarr"):
        return _from_xarray(place)
    return _from_safetensors(place)


def _split(name: str, pairs: pn.FieldPairs) -> OwnData:
    if len(pairs) < 5:
        raise DataError(expected="at least 5 pairs to split", got=str(len(pairs)), remedy="give a test set, or more pairs")
    train, test = pairs.split(len(pairs) * 4 // 5, seed=SPLIT_SEED)
    return OwnData(name, train, {"in distribution": test})


def _missing(place: Path, remedy: str, got: object = "nothing there") -> FileError:
    return FileError(expected=f"functions in {place.name}", got=str(got), remedy=remedy)


def _from_npz(place: Path) -> OwnData:
    try:
        with np.load(place, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _missing(place, "write it with np.savez(path, inputs=..., outputs=..., periodic=...)", error) from error
    options = {
        name: tuple(np.atleast_1d(arrays[name]).tolist()) for name in ("lengths", "periodic", "endpoint") if name in arrays
    }
    options = {name: entries[0] if np.ndim(arrays[name]) == 0 else entries for name, entries in options.items()}
    for name in {"periodic", "endpoint"} & set(options):
        entries = options[name]
        options[name] = tuple(map(bool, entries)) if isinstance(entries, tuple) else bool(entries)
    assumed = "" if "periodic" in options else f"{place.name} has no array `periodic`: {_NOT_PERIODIC}"
    pairs = _pairs(arrays, "", place, {"periodic": False, **options})
    if "test_inputs" in arrays:
        tests = {"in distribution": _pairs(arrays, "test_", place, {"periodic": False, **options})}
        return OwnData(place.stem, pairs, tests, assumed)
    return replace(_split(place.stem, pairs), assumed=assumed)


def _pairs(arrays: dict[str, Any], prefix: str, place: Path, options: dict[str, Any]) -> pn.FieldPairs:
    absent = [prefix + side for side in _SIDES if prefix + side not in arrays]
    if absent:
        raise DataError(
            expected=f"arrays {prefix}inputs and {prefix}outputs in {place.name}",
            got=str(sorted(arrays)),
            remedy=f"add {', '.join(absent)}",
        )
    sides = [arrays[prefix + side] for side in _SIDES]
    if max(side.ndim for side in sides) > 2 and not any(isinstance(option, tuple) for option in options.values()):
        raise ShapeError(
            expected=f"an array `periodic` in {place.name} with one entry per axis of space",
            got=f"arrays of {' and '.join(str(side.shape) for side in sides)}, whose second axis may be channels or space",
            remedy="write np.savez(path, inputs=..., outputs=..., periodic=[True]) in 1-D, periodic=[False, False] in 2-D",
        )
    if set(options) == {"periodic"}:
        return pn.FieldPairs.from_numpy(sides[0], sides[1], periodic=options["periodic"])
    axes = max((len(option) for option in options.values() if isinstance(option, tuple)), default=1)
    return pn.FieldPairs.from_numpy(sides[0], sides[1], grid=pn.Grid.uniform(sides[0].shape[-axes:], **options))


def _from_xarray(place: Path) -> OwnData:
    if not place.exists():
        raise _missing(place, "check the path")
    import xarray

    try:
        opened = xarray.open_zarr(place) if place.suffix == ".zarr" else xarray.open_dataset(place)
        with opened as dataset:
            flags = dataset.attrs.get("periodic")
            rounds = None if flags is None else tuple(bool(flag) for flag in np.atleast_1d(flags))
            periodic = rounds[0] if rounds is not None and len(rounds) == 1 else rounds
            pairs = pn.FieldPairs.from_xarray(dataset, periodic=periodic)
    except pn.errors.ProbneuralError:
        raise
    except (ImportError, OSError, ValueError) as error:
        remedy = "NetCDF4 needs h5netcdf and Zarr needs zarr; to_netcdf(path, format='NETCDF3_64BIT') needs neither"
        raise _missing(place, remedy, error) from error
    return _split(place.stem, pairs)


def _from_safetensors(place: Path) -> OwnData:
    folder, prefix = (place, "") if place.is_dir() else (place.parent, place.name)
    files = sorted(folder.glob(f"{prefix}*.safetensors")) if folder.is_dir() else []
    train = [file for file in files if "train" in file.stem]
    if len(train) != 1:
        raise _missing(
            place, "give an .npz, .nc or .zarr path, or a folder with one *train*.safetensors", [f.name for f in files]
        )
    pairs = _tensors(train[0])
    tests = {}
    for file in sorted((file for file in files if "test" in file.stem), key=lambda file: _order(file, pairs)):
        found = _tensors(file)
        at = " x ".join(map(str, found.inputs.grid.shape))
        name = "in distribution" if found.inputs.grid == pairs.inputs.grid and not tests else f"grid {at}"
        tests[name if name not in tests else file.stem] = found
    name = re.sub(r"[_-]*train.*", "", train[0].stem) or folder.name
    return OwnData(name, pairs, tests) if tests else _split(name, pairs)


def _order(file: Path, train: pn.FieldPairs) -> tuple[bool, int, str]:
    grid = _tensors(file).inputs.grid
    return grid != train.inputs.grid, grid.size, file.name


def _tensors(file: Path) -> pn.FieldPairs:
    try:
        arrays = load_file(file)
    except (OSError, SafetensorError) as error:
        raise _missing(file, "write it with safetensors.numpy.save_file", error) from error
    names = _SIDES if "inputs" in arrays else ("x", "y")
    if not set(names) <= set(arrays):
        raise DataError(expected=f"arrays inputs and outputs in {file.name}", got=str(sorted(arrays)), remedy="or x and y")
    inputs, outputs = (arrays[name] for name in names)
    if inputs.ndim < 2:
        raise DataError(expected="functions (n, *grid)", got=str(inputs.shape), remedy="space comes last")
    grid, out_grid = (pn.Grid.uniform(side.shape[1:], periodic=False, endpoint=False) for side in (inputs, outputs))
    return pn.FieldPairs.from_numpy(inputs, outputs, grid=grid, out_grid=out_grid)
