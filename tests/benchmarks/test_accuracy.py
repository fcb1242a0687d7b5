"""The benchmark of accuracy: that it chooses by validation, and compares what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

import probneural as pn
from benchmarks import accuracy


@pytest.mark.slow
def test_runs_and_chooses_by_validation(tmp_path: Path) -> None:
    rows = accuracy.main(mode="small", output=tmp_path, workers=1)["sections"]["continuations"]
    assert (tmp_path / "accuracy.json").exists()
    for setting in accuracy.SETTINGS:
        own = [row for row in rows if row["problem"] == setting.problem.name]
        assert [row["continuation"] for row in own] == [*accuracy.CONTINUATIONS, ""]
        errors = {row["continuation"]: float(row["validation"].split()[0]) for row in own[:-1]}
        chosen = [row["continuation"] for row in own if row["chosen"]]
        assert chosen == [min(errors, key=errors.__getitem__)]


def test_operators_differ_in_their_continuation_alone() -> None:
    setting = accuracy.SETTINGS[0]
    train = setting.problem.sample(2, resolution=33, seed=0)
    built = [setting.recipe(name).build(train, seed=0) for name in accuracy.CONTINUATIONS]
    assert all(isinstance(operator, pn.operators.FNO) for operator in built)
    configurations = [operator.configuration() for operator in built]
    assert [one.pop("continuation") for one in configurations] == list(accuracy.CONTINUATIONS)
    assert all(one == configurations[0] for one in configurations)


def test_medians_and_extremes() -> None:
    repeats = [{"validation": v, "test": 2 * v, "finer grid": 3 * v, "seconds": v, "parameters": 7} for v in (0.3, 0.1, 0.2)]
    row = accuracy.summary(accuracy.SETTINGS[0], "odd", repeats)
    assert row["test"] == "4.00e-01 [2.00e-01, 6.00e-01]"
    assert row["seconds"] == 0.2
