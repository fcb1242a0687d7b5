"""Hostile data files, and a program that opens them one after the other and prints each outcome as a line of JSON."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import shutil
import socket
import struct
import sys
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.io
import torch

import probneural as pn
from tests.data.files import labelled, numbers, opened, write_hdf5, write_pdebench, write_the_well

Write = Callable[[Path], Path]
"""Writes a file into an empty folder and returns its path."""
OPTIONS: dict[str, Any] = {"inputs": ["a"], "outputs": ["u"], "periodic": True}
DEEP = "[" * 100_000 + "]" * 100_000
HUGE = 10**9
MOST_DATA = 2**32
"""Bytes of memory that the program may ask for."""
A, U = numbers(6, 1, 8, seed="a"), numbers(6, 1, 8, seed="u")
POINTS = np.arange(8) / 8


def zarr2(folder: Path, files: dict[str, Any] | None = None, **changes: dict[str, Any]) -> Path:
    """A store of format 2 with variables a and u on x; files are added as text or JSON, metadata of arrays changed."""
    path = folder / "f.zarr"
    arrays = {"a": (A[:, 0], ["sample", "x"]), "u": (U[:, 0], ["sample", "x"]), "x": (POINTS, ["x"])}
    for name, (values, dims) in arrays.items():
        (path / name).mkdir(parents=True)
        change = dict(changes.get(name, {}))
        attributes = {"_ARRAY_DIMENSIONS": dims} | change.pop("attributes", {})
        meta = {"zarr_format": 2, "shape": values.shape, "chunks": values.shape, "dtype": values.dtype.str, "order": "C"}
        meta |= {"compressor": None, "fill_value": 0, "filters": None} | change
        (path / name / ".zarray").write_text(json.dumps(meta))
        (path / name / ".zattrs").write_text(json.dumps(attributes))
        (path / name / ".".join("0" * values.ndim)).write_bytes(values.tobytes())
    return _added(path, {".zgroup": {"zarr_format": 2}} | (files or {}))


def zarr3(folder: Path, files: dict[str, Any] | None = None, **changes: dict[str, Any]) -> Path:
    """The same of format 3."""
    path = folder / "f.zarr"
    labelled(a=A, u=U).to_zarr(path, zarr_format=3, consolidated=False)
    for name, change in changes.items():
        file = path / name / "zarr.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    return _added(path, files or {})


def _added(path: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        if callable(content):
            content(target)
        else:
            target.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def many_arrays(folder: Path, *, version: int) -> Path:
    path = zarr2(folder) if version == 2 else zarr3(folder)
    for number in range(3000):
        (path / f"v{number}").symlink_to(path / "a") if number % 2 else (path / f"v{number}").mkdir()
        for file in (path / "a").iterdir() if not number % 2 else ():
            if file.is_file():
                (path / f"v{number}" / file.name).write_bytes(file.read_bytes())
    return path


def linked_folder(path: Path) -> None:
    path.symlink_to(path.parent, target_is_directory=True)


def bound_socket(path: Path) -> None:
    place = os.getcwd()
    os.chdir(path.parent)  # the names of sockets are short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)
    os.chdir(place)


def hdf5(folder: Path, change: Callable[[Any], Any], *, base: str = "names") -> Path:
    """A file of HDF5 in one of the layouts, changed."""
    path = folder / "f.h5"
    if base == "the well":
        write_the_well(path)
    elif base == "names":
        labelled(a=A, u=U).to_netcdf(path, engine="h5netcdf")
    elif base == "plain":
        write_hdf5(path, a=A, u=U)
    else:
        write_pdebench(path, base)
    with h5py.File(path, "a") as file:
        change(file)
    return path


def replaced(name: str, **options: Any) -> Callable[[Any], None]:
    """A dataset in place of another one."""

    def change(file: Any) -> None:
        del file[name]
        file.create_dataset(name, **options)

    return change


def nested(file: Any) -> None:
    group = file.id
    for _ in range(20_000):
        group = h5py.h5g.create(group, b"g")


def many_datasets(file: Any) -> None:
    for number in range(3000):
        made = file.create_dataset(f"v{number}", data=A)
        made.dims[0].attach_scale(file["sample"])
        made.dims[1].attach_scale(file["channel_a"])
        made.dims[2].attach_scale(file["x0"])


def unknown_filter(file: Any) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((6, 1, 8))
    properties.set_filter(300, h5py.h5z.FLAG_OPTIONAL)
    h5py.h5d.create(file.id, b"odd", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple((6, 1, 8)), properties)


def pipe_beside(file: Any, use: Callable[[Any, Path], Any]) -> None:
    pipe = Path(file.filename).with_name("pipe")
    os.mkfifo(pipe)
    use(file, pipe)


def soft_cycle(file: Any) -> None:
    group = file.create_group("g")
    group["again"], group["more"] = h5py.SoftLink("/"), h5py.SoftLink("/g")


def virtual(file: Any, pipe: Path) -> None:
    layout = h5py.VirtualLayout(A.shape, A.dtype)
    layout[...] = h5py.VirtualSource(pipe, "a", A.shape)
    file.create_virtual_dataset("v", layout)


def netcdf3(folder: Path, change: Callable[[bytes], bytes] = bytes) -> Path:
    path = folder / "f.nc"
    labelled(a=A, u=U).to_netcdf(path, engine="scipy")
    path.write_bytes(change(path.read_bytes()))
    return path


def npy_header(shape: str, dtype: str = "'<f4'", rest: bytes = b"\0" * 64) -> bytes:
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + rest


def npz(folder: Path, entries: dict[str, bytes] | None = None, *, compression: int = zipfile.ZIP_STORED) -> Path:
    path = folder / "f.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, values in {"a": A, "u": U}.items():
            archive.writestr(f"{name}.npy", (entries or {}).get(name, npy(values)))
        for name, content in (entries or {}).items():
            if name not in ("a", "u"):
                archive.writestr(name, content)
    return path


def npy(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def patched(path: Path, old: bytes, new: bytes) -> Path:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    return path


def npz_bomb(folder: Path) -> Path:
    """2 GB of zeros in 2 MB."""
    path = folder / "f.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a", "u"):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                entry.write(npy_header(f"({2**18}, 1, 1024)", rest=b""))
                for _ in range(64):
                    entry.write(b"\0" * 2**24)
    return path


def matlab_bomb(folder: Path) -> Path:
    """2 GB of zeros in 2 MB."""
    packer, size = zlib.compressobj(), 2**28 - 2**10
    head = struct.pack("<IIII", 6, 8, 6, 0) + struct.pack("<IIii", 5, 8, size, 1) + struct.pack("<HH4s", 1, 1, b"a")
    packed = packer.compress(struct.pack("<II", 14, len(head) + 8 + 8 * size) + head + struct.pack("<II", 9, 8 * size))
    packed += b"".join(packer.compress(b"\0" * 2**23) for _ in range(size * 8 // 2**23)) + packer.flush()
    path = folder / "f.mat"
    path.write_bytes(
        b"MATLAB 5.0".ljust(124) + struct.pack("<HH", 0x100, 0x4D49) + struct.pack("<II", 15, len(packed)) + packed
    )
    return path


def matlab_nest(folder: Path) -> Path:
    value: Any = np.zeros(1)
    for _ in range(150):
        cell = np.empty((1, 1), object)
        cell[0, 0] = value
        value = cell
    scipy.io.savemat(folder / "f.mat", {"a": A[:, 0], "u": U[:, 0], "c": value})
    return folder / "f.mat"


def tensors(folder: Path, **values: Any) -> Path:
    torch.save({"a": torch.as_tensor(A), "u": torch.as_tensor(U)} | values, folder / "f.pt")
    return folder / "f.pt"


def text(folder: Path, content: bytes, name: str = "f.csv") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def special(folder: Path, make: Callable[[Path], Any], name: str = "f.csv") -> Path:
    (folder / name).parent.mkdir(exist_ok=True)
    make(folder / name)
    return folder / name


def npy_folder(folder: Path) -> Path:
    np.save(folder / "a.npy", A)
    os.mkfifo(folder / "u.npy")
    return folder


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**34)


def touch(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def zeros(path: Path) -> None:
    """2 GB, compressed."""
    packer = zlib.compressobj(1)
    path.write_bytes(b"".join(packer.compress(b"\0" * 2**24) for _ in range(128)) + packer.flush())


class Payload:
    """Leaves a file behind where a pickle of it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return touch, (self.mark, "a pickle was read")


