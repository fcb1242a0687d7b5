"""Areas under the sparsification error curve: closed forms, and a slow definition with every value left out in turn."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from probneural.distributions import EmpiricalField
from probneural.errors import DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import ause, compare
from tests.helpers import normal
from tests.metrics.cases import GRIDS, gaussian, truth_for

LINE = Grid.uniform((500,))


def stated(std: torch.Tensor, grid: Grid = LINE) -> EmpiricalField:
    """Two members at ± std."""
    return EmpiricalField(torch.stack([-std, std]), grid=grid)


def by_definition(order: list[float], error: list[float], weights: list[float]) -> float:
    """Root mean squared errors of the rest, over that of all, after each removal; no two of an order are equal."""
    rows = sorted(zip(order, error, weights, strict=True), reverse=True)
    total, nodes, removed = sum(w * e * e for _, e, w in rows) / sum(weights), [], 0.0
    for start in range(len(rows)):
        rest = rows[start:]
        mean = sum(w * e * e for _, e, w in rest) / sum(w for _, _, w in rest)
        nodes.append((removed, math.sqrt(mean / total)))
        removed += rows[start][2]
    area = sum((right - left) * (one + two) / 2 for (left, one), (right, two) in itertools.pairwise(nodes))
    return area + (1.0 - nodes[-1][0]) * nodes[-1][1]


@pytest.mark.parametrize("grid", GRIDS)
def test_is_the_definition(grid: str) -> None:
    u = gaussian(GRIDS[grid])
    comparison = compare(u, truth_for(u), noise=0.2)
    found, share = ause(comparison), GRIDS[grid].weights / GRIDS[grid].weights.sum()
    held = share > 0
    for channel in range(2):
        std = comparison.variance[:, channel].flatten(1)[:, held].sqrt().flatten().tolist()
        error = comparison.residual[:, channel].flatten(1)[:, held].abs().flatten().tolist()
        weights = (share[held].repeat(5) / 5).tolist()
        oracle = by_definition(error, error, weights)
        assert found.values[channel].item() == pytest.approx(by_definition(std, error, weights) - oracle, abs=1e-12)
        assert found.constant_values[channel].item() == pytest.approx(1.0 - oracle, abs=1e-12)
        std, error = (
            (part[:, channel].flatten(1) @ share).sqrt().tolist() for part in (comparison.variance, comparison.residual**2)
        )
        oracle = by_definition(error, error, [0.2] * 5)
        assert found.functions[channel].item() == pytest.approx(by_definition(std, error, [0.2] * 5) - oracle, abs=1e-12)
        assert found.constant_functions[channel].item() == pytest.approx(1.0 - oracle, abs=1e-12)


def test_closed_forms_of_errors_that_are_uniform() -> None:
    """Errors 0 to 1: the oracle leaves 1 - t; a constant 1; the reverse order √(1 + t + t²)."""
    error = torch.linspace(0.0, 1.0, 500, dtype=torch.float64).expand(2, 1, 500)
    truth = Field(error, LINE)
    perfect, constant, reverse = (
        ause(compare(stated(std), truth)).values.item() for std in (error + 0.1, torch.ones_like(error), 1.1 - error)
    )
    assert perfect == pytest.approx(0.0, abs=1e-9)
    assert constant == pytest.approx(0.5, abs=0.003)
    t = torch.linspace(0.0, 1.0, 2001, dtype=torch.float64)
    assert reverse == pytest.approx(float(torch.trapezoid((1 + t + t * t).sqrt(), t)) - 0.5, abs=0.003)


def test_a_random_order_has_the_area_of_a_constant() -> None:
    error = normal(60, 1, 500, seed=1)
    random = ause(compare(stated(normal(60, 1, 500, seed=2).abs()), Field(error, LINE)))
    assert random.values.item() == pytest.approx(random.constant_values.item(), abs=0.01)
    level = ause(compare(stated(torch.ones(60, 1, 500).double()), Field(error, LINE)))
    assert level.values.item() == pytest.approx(level.constant_values.item(), abs=1e-12)
    assert level.functions.item() == pytest.approx(level.constant_functions.item(), abs=1e-12)
    std = 0.1 + normal(60, 1, 500, seed=3).abs()
    honest = ause(compare(stated(std), Field(std * error, LINE)))
    assert 0.1 < honest.values.item() < 0.8 * honest.constant_values.item()


def test_it_knows_where_and_which_apart() -> None:
    """One number per function ranks functions, not the values of one; a profile alone ranks values, not functions."""
    size = torch.linspace(1.0, 3.0, 40, dtype=torch.float64).reshape(40, 1, 1).expand(40, 1, 500)
    error = size * normal(40, 1, 500, seed=1)
    which = ause(compare(stated(size.contiguous()), Field(error, LINE)))
    assert which.functions.item() < 0.05 * which.constant_functions.item()
    assert which.values.item() > 0.5 * which.constant_values.item()


def test_does_not_change_with_the_size_of_the_standard_deviation_or_the_unit() -> None:
    u = gaussian(GRIDS["periodic"])
    one = ause(compare(u, truth_for(u)))
    many = ause(compare(u.scale(torch.tensor([3.0, 3.0]).double()), truth_for(u)))
    torch.testing.assert_close(one.values, many.values)
    std, error = normal(9, 1, 500, seed=5).abs(), normal(9, 1, 500, seed=6)
    metres, feet = (ause(compare(stated(unit * std), Field(unit * error, LINE))).values for unit in (1.0, 3.28))
    torch.testing.assert_close(metres, feet)


@pytest.mark.bad_input
def test_errors() -> None:
    u = gaussian(GRIDS["periodic"])
    with pytest.raises(DataError, match="two functions"):
        ause(compare(u[:1], truth_for(u)[:1]))
    with pytest.raises(DataError, match="errors in every channel"):
        ause(compare(u, Field(u.mean, u.grid)))
    with pytest.raises(DataError, match="Comparison"):
        ause(None)
