"""A run on a file that is larger than the memory it may take: the same numbers as in memory, and a peak below a bound."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from safetensors.torch import load_file

from probneural import runs
from probneural.data import StoredFields
from probneural.fields import Field
from probneural.runs import folder
from tests.runs.files import cheap, written

PAIRS, POINTS = 4000, 128
"""Of one channel on POINTS x POINTS points: two variables of 262 MB each."""
LIMIT = 750
"""Megabytes, PyTorch included, which has some 300 when it is idle: with the file in memory it would be 850, with all
predictions 1,900."""

RUN = """
import sys
from pathlib import Path
from probneural import runs

path, out = sys.argv[1:]
config = runs.Config(
    data=runs.Data(path=path, inputs=("a",), outputs=("u",), periodic=(True, True)),
    split=runs.Split(test=0.4),
    calibration=runs.Calibration(scales=False, bands=False),  # whose own memory grows with the points of a function
    operator=runs.Operator(options={"modes": [2, 2], "width": 2, "depth": 1, "projection": 4}),
    training=runs.Training(epochs=1, batch_size=50),
    scores=runs.Scores(whole=2),
)
runs.report(config, out, show_progress=False)
runs.predict(out, path, output=out + ".nc", show_progress=False)
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(int(status["VmHWM"].split()[0]) // 1024)
"""


@pytest.mark.slow
def test_peak_memory_does_not_follow_from_the_size_of_the_file(tmp_path: Path) -> None:
    """Training reads 2400 pairs, scores 1600; 4000 functions are predicted into a file of 1 GB."""
    angle = 2 * np.pi * np.arange(POINTS) / POINTS
    wave = (np.sin(angle)[:, None] + np.cos(angle)).astype("f4")
    with h5py.File(tmp_path / "waves.h5", "w") as file:
        for name, power in (("a", 1), ("u", 2)):
            made = file.create_dataset(name, (PAIRS, 1, POINTS, POINTS), "f4")
            for start in range(0, PAIRS, 200):
                size = 1.0 + np.arange(start, start + 200, dtype="f4")[:, None, None, None] / PAIRS
                made[start : start + 200] = (size * wave) ** power
    command = [sys.executable, "-c", RUN, str(tmp_path / "waves.h5"), str(tmp_path / "run")]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert int(finished.stdout) < LIMIT, finished.stdout
    assert (tmp_path / "run.nc").stat().st_size > 4 * 4 * PAIRS * POINTS**2


def test_pairs_on_disk_give_the_numbers_of_those_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, reads = cheap(written(tmp_path)), []
    one = runs.score(config, tmp_path / "memory", show_progress=False)
    read = StoredFields.__getitem__

    def counted(fields: StoredFields, index: object) -> Field:
        reads.append(len(found := read(fields, index)))  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(StoredFields, "__getitem__", counted)
    runs.fit(config, tmp_path / "again", show_progress=False)
    in_memory = len(reads)
    monkeypatch.setattr(folder, "IN_MEMORY", 0)
    reads.clear()
    assert runs.score(config, tmp_path / "disk", show_progress=False) == one
    assert len(reads) > in_memory + 20
    assert max(reads) < 40  # never all of them
    for name in ("operator", "head", "predictor"):
        first, second = (load_file(tmp_path / place / f"{name}.safetensors") for place in ("memory", "disk"))
        assert all(bool((first[key] == second[key]).all()) for key in first)
