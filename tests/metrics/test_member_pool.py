from __future__ import annotations

import pytest
import torch
from torch import Tensor

from probneural.distributions import EmpiricalField
from probneural.errors import DataError, UnsupportedError
from probneural.fields import Field
from probneural.metrics import compare, rank_histogram
from probneural.metrics.member_pool import MemberPool, inside_fraction, rank_deviation, suprema
from tests.helpers import normal, uniform
from tests.metrics.cases import GRIDS, empirical, gaussian, shares, truth_for

GRID = GRIDS["interval"]


def skewed(*shape: int, seed: int) -> Tensor:
    """Values that move together along the grid, and are far from Gaussian."""
    smooth = uniform(*shape[:-1], 1, seed=seed).log() + 0.3 * uniform(*shape, seed=seed + 1).log()
    return smooth.exp() + smooth


def exchangeable(count: int, n: int, *, seed: int = 0) -> tuple[EmpiricalField, Field]:
    values = skewed(count + 1, n, 2, 9, seed=seed)
    return EmpiricalField(values[1:], grid=GRID), Field(values[0], GRID)


def test_ranks_are_counted_point_by_point() -> None:
    u = EmpiricalField(normal(4, 3, 2, 9, seed=1), grid=GRID)
    truth = truth_for(u)
    below = (u.samples < truth.values).sum(0)
    expected = torch.stack([(below == rank).double() @ shares(GRID) for rank in range(5)], dim=-1)
    torch.testing.assert_close(rank_histogram(compare(u, truth)), expected)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_ranks_of_exchangeable_members_are_flat(noise: float) -> None:
    u, truth = exchangeable(4, 4000)
    observed = Field(truth.values + noise**0.5 * normal(*truth.values.shape, seed=8), GRID)
    each = rank_histogram(compare(u, observed, noise=noise)).mean(1)
    assert bool(((each.mean(0) - 0.2).abs() < 4 * each.std(0) / 4000**0.5).all())
    assert rank_deviation(each.mean(0)).item() < 0.05
    narrow = u.scale(torch.full((2,), 0.3))
    ends = rank_histogram(compare(narrow, observed, noise=noise)).mean((0, 1))
    assert ends[0] + ends[-1] > 0.5
    assert rank_deviation(ends).item() > 0.3


def test_equal_values_share_their_ranks() -> None:
    u = EmpiricalField(torch.tensor([0.0, 1.0, 1.0, 2.0]).double().reshape(4, 1, 1, 1).expand(4, 1, 1, 9), grid=GRID)
    histogram = rank_histogram(compare(u, Field(torch.ones(1, 1, 9).double(), GRID)))
    torch.testing.assert_close(histogram[0, 0], torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0]).double() / 3)
    nearly = rank_histogram(compare(u, Field(torch.ones(1, 1, 9).double() + 1e-15, GRID)))
    torch.testing.assert_close(nearly, histogram)


@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize("count", [2, 7])
def test_coverage_of_exchangeable_members_is_the_level(count: int, level: float) -> None:
    """At a point and of whole functions, of skewed values, for any number of members."""
    u, truth = exchangeable(count, 6000, seed=3)
    pool = MemberPool(compare(u, truth))
    for inside in (
        pool.coverage(pool.distances, level=level).mean(1),
        inside_fraction(suprema(pool.distances), level=level),
    ):
        assert abs(inside.mean().item() - level) < 4 * inside.std().item() / 6000**0.5
    wide = MemberPool(compare(u.scale(torch.full((2,), 20.0)), truth))
    assert inside_fraction(suprema(wide.distances), level=level).mean() > level + 0.05


def test_distances_are_standardised_over_all() -> None:
    u, truth = exchangeable(3, 2)
    found = MemberPool(compare(u, truth)).distances
    values = torch.cat([truth.values[None], u.samples])
    expected = (values - values.mean(0)).abs() / values.std(0, correction=0)
    torch.testing.assert_close(found, expected)


def test_values_that_are_certain_and_right_lie_inside() -> None:
    samples = normal(3, 1, 1, 9, seed=1)
    samples[..., 0] = 2.0
    truth = samples[0].clone()
    pool = MemberPool(compare(EmpiricalField(samples, grid=GRID), Field(truth, GRID)))
    assert bool((pool.distances[..., 0] == 0).all())


def test_what_has_no_ranks_is_refused() -> None:
    u = empirical(GRID)
    with pytest.raises(UnsupportedError, match="equal weight"):
        rank_histogram(compare(u, truth_for(u)))
    with pytest.raises(UnsupportedError, match="GaussianField"):
        rank_histogram(compare(gaussian(GRID), truth_for(u)))
    one = EmpiricalField(u.samples[:1], grid=GRID)
    with pytest.raises(DataError, match="2 or more members"):
        rank_histogram(compare(one, truth_for(one)))
