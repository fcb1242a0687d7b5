"""Arrays that are read in boxes: in memory or in files, with axes in another order, or one after the other."""

from __future__ import annotations

import math
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probneural.checks import described, optional
from probneural.errors import DataError, ShapeError, UnsupportedError

_LARGEST_BOX = 2**25
"""Largest bytes of a chunk outside the requested box (32 MiB); of a larger chunk, runs of neighbours are read."""
_DECODED = ("_FillValue", "missing_value", "scale_factor", "add_offset")
"""Attributes by which stored numbers differ from values."""


@dataclass(eq=False, kw_only=True)
class ArrayReader(ABC):
    """An array on disk or in memory, of which boxes are read; it can be pickled, and opens its file once per process.

    Args:
        shape: Lengths of the axes.
        dtype: Dtype of the numbers that are read.
        chunks: Smallest box that can be read, per axis; 1 for single entries.
        reads_rows: Whether `read_rows` reads scattered rows faster than one `read` after the other.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    reads_rows: bool = False

    @abstractmethod
    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box: slices of the first axes, all of the others."""

    def read_rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read ascending rows of the first axis."""
        return np.concatenate([self.read((slice(int(row), int(row) + 1),)) for row in rows])


class SlicedReader(ArrayReader):
    """An array that can be sliced: of NumPy, or of a library that follows it.

    Args:
        array: The array.
    """

    def __init__(self, array: Any) -> None:
        shape, chunks = tuple(array.shape), getattr(array, "chunks", None) or ()
        is_regular = len(chunks) == len(shape) and all(isinstance(length, int) for length in chunks)
        single = (1,) * len(shape)
        super().__init__(
            shape=shape, dtype=np.dtype(array.dtype), chunks=tuple(chunks) if is_regular else single, reads_rows=True
        )
        self.array = array

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box."""
        return _unmasked(self.array[box])

    def read_rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read ascending rows of the first axis: zarr reads many chunks at once, and NumPy copies once."""
        if hasattr(self.array, "oindex"):
            return _unmasked(self.array.oindex[rows])
        return _unmasked(self.array[rows]) if isinstance(self.array, np.ndarray) else super().read_rows(rows)


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


@dataclass(eq=False, kw_only=True)
class RawReader(ArrayReader):
    """An array in C order in the bytes of a file.

    Args:
        path: The file.
        offset: Offset of the array, in bytes.
    """

    path: Path
    offset: int

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box: a run of neighbours by position, others as rows are read."""
        lengths, tail = tuple(part.stop - part.start for part in box), self.shape[len(box) :]
        if any(length != 1 for length in lengths[:-1]):
            return np.array(self._map[box])
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(box))]
        first = sum(part.start * stride for part, stride in zip(box, strides, strict=True))
        count, offset = math.prod((*lengths, *tail)), self.offset + first * self.dtype.itemsize
        return np.fromfile(self.path, self.dtype, count, offset=offset).reshape(*lengths, *tail)

    def read_rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read ascending rows of the first axis."""
        return np.array(self._map[rows])

    @property
    def _map(self) -> NDArray[Any]:
        """A memory map for one read: pages of a map that stays open would count as memory in use."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)


