"""Files of arrays whose axes have no names: .npy, .npz, MATLAB up to version 7, PyTorch tensors, CSV."""

from __future__ import annotations

import csv
import math
import os
import struct
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probneural.checks import check_regular
from probneural.data.arranged import arranged
from probneural.data.gate import check_unpacked
from probneural.data.readers import ArrayReader, RawReader, SlicedReader
from probneural.errors import FileError

TABLE = "values"
"""Name of all columns of a CSV file together, and of a file that holds one array."""


_MATLAB_NUMBERS = ("double", "single", "logical", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
"""Classes of MATLAB's arrays that are read."""
_MATRIX, _COMPLEX, _NUMERIC = 14, 0x800, range(6, 16)
"""Type of an element that is a variable, its flag of complex numbers, and classes of numbers."""
_ELEMENTS = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 12, 13})
"""Types of elements that hold numbers."""


def matlab_readers(path: Path) -> dict[str, ArrayReader]:
    """The numeric arrays of a MATLAB file of version 5 to 7.

    Raises:
        FileError: If it cannot be read.
    """
    from scipy.io import loadmat, whosmat

    try:
        _check_elements(path)
        variables = [(name, shape) for name, shape, kind in whosmat(path) if kind in _MATLAB_NUMBERS]
        size = 8 * sum(math.prod(shape) for _, shape in variables)
        check_unpacked(size, _bytes_on_disk(path), f"the variables of {path}")
        names = [name for name, _ in variables]
        arrays = loadmat(path, mat_dtype=False, struct_as_record=True, variable_names=names) if names else {}
    except FileError:
        raise
    except Exception as error:  # SciPy raises arbitrary errors for damaged files
        raise FileError(
            expected=f"a MATLAB file at {path}", got=str(error), remedy="save it again: save('file.mat', 'a', 'u', '-v7.3')"
        ) from error
    kinds = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray) and array.dtype.kind in "biufc"}
    return {name: SlicedReader(array) for name, array in kinds.items()}


def _check_elements(path: Path) -> None:
    """Raise a ValueError for parts of an uncompressed variable that SciPy would look up beyond the end of its table of types.

    A variable is an element of type 14: flags (with class and complexity), dimensions, name, real and imaginary parts.
    """
    with path.open("rb") as file:
        order = "<" if file.read(128)[126:] == b"IM" else ">"
        while len(head := file.read(8)) == 8:
            kind, size = struct.unpack(f"{order}II", head)
            stop = file.tell() + size
            flags, parts = 0, 4
            for part in range(5) if kind == _MATRIX else ():
                if part >= parts:
                    break
                word, count = struct.unpack(f"{order}II", file.read(8))
                if part == 0:
                    flags = struct.unpack(f"{order}I", file.read(4))[0]
                    parts += bool(flags & _COMPLEX)
                    file.seek(-4, os.SEEK_CUR)
                if (flags & 0xFF) not in _NUMERIC:
                    break
                if (word & 0xFFFF) not in _ELEMENTS or file.tell() > stop:
                    raise ValueError(f"an element of type {word & 0xFFFF}")
                file.seek(0 if word >> 16 else -(-count // 8) * 8, os.SEEK_CUR)  # small elements hold their values in the tag
            file.seek(stop)


def _bytes_on_disk(path: Path) -> int:
    """Bytes that a file takes, holes left out."""
    state = path.stat()
    return min(state.st_size, 512 * getattr(state, "st_blocks", state.st_size))


def is_torch(path: Path) -> bool:
    """Whether a zip archive is a file of `torch.save`."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") or name == "data.pkl" for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def torch_readers(path: Path) -> dict[str, ArrayReader]:
    """The tensors of a file of `torch.save`: a tensor, or a dictionary or sequence of them; nothing else of it is built.

    Raises:
        FileError: If it holds anything but tensors.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        check_unpacked(size, _bytes_on_disk(path), f"the tensors of {path}")
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileError:
        raise
    except Exception as error:
        raise FileError(
            expected=f"tensors alone in {path}",
            got=str(error).partition("\n")[0],
            remedy='save tensors: torch.save({"a": a, "u": u}, path)',
        ) from error
    if isinstance(content, Tensor):
        content = {TABLE: content}
    elif isinstance(content, list | tuple):
        content = dict(enumerate(content))
    tensors = (
        {str(name): value for name, value in content.items() if isinstance(value, Tensor)} if isinstance(content, dict) else {}
    )
    if not tensors:
        raise FileError(
            expected=f"a tensor, or a dictionary or list of tensors, in {path}",
            got=type(content).__name__,
            remedy='save tensors: torch.save({"a": a, "u": u}, path)',
        )
    return {name: SlicedReader(_numbers(value, f"{name!r} in {path}")) for name, value in tensors.items()}


def _numbers(tensor: Tensor, name: str) -> NDArray[Any]:
    """A tensor as an array; NumPy has no bfloat16.

    Raises:
        FileError: If NumPy has no such numbers.
    """
    try:
        check_unpacked(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes(), name)
        return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().resolve_conj().numpy())
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise FileError(
            expected=f"a dense tensor of numbers as {name}",
            got=f"{tensor.dtype}, {tensor.layout}",
            remedy="save it dense, as float32: tensor.to_dense().float()",
        ) from error


def is_csv(path: Path) -> bool:
    """Whether the suffix is that of a table in text; the contents do not show it."""
    return path.suffix.lower() in (".csv", ".tsv")


def csv_readers(path: Path) -> dict[str, ArrayReader]:
    """A table of numbers, one sample per row: all columns together as "values", and each by its name if there is a header.

    Raises:
        FileError: If it is no table of numbers, or a column of a header has no name, or that of another column.
    """
    check_unpacked(path.stat().st_size, _bytes_on_disk(path), f"the table {path}")
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        while lines and lines[0].lstrip().startswith("#"):
            lines.pop(0)
        separator = next((character for character in (",", ";", "\t") if character in lines[0]), None)
        cells = lines[0].split() if separator is None else next(csv.reader([lines[0]], delimiter=separator))
        cells = [cell.strip().strip('"') for cell in cells]
        header = [] if all(map(_is_number, cells)) else cells
        if "" in header or (len(cells) > 1 and cells == [str(number) for number in range(len(cells))]):
            raise ValueError(f"a first row {lines[0]!r:.80}, which may be numbers of columns or rows: name the columns")
        table = np.loadtxt(lines[bool(header) :], delimiter=separator, ndmin=2, comments=None)
        if header and table.shape[1] != len(header):
            raise ValueError(f"{len(header)} names of {table.shape[1]} columns")
    except (OSError, ValueError, IndexError, csv.Error) as error:
        raise FileError(
            expected=f"a table of numbers in {path}, one sample per row, separated by commas, semicolons, tabs or spaces",
            got=str(error),
            remedy="write it with numpy.savetxt(path, table, delimiter=','), or table.to_csv(path, index=False) of pandas",
        ) from error
    names = header if header == [TABLE] else [TABLE, *header]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise FileError(
            expected=f"a name of its own for each column of {path}, and none {TABLE!r}, which means all columns",
            got=f"{', '.join(map(repr, twice))} twice",
            remedy="rename the columns in the header",
        )
    columns: dict[str, ArrayReader] = {name: SlicedReader(table[:, number]) for number, name in enumerate(header)}
    return columns if header == [TABLE] else {TABLE: SlicedReader(table), **columns}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def npy_reader(path: Path) -> ArrayReader:
    """The array of a .npy file, read by position.

    Raises:
        FileError: If it is none.
    """
    check_regular(path, "an array of numbers")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, SyntaxError, RecursionError, MemoryError, TypeError, OverflowError) as error:
        raise FileError(expected=f"an array of numbers in {path}", got=str(error), remedy="write it with np.save") from error
    if array.flags.c_contiguous:
        return RawReader(path, array.shape, array.dtype, int(array.offset))
    reader = RawReader(path, array.shape[::-1], array.dtype, int(array.offset))
    return arranged(reader, range(array.ndim)[::-1])


