"""Warnings name the line of whoever called the package, not one inside it or in a decorator around it."""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import probneural as pn

PAIRS = pn.problems.Heat(dimension=1).sample(60, resolution=32, seed=0)


def kernel() -> pn.Predictor:
    return pn.heads.KernelOperator("linear", min_noise=1e-4).fit(None, PAIRS[:20])


def too_much_noise() -> None:
    pn.calibration.VarianceScale(noise=1.0).fit(kernel(), PAIRS[20:40])


def far_away() -> None:
    operator = pn.operators.FNO(1, 1, modes=(4,), width=4, depth=1, seed=0)
    pn.fit(operator, PAIRS[:20], epochs=2, data=pn.training.DataOptions(batch_size=20), learning_rate=1e4, seed=0)


@pytest.mark.parametrize("call", [too_much_noise, far_away])
def test_a_warning_names_the_callers_line(call: Callable[[], None]) -> None:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        call()
    lines, first = inspect.getsourcelines(call)
    assert given
    for one in given:
        assert one.filename == __file__
        assert first <= one.lineno < first + len(lines)


def test_the_package_warns_through_it_alone() -> None:
    folder = Path(pn.__file__).parent
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "warn" and isinstance(node.value, ast.Name)
        if node.value.id == "warnings"
    }
    assert found == {"errors.py"}
