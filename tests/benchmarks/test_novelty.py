"""The benchmark of novelty: what its tables are made of, from predictors whose mistakes are known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import probneural as pn
from benchmarks import novelty
from benchmarks.novelty import Unit
from probneural.fields import Field
from probneural.pairs import FieldPairs
from tests.calibration.synthetic import GRID, Synthetic, pairs


def test_auroc_counts_pairs_that_are_in_order() -> None:
    assert novelty.auroc(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0])) == 1.0
    assert novelty.auroc(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0])) == 0.0
    assert novelty.auroc(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 1.0])) == 0.5


def test_detection_of_what_is_larger_and_of_what_is_not() -> None:
    test, same = pairs(40, seed=7), pairs(40, seed=11)
    large = FieldPairs(Field(8.0 * test.inputs.values, GRID), test.outputs)
    detector = pn.calibration.Novelty().fit(Synthetic(), pairs(80))
    first, second = novelty.detection(detector, test, {"large": large, "same": same})
    assert (first["shift"], second["shift"]) == ("large", "same")
    assert first["components"] > 0.95
    assert second["components"] == pytest.approx(0.5, abs=0.2)  # 3 deviations: (81 / (12 * 40 * 40))^1/2 = .065
    assert first["flagged"] > 0.8 > 0.3 > first["false alarms"]


def test_coverage_and_width_are_of_the_place_and_the_predictor() -> None:
    data, wrong = pairs(60, errors=0.9, seed=7), pairs(60, errors=4.0, seed=11)
    plain, places = Synthetic(), {"in distribution": data, "wrong": wrong}
    rows = novelty.coverage({"in distribution": plain, "wrong": plain}, places, plain, pairs(30, seed=17), "no")
    first, second = rows
    assert first["width in distribution"] == first["width"] == second["width in distribution"] == 1.0
    assert first["coverage"] == pytest.approx(0.9, abs=0.06)
    assert second["coverage"] < 0.5
    assert second["chi2"] > 5.0
    assert second["band coverage"] < first["band coverage"]


def test_shifts_that_resemble_a_place_are_left_out() -> None:
    synthetic = {kind: pairs(2) for kind in ("stretched", "superposed", "roughened")}
    assert list(novelty.without(synthetic, novelty.LIKE["amplitude"])) == ["roughened"]
    assert list(novelty.without(synthetic, novelty.LIKE["roughness"])) == ["stretched", "superposed"]


def test_means_over_seeds_keep_heads_and_places_apart() -> None:
    def result(seed: int) -> dict[str, list[novelty.Row]]:
        rows = [
            {"problem": "p", "head": head, "seed": seed, "place": "x", "widening": "no", "chi2": seed + 1.0} for head in "ab"
        ]
        return {"coverage": rows}

    table = novelty.averaged({Unit("p", seed, "c"): result(seed) for seed in range(3)}, "coverage")
    assert [(row["head"], row["seeds"], row["chi2"]) for row in table] == [("a", 3, 2.0), ("b", 3, 2.0)]
    assert list(table[0]) == ["problem", "head", "place", "widening", "seeds", "chi2"]


def test_units_are_told_apart_and_wrong_names_refused(tmp_path: Path) -> None:
    units = novelty.units("default", "Darcy 1-D")
    assert [unit.name for unit in units] == [f"Darcy 1-D, seed {seed}" for seed in range(3)]
    assert len({unit.path(tmp_path) for unit in units}) == 3
    with pytest.raises(ValueError, match="no problem's name begins with"):
        novelty.units("default", "nothing")


@pytest.mark.slow
def test_a_small_run_has_all_rows() -> None:
    (unit,) = novelty.units("small", None)
    found = unit.run(Path())
    assert len(found["detection"]) == 2 * 2
    assert len(found["coverage"]) == 2 * (3 + 3 + 2)
    assert all(row["width in distribution"] >= 1.0 - 1e-9 for row in found["coverage"])
