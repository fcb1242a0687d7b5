from __future__ import annotations

import math

import numpy as np
import pytest
import scoringrules
import torch
from scipy import stats

from probneural import metrics
from probneural.distributions import DenseRoot, EmpiricalField, GaussianField
from probneural.errors import DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import compare
from probneural.metrics.comparison import Comparison
from probneural.metrics.reliability import pit_histogram
from probneural.metrics.spread import spread_skill_curve
from tests.helpers import normal, uniform
from tests.metrics.cases import GRIDS, Maker, empirical, gaussian, shares, truth_for


def members(count: int, n: int, *, seed: int, grid: Grid = GRIDS["periodic"]) -> EmpiricalField:
    return EmpiricalField(normal(count, n, 1, *grid.shape, seed=seed), grid=grid)


@pytest.mark.parametrize("make", [gaussian, empirical])
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_interval_score_and_sharpness_are_averages(grid: Grid, make: Maker) -> None:
    u = make(grid)
    truth = truth_for(u)
    comparison = compare(u, truth, noise=0.4)
    sd = (u.variance + 0.4).sqrt()
    z = stats.norm.ppf(0.9)
    pointwise = scoringrules.interval_score(
        truth.values.numpy(), (u.mean - z * sd).numpy(), (u.mean + z * sd).numpy(), alpha=np.array(0.2)
    )
    expected = torch.as_tensor(pointwise).flatten(2) @ shares(grid)
    torch.testing.assert_close(metrics.interval_score(comparison, level=0.8), expected)
    torch.testing.assert_close(metrics.sharpness(comparison), sd.flatten(2) @ shares(grid))


def test_spread_skill_of_exchangeable_members_is_one() -> None:
    for count in (2, 5):
        u = members(count, 4000, seed=1)
        truth = Field(normal(4000, 1, 12, seed=2), u.grid)
        assert metrics.spread_skill(compare(u, truth)).item() == pytest.approx(1.0, abs=0.015)


def test_spread_skill_of_a_gaussian_is_its_definition() -> None:
    u = gaussian(GRIDS["plane"])
    truth = truth_for(u)
    comparison = compare(u, truth, noise=0.3)
    mass = shares(u.grid)
    spread = ((u.variance + 0.3).flatten(2) @ mass).mean(0).sqrt()
    torch.testing.assert_close(metrics.spread_skill(comparison), spread / metrics.rmse(Field(u.mean, u.grid), truth))


def test_noise_is_not_corrected() -> None:
    u = members(3, 4, seed=3)
    truth = truth_for(u)
    weights = shares(u.grid)
    variance = (2.0 * u.variance + 0.5).flatten(2) @ weights  # (3 + 1) / (3 - 1) = 2
    expected = variance.mean(0).sqrt() / metrics.rmse(Field(u.mean, u.grid), truth)
    torch.testing.assert_close(metrics.spread_skill(compare(u, truth, noise=0.5)), expected)


def known(sd: torch.Tensor, residual: torch.Tensor) -> Comparison:
    """One function of independent values of these standard deviations and residuals."""
    grid = Grid.uniform(len(sd))
    root = DenseRoot(torch.diag(sd)[None, None])
    u = GaussianField(torch.zeros(1, 1, len(sd), dtype=torch.float64), root, latent="known", grid=grid)
    return compare(u, Field(residual[None, None], grid))


def test_curve_bins_by_standard_deviation() -> None:
    sd = torch.tensor([3.0, 1.0, 4.0, 2.0], dtype=torch.float64)
    curve = spread_skill_curve(known(sd, torch.tensor([5.0, 6.0, 7.0, 8.0], dtype=torch.float64)), bins=2)
    assert curve.spread[0].tolist() == pytest.approx([math.sqrt(2.5), math.sqrt(12.5)])
    assert curve.skill[0].tolist() == pytest.approx([math.sqrt(50.0), math.sqrt(37.0)])


def test_curve_cuts_values_of_much_weight() -> None:
    """A point with half of the weight fills half of the bins: none is empty, and each has what lies in its part."""
    grid = Grid.scattered(uniform(4, 1), torch.tensor([1.0, 1.0, 6.0, 4.0]))
    sd = torch.tensor([2.0, 1.0, 3.0, 4.0], dtype=torch.float64)
    error = torch.tensor([1.0, 3.0, 5.0, 2.0], dtype=torch.float64)
    u = GaussianField(torch.zeros(1, 1, 4, dtype=torch.float64), DenseRoot(sd.diag()[None, None]), latent="xi", grid=grid)
    curve = spread_skill_curve(compare(u, Field(error[None, None], grid)), bins=4)
    assert curve.spread[0].square().tolist() == pytest.approx([(1.0 + 4.0 + 9.0) / 3.0, 9.0, (2.0 * 9.0 + 16.0) / 3.0, 16.0])
    assert curve.skill[0].square().tolist() == pytest.approx([(9.0 + 1.0 + 25.0) / 3.0, 25.0, (2.0 * 25.0 + 4.0) / 3.0, 4.0])


def test_curve_joins_to_the_ratio() -> None:
    comparison = compare(gaussian(GRIDS["interval"]), truth_for(gaussian(GRIDS["interval"])), noise=0.1)
    curve = spread_skill_curve(comparison, bins=1)
    torch.testing.assert_close((curve.spread / curve.skill)[:, 0], metrics.spread_skill(comparison))


def test_histogram_of_the_transform() -> None:
    u = gaussian(GRIDS["interval"])
    comparison = compare(u, truth_for(u), noise=0.2)
    histogram = pit_histogram(comparison, bins=4)
    expected, _ = np.histogram(metrics.pit(comparison)[1, 0], bins=4, range=(0, 1), weights=4 * shares(u.grid).numpy())
    np.testing.assert_allclose(histogram[1, 0], expected)
    torch.testing.assert_close(histogram.mean(-1), torch.ones_like(histogram[..., 0]))


@pytest.mark.bad_input
class TestBadInput:
    comparison = compare(gaussian(GRIDS["interval"]), truth_for(gaussian(GRIDS["interval"])))

    def test_no_error(self) -> None:
        u = gaussian(GRIDS["interval"])
        with pytest.raises(DataError, match="an RMSE above zero"):
            metrics.spread_skill(compare(u, Field(u.mean, u.grid)))

    def test_one_member(self) -> None:
        u = members(1, 2, seed=0)
        with pytest.raises(DataError, match="two or more members"):
            metrics.spread_skill(compare(u, truth_for(u)))
