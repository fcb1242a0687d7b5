"""The benchmark of growth: slopes of powers, and stages that are all measured."""

from __future__ import annotations

import pytest

from benchmarks import growth


def test_slopes_of_powers() -> None:
    sizes = (64, 128, 256, 512)
    found = [
        {"linear": {"seconds": 1e-3 * size, "MiB": 1.0}, "quadratic": {"seconds": 1e-6 * size**2, "MiB": 8.0 * size}}
        for size in sizes
    ]
    linear, quadratic = growth.growth(sizes, found)
    assert linear["exponent"] == pytest.approx(1.0)
    assert quadratic["exponent"] == pytest.approx(2.0)
    assert (linear["ms per function"], quadratic["MiB at 512"]) == (pytest.approx(1.0), 4096.0)


@pytest.mark.slow
def test_every_stage_is_measured() -> None:
    found = growth.stages(64)
    assert list(found) == ["training, one epoch", "last layer", "Kronecker", "variance scale", "band", "scores"]
    assert all(one["seconds"] > 0.0 and one["MiB"] >= 0.0 for one in found.values())