def npz_readers(path: Path) -> dict[str, ArrayReader]:
    """The arrays of an .npz archive; each is unpacked into memory at the first read.

    Raises:
        FileError: If it is none.
    """
    arrays: dict[str, ArrayReader] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.filename.endswith(".npy"):
                    raise ValueError(f"a zip archive that holds {entry.filename}")
                name = entry.filename.removesuffix(".npy")
                if name in arrays:
                    raise ValueError(f"two entries {entry.filename}")
                check_unpacked(entry.file_size, entry.compress_size, f"the array {name} in {path}")
                with archive.open(entry) as member:
                    arrays[name] = _archived(path, entry, member)
    except FileError:
        raise
    except Exception as error:  # headers are parsed as Python, and compressed streams raise their errors
        raise FileError(
            expected=f"an archive of arrays in {path}", got=str(error), remedy="write it with np.savez(path, a=..., u=...)"
        ) from error
    return arrays


def _archived(path: Path, entry: zipfile.ZipInfo, member: Any) -> ArrayReader:
    """An array in an archive, by its header."""
    version = np.lib.format.read_magic(member)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(member)
    if dtype.hasobject:
        raise ValueError(f"{entry.filename} of Python objects, which are not read")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or member.tell() + size != entry.file_size:
        raise ValueError(f"{entry.filename} of {entry.file_size} bytes, not {member.tell() + size}")
    return PackedEntryReader(path, entry.filename, shape, dtype)


@dataclass
class PackedEntryReader:
    """An array in an archive, unpacked into memory at the first read; every process does it for itself.

    Args:
        path: The archive.
        key: Name of the entry.
        shape: Lengths of the array's axes.
        dtype: Of its numbers.
    """

    path: Path
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    _array: NDArray[Any] | None = field(default=None, repr=False, compare=False)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Single entries."""
        return (1,) * len(self.shape)

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box."""
        return self._unpacked()[box]

    def read_rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read ascending rows of the first axis."""
        return self._unpacked()[rows]

    def _unpacked(self) -> NDArray[Any]:
        if self._array is None:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.key) as member:
                array = np.lib.format.read_array(member, allow_pickle=False)
                if member.read(1):  # which compares the check sum
                    raise ValueError(f"{self.key} is longer than its array")
            self._array = array
        return self._array

    def __getstate__(self) -> dict[str, Any]:
        """All but the unpacked array."""
        return self.__dict__ | {"_array": None}
