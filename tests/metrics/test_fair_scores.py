"""Scores of members that are a sample: against scoringrules, and on average those of the distribution they come from."""

from __future__ import annotations

import numpy as np
import pytest
import scoringrules
import torch
from torch import Tensor

from probneural import metrics
from probneural.distributions import DenseRoot, EmpiricalField, GaussianField
from probneural.errors import ArgumentError, DataError, GridError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import compare, crps, energy_score, member_pool, variogram_score
from tests.helpers import normal
from tests.metrics.cases import GRIDS, gaussian, shares, truth_for


def members(grid: Grid, count: int = 6, n: int = 3, c: int = 2) -> EmpiricalField:
    return EmpiricalField(normal(count, n, c, *grid.shape, seed=2), grid=grid)


def arrays(u: EmpiricalField, truth: Field) -> tuple[np.ndarray, np.ndarray]:
    return truth.values.flatten(2).numpy(), u.samples.flatten(3).numpy()


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_crps_and_energy_score_are_those_of_scoringrules(grid: Grid) -> None:
    u = members(grid)
    truth = truth_for(u)
    observed, sample = arrays(u, truth)
    pointwise = scoringrules.crps_ensemble(observed, sample, m_axis=0, estimator="fair")
    expected = torch.as_tensor(pointwise) @ shares(grid)
    torch.testing.assert_close(crps(compare(u, truth), is_fair=True), expected)
    root = shares(grid).sqrt().numpy()
    expected = scoringrules.es_ensemble(observed * root, sample * root, m_axis=0, estimator="fair")
    np.testing.assert_allclose(energy_score(compare(u, truth), is_fair=True), expected)


def weights_of(grid: Grid) -> Tensor:
    """Weights of ordered pairs, for a sum over both orders, `(p, p)`."""
    products = torch.outer(grid.weights, grid.weights).fill_diagonal_(0.0)
    return products / products.sum()


@pytest.mark.parametrize("order", [0.5, 1.0])
@pytest.mark.parametrize("estimator", ["nrg", "fair"])
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_variogram_score_is_that_of_scoringrules(grid: Grid, estimator: str, order: float) -> None:
    u = members(grid, n=2)
    truth = truth_for(u)
    observed, sample = arrays(u, truth)
    weights = np.broadcast_to(weights_of(grid).numpy(), (2, 2, grid.size, grid.size))
    if estimator == "nrg":
        expected = scoringrules.vs_ensemble(observed, sample, weights, m_axis=0, p=order)
    else:  # the fair one of that library leaves out pairs of one member; ours corrects the square, which is the same
        difference = np.abs(sample[..., :, None] - sample[..., None, :]) ** order
        truths = np.abs(observed[..., :, None] - observed[..., None, :]) ** order
        error = difference - truths
        cross = (error.sum(0) ** 2 - (error**2).sum(0)) / (6 * 5)
        expected = (weights * cross).sum((-2, -1))
    found = variogram_score(compare(u, truth), order=order, is_fair=estimator == "fair")
    np.testing.assert_allclose(found, expected)


def test_some_pairs_stand_for_all() -> None:
    u = members(GRIDS["plane"], n=2)
    comparison = compare(u, truth_for(u))
    everything = variogram_score(comparison)
    estimates = torch.stack([variogram_score(comparison, pairs=100, seed=seed) for seed in range(60)])
    gap = (estimates.mean(0) - everything).abs()
    assert bool((gap < 4 * estimates.std(0) / 60**0.5).all())
    assert torch.equal(estimates[3], variogram_score(comparison, pairs=100, seed=3))
    assert not torch.equal(estimates[3], estimates[4])


def test_pairs_of_many_points_are_of_two_points_with_weight() -> None:
    grid = Grid.scattered(normal(4000, 1, seed=1), torch.ones(4000).index_fill(0, torch.tensor([5]), 0.0))
    first, second, weights = metrics.proper_scores._pairs(grid, 3000, seed=0)  # type: ignore[attr-defined]
    assert bool((first != second).all())
    assert not bool(((first == 5) | (second == 5)).any())
    assert weights.sum().item() == pytest.approx(1.0)
    assert len(first.unique()) > 1500


