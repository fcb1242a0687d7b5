"""Quantiles of values that come in parts: exact for few, within the width of a bin for many."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch

from probneural.metrics import spread
from probneural.metrics.spread import WeightedQuantiles
from tests.helpers import normal, uniform


def added(values: torch.Tensor, weights: torch.Tensor, parts: int) -> WeightedQuantiles:
    found = WeightedQuantiles()
    for part in values.split(parts):
        found.add(part, weights)
    return found


@pytest.mark.parametrize("level", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("parts", [7, 60])
def test_few_values_are_exact(level: float, parts: int) -> None:
    values, weights = normal(60, 2, 5).abs(), uniform(5) + 0.1
    found = added(values, weights, parts).at(level)
    for channel in range(2):
        pairs = sorted(zip(values[:, channel].flatten().tolist(), weights.repeat(60).tolist(), strict=True))
        total = sum(weight for _, weight in pairs)
        masses = accumulate(weight / total for _, weight in pairs)
        reached = [value for (value, _), mass in zip(pairs, masses, strict=True) if mass >= level - 1e-12]
        assert float(found[channel]) == reached[0]


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_many_values_are_right_within_a_bin(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    values, weights = scale * normal(4000, 1, 3).abs(), uniform(3) + 0.1
    exact = added(values, weights, 100).at(0.95)
    monkeypatch.setattr(spread, "_EXACT", 500)
    binned = added(values, weights, 100)
    assert float(binned.at(0.95)) == pytest.approx(float(exact), rel=1e-5)
    assert float(binned.at(0.95)) != float(exact)
    assert len(binned._bins[0][0]) <= 12000


def test_infinite_and_zero_values_have_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "_EXACT", 0)
    values = torch.tensor([0.0, 0.0, 1.0, torch.inf]).double().reshape(4, 1, 1)
    found = added(values, torch.ones(1).double(), 2)
    assert float(found.at(0.9)) == torch.inf
    assert float(found.at(0.2)) == pytest.approx(0.0, abs=1e-300)