def pickle_in_zarr(folder: Path, filters: list[str] | None = None, compressor: str | None = None) -> Path:
    mark = folder / "executed"
    change = {"dtype": "|O", "filters": filters and [{"id": one} for one in filters], "fill_value": ""}
    path = zarr2(folder, x=change | {"compressor": compressor and {"id": compressor}})
    (path / "x" / "0").write_bytes(pickle.dumps(Payload(mark)))
    return path


def _zarr_cases() -> Iterator[tuple[str, Write]]:
    odd = {
        "list": [],
        "null": None,
        "number": 3,
        "text": '"x"',
        "deep": DEEP,
        "deep key": f'{{"attributes": {DEEP}}}',
        "cut": "{",
    }
    odd |= {"nul": '"\\u0000"', "bytes": "\x80", "empty": "", "numbers": '{"zarr_format": 1e400, "node_type": {}}'}
    for name, content in odd.items():
        for file in (".zgroup", ".zattrs", "a/.zarray", "a/.zattrs", "x/.zarray", ".zmetadata"):
            yield f"zarr 2, {file} {name}", partial(zarr2, files={file: content})
        for file in ("zarr.json", "a/zarr.json"):
            yield f"zarr 3, {file} {name}", partial(zarr3, files={file: content})
    keys = {"metadata": {"../../x/.zarray": {}, "/etc/.zgroup": {}, "a/../../u/.zattrs": {}}, "zarr_consolidated_format": 1}
    yield "zarr 2, consolidated keys", partial(zarr2, files={".zmetadata": keys})
    for filters in (["vlen-utf8", "pickle"], ["pickle"], ["json2"], ["msgpack2"], ["vlen-bytes"], ["categorize"], None):
        yield f"zarr 2, objects {filters}", partial(pickle_in_zarr, filters=filters)
    yield "zarr 2, pickle compressor", partial(pickle_in_zarr, filters=["vlen-utf8"], compressor="pickle")
    arrays: dict[str, dict[str, Any]] = {
        "dtype": {"dtype": "<f3"}, "no dtype": {"dtype": None}, "records": {"dtype": [["p", "<f4"]]}, "void": {"dtype": "|V8"},
        "long dtype": {"dtype": f"|S{10**10}"}, "subarray": {"dtype": f"({HUGE},)<f8"}, "dates": {"dtype": "<M8[ns]"},
        "shape": {"shape": [-6, 8]}, "shape text": {"shape": "68"}, "float shape": {"shape": [6.5, 8]},
        "many axes": {"shape": [1] * 100_000, "chunks": [1] * 100_000}, "chunks": {"chunks": [0, 0]},
        "negative chunks": {"chunks": [-1, -1]}, "chunk axes": {"chunks": [6]}, "small chunks": {"shape": [HUGE, HUGE], "chunks": [1, 1]},
        "long chunk": {"shape": [6, HUGE], "chunks": [6, HUGE]}, "many samples": {"shape": [HUGE * 10, 8], "chunks": [HUGE, 8]},
        "exponents": {"shape": [10**30, 8]}, "order": {"order": "Q"}, "fill": {"fill_value": [1]}, "fill text": {"fill_value": "x"},
        "compressor": {"compressor": {"id": "none such"}}, "compressor text": {"compressor": "zlib"}, "filters": {"filters": [None]},
        "settings": {"compressor": {"id": "zlib", "level": "x", "y": 1}}, "quantize": {"filters": [{"id": "quantize", "digits": HUGE}]},
        "separator": {"dimension_separator": "../"},
    }  # fmt: skip
    for name, change in arrays.items():
        yield f"zarr 2, {name}", partial(zarr2, a=change)
    attributes: dict[str, Any] = {
        "numbers as dims": {"_ARRAY_DIMENSIONS": [1, 2]}, "dims of another count": {"_ARRAY_DIMENSIONS": ["x"]},
        "null dims": {"_ARRAY_DIMENSIONS": None}, "text dims": {"_ARRAY_DIMENSIONS": "ab"}, "equal dims": {"_ARRAY_DIMENSIONS": ["x", "x"]},
        "nul dims": {"_ARRAY_DIMENSIONS": ["sample\0", "x"]}, "list dims": {"_ARRAY_DIMENSIONS": [["sample"], {}]},
        "scale text": {"scale_factor": "x"}, "scale list": {"scale_factor": [1, 2], "add_offset": {}}, "fill list": {"_FillValue": [[1], "x"]},
        "units": {"units": [1, {}]}, "coordinates": {"coordinates": 5}, "grid": {"periodic": "x", "lengths": [None], "origin": {}, "endpoint": 3},
        "grid sizes": {"periodic": [True], "lengths": [1e400], "origin": [0.0], "endpoint": [False]}, "channel": {"channel_dimension": ["x"]},
        "unsigned": {"_Unsigned": 5}, "dtype": {"dtype": "bool"}, "mapping": {"grid_mapping": "none", "bounds": "a a a"},
    }  # fmt: skip
    for name, change in attributes.items():
        yield f"zarr 2, {name}", partial(zarr2, a={"attributes": change})
    coordinates: dict[str, dict[str, Any]] = {
        "2-D": {"shape": [8, 1], "chunks": [8, 1], "attributes": {"_ARRAY_DIMENSIONS": ["x", "sample"]}},
        "equal axes": {"shape": [8, 8], "chunks": [8, 8], "attributes": {"_ARRAY_DIMENSIONS": ["x", "x"]}},
        "long": {"shape": [HUGE], "chunks": [HUGE]}, "long in chunks": {"shape": [HUGE], "chunks": [1]}, "no axis": {"shape": [], "chunks": []},
        "text": {"dtype": "|S8"}, "units": {"attributes": {"units": 5, "axis": [1], "standard_name": None}},
    }  # fmt: skip
    for name, change in coordinates.items():
        yield f"zarr 2, coordinate {name}", partial(zarr2, x=change)
    fields: dict[str, Any] = {
        "codecs": {"codecs": [{"name": "numcodecs.pickle"}]}, "no codecs": {"codecs": []}, "codecs number": {"codecs": 3},
        "dims": {"dimension_names": [1, 2, 3]}, "dims count": {"dimension_names": ["a"]}, "dims text": {"dimension_names": "abc"},
        "type": {"data_type": "object"}, "type map": {"data_type": {"name": "struct", "configuration": {}}}, "bytes": {"data_type": "variable_length_bytes"},
        "text length": {"data_type": {"name": "fixed_length_utf32", "configuration": {"length_bytes": 4 * HUGE}}},
        "shape": {"shape": [HUGE * 10, 1, 8]}, "chunk grid": {"chunk_grid": []}, "keys": {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": ".."}}},
        "storage": {"storage_transformers": [{"name": "x"}]}, "must": {"must_understand": {"x": 1}}, "fill": {"fill_value": {}},
        "chunk": {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [6, 1, HUGE]}}, "shape": [6, 1, HUGE]},
        "shards": {"codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 1, 1], "codecs": [{"name": "numcodecs.pickle"}], "index_codecs": []}}]},
    }  # fmt: skip
    for name, change in fields.items():
        yield f"zarr 3, {name}", partial(zarr3, a=change)
    for file in ("a/0.0", "a/.zarray", ".zgroup", "x/.zattrs", ".zmetadata", "zarr.json"):
        yield f"zarr 2, pipe {file}", partial(zarr2, files={file: os.mkfifo})
    yield "zarr 3, pipe of a chunk", partial(zarr3, files={"a/c/0/0/0": os.mkfifo})
    yield "zarr 2, folder in a circle", partial(zarr2, files={"a/loop": linked_folder})
    yield "zarr 2, socket", partial(zarr2, files={"a/1.0": bound_socket})
    yield "zarr 2, 3,000 variables", partial(many_arrays, version=2)
    yield "zarr 3, 3,000 variables", partial(many_arrays, version=3)
    packed = {"compressor": {"id": "zlib", "level": 1}}
    yield "zarr 2, bomb", partial(zarr2, files={"a/0.0": zeros}, a=packed)
    yield "zarr 2, short chunk", partial(zarr2, files={"a/0.0": "abc"})


