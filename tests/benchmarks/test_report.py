from __future__ import annotations

import copy
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

    VOID = ("meta", "img", "!doctype")

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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["problems", "report.html"]
    return tmp_path


@pytest.fixture
def written(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def pages(folder: Path) -> list[str]:
    """The pages of the problems, in the order of the runs."""
    found = sorted((folder / "problems").iterdir())
    names = ["01-burgers-script-alert-1-script-co.html", "02-heat.html", "03-figures-only.html"]
    assert [path.name for path in found] == names
    return [path.read_text(encoding="utf-8") for path in found]


def test_pages_need_nothing_else(folder: Path, written: str, pages: list[str]) -> None:
    for text, home in [(written, folder), *((text, folder / "problems") for text in pages)]:
        page = Page(text)
        assert not page.open
        assert not re.search(r"https?://|@import|url\(", text)
        for tag, attributes in page.tags:
            assert tag not in ("link", "iframe", "object", "base")
            assert (attributes.get("src") or "data:").startswith("data:")
            if "href" in attributes:
                assert (home / (attributes["href"] or "")).is_file()  # every link leads to a page that was written
        assert "default-src 'none'" in text
    assert written.count('href="problems/') == 3
    assert all(text.count('href="../report.html"') == 1 for text in pages)


def test_page_has_a_row_for_every_evaluation(written: str) -> None:
    headings, *lines = Page(written).tables[0]
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


def test_pages_show_everything(written: str, pages: list[str]) -> None:
    page = Page(written)
    assert "exact solutions" in page.text
    for text in ("Nothing is fitted on test functions", "a < b", "abacus", "torch 2.13.0"):
        assert text in page.text
    for text in ("0123456789ab", "2026-01-02", "test 7", "433", "python -m benchmarks exact > /dev/null", "nat per value"):
        assert text in page.text
    assert "its numbers mean nothing" not in page.text
    first = Page(pages[0])
    for text in ("Nothing is fitted on test functions", "0123456789ab", "some new number", "bands: coverage"):
        assert text in first.text
    assert f'python -m benchmarks exact > /dev/null --problem "{HOSTILE}"' in first.text
    assert "777888" not in pages[0]  # loss curves are figures


def test_pages_hold_their_own_problem_only(pages: list[str]) -> None:
    for number, (text, problem) in enumerate(zip(pages, (HOSTILE, "Heat", "figures only"), strict=True)):
        page = Page(text)
        assert sum(tag == "section" for tag, _ in page.tags) == 1
        found = {line[0] for line in page.tables[0][1:]} if number < 2 else set()
        assert found == ({problem} if number < 2 else set())


def test_pages_escape_text(written: str, pages: list[str]) -> None:
    for text in (written, pages[0]):
        page = Page(text)
        assert sum(tag == "script" for tag, _ in page.tags) == 1
        assert HOSTILE in page.text
        assert "alert(" not in re.sub(r"&lt;script&gt;alert\(", "", text)


def test_figures_are_inlined_on_the_page_of_their_problem(written: str, pages: list[str]) -> None:
    assert "<img" not in written
    images = [attributes for text in pages for tag, attributes in Page(text).tags if tag == "img"]
    assert [image["alt"] for image in images] == [
        f"{HOSTILE}: truth & mean",
        f"{HOSTILE}: training",
        "figures only: a field",
    ]
    kinds = [(image["src"] or "").partition(";")[0] for image in images]
    assert kinds == ["data:image/png", "data:image/svg+xml", "data:image/png"]


def test_missing_scores_say_why(written: str) -> None:
    cells = [attributes for tag, attributes in Page(written).tags if tag == "td" and "title" in attributes]
    assert {cell["title"] for cell in cells} == {"no <variance> in some direction"}
    assert {cell["data-key"] for cell in cells} == {""}


def test_small_runs_are_marked(tmp_path: Path) -> None:
    report.write_report({**RESULTS, "mode": "small"}, {}, str(tmp_path / "report.html"))
    assert "its numbers mean nothing" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_pages_of_results_that_went_through_json(folder: Path, pages: list[str], written: str) -> None:
    report.write_report(json.loads(json.dumps(RESULTS)), FIGURES, folder / "again" / "report.html")
    assert (folder / "again" / "report.html").read_text(encoding="utf-8") == written
    again = sorted((folder / "again" / "problems").iterdir())
    assert [path.read_text(encoding="utf-8") for path in again] == pages


def test_page_of_the_least_results(tmp_path: Path) -> None:
    report.write_report({"runs": []}, {}, tmp_path / "report.html")
    assert not Page((tmp_path / "report.html").read_text(encoding="utf-8")).open


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


def test_documented_examples() -> None:
    import doctest

    assert doctest.testmod(report).failed == 0


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
    const document = {querySelectorAll: () => [table]};
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
