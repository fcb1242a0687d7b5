from __future__ import annotations

import numpy as np
import pytest
import scoringrules
import torch

from probneural.grids import Grid
from probneural.metrics import compare, crps, proper_scores
from probneural.metrics.proper_scores import gaussian_crps, mixture_crps
from tests.helpers import normal
from tests.metrics.cases import GRIDS, empirical, gaussian, shares, truth_for

MEMBERS, TRUTH = normal(7, 30, seed=1), normal(30, seed=2)
WEIGHTS = normal(7, seed=3).abs() / normal(7, seed=3).abs().sum()
VARIANCE = normal(30, seed=4).square() + 0.01


def test_gaussian_agrees_with_scoringrules() -> None:
    scores = gaussian_crps(TRUTH, VARIANCE)
    np.testing.assert_allclose(scores, scoringrules.crps_normal(TRUTH.numpy(), 0.0, VARIANCE.sqrt().numpy()), rtol=1e-12)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
def test_ensemble_agrees_with_scoringrules(weights: torch.Tensor | None) -> None:
    scores = mixture_crps(MEMBERS, TRUTH, weights=weights)
    mass = None if weights is None else weights.expand(30, 7).numpy()
    expected = scoringrules.crps_ensemble(TRUTH.numpy(), MEMBERS.T.numpy(), ens_w=mass, estimator="nrg")
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


def test_blurred_ensemble_agrees_with_scoringrules() -> None:
    scores = mixture_crps(MEMBERS, TRUTH, weights=WEIGHTS, variance=VARIANCE)
    spread = VARIANCE.sqrt()[:, None].expand(30, 7).numpy()
    expected = scoringrules.crps_mixnorm(TRUTH.numpy(), MEMBERS.T.numpy(), spread, WEIGHTS.expand(30, 7).numpy())
    np.testing.assert_allclose(scores, expected, rtol=1e-10)


def test_limits_of_zero_variance() -> None:
    zero = torch.zeros_like(TRUTH)
    torch.testing.assert_close(gaussian_crps(TRUTH, zero), TRUTH.abs(), rtol=0, atol=0)
    torch.testing.assert_close(mixture_crps(MEMBERS[:1], TRUTH), (TRUTH - MEMBERS[0]).abs())
    plain = mixture_crps(MEMBERS, TRUTH, weights=WEIGHTS)
    torch.testing.assert_close(mixture_crps(MEMBERS, TRUTH, weights=WEIGHTS, variance=zero), plain)
    torch.testing.assert_close(mixture_crps(MEMBERS, TRUTH, weights=WEIGHTS, variance=zero + 1e-24), plain)
    torch.testing.assert_close(gaussian_crps(TRUTH, zero + 1e-24), TRUTH.abs())


def test_noise_in_some_channels_only() -> None:
    u = empirical(GRIDS["periodic"])
    truth = truth_for(u)
    mixed = crps(compare(u, truth, noise=torch.tensor([0.0, 0.3])))
    torch.testing.assert_close(mixed[:, 0], crps(compare(u, truth))[:, 0])
    torch.testing.assert_close(mixed[:, 1], crps(compare(u, truth, noise=0.3))[:, 1])


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_fields_are_averaged_by_quadrature(grid: Grid) -> None:
    u = gaussian(grid)
    truth = truth_for(u)
    pointwise = gaussian_crps(truth.values - u.mean, u.variance + 0.2)
    torch.testing.assert_close(crps(compare(u, truth, noise=0.2)), (pointwise.flatten(2) * shares(grid)).sum(-1))
    members = empirical(grid)
    pointwise = mixture_crps(members.samples, truth.values, weights=members.weights)
    torch.testing.assert_close(crps(compare(members, truth)), (pointwise.flatten(2) * shares(grid)).sum(-1))


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [mixture_crps(MEMBERS, TRUTH, weights=WEIGHTS, variance=blur) for blur in (None, VARIANCE)]
    monkeypatch.setattr(proper_scores, "_CHUNK_ELEMENTS", 29)
    for blur, expected in zip((None, VARIANCE), whole, strict=True):
        torch.testing.assert_close(mixture_crps(MEMBERS, TRUTH, weights=WEIGHTS, variance=blur), expected, rtol=1e-14, atol=0)


def test_gradients_exist_and_are_finite_at_zero_variance() -> None:
    residual, variance = TRUTH[:5].clone().requires_grad_(), VARIANCE[:5].clone().requires_grad_()
    assert torch.autograd.gradcheck(gaussian_crps, (residual, variance))
    still = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    for gradient in torch.autograd.grad(gaussian_crps(residual, still).sum(), (residual, still)):
        assert torch.isfinite(gradient).all()
