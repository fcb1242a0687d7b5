from __future__ import annotations

import itertools

import numpy as np
import pytest
import scoringrules
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from probneural.distributions import EmpiricalField
from probneural.errors import ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import compare, crps, ranked_probability
from probneural.metrics.ranked_probability import gaussian_crps, mixture_crps
from tests.helpers import normal
from tests.metrics.cases import GRIDS, empirical, gaussian, shares, truth_for

MEMBERS, TRUTH = normal(7, 30, seed=1), normal(30, seed=2)
WEIGHTS = normal(7, seed=3).abs() / normal(7, seed=3).abs().sum()
VARIANCE = normal(30, seed=4).square() + 0.01


def integral(distribution, truth: float, centre: list[float]) -> float:
    """∫ (F(z) - 1[truth <= z])² dz by adaptive quadrature between the places where the integrand has corners."""
    corners = sorted([truth, *centre, min([truth, *centre]) - 40.0, max([truth, *centre]) + 40.0])
    return sum(
        integrate.quad(lambda z: (distribution(z) - (truth <= z)) ** 2, low, high, epsabs=1e-11, epsrel=1e-11)[0]
        for low, high in itertools.pairwise(corners)
    )


def test_gaussian_agrees_with_scoringrules() -> None:
    scores = gaussian_crps(TRUTH, VARIANCE)
    np.testing.assert_allclose(scores, scoringrules.crps_normal(TRUTH.numpy(), 0.0, VARIANCE.sqrt().numpy()), rtol=1e-12)


@pytest.mark.parametrize("index", range(4))
def test_gaussian_agrees_with_its_definition(index: int) -> None:
    sd = float(VARIANCE[index].sqrt())
    expected = integral(lambda z: stats.norm.cdf(z, scale=sd), float(TRUTH[index]), [0.0])
    assert gaussian_crps(TRUTH, VARIANCE)[index].item() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
def test_ensemble_agrees_with_scoringrules(weights: torch.Tensor | None) -> None:
    scores = mixture_crps(MEMBERS, TRUTH, weights=weights)
    mass = None if weights is None else weights.expand(30, 7).numpy()
    expected = scoringrules.crps_ensemble(TRUTH.numpy(), MEMBERS.T.numpy(), ens_w=mass, estimator="nrg")
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


def test_ensemble_agrees_with_its_definition() -> None:
    def distribution(z: float) -> float:
        return float(WEIGHTS[MEMBERS[:, 0] <= z].sum())

    expected = integral(distribution, float(TRUTH[0]), MEMBERS[:, 0].tolist())
    assert mixture_crps(MEMBERS, TRUTH, weights=WEIGHTS)[0].item() == pytest.approx(expected, rel=1e-9)


def test_blurred_ensemble_agrees_with_scoringrules() -> None:
    scores = mixture_crps(MEMBERS, TRUTH, weights=WEIGHTS, variance=VARIANCE)
    spread = VARIANCE.sqrt()[:, None].expand(30, 7).numpy()
    expected = scoringrules.crps_mixnorm(TRUTH.numpy(), MEMBERS.T.numpy(), spread, WEIGHTS.expand(30, 7).numpy())
    np.testing.assert_allclose(scores, expected, rtol=1e-10)


def test_blurred_ensemble_agrees_with_its_definition() -> None:
    sd = float(VARIANCE[0].sqrt())
    members = MEMBERS[:, 0].numpy()

    def distribution(z: float) -> float:
        return float((WEIGHTS.numpy() * stats.norm.cdf(z, members, sd)).sum())

    expected = integral(distribution, float(TRUTH[0]), members.tolist())
    assert mixture_crps(MEMBERS, TRUTH, weights=WEIGHTS, variance=VARIANCE)[0].item() == pytest.approx(expected, rel=1e-8)


def test_one_blurred_member_is_a_gaussian() -> None:
    scores = mixture_crps(MEMBERS[:1], TRUTH, variance=VARIANCE)
    torch.testing.assert_close(scores, gaussian_crps(TRUTH - MEMBERS[0], VARIANCE))


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
    monkeypatch.setattr(ranked_probability, "_CHUNK_ELEMENTS", 29)
    for blur, expected in zip((None, VARIANCE), whole, strict=True):
        torch.testing.assert_close(mixture_crps(MEMBERS, TRUTH, weights=WEIGHTS, variance=blur), expected, rtol=1e-14, atol=0)


def test_gradients_exist_and_are_finite_at_zero_variance() -> None:
    residual, variance = TRUTH[:5].clone().requires_grad_(), VARIANCE[:5].clone().requires_grad_()
    assert torch.autograd.gradcheck(gaussian_crps, (residual, variance))
    still = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    for gradient in torch.autograd.grad(gaussian_crps(residual, still).sum(), (residual, still)):
        assert torch.isfinite(gradient).all()


@given(factor=st.floats(1e-3, 1e3), shift=st.floats(-10, 10), flip=st.booleans())
def test_scale_equivariance_and_shift_invariance(factor: float, shift: float, flip: bool) -> None:
    signed = -factor if flip else factor
    moved, truth = signed * MEMBERS + shift, signed * TRUTH + shift
    for blur in (None, VARIANCE):
        before = mixture_crps(MEMBERS, TRUTH, weights=WEIGHTS, variance=blur)
        after = mixture_crps(moved, truth, weights=WEIGHTS, variance=None if blur is None else factor**2 * blur)
        torch.testing.assert_close(after, factor * before, rtol=1e-6, atol=1e-9 * factor)
    torch.testing.assert_close(gaussian_crps(signed * TRUTH, factor**2 * VARIANCE), factor * gaussian_crps(TRUTH, VARIANCE))


@given(order=st.permutations(range(7)), twice=st.integers(0, 6))
def test_members_are_a_weighted_set(order: list[int], twice: int) -> None:
    expected = mixture_crps(MEMBERS, TRUTH, weights=WEIGHTS, variance=VARIANCE)
    rows = torch.tensor([*order, twice])
    halves = WEIGHTS[rows] * torch.where(rows == twice, 0.5, 1.0)
    torch.testing.assert_close(mixture_crps(MEMBERS[rows], TRUTH, weights=halves, variance=VARIANCE), expected)
    plain = mixture_crps(MEMBERS, TRUTH, weights=WEIGHTS)
    torch.testing.assert_close(mixture_crps(MEMBERS[rows], TRUTH, weights=halves), plain)


def test_float32_members_are_scored_in_float64() -> None:
    grid = Grid.uniform((4,))
    members = torch.tensor([1.0, 1.0 + 2.0**-20]).reshape(2, 1, 1, 1).expand(2, 1, 1, 4)
    scores = crps(compare(EmpiricalField(members, grid=grid), Field(torch.ones(1, 1, 4), grid)))
    assert scores.item() == 2.0**-22  # w |d| - Σ w w |d - d'|/2 = 2⁻²¹ - 2⁻²²


@pytest.mark.bad_input
def test_nothing_is_broadcast() -> None:
    with pytest.raises(ShapeError, match="variance of shape"):
        gaussian_crps(TRUTH, VARIANCE[:1])
    with pytest.raises(ShapeError, match="samples of shape"):
        mixture_crps(MEMBERS[:, :1], TRUTH)
    with pytest.raises(ShapeError, match="weights of shape"):
        mixture_crps(MEMBERS, TRUTH, weights=WEIGHTS[:1])
    with pytest.raises(ShapeError, match="variance of shape"):
        mixture_crps(MEMBERS, TRUTH, variance=VARIANCE[:1])
