"""The gallery: stored outputs belong to the examples, small runs change only sizes, and notebooks run."""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import probneural as pn

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


def hook(name: str) -> ModuleType:
    """A module of docs/hooks, which is no package; skipped where the tools that build the documentation are missing."""
    folder = str(ROOT / "docs" / "hooks")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


runs = hook("example_runs")


@pytest.mark.parametrize("name", [*NAMES, "five_minutes"])
def test_kept_outputs_belong_to_the_scripts(name: str) -> None:
    entry = runs.kept()[name]
    assert entry["program"] == runs.fingerprint(runs.source(name)), f"make gallery EXAMPLES={name}"
    assert all((ROOT / "docs" / "gallery" / figure).exists() for figure in entry["figures"])


@pytest.mark.parametrize("name", NAMES)
def test_examples_have_no_sizes_in_their_body(name: str) -> None:
    assert "sys.argv" not in runs.source(name)
    assert runs.small(name) != runs.source(name)


def test_fingerprints_see_what_a_program_does() -> None:
    first = runs.fingerprint('"""One."""\nx = 1  # a comment\n')
    assert first == runs.fingerprint('"""Two."""\n\nx = 1\n')
    assert first != runs.fingerprint('"""One."""\nx = 2\n')


def test_sizes_replace_constants_only() -> None:
    text = "A, B = 1, 2\nC = 3\n\n\ndef f():\n    A = 5\n    return A\n"
    assert runs.resized(text, {"B": 7, "C": 9}) == "A, B = 1, 7\nC = 9\n\n\ndef f():\n    A = 5\n    return A\n"
    with pytest.raises(runs.StaleError, match="does not assign: D"):
        runs.resized(text, {"D": 1})


def test_a_failing_script_is_an_error() -> None:
    with pytest.raises(runs.StaleError, match="ZeroDivisionError"):
        runs.run("1 / 0\n", "broken")


@pytest.mark.parametrize(
    ("text", "printed", "figures", "message"),
    [
        ("x = 1\n", "error 0.2", ["a.png"], "is not the program"),
        ("x = 2\n", "mistake 0.2", ["a.png"], "prints other lines"),
        ("x = 2\n", "error 0.2", [], "draws"),
    ],
)
def test_stale_outputs_are_found(
    monkeypatch: pytest.MonkeyPatch, text: str, printed: str, figures: list[str], message: str
) -> None:
    entry = {"program": runs.fingerprint("x = 2\n"), "printed": "error 1e-3", "figures": ["a.png"]}
    monkeypatch.setattr(runs, "kept", lambda: {"it": entry})
    monkeypatch.setattr(runs, "source", lambda name: text)
    output = runs.Output(printed=printed, figures=dict.fromkeys(figures, b""), seconds=1.0)
    with pytest.raises(runs.StaleError, match=message):
        runs.check("it", output)
    monkeypatch.setattr(runs, "source", lambda name: "x = 2\n")
    runs.check("it", runs.Output(printed="error  7", figures={"a.png": b""}, seconds=1.0))


def test_the_server_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = pytest.importorskip("fastapi.testclient", reason="FastAPI and httpx are in the extra test")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "serve.py").write_text(runs.small("serve"), encoding="utf-8")
    client = clients.TestClient(importlib.import_module("serve").app)
    inputs = pn.problems.Burgers(viscosity=0.1).sample(2, resolution=64, seed=5).inputs
    answer = client.post("/predict", json=inputs.values.tolist())
    predictor = pn.load("burgers.safetensors")
    u, band = predictor(inputs), predictor.band(inputs)
    expected = {"mean": u.mean, "std": u.standard_deviation, "lower": band.lower, "upper": band.upper}
    assert set(answer.json()) == set(expected)
    for name, field in expected.items():
        torch.testing.assert_close(torch.tensor(answer.json()[name]), field.float())
    for values, message in (
        (inputs.values[..., 1:], "expected values of shape"),
        (inputs.values.expand(2, 3, 64), "expected 1 channels of inputs; got 3"),
    ):
        refused = client.post("/predict", json=values.tolist())
        assert refused.status_code == 422
        assert message in refused.json()["detail"]


