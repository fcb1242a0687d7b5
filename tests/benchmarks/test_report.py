from __future__ import annotations

import copy
import doctest
import importlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from probneural.errors import DataError

PNG = b"\x89PNG\r\n\x1a\n-and-the-rest"
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
HOSTILE = 'Burgers <script>alert("1")</script> & Co'
SCORES = {"relative_l2": 0.0264, "rmse": 1.9e-4, "crps": 9.84e-5, "nll": -7.283, "joint_nll": None, "coverage": 0.9}
SCORES |= {"simultaneous_coverage": 0.95, "calibration_error": 0.0238, "interval_width": 5e-4, "chi2": "inf", "level": 0.9}
SCORES |= {"reasons": {"joint_nll": "no <variance> in some direction"}}


def run(problem: str, operator: str, *, seed: int = 0, twice_as_long: float | None = None) -> dict[str, Any]:
    return {
        "problem": problem,
        "operator": operator,
        "head": "last-layer Laplace",
        "seed": seed,
        "train": {"pairs": 1000, "resolution": [128], "twice_as_long": twice_as_long, "history": {"train": [777888.0]}},
        "head_fit": {"seconds": 0.5, "noise": [1e-8], "scale": [1.0, 2.0]},
        "evaluations": [
            {"on": "in distribution", "resolution": [128], "scores": SCORES, "bands": {"coverage": 0.905, "width": 2e-3}},
            {
                "on": "finer grid",
                "resolution": [64, 64],
                "scores": {**SCORES, "chi2": 1.5, "joint_nll": 10.8},
                "some_new_number": 42,
            },
            {"on": "amplitude", "resolution": 256, "scores": {"relative_l2": float("nan")}, "band_coverage": 0.8},
        ],
    }


def one_run(problem: str, operator: str, *, error: float) -> dict[str, Any]:
    scores = {**SCORES, "relative_l2": error}
    return run(problem, operator) | {"evaluations": [{"on": "in distribution", "resolution": [128], "scores": scores}]}


RESULTS: dict[str, Any] = {
    "benchmark": "exact",
    "command": "python -m benchmarks exact > /dev/null",
    "mode": "default",
    "created": "2026-01-02T03:04:05+00:00",
    "machine": {"processor": "abacus", "cores": 2},
    "versions": {"python": "3.11", "torch": "2.13.0"},
    "commit": "0123456789ab",
    "seeds": {"train": 0, "test": 7},
    "wall_seconds": 433.2,
    "notes": ["a < b"],
    "runs": [run(HOSTILE, "FNO", twice_as_long=0.75), run(HOSTILE, "linear regression"), run("Heat", "FNO")],
}
FIGURES = {HOSTILE: {"truth & mean": PNG, "training": SVG}, "figures only": {"a field": PNG}}


