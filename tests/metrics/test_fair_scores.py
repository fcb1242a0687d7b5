"""Scores of members that are a sample: against scoringrules, and on average those of the distribution they come from."""

from __future__ import annotations

import numpy as np
import pytest
import scoringrules
import torch
from torch import Tensor

from probneural.distributions import DenseRoot, EmpiricalField, GaussianField
from probneural.errors import DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import compare, crps, energy_score, member_pool
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


@pytest.mark.parametrize("noise", [0.0, 0.6])
@pytest.mark.parametrize("score", [crps, energy_score])
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
    for score in (crps, energy_score):
        assert torch.equal(score(comparison, is_fair=True), score(comparison, is_fair=False))


def test_what_has_no_fair_score_is_refused() -> None:
    u = members(GRIDS["interval"], count=1)
    comparison = compare(u, truth_for(u))
    for score in (crps, energy_score):
        with pytest.raises(DataError, match="two or more members"):
            score(comparison, is_fair=True)
        assert bool(torch.isfinite(score(comparison)).all())
