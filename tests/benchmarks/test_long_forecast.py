"""The benchmark of long forecasts: what it measures, and how it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import long_forecast
from benchmarks.long_forecast import DRAWS, SMALL, WAYS, Cell


def test_a_column_per_number_of_leads() -> None:
    cells = [Cell("r", draws, steps, SMALL) for draws in ("step", "trajectory") for steps in (4, 8)]
    found = {cell: {"MiB": number, "seconds": 0.5 * number} for number, cell in enumerate(cells)}
    assert long_forecast.table(found, "seconds") == [
        {"draws": "step", "read": "r", "4 leads": 0.0, "8 leads": 0.5},
        {"draws": "trajectory", "read": "r", "4 leads": 1.0, "8 leads": 1.5},
    ]


def test_what_keeping_all_states_would_take() -> None:
    assert long_forecast.Sizes(functions=2, members=4, resolution=64).kept == pytest.approx(2 * 4 * 64 * 4 * 1000 / 2**20)


def test_memory_and_seconds_are_those_of_one_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setitem(long_forecast.WAYS, "lead by lead", lambda forecast: read.append(forecast.steps))
    row = long_forecast.measured(Cell("lead by lead", "step", 6, SMALL))
    assert read == [long_forecast.FIRST, 6]
    assert row["seconds"] >= 0.0
    assert row["MiB"] >= 0


@pytest.mark.slow
def test_a_small_run(tmp_path: Path) -> None:
    found = long_forecast.main(mode="small", output=tmp_path, workers=1)
    for part in ("memory", "seconds"):
        assert len(found["sections"][part]) == len(DRAWS) * len(WAYS)
