"""Arrays that are read in boxes: their protocol, files of NumPy, and arrays that can be sliced."""

from __future__ import annotations

import math
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probneural.checks import described, optional
from probneural.errors import DataError, FileError, UnsupportedError

_LARGEST_BOX = 2**25
"""Largest bytes of a chunk outside the requested box (32 MiB); of a larger chunk, runs of neighbours are read."""


@runtime_checkable
class ArrayReader(Protocol):
    """An array on disk or in memory, of which boxes are read; it can be pickled, and opens its file once per process."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of its axes."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its numbers."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """Minimum box lengths of a read, per axis; 1 if single entries can be read."""

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box: slices of the first axes, all of the others."""


@runtime_checkable
class RowReader(Protocol):
    """An array whose library reads scattered rows at once, faster than one after the other."""

    def read_rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read ascending rows of the first axis."""


@dataclass(frozen=True)
class SlicedReader:
    """An array that can be sliced: of NumPy, or of a library that follows it."""

    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of its axes."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its numbers."""
        return np.dtype(self.array.dtype)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Chunks of the array, else single entries."""
        chunks = getattr(self.array, "chunks", None) or ()
        is_regular = len(chunks) == len(self.shape) and all(isinstance(length, int) for length in chunks)
        return tuple(chunks) if is_regular else (1,) * len(self.shape)

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box."""
        return _unmasked(self.array[box])

    def read_rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read ascending rows of the first axis: zarr reads many chunks at once, and NumPy copies once."""
        if hasattr(self.array, "oindex"):
            return _unmasked(self.array.oindex[rows])
        if isinstance(self.array, np.ndarray):
            return _unmasked(self.array[rows])
        return np.concatenate([self.read((slice(int(row), int(row) + 1),)) for row in rows])


def _unmasked(values: Any) -> NDArray[Any]:
    """Values as an array of NumPy.

    Raises:
        DataError: If one is masked: below its mask is a number that means nothing.
    """
    if np.ma.isMaskedArray(values) and bool(np.ma.getmaskarray(values).any()):
        raise DataError(
            expected="values without a mask", got="a masked array", remedy="pass values.filled(numpy.nan) with mask=True"
        )
    return np.asarray(values)


@dataclass
class ReopenedReader(ABC):
    """A reader that opens its file once per process, because open files are not valid after a fork."""

    _opened: tuple[int, Any] | None = field(default=None, repr=False, compare=False, kw_only=True)

    @abstractmethod
    def _open(self) -> Any:
        """Open the file."""

    @property
    def _file(self) -> Any:
        """The file that this process has opened."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), self._open()
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        """All but the open file."""
        return self.__dict__ | {"_opened": None}


@dataclass
class RawReader(ReopenedReader):
    """An array in C order in the bytes of a file, read by position: pages of a memory map would count as memory in use.

    Args:
        path: The file.
        shape: Lengths of the array's axes.
        dtype: Dtype of its numbers, including byte order.
        offset: Offset of its beginning, in bytes.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int

    @property
    def chunks(self) -> tuple[int, ...]:
        """Single entries."""
        return (1,) * len(self.shape)

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box, in runs of neighbours in the file."""
        starts, lengths = [part.start for part in box], [part.stop - part.start for part in box]
        tail = self.shape[len(box) :]
        values = np.empty((*lengths, *tail), self.dtype)
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(box))]
        whole = len(box)  # axes from here on are read whole, so a run covers them and the one before
        while whole and lengths[whole - 1] == self.shape[whole - 1]:
            whole -= 1
        outer = lengths[: max(whole - 1, 0)]
        runs = values.reshape(math.prod(outer), -1)
        for number, position in enumerate(np.ndindex(*outer)):
            place = [start + step for start, step in zip(starts, (*position, *(0,) * len(starts)), strict=False)]
            first = sum(entry * stride for entry, stride in zip(place, strides, strict=True))
            self._fill(runs[number], self.offset + first * self.dtype.itemsize)
        return values

    def _fill(self, run: NDArray[Any], offset: int) -> None:
        view = run.view(np.uint8).data
        while len(view):
            count = _read_at(self._file, view, offset)
            if not count:
                raise FileError(
                    expected=f"an array of shape {self.shape} in {self.path}",
                    got="a file that ends before",
                    remedy="it has changed or was cut off: write it again",
                )
            view, offset = view[count:], offset + count

    def _open(self) -> FileIO:
        return FileIO(self.path)

    def __del__(self) -> None:
        """Close the file."""
        if self._opened is not None:
            self._opened[1].close()


