"""Where errors are, as far as it can be learned: ranks, tables, and one small unit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import error_places, kept_units
from benchmarks.error_places import DISAGREEMENT, READS, SCALE, SIZES, Unit
from benchmarks.local_scale import FRONTS
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs


def test_ranks_are_those_within_functions() -> None:
    grid = Grid.uniform(5)
    errors = torch.rand(4, 1, 5, generator=torch.Generator().manual_seed(0))
    pairs = FieldPairs(Field(errors, grid), Field(errors, grid))
    sizes = torch.tensor([1.0, 10.0, 0.1, 3.0])[:, None, None]  # of whole functions: they say nothing of places
    assert error_places.ranked(sizes * errors**3, errors, pairs) == pytest.approx(1.0)
    assert error_places.ranked(sizes / errors, errors, pairs) == pytest.approx(-1.0)


def test_numbers_of_functions_are_columns() -> None:
    rows = [
        {"problem": "p", "seed": seed, "reads": "input", "functions": count, "rank": 0.1 * seed + count / 1000}
        for seed in (1, 2)
        for count in (200, 1000)
    ]
    alone = {"problem": "p", "seed": 1, "reads": DISAGREEMENT, "functions": None, "rank": 0.25}
    first, second = error_places.averaged([*rows, alone])
    assert first == {"problem": "p", "reads": "input", "seeds": 2} | {
        "200 functions": "0.350 ± 0.316",  # 6.314 times .1 / 2
        "1000 functions": "1.150 ± 0.316",
    }
    assert second == {"problem": "p", "reads": DISAGREEMENT, "seeds": 1, "none": "0.250"}


def test_units_are_kept(tmp_path: Path) -> None:
    unit = Unit(FRONTS[0], SIZES["small"], 0, "0123456789ab")
    first = kept_units.spread([unit], tmp_path, workers=1)[unit]
    notes: list[str] = []
    assert kept_units.spread([unit], tmp_path, workers=1, notes=notes)[unit] == first | {"resumed": True}
    assert [note[:42] for note in notes] == ["1 of 1 units were finished by an earlier r"]
    assert not first[error_places.FAILED]
    found = [(row["reads"], row["functions"]) for row in first["rows"]]
    assert found == [(DISAGREEMENT, None), *((what, count) for count in (30, 60) for what in (*READS, SCALE))]
    assert all(-1.0 <= row["rank"] <= 1.0 for row in first["rows"])
