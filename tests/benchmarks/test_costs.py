"""The benchmarks of kernel operators and of acquisition: that their small runs have every column."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import acquisition_cost, kernel_fit


@pytest.mark.slow  # processes of their own
def test_kernel_fit_has_its_columns(tmp_path: Path) -> None:
    written = kernel_fit.main(mode="small", output=tmp_path)
    assert (tmp_path / "kernel_fit.json").exists()
    (exact,), (sparse,) = written["sections"]["exact"], written["sections"]["inducing points"]
    assert (exact["pairs"], exact["inducing points"]) == (24, None)
    assert sparse["inducing points"] == 12
    assert all(row["CPU s"] > 0 and 0 < row["relative L2"] < 1 for row in (exact, sparse))


def test_choices_are_timed_beside_a_stochastic_one() -> None:
    rows = acquisition_cost._chosen(40, 4, 1)
    assert [row["rule"] for row in rows] == list(acquisition_cost.SELECTORS)
    assert rows[0]["ratio to stochastic"] == 1.0
    assert all(row["CPU s"] > 0 for row in rows)
