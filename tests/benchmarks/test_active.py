"""The active-learning benchmark: labels, pairing, going on after a cut, and the arithmetic of its tables."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from scipy import stats

import probneural as pn
from benchmarks import active, active_runs, active_sources, active_summary, environment, tables
from benchmarks.active_runs import ENSEMBLE, LAST_LAYER, RANDOM, Unit

SOURCES = {source.name: source for source in active_sources.sources()}


def decoded(source: active_sources.VariedSource, constants: list[float]) -> dict[str, float]:
    """Parameters of the equation, as a reader of the docstring has them from the input channels."""
    found = {}
    for parameter, value in zip(source.channel_parameters, constants, strict=True):
        share = (value + 1.0) / 2.0
        low, high = parameter.low, parameter.high
        found[parameter.name] = low * (high / low) ** share if parameter.is_logarithmic else low + share * (high - low)
    return found


@pytest.mark.parametrize("name", SOURCES)
def test_a_label_solves_the_equation_that_its_input_states(name: str) -> None:
    source = SOURCES[name]
    drawn = source.draw(6, seed=3)
    pairs = drawn.label([4, 1])
    own, total = source.problem.in_channels, source.problem.in_channels + len(source.channel_parameters)
    assert pairs.inputs.values.shape == (2, total, *source.resolution)
    assert torch.equal(pairs.inputs.values, drawn.inputs.values[[4, 1]])
    for number in range(2):
        constants = pairs.inputs.values[number, own:].flatten(1)
        assert torch.equal(constants, constants[:, :1].expand_as(constants))
        problem = replace(source.problem, **decoded(source, constants[:, 0].tolist()))
        solved = problem.solve(pn.Field(pairs.inputs.values[number : number + 1, :own].double(), source.grid))
        truth = pairs.outputs.values[number].double()
        share = 1e-3 if name == "Darcy 1-D" else 1e-4  # Darcy's `solve` interpolates between nodes, labels do not
        assert float((solved.values[0] - truth).abs().max()) < share * max(1e-3, float(truth.abs().max()))


def unit(folder: Path, head: str | None, selector: pn.active.Selector, *, commit: str = "0123456789ab") -> Unit:
    """A tiny unit on Burgers."""
    recipe = active_runs.FNOTraining((3,), width=4, depth=1, projection=4, steps=16, batch_size=4)
    protocol = active_runs.Protocol(rounds=(4, 8, 16), pool=40, tests=10)
    return Unit(SOURCES["Burgers"], recipe, head, selector, 0, protocol, commit, folder)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Random choice, and one selector per head, each on its own: nothing is kept of a modified checkout."""
    folder = tmp_path_factory.mktemp("active")
    arms = (
        (None, pn.active.RandomSelection()),
        (LAST_LAYER, pn.active.StochasticSelection()),
        (ENSEMBLE, pn.active.StochasticSelection()),
    )
    return [active_runs.run(unit(folder, head, selector, commit="0123456789ab-modified")) for head, selector in arms]


def test_operators_of_the_first_round_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    train = active_runs.FNOTraining.train

    def counted(recipe: active_runs.FNOTraining, pairs: pn.FieldPairs, *, seed: int) -> pn.operators.FNO:
        trained.append(len(pairs))
        return train(recipe, pairs, seed=seed)

    monkeypatch.setattr(active_runs.FNOTraining, "train", counted)
    baseline = active_runs.run(unit(tmp_path, None, pn.active.RandomSelection()))
    assert trained == [4] * 3 + [8] * 3 + [16] * 3
    trained.clear()
    other = active_runs.run(unit(tmp_path, LAST_LAYER, pn.active.StochasticSelection()))
    assert trained == [8, 16]
    assert other["rows"][0]["rmse"] == baseline["rows"][0]["rmse"]


def test_scores_are_what_they_say(done: list[dict[str, Any]]) -> None:
    source = SOURCES["Burgers"]
    pairs, test = source.draw(12, seed=0).label(range(12)), source.draw(30, seed=1).label(range(30))
    operator = active_runs.FNOTraining((3,), width=4, depth=1, projection=4, steps=16).train(pairs, seed=0)
    predictor = active_runs.fitted(LAST_LAYER, [operator], pairs)
    scores = active_runs.scores(predictor, test)
    errors = (predictor(test.inputs).mean - test.outputs.values).numpy()[:, 0] / test.outputs.values.numpy().std(ddof=1)
    each = numpy.sqrt((errors.astype(float) ** 2).mean(1))
    assert scores["rmse"] == pytest.approx(numpy.sqrt((each**2).mean()), rel=1e-5)
    assert scores["q95"] == pytest.approx(numpy.quantile(each, 0.95), rel=1e-5)
    spread = predictor(test.inputs).variance.numpy()[:, 0].mean(1)
    assert scores["ranks"] == pytest.approx(stats.spearmanr(spread, each).statistic, abs=1e-3)


