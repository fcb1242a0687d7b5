"""The benchmark of long forecasts: what it measures, and how it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import long_forecast
from benchmarks.long_forecast import DRAWS, SMALL, WAYS


def test_a_column_per_number_of_leads() -> None:
    found = [{"draws": "step", "read": "r", "MiB": {4: 7, 8: 9}, "seconds": {4: 0.5, 8: 1.0}}]
    assert long_forecast.table(found, "MiB") == [{"draws": "step", "read": "r", "4 leads": 7, "8 leads": 9}]


def test_what_keeping_all_states_would_take() -> None:
    assert long_forecast.Sizes(functions=2, members=4, resolution=64).kept == pytest.approx(2 * 4 * 64 * 4 * 1000 / 2**20)


def test_memory_and_seconds_are_measured_at_every_length() -> None:
    row = long_forecast.measured("lead by lead", "step", (2, 4), SMALL)
    assert list(row["MiB"]) == list(row["seconds"]) == [2, 4]
    assert all(seconds > 0.0 for seconds in row["seconds"].values())


@pytest.mark.slow
def test_a_small_run(tmp_path: Path) -> None:
    found = long_forecast.main(mode="small", output=tmp_path, workers=1)
    for part in ("memory", "seconds"):
        assert len(found["sections"][part]) == len(DRAWS) * len(WAYS)
