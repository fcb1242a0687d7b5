from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report

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


def test_the_page_escapes_text(written: str) -> None:
    page = Page(written)
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    assert HOSTILE in page.text
    assert "alert(" not in re.sub(r"&lt;script&gt;alert\(", "", written)


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