@pytest.mark.parametrize("noise", [0.0, 0.6])
@pytest.mark.parametrize("score", [crps, energy_score, variogram_score])
def test_fair_scores_do_not_depend_on_the_number_of_members(score: object, noise: float) -> None:
    """Averaged over many functions, 3 members score what 8 do; the plain score punishes them."""
    grid, n = GRIDS["interval"], 1000
    truth = Field(normal(n, 1, 9, seed=4), grid)
    few, many = (EmpiricalField(0.5 * normal(count, n, 1, 9, seed=count), grid=grid) for count in (3, 8))

    def scored(u: EmpiricalField, *, is_fair: bool) -> Tensor:
        return score(compare(u, truth, noise=noise), is_fair=is_fair)  # type: ignore[operator]

    gap = scored(few, is_fair=True) - scored(many, is_fair=True)
    assert abs(gap.mean().item()) < 4 * gap.std().item() / n**0.5
    if noise == 0.0:
        plain = scored(few, is_fair=False) - scored(many, is_fair=False)
        assert plain.mean().item() > 10 * gap.std().item() / n**0.5


def test_members_are_observed_with_noise_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each function too, also where functions come one at a time; many draws of a Gaussian field share theirs."""
    monkeypatch.setattr(member_pool, "_CHUNK_NUMBERS", 1)
    grid = GRIDS["interval"]
    u = EmpiricalField(normal(4, 1, 1, 9, seed=1).expand(4, 2, 1, 9), grid=grid)
    truth = Field(normal(1, 1, 9, seed=2).expand(2, 1, 9), grid)
    first, second = energy_score(compare(u, truth, noise=0.5), is_fair=True)
    assert first != second
    root = DenseRoot(normal(1, 1, 9, 2, seed=3).expand(2, 1, 9, 2))
    gaussians = GaussianField(torch.zeros(2, 1, 9).double(), root, latent="xi", grid=grid)
    first, second = energy_score(compare(gaussians, truth, noise=0.5), is_fair=True)
    assert first == second


def test_a_gaussian_field_has_one_score() -> None:
    comparison = compare(gaussian(GRIDS["interval"]), truth_for(gaussian(GRIDS["interval"])))
    for score in (crps, energy_score, variogram_score):
        assert torch.equal(score(comparison, is_fair=True), score(comparison, is_fair=False))
    exact = variogram_score(comparison, order=2.0, draws=4000)
    u = gaussian(GRIDS["interval"])
    root = u.root.dense()
    spread = (root[..., :, None, :] - root[..., None, :, :]).square().sum(-1)
    mean = (u.mean[..., :, None] - u.mean[..., None, :]).square()
    true = truth_for(u).values
    error = (true[..., :, None] - true[..., None, :]).square() - mean - spread
    expected = (weights_of(u.grid) * error.square()).sum((-2, -1))
    torch.testing.assert_close(exact, expected, rtol=0.1, atol=0.2)


def test_what_has_no_fair_score_is_refused() -> None:
    u = members(GRIDS["interval"], count=1)
    comparison = compare(u, truth_for(u))
    for score in (crps, energy_score, variogram_score):
        with pytest.raises(DataError, match="two or more members"):
            score(comparison, is_fair=True)
        assert bool(torch.isfinite(score(comparison)).all())
    point = members(Grid.uniform(1))
    with pytest.raises(GridError, match="two or more points"):
        variogram_score(compare(point, truth_for(point)))


@pytest.mark.bad_input
def test_wrong_settings_of_the_variogram_score() -> None:
    u = members(GRIDS["interval"])
    for wrong in ({"order": 0.0}, {"pairs": 0}, {"draws": 1}, {"seed": -1, "pairs": 3}):
        with pytest.raises(ArgumentError):
            variogram_score(compare(u, truth_for(u)), **wrong)  # type: ignore[arg-type]


def test_pairs_of_points_come_as_often_as_the_product_of_their_weights() -> None:
    """One point of weight 50 beside 199 of weight 1 is in 50 * 199 of (249^2 - 50^2 - 199) / 2 pairs."""
    weights = torch.ones(200, dtype=torch.float64)
    weights[7] = 50.0
    grid = Grid.scattered(torch.linspace(0.0, 1.0, 200)[:, None].double(), weights)
    first, second, _ = metrics.proper_scores._pairs(grid, 10_000, seed=0)  # type: ignore[attr-defined]
    share = float(((first == 7) | (second == 7)).double().mean())
    expected = 50.0 * 199.0 / ((249.0**2 - 50.0**2 - 199.0) / 2.0)
    assert not bool((first == second).any())
    assert share == pytest.approx(expected, abs=5.0 * (expected * (1.0 - expected) / 10_000) ** 0.5)
