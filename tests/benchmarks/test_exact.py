from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks import environment, exact, report, tables


class Ticks:
    """Stands in for the queue between processes."""

    def __init__(self) -> None:
        self.count = 0

    def put(self, item: object) -> None:
        self.count += 1


@pytest.fixture(scope="module")
def runs() -> list[dict[str, object]]:
    small = [task for task in exact.tasks("small") if task.case.problem.name.startswith("Burgers, viscosity 0.1")]
    ticks = Ticks()
    found = [exact.run(task, ticks) for task in small]
    assert [task.operator for task in small] == ["FNO", "linear regression"]
    assert ticks.count == 3  # two epochs, and one step of the regression
    figures = found[0][1]
    assert len(figures) == 4
    assert all(image.startswith(b"\x89PNG") for image in figures.values())
    return [facts for facts, _ in found]


def test_every_place_is_scored(runs: list[dict[str, object]]) -> None:
    for facts in runs:
        places = [evaluation["on"] for evaluation in facts["evaluations"]]  # type: ignore[attr-defined]
        assert places == ["in distribution", "finer grid", "amplitude", "roughness"]
        for evaluation in facts["evaluations"]:  # type: ignore[attr-defined]
            numbers = [value for value in evaluation["scores"].values() if isinstance(value, float)]
            assert len(numbers) >= 10
            assert all(map(math.isfinite, numbers))


def test_bands_cover_over_re_splits(runs: list[dict[str, object]]) -> None:
    for facts in runs:
        bands = facts["evaluations"][0]["bands"]  # type: ignore[index]
        for kind in ("coverage", "constant_coverage"):
            assert abs(bands[kind] - 37 / 41) < 0.03  # exact in expectation for halves of 40; 80 fields, re-split


def test_the_full_run_repeats_training_with_three_seeds() -> None:
    trained = [task for task in exact.tasks("full") if task.operator == "FNO"]
    assert {task.seed for task in trained} == {0, 1, 2}
    assert len(trained) == 3 * len(exact.cases())


def test_purposes_have_seeds_of_their_own() -> None:
    assert len(set(exact.SEEDS.values())) == len(exact.SEEDS)


def test_json_is_written_whole_and_plain(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "results.json"
    environment.write_json({"a": math.inf, "b": [1.5, None], "c": (math.nan,)}, path)
    assert json.loads(path.read_text()) == {"a": "inf", "b": [1.5, None], "c": ["nan"]}
    assert [entry.name for entry in path.parent.iterdir()] == ["results.json"]


@pytest.mark.parametrize("document", tables.DOCUMENTS, ids=lambda path: path.name)
def test_tables_in_documents_are_those_of_the_results(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert "<!-- table: " in text
    assert tables.rendered(text) == text, "run python -m benchmarks tables"


def test_a_table_is_generated_from_its_results() -> None:
    text = tables.rendered("before\n<!-- table: exact on finer grid -->\nstale\n<!-- end -->\nafter")
    results = json.loads((tables.RESULTS / "exact.json").read_text())
    assert "stale" not in text
    assert text.count("finer grid") >= len(results["runs"])
    assert text.startswith("before\n")
    assert text.endswith("after")
    assert report.markdown_table(report.rows(results)).splitlines()[0] in tables.rendered("<!-- table: exact -->\n<!-- end -->")


def test_tables_refuse_results_of_a_modified_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = json.loads((tables.RESULTS / "exact.json").read_text()) | {"commit": "0123456789ab-modified"}
    environment.write_json(results, tmp_path / "exact.json")
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    with pytest.raises(ValueError, match="commit, run again"):
        tables.rendered("<!-- table: exact -->\n<!-- end -->")
