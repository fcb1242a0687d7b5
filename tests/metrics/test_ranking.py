"""Rank correlations against SciPy's, function by function, and against what must come out."""

from __future__ import annotations

import pytest
import scipy.stats
import torch

from probneural.distributions import DenseRoot, GaussianField
from probneural.errors import DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import compare, rank_correlation
from tests.helpers import normal
from tests.metrics.cases import GRIDS, gaussian, truth_for

LINE = Grid.uniform((40,))


def independent(std: torch.Tensor) -> GaussianField:
    """Values without correlation, `(n, c, p)` standard deviations about zero."""
    _, channels, points = std.shape
    root = torch.diag_embed(std.flatten(1)).unflatten(1, (channels, points))
    return GaussianField(torch.zeros_like(std), DenseRoot(root), latent="independent", grid=Grid.uniform((points,)))


@pytest.mark.parametrize("grid", ["periodic", "scattered"])
def test_is_spearmans(grid: str) -> None:
    u = gaussian(GRIDS[grid])
    comparison = compare(u, truth_for(u), noise=0.2)
    correlation = rank_correlation(comparison, draws=1)
    inside = GRIDS[grid].weights > 0
    std, error = comparison.variance.sqrt().flatten(2)[..., inside], comparison.residual.abs().flatten(2)[..., inside]
    weights = GRIDS[grid].weights[inside] / GRIDS[grid].weights.sum()
    for channel in range(2):
        within = [scipy.stats.spearmanr(std[row, channel], error[row, channel])[0] for row in range(len(std))]
        assert correlation.within[channel].item() == pytest.approx(sum(within) / len(within), abs=1e-12)
        totals = [(values[:, channel].square() @ weights).sqrt() for values in (std, error)]
        assert correlation.across[channel].item() == pytest.approx(scipy.stats.spearmanr(*totals)[0], abs=1e-12)


def test_errors_as_stated_reach_what_is_attainable_and_others_do_not() -> None:
    std = 0.2 + normal(60, 1, 40, seed=1).abs() * (0.5 + normal(60, 1, 1, seed=2).abs())
    u = independent(std)
    honest = rank_correlation(compare(u, Field(std * normal(60, 1, 40, seed=3), LINE)))
    assert honest.within.item() == pytest.approx(honest.attainable_within.item(), abs=4 * 60**-0.5 * 40**-0.5)
    assert honest.across.item() == pytest.approx(honest.attainable_across.item(), abs=0.2)
    assert honest.attainable_within > 0.3
    random = rank_correlation(compare(u, Field(normal(60, 1, 40, seed=4), LINE)))
    assert abs(random.within.item()) < 4 * 60**-0.5 * 40**-0.5
    assert abs(random.across.item()) < 4 * 60**-0.5
    assert random.attainable_within.item() == honest.attainable_within.item()


def test_one_number_everywhere_ranks_nothing() -> None:
    u = independent(torch.ones(5, 1, 40, dtype=torch.float64))
    correlation = rank_correlation(compare(u, Field(normal(5, 1, 40, seed=0), LINE)))
    assert (correlation.across.item(), correlation.within.item(), correlation.attainable_within.item()) == (0.0, 0.0, 0.0)


@pytest.mark.bad_input
def test_errors() -> None:
    u = independent(torch.ones(2, 1, 40, dtype=torch.float64))
    comparison = compare(u, Field(normal(2, 1, 40, seed=0), LINE))
    with pytest.raises(DataError, match="three functions"):
        rank_correlation(comparison)
    few = Grid.scattered(torch.arange(4.0)[:, None], torch.tensor([1.0, 1.0, 0.0, 0.0]))
    u = GaussianField(torch.zeros(3, 1, 4), DenseRoot(torch.ones(3, 1, 4, 1)), latent="xi", grid=few)
    with pytest.raises(DataError, match="3 and 2"):
        rank_correlation(compare(u, Field(normal(3, 1, 4, seed=1), few)))
