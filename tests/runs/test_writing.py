"""NetCDF files on disks that become full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, signal, sys
from pathlib import Path
import numpy as np, xarray
from probneural.runs.prediction import write_netcdf
from probneural.errors import FileError
from probneural.training import atomic
for most in (100, 3_000, 30_000, 200_000, 799_000):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    parts = (xarray.Dataset({"u": (("n", "x"), np.full((10, 1000), float(number)))}) for number in range(10))
    try:
        with atomic.replacing(Path(sys.argv[1]) / "out.nc") as temporary:
            write_netcdf(temporary, parts, along="n", count=100)
    except FileError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on the sizes of files")
def test_a_full_disk_is_an_error_and_does_not_end_the_process(tmp_path: Path) -> None:
    """HDF5 ended the process at its exit, whether it wrote by name or through a stream that raised."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("File too large") == 5
    assert not list(tmp_path.iterdir())
