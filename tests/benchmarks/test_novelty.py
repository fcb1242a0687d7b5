"""The benchmark of novelty: what its tables are made of, from predictors whose mistakes are known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import probneural as pn
from benchmarks import novelty_units
from benchmarks.novelty_units import FAILED, NOT_WIDENED, Functions, Unit
from probneural.fields import Field
from probneural.pairs import FieldPairs
from tests.calibration.synthetic import GRID, Synthetic, pairs


def functions(
    *, test: FieldPairs, shifts: Mapping[str, FieldPairs], noise: float = 0.1, unseen: frozenset[str] = frozenset()
) -> Functions:
    """Functions whose calibration pairs are as far from `Synthetic()` as it states, without synthetic shifts."""
    train = pairs(20, errors=1.0, seed=3)
    return Functions(
        train=train,
        calibration=pairs(80, errors=1.0),
        conformal=pairs(30, errors=1.0, seed=17),
        test=test,
        shifts=shifts,
        synthetic={},
        unseen=unseen,
        noise=torch.tensor([noise], dtype=torch.float64),
    )


def test_auroc_counts_pairs_that_are_in_order() -> None:
    assert novelty_units.auroc(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0])) == 1.0
    assert novelty_units.auroc(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0])) == 0.0
    assert novelty_units.auroc(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 1.0])) == 0.5


def test_detection_of_what_is_larger_and_of_what_is_not() -> None:
    test, same = pairs(40, seed=7), pairs(40, seed=11)
    large = FieldPairs(Field(8.0 * test.inputs.values, GRID), test.outputs)
    detector = pn.calibration.Novelty().fit(Synthetic(), pairs(80))
    some = functions(test=test, shifts={"large": large, "same": same}, unseen=frozenset({"same"}))
    referred = pn.calibration.Novelty().fit(Synthetic(), pairs(80), reference=pairs(200, seed=3))
    first, second = novelty_units.detection(some, detector, referred)
    assert (first["shift"], second["shift"]) == ("large", "same")
    assert (first["inputs"], second["inputs"]) == ("changed", "as they were")
    assert first["components"] > 0.95
    assert second["components"] == pytest.approx(0.5, abs=0.2)  # 3 deviations: (81 / (12 * 40 * 40))^1/2 = .065
    assert first["flagged"] > 0.8 > 0.3 > first["false alarms"]
    known, new = (referred.scores(one.inputs)["combined"] for one in (test, large))
    assert first["combined, reference"] == novelty_units.auroc(known, new) != first["combined"]


def test_coverage_and_width_are_of_the_place_and_the_predictor() -> None:
    plain, some = Synthetic(), functions(test=pairs(60, errors=0.9, seed=7), shifts={"wrong": pairs(60, errors=4.0, seed=11)})
    places = ("in distribution", "wrong")
    first, second = novelty_units.coverage(plain, places, some, scaled=plain, widening=NOT_WIDENED)
    assert first["width in distribution"] == first["width"] == second["width in distribution"] == 1.0
    assert first["coverage"] == pytest.approx(0.9, abs=0.06)
    assert second["coverage"] < 0.5
    assert second["chi2"] > 5.0
    assert second["band coverage"] < first["band coverage"]


@pytest.mark.slow
def test_a_small_run_has_all_rows() -> None:
    (unit,) = Unit.planned("small", None, seeds=None)
    found = unit.run(Path())
    assert len(found["detection"]) == 2 * 2
    assert len(found["coverage"]) == 2 * (3 + 3 + 2)
    assert found[FAILED] == []
    assert all(row["width in distribution"] >= 1.0 - 1e-9 for row in found["coverage"])
