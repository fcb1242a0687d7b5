"""Formats that are read into memory at once: MATLAB up to version 7, PyTorch tensors, CSV."""

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

from probneural.data.gate import check_unpacked
from probneural.data.readers import ArrayReader, SlicedReader
from probneural.errors import DataWarning, FileError, warn

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
        FileError: If it is no table of numbers, or two columns have one name.
    """
    check_unpacked(path.stat().st_size, _bytes_on_disk(path), f"the table {path}")
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        while lines and lines[0].lstrip().startswith("#"):
            lines.pop(0)
        header, rows, separator = _without_header(lines)
        table = np.loadtxt(rows, delimiter=separator, ndmin=2, comments=None)
        if header and table.shape[1] != len(header):
            raise ValueError(f"{len(header)} names of {table.shape[1]} columns")
    except (OSError, ValueError, IndexError, csv.Error) as error:
        raise FileError(
            expected=f"a table of numbers in {path}, one sample per row, separated by commas, semicolons, tabs or spaces",
            got=str(error),
            remedy="write it with numpy.savetxt(path, table, delimiter=',')",
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


def _without_header(lines: list[str]) -> tuple[list[str], list[str], str | None]:
    """Names of the columns, none without a header; the rows of numbers without pandas' column of row numbers; the separator.

    pandas writes an empty name above its row numbers, and numbers of columns that have no names.
    """
    if not lines:
        raise ValueError("no rows")
    separator = next((character for character in (",", ";", "\t") if character in lines[0]), None)
    first, second = ([*_cells(line, separator), ""] for line in (*lines, "")[:2])
    cells, is_text = first[:-1], not all(map(_is_number, first))
    if len(cells) > 1 and not cells[0] and (is_text or second[0] == "0"):
        return cells[1:], [line.split(separator, 1)[1] for line in lines[1:]], separator
    is_numbered = cells == [str(number) for number in range(len(cells))] and len(lines) > 1
    if is_numbered and len(cells) == 1:  # or the first of whole numbers
        is_numbered = not second[0].isdigit()
    if is_numbered:
        warn(
            f"the first row, {separator.join(cells) if separator else ' '.join(cells)}, counts as numbers of columns, as pandas"
            " writes them, and not as a sample; name the columns if it is one",
            DataWarning,
        )
    return (cells, lines[1:], separator) if is_text or is_numbered else ([], lines, separator)


def _cells(line: str, separator: str | None) -> list[str]:
    cells = line.split() if separator is None else next(csv.reader([line], delimiter=separator), [])
    return [cell.strip().strip('"') for cell in cells]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return not text.strip()
    return True
