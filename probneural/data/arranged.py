"""Views of array readers: axes in another order, turned round or dropped; and several readers one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probneural.data.readers import ArrayReader, HDF5Reader, RowReader, gather, reader_of
from probneural.errors import ShapeError


@dataclass(frozen=True)
class ArrangedReader:
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

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of its axes."""
        return tuple(self.inner.shape[axis] for axis in self.order)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its numbers."""
        return self.inner.dtype

    @property
    def chunks(self) -> tuple[int, ...]:
        """Least lengths of a box that is read at once, per axis."""
        return tuple(self.inner.chunks[axis] for axis in self.order)

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

    def _arranged(self, values: NDArray[Any]) -> NDArray[Any]:
        turned = np.flip(values, self.descending) if self.descending else values
        turned = np.roll(turned, [-start for start in self.starts], range(values.ndim)) if self.starts else turned
        dropped = tuple(axis for axis in range(values.ndim) if axis not in self.order)
        return turned.transpose(*self.order, *dropped).reshape([turned.shape[axis] for axis in self.order])


@dataclass(frozen=True)
class ArrangedRowReader(ArrangedReader):
    """The same where the first axis stays first, so that the library that reads the array reads scattered rows."""

    def read_rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read ascending rows of the first axis."""
        assert isinstance(self.inner, RowReader)
        return self._arranged(self.inner.read_rows(rows))


def arranged(
    inner: ArrayReader, order: Sequence[int], *, descending: Sequence[int] = (), starts: Sequence[int] = ()
) -> ArrayReader:
    """An array with its axes in an order, as `ArrangedReader` has them; itself if nothing changes."""
    if tuple(order) == tuple(range(len(inner.shape))) and not descending and not any(starts):
        return inner
    reads_rows = isinstance(inner, RowReader) and len(order) > 0 and order[0] == 0 and 0 not in descending
    kind = ArrangedRowReader if reads_rows else ArrangedReader
    return kind(inner, tuple(order), tuple(descending), tuple(starts) if any(starts) else ())


def array_reader(array: Any, name: str) -> ArrayReader:
    """The reader of an array, with the axes of MATLAB's HDF5 arrays in MATLAB's order.

    Raises:
        DataError: If it is not an array.
    """
    reader = reader_of(array, name)
    is_matlab = isinstance(reader, HDF5Reader) and "MATLAB_class" in array.attrs
    return arranged(reader, range(len(reader.shape))[::-1]) if is_matlab else reader


@dataclass(frozen=True)
class SingleReader:
    """An array with an axis of length 1 before its axes.

    Args:
        inner: The array.
    """

    inner: ArrayReader

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of its axes."""
        return (1, *self.inner.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its numbers."""
        return self.inner.dtype

    @property
    def chunks(self) -> tuple[int, ...]:
        """Least lengths of a box that is read at once, per axis."""
        return (1, *self.inner.chunks)

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box."""
        values = self.inner.read(box[1:])[None]
        return values[box[0]] if box else values


@dataclass(frozen=True)
class JoinedReader:
    """Arrays one after the other along an axis, as one array.

    Args:
        parts: The arrays, whose other axes have equal lengths.
        axis: The axis.
    """

    parts: tuple[ArrayReader, ...]
    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of its axes."""
        lengths = list(self.parts[0].shape)
        lengths[self.axis] = sum(part.shape[self.axis] for part in self.parts)
        return tuple(lengths)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type that holds the numbers of all."""
        return np.result_type(*(part.dtype for part in self.parts))

    @property
    def chunks(self) -> tuple[int, ...]:
        """Those of the first part; along the joined axis single entries, whose neighbours are read at once."""
        lengths = list(self.parts[0].chunks)
        lengths[self.axis] = 1
        return tuple(lengths)

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
    """Arrays one after the other along an axis.

    Raises:
        ShapeError: If the lengths of their other axes differ.
    """
    other_lengths = {tuple(length for number, length in enumerate(part.shape) if number != axis) for part in parts}
    if len(other_lengths) > 1:
        raise ShapeError(
            expected=f"{name} with the same axes in each file",
            got=", ".join(str(part.shape) for part in parts),
            remedy="open files of one grid together, and the others apart",
        )
    return parts[0] if len(parts) == 1 else JoinedReader(tuple(parts), axis)
