"""HDF5 files: their arrays, and whether these have names of axes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from probneural.data.arranged import arranged
from probneural.data.readers import ArrayReader, HDF5Reader
from probneural.data.sources import Source

_DECODED = ("_FillValue", "missing_value", "scale_factor", "add_offset")
"""Attributes by which stored numbers differ from values."""
_AXIS = ("units", "axis", "standard_name")
"""Attributes of a scale that give the role of its axis."""


def array_of(file: Any, key: str) -> HDF5Reader:
    """An array of an open file, which is opened again to be read."""
    array = file[key]
    reader = HDF5Reader(Path(file.filename), key, array.shape, array.dtype, array.chunks or (1,) * array.ndim)
    if array.dtype.kind in "biuf" and any(name in array.attrs for name in _DECODED):
        scale, offset = (
            float(np.ravel(array.attrs.get(name, value))[0]) for name, value in (("scale_factor", 1), ("add_offset", 0))
        )
        return replace(reader, dtype=np.result_type(array.dtype, np.float32), packing=(scale, offset))
    return reader


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


def is_netcdf(file: Any) -> bool:
    """Whether an open file without the marks of NetCDF-4 is laid out like it: with dimension scales, or numbers to be decoded.

    An array that has scales on some of its axes only is none that readers of NetCDF take, and they see no labels.
    """
    import h5py

    arrays: list[tuple[list[bool], bool]] = []
    is_labelled = []

    def visit(_: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset) and thing.shape and not thing.is_scale:
            arrays.append(([len(dim) > 0 for dim in thing.dims], any(name in thing.attrs for name in _DECODED)))
            is_labelled.append(any(dim.label and not len(dim) for dim in thing.dims))

    file.visititems(visit)
    is_mixed = any(any(scales) and not all(scales) for scales, _ in arrays)
    return not is_mixed and not any(is_labelled) and any(is_decoded or all(scales) for scales, is_decoded in arrays)


def hdf5_sources(file: Any) -> dict[str, Source]:
    """All arrays of an open file by their full names, with the labels and scales of their axes; scales are left out."""
    sources = {}
    for name, reader in arrays_of(file).items():
        array = file[name]
        if array.is_scale:
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
            reader=reader,
            dims=tuple(dims) if any(dims) else (),
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
