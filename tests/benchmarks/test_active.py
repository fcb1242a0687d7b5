"""The active-learning benchmark: labels, pairing, going on after a cut, and the arithmetic of its tables."""

from __future__ import annotations

import doctest
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
from torch import Tensor

import probneural as pn
from benchmarks import active, active_figures, active_runs, active_sources, active_summary, environment, report, tables
from benchmarks.active_runs import ENSEMBLE, LAST_LAYER, RANDOM, Unit
from probneural.errors import DataError
from probneural.randomness import stream

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


def test_functions_are_those_of_their_seed() -> None:
    source = SOURCES["Burgers"]
    first, again, other = (source.draw(5, seed=seed).inputs.values for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def uniform_behind(normal: Tensor) -> Tensor:
    """The uniform numbers that PyTorch's Box-Muller makes float64 normals of: the first eight of every sixteen."""
    pairs = normal.flatten().unflatten(0, (-1, 2, 8))
    return 1.0 - torch.exp(-0.5 * pairs.square().sum(1))


def correlation(shares: Tensor, normal: Tensor) -> float:
    """Of parameters with the normals that the generator would make of the same words.

    It takes a word for a share in float32, of 24 bits, and two for a number in float64, which has 21 bits of the first one. So,
    from one stream, every other share tells a number to its 21st bit, three bits further down.
    """
    uniform = uniform_behind(normal).flatten()
    places = torch.arange(normal.numel()).unflatten(0, (-1, 2, 8))[:, 0].flatten()
    places = places[places < len(shares)]
    told = (8.0 * shares[places].double()).frac()
    return float(torch.corrcoef(torch.stack([told, uniform[: len(places)]]))[0, 1])


def test_parameters_are_independent_of_the_functions() -> None:
    """A shared stream would make coefficients a function of parameters, of which no rank correlation tells."""
    count, source = 2000, SOURCES["Burgers"]
    one, same = (torch.Generator().manual_seed(3) for _ in range(2))
    shares, normal = torch.rand(count, 2, generator=one), torch.randn(count, 8, generator=same, dtype=torch.float64)
    assert correlation(shares[:, 0], normal) > 0.999999  # what a shared stream looks like
    for seed in (0, 9000):
        drawn = source.draw(count, seed=seed)
        normal = drawn.coefficients / source.problem.input_distribution.eigenvalues.sqrt()
        assert abs(correlation(drawn.shares[:, 0], normal)) < 4 / math.sqrt(count / 2)
        ranks = [float(stats.spearmanr(drawn.shares[:, 0], column).statistic) for column in normal.T]
        assert max(map(abs, ranks)) < math.sqrt(2 * math.log(2 * len(ranks)) / count) * 1.5


def test_viscosities_are_log_uniform() -> None:
    source = SOURCES["Burgers"]
    drawn = source.draw(2000, seed=0)
    logs = [math.log10(drawn.problem(row).viscosity) for row in range(2000)]  # type: ignore[attr-defined]
    assert stats.kstest(logs, "uniform", args=(-3.0, 3.0)).pvalue > 0.01


def test_an_amplitude_reaches_only_the_field_behind_the_slowness() -> None:
    source = SOURCES["variable-speed advection"]
    plain = replace(source, amplitude=None)
    varied, still = (one.draw(40, seed=5).inputs.values for one in (source, plain))
    assert torch.equal(varied[:, 1], still[:, 1])
    fields = [((part[:, 0].double() - 0.1) / 0.9).sqrt() - 1.0 for part in (varied, still)]  # b = .1 + .9 (1 + g)^2
    near = fields[1].abs().amax(1) < 0.4  # where 1 + g stays positive in both, so that the root is the right one
    factors = (fields[0].norm(dim=1) / fields[1].norm(dim=1))[near]
    assert 0.25 < float(factors.min()) < 0.5
    assert 1.2 < float(factors.max()) < 2.0 + 1e-3


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
        (ENSEMBLE, pn.active.LCMDSelection()),
    )
    return [active_runs.run(unit(folder, head, selector, commit="0123456789ab-modified")) for head, selector in arms]


def test_all_selectors_begin_alike(done: list[dict[str, Any]]) -> None:
    rows = [row for one in done for row in one["rows"] if row["labels"] == 4]
    first = {head: [row["rmse"] for row in rows if row["head"] == head] for head in (LAST_LAYER, ENSEMBLE)}
    for errors in first.values():
        assert len(errors) == 2
        assert errors[0] == errors[1]  # to the last bit: the same operators
    assert first[LAST_LAYER][0] != first[ENSEMBLE][0]


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
    other = active_runs.run(unit(tmp_path, LAST_LAYER, pn.active.LCMDSelection()))
    assert trained == [8, 16]
    assert other["rows"][0]["rmse"] == baseline["rows"][0]["rmse"]


