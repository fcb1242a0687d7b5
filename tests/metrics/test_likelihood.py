from __future__ import annotations

import pytest
import torch
from scipy import stats

from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import compare, joint_nll, nll
from tests.metrics.cases import GRIDS, Maker, empirical, gaussian, shares, truth_for

NOISE = torch.tensor([0.3, 1.7], dtype=torch.float64)


@pytest.mark.parametrize("make", [gaussian, empirical])
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_marginal_agrees_with_torch_distributions(grid: Grid, make: Maker) -> None:
    u = make(grid)
    truth = truth_for(u)
    total = u.variance + NOISE.reshape(1, 2, *(1,) * len(grid.shape))
    pointwise = -torch.distributions.Normal(u.mean, total.sqrt()).log_prob(truth.values)
    torch.testing.assert_close(nll(compare(u, truth, noise=NOISE)), (pointwise.flatten(2) * shares(grid)).sum(-1))


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_joint_agrees_with_scipy(grid: Grid) -> None:
    u = gaussian(grid)
    truth = truth_for(u)
    nll = joint_nll(compare(u, truth, noise=NOISE))
    for index in range(len(u)):
        root = u.root.dense()[index].flatten(0, 1)
        covariance = root @ root.mT + torch.diag(NOISE.repeat_interleave(grid.size))
        distribution = stats.multivariate_normal(u.mean[index].flatten().numpy(), covariance.numpy())
        expected = -distribution.logpdf(truth.values[index].flatten().numpy()) / (2 * grid.size)
        assert nll[index].item() == pytest.approx(expected, rel=1e-9)


def test_joint_of_an_ensemble_takes_its_covariance() -> None:
    grid = GRIDS["interval"]
    u = empirical(grid)
    truth = truth_for(u)
    nll = joint_nll(compare(u, truth, noise=0.4))
    for index in range(len(u)):
        members = u.samples[:, index].flatten(1)
        covariance = torch.cov(members.mT, aweights=u.weights, correction=0) + 0.4 * torch.eye(18).double()
        distribution = torch.distributions.MultivariateNormal(u.weights @ members, covariance)
        torch.testing.assert_close(nll[index], -distribution.log_prob(truth.values[index].flatten()) / 18)


@pytest.mark.bad_input
def test_no_density_without_variance() -> None:
    grid = GRIDS["periodic"]
    u = gaussian(grid)
    truth = truth_for(u)
    with pytest.raises(ArgumentError, match="positive variance in every direction"):
        joint_nll(compare(u, truth))
    certain = empirical(grid, members=1)
    with pytest.raises(ArgumentError, match="none at 120 of 120 values"):
        nll(compare(certain, truth))
    with pytest.raises(ArgumentError, match="none at 60 of 120 values"):
        nll(compare(certain, truth, noise=torch.tensor([0.0, 1.0])))
    assert torch.isfinite(nll(compare(certain, Field(certain.mean, grid), noise=1e-20))).all()
