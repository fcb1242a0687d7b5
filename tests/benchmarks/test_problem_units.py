"""Units of one problem under one seed: which a run has, and files of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import calibration_units, novelty_units
from benchmarks.problem_units import ProblemUnit

KINDS = (calibration_units.Unit, novelty_units.Unit)


@pytest.mark.parametrize("unit", KINDS)
def test_units_are_told_apart_and_wrong_names_refused(unit: type[ProblemUnit], tmp_path: Path) -> None:
    units = unit.planned("default", "Darcy", seeds=None)
    assert [one.name for one in units[:3]] == ["Darcy 1-D, seed 0", "Darcy 2-D, seed 0", "Darcy 1-D, seed 1"]
    assert len({one.path(tmp_path) for one in units}) == 10
    with pytest.raises(ValueError, match="no problem's name begins with"):
        unit.planned("default", "nothing", seeds=None)


def test_seeds_are_counted() -> None:
    assert [unit.seed for unit in calibration_units.Unit.planned("default", "Heat", seeds=3)] == [0, 1, 2]
    small = calibration_units.Unit.planned("small", None, seeds=2)
    assert [(unit.seed, unit.is_small) for unit in small] == [(0, True), (1, True)]
    assert len({unit.problem for unit in small}) == 1
