from __future__ import annotations

import math

import numpy as np
import pytest
import scoringrules
import torch

from probneural import metrics
from probneural.distributions import DenseRoot, EmpiricalField, GaussianField
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import compare, energy_score
from probneural.metrics.proper_scores import _distances
from tests.helpers import normal
from tests.metrics.cases import GRIDS, empirical, gaussian, shares, truth_for


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_members_have_the_multivariate_score_of_weighted_values(grid: Grid) -> None:
    u = EmpiricalField(normal(6, 3, 2, *grid.shape, seed=2), grid=grid)
    truth = truth_for(u)
    root = shares(grid).sqrt()
    expected = scoringrules.es_ensemble(
        (truth.values.flatten(2) * root).numpy(), (u.samples.flatten(3) * root).numpy(), m_axis=0
    )
    np.testing.assert_allclose(energy_score(compare(u, truth)), expected)


def test_weighted_constants_score_their_crps() -> None:
    grid = GRIDS["interval"]
    members = normal(7, 4, 2, 1, seed=4).expand(7, 4, 2, 9)
    u = EmpiricalField(members, normal(7, seed=5).abs(), grid=grid)
    comparison = compare(u, Field(normal(4, 2, 1, seed=6).expand(4, 2, 9), grid))
    torch.testing.assert_close(energy_score(comparison), metrics.crps(comparison))


def test_a_gaussian_constant_scores_its_crps() -> None:
    grid = GRIDS["interval"]
    root = DenseRoot(torch.full((1, 1, 9, 1), 1.5, dtype=torch.float64))
    u = GaussianField(torch.zeros(1, 1, 9, dtype=torch.float64), root, latent="one", grid=grid)
    comparison = compare(u, Field(torch.full((1, 1, 9), 0.7, dtype=torch.float64), grid))
    estimates = torch.stack([energy_score(comparison, draws=32, seed=seed) for seed in range(300)])
    error = float(estimates.std()) / math.sqrt(300)
    assert estimates.mean().item() == pytest.approx(metrics.crps(comparison).item(), abs=4 * error)


@pytest.mark.parametrize("make", [gaussian, empirical])
def test_noise_is_observed_at_one_point(make: object) -> None:
    grid = Grid.uniform(1)
    u = make(grid, n=2, c=2)  # type: ignore[operator]
    comparison = compare(u, truth_for(u), noise=0.8)
    estimates = torch.stack([energy_score(comparison, draws=32, seed=seed) for seed in range(300)])
    gap = (estimates.mean(0) - metrics.crps(comparison)).abs()
    assert bool((gap < 4.5 * estimates.std(0) / math.sqrt(300)).all())


def test_distances_from_the_gram_matrix() -> None:
    points = 1e6 + normal(2, 3, 20, 50, seed=8)  # far from 0, compared with their distances
    expected = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    torch.testing.assert_close(_distances(points, may_be_equal=False), expected, rtol=1e-11, atol=1e-6)
