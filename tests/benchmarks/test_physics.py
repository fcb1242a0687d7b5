"""Smoke test of the benchmark of physics."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks import physics
from benchmarks.physics import CORRECTED, DATA, RESIDUAL, ZERO, Unit


@pytest.mark.parametrize(
    ("problem", "method", "labels"),
    [
        ("Helmholtz, k = 8", DATA, 300),
        ("Burgers, viscosity .01", RESIDUAL, 0),
        ("Darcy 2-D", physics.CONSTRUCTION, 30),
        ("Helmholtz, k = 8", ZERO, 0),
    ],
)
def test_rows_are_complete(problem: str, method: str, labels: int, tmp_path: Path) -> None:
    rows = Unit(problem, method, labels, commit="none", is_small=True).run(tmp_path)["rows"]
    assert [row["method"] for row in rows] == [method, method + CORRECTED][: len(rows)]
    assert (len(rows) == 2) == (method in (DATA, RESIDUAL))
    for row in rows:
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))


def test_errors_are_relative_to_data_alone_with_as_many_labels() -> None:
    runs = [(DATA, 30, 0.4), (RESIDUAL, 30, 0.5), (DATA, 300, 0.1), (RESIDUAL, 300, 0.05), (RESIDUAL, 75, 0.2), (ZERO, 0, 0.3)]
    rows = [{"problem": "Heat", "method": name, "labels": labels, "error": error} for name, labels, error in runs]
    assert [row["relative to data"] for row in physics.compared(rows)] == [1.0, 1.25, 1.0, 0.5, None]
    (row,) = physics.fewer(rows, fewer_labels=75, labels=300)
    assert (row["ratio"], row["reaches it"]) == (2.0, "no")
