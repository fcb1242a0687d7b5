"""What every data set does, in memory or stored: the same rows, bit for bit, as the arrays that it was made of."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
import pytest
import torch
import zarr

from probneural import data as pn_data
from probneural.errors import ArgumentError, DataError
from probneural.grids import Grid
from probneural.pairs import Dataset, FieldPairs, FieldSource, batches
from probneural.statistics import units
from tests.data.files import labelled, numbers, write_hdf5, write_zarr
from tests.helpers import one_of_each

COUNT = 90
GRID = Grid.uniform((8, 6))
A, U = numbers(COUNT, 2, 8, 6, seed="inputs"), numbers(COUNT, 3, 8, 6, seed="outputs", dtype="f8")
NAMES = {"inputs": ["a"], "outputs": ["u"], "periodic": (True, True)}
Make = Callable[[Path, np.ndarray, np.ndarray], Dataset]


@dataclass(frozen=True)
class Case:
    """A way to make a data set of two arrays."""

    name: str
    make: Make
    is_stored: bool = True

    def __str__(self) -> str:
        return self.name


def memory_maps(folder: Path, a: np.ndarray, u: np.ndarray) -> Dataset:
    np.save(folder / "a.npy", a)
    np.save(folder / "u.npy", u)
    maps = [np.load(folder / name, mmap_mode="r") for name in ("a.npy", "u.npy")]
    return pn_data.from_arrays(*maps, periodic=(True, True))


def numpy_folder(folder: Path, a: np.ndarray, u: np.ndarray) -> Dataset:
    memory_maps(folder, a, u)
    return pn_data.open(folder, **NAMES)


def big_endian_columns(folder: Path, a: np.ndarray, u: np.ndarray) -> Dataset:
    """A memory map that is not one block of the file, and numbers of the other byte order."""
    wide = np.lib.format.open_memmap(folder / "a.npy", mode="w+", dtype=">f4", shape=(2 * len(a), *a.shape[1:]))
    wide[::2] = a
    return pn_data.from_arrays(wide[::2], u.astype(">f8"), grid=GRID)


def hdf5(chunks: tuple[int, ...] | None) -> Make:
    return lambda folder, a, u: pn_data.open(write_hdf5(folder / "f.h5", chunks, a=a, u=u), **NAMES)


def hdf5_arrays(folder: Path, a: np.ndarray, u: np.ndarray) -> Dataset:
    with h5py.File(write_hdf5(folder / "f.h5", (7, 1, 8, 4), a=a, u=u)) as file:
        return pn_data.from_arrays(file["a"], file["u"], periodic=(True, True))


def zarr_arrays(folder: Path, a: np.ndarray, u: np.ndarray) -> Dataset:
    group = zarr.open_group(write_zarr(folder / "f.zarr", 7, a=a, u=u), mode="r")
    return pn_data.from_arrays(group["a"], group["u"], periodic=(True, True))


def netcdf(engine: str) -> Make:
    def make(folder: Path, a: np.ndarray, u: np.ndarray) -> Dataset:
        labelled(a=a, u=u).to_netcdf(folder / "f.nc", engine=engine)
        return pn_data.open(folder / "f.nc", **NAMES)

    return make


def named_zarr(version: int) -> Make:
    def make(folder: Path, a: np.ndarray, u: np.ndarray) -> Dataset:
        encoding = {"a": {"chunks": (7, 1, 8, 6)}}
        labelled(a=a, u=u).to_zarr(folder / "f.zarr", encoding=encoding, zarr_format=version, consolidated=False)
        return pn_data.open(folder / "f.zarr", **NAMES)

    return make


CASES = [
    Case("FieldPairs", lambda _, a, u: FieldPairs.from_numpy(a, u, grid=GRID), is_stored=False),
    Case("arrays", lambda _, a, u: pn_data.from_arrays(a, u, periodic=(True, True))),
    Case("tensors", lambda _, a, u: pn_data.from_arrays(torch.from_numpy(a), torch.from_numpy(u), grid=GRID)),
    Case("memory-maps", memory_maps),
    Case("big-endian-columns", big_endian_columns),
    Case("numpy-folder", numpy_folder),
    Case("hdf5", hdf5(None)),
    Case("hdf5-chunks", hdf5((7, 1, 8, 4))),
    Case("hdf5-arrays", hdf5_arrays),
    Case("zarr", lambda folder, a, u: pn_data.open(write_zarr(folder / "f.zarr", 7, a=a, u=u), **NAMES)),
    Case("zarr-arrays", zarr_arrays),
    Case("zarr-names-2", named_zarr(2)),
    Case("zarr-names-3", named_zarr(3)),
    Case("netcdf-4", netcdf("h5netcdf")),
    Case("netcdf-3", netcdf("scipy")),
]
INDICES = [
    3,
    -1,
    slice(10, 40),
    slice(None),
    slice(None, None, 7),
    [5, 5, 80, 1],
    [-1, 0, -90],
    [],
    torch.arange(COUNT) % 3 == 0,
]


@pytest.fixture(params=one_of_each(CASES, lambda case: case.name.split("-")[0]), ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def data(case: Case, tmp_path: Path) -> Dataset:
    return case.make(tmp_path, A, U)


@pytest.fixture(scope="module")
def reference() -> FieldPairs:
    return FieldPairs.from_numpy(A, U, grid=GRID)


def same(found: FieldPairs, expected: FieldPairs) -> bool:
    """Whether pairs have equal grids, dtypes and bits."""
    sides = ((found.inputs, expected.inputs), (found.outputs, expected.outputs))
    return all(
        one.grid == other.grid and one.dtype == other.dtype and torch.equal(one.values, other.values) for one, other in sides
    )


def test_it_meets_the_protocol(data: Dataset, reference: FieldPairs) -> None:
    assert isinstance(data, Dataset)
    for side, expected in ((data.inputs, reference.inputs), (data.outputs, reference.outputs)):
        assert isinstance(side, FieldSource)
        assert (len(side), side.channels, side.grid, side.dtype, side.device) == (
            COUNT,
            expected.channels,
            GRID,
            torch.float64,
            torch.device("cpu"),
        )
    assert len(data) == COUNT


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_rows_are_those_in_memory(data: Dataset, reference: FieldPairs, index: int | slice | Sequence[int]) -> None:
    assert same(data[index], reference[index])
    assert torch.equal(data.outputs[index].values, reference.outputs[index].values)
    chosen = data.subset(index)
    assert len(chosen) == len(reference[index])
    assert same(chosen[:], reference[index])


def test_a_subset_of_a_subset(data: Dataset, reference: FieldPairs) -> None:
    assert same(data.subset(slice(10, 50)).subset([3, 3, -1])[1:], reference[[13, 49]])


def test_batches_read_all(data: Dataset, reference: FieldPairs) -> None:
    assert same(FieldPairs.cat(list(batches(data, 32))), reference)


def test_splits_are_those_in_memory(data: Dataset, reference: FieldPairs) -> None:
    for found, expected in zip(data.split(30, seed=4), reference.split(30, seed=4), strict=True):
        assert same(found[:], expected)
    with pytest.raises(ArgumentError, match="expected an integer from 1 to 89 as count"):
        data.split(COUNT, seed=0)


def test_to_converts_what_is_read(data: Dataset, reference: FieldPairs) -> None:
    found = data.to(torch.float32)
    assert (found.inputs.dtype, found.outputs.dtype) == (torch.float32, torch.float32)
    assert same(found[5:9], reference[5:9].to(torch.float32))
    assert data.to("meta")[0].inputs.device.type == "meta"
    with pytest.raises(DataError, match="expected float32 or float64"):
        data.to(torch.float16)
    with pytest.raises(ArgumentError, match="expected a device"):
        data.to("nowhere")


def test_what_is_read_takes_gradients(data: Dataset, reference: FieldPairs) -> None:
    found = data.detached()
    assert not found[:2].inputs.values.requires_grad
    assert same(found[:2], reference[:2])


def test_fingerprints_follow_from_contents(case: Case, tmp_path: Path) -> None:
    """Small sets have that of the same pairs in memory; of larger ones it is that of a sample, whatever holds them."""
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    data = case.make(tmp_path / "first", A, U)
    assert data.subset(range(64)).fingerprint == FieldPairs.from_numpy(A[:64], U[:64], grid=GRID).fingerprint
    if case.is_stored:
        assert data.fingerprint == pn_data.from_arrays(A, U, grid=GRID).fingerprint
    assert case.make(tmp_path / "second", A, U).fingerprint == data.fingerprint
    others = [data.subset(slice(0, 89)), data.to(torch.float32), data.subset(torch.arange(COUNT - 1, -1, -1))]
    assert len({data.fingerprint, *(other.fingerprint for other in others)}) == 4
    changed = U.copy()
    changed[0] += 1
    (tmp_path / "third").mkdir()
    assert case.make(tmp_path / "third", A, changed).fingerprint != data.fingerprint


def test_pickling(data: Dataset, reference: FieldPairs) -> None:
    assert same(data[3:5], reference[3:5])  # what it has opened stays behind
    assert same(pickle.loads(pickle.dumps(data))[3:5], reference[3:5])  # noqa: S301


def test_two_threads_read(data: Dataset, reference: FieldPairs) -> None:
    orders = [torch.randperm(COUNT, generator=torch.Generator().manual_seed(seed)) for seed in range(20)]
    with ThreadPoolExecutor(2) as pool:
        assert all(
            same(found, reference[order]) for found, order in zip(pool.map(data.__getitem__, orders), orders, strict=True)
        )


def test_workers_of_a_loader_read(data: Dataset, reference: FieldPairs) -> None:
    """Forked ones: spawned ones get what was pickled."""
    assert same(data[:2], reference[:2])  # what this process has opened is no use to the others
    rows = [list(range(start, start + 30)) for start in (0, 30, 60)]
    loader = torch.utils.data.DataLoader(
        _Rows(data), sampler=rows, batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    found = [FieldPairs.from_numpy(inputs.numpy(), outputs.numpy(), grid=GRID) for inputs, outputs in loader]
    assert same(FieldPairs.cat(found), reference)


class _Rows(torch.utils.data.Dataset):
    """Rows of a data set as tensors."""

    def __init__(self, data: Dataset) -> None:
        self.data = data

    def __getitem__(self, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = self.data[rows]
        return pairs.inputs.values, pairs.outputs.values


@pytest.mark.bad_input
@pytest.mark.parametrize("index", [[COUNT], [-COUNT - 1], [0.5], "one", [[1]]], ids=str)
def test_rows_that_are_not_there(data: Dataset, index: object) -> None:
    for read in (data.__getitem__, data.subset, data.inputs.__getitem__):
        with pytest.raises(DataError, match=f"expected an index over {COUNT} functions"):
            read(index)


def test_one_row_that_is_not_there(data: Dataset) -> None:
    with pytest.raises(IndexError):
        data[COUNT]


def test_values_are_checked_where_they_are_read(case: Case, tmp_path: Path) -> None:
    broken = U.copy()
    broken[41, 1, 2, 3] = np.nan
    if not case.is_stored:
        with pytest.raises(DataError, match="finite"):
            case.make(tmp_path, A, broken)
        return
    data = case.make(tmp_path, A, broken)
    assert len(data[:41]) == 41
    assert len(data.inputs[:]) == COUNT
    for index in ([0, 41, 2], slice(None)):
        with pytest.raises(DataError, match=r"finite .* NaN or infinite in function 41"):
            data[index]
    with pytest.raises(DataError, match="in function 41"):
        data.subset([50, 41])[1]


def test_units_have_the_bits_of_those_in_memory(data: Dataset, reference: FieldPairs) -> None:
    for side, expected in ((data.inputs, reference.inputs), (data.outputs, reference.outputs)):
        assert all(torch.equal(one, other) for one, other in zip(units(side), units(expected), strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_default_data_loader_makes_batches_of_pairs(workers: int, tmp_path: Path) -> None:
    data = memory_maps(tmp_path, A[:10], U[:10])
    batches_read = list(torch.utils.data.DataLoader(data, batch_size=4, num_workers=workers))  # type: ignore[arg-type]
    assert [len(batch) for batch in batches_read] == [4, 4, 2]
    assert torch.equal(FieldPairs.cat(batches_read).outputs.values, data[:].outputs.values)
    windows = FieldPairs(data[:].inputs, data[:].outputs, groups=torch.arange(10) // 3)
    loaded = list(torch.utils.data.DataLoader(windows, batch_size=5))  # type: ignore[arg-type]
    assert [batch.groups.tolist() for batch in loaded] == [[0, 0, 0, 1, 1], [1, 2, 2, 2, 3]]


# Memory in use while files larger than it is meant to be are read from start to end

SHAPE = (6000, 1, 256, 256)
"""Of float32: 1.57 GB."""
CHUNKS = (8, 1, 256, 256)
DIMENSIONS = ("sample", "channel", "x0", "x1")
LIMIT = 600
"""Megabytes, PyTorch and what reads the file included."""

READ = """
import sys
from pathlib import Path
import numpy as np
import probneural as pn
from probneural.pairs import batches
from probneural.statistics import statistics