@dataclass
class HDF5Reader(ReopenedReader):
    """An array of an HDF5 file.

    Args:
        path: The file.
        key: The array's name in it.
        shape: Lengths of its axes.
        dtype: Of its numbers.
        chunks: Its chunks, or single entries if it is contiguous.
        packing: Factor and offset of packed numbers, for a reader of their values; None for one that refuses such numbers.
    """

    path: Path
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    packing: tuple[float, float] | None = None

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box; NaN for the fill value of floating point numbers."""
        array = self._file
        stored = np.asarray(array[box])
        values = stored
        if self.packing is not None:
            scale, offset = self.packing
            values = (stored.astype(self.dtype, copy=False) * scale + offset).astype(self.dtype, copy=False)
        fills = [array.attrs[name] for name in ("_FillValue", "missing_value") if name in array.attrs]
        if fills and values.dtype.kind == "f":
            values = np.where(np.isin(stored, np.concatenate([np.atleast_1d(fill) for fill in fills])), np.nan, values)
        return values

    def _open(self) -> Any:
        array = require("h5py", "HDF5 files").File(self.path, "r")[self.key]
        return array if self.packing is not None else _unpacked(array)


def _unpacked(array: Any) -> Any:
    """An array of an HDF5 file or of a zarr store, itself.

    Raises:
        UnsupportedError: If its numbers are packed, as NetCDF does it, or zarr's that declare a fill value: they are not the
            values.
    """
    packed = [name for name in ("scale_factor", "add_offset") if name in array.attrs]
    if not type(array).__module__.startswith("h5py"):  # readers of HDF5 replace fill values
        numbers = {name: array.attrs.get(name) for name in ("_FillValue", "missing_value")}
        packed += [name for name, number in numbers.items() if isinstance(number, int | float) and np.isfinite(number)]
    if packed:
        raise UnsupportedError(
            expected=f"numbers as they are in {array.name}",
            got=f"packed ones, with {' and '.join(packed)}",
            remedy="open the file, which unpacks them: pn.data.open(path, inputs=[...], outputs=[...])",
        )
    return array


def require(module: str, what: str) -> Any:
    """Import a library of the extra `data`.

    Raises:
        UnsupportedError: If it is not installed.
    """
    return optional(module, f"the reader of {what}", extra="data")


def _read_at(file: FileIO, view: memoryview, offset: int) -> int:
    """Fill a view from an offset of a file, as far as one call reads; safe for threads."""
    if hasattr(os, "preadv"):
        return os.preadv(file.fileno(), [view], offset)
    with FileIO(file.name) as stream:
        stream.seek(offset)
        return stream.readinto(view) or 0


def reader_of(array: Any, name: str) -> ArrayReader:
    """How an array is read without being copied whole; a memory map by positions in its file.

    Raises:
        DataError: If it is not an array.
    """
    if isinstance(array, Tensor):
        array = array.detach().cpu().numpy()
    if not all(hasattr(array, attribute) for attribute in ("shape", "dtype", "__getitem__")) or isinstance(array, type):
        raise DataError(expected=f"an array as {name}", got=described(array), remedy="convert it with np.asarray")
    if type(array).__module__.startswith("h5py"):
        return HDF5Reader(Path(array.file.filename), array.name, array.shape, array.dtype, array.chunks or (1,) * array.ndim)
    if isinstance(array, np.memmap) and array.flags.c_contiguous and array.mode != "c":  # "c" keeps its changes to itself
        root: Any = array
        while isinstance(root.base, np.memmap):
            root = root.base
        if isinstance(root.base, mmap.mmap) and array.filename is not None:
            moved = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
            return RawReader(Path(array.filename), array.shape, array.dtype, int(root.offset) + moved)
    return SlicedReader(_unpacked(array) if type(array).__module__.startswith("zarr") else array)


def location_of(reader: ArrayReader) -> str | None:
    """Files, their times of modification, and name of an array, without reading it; None for an array in memory."""
    inner = [reader.inner] if hasattr(reader, "inner") else getattr(reader, "parts", [])
    if inner:  # another order of axes, or several files
        locations = [location_of(reader) for reader in inner]
        return None if None in locations else repr(locations)
    source: Any = getattr(reader, "array", reader)
    path = getattr(source, "path", None) or getattr(getattr(source, "file", None), "path", None)
    name = getattr(source, "key", None) or getattr(source, "name", None) or getattr(source, "offset", None)
    if path is None or source is not reader:  # arrays of h5py and zarr
        path = getattr(getattr(source, "file", None), "filename", None) or getattr(source, "store_path", None)
    return None if path is None else f"{_version_of(os.path.realpath(str(path).removeprefix('file://')))}: {name}"


def _version_of(path: str) -> str:
    """A path with the time of modification and size of its file, or of a zarr array's metadata: new contents, another text."""
    for file in (path, *(os.path.join(path, name) for name in ("zarr.json", ".zarray", ".zmetadata"))):
        if os.path.isfile(file):
            status = os.stat(file)
            return f"{path} {status.st_mtime_ns} {status.st_size}"
    return path


