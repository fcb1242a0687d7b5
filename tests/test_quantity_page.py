"""The programs of the page on quantities of interest run, in order, and are as short as promised."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import probneural as pn

ROOT = Path(__file__).parents[1]
EXAMPLE = (ROOT / "examples" / "quantity_of_interest.py").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "how-to" / "quantity.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[1:]
BOTORCH = BLOCKS[-1]
MOST_LINES = 30


def lines(program: str) -> list[str]:
    """Those that are neither blank nor the script's docstring."""
    body = re.sub(r'^""".*?"""', "", program, count=1, flags=re.DOTALL)
    return [line for line in body.splitlines() if line.strip()]


@pytest.mark.parametrize("program", [EXAMPLE, BOTORCH])
def test_programs_are_short(program: str) -> None:
    assert len(lines(program)) <= MOST_LINES


def test_the_page_goes_on_from_its_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    monkeypatch.chdir(tmp_path)
    assert "\nEPOCHS = 60\n" in EXAMPLE
    space: dict[str, Any] = {}
    exec(compile(EXAMPLE.replace("EPOCHS = 60", "EPOCHS = 3"), "the example", "exec"), space)
    for block in BLOCKS[:-1]:
        exec(compile(block, "the page", "exec"), space)
    numbers, several, test = space["numbers"], space["several"], space["test"]
    assert numbers.labels == ("mean over the harbour", "west wall", "east wall", "step")
    assert {path.name for path in tmp_path.iterdir()} == {"quantity_of_interest.png", "numbers.png"}
    forecast = space["forecast"].interval(0.9)
    torch.testing.assert_close(numbers.interval(0.9).lower[..., :1], forecast.lower)
    assert space["fraction"].shape == (4,)
    inside = pn.metrics.coverage(
        pn.metrics.compare(numbers, pn.Field(several(test.outputs.values), numbers.grid)), level=0.9
    ).mean(0)
    torch.testing.assert_close(space["fraction"].mean(), inside[0])
    assert space["exceeds"].shape == (len(test), 1, 1)
    assert space["table"]["lower"].shape == (len(test), 1, 4)


def test_botorch_finds_an_input(capsys: pytest.CaptureFixture[str]) -> None:
    program = BOTORCH.replace("epochs=50", "epochs=2, show_progress=False").replace("sample(256", "sample(32")
    program = program.replace("num_restarts=4, raw_samples=64", "num_restarts=1, raw_samples=8")
    assert program.count("epochs=2,") == program.count("sample(32") == program.count("raw_samples=8") == 1
    space: dict[str, Any] = {}
    exec(compile(program, "the page", "exec"), space)
    assert re.fullmatch(r"-?\d\.\d{4} to -?\d\.\d{4}, exact -?\d\.\d{4}\n", capsys.readouterr().out)
    assert space["lower"].item() < space["upper"].item()
    assert space["best"].shape == (1, 4)