def _hdf5_cases() -> Iterator[tuple[str, Write]]:
    changes: dict[str, Callable[[Any], Any]] = {
        "long coordinate": replaced("x0", shape=(HUGE,), dtype="f8", chunks=(1000,)),
        "long contiguous coordinate": replaced("x0", shape=(HUGE,), dtype="f8"),
        "2-D coordinate": replaced("x0", data=np.zeros((8, 2))),
        "text coordinate": replaced("x0", data=np.array([b"a\xff"] * 8)),
        "small chunks": replaced("a", shape=(HUGE, HUGE), dtype="f4", chunks=(1, 1)),
        "long chunk": replaced("a", shape=(6, 2**29), dtype="f4", chunks=(1, 2**29 - 1)),
        "many samples": replaced("a", shape=(HUGE, 1, 8), dtype="f4", chunks=(1000, 1, 8)),
        "records": replaced("a", shape=(6,), dtype=np.dtype([("x", "f4")])),
        "references": replaced("a", shape=(6,), dtype=h5py.ref_dtype),
        "ragged": replaced("a", shape=(6,), dtype=h5py.vlen_dtype("f4")),
        "enumeration": replaced("a", shape=(6, 1, 8), dtype=h5py.enum_dtype({"x": 1}, "i4")),
        "no space": replaced("a", dtype="f4", data=h5py.Empty("f4")),
        "scalar": replaced("a", data=1.0),
        "group": lambda file: (file.pop("a"), file.create_group("a")),
        "filter": unknown_filter,
        "external link": lambda file: pipe_beside(file, lambda one, pipe: one.__setitem__("v", h5py.ExternalLink(str(pipe), "a"))),
        "link to a file": lambda file: file.__setitem__("v", h5py.ExternalLink("/etc/passwd", "a")),
        "external storage": lambda file: pipe_beside(file, lambda one, pipe: one.create_dataset("v", (6, 1, 8), "f4", external=str(pipe))),
        "virtual": lambda file: pipe_beside(file, virtual),
        "circle": soft_cycle,
        "hard circle": lambda file: file.create_group("g").__setitem__("again", file),
        "dangling": lambda file: file.__setitem__("v", h5py.SoftLink("/none")),
        "deep": nested,
        "3,000 variables": many_datasets,
        "properties": lambda file: file.attrs.__setitem__("_NCProperties", 5),
        "dimension numbers": lambda file: file["x0"].attrs.__setitem__("_Netcdf4Dimid", "x"),
        "coordinate numbers": lambda file: file["a"].attrs.__setitem__("_Netcdf4Coordinates", [99]),
        "scale name": lambda file: file["x0"].attrs.__setitem__("NAME", np.bytes_(b"\xff")),
        "dimension list": lambda file: file["a"].attrs.__setitem__("DIMENSION_LIST", 5),
        "class": lambda file: file["a"].attrs.__setitem__("CLASS", b"DIMENSION_SCALE"),
        "scale text": lambda file: file["a"].attrs.update(scale_factor="x"),
        "scale list": lambda file: file["a"].attrs.update(scale_factor=[1.0, 2.0], add_offset=h5py.Empty("f4")),
        "fill list": lambda file: file["a"].attrs.update(_FillValue=["x", "y"], missing_value=[1.0, 2.0]),
        "units": lambda file: file["a"].attrs.update(units=[1, 2], coordinates=5, channel_dimension=[1]),
        "empty attribute": lambda file: file["x0"].attrs.update(units=h5py.Empty("f4"), axis=[]),
        "grid": lambda file: file["a"].attrs.update(lengths="x", periodic=[2], endpoint=[], origin=[np.nan]),
    }  # fmt: skip
    for name, change in changes.items():
        yield f"netcdf 4, {name}", partial(hdf5, change=change)
        if name not in ("long coordinate", "long contiguous coordinate", "2-D coordinate", "text coordinate") and not name.endswith(("numbers", "units", "name", "list", "class", "properties", "attribute", "3,000 variables")):  # fmt: skip
            yield f"hdf5, {name}", partial(hdf5, change=change, base="plain")
    well: dict[str, Callable[[Any], Any]] = {
        "count": lambda file: file.attrs.update(n_trajectories="x"),
        "no count": lambda file: file.attrs.update(n_trajectories=h5py.Empty("f4")),
        "names": lambda file: file["dimensions"].attrs.update(spatial_dims=[1, 2]),
        "nul": lambda file: file["t0_fields"].attrs.update(field_names=np.array([b"den\0sity"], dtype="S8")),
        "nul in a dim": lambda file: file["dimensions"].attrs.update(spatial_dims=np.array([b"x\0y", b"y"])),
        "parents": lambda file: file["t0_fields"].attrs.update(field_names=["../dimensions", "."]),
        "empty": lambda file: file["t0_fields"].attrs.update(field_names=h5py.Empty("S1")),
        "grid type": lambda file: file.attrs.update(grid_type=np.array([], dtype="S1")),
        "varying": lambda file: file["t0_fields/density"].attrs.update(dim_varying="x", sample_varying=[1, 0]),
        "boundaries": lambda file: file["boundary_conditions/x_periodic"].attrs.update(bc_type=[], associated_dims=5),
        "long": replaced("dimensions/x", shape=(HUGE,), dtype="f4", chunks=(1000,)),
        "group": lambda file: (file.pop("dimensions/time"), file.create_group("dimensions/time")),
        "dataset": lambda file: (file.pop("t0_fields"), file.create_dataset("t0_fields", data=1)),
        "scalars": lambda file: file["scalars"].attrs.update(field_names=["viscosity", "none"]),
        "text": replaced("dimensions/y", data=[b"x"] * 6),
        "dimensions": lambda file: (file.pop("dimensions"), file.create_dataset("dimensions", data=1)),
        "attributes": replaced("dimensions/time", data=np.float32(0)),
    }
    for name, change in well.items():
        yield f"the well, {name}", partial(hdf5, change=change, base="the well")
    bench: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "group": ("burgers", lambda file: (file.pop("tensor"), file.create_group("tensor"))),
        "coordinates": ("burgers", lambda file: (file.pop("x-coordinate"), file.create_group("x-coordinate"))),
        "long": ("burgers", replaced("x-coordinate", shape=(HUGE,), dtype="f4", chunks=(1000,))),
        "no axis": ("burgers", replaced("x-coordinate", data=1.0)),
        "text": ("burgers", replaced("t-coordinate", data=[b"x"] * 6)),
        "long times": ("burgers", replaced("t-coordinate", shape=(HUGE,), dtype="f4", chunks=(1000,))),
        "times": ("burgers", replaced("t-coordinate", data=np.zeros(()))),
        "scalar": ("incompressible", replaced("velocity", data=1.0)),
        "scalar times": ("incompressible", replaced("t", data=1.0)),
        "axes": ("incompressible", replaced("velocity", shape=(4, 5, 8, 6, HUGE), dtype="f4", chunks=(1, 1, 1, 1, 1000))),
        "seeds": ("diffusion-reaction", lambda file: (file.pop("0001"), file.create_dataset("0001", data=1))),
        "first seed": ("diffusion-reaction", lambda file: (file.pop("0000/data"), file.create_group("0000/data"))),
        "seed grid": ("diffusion-reaction", lambda file: (file.pop("0000/grid"), file.create_dataset("0000/grid", data=1))),
        "seed type": (
            "diffusion-reaction",
            lambda file: (file.pop("0002/data"), file.create_dataset("0002/data", data=[b"x"])),
        ),
    }
    for name, (base, change) in bench.items():
        yield f"pdebench, {name}", partial(hdf5, change=change, base=base)