ROUND = "  0  16  0.0577  0.187    0.0   5.3   7.3    0.3"  # a row of learn_an_operator, whose last columns are times


@pytest.mark.parametrize(
    ("stored", "printed", "is_stale"),
    [
        ("NLL -13.57  nat, error 1.4e-03, R-hat nan", "NLL -13.43 nat, error 1.2e-03, R-hat nan", False),
        ("NLL -13.57", "NLL -15.65", True),
        ("coverage 0.863", "coverage 0.828", True),
        ("R-hat nan", "R-hat 1.0", True),
        ("round 1\nround 2", "round 1", True),
        (ROUND, ROUND.replace("5.3   7.3", "1.2  10.1"), False),
        (ROUND, ROUND.replace("0.187", "0.287"), True),
    ],
)
def test_stale_numbers_are_found(monkeypatch: pytest.MonkeyPatch, stored: str, printed: str, is_stale: bool) -> None:
    entry = {"program": runs.fingerprint(""), "printed": stored, "figures": [], "computer": runs.computer()}
    monkeypatch.setattr(runs, "kept", lambda: {"learn_an_operator": entry})
    monkeypatch.setattr(runs, "source", lambda name: "")
    output = runs.Output(printed=printed, figures={}, seconds=1.0)
    with pytest.raises(runs.StaleError, match=r"prints other (numbers|lines)") if is_stale else nullcontext():
        runs.check_numbers("learn_an_operator", output)
    entry["computer"] = "another"  # where only the kinds of lines count
    if runs.outline(stored) == runs.outline(printed):
        runs.check_numbers("learn_an_operator", output)


@pytest.mark.parametrize("name", ["five_minutes", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES)])
def test_kept_outputs_are_those_of_a_fresh_run(name: str) -> None:
    """At full size, with the words of the stored output, and on the same kind of computer its numbers."""
    runs.check_numbers(name, runs.run(runs.source(name), name))


def test_pages_are_filled_from_results() -> None:
    results = hook("results")
    for name in results.FILLERS:
        assert "<!--" not in results.filled(f"<!-- results: {name} -->")
    with pytest.raises(KeyError):
        results.filled("<!-- results: nothing -->")


def test_the_readme_states_the_kept_coverage() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    joint, independent = hook("results").covered()
    assert f"cover the truth for {joint}, and" in text
    assert f"taken as independent for {independent} (" in text


def test_formulas_become_mathml() -> None:
    pytest.importorskip("latex2mathml")
    page = '<p>so <span class="arithmatex">\\(a &lt; b\\)</span></p><div class="arithmatex">\\[\nx^2\n\\]</div>'
    made = hook("mathematics").on_page_content(page)
    assert made.count("<math") == 2
    assert 'display="block"' in made
    assert "arithmatex" not in made


def test_search_index_has_both_spellings(tmp_path: Path) -> None:
    path = tmp_path / "search" / "search_index.json"
    path.parent.mkdir()
    path.write_text('{"docs": [{"title": "Optimiser", "text": "a"}, {"title": "Grid", "text": "b"}]}')
    hook("search").on_post_build(SimpleNamespace(site_dir=str(tmp_path)))
    texts = [section["text"] for section in json.loads(path.read_text())["docs"]]
    assert texts == ["a<p>optimizer</p>", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_notebooks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executed by Jupyter at the small size, they print the lines and draw the figures of the full-size run."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    book = nbformat.reads(hook("gallery").notebook(name, text=runs.small(name)), as_version=4)
    nbclient.NotebookClient(book, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", []) if output.get("name") == "stdout"]
    printed = "".join(output.text for output in outputs).rstrip()
    figures = dict.fromkeys((path.name for path in tmp_path.glob("*.png")), b"")
    runs.check(name, runs.Output(printed=printed, figures=figures, seconds=0.0))
