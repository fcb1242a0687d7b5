"""The forecast benchmark: equal time, forecasts without networks, tables, and units that are kept."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import probneural as pn
from benchmarks import environment, forecast, forecast_cases, forecast_recipes, kept_units, over_seeds, tables
from benchmarks.forecast_recipes import RECIPES, DressedForecast, StepRegression, duration, epochs_for, evaluations
from benchmarks.forecast_units import CHOICE, ONE_FACTOR, Unit
from probneural.distributions.trajectory import Forecast

COMMIT = "0123456789ab"


def case(name: str = "heat") -> forecast_cases.Case:
    return forecast_cases.chosen(name, small=True)[0]


def test_recipes_take_equal_time() -> None:
    """Within half of what the last epoch adds."""
    for unroll in RECIPES.values():
        epochs = epochs_for(unroll, budget=1200.0, windows=100)
        before, chosen, after = (100 * duration(unroll, epochs=epochs + more) for more in (-1, 0, 1))
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
        unroll=unroll,
        validation=0.0,
        show_progress=False,
    )
    each = [evaluations(unroll, epoch=epoch, epochs=epochs) for epoch in range(epochs)]
    expected = {True: sum(judged for judged, _ in each), False: sum(free for _, free in each)}
    assert counts == {kind: len(pairs) * count for kind, count in expected.items()}


def test_the_regression_of_the_step_solves_a_linear_step() -> None:
    """Heat is diagonal; with more windows than modes, and a small ridge, roll-outs are exact."""
    chosen = replace(case(), sizes=replace(forecast_cases.SMALL, train=24, scaling=8))
    train, scaling, test = (chosen.truth(part, seed=1) for part in ("train", "scaling", "test"))
    regression = StepRegression.fitted(train, scaling)
    error = (regression.rolled_out(test) - test.values.double()).norm() / test.values.double().norm()
    assert error < 1e-4
    assert regression.ridge < 1e-6


def test_dressed_forecasts_are_forecasts_whose_errors_were_made_elsewhere() -> None:
    grid = pn.Grid.uniform(4)
    states, errors = torch.randn(2, 3, 1, 4), torch.randn(5, 3, 1, 4)
    dressed = DressedForecast(states, errors, grid=grid)
    assert isinstance(dressed, Forecast)
    assert (len(dressed), dressed.steps, [lead for lead, _ in dressed.leads()]) == (2, 3, [1, 2, 3])
    assert torch.equal(dressed.at(2).samples[4, 1], states[1, 1] + errors[4, 1])
    truth = case().truth("test", seed=0)
    assert torch.equal(forecast_recipes.persistence(truth)[:, 2], truth.at(0).values)


def test_forecasts_start_at_the_second_state() -> None:
    chosen = case()
    full, truth = chosen.started("test", seed=0), chosen.truth("test", seed=0)
    assert (full.steps, truth.steps) == (chosen.sizes.leads + 1, chosen.sizes.leads)
    assert torch.equal(truth.at(0).values, full.at(1).values)
    assert torch.equal(truth.at(2).values, full.at(3).values)
    torch.testing.assert_close(truth.times, full.times[:-1])


def test_a_recurrent_operator_starts_from_both_states(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    starts: list[torch.Tensor] = []
    rollout = pn.distributions.Predictor.rollout

    def recorded(self: Any, start: pn.Field, **options: Any) -> Any:
        starts.append(start.values)
        assert options["history"] == forecast_cases.HISTORY
        return rollout(self, start, **options)

    monkeypatch.setattr(pn.distributions.Predictor, "rollout", recorded)
    found = Unit(case(), "posteriors", forecast_recipes.RECURRENT, 0, f"{COMMIT}-modified").run(tmp_path)
    assert all("failed" not in scores for scores in found["methods"].values())
    full = case().started("test", seed=0)
    assert torch.equal(starts[0], torch.cat([full.at(0).values, full.at(1).values], dim=1))


def test_parts_and_seeds_have_functions_of_their_own() -> None:
    chosen = case()
    first = [chosen.truth(part, seed=seed).at(0).values[0] for part in forecast_cases.PARTS for seed in (0, 1)]
    gaps = torch.stack(first).flatten(1)
    assert float((torch.cdist(gaps, gaps) + torch.eye(len(first))).min()) > 1e-3


def test_roll_outs_that_leave_all_bounds_are_unstable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Doubles(torch.nn.Module):
        def forward(self, values: torch.Tensor, *, grid: Any = None) -> torch.Tensor:
            return 2.0 * values

    unit = Unit(case(), "recipes", "one step", 0, COMMIT)
    for operator, stable in ((Doubles(), 0.0), (torch.nn.Identity(), 1.0)):
        monkeypatch.setattr(Unit, "trained", lambda self, folder, number=0, one=operator: (one, {}))
        monkeypatch.setattr(torch.nn.Identity, "forward", lambda self, values, grid=None: values)
        found = unit.run(tmp_path)
        assert found["stable"] == stable
        assert found["valid"] == 0.0 or stable


def test_finished_units_and_networks_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = Unit(case(), "recipes", "curriculum", 0, COMMIT)
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
    changes: list[dict[str, Any]] = [{}, {"seed": 1}, {"commit": "ba9876543210"}, {"recipe": "noise"}]
    assert len({replace(unit, **change).path(tmp_path) for change in changes}) == 4


def test_nothing_is_kept_of_a_modified_checkout(tmp_path: Path) -> None:
    unit = Unit(case(), "recipes", "one step", 0, f"{COMMIT}-modified")
    kept_units.spread([unit], tmp_path, workers=1)
    assert list(tmp_path.rglob("*.*")) == []
    assert environment.is_clean(COMMIT)
    assert not environment.is_clean("unknown")


def _result(crps: list[float], *, ratio: float = 1.0) -> dict[str, Any]:
    together = sum(crps) / len(crps)
    scores = {
        "crps": {"values": crps, "overall": together},
        "spread_skill": {"values": [ratio] * len(crps), "overall": ratio},
        "coverage": {"values": [0.9] * len(crps), "overall": 0.9},
        "energy": {"values": crps, "overall": 3.0 * together},
    }
    return {"scores": scores, "horizon": {"coverage": [0.8, 0.1], "valid_time": [1.5, 0.1]}, "band": 0.9}


def test_tables_compare_by_seed() -> None:
    """Ratios are paired: two seeds of different difficulty and one ratio have an interval of no width."""
    results = {}
    for seed, size in ((0, 1.0), (1, 10.0)):
        climate, dressed = _result([4 * size, 8 * size]), _result([2 * size, 4 * size])
        last = _result([size, 2 * size], ratio=0.9 + 0.2 * seed)
        methods = {"climatology": climate, "persistence": {"failed": "so"}}
        results[Unit(case(), "baselines", "", seed, COMMIT)] = {"methods": methods}
        results[Unit(case(), "posteriors", "one step", seed, COMMIT)] = {
            "methods": {
                "residuals": dressed,
                "last layer, step draws": last
                | {"raw": _result([1.0, 1.0], ratio=3.0), ONE_FACTOR: _result([2 * size, 4 * size], ratio=2.0)},
            }
        }
        errors = {"one step": [0.1, 0.2], "noise": [0.1, 0.1]}
        for recipe, values in errors.items():
            results[Unit(case(), "recipes", recipe, seed, COMMIT)] = {
                "errors": [size * value for value in values],
                "valid": 1.0 + (recipe == "noise"),
                "stable": 1.0,
                "epochs": 3,
                "seconds": 1.0,
            }
    rows = {row["forecast"]: row for row in forecast.posterior_rows("heat", results)}
    assert rows["climatology"]["CRPS all"] == 1.0
    found = rows["one step, last layer, step draws"]
    assert (found["CRPS 1"], found["CRPS 2"], found["CRPS all"]) == (0.25, 0.25, 0.25)
    assert found["over residuals"] == "0.50 (0.50 to 0.50)"
    assert (found["spread-skill"], found["raw"], found["horizon"]) == ("1.00 to 1.00", "3.00 to 3.00", 0.8)
    assert (found["energy"], found["valid"]) == (0.25, 1.5)
    (scaled,) = forecast.scale_rows("heat", results)
    assert (scaled["forecast"], scaled["CRPS"]) == ("one step, last layer, step draws", "0.50 (0.50 to 0.50)")
    ways = [scaled[f"spread-skill, {way}"] for way in ("raw", ONE_FACTOR, "local")]
    assert ways == ["3.00 to 3.00", "2.00 to 2.00", "1.00 to 1.00"]
    assert (scaled["coverage, local"], scaled["horizon, raw"]) == (0.9, 0.8)
    assert rows["persistence"]["seeds"] == 0
    assert forecast.failures(results) == [f"failed: heat, baselines, seed {seed}, persistence: so" for seed in (0, 1)]
    noise = forecast.recipe_rows("heat", results)[1]
    assert (noise["error 2 over one step"], noise["gain in valid"]) == ("0.50 (0.50 to 0.50)", "+1.0 ± 0.0")


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


def test_intervals_are_those_of_student() -> None:
    logs = [0.1, 0.2, 0.4]
    mean = sum(logs) / 3
    half = 2.919986 * math.sqrt(sum((value - mean) ** 2 for value in logs) / 2 / 3)
    text = over_seeds.ratio([math.exp(value) for value in logs])
    assert text == f"{math.exp(mean):.2f} ({math.exp(mean - half):.2f} to {math.exp(mean + half):.2f})"
    assert over_seeds.ratio([0.0, 1.0]) is None


def test_problems_are_chosen_by_how_their_names_begin() -> None:
    assert [one.name for one in forecast.chosen("Burg")] == ["burgers"]
    assert len(forecast.chosen(None)) >= 5
    with pytest.raises(ValueError, match="no problem's name begins with 'b u'"):
        forecast.chosen("b u")


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


def test_documents_can_name_the_tables() -> None:
    for name in forecast.TABLES:
        assert tables._MARK.search(f"<!-- table: forecast-burgers/{name} -->\nold\n<!-- end -->")


def test_seeds_of_the_worst_lead_are_shown() -> None:
    assert forecast._by_seed([[1.0, 1.2, 0.9], [1.0, 1.4, 0.9]]) == "1.20, 1.40 (lead 2)"
    assert forecast._by_seed([[0.7, None], [0.6, 1.0]]) == "0.70, 0.60 (lead 1)"  # a lead without a mean is passed over
    assert forecast._by_seed([[None], [None]]) == forecast._by_seed([]) == ""