@pytest.mark.parametrize("count", [4, 100, 400])
def test_steps_do_not_depend_on_the_number_of_labels(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []

    def fit(operator: torch.nn.Module, pairs: pn.FieldPairs, *, epochs: int, data: Any, **rest: Any) -> None:
        steps.append(epochs * math.ceil(len(pairs) / data.batch_size))
        assert len({row.numpy().tobytes() for row in pairs.inputs.values}) == count  # all of them

    monkeypatch.setattr(pn, "fit", fit)
    pairs = SOURCES["advection-diffusion"].draw(count, seed=0).label(range(count))
    active_runs.FNOTraining((3,), steps=800).train(pairs, seed=0)
    assert steps[0] == pytest.approx(800, rel=0.02)


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = unit(tmp_path, LAST_LAYER, pn.active.RandomSelection())
    first = active_runs.run(task)

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(active_runs, "_rounds", refuse)
    assert active_runs.run(task) == json.loads(json.dumps(first)) | {"resumed": True}
    for other in (
        replace(task, seed=1),
        replace(task, commit="ba9876543210"),
        replace(task, recipe=replace(task.recipe, steps=8)),
    ):
        assert other.path != task.path


def made(selector: str, seed: int, errors: list[float], *, head: str = LAST_LAYER) -> dict[str, Any]:
    """A unit of given errors at 16, 32, 64, ... labels."""
    rows = [
        {
            "head": head,
            "labels": 16 * 2**number,
            **dict.fromkeys(active_summary.ERRORS, error),
            "ranks": 0.5,
            "select_seconds": 1.0,
        }
        for number, error in enumerate(errors)
    ]
    return {"problem": "Burgers", "head": head, "selector": selector, "seed": seed, "rows": rows}


def test_ratios_are_paired_by_seed() -> None:
    power = [[scale * 2.0**-number for number in range(5)] for scale in (1.0, 3.0, 9.0)]  # error ~ 1/n; seeds differ wildly
    random = [made(RANDOM, seed, errors) for seed, errors in enumerate(power)]
    better = [made("stochastic", seed, [error / 2.0 for error in errors]) for seed, errors in enumerate(power)]
    baseline, row = active_summary.ratios(random + better + [made("stochastic", 7, [1.0] * 5)])  # seed 7 has no partner
    assert "area" not in baseline
    assert row["seeds"] == 3
    assert (row["area"], row["from"], row["to"]) == pytest.approx((0.5, 0.5, 0.5))
    assert row["labels"] == pytest.approx(0.5)
    assert row["final RMSE"] == pytest.approx(3.0 / 32.0)


def test_intervals_are_students() -> None:
    logs = numpy.random.default_rng(0).normal(-0.5, 0.2, 5)
    centre, low, high = active_summary.mean_ratio(logs.tolist())
    interval = stats.ttest_1samp(logs, 0.0).confidence_interval(active_summary.LEVEL)
    assert centre == pytest.approx(math.exp(logs.mean()))
    assert (low, high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
    assert active_summary.mean_ratio([0.0]) == (1.0, None, None)


@pytest.mark.parametrize("count", [4, 5, 8, 12])
def test_intervals_of_medians_hold_them(count: int) -> None:
    draws = numpy.random.default_rng(1).exponential(size=(1000, count))
    found = [active_summary.median_ratio(row.tolist()) for row in draws]
    assert numpy.allclose([one[0] for one in found], numpy.median(draws, axis=1))
    if count < 5:
        assert found[0][1:] == (None, None)
        return
    held = numpy.mean([one[1] <= math.log(2.0) <= one[2] for one in found])
    assert held > active_summary.MEDIAN_LEVEL - 0.02


def test_never_reached_is_infinite() -> None:
    assert active_summary.median_ratio([math.inf] * 5) == (math.inf, math.inf, math.inf)
    assert active_summary.median_ratio([0.5, math.inf])[0] == math.inf
    assert active_summary.labels_to_reach(([16, 32], [0.1, 0.1]), 0.2) == 16.0
    assert active_summary.labels_to_reach(([1, 2, 4, 8], [1.0, 0.1, 0.4, 0.1]), 0.2) == pytest.approx(4.0 * 2.0**0.5)  # again
    assert active_summary.mean_log_error(([16], [math.e])) == 1.0


def test_random_choice_against_itself_needs_all_its_labels() -> None:
    sizes, errors = [16, 32, 64, 128], [1.0, 0.2, 0.1, 0.2]  # at its final error with 32 labels, and better in between
    again = [0.9, 0.3, 0.5, 0.4]
    assert active_summary.label_share((sizes, errors), (sizes, errors)) == 1.0
    assert active_summary.label_share((sizes, again), (sizes, again)) == 1.0
    assert active_summary.label_share((sizes, [1.0, 0.4, 0.2, 0.1]), (sizes, errors)) == pytest.approx(2.0)  # not 64 / 128
    copied = [made(RANDOM, 0, errors), made("stochastic", 0, errors)]
    assert active_summary.ratios(copied)[1]["labels"] == 1.0


@pytest.mark.parametrize(("factors", "answer"), [((0.7, 0.8, 0.75), "yes"), ((0.6, 1.2, 0.7), "no")])
def test_the_claim_holds_where_the_whole_interval_of_the_area_is_below_one(factors: tuple[float, ...], answer: str) -> None:
    units = [made(RANDOM, seed, [1.0, 0.5], head=ENSEMBLE) for seed in range(3)]
    units += [made("stochastic", seed, [share, 0.5 * share], head=ENSEMBLE) for seed, share in enumerate(factors)]
    (row,) = active_summary.claim(active_summary.ratios(units))
    assert row["area"] == pytest.approx(math.prod(factors) ** (1 / 3))
    assert row["area"] < 1.0
    assert row["below 1"] == answer


def test_a_run_writes_tables_figures_and_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [
        made(RANDOM, 0, [1.0, 0.5]),
        made("stochastic", 0, [1.0, 0.4]),
        {**made("stochastic", 1, []), "failed": "DataError: no"},
    ]
    answers[1]["resumed"], answers[1]["seconds"] = True, 3.0
    monkeypatch.setattr(active, "_run_all", lambda planned, *, workers: answers)
    active.main(mode="small", output=tmp_path, workers=1)
    results = json.loads((tmp_path / "active.json").read_text())
    assert {"machine", "versions", "commit", "seeds", "wall_seconds"} <= set(results)
    assert results["command"] == "python -m benchmarks active --small"
    assert any("DataError: no" in note for note in results["notes"])
    assert any("cut off: 3 s" in note for note in results["notes"])
    assert (tmp_path / "figures" / "active-burgers.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "active.html").read_text()
    assert "data:image/png" in page
    assert "stochastic" in page
    assert "failed: stochastic" not in capsys.readouterr().err
    environment.write_json(results | {"commit": "0123456789ab"}, tmp_path / "active.json")
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert "stochastic" in tables.rendered("<!-- table: active/ratios -->\nstale\n<!-- end -->")


def test_runs_are_made_of_paired_units(tmp_path: Path) -> None:
    default, full = (active.chosen(mode) for mode in ("default", "full"))
    assert [case.source.name for case in default] == [case.source.name for case in full] == list(SOURCES)
    assert [case.source.name for case in active.chosen("default", problem="heat 2-D")] == ["heat 2-D"]
    planned = active.units("default", default, folder=tmp_path)
    random = [one for one in planned if one.head is None]
    assert planned[: len(random)] == random
    assert len(random) == 6 * 10
    assert len(planned) == 6 * 10 * 3
    everything = active.units("full", full, folder=tmp_path)
    assert len({one.path for one in everything}) == len(everything)
    assert {one.name for one in everything} == set(active_runs.NAMES.values())
    assert sum(one.trainings for one in planned[:1]) == 15


def test_committed_results_are_those_of_the_command(tmp_path: Path) -> None:
    results = json.loads((tables.RESULTS / "active.json").read_text(encoding="utf-8"))
    assert results["command"] == "python -m benchmarks active"
    planned = active.units("default", active.chosen("default"), folder=tmp_path)
    asked = Counter((unit.source.name, unit.head, unit.name, unit.seed) for unit in planned)
    found = [(unit["problem"], unit["head"], unit["selector"], unit["seed"]) for unit in results["units"] if unit["rows"]]
    removed = Counter(one for one in found if one[2] in ("core-set", "LCMD"))  # selectors of that commit
    assert Counter(found) - removed == asked
    assert len(asked) == 6 * 3 * 10
