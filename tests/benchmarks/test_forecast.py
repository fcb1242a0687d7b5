"""The forecast benchmark: equal time, forecasts without networks, tables, and units that are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import probneural as pn
from benchmarks import forecast, forecast_cases, forecast_recipes, kept_units
from benchmarks.forecast_recipes import BATCH, FREE, JUDGED, RECIPES, StepRegression, duration, epochs_for
from benchmarks.forecast_units import CHOICE, Unit

COMMIT = "0123456789ab"


def case(name: str = "heat") -> forecast_cases.Case:
    return forecast_cases.chosen(name, small=True)[0]


def test_recipes_take_equal_time() -> None:
    """Within half of what the last epoch adds."""
    for unroll in RECIPES.values():
        epochs = epochs_for(unroll, budget=1200.0, windows=100)
        before, chosen, after = (100 * duration(unroll) * (epochs + more) for more in (-1, 0, 1))
        assert before < chosen < after
        assert (before + chosen) / 2 <= 1200.0 <= (chosen + after) / 2


@pytest.mark.parametrize("name", list(RECIPES))
def test_evaluations_are_those_of_training(name: str) -> None:
    truth, unroll, epochs = case().truth("train", seed=0), RECIPES[name], 2
    counts = {True: 0, False: 0}

    class Counted(pn.operators.FNO):
        def forward(self, values: torch.Tensor, *, grid: Any = None, query: Any = None) -> torch.Tensor:
            counts[torch.is_grad_enabled()] += len(values)
            return super().forward(values, grid=grid, query=query)

    pairs = truth.windows(steps=unroll.steps)
    pn.fit(
        Counted(1, 1, modes=(2,), width=2, depth=1, projection=2),
        pairs,
        epochs=epochs,
        loss=unroll,
        data=pn.training.DataOptions(validation=0.0),
        show_progress=False,
    )
    judged = counts[True] / len(pairs) / epochs
    free = counts[False] / len(pairs) / epochs
    assert BATCH + JUDGED * judged + FREE * free == pytest.approx(duration(unroll))


def test_the_regression_of_the_step_solves_a_linear_step() -> None:
    """Heat is diagonal; with more windows than modes, and a small ridge, roll-outs are exact."""
    chosen = replace(case(), sizes=replace(forecast_cases.SMALL, train=24, scaling=8))
    train, scaling, test = (chosen.truth(part, seed=1) for part in ("train", "scaling", "test"))
    regression = StepRegression.fitted(train, scaling)
    error = (regression.rolled_out(test) - test.values.double()).norm() / test.values.double().norm()
    assert error < 1e-4
    assert regression.ridge < 1e-6


def test_finished_units_and_networks_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = Unit(case(), "recipes", "several steps", 0, COMMIT)
    first = kept_units.spread([unit], tmp_path, workers=1)[unit]
    assert "resumed" not in first
    trained: list[object] = []
    monkeypatch.setattr(forecast_recipes.pn, "fit", lambda *arguments, **options: trained.append(arguments))
    again = kept_units.spread([unit], tmp_path, workers=1)[unit]
    assert again == first | {"resumed": True}
    unit.path(tmp_path).unlink()
    other = kept_units.spread([unit], tmp_path, workers=1)[unit]  # from the network that was kept
    seconds = ("wall_seconds", "processor_seconds")
    assert all(other[name] == value for name, value in first.items() if name not in seconds)
    assert trained == []
    changes: list[dict[str, Any]] = [{}, {"seed": 1}, {"commit": "ba9876543210"}, {"recipe": "one step"}]
    assert len({replace(unit, **change).path(tmp_path) for change in changes}) == 4


def _result(crps: list[float], *, ratio: float = 1.0) -> dict[str, Any]:
    together = sum(crps) / len(crps)
    scores = {
        "crps": {"values": crps, "overall": together},
        "spread_skill": {"values": [ratio] * len(crps), "overall": ratio},
        "coverage": {"values": [0.9] * len(crps), "overall": 0.9},
        "energy": {"values": crps, "overall": 3.0 * together},
    }
    return {"scores": scores, "horizon": {"coverage": [0.8, 0.1], "valid_time": [1.5, 0.1]}, "band": 0.9}


def test_the_best_forecast_is_chosen_on_other_trajectories() -> None:
    """What is best on test trajectories is not asked; the verdict is about the means over seeds."""
    results = {}
    for seed, (ratio, band) in enumerate([(0.85, 0.87), (0.97, 0.91)]):
        chosen = _result([2.0, 4.0], ratio=ratio) | {CHOICE: 1.0, "band": band}
        other = _result([1.0, 2.0], ratio=1.3) | {CHOICE: 1.5}
        methods = {"residuals": _result([0.1, 0.2]), "last layer, step draws": other, "ensemble, step draws": chosen}
        results[Unit(case(), "posteriors", "one step", seed, COMMIT)] = {"methods": methods}
        kernel = {"kernel operator, trajectory draws": _result([0.1, 0.1]) | {CHOICE: 0.1}}
        results[Unit(case(), "baselines", "", seed, COMMIT)] = {"methods": kernel}
    (row,) = forecast.verdict_rows("heat", results)
    assert (row["best forecast"], row["spread-skill"]) == ("one step, ensemble, step draws", "0.91 to 0.91")
    assert (row["spread-skill met"], row["band met"], row["band"]) == ("yes", "yes", "0.890 ± 0.126")
    for unit in results:
        if unit.kind == "posteriors":
            results[unit]["methods"]["ensemble, step draws"]["band"] = 0.87
    (row,) = forecast.verdict_rows("heat", results)
    assert (row["spread-skill met"], row["band met"]) == ("yes", "no")
    assert forecast.verdict_rows("burgers", results) == []
    for unit in results:  # members that agree at one lead have no ratio there
        if unit.kind == "posteriors":
            results[unit]["methods"]["ensemble, step draws"]["scores"]["spread_skill"]["values"] = [None, 1.0]
    (row,) = forecast.verdict_rows("heat", results)
    assert (row["spread-skill"], row["spread-skill met"]) == ("1.00 to 1.00, 1 of 2 unknown", "no")


@pytest.mark.slow
@pytest.mark.parametrize("name", [one.name for one in forecast_cases.cases()])
def test_a_small_run(name: str, tmp_path: Path) -> None:
    found = forecast.main(mode="small", output=tmp_path, workers=1, problem=name)
    assert (tmp_path / f"forecast-{name.replace(' ', '-')}.json").exists()
    names = {row["forecast"] for row in found["sections"]["posteriors"] if row["seeds"]}
    for head in ("residuals", "last layer, step draws", "last layer, trajectory draws", "ensemble of 2, step draws"):
        assert {f"one step, {head}", f"pushed forward, {head}"} <= names
    assert {"persistence", "climatology", "regression of the step", "kernel operator, trajectory draws"} <= names
    assert [row["training"] for row in found["sections"]["recipes"]] == list(RECIPES)