def gather(reader: ArrayReader, places: NDArray[np.int64], *, chunks: Sequence[int] | None = None) -> NDArray[Any]:
    """Read entries of the first axes of an array, in the order asked, each once, and those of a chunk or a run at once.

    Args:
        reader: The array.
        places: Indices along the first k axes, `(m, k)`, not negative.
        chunks: Lengths of a box that is read at once, per axis; by default those of the reader.

    Returns:
        `(m, *rest)`, where the rest are the lengths of the other axes.
    """
    count, depth = places.shape
    if not count:
        return np.empty((0, *reader.shape[depth:]), reader.dtype)
    if not depth:
        block = reader.read(())
        return np.broadcast_to(block, (count, *block.shape))
    sizes = np.asarray((reader.chunks if chunks is None else chunks)[:depth])
    keys = places // sizes
    order = np.lexsort((*places.T[::-1], *keys.T[::-1]))
    ordered, keys = places[order], keys[order]
    is_new = np.concatenate([[True], (np.diff(ordered, axis=0) != 0).any(1)])
    inverse = np.empty(count, np.int64)
    inverse[order] = np.cumsum(is_new) - 1
    ordered, keys = ordered[is_new], keys[is_new]
    steps = np.diff(ordered, axis=0)
    is_run = (steps[:, :-1] == 0).all(1) & (steps[:, -1] == 1) & (depth == 1 or sizes[0] == 1)
    cuts = np.flatnonzero((np.diff(keys, axis=0) != 0).any(1) & ~is_run) + 1
    if depth == 1 and len(cuts) and isinstance(reader, RowReader):
        values = reader.read_rows(ordered[:, 0])
    else:
        blocks = [_box(reader, group) for group in np.split(ordered, cuts)]
        values = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    return values if np.array_equal(inverse, np.arange(len(values))) else values[inverse]


def _box(reader: ArrayReader, places: NDArray[np.int64]) -> NDArray[Any]:
    """Read sorted, distinct places as the box around them."""
    low, high = places.min(0), places.max(0) + 1
    volume, depth = int(np.prod(high - low)), places.shape[1]
    entry = math.prod(reader.shape[depth:]) * reader.dtype.itemsize
    if (volume - len(places)) * entry > _LARGEST_BOX:
        return gather(reader, places, chunks=(1,) * depth)
    block = reader.read(tuple(slice(int(first), int(last)) for first, last in zip(low, high, strict=True)))
    if volume == len(places):
        return block.reshape(volume, *block.shape[depth:])
    return np.asarray(block[tuple((places - low).T)])
