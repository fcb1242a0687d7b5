"""The benchmark of the recurrent operator: rows from errors that are known, and what a run measures."""

from __future__ import annotations

import math

import pytest
import torch

import probneural as pn
from benchmarks import recurrent
from benchmarks.recurrent import Measured


def known(factor: float) -> Measured:
    """A run whose errors are a factor of what is exact."""
    variance = torch.linspace(1.0, 0.25, 200, dtype=torch.float64)
    return Measured(errors=factor**2 * variance, posterior=1.21 * variance, variance=variance, minutes=factor)


def test_ratios_are_to_the_exact_deviation() -> None:
    runs = [known(factor) for factor in (1.5, 1.0, 1.2)]
    (row,) = recurrent.signals({"kind": runs})
    assert row["exact"] == pytest.approx(math.sqrt(0.625))
    assert (row["ratio"], row["least"], row["largest"]) == tuple(pytest.approx(one) for one in (1.2, 1.0, 1.5))
    assert row["on these signals"] == pytest.approx(1.1 * row["exact"])
    assert row["minutes"] == 1.2
    rows = recurrent.causal(runs)
    assert [one["samples"] for one in rows] == [1, 10, 50, 100, 200]
    assert rows[-1]["exact"] == pytest.approx(0.5)
    assert rows[-1]["RMSE"] == pytest.approx(0.6)


@pytest.mark.slow
@pytest.mark.parametrize(("is_bidirectional", "exact"), [(True, 0.0990), (False, 0.2586)])
def test_a_run_measures_beside_the_exact_posterior(is_bidirectional: bool, exact: float) -> None:
    found = recurrent.trained(is_bidirectional, 0, "small")
    assert math.sqrt(found.variance.mean()) == pytest.approx(exact, abs=1e-4)
    assert math.sqrt(found.posterior.mean()) == pytest.approx(exact, rel=0.1)
    assert found.errors.mean() > found.posterior.mean()
    if not is_bidirectional:
        target = pn.problems.SignalSeparation().sample(100, resolution=200, seed=1000).outputs.values
        assert found.errors.mean() < 1.2 * target.square().mean()
