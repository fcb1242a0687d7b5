"""Files of arrays whose axes have no names: .npy, .npz, MATLAB up to version 7, PyTorch tensors, CSV."""

from __future__ import annotations

import csv
import math
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probneural.checks import check_regular
from probneural.data.gate import check_unpacked, guarded
from probneural.data.readers import ArrayReader, SlicedReader, arranged, raw_reader

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

    with guarded(path, expected=f"a MATLAB file at {path}", remedy="save it again: save('file.mat', 'a', 'u', '-v7.3')"):
        _check_elements(path)
        variables = [(name, shape) for name, shape, kind in whosmat(path) if kind in _MATLAB_NUMBERS]
        size = 8 * sum(math.prod(shape) for _, shape in variables)
        check_unpacked(size, _bytes_on_disk(path), f"the variables of {path}")
        names = [name for name, _ in variables]
        arrays = loadmat(path, mat_dtype=False, struct_as_record=True, variable_names=names) if names else {}
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
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/data.pkl") or name == "data.pkl" for name in archive.namelist())


def torch_readers(path: Path) -> dict[str, ArrayReader]:
    """The tensors of a file of `torch.save`: a tensor, or a dictionary or sequence of them; nothing else of it is built.

    Raises:
        FileError: If it holds anything but tensors.
    """
    expected, remedy = f"dense tensors alone in {path}", 'save tensors: torch.save({"a": a.to_dense().float(), "u": u}, path)'
    with guarded(path, expected=expected, remedy=remedy):
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        check_unpacked(size, _bytes_on_disk(path), f"the tensors of {path}")
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
        entries = {TABLE: content} if isinstance(content, Tensor) else content
        entries = dict(enumerate(entries)) if isinstance(entries, list | tuple) else entries
        tensors = {str(name): tensor for name, tensor in entries.items() if isinstance(tensor, Tensor)}
        if not tensors:
            raise ValueError(f"{type(content).__name__} without tensors")
        return {name: SlicedReader(_numbers(tensor, f"{name!r} in {path}")) for name, tensor in tensors.items()}


def _numbers(tensor: Tensor, name: str) -> NDArray[Any]:
    """A tensor as an array; NumPy has no bfloat16."""
    check_unpacked(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes(), name)
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().resolve_conj().numpy())


def csv_readers(path: Path) -> dict[str, ArrayReader]:
    """A table of numbers, one sample per row: all columns together as "values", and each by its name if there is a header.

    Raises:
        FileError: If it is no table of numbers, or a column of a header has no name, or that of another column.
    """
    check_unpacked(path.stat().st_size, _bytes_on_disk(path), f"the table {path}")
    expected = f"a table of numbers in {path}, one sample per row, separated by commas, semicolons, tabs or spaces"
    remedy = "write it with numpy.savetxt(path, table, delimiter=','), or table.to_csv(path, index=False) of pandas"
    with guarded(path, expected=expected, remedy=remedy):
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
        names = header if header == [TABLE] else [TABLE, *header]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(map(repr, twice))} twice, and {TABLE!r} means all of them: rename the columns")
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
    with guarded(path, expected=f"an array of numbers in {path}", remedy="write it with np.save"):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.flags.c_contiguous:
        return raw_reader(path, array.shape, array.dtype, int(array.offset))
    reader = raw_reader(path, array.shape[::-1], array.dtype, int(array.offset))
    return arranged(reader, range(array.ndim)[::-1])


def npz_readers(path: Path) -> dict[str, ArrayReader]:
    """The arrays of an .npz archive, unpacked.

    Raises:
        FileError: If it is none.
    """
    arrays: dict[str, ArrayReader] = {}
    expected, remedy = f"an archive of arrays in {path}", "write it with np.savez(path, a=..., u=...)"
    with guarded(path, expected=expected, remedy=remedy), zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if not entry.filename.endswith(".npy"):
                raise ValueError(f"a zip archive that holds {entry.filename}")
            name = entry.filename.removesuffix(".npy")
            if name in arrays:
                raise ValueError(f"two entries {entry.filename}")
            check_unpacked(entry.file_size, min(entry.compress_size, _bytes_on_disk(path)), f"the array {name} in {path}")
            with archive.open(entry) as member:
                arrays[name] = SlicedReader(np.lib.format.read_array(member, allow_pickle=False))
                if member.read(1):  # the end of an entry compares its check sum
                    raise ValueError(f"{entry.filename} is longer than its array")
    return arrays
