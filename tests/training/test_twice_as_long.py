"""What the page on training says about twice the epochs, and about weights that decay, on a tiny problem."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import probneural as pn

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "training.md"


def test_the_loop_of_the_page_finds_what_is_undertrained() -> None:
    """One epoch against two: what it says is the ratio of two trainings by hand, from the same weights on the same split."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (program,) = [block for block in blocks if "def validation_error" in block]
    assert program.count("(100)") == program.count("(50)") == 1
    train = pn.problems.Burgers(viscosity=0.1).sample(40, resolution=64, seed=0)
    space: dict[str, Any] = {"pn": pn, "train": train}
    exec(compile(program.replace("(100)", "(2)").replace("(50)", "(1)"), "training.md", "exec"), space)
    watched, trained = [], pn.operators.FNO(1, 1, modes=(16,), seed=0).state_dict()
    for epochs in (2, 1):
        operator = pn.operators.FNO(1, 1, modes=(16,), seed=0)
        operator.load_state_dict(trained)
        watched.append(pn.fit(operator, train, epochs=epochs, show_progress=False).validation[-1])
    assert space["remaining"] == pytest.approx(watched[0] / watched[1], rel=1e-6)
    assert 0.0 < space["remaining"] < 0.9


def test_the_loop_of_the_page_chooses_a_decay() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (program,) = [block for block in blocks if "def error_with" in block]
    assert program.count("epochs=50") == 1
    train = pn.problems.Burgers(viscosity=0.1).sample(20, resolution=64, seed=0)
    space: dict[str, Any] = {"pn": pn, "train": train}
    exec(compile(program.replace("epochs=50", "epochs=1"), "training.md", "exec"), space)
    errors = {decay: space["error_with"](decay) for decay in (0.0, 0.1, 0.3, 0.6)}
    assert len(set(errors.values())) == 4
    assert space["best"] == min(errors, key=errors.__getitem__)
