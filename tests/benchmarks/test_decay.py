"""How fast weights should decay: errors beside those without, and one small run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import decay

HEAT = "Heat 2-D, diffusivity 0.01"


def test_decays_are_compared_seed_by_seed() -> None:
    errors = {(0.0, 0): 0.2, (0.0, 1): 0.4, (0.3, 0): 0.1, (0.3, 1): 0.1}
    rows = [
        {"problem": HEAT, "seed": seed, "decay": size, "training": error / 2, "validation": error}
        for (size, seed), error in errors.items()
    ]
    (found,) = decay.compared(rows)
    assert found["decay 0.3"].startswith("0.35 (")  # the geometric mean of 1/2 and 1/4
    assert (found["training"], found["validation"]) == pytest.approx((0.15, 0.3))
    assert (found["seeds"], found["recipe"]) == (2, 0.6)


def test_a_small_run(tmp_path: Path) -> None:
    results = decay.main(mode="small", output=tmp_path, workers=1)
    (row,) = results["sections"]["decays"]
    assert [f"decay {size:g}" in row for size in decay.DECAYS] == [False, *[True] * (len(decay.DECAYS) - 1)]
    assert (tmp_path / "decay.json").exists()
