"""Checks that a data file passes before a library reads it, and typed errors in place of those that libraries raise.

Pipes, sockets and devices are refused; so are codecs, filters and types of zarr and HDF5 that are on no list, links to other
files, and arrays that claim to be far larger than their stored bytes.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from probneural.checks import check_regular, optional
from probneural.errors import FileError, ProbneuralError

_UNSTORED = 2**28
"""Bytes of an array that may be read at any compression (256 MiB)."""
_RATIO = 100
"""Largest ratio of bytes that are read to bytes that are stored, beyond that."""
_PER_ENTRY, _PER_CHUNK = 16, 2**14
"""Bytes that an index along an axis, and a chunk, count as: the time to look them up is that to read these bytes."""
_LEVELS, _MEMBERS = 32, 200_000
"""Largest depth of groups in each other, and number of groups and arrays in an HDF5 file."""
_ARRAYS, _METADATA = 1000, 2**24
"""Largest number of arrays and groups in a zarr store, and of bytes of JSON for an array."""
_AXES = 32
"""Largest number of axes of an array."""
_METADATA_FILES = frozenset({"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"})
_CHUNK_KEY = re.compile(r"c|\d+(\.\d+)*|c(\.\d+)+")
_CODECS = frozenset({"adler32", "astype", "bitround", "blosc", "bz2", "crc32", "crc32c", "delta", "fixedscaleoffset"})
_CODECS |= {"fletcher32", "gzip", "lz4", "lzma", "packbits", "quantize", "shuffle", "zfpy", "zlib", "zstd"}
"""Codecs of either format of zarr; none of them builds Python objects."""
_STRUCTURE = frozenset({"bytes", "sharding_indexed", "transpose"})
"""Codecs of format 3 that arrange bytes."""
_TEXT_CODEC = "vlen-utf8"
_TYPE_2 = re.compile(r"[<>|=]?(?P<kind>[biufcSUmM])(?P<size>\d{1,6})(\[\d*\w+\])?")
_TYPE_3 = re.compile(r"bool|u?int(?P<bits>8|16|32|64)|(float|complex)(?P<width>16|32|64|128)|numpy\.(datetime|timedelta)64")
_TEXTS_3 = frozenset({"fixed_length_utf32", "null_terminated_bytes", "fixed_length_ascii"})
_FILTERS = frozenset({1, 2, 3, 4, 5, 6, 307, 32000, 32001, 32004, 32008, 32013, 32015, 32026})
"""Registered HDF5 filters: deflate, shuffle, Fletcher-32, szip, n-bit, scale-offset, bzip2, LZF, Blosc, LZ4, bitshuffle, ZFP,
Zstandard, Blosc 2."""


_REWRITE = "it is damaged or of another format: write it again"


@contextlib.contextmanager
def guarded(path: object, *, expected: str = "", remedy: str = _REWRITE) -> Iterator[None]:
    """Errors that libraries raise while they read a file become FileErrors.

    Args:
        path: The file.
        expected: Contents that the file should have, for the message.
        remedy: Remedy in the message.

    Raises:
        FileError: If anything is raised that is no error of this package.
    """
    try:
        yield
    except (ProbneuralError, ImportError):
        raise
    except Exception as error:  # libraries raise arbitrary errors for damaged files
        got = f"{type(error).__name__}: {error}"[:300]
        raise FileError(expected=expected or f"a readable file, {path}", got=got, remedy=remedy) from error


def check_unpacked(size: int, stored: int, name: str) -> None:
    """Raise a FileError if an array of `size` bytes is far larger than its stored bytes."""
    if size > _UNSTORED and size > _RATIO * stored:
        refuse(
            f"{name} of at most {_UNSTORED >> 20} MB, or {_RATIO} times what the file stores of it",
            f"{size >> 20} MB from {stored} bytes",
            "write it again: uncompressed, or without what is empty",
        )


def check_extent(name: str, shape: Sequence[int], chunks: Sequence[int], itemsize: int, stored: int) -> None:
    """Raise a FileError if a row, a chunk, an axis or the chunks of a row cost far more than the stored bytes.

    A row is an entry of the first axis; an array of one axis may be a coordinate, which is read whole.
    """
    row = shape[1:] if len(shape) > 1 else shape
    row_chunks = [-(-length // chunk) for length, chunk in zip(row, chunks[-len(row) :], strict=True)] if chunks and row else []
    costs = (
        itemsize * math.prod(row),
        itemsize * math.prod(chunks),
        _PER_ENTRY * max(shape, default=0),
        _PER_CHUNK * math.prod(row_chunks),
    )
    check_unpacked(max(costs), stored, f"the array {name}")


def refuse(expected: str, got: str, remedy: str) -> NoReturn:
    """Raise a FileError."""
    raise FileError(expected=expected, got=got[:300], remedy=remedy)


@dataclass
class _Member:
    """A group or array of a zarr store: its metadata, and the chunk files in its folder and below."""

    name: str
    metadata: dict[str, Any] | None = None
    count: int = 0
    size: int = 0
    largest: int = 0


def check_zarr(path: Path) -> dict[str, tuple[int, int]]:
    """Check a zarr store from its metadata and the sizes of its files.

    Returns:
        Per array, by its name in the store, the number of its chunks (or shards), and of their files.

    Raises:
        FileError: If a file is a pipe, socket or device, metadata are too large or too deep, an array is of a type or a codec
            that is not read, or claims to be far larger than its files.
    """
    members: list[_Member] = []
    visited: set[tuple[int, int]] = set()
    folders: list[tuple[Path, _Member | None, int]] = [(path, None, 0)]
    while folders:
        folder, owner, level = folders.pop()
        state = os.stat(folder)
        if (state.st_dev, state.st_ino) in visited or level > _LEVELS or len(members) > _ARRAYS:
            remedy = "write the arrays that are needed into a store of their own"
            refuse(f"at most {_ARRAYS} arrays in {_LEVELS} levels, each there once", f"others, at {folder}", remedy)
        visited.add((state.st_dev, state.st_ino))
        with os.scandir(folder) as scanned:
            entries = list(scanned)
        files = [entry for entry in entries if not entry.is_dir()]
        for entry in files:
            if not entry.is_file():
                check_regular(Path(entry.path), "a file of the store")
        if any(entry.name in _METADATA_FILES for entry in files):
            owner = _Member(folder.relative_to(path).as_posix())
            owner.metadata = _zarr_metadata(folder, {entry.name for entry in files})
            members.append(owner)
        if owner is not None and owner.metadata is not None:
            sizes = [entry.stat().st_size for entry in files if _CHUNK_KEY.fullmatch(entry.name)]
            owner.count, owner.size = owner.count + len(sizes), owner.size + sum(sizes)
            owner.largest = max(owner.largest, *sizes, 0)
        folders += [(Path(entry.path), owner, level + 1) for entry in entries if entry.is_dir()]
    arrays = [member for member in members if member.metadata is not None]
    return {member.name: (_check_zarr_array(member, member.metadata or {}), member.count) for member in arrays}


def _zarr_metadata(folder: Path, names: set[str]) -> dict[str, Any] | None:
    """Metadata of the array in a folder; None for a group."""
    parsed = {name: _json_object(folder / name) for name in names & (_METADATA_FILES - {".zmetadata"})}
    attributes = parsed.get(".zattrs", parsed.get("zarr.json", {}).get("attributes", {}))
    dims = attributes.get("_ARRAY_DIMENSIONS", []) if isinstance(attributes, dict) else None
    if not isinstance(dims, list) or not all(isinstance(dim, str) for dim in dims):
        refuse(f"attributes with texts as names of dimensions in {folder}", repr(dims)[:80], "write the store again")
    if "zarr.json" in parsed:
        return parsed["zarr.json"] if parsed["zarr.json"].get("node_type") == "array" else None
    return parsed.get(".zarray")


def _json_object(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > _METADATA:
        refuse(f"at most {_METADATA >> 20} MB of metadata in {path}", f"{size} bytes", "write the store again")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileError(expected=f"JSON in {path}", got=str(error)[:100], remedy="it is damaged: copy it again") from error
    if not isinstance(content, dict):
        refuse(f"a JSON object in {path}", repr(content)[:80], "it is damaged: copy it again")
    return content


def _check_zarr_array(member: _Member, metadata: dict[str, Any]) -> int:
    """Number of chunks of an array, or a FileError if its metadata are refused."""
    what = f"the array {member.name} of the store"
    remedy = "write it again, as numbers with a usual compressor, for example with xarray: dataset.to_zarr(path)"
    shape = metadata.get("shape")
    if "node_type" in metadata:
        grid = metadata.get("chunk_grid")
        grid = grid.get("configuration") if isinstance(grid, dict) and grid.get("name") == "regular" else None
        chunks = grid.get("chunk_shape") if isinstance(grid, dict) else None
        codecs, itemsize = _codecs_3(metadata.get("codecs")), _itemsize_3(metadata.get("data_type"))
        is_text, allowed = metadata.get("data_type") == "string", _CODECS | _STRUCTURE
    else:
        chunks, dtype = metadata.get("chunks"), metadata.get("dtype")
        codecs = [*_ids(metadata.get("filters") or []), *_ids([metadata["compressor"]] if metadata.get("compressor") else [])]
        match = _TYPE_2.fullmatch(dtype) if isinstance(dtype, str) else None
        itemsize = 0 if match is None else int(match["size"]) * (4 if match["kind"] == "U" else 1)
        is_text, allowed = dtype == "|O" and codecs[:1] == [_TEXT_CODEC], _CODECS
    if is_text:
        itemsize, codecs = _PER_ENTRY, [codec for codec in codecs if codec != _TEXT_CODEC]
    if not itemsize:
        refuse(f"numbers or texts in {what}", repr(metadata.get("data_type", metadata.get("dtype")))[:80], remedy)
    others = [codec for codec in codecs if codec not in allowed]
    if others:
        refuse(f"codecs of {what} among {', '.join(sorted(allowed))}", ", ".join(map(repr, others)), remedy)
    if not _are_lengths(shape, least=0) or not _are_lengths(chunks, least=1) or len(shape) != len(chunks):  # type: ignore[arg-type]
        refuse(f"lengths of at most {_AXES} axes and of chunks in {what}", f"{shape!r:.80} and {chunks!r:.80}", remedy)
    check_extent(member.name, shape, chunks, itemsize, member.size)  # type: ignore[arg-type]
    raw = itemsize * math.prod(chunks)  # type: ignore[arg-type]
    if member.largest > 2 * raw + 2**16 and not is_text:
        refuse(f"chunk files of {what} that are not much longer than {raw} bytes", f"one of {member.largest}", remedy)
    return math.prod(-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True))  # type: ignore[arg-type]


def _are_lengths(lengths: object, *, least: int) -> bool:
    is_list = isinstance(lengths, list) and len(lengths) <= _AXES
    return is_list and all(type(length) is int and least <= length < 2**48 for length in lengths)  # type: ignore[attr-defined]


def _ids(codecs: object) -> list[str]:
    """Names of codecs of format 2, "" for entries without one."""
    entries: Iterable[Any] = codecs if isinstance(codecs, list) else [codecs]
    return [str(entry.get("id", "")) if isinstance(entry, dict) else "" for entry in entries]


def _codecs_3(codecs: object) -> list[str]:
    """Names of codecs of format 3, those inside shards included."""
    names = []
    for codec in codecs if isinstance(codecs, list) else [codecs]:
        entry = codec if isinstance(codec, dict) else {"name": codec}
        names.append(str(entry.get("name", "")).removeprefix("numcodecs."))
        inner = entry.get("configuration")
        for key in ("codecs", "index_codecs"):
            names += _codecs_3(inner[key]) if isinstance(inner, dict) and key in inner and len(names) < _AXES else []
    return names


def _itemsize_3(data_type: object) -> int:
    """Bytes of an entry; 0 for a type that is not read."""
    name = data_type.get("name") if isinstance(data_type, dict) else data_type
    match = _TYPE_3.fullmatch(name) if isinstance(name, str) else None
    if match is not None:
        return int(match["bits"] or match["width"] or 64) // 8
    configuration = data_type.get("configuration") if isinstance(data_type, dict) else None
    length = configuration.get("length_bytes") if isinstance(configuration, dict) and name in _TEXTS_3 else 0
    return length if isinstance(length, int) and 0 < length < 2**20 else 0


def check_hdf5(file: Any) -> int:
    """Check the links and the layouts of all datasets of an open HDF5 file; no values are read.

    Returns:
        Number of datasets.

    Raises:
        FileError: If it is too deep or has too many members, if a link or a dataset refers to another file, if a filter is not
            on the list, or a dataset claims to be far larger than its stored bytes.
    """
    h5py = optional("h5py", "the reader of HDF5 files", extra="data")
    where = file.filename
    names: list[bytes] = []
    soft: list[bytes] = []

    def visit(name: bytes, link: Any) -> str | None:
        if name.count(b"/") >= _LEVELS or len(names) >= _MEMBERS:
            return f"at most {_MEMBERS} members in {_LEVELS} levels"
        if link.type == h5py.h5l.TYPE_HARD:
            names.append(name)
        elif link.type == h5py.h5l.TYPE_SOFT:
            soft.append(name)
        else:
            return "no links to other files"
        return None

    broken = file.id.links.visit(visit, info=True)
    remedy = "copy what is needed into one file of its own, with a usual filter such as gzip"
    if broken:
        refuse(f"{broken} in {where}", "others", remedy)
    count = 0
    for name in names:
        member = h5py.h5o.open(file.id, name)
        if isinstance(member, h5py.h5d.DatasetID):
            count += 1
            _check_dataset(h5py, member, f"{name.decode(errors='replace')} in {where}", remedy)
        elif isinstance(member, h5py.h5g.GroupID) and h5py.h5o.get_info(member).rc > 1:
            refuse(f"groups of {where} under one name each", f"others, {name!r}", remedy)
    for name in soft:
        if file.get(name, getclass=True) is h5py.Group:
            refuse(f"no links between groups in {where}", repr(name), remedy)
    return count


def _check_dataset(h5py: Any, dataset: Any, name: str, remedy: str) -> None:
    layout = dataset.get_create_plist()
    if layout.get_layout() == h5py.h5d.VIRTUAL or layout.get_external_count():
        refuse(f"values of {name} in the file itself", "those of another file", remedy)
    filters = [layout.get_filter(number)[0] for number in range(layout.get_nfilters())]
    others = [number for number in filters if number not in _FILTERS]
    if others:
        refuse(f"usual filters of {name}", f"filters of numbers {others}", remedy)
    if dataset.get_space().get_simple_extent_type() != h5py.h5s.SIMPLE:
        return
    chunks = layout.get_chunk() if layout.get_layout() == h5py.h5d.CHUNKED else ()
    stored = dataset.get_storage_size()
    itemsize = dataset.get_type().get_size()
    check_extent(name, dataset.shape, chunks, itemsize, stored)
    size = itemsize * max(math.prod(dataset.shape), math.prod(chunks))
    if stored > 2 * size + 2**20:
        refuse(f"at most {size} bytes of {name}", f"{stored} bytes stored", remedy)
