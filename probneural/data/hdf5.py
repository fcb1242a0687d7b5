"""HDF5 files: their arrays, and whether these have names of axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from probneural.data.arranged import arranged
from probneural.data.readers import ArrayReader, HDF5Reader

_DECODED = ("_FillValue", "missing_value", "scale_factor", "add_offset")
"""Attributes by which stored numbers differ from values."""


def array_of(file: Any, key: str) -> HDF5Reader:
    """An array of an open file, which is opened again to be read."""
    array = file[key]
    return HDF5Reader(Path(file.filename), key, array.shape, array.dtype, array.chunks or (1,) * array.ndim)


def described_file(file: Any, most: int = 30) -> str:
    """Keys, shapes and attributes of an open file, in a few words."""
    import h5py

    lines: list[str] = [f"@{name}" for name in file.attrs]

    def visit(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset) and len(lines) < most:
            lines.append(f"{name} {thing.shape}")

    file.visititems(visit)
    return ", ".join(lines) or "nothing"


def arrays_of(file: Any) -> dict[str, ArrayReader]:
    """All arrays of numbers of an open file by their full names; those of MATLAB have their axes in MATLAB's order."""
    import h5py

    arrays: dict[str, ArrayReader] = {}

    def visit(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset) and thing.shape is not None and not name.startswith("#"):
            reader = array_of(file, name)
            arrays[name] = arranged(reader, range(thing.ndim)[::-1]) if "MATLAB_class" in thing.attrs else reader

    file.visititems(visit)
    return arrays


def has_named_axes(file: Any) -> bool:
    """Whether an array of an open file has names of axes, as dimension scales or labels, or numbers that are to be decoded."""
    import h5py

    def names(_: str, thing: Any) -> bool | None:
        if not isinstance(thing, h5py.Dataset) or thing.shape is None:
            return None
        is_named = any(name in thing.attrs for name in ("DIMENSION_LIST", *_DECODED)) or any(dim.label for dim in thing.dims)
        return True if is_named else None

    return bool(file.visititems(names))


def texts(value: Any) -> tuple[str, ...]:
    """An attribute that is a text or several."""
    return tuple(entry.decode() if isinstance(entry, bytes) else str(entry) for entry in np.atleast_1d(value).tolist())
