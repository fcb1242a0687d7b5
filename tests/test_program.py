"""The README's programs run, verbatim but for sizes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import probneural as pn

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
(PROGRAM,) = (block for block in BLOCKS if "burgers = pn.problems.Burgers" in block)
(FORECAST,) = (block for block in BLOCKS if "predictor.rollout(" in block)
OUTPUT = re.findall(r"```text\n(.*?)\n```", README, flags=re.DOTALL)[0]
"""The output of the first program, as shown."""


def numbers(printed: str) -> dict[str, float]:
    """The last column of the calibration report by name, and the scores below it."""
    rows = re.findall(r"^(\S.*?) {2,}.*?(\S+)$", printed, flags=re.MULTILINE)
    scores = re.findall(r"(relative L2 error|CRPS) (\S+?),?$", printed.replace(", ", "\n"), flags=re.MULTILINE)
    return {name: float(value) for name, value in rows[1:] + scores}


def run(program: str, smaller: dict[str, str]) -> dict[str, Any]:
    """Run a program with smaller sizes, and return its variables."""
    for shown, size in smaller.items():
        assert shown in program
        program = program.replace(shown, size)
    space: dict[str, Any] = {}
    exec(compile(program, "README.md", "exec"), space)
    return space


def test_shown_output_is_that_of_the_full_run() -> None:
    kept = json.loads((ROOT / "docs" / "gallery" / "outputs.json").read_text(encoding="utf-8"))["five_minutes"]
    assert kept["printed"] == OUTPUT


def figures(text: str) -> set[str]:
    """All numbers in a text, as written."""
    return set(re.findall(r"(?<![\w.])\d+(?:\.\d+)*(?:e-\d+)?(?!\w)", text))


def test_every_figure_has_its_seeds_and_split_on_a_page() -> None:
    """Those of a row of a table and of the printed output in one row there; all others outside of code somewhere."""
    text = (ROOT / "docs" / "reproduced.md").read_text(encoding="utf-8").partition("## Figures of the field")[0]
    page = [figures(line) for line in text.splitlines()]
    prose = re.sub(r"```.*?```|`[^`]*`|<!--.*?-->|\]\([^)]*\)", " ", README, flags=re.DOTALL)
    assert {"87.5", "36.2", "0.00219"} <= figures(prose) <= set.union(*page)
    rows = [line for line in prose.splitlines() if re.match(r"\|.* 0\.\d", line)]
    assert len(rows) == 3
    printed = re.sub(r"at 0.9|factor +1|L2|.*samples", "", OUTPUT)
    for line in (*rows, printed):
        assert any(figures(line) <= row for row in page), line


def test_program_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TQDM_DISABLE", "1")
    space = run(PROGRAM, {"epochs=50": "epochs=2"})
    test, u = space["test"], space["u"]
    assert u.mean.shape == u.variance.shape == space["band"].lower.shape == test.outputs.values.shape == (64, 1, 128)
    assert u.mean.dtype == torch.float32
    assert bool((u.variance > 0).all())
    assert bool((space["band"].lower < space["band"].upper).all())
    assert space["fine"].mean.shape == (64, 1, 512)
    assert space["p_values"].shape == (64,)
    assert list(numbers(capsys.readouterr().out)) == list(numbers(OUTPUT))


def test_forecast_program_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TQDM_DISABLE", "1")
    smaller = {
        "epochs=30": "epochs=2",
        "width=32, depth=4": "width=8, depth=2",
        "trajectory(64, ": "trajectory(4, ",
        "resolution=128": "resolution=64",
        "members=32": "members=5",
    }
    space = run(FORECAST, smaller)
    forecast, truth = space["forecast"], space["truth"]
    assert (len(space["train"]), forecast.steps, forecast.members) == (40, 10, 5)
    assert isinstance(forecast.at(5), pn.distributions.FieldDistribution)
    assert forecast.at(5).mean.shape == truth.at(5).values.shape == (4, 1, 64)
    printed = capsys.readouterr().out
    assert "CRPS" in printed
    assert "10" in printed.splitlines()[0]