def _other_cases() -> Iterator[tuple[str, Write]]:
    for number in range(4, 40, 4):
        for word in (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0"):
            yield f"netcdf 3, {word.hex()} at {number}", partial(netcdf3, change=lambda file, number=number, word=word: file[:number] + word + file[number + 4 :])  # fmt: skip
    yield "netcdf 3, names", partial(netcdf3, change=lambda file: file.replace(b"sample\0\0", b"\xff\xfe\0\0\0\0\0\0"))
    yield "netcdf 3, cut", partial(netcdf3, change=lambda file: file[: len(file) // 2])
    headers = {"deep": "(" * 5000, "negative": "(-6, 1, 8)", "huge": f"({HUGE}, {HUGE})", "text": "'x'", "overflow": f"({2**62}, 8, 8)", "zero": f"(0, {2**62})"}  # fmt: skip
    for name, shape in headers.items():
        yield f"npy, {name}", partial(text, content=npy_header(shape), name="f.npy")
        yield f"npz, {name}", partial(npz, entries={"a": npy_header(shape)})
        yield f"packed npz, {name}", partial(npz, entries={"a": npy_header(shape)}, compression=zipfile.ZIP_DEFLATED)
    for name, dtype in {"objects": "'|O'", "records": "[('x', '<f4')]", "code": "__import__", "subarray": f"({HUGE}, '<f4')", "void": "'|V0'", "wide": f"'|S{2**30}'"}.items():  # fmt: skip
        yield f"npy, {name}", partial(text, content=npy_header("(6, 1, 8)", dtype), name="f.npy")
        yield f"npz, {name}", partial(npz, entries={"a": npy_header("(6, 1, 8)", dtype)})
    yield "npz, bit", lambda folder: patched(npz(folder), A.tobytes()[:8], bytes(8))
    yield "npz, short entry", partial(npz, entries={"a": npy(A)[:-32]})
    yield "npz, long entry", partial(npz, entries={"a": npy(A) + bytes(32)})
    yield "npz, bomb", npz_bomb
    yield "npz, encrypted", lambda folder: patched(npz(folder), b"PK\3\4\x14\0\0\0", b"PK\3\4\x14\0\1\0")
    yield "npz, method", lambda folder: patched(npz(folder, compression=zipfile.ZIP_BZIP2), b"BZh9", b"BZh8")
    yield "npz, parents", partial(npz, entries={"../../x.npy": npy(A)})
    yield "npz, twice", partial(npz, entries={"a.npy": npy(U)})
    yield "npz, many", partial(npz, entries={f"v{number}.npy": npy(A[:1]) for number in range(3000)})
    yield "npz, sizes", lambda folder: patched(npz(folder), struct.pack("<I", len(npy(A))), struct.pack("<I", 2**31))
    yield "matlab, bomb", matlab_bomb
    yield "matlab, cells", matlab_nest
    flags = struct.pack("<IIII", 6, 8, 7, 0), struct.pack("<IIII", 6, 8, 0x807, 0)
    yield "matlab, imaginary part", lambda folder: patched(matlab_nest(folder), *flags)
    yield "torch, expanded", partial(tensors, a=torch.zeros(1).expand(6, 1, HUGE))
    yield "torch, expanded halves", partial(tensors, a=torch.zeros(1, dtype=torch.bfloat16).expand(6, HUGE))
    yield "torch, meta", partial(tensors, a=torch.zeros(6, 1, 8, device="meta"))
    yield "torch, sparse", partial(tensors, a=torch.zeros(6, 8).to_sparse())
    yield "torch, keys", lambda folder: tensors(folder, **{"a\0": torch.zeros(1)})
    for name, content in {"nul": b"a,u\n\0,1\n", "bytes": b"\xff\xfe\x80", "long": b"a,u\n" + b"1" * 200_000 + b",2", "quotes": b'"' * 200_000, "empty": b"", "columns": b"a,u\n1,2\n3\n", "commas": b"," * 200_000}.items():  # fmt: skip
        yield f"csv, {name}", partial(text, content=content)
    devices: dict[str, Callable[[Path], Any]] = {"pipe": os.mkfifo, "socket": bound_socket, "sparse": sparse, "device": lambda path: path.symlink_to("/dev/zero"), "circle": lambda path: path.symlink_to(path)}  # fmt: skip
    for name, make in devices.items():
        for suffix in ("csv", "npy", "nc"):
            yield f"{name}.{suffix}", partial(special, make=make, name=f"f.{suffix}")
    yield "pipe in a folder", npy_folder
    yield "long name", lambda folder: folder / ("x" * 5000)
    yield "nul name", lambda folder: folder / "x\0y"
    yield "bytes name", lambda folder: folder / "x\udcff"


def cases() -> dict[str, Write]:
    """Writers of all hostile files by name."""
    return dict([*_zarr_cases(), *_hdf5_cases(), *_other_cases()])


BASES: dict[str, Write] = {
    "zarr 2": zarr2,
    "zarr 3": zarr3,
    "netcdf 4": partial(hdf5, change=lambda file: None),
    "hdf5": partial(hdf5, change=lambda file: None, base="plain"),
    "packed hdf5": lambda folder: write_hdf5(folder / "f.h5", (2, 1, 8), a=A, u=U),
    "the well": partial(hdf5, change=lambda file: None, base="the well"),
    "burgers": partial(hdf5, change=lambda file: None, base="burgers"),
    "netcdf 3": netcdf3,
    "npy": lambda folder: text(folder, npy(A), "f.npy"),
    "npz": npz,
    "packed npz": partial(npz, compression=zipfile.ZIP_DEFLATED),
    "matlab": matlab_nest,
    "torch": tensors,
    "csv": lambda folder: text(folder, b"a,u\n" + b"1.5,2.5\n" * 20),
}
"""Whole files, to be mutated."""


def mutated(folder: Path, base: str, seed: int) -> Path:
    """A file with some of its bytes changed, cut off, moved or repeated; of a store, one of its files."""
    path = BASES[base](folder)
    random = np.random.default_rng(seed)
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    file = files[random.integers(len(files))]
    content = bytearray(file.read_bytes())
    kind = seed % 4
    if kind == 0 or len(content) < 8:
        for place in random.integers(len(content), size=random.integers(1, 9)) if content else ():
            content[place] = random.integers(256)
    elif kind == 1:
        del content[random.integers(len(content)) :]
    elif kind == 2:
        first, second = sorted(random.integers(len(content), size=2).tolist())
        content[first:first] = content[second : second + 40]
    else:
        place = int(random.integers(len(content) - 7))
        content[place : place + 4] = [b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f"][seed // 4 % 4]
    file.write_bytes(content)
    return path


def outcome(name: str, path: Path) -> str:
    """What listing, opening and reading a file leads to: "read", the name of a typed error, or any other error."""
    told = []
    for use in (pn.data.list_variables, partial(read, name)):
        try:
            use(path)
            told.append("read")
        except pn.errors.ProbneuralError as error:
            told.append(type(error).__name__)
        except Exception as error:  # noqa: BLE001 (what is looked for)
            told.append(f"raw {type(error).__name__}: {str(error)[:200]}")
    return ", ".join(told)


def read(name: str, path: Path) -> None:
    """Open a file and read some of its pairs."""
    options = OPTIONS
    if path.suffix == ".npy":
        options = {"inputs": ["values"], "outputs": ["values"], "periodic": True}
    elif path.suffix == ".csv":
        options = OPTIONS | {"axes": "n c -> n x"}
    elif name.startswith(("the well", "pdebench", "burgers")):
        options = {} if name.startswith("the well") else {"periodic": True}
    data = opened(path, **options)
    if isinstance(data, pn.data.Trajectories):
        data = data.windows()
    data[: min(len(data), 4)]


def peak() -> int:
    """Megabytes that this process had in use at most since the last call."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    Path("/proc/self/clear_refs").write_text("5")
    return int(status["VmHWM"].split()[0]) // 1024


def main(mode: str, root: Path, first: int, last: int) -> None:
    """Open files number `first` to `last` of a table, each in a folder of its own."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_DATA, MOST_DATA))
    outcome("npz", npz(root))  # which imports what is imported late
    if mode == "cases":
        table = list(cases().items())
    else:
        table = [
            (f"{base} {seed}", partial(mutated, base=base, seed=seed))
            for seed in range(-(-last // len(BASES)))
            for base in BASES
        ]
    for number, (name, write) in enumerate(table[first:last], first):
        folder = root / str(number)
        folder.mkdir()
        path = write(folder)
        peak()
        print(json.dumps({"number": number, "name": name}), flush=True)
        begin = time.process_time()
        told = outcome(name, path)
        record = {"number": number, "name": name, "outcome": told, "seconds": time.process_time() - begin, "megabytes": peak()}
        print(json.dumps(record | {"executed": (folder / "executed").exists()}), flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
