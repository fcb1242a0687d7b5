from __future__ import annotations

import math

import pytest
import torch

from probneural.distributions import EmpiricalField
from probneural.errors import DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import compare
from tests.metrics.cases import GRIDS, Maker, empirical, gaussian, shares, truth_for

GRID = Grid.uniform((6,))


@pytest.mark.parametrize("make", [gaussian, empirical])
def test_noise_adds_to_the_variance_per_channel(make: Maker) -> None:
    u = make(GRID)
    comparison = compare(u, truth_for(u), noise=torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(comparison.variance[:, 0], u.variance[:, 0] + 0.5)
    torch.testing.assert_close(comparison.variance[:, 1], u.variance[:, 1] + 2.0)


def test_everything_is_detached_and_in_float64() -> None:
    u = gaussian(GRID, dtype=torch.float32)
    u.mean.requires_grad_()
    comparison = compare(u, Field(truth_for(u).values.float(), GRID), noise=0.1)
    for tensor in (comparison.mean, comparison.truth, comparison.noise, comparison.variance, comparison.rounding):
        assert tensor.dtype == torch.float64
        assert not tensor.requires_grad


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_averages_weigh_by_quadrature(grid: Grid) -> None:
    u = gaussian(grid)
    average = compare(u, truth_for(u)).average(u.mean)
    torch.testing.assert_close(average, (u.mean.flatten(2) * shares(grid)).sum(-1))


def test_points_without_weight_do_not_count_even_where_infinite() -> None:
    grid = Grid.scattered([[0.0], [1.0], [2.0]], [0.0, 1.0, 3.0])
    u = gaussian(grid, n=1, c=1)
    average = compare(u, truth_for(u)).average(torch.tensor([[[math.inf, 4.0, 8.0]]], dtype=torch.float64))
    assert average.item() == 7.0


def test_standardising_takes_the_limit_of_zero_variance() -> None:
    u = EmpiricalField(torch.ones(1, 1, 1, 6, dtype=torch.float64), grid=GRID)
    truth = torch.tensor([1.0, 1.0 + 2e-16, 1.5, 0.5, 1.0, 1.0], dtype=torch.float64)[None, None]
    comparison = compare(u, Field(truth, GRID))
    assert comparison.standardise(comparison.residual)[0, 0].tolist() == [0.0, 0.0, math.inf, -math.inf, 0.0, 0.0]
    assert comparison.certain.all()
    noisy = compare(u, Field(truth, GRID), noise=0.25)
    torch.testing.assert_close(noisy.standardise(noisy.residual), (truth - 1.0) / 0.5)
    assert not noisy.certain.any()


def test_what_rounds_to_zero_follows_the_coarser_dtype_and_the_size_of_the_function() -> None:
    def rounding(distribution: torch.dtype, truth: torch.dtype, size: float) -> float:
        u = EmpiricalField(torch.full((1, 1, 1, 6), size, dtype=distribution), grid=GRID)
        return compare(u, Field(torch.zeros(1, 1, 6, dtype=truth), GRID)).rounding.item()

    single, double = torch.float32, torch.float64
    assert rounding(single, double, 1.0) == rounding(double, single, 1.0) == 8 * 2.0**-23
    assert rounding(double, double, 4.0) == 32 * 2.0**-52


@pytest.mark.bad_input
def test_errors() -> None:
    u = gaussian(GRID)
    truth = truth_for(u)
    with pytest.raises(GridError, match=r"query=truth\.grid"):
        compare(u, Field(truth.values, Grid.uniform((6,), lengths=2.0)))
    for wrong in (truth[:1], Field(truth.values[:, :1], GRID)):  # both would broadcast
        with pytest.raises(ShapeError, match="truth of shape"):
            compare(u, wrong)
    with pytest.raises(DataError, match="at least one function"):
        compare(u[:0], truth[:0])
    broken = truth.values.clone()
    broken[3, 1, 2] = math.nan
    with pytest.raises(DataError, match=r"true values.*\(3, 1, 2\)"):
        compare(u, Field(broken, GRID))
    with pytest.raises(DataError, match="predicted means"):
        compare(EmpiricalField(broken[None], grid=GRID), truth)
    with pytest.raises(DataError, match="variances that torch.float64 holds"):
        compare(EmpiricalField(torch.stack([truth.values * 1e200, -truth.values * 1e200]), grid=GRID), truth)
