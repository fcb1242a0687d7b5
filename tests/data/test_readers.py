"""How arrays are read: the right entries, each once, neighbours and chunks at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probneural.data import readers
from probneural.data.array_files import npy_reader
from probneural.data.readers import ArrayReader, RawReader, SlicedReader, gather, reader_of
from probneural.errors import DataError, FileError
from tests.data.files import numbers

ARRAY = numbers(12, 9, 2, 3)


class Counted(ArrayReader):
    """An array in chunks that keeps which boxes were read."""

    def __init__(self, array: np.ndarray, chunks: tuple[int, ...]) -> None:
        super().__init__(shape=array.shape, dtype=array.dtype, chunks=chunks)
        self.array, self.boxes = array, list[tuple[tuple[int, int], ...]]()

    def read(self, box: tuple[slice, ...]) -> np.ndarray:
        self.boxes.append(tuple((part.start, part.stop) for part in box))
        return self.array[box]


@given(st.data(), st.tuples(st.integers(1, 5), st.integers(1, 5)), st.integers(1, 2))
def test_it_is_indexing(drawn: st.DataObject, chunks: tuple[int, int], depth: int) -> None:
    places = drawn.draw(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 8)), max_size=20))
    chosen = np.array(places, np.int64).reshape(-1, 2)[:, :depth]
    reader = Counted(ARRAY, (*chunks, 1, 3))
    assert np.array_equal(gather(reader, chosen), ARRAY[tuple(chosen.T)])
    asked = {tuple(place[:depth]) for place in places}
    touched = {tuple(entry // size for entry, size in zip(place, chunks, strict=False)) for place in asked}
    assert len(reader.boxes) <= len(touched)  # a chunk is read once


def test_neighbours_are_read_at_once() -> None:
    reader = Counted(ARRAY, (1, 1, 1, 1))
    gather(reader, np.array([[7], [3], [4], [5], [4], [8]]))
    assert reader.boxes == [((3, 6),), ((7, 9),)]
    reader = Counted(ARRAY, (1, 1, 1, 1))
    gather(reader, np.array([[2, 4], [2, 5], [3, 6], [2, 3]]))
    assert reader.boxes == [((2, 3), (3, 6)), ((3, 4), (6, 7))]


def test_a_chunk_is_read_at_once_unless_little_of_a_large_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Counted(ARRAY, (6, 9, 2, 3))
    rows = np.array([[0], [5], [11]])
    gather(reader, rows)
    assert reader.boxes == [((0, 6),), ((11, 12),)]
    reader = Counted(ARRAY, (6, 9, 2, 3))
    monkeypatch.setattr(readers, "_LARGEST_BOX", 4 * 9 * 6 * 4 - 1)
    assert np.array_equal(gather(reader, rows), ARRAY[[0, 5, 11]])
    assert reader.boxes == [((0, 1),), ((5, 6),), ((11, 12),)]


@given(st.data())
def test_boxes_of_a_file_are_those_of_the_array(drawn: st.DataObject) -> None:
    path = Path(drawn.draw(st.just(_written())))
    depth = drawn.draw(st.integers(0, 4))
    box = []
    for size in ARRAY.shape[:depth]:
        start = drawn.draw(st.integers(0, size - 1))
        box.append(slice(start, drawn.draw(st.integers(start + 1, size))))
    assert np.array_equal(npy_reader(path).read(tuple(box)), ARRAY[tuple(box)])


_FILES: list[Path] = []


def _written() -> Path:
    return _FILES[0]


@pytest.fixture(autouse=True, scope="module")
def _file(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("readers") / "array.npy"
    np.save(path, ARRAY)
    _FILES[:] = [path]


def test_memory_maps_are_read_by_position() -> None:
    """Those that are one block of the file; others, and those with changes of their own, by slices."""
    mapped = np.load(_written(), mmap_mode="r")
    for view, expected in ((mapped, ARRAY), (mapped[3:7], ARRAY[3:7]), (mapped[2][4:], ARRAY[2][4:])):
        reader = reader_of(view, "values")
        assert isinstance(reader, RawReader)
        assert np.array_equal(reader.read((slice(0, 2),)), expected[:2])
    assert isinstance(reader_of(mapped[::2], "values"), SlicedReader)
    private = np.load(_written(), mmap_mode="c")
    private[0] = 7.0
    assert reader_of(private, "values").read((slice(0, 1),)).max() == 7.0
    assert isinstance(reader_of(np.array(mapped), "values"), SlicedReader)


def test_refuses_files_that_end_early(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    np.save(path, ARRAY)
    reader = npy_reader(path)
    path.write_bytes(path.read_bytes()[:-10])
    assert np.array_equal(reader.read((slice(0, 2),)), ARRAY[:2])
    with pytest.raises(ValueError, match="cannot reshape"):
        reader.read((slice(0, 12),))
    with pytest.raises(ValueError, match="greater than file size"):
        reader.read_rows(np.array([2, 11]))
    np.save(path, np.asfortranarray(ARRAY))
    assert np.array_equal(npy_reader(path).read((slice(0, 3),)), ARRAY[:3])
    np.save(path, np.array([{}]), allow_pickle=True)
    with pytest.raises(FileError, match="array of numbers"):
        npy_reader(path)


def test_whatever_can_be_sliced_is_read() -> None:
    """And nothing but slices is asked of it."""

    class Sliced:
        shape, dtype = ARRAY.shape, ARRAY.dtype

        def __getitem__(self, box: tuple[slice, ...]) -> np.ndarray:
            assert all(isinstance(part, slice) for part in box)
            return ARRAY[box]

    reader = reader_of(Sliced(), "values")
    assert np.array_equal(gather(reader, np.array([[7], [2], [3], [7]])), ARRAY[[7, 2, 3, 7]])
    assert np.array_equal(gather(reader, np.array([[7, 1], [2, 8]])), ARRAY[[7, 2], [1, 8]])


def test_a_masked_value_is_not_read_as_the_number_below_its_mask() -> None:
    values = np.ma.masked_array(numbers(4, 3))
    reader = reader_of(values, "values")
    assert np.array_equal(reader.read((slice(0, 2), slice(0, 3))), values.data[:2])
    values[1, 2] = np.ma.masked
    assert np.array_equal(reader.read((slice(2, 4), slice(0, 3))), values.data[2:])
    with pytest.raises(DataError, match="masked"):
        reader.read((slice(0, 2), slice(0, 3)))
