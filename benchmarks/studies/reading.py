"""Reading data: functions per second from files of each format, beside indexing the same pairs in memory; one thread."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import probneural as pn
from benchmarks import sections, studies
from benchmarks.timing import interleaved
from probneural.pairs import Dataset
from probneural.randomness import stream

COUNT, POINTS, BATCH, ROUNDS = 4096, 64, 32, 9
"""Pairs, points per side of the square, pairs of a batch, rounds."""

Make = Callable[[Path, np.ndarray], Dataset]


def _npy(path: Path, values: np.ndarray) -> Dataset:
    np.save(path.with_suffix(".npy"), np.stack([values, -values]))
    stored = np.load(path.with_suffix(".npy"), mmap_mode="r")
    return pn.data.from_arrays(stored[0], stored[1], periodic=True)


def _hdf5(chunk: int | None) -> Make:
    def make(path: Path, values: np.ndarray) -> Dataset:
        import h5py

        with h5py.File(path, "w") as file:
            options: dict[str, Any] = {} if chunk is None else {"chunks": (chunk, *values.shape[1:]), "compression": "lzf"}
            for name, factor in (("a", 1.0), ("u", 2.0)):
                file.create_dataset(name, data=factor * values, **options)
        return _opened(path)

    return make


def _zarr(chunk: int) -> Make:
    def make(path: Path, values: np.ndarray) -> Dataset:
        import zarr

        group = zarr.open_group(path, mode="w")
        for name, factor in (("a", 1.0), ("u", 2.0)):
            stored = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(chunk, *values.shape[1:]))
            stored[...] = factor * values
        return _opened(path)

    return make


def _netcdf(path: Path, values: np.ndarray) -> Dataset:
    field = pn.Field(torch.from_numpy(values), pn.Grid.uniform(values.shape[2:]))
    array = field.to_xarray()
    array.to_dataset(name="a").assign(u=2.0 * array).to_netcdf(path, engine="h5netcdf")
    return _opened(path)


def _opened(path: Path) -> Dataset:
    return pn.data.open(path, inputs=["a"], outputs=["u"], periodic=(True, True))


STORES: dict[str, Make] = {
    ".npy": _npy,
    "HDF5": _hdf5(None),
    "HDF5, compressed chunks of 1": _hdf5(1),
    "HDF5, compressed chunks of 32": _hdf5(32),
    "zarr, compressed chunks of 1": _zarr(1),
    "zarr, compressed chunks of 32": _zarr(32),
    "NetCDF-4": _netcdf,
}


def main(*, mode: str, output: Path) -> dict[str, Any]:
    """Run all parts."""
    is_small = mode == "small"
    count, rounds = (128, 2) if is_small else (COUNT, ROUNDS)
    torch.set_num_threads(1)
    return sections.write(
        "reading",
        {"rates": lambda: measure(count, rounds)},
        mode=mode,
        output=output,
        peers=("h5py", "h5netcdf", "zarr", "xarray"),
        notes=[
            f"{count} pairs of {POINTS} x {POINTS} points, float32, batches of {BATCH}, both sides read and checked",
            "files just written, so in the system's cache: what reading costs beside the disk",
            f"pairs per second, medians of {rounds} rounds in which all take turns",
        ],
    )


def measure(count: int, rounds: int) -> list[dict[str, Any]]:
    """Pairs per second of each store, in order and at random."""
    values = torch.randn(count, 1, POINTS, POINTS, generator=stream(0, "stored functions")).numpy()
    orders = {
        "in order": torch.arange(count),
        "at random": torch.randperm(count, generator=stream(1, "stored functions")),
    }
    with tempfile.TemporaryDirectory() as folder:
        memory = pn.FieldPairs.from_numpy(values, -values, periodic=(True, True))
        data: dict[str, Dataset] = {"memory": memory}
        for number, (name, make) in enumerate(STORES.items()):
            data[name] = make(Path(folder, str(number)), values)
        rows: list[dict[str, Any]] = [{"store": name} for name in data]
        for order, index in orders.items():
            tasks = {name: _pass(one, index) for name, one in data.items()}
            seconds = {name: statistics.median(times) for name, times in interleaved(tasks, rounds, warm_up=1).items()}
            for row in rows:
                own = seconds[row["store"]]
                row |= {f"pairs/s, {order}": count / own, f"of memory's, {order}": seconds["memory"] / own}
    return rows


def _pass(data: Dataset, index: torch.Tensor) -> Callable[[], object]:
    """Read all pairs once, in batches."""
    return lambda: [len(data[rows]) for rows in index.split(BATCH)]


if __name__ == "__main__":
    studies.run(main)