def test_labels_are_bought_once(done: list[dict[str, Any]]) -> None:
    initial = torch.randperm(40, generator=stream(0, "benchmark start"))[:4].tolist()
    for one in done:
        batches = [row["chosen"] for row in one["rows"] if "chosen" in row]
        assert [len(batch) for batch in batches] == [4, 8]
        assert len({*initial, *batches[0], *batches[1]}) == 16


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


def test_an_ensembles_first_member_is_the_single_operator() -> None:
    pairs = SOURCES["Burgers"].draw(8, seed=0).label(range(8))
    recipe = active_runs.FNOTraining((3,), width=4, depth=1, projection=4, steps=16)
    operators = [recipe.train(pairs, seed=seed) for seed in range(3)]
    samples = active_runs.fitted(ENSEMBLE, operators, pairs)(pairs.inputs).samples  # type: ignore[attr-defined]
    for operator, sample in zip(operators, samples, strict=True):
        assert torch.allclose(operator(pairs.inputs.values), sample, atol=1e-6)


def test_functions_are_compared_on_coarser_grids(tmp_path: Path) -> None:
    shapes = {}
    for name in ("Burgers", "Darcy 1-D", "heat 2-D"):
        task = replace(unit(tmp_path, LAST_LAYER, pn.active.LCMDSelection()), source=SOURCES[name])
        shapes[name] = (task.query.shape, replace(task, selector=pn.active.BAITSelection()).query.shape)
        assert task.query.periodic == SOURCES[name].grid.periodic
    assert shapes == {"Burgers": ((32,), (16,)), "Darcy 1-D": ((33,), (17,)), "heat 2-D": ((8, 8), (4, 4))}


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


def test_a_modified_checkout_starts_anew(tmp_path: Path) -> None:
    task = unit(tmp_path, LAST_LAYER, pn.active.RandomSelection(), commit="0123456789ab-modified")
    first, again = active_runs.run(task), active_runs.run(task)
    assert "resumed" not in again
    assert [row["rmse"] for row in first["rows"]] == [row["rmse"] for row in again["rows"]]  # and comes to the same end


def test_a_unit_that_fails_says_why_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(task: Unit) -> None:
        raise DataError(expected="numbers", got="none", remedy="find some")

    monkeypatch.setattr(active_runs, "_rounds", fail)
    task = unit(tmp_path, LAST_LAYER, pn.active.RandomSelection())
    outcome = active_runs.run(task)
    assert "DataError" in outcome["failed"]
    assert outcome["rows"] == []
    assert not task.path.exists()


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
    better = [made("LCMD", seed, [error / 2.0 for error in errors]) for seed, errors in enumerate(power)]
    baseline, row = active_summary.ratios(random + better + [made("LCMD", 7, [1.0] * 5)])  # seed 7 has no partner
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


def test_examples_in_docstrings_hold() -> None:
    outcome = doctest.testmod(active_summary)
    assert outcome.attempted >= 5
    assert outcome.failed == 0


def test_random_choice_against_itself_needs_all_its_labels() -> None:
    sizes, errors = [16, 32, 64, 128], [1.0, 0.2, 0.1, 0.2]  # at its final error with 32 labels, and better in between
    again = [0.9, 0.3, 0.5, 0.4]
    assert active_summary.label_share((sizes, errors), (sizes, errors)) == 1.0
    assert active_summary.label_share((sizes, again), (sizes, again)) == 1.0
    assert active_summary.label_share((sizes, [1.0, 0.4, 0.2, 0.1]), (sizes, errors)) == pytest.approx(2.0)  # not 64 / 128
    copied = [made(RANDOM, 0, errors), made("LCMD", 0, errors)]
    assert active_summary.ratios(copied)[1]["labels"] == 1.0


def test_errors_that_are_no_numbers_reach_nothing() -> None:
    assert active_summary.labels_to_reach(([16, 32], [1.0, math.nan]), 0.5) == math.inf
    assert active_summary.labels_to_reach(([16, 32, 64], [1.0, math.inf, 0.25]), 0.5) == 64.0
    assert math.isnan(active_summary.median_ratio([0.5, math.nan, 0.1])[0])