def raw_reader(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> RawReader:
    """The reader of an array in C order in the bytes of a file."""
    return RawReader(path=path, offset=offset, shape=shape, dtype=dtype, chunks=(1,) * len(shape), reads_rows=True)


@dataclass(eq=False, kw_only=True)
class ReopenedReader(ArrayReader):
    """A reader that opens its file once per process, because open files are not valid after a fork."""

    _opened: tuple[int, Any] | None = field(default=None, init=False, repr=False)

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


@dataclass(eq=False, kw_only=True)
class HDF5Reader(ReopenedReader):
    """An array of an HDF5 file.

    Args:
        path: The file.
        key: The array's name in it.
        packing: Factor and offset of packed numbers.
    """

    path: Path
    key: str
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
        return require("h5py", "HDF5 files").File(self.path, "r")[self.key]


def hdf5_reader(array: Any) -> HDF5Reader:
    """The reader of a dataset of an open HDF5 file, which is opened again to be read; packed numbers are decoded."""
    dtype, packing = array.dtype, None
    if dtype.kind in "biuf" and any(name in array.attrs for name in _DECODED):
        defaults = (("scale_factor", 1), ("add_offset", 0))
        scale, offset = (float(np.ravel(array.attrs.get(name, default))[0]) for name, default in defaults)
        dtype, packing = np.result_type(dtype, np.float32), (scale, offset)
    path, key, chunks = Path(array.file.filename), array.name.removeprefix("/"), array.chunks or (1,) * array.ndim
    return HDF5Reader(path=path, key=key, shape=array.shape, dtype=dtype, chunks=chunks, packing=packing)


def _check_unpacked(array: Any) -> None:
    """Raise an UnsupportedError if the numbers of a zarr array are packed, or it declares a fill value."""
    packed = [name for name in ("scale_factor", "add_offset") if name in array.attrs]
    numbers = {name: array.attrs.get(name) for name in ("_FillValue", "missing_value")}
    packed += [name for name, number in numbers.items() if isinstance(number, int | float) and np.isfinite(number)]
    if packed:
        raise UnsupportedError(
            expected=f"numbers as they are in {array.name}",
            got=f"packed ones, with {' and '.join(packed)}",
            remedy="open the file, which unpacks them: pn.data.open(path, inputs=[...], outputs=[...])",
        )


def require(module: str, what: str) -> Any:
    """Import a library of the extra `data`.

    Raises:
        MissingPackageError: If it is not installed.
    """
    return optional(module, f"the reader of {what}", extra="data")


def reader_of(array: Any, name: str) -> ArrayReader:
    """The reader of an array of any kind, which is never copied whole; a memory map is read from its file.

    Raises:
        DataError: If it is not an array.
    """
    if isinstance(array, Tensor):
        array = array.detach().cpu().numpy()
    if not all(hasattr(array, attribute) for attribute in ("shape", "dtype", "__getitem__")) or isinstance(array, type):
        raise DataError(expected=f"an array as {name}", got=described(array), remedy="convert it with np.asarray")
    if type(array).__module__.startswith("h5py"):
        reader = hdf5_reader(array)  # arrays of MATLAB have their axes in the opposite order
        return arranged(reader, range(array.ndim)[::-1]) if "MATLAB_class" in array.attrs else reader
    if isinstance(array, np.memmap) and array.flags.c_contiguous and array.mode != "c":  # "c" keeps its changes to itself
        root: Any = array
        while isinstance(root.base, np.memmap):
            root = root.base
        if isinstance(root.base, mmap.mmap) and array.filename is not None:
            moved = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
            return raw_reader(Path(array.filename), array.shape, array.dtype, int(root.offset) + moved)
    if type(array).__module__.startswith("zarr"):
        _check_unpacked(array)
    return SlicedReader(array)


@dataclass(eq=False, kw_only=True)
class ArrangedReader(ArrayReader):
    """An array with its axes in another order; axes that are left out have length 1.

    Args:
        inner: The stored array.
        order: Axes of the stored array, in the order of the view.
        descending: Axes of the stored array that are read from the last entry to the first.
        starts: Per axis of the stored array, the entry that comes first, the ones before it following the last: longitudes
            from -180 are read from 0 on. Counted after the turn of descending axes; empty for none.
    """

    inner: ArrayReader
    order: tuple[int, ...]
    descending: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box."""
        stored = [slice(0, length) for length in self.inner.shape]
        cuts = [slice(None)] * len(self.order)
        for number, (axis, part) in enumerate(zip(self.order, box, strict=False)):
            length = self.inner.shape[axis]
            if self.starts and self.starts[axis]:  # read whole: the box may go round
                cuts[number] = part
            else:
                stored[axis] = slice(length - part.stop, length - part.start) if axis in self.descending else part
        return self._arranged(self.inner.read(tuple(stored)))[tuple(cuts)]

    def read_rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read ascending rows of the first axis, which stays first."""
        return self._arranged(self.inner.read_rows(rows))

    def _arranged(self, values: NDArray[Any]) -> NDArray[Any]:
        turned = np.flip(values, self.descending) if self.descending else values
        turned = np.roll(turned, [-start for start in self.starts], range(values.ndim)) if self.starts else turned
        dropped = tuple(axis for axis in range(values.ndim) if axis not in self.order)
        return turned.transpose(*self.order, *dropped).reshape([turned.shape[axis] for axis in self.order])


def arranged(
    inner: ArrayReader, order: Sequence[int], *, descending: Sequence[int] = (), starts: Sequence[int] = ()
) -> ArrayReader:
    """An array with its axes in an order, as `ArrangedReader` has them; itself if nothing changes."""
    if tuple(order) == tuple(range(len(inner.shape))) and not descending and not any(starts):
        return inner
    return ArrangedReader(
        inner=inner,
        order=tuple(order),
        descending=tuple(descending),
        starts=tuple(starts) if any(starts) else (),
        shape=tuple(inner.shape[axis] for axis in order),
        dtype=inner.dtype,
        chunks=tuple(inner.chunks[axis] for axis in order),
        reads_rows=inner.reads_rows and len(order) > 0 and order[0] == 0 and 0 not in descending,
    )


@dataclass(eq=False, kw_only=True)
class SingleReader(ArrayReader):
    """An array with an axis of length 1 before its axes.

    Args:
        inner: The array.
    """

    inner: ArrayReader

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box."""
        values = self.inner.read(box[1:])[None]
        return values[box[0]] if box else values


def stacked(parts: Sequence[ArrayReader], name: str) -> ArrayReader:
    """Arrays of equal shape along a new first axis.

    Raises:
        ShapeError: If their shapes differ.
    """
    rows = [SingleReader(inner=part, shape=(1, *part.shape), dtype=part.dtype, chunks=(1, *part.chunks)) for part in parts]
    return joined(rows, 0, name)


@dataclass(eq=False, kw_only=True)
class JoinedReader(ArrayReader):
    """Arrays one after the other along an axis, as one array.

    Args:
        parts: The arrays, whose other axes have equal lengths.
        axis: The axis.
    """

    parts: tuple[ArrayReader, ...]
    axis: int

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box."""
        whole = (*box, *(slice(0, length) for length in self.shape[len(box) :]))
        asked, first, pieces = whole[self.axis], 0, []
        for part in self.parts:
            length = part.shape[self.axis]
            start, stop = max(asked.start - first, 0), min(asked.stop - first, length)
            if start < stop:
                pieces.append(part.read((*whole[: self.axis], slice(start, stop), *whole[self.axis + 1 :])))
            first += length
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=self.axis)

    def read_rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read ascending rows of the first axis."""
        if self.axis:
            return np.concatenate([gather(part, rows[:, None]) for part in self.parts], axis=self.axis)
        ends = np.cumsum([part.shape[0] for part in self.parts])
        starts = np.searchsorted(rows, [0, *ends])
        firsts = [0, *ends[:-1]]
        pieces = [
            gather(part, rows[start:stop, None] - first)
            for part, first, start, stop in zip(self.parts, firsts, starts[:-1], starts[1:], strict=True)
            if start < stop
        ]
        return np.concatenate(pieces)


def joined(parts: Sequence[ArrayReader], axis: int, name: str) -> ArrayReader:
    """Arrays one after the other along an axis, of which single entries are read.

    Raises:
        ShapeError: If the lengths of their other axes differ.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    if len({(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}) > 1:
        expected, got = f"{name} with the same axes in each file or group", ", ".join(str(part.shape) for part in parts)
        raise ShapeError(expected=expected, got=got, remedy="open files of one grid together, and the others apart")
    length = sum(part.shape[axis] for part in parts)
    return JoinedReader(
        parts=tuple(parts),
        axis=axis,
        shape=(*first.shape[:axis], length, *first.shape[axis + 1 :]),
        dtype=np.result_type(*(part.dtype for part in parts)),
        chunks=(*first.chunks[:axis], 1, *first.chunks[axis + 1 :]),
        reads_rows=True,
    )


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
    if depth == 1 and len(cuts) and reader.reads_rows:
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
