"""Tables of documents: selected and pivoted rows, several files, and results that are older than the code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import fingerprint, tables
from tests.test_gallery import hook

FACTS = {
    "benchmark": "exact",
    "machine": {"cores": 2, "processor": "test"},
    "versions": {"torch": "2"},
    "wall_seconds": 60.0,
    "notes": [],
    "created": "2026-01-02T03:04:05",
}


def write(folder: Path, name: str, rows: list[dict[str, object]], **changes: object) -> None:
    facts = FACTS | {"command": f'run --problem "{name}"', "commit": f"commit-{name}", "sections": {name: rows}} | changes
    (folder / f"{name}.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("; rows: head = a or c | seed = 1", [["head", "seed", "score"], ["a", "1", "3"], ["c", "1", "5"]]),
        ("; columns: score | head", [["score", "head"], ["2", "a"], ["3", "a"], ["4", "b"], ["5", "c"]]),
        ("; pivot: head by seed = score", [["head", "0", "1"], ["a", "2", "3"], ["b", "4", "-"], ["c", "-", "5"]]),
    ],
)
def test_options_of_a_table(options: str, expected: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    values = [("a", 0, 2), ("a", 1, 3), ("b", 0, 4), ("c", 1, 5)]
    write(tmp_path, "one", [dict(zip(("head", "seed", "score"), row, strict=True)) for row in values])
    text = tables.rendered(f"<!-- table: one/one{options} -->\n<!-- end -->")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert [lines[0], *lines[2:]] == expected
    assert tables.rendered(text) == text


def test_results_of_other_code_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    write(tmp_path, "old", [{"a": 1}])
    write(tmp_path, "new", [{"a": 1}], code=fingerprint.fingerprint("benchmarks.exact"))
    page = "# Title\n\ntext\n<!-- table: old/old -->\n<!-- end -->\n<!-- table: new/new -->\n<!-- end -->"
    assert tables.older_results(page) == ["`old.json` (commit commit-old, 2026-01-02)"]
    shown = hook("results").on_page_markdown(page)
    assert shown.startswith('# Title\n\n!!! note "Older than the code"\n    The code has changed since `old.json`')
    assert hook("results").on_page_markdown("# Title\n") == "# Title\n"


def test_fingerprints_follow_imports_and_ignore_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "ROOT", tmp_path)
    files = {
        "benchmarks/one.py": '"""Text."""\nimport probneural as pn\nfrom benchmarks import two\n\npn.heads.f(two.x)\n',
        "benchmarks/two.py": "x = 1\n",
        "probneural/heads/__init__.py": "from probneural.heads.deep import f\n",
        "probneural/heads/deep.py": "f = print\n",
        "probneural/other.py": "y = 1\n",
    }

    def hashed(**changes: str) -> str:
        for path, text in (files | {path.replace("__", "/") + ".py": text for path, text in changes.items()}).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        fingerprint._parsed.cache_clear()
        return fingerprint.fingerprint("benchmarks.one")

    first = hashed()
    assert first == hashed(benchmarks__two="# a comment\nx = 1\n") == hashed(probneural__other="y = 2\n")
    assert len({first, hashed(benchmarks__two="x = 2\n"), hashed(probneural__heads__deep="f = repr\n")}) == 3
    monkeypatch.undo()
    fingerprint._parsed.cache_clear()
