"""The benchmark of novelty: what its tables are made of, from predictors whose mistakes are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import probneural as pn
from benchmarks import kept_units, novelty, novelty_units
from benchmarks.novelty_units import ALL_KINDS, FAILED, NOT_WIDENED, Functions, Unit
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


def exactly(some: FieldPairs) -> FieldPairs:
    """The outputs that `Synthetic` predicts."""
    return FieldPairs(some.inputs, some.inputs)


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


def test_a_predictor_without_a_scale_costs_only_its_own_rows() -> None:
    """It states no variance where its basis vanishes, and errs there."""
    some = functions(test=pairs(20, seed=7), shifts={"amplitude": pairs(20, seed=11)}, noise=0.0)
    found = novelty_units.scored(partial(Synthetic, noise=0.0), some)
    assert [row["shift"] for row in found["detection"]] == ["amplitude"]
    assert found["coverage"] == []
    ((what, error),) = [(row["what"], row["error"]) for row in found[FAILED]]
    assert what == "scale"
    assert error.startswith("CalibrationError: expected a positive finite chi2")
    (note,) = kept_units.failures({"problem": "p", "head": "exact", "seed": 1} | row for row in found[FAILED])
    assert note.startswith("failed: p, exact, seed 1, scale: CalibrationError")


@pytest.mark.filterwarnings("ignore:the stated noise")  # which the errors of sixty functions fall short of, by chance
def test_measurement_noise_gives_an_exact_predictor_its_scale() -> None:
    """Its bars are those of the measurements: right wherever the predictor is right, and nothing to widen."""
    clean = [exactly(pairs(60, seed=seed)) for seed in (0, 7, 11, 17)]
    noise = novelty_units.noise_variance(clean[0])
    calibration, test, shifted, conformal = (
        novelty_units.measured(one, noise, torch.Generator().manual_seed(number)) for number, one in enumerate(clean)
    )
    some = functions(test=test, shifts={"amplitude": shifted})
    some = replace(some, calibration=calibration, conformal=conformal, noise=noise, synthetic={"stretched": shifted})
    found = novelty_units.scored(Synthetic, some)
    assert found[FAILED] == []
    assert {row["widening"] for row in found["coverage"]} == {NOT_WIDENED, ALL_KINDS}
    for row in found["coverage"]:
        assert row["coverage"] == pytest.approx(0.9, abs=0.04)  # 960 values: four deviations
        assert row["width in distribution"] == pytest.approx(1.0, abs=0.02)


def results(coverage: Mapping[str, float], *, width: float = 1.2, auroc: float = 0.97) -> novelty.Results:
    """Two seeds of one problem and head, whose values lie .01 on either side."""
    found: dict[Unit, dict[str, Any]] = {}
    for seed, off in enumerate((-0.01, 0.01)):
        own = {"problem": "p", "head": "h", "seed": seed}
        aurocs = {"combined": auroc + off, "combined, reference": auroc + off - 0.01}
        seen = [own | {"shift": name, "inputs": "changed"} | aurocs for name in ("amplitude", "contrast")]
        seen.append(own | {"shift": "time", "inputs": "as they were", "combined": 0.5, "combined, reference": 0.5})
        bars = [
            own | {"place": "amplitude", "widening": name, "coverage": value + off, "width in distribution": width}
            for name, value in coverage.items()
        ]
        found[Unit("p", seed, "c")] = {"detection": seen, "coverage": bars, FAILED: []}
    return found


def test_means_over_seeds_have_intervals() -> None:
    first, *_, last = novelty.averaged(results({NOT_WIDENED: 0.5}), "detection")
    assert (first["seeds"], first["shift"], last["shift"]) == (2, "amplitude", "time")
    assert first["combined"] == pytest.approx(0.97)
    assert first["combined, ±"] == pytest.approx(6.3138 * 0.01, rel=1e-4)  # t(.95, 1) standard errors
    (row,) = novelty.averaged(results({NOT_WIDENED: 0.5}), "coverage")
    assert list(row)[:4] == ["problem", "head", "place", "widening"]


@pytest.mark.slow
def test_a_small_run_has_all_rows() -> None:
    (unit,) = Unit.planned("small", None, seeds=None)
    found = unit.run(Path())
    assert len(found["detection"]) == 2 * 2
    assert len(found["coverage"]) == 2 * (3 + 3 + 2)
    assert found[FAILED] == []
    assert all(row["width in distribution"] >= 1.0 - 1e-9 for row in found["coverage"])