class Page(HTMLParser):
    """Tags with their attributes, rows of the first table as text, and whether tags are balanced."""

    VOID = ("meta", "img", "br", "!doctype")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"script", "style"} & set(self.open):
            return
        self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    report.write_report(RESULTS, FIGURES, tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    return tmp_path


@pytest.fixture
def written(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def parts(text: str) -> dict[str, str]:
    """The folded part of each problem, by the name on its heading."""
    mark = '<details class="problem"'
    found = [mark + one for one in text.partition("<h2>Method</h2>")[0].split(mark)[1:]]
    return {Page(one[one.index("<h3>") : one.index("</h3>") + 5]).text: one for one in found}


def tables_by_label(text: str) -> dict[str, list[list[str]]]:
    """Rows of the table in each labelled box."""
    labels = [attributes["aria-label"] for tag, attributes in Page(text).tags if tag == "div" and "aria-label" in attributes]
    boxes = text.split('role="region"')[1:]
    return {
        str(label): Page(re.search("<table.*?</table>", box, re.DOTALL)[0]).tables[0]  # type: ignore[index]
        for label, box in zip(labels, boxes, strict=True)
        if "<table" in box.partition("</div>")[0]
    }


def test_the_page_needs_nothing_else(written: str) -> None:
    page = Page(written)
    assert not page.open
    assert not re.search(r"https?://|@import|url\(", written)
    anchors = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "base")
        assert (attributes.get("src") or "data:").startswith("data:")
        if "href" in attributes:
            assert (attributes["href"] or "").removeprefix("#") in anchors  # every link leads to a problem on the page
    assert "default-src 'none'" in written


def test_page_has_a_row_for_every_evaluation(written: str) -> None:
    headings, *lines = tables_by_label(written)["Every score"]
    places = [headings.index(name) for name in ("problem", "operator", "on", "grid", "twice as long")]
    found = [tuple(line[place] for place in places) for line in lines]
    evaluated = [("in distribution", "128"), ("finer grid", "64×64"), ("amplitude", "256")]
    assert found == [
        (problem, operator, on, grid, ratio)
        for problem, operator, ratio in (
            (HOSTILE, "FNO", "0.750"),
            (HOSTILE, "linear regression", "-"),
            ("Heat", "FNO", "-"),
        )
        for on, grid in evaluated
    ]
    assert "width" in headings
    assert "seed" not in headings


def test_the_page_shows_everything(written: str) -> None:
    page = Page(written)
    for text in ("exact solutions", "Nothing is fitted on test functions", "a < b", "abacus", "torch 2.13.0"):
        assert text in page.text
    for text in ("0123456789ab", "2026-01-02", "test 7", "433", "python -m benchmarks exact > /dev/null", "nat per value"):
        assert text in page.text
    assert "its numbers mean nothing" not in page.text
    first = Page(parts(written)[HOSTILE])
    for text in ("some new number", "bands: coverage", f'python -m benchmarks exact > /dev/null --problem "{HOSTILE}"'):
        assert text in first.text
    assert "777888" not in written  # loss curves are figures


def test_problems_hold_their_own_numbers_and_figures(written: str) -> None:
    found = parts(written)
    assert list(found) == [HOSTILE, "Heat", "figures only"]
    assert [one.count("<img ") for one in found.values()] == [2, 0, 1]
    operators = [{line[0] for table in Page(one).tables[:1] for line in table[1:]} for one in found.values()]
    assert operators[:2] == [{"FNO", "linear regression"}, {"FNO"}]
    assert "<math" in found["Heat"]


def test_the_page_escapes_text(written: str) -> None:
    page = Page(written)
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    assert HOSTILE in page.text
    assert "alert(" not in re.sub(r"&lt;script&gt;alert\(", "", written)


def test_figures_are_inlined_and_described(written: str) -> None:
    images = [attributes for tag, attributes in Page(written).tags if tag == "img"]
    alternatives = [f"{HOSTILE}: truth & mean", f"{HOSTILE}: training", "figures only: a field"]
    assert [image["alt"] for image in images] == alternatives
    kinds = [(image["src"] or "").partition(";")[0] for image in images]
    assert kinds == ["data:image/png", "data:image/svg+xml", "data:image/png"]


def test_the_first_figure_is_of_the_hardest_problem(tmp_path: Path) -> None:
    """Captions of earlier versions count as well."""
    scored = [one_run("Heat", "FNO", error=0.001), one_run("Wave", "FNO", error=0.2), one_run("Wave", "DeepONet", error=0.3)]
    captions = {"FNO, last-layer Laplace: one function, in distribution": PNG, "training": SVG}
    figures = {"Heat": {"one function: FNO, last-layer Laplace": PNG}, "Wave": captions}
    report.write_report({"runs": scored}, figures, tmp_path / "report.html")
    written = (tmp_path / "report.html").read_text(encoding="utf-8")
    hero = written[written.index('<section class="hero">') :].partition("</section>")[0]
    assert 'alt="Wave, FNO, last-layer Laplace: one function, in distribution"' in hero


def test_missing_scores_say_why(written: str) -> None:
    cells = [attributes for tag, attributes in Page(written).tags if tag == "td" and "title" in attributes]
    assert {cell["title"] for cell in cells} == {"no <variance> in some direction"}
    assert {cell["data-key"] for cell in cells} == {""}


def test_small_and_unfinished_runs_are_marked(tmp_path: Path) -> None:
    report.write_report({**RESULTS, "mode": "small", "to_come": ["Wave <1>"]}, {}, str(tmp_path / "report.html"))
    text = Page((tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "its numbers mean nothing" in text
    assert "to come: Wave <1>" in text


def test_the_page_of_results_that_went_through_json(folder: Path, written: str) -> None:
    report.write_report(json.loads(json.dumps(RESULTS)), FIGURES, folder / "again" / "report.html")
    assert (folder / "again" / "report.html").read_text(encoding="utf-8") == written


def test_page_of_the_least_results(tmp_path: Path) -> None:
    report.write_report({"runs": []}, {}, tmp_path / "report.html")
    assert not Page((tmp_path / "report.html").read_text(encoding="utf-8")).open


def test_the_page_of_committed_results(tmp_path: Path) -> None:
    results = json.loads((Path(report.__file__).parent.parent / "results" / "exact-full.json").read_text())
    report.write_report(results, {}, tmp_path / "report.html")
    page = Page(text := (tmp_path / "report.html").read_text(encoding="utf-8"))
    assert not page.open
    names = list(dict.fromkeys(run["problem"] for run in results["runs"]))
    assert list(parts(text)) == names
    assert all("<math" in one for one in parts(text).values())
    heads, *lines = tables_by_label(text)["Problem by method"]
    assert [line[0] for line in lines] == names
    assert len(heads) == 7


def test_a_failure_leaves_the_old_page(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")
    with pytest.raises(DataError):
        report.write_report(RESULTS, {"Heat": {"broken": b"no image"}}, target)
    assert target.read_text() == "old"


def test_rows_read_numbers_wherever_they_are() -> None:
    table = report.rows(RESULTS)
    assert len({tuple(row) for row in table}) == 1
    first, second, third = table[:3]
    assert first["chi2"] == float("inf")
    assert first["band cov."] == 0.905
    assert (second["band cov."], second["chi2"], first["joint NLL"], second["joint NLL"]) == (None, 1.5, None, 10.8)
    assert third["band cov."] == 0.8
    assert "width" not in first
    assert report.rows(RESULTS, is_brief=False)[0]["width"] == 5e-4


def test_seeds_are_a_column_if_there_are_several() -> None:
    several = {**RESULTS, "runs": [run("Heat", "FNO", seed=seed) for seed in (0, 1)]}
    assert [row["seed"] for row in report.rows(several)] == [0, 0, 0, 1, 1, 1]


def test_terminal_table_lines_up() -> None:
    lines = report.terminal_table(report.rows(RESULTS)).splitlines()
    assert len(lines) == 2 + 9
    starts = [match.start() for match in re.finditer(r"-+", lines[1])]
    for line in lines:
        assert all(line[start - 2 : start] == "  " for start in starts[1:])
    assert lines[2].endswith("0.750")
    unknown = report.terminal_table([{**row, "joint NLL": None} for row in report.rows(RESULTS)])
    assert "joint NLL" in lines[0]
    assert "joint NLL" not in unknown
    assert lines[0].index("chi2") + len("chi2") == lines[2].index("inf") + len("inf")


def test_markdown_table_lines_up_and_escapes() -> None:
    table = report.markdown_table([{"a|b": "x*y", "NLL": -1.0}, {"a|b": "plain", "NLL": None}])
    assert table.splitlines() == [
        "| a\\|b  |   NLL |",
        "| :---- | ----: |",
        "| x\\*y  | -1.00 |",
        "| plain |     - |",
    ]


def test_tables_without_rows() -> None:
    assert report.terminal_table([]) == ""
    assert report.markdown_table([]) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.05, "0.0500"),
        (1.0, "1.00"),
        (-7.2831, "-7.28"),
        (100.4, "100"),
        (999.9, "1.00e3"),
        (1234.6, "1235"),
        (123456.0, "1.235e5"),
        (9.84e-5, "9.84e-5"),
        (0.0, "0"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
        (1000, "1000"),
        (False, "no"),
        ([0.5, 2], "0.500, 2"),
        ("text", "text"),
    ],
)
def test_numbers_have_sensible_digits(value: Any, text: str) -> None:
    assert report.shown(value) == text


@pytest.mark.parametrize("module", ["headlines", "html", "mathematics", "rows", "text", "verdict"])
def test_documented_examples(module: str) -> None:
    tried = doctest.testmod(importlib.import_module(f"benchmarks.report.{module}"))
    assert tried.failed == 0 < tried.attempted


@pytest.mark.skipif(shutil.which("node") is None, reason="runs the page's script in Node.js")
def test_sorting_puts_missing_last_both_ways(written: str) -> None:
    script = re.findall(r"<script>(.*?)</script>", written, re.DOTALL)[-1]
    program = """
    const row = key => ({cells: [{dataset: {key}}], key});
    const body = {rows: ["2", "", "inf", "-1e-5", "nan", "10"].map(row), append(...rows) { this.rows = rows; }};
    const head = {className: "number", state: null, firstChild: {addEventListener(_, act) { head.click = act; }},
      getAttribute() { return this.state; }, setAttribute(_, value) { this.state = value; },
      removeAttribute() { this.state = null; }};
    const table = {tHead: {rows: [{cells: [head]}]}, tBodies: [body]};
    const document = {querySelectorAll: what => what === "table.sorts" ? [table] : [], getElementById: () => null};
    const location = {hash: ""}, addEventListener = () => {};
    """
    program += script + 'for (const _ of [1, 2]) { head.click(); console.log(body.rows.map(row => row.key).join(",")); }'
    finished = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    assert finished.stdout.split() == ["-1e-5,2,10,inf,,nan", "inf,10,2,-1e-5,,nan"]


@pytest.mark.bad_input
@pytest.mark.parametrize("key", ["problem", "operator", "head", "evaluations"])
def test_runs_must_say_what_they_are(key: str, tmp_path: Path) -> None:
    results = copy.deepcopy(RESULTS)
    del results["runs"][1][key]
    with pytest.raises(DataError, match=f"run 1 with {key}"):
        report.rows(results)
    with pytest.raises(DataError, match=f"run 1 with {key}"):
        report.write_report(results, {}, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.bad_input
def test_other_bad_input(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a list of runs"):
        report.rows({"runs": "none"})
    unnamed = {**RESULTS, "runs": [{**RESULTS["runs"][0], "evaluations": [{"resolution": 4}]}]}
    with pytest.raises(DataError, match=r"evaluations\[0\].on"):
        report.rows(unnamed)
    for image in (b"GIF89a", "no svg", 3):
        with pytest.raises(DataError, match="a PNG image or SVG text as figure 'it'"):
            report.write_report(RESULTS, {"Heat": {"it": image}}, tmp_path / "report.html")
