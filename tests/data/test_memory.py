"""Memory in use while files larger than it is meant to be are read from start to end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
import pytest
import zarr

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