def test_one_arm_counts_for_the_claim_however_good_others_are(tmp_path: Path) -> None:
    power = [2.0**-number for number in range(5)]
    scaled = {(ENSEMBLE, "stochastic"): 0.75, (ENSEMBLE, "LCMD"): 0.25, (LAST_LAYER, "stochastic"): 0.5}
    units = [made(RANDOM, 0, power, head=head) for head in (ENSEMBLE, LAST_LAYER)]
    units += [made(name, 0, [share * error for error in power], head=head) for (head, name), share in scaled.items()]
    (row,) = active_summary.claim(active_summary.ratios(units))
    assert (row["head"], row["selector"]) == active_summary.CLAIM_ARM == (ENSEMBLE, "stochastic")
    assert row["labels"] == pytest.approx(0.75)
    assert (row["area"], row["below 1"], row["at most 0.5"]) == (pytest.approx(0.75), "no", "no")  # one seed has no interval
    assert (row["best of all arms"], row["which"]) == (pytest.approx(0.25), "LCMD, ensemble")
    for mode in ("default", "full"):  # it is run
        assert any(
            (one.head, one.name) == active_summary.CLAIM_ARM for one in active.units(mode, active.chosen(mode), folder=tmp_path)
        )


@pytest.mark.parametrize(("factors", "answer"), [((0.7, 0.8, 0.75), "yes"), ((0.6, 1.2, 0.7), "no")])
def test_the_claim_holds_where_the_whole_interval_of_the_area_is_below_one(factors: tuple[float, ...], answer: str) -> None:
    units = [made(RANDOM, seed, [1.0, 0.5], head=ENSEMBLE) for seed in range(3)]
    units += [made("stochastic", seed, [share, 0.5 * share], head=ENSEMBLE) for seed, share in enumerate(factors)]
    (row,) = active_summary.claim(active_summary.ratios(units))
    assert row["area"] == pytest.approx(math.prod(factors) ** (1 / 3))
    assert row["area"] < 1.0
    assert row["below 1"] == answer


def test_notes_say_what_the_benchmark_is_not() -> None:
    text = " ".join(active.NOTES)
    assert "ActiveLearner" in text
    assert "stochastic selection with the ensemble" in text


def test_what_is_kept_comes_back_as_numbers(tmp_path: Path) -> None:
    environment.keep({"ranks": [math.nan, 0.1], "rmse": math.inf, "name": "nan"}, tmp_path / "unit.json")
    kept = environment.kept(tmp_path / "unit.json")
    assert math.isnan(kept["ranks"][0])
    assert (kept["ranks"][1], kept["rmse"], kept["name"]) == (0.1, math.inf, "nan")


def test_a_resumed_unit_without_ranks_is_summarised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{**row, "ranks": math.nan} for row in made(RANDOM, 0, [1.0, 0.5])["rows"]]
    monkeypatch.setattr(active_runs, "_rounds", lambda task: rows)
    task = unit(tmp_path, LAST_LAYER, pn.active.RandomSelection())
    active_runs.run(task)
    again = active_runs.run(task)
    assert again["resumed"]
    assert all(math.isnan(row["ranks"]) for row in active_summary.curves([again]))


def test_means_of_curves_are_geometric() -> None:
    rows = active_summary.curves([made(RANDOM, 0, [1.0, 4.0]), made(RANDOM, 1, [4.0, 4.0])])
    assert [(row["labels"], row["rmse"], row["seeds"]) for row in rows] == [(16, 2.0, 2), (32, 4.0, 2)]


def test_a_run_writes_tables_figures_and_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [
        made(RANDOM, 0, [1.0, 0.5]),
        made("stochastic", 0, [1.0, 0.4]),
        {**made("LCMD", 1, []), "failed": "DataError: no"},
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
    assert "failed: LCMD" not in capsys.readouterr().err
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
    assert len(planned) == 6 * 10 * 4
    everything = active.units("full", full, folder=tmp_path)
    assert len({one.path for one in everything}) == len(everything)
    assert {one.name for one in everything} == set(active_runs.NAMES.values())
    assert sum(one.trainings for one in planned[:1]) == 15


def test_unknown_problems_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="there are Burgers"):
        active.chosen("default", problem="Navier")


def test_figures_are_one_per_problem() -> None:
    rows = active_summary.curves([made(RANDOM, 0, [1.0, 0.5]), made(RANDOM, 0, [1.0, 0.6], head=ENSEMBLE)])
    assert list(active_figures.figures(rows)) == ["Burgers"]


def test_a_page_of_tables_refuses_other_figures(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="PNG"):
        report.write_tables({"sections": {}}, title="page", figures={"curve": b"GIF"}, path=tmp_path / "page.html")


def test_committed_results_are_those_of_the_command(tmp_path: Path) -> None:
    results = json.loads((tables.RESULTS / "active.json").read_text(encoding="utf-8"))
    assert results["command"] == "python -m benchmarks active"
    planned = active.units("default", active.chosen("default"), folder=tmp_path)
    asked = Counter((unit.source.name, unit.head, unit.name, unit.seed) for unit in planned)
    found = [(unit["problem"], unit["head"], unit["selector"], unit["seed"]) for unit in results["units"] if unit["rows"]]
    removed = Counter(one for one in found if one[2] == "core-set")  # a selector of that commit
    assert Counter(found) - removed == asked
    assert len(asked) == 6 * 4 * 10