kind, path = sys.argv[1:]
if kind == "npy":
    array = np.load(path, mmap_mode="r")
    data = pn.data.from_arrays(array, array, periodic=True)
else:
    data = pn.data.open(path, inputs=["a"], outputs=["a"], periodic=True)
assert statistics(data.inputs).count == len(data) == 6000
assert sum(len(batch) for batch in batches(data.subset(range(2000)), 32)) == 2000
assert data.fingerprint
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(int(status["VmHWM"].split()[0]) // 1024)  # getrusage would count the process that started this one
"""


def write(kind: str, folder: Path) -> Path:
    """A file of zeros, which takes little of the disk."""
    path = folder / "data"
    if kind == "npy":
        np.lib.format.open_memmap(path, mode="w+", dtype="f4", shape=SHAPE).flush()
    elif kind == "netcdf-4":
        with h5netcdf.File(path, "w") as file:
            file.dimensions = dict(zip(DIMENSIONS, SHAPE, strict=True))
            for dimension in DIMENSIONS[2:]:
                file.create_variable(dimension, (dimension,), "f4")[...] = np.arange(256) / 256
            made = file.create_variable("a", DIMENSIONS, "f4", chunks=CHUNKS, compression="gzip", compression_opts=1)
            fill(made)
    elif kind == "hdf5":
        with h5py.File(path, "w") as file:
            made = file.create_dataset("a", SHAPE, "f4", chunks=CHUNKS, compression="gzip", compression_opts=1)
            fill(made)
    else:
        fill(zarr.open_group(path, mode="w").create_array("a", shape=SHAPE, dtype="f4", chunks=CHUNKS), 1.0)
    return path


def fill(array: Any, value: float = 0.0) -> None:
    """Write one number everywhere, a few functions at a time."""
    for start in range(0, SHAPE[0], 200):
        array[start : start + 200] = np.full((200, *SHAPE[1:]), value, "f4")


def peak(kind: str, folder: Path) -> int:
    """Megabytes that a process of its own had in use at most."""
    command = [sys.executable, "-c", READ, kind, str(write(kind, folder))]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return int(finished.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npy", "hdf5", "netcdf-4", "zarr"])
def test_peak_memory_does_not_follow_from_the_size_of_a_file(kind: str, tmp_path: Path) -> None:
    assert peak(kind, tmp_path) < LIMIT
