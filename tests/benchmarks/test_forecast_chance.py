"""What splits of trajectories say of spread over skill, where the answer is known, and one small run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import forecast_chance, kept_units
from benchmarks.forecast_chance import COUNTS, HEAD, NOTHING
from tests.helpers import normal

COMMIT = "0123456789ab"


def test_what_is_known_exactly_leaves_nothing_to_chance() -> None:
    squares = normal(500, 3, 2, seed=0, dtype=torch.float64).square()
    found = forecast_chance.ratios(0.25 * squares, squares, count=40, splits=20, seed=0)
    torch.testing.assert_close(found, torch.ones(20, 3, dtype=torch.float64))


@pytest.mark.parametrize("count", [50, 200])
def test_scatter_of_squares_of_normal_errors(count: int) -> None:
    """The mean of n such squares has a relative variance of 2/n: half the logarithm of a ratio of two, 1/n."""
    squares = normal(20_000, 1, 1, seed=1, dtype=torch.float64).square()
    found = forecast_chance.ratios(torch.ones_like(squares), squares, count=count, splits=2000, seed=0)
    assert float(found.log().std()) == pytest.approx(1 / math.sqrt(count), rel=0.08)
    assert float(found.log().mean()) == pytest.approx(0.0, abs=4 / math.sqrt(2000 * count))


def test_chance_of_means_over_seeds() -> None:
    """Two seeds that stray in opposite directions have a mean within the range; the worst lead counts."""
    up = torch.tensor([[1.0, 1.08], [1.0, 1.3]], dtype=torch.float64)
    found = forecast_chance.chance(torch.stack([up, 2.0 - up]))
    assert (found["worst lead"], found["met"]) == ("1.00 to 1.00", 1.0)
    alone = forecast_chance.chance(up[None])
    assert alone["met"] == 0.5
    low, high = (float(part) for part in alone["worst lead"].split(" to "))
    assert 1.08 < low < high < 1.3
    assert alone["sd 1"] == 0.0


def test_units_are_kept_and_shown(tmp_path: Path) -> None:
    every = forecast_chance.units(small=True, commit=COMMIT)
    assert [unit.case.name for unit in every] == [
        "heat",
        "advection-diffusion",
        "shallow water",
        "burgers",
        "korteweg-de vries",
    ]
    pools = {unit.case.name: unit.pool for unit in forecast_chance.units(small=False, commit=COMMIT)}
    assert pools == {name: 300 if name == "shallow water" else 1500 for name in pools}
    unit = replace(every[0], pool=6)
    found = kept_units.spread([unit], tmp_path, workers=1)
    again = kept_units.spread([unit], tmp_path, workers=1)
    assert again[unit] == found[unit] | {"resumed": True}
    rows = forecast_chance.table(found)
    assert [(row["stated"], row["trajectories"]) for row in rows] == [(kind, n) for kind in (HEAD, NOTHING) for n in COUNTS]
    assert rows[0]["sd 1"] > rows[2]["sd 1"] > 0
    assert 1 / 6 < rows[0]["largest"] < 1
