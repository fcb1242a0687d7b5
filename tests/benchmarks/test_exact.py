from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import scipy.stats

import probneural as pn
from benchmarks import environment, evaluation, exact, exact_work, report, tables
from benchmarks.__main__ import COMMANDS, parser
from probneural.calibration.bands.conformal import conformal_scores
from tests.calibration.synthetic import Synthetic, pairs


class Ticks:
    """Stands in for the queue between processes."""

    def __init__(self) -> None:
        self.cost = 0.0

    def put(self, cost: float) -> None:
        self.cost += cost


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One problem of the small run, every operator and head, in this process."""
    folder = tmp_path_factory.mktemp("members")
    case = exact.chosen("small", problem="Burgers, viscosity 0.1")[0]
    ticks = Ticks()
    expected = 0.0
    found: list[dict[str, Any]] = []
    for recipe in case.operators:
        paths = tuple(folder / f"{recipe.kind}-{member}.safetensors" for member in range(exact.MEMBERS))
        trainings = [exact.Training(0, case.source, recipe, member, path) for member, path in enumerate(paths)]
        facts = [exact.train(training, ticks) for training in trainings]
        asked = exact.Evaluation(0, case.source, recipe.kind, paths)
        own, sketches = exact.evaluate(asked, ticks)
        assert [sketch.name for sketch in sketches] == [
            f"{recipe.kind}, {head}" for head in ("last-layer Laplace", exact.ENSEMBLE)
        ]
        expected += sum(training.cost for training in trainings) + asked.cost
        found += [exact._joined(run, facts) for run in own]
    for kind in (exact.KERNEL, exact.REGRESSION.kind):
        asked = exact.Evaluation(0, case.source, kind)
        found += exact.evaluate(asked, ticks)[0]
        expected += asked.cost
    assert ticks.cost == pytest.approx(expected)  # a bar that counts it ends at its end
    return found


def test_every_operator_meets_its_heads(runs: list[dict[str, Any]]) -> None:
    assert [(run["operator"], run["head"]) for run in runs] == [
        ("FNO", "last-layer Laplace"),
        ("FNO", "ensemble of 4"),
        ("DeepONet", "last-layer Laplace"),
        ("DeepONet", "ensemble of 4"),
        ("kernel operator", "Gaussian process"),
        ("linear regression", "last-layer Laplace"),
    ]
    alone, together = (run["train"]["seconds"] for run in runs[:2])
    assert together > alone > 0.0
    assert "common_scale" in runs[0]["evaluations"][0]


def test_bands_are_tested_on_functions_that_calibrated_none_of_them(runs: list[dict[str, Any]]) -> None:
    for facts in runs:
        bands = facts["evaluations"][0]["bands"]
        assert (bands["sets"], bands["functions_each"]) == (1, 50)
        assert bands["expected"] == 46 / 51
        for kind in ("coverage", "constant_coverage"):
            assert bands[kind] > 0.9 - 4.0 * (0.1 * 0.9 / 40 + 46 * 5 / 51**2 / 52) ** 0.5  # 40 functions, and a Beta


def test_coverage_of_bands_follows_the_beta_distribution() -> None:
    """A band of n functions covers a Beta(r, n + 1 - r) share of new ones; a quantile of another rank would not."""
    count, sets = 20, 400
    pool, fresh = pairs(count * sets, seed=5), pairs(4000, seed=11)
    found = []
    for start in range(0, len(pool), count):
        scores = conformal_scores(Synthetic(sd=0.3), pool[start : start + count])
        found.append(scores.quantile(0.9))
    tested = conformal_scores(Synthetic(sd=0.3), fresh).values
    coverage = [float((tested <= quantile).double().mean()) for quantile in found]
    assert scipy.stats.kstest(coverage, scipy.stats.beta(19, 2).cdf).pvalue > 1e-3
    assert scipy.stats.kstest(coverage, scipy.stats.beta(18, 3).cdf).pvalue < 1e-6


def test_training_twice_as_long(tmp_path: Path) -> None:
    task = tiny_training(tmp_path)
    case = exact.Case(task.source, (task.recipe,))
    longer = exact._longer(task, case, tmp_path)
    assert longer.recipe.epochs == 2 * task.recipe.epochs
    assert longer.path != task.path
    jobs = exact._jobs([case], tmp_path, mode="full", asked=exact.FULL)
    (evaluation,) = (job.task for job in jobs if isinstance(job.task, exact.Evaluation) and job.task.kind == task.recipe.kind)
    assert longer.path in [job.task.path for job in jobs if isinstance(job.task, exact.Training)]
    assert len(evaluation.members) == exact.MEMBERS
    assert longer.path not in evaluation.members
    facts = [{"calibration_error": 0.5}, {"calibration_error": 0.4}, {"calibration_error": 0.25}]
    found = exact._by_operator([task, exact.replace(task, member=1), longer], facts)
    assert found == {task.recipe.kind: [{"calibration_error": 0.5, "twice_as_long": 0.5}, {"calibration_error": 0.4}]}


def test_data_of_ones_own_go_the_same_road(tmp_path: Path) -> None:
    burgers = pn.problems.Burgers(viscosity=0.1, random_field=pn.problems.GaussianRandomField(1, 7)).sample(
        120, resolution=16, seed=0
    )
    path = tmp_path / "waves.npz"
    arrays = {"inputs": burgers.inputs.values[:, 0].numpy(), "outputs": burgers.outputs.values[:, 0].numpy()}
    numpy.savez(path, **arrays, periodic=True)
    (case,) = exact.chosen("small", path=path)
    assert case.source.name == "waves"
    sizes = len(case.source.train), len(case.source.calibration)
    assert sum(sizes) <= 120
    (run,), _ = exact.evaluate(exact.Evaluation(0, case.source, exact.REGRESSION.kind), Ticks())
    assert 0.0 <= run["evaluations"][0]["bands"]["coverage"] <= 1.0
    assert len(case.source.pool) == 10  # half of a fifth of the 96 that are no tests: scales were fitted on the other half
    for one in run["evaluations"]:
        assert one["scores"]["relative_l2"] > 0.0


def test_the_full_run_has_all_problems_and_the_default_run_a_slice() -> None:
    full, default = ([case.source.name for case in exact.chosen(mode)] for mode in ("full", "default"))
    assert set(default) < set(full)
    assert default[0] == "Burgers, viscosity 0.01"  # the first table, after about a minute
    assert len(default) == 3
    assert len(set(full)) == len(full) == 9


@pytest.mark.parametrize("document", tables.documents(), ids=lambda path: path.name)
def test_tables_in_documents_are_those_of_the_results(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert tables.rendered(text) == text, "run python -m benchmarks tables"


def test_a_table_is_generated_from_its_results() -> None:
    text = tables.rendered("before\n<!-- table: exact-full on finer grid -->\nstale\n<!-- end -->\nafter")
    results = json.loads((tables.RESULTS / "exact-full.json").read_text())
    assert "stale" not in text
    evaluated = [one for run in results["runs"] for one in run["evaluations"] if one["on"] == "finer grid"]
    assert text.count("| finer grid ") == len(evaluated) > 0
    assert text.startswith("before\n")
    assert text.endswith("after")
    whole = tables.rendered("<!-- table: exact-full -->\n<!-- end -->")
    assert report.markdown_table(report.rows(results)).splitlines()[0] in whole


def test_tables_refuse_results_of_a_modified_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = json.loads((tables.RESULTS / "exact-full.json").read_text()) | {"commit": "0123456789ab-modified"}
    environment.write_json(results, tmp_path / "exact-full.json")
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    with pytest.raises(ValueError, match="commit, run again"):
        tables.rendered("<!-- table: exact-full -->\n<!-- end -->")


def tiny_training(folder: Path) -> exact.Training:
    case = exact.chosen("small", problem=pn.problems.Burgers(viscosity=0.1).name)[0]
    recipe = case.operators[0]
    return exact.Training(0, case.source, recipe, 0, exact._kept(folder, case, recipe, 0))


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "commit", lambda: "0123456789ab")
    task = tiny_training(tmp_path)
    first = exact.train(task, Ticks())
    kept = task.path.read_bytes()
    ticks = Ticks()
    assert exact.train(task, ticks) == {**first, "resumed": True}
    assert ticks.cost == pytest.approx(task.cost)
    assert task.path.read_bytes() == kept
    monkeypatch.setattr(environment, "commit", lambda: "ba9876543210")
    assert tiny_training(tmp_path).path != task.path
    monkeypatch.setattr(environment, "commit", lambda: "0123456789ab-modified")  # nobody knows what was modified
    modified = tiny_training(tmp_path)
    for _ in range(2):
        assert "resumed" not in exact.train(modified, Ticks())


def test_a_head_that_fails_costs_its_own_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(evaluation, "evaluate", fail)
    task = tiny_training(tmp_path)
    runs, sketches = exact.evaluate(exact.Evaluation(0, task.source, "linear regression"), Ticks())
    assert [run["head_fit"]["failed"] for run in runs] == ["not enough memory"]
    assert (runs[0]["evaluations"], sketches) == ([], [])


def test_the_default_run_asks_less_of_the_same_trainings() -> None:
    """So that the full run goes on from them, and a row that both have comes from the same operator."""
    folder = Path("operators")
    full = exact._jobs(exact.chosen("full"), folder, mode="full", asked=exact.extent("full"))
    quick = exact._jobs(exact.chosen("default"), folder, mode="default", asked=exact.extent("default"))
    paths = [{job.task.path for job in jobs if isinstance(job.task, exact.Training)} for jobs in (full, quick)]
    assert paths[1] < paths[0]
    by_kind = {job.task.kind: job.task for job in quick if isinstance(job.task, exact.Evaluation) and job.group == 0}
    assert {kind: len(task.members) for kind, task in by_kind.items()} == {
        "FNO": exact.MEMBERS,
        "DeepONet": 1,
        exact.KERNEL: 0,
        exact.REGRESSION.kind: 0,
    }
    places = list(exact_work._chosen_places(by_kind["FNO"]))
    assert places == ["in distribution", "finer grid", "amplitude"]
    assert sum(job.cost for job in quick) < 0.3 * sum(job.cost for job in full)


@pytest.mark.slow
def test_a_run_writes_its_files_and_ends_in_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = "Burgers, viscosity 0.1", "Darcy 1-D"
    written: list[list[str]] = []
    chosen, write_report = exact.chosen("small"), report.write_report

    def noted(results: dict[str, Any], figures: dict[str, dict[str, bytes]], path: Path) -> None:
        written.append(results.get("to_come", []))
        write_report(results, figures, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "chosen", lambda *_, **__: [case for case in chosen if case.source.name in two])
        patch.setattr(report, "write_report", noted)
        results = exact.main(mode="small", output=tmp_path, workers=2)
    assert written == [[two[1]], []]  # after the first problem, and in the end
    assert json.loads((tmp_path / "results.json").read_text())["runs"] == environment._plain(results["runs"])
    assert [run["problem"] for run in results["runs"]] == [name for name in two for _ in range(6)]
    assert "to_come" not in results
    assert len(list((tmp_path / "figures").iterdir())) == 12  # one function, side by side, honesty, cost, two trainings
    output, log = capsys.readouterr()
    tables, _, summary = output.rpartition("\n\n" + " " * 20)
    assert [tables.index(f"\n{name}\n") for name in two] == sorted(tables.index(f"\n{name}\n") for name in two)
    assert len(summary.splitlines()) <= 25
    assert summary.splitlines()[-1].endswith("/report.html")
    assert "\r" not in log
    assert len(log.splitlines()) == 2 * (2 * exact.MEMBERS + 4)
    assert log.splitlines()[-1].startswith("100 %")


def test_every_benchmark_takes_what_the_command_line_gives_it() -> None:
    for name, command in COMMANDS.items():
        given = vars(parser().parse_args([name]))
        del given["name"]
        inspect.signature(command.run).bind(**given)
        if command.check is not None:
            command.check(given | ({"device": "cpu"} if "device" in given else {}))  # tests see no other
