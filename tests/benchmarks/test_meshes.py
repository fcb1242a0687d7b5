"""Smoke test of the benchmark of meshes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.meshes import Refinement, Unit


@pytest.mark.parametrize(
    ("problem", "operator"), [("Poisson on shapes", "interpolation and FNO"), ("Heat on the sphere", "linear regression")]
)
def test_rows_are_complete(problem: str, operator: str, tmp_path: Path) -> None:
    rows = Unit(problem, operator, commit="none", is_small=True).run(tmp_path)["rows"]
    for row in rows:
        assert all(math.isfinite(row[name]) for name in ("error", "joint NLL", "pointwise", "band", "quantity"))
        assert (row["error, finer"] is None) == (operator == "linear regression")


def test_refinement_covers_all_meshes(tmp_path: Path) -> None:
    rows = Refinement(commit="none", is_small=True).run(tmp_path)["rows"]
    assert [(row["points"], row["mesh"]) for row in rows[:3]] == [(300, "uniform"), (300, "graded"), (1200, "uniform")]
    assert rows[0]["sd ratio"] == 1.0
