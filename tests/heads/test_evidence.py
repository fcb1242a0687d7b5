"""The evidence against dense Gaussians and a general optimiser."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from probneural.errors import EvidenceError
from probneural.heads import evidence as module
from probneural.heads.evidence import Evidence


def problem(count: int = 40, features: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    design = torch.randn(count, features, generator=generator, dtype=torch.float64)
    design *= torch.tensor([3.0, 1.0, 1.0, 0.3, 0.1], dtype=torch.float64)[:features]
    weights = torch.randn(features, generator=generator, dtype=torch.float64)
    return design, design @ weights + 0.5 * torch.randn(count, generator=generator, dtype=torch.float64)


def evidence_at(design: Tensor, targets: Tensor, weights: Tensor) -> Evidence:
    return Evidence(
        eigenvalues=torch.linalg.eigvalsh(design.mT @ design).clamp_min(0.0),
        observations=float(len(targets)),
        residual_sum_of_squares=float((targets - design @ weights).square().sum()),
        squared_norm=float(weights.square().sum()),
    )


def least_squares(seed: int = 0) -> Evidence:
    design, targets = problem(seed=seed)
    return evidence_at(design, targets, torch.linalg.lstsq(design, targets[:, None]).solution[:, 0])


@pytest.mark.parametrize("count", [40, 3])
@pytest.mark.parametrize(("noise", "prior"), [(0.25, 1.0), (2.0, 0.1), (1e-3, 30.0)])
def test_value_is_the_dense_log_marginal_likelihood(count: int, noise: float, prior: float) -> None:
    design, targets = problem(count)
    matrix = design.mT @ design / noise + prior * torch.eye(5, dtype=torch.float64)
    mean = torch.linalg.solve(matrix, design.mT @ targets) / noise
    covariance = noise * torch.eye(count, dtype=torch.float64) + design @ design.mT / prior
    exact = torch.distributions.MultivariateNormal(torch.zeros(count, dtype=torch.float64), covariance).log_prob(targets)
    value = evidence_at(design, targets, mean).value(noise=noise, prior=prior)
    assert value == pytest.approx(float(exact), rel=1e-10)


def searched(evidence: Evidence, noise: float | None, prior: float | None) -> tuple[float, float]:
    """The maximum by a general optimiser, from several starts."""

    def unpack(logarithms: Tensor) -> tuple[float, float]:
        numbers = iter(logarithms)
        return (math.exp(next(numbers)) if noise is None else noise, math.exp(next(numbers)) if prior is None else prior)

    def loss(logarithms: Tensor) -> float:
        s2, tau = unpack(logarithms)
        return -evidence.value(noise=s2, prior=tau)

    size = (noise is None) + (prior is None)
    runs = [
        minimize(loss, [start] * size, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000})
        for start in (-3.0, 0.0, 2.0)
    ]
    return unpack(min(runs, key=lambda run: run.fun).x)


@pytest.mark.parametrize(("noise", "prior"), [(None, None), (0.3, None), (None, 2.0), (1e-4, None), (None, 1e4)])
@pytest.mark.parametrize("seed", [0, 1])
def test_maximum_is_what_a_search_finds(noise: float | None, prior: float | None, seed: int) -> None:
    evidence = least_squares(seed)
    maximum = evidence.maximise(noise=noise, prior=prior)
    assert maximum == pytest.approx(searched(evidence, noise, prior), rel=1e-6)
    if noise is not None:
        assert maximum[0] == noise
    if prior is not None:
        assert maximum[1] == prior


@given(energy=st.floats(-20, 20), norm=st.floats(-20, 20), observations=st.floats(0.5, 1e6), count=st.integers(1, 20))
def test_maximum_is_no_lower_than_its_neighbours(energy: float, norm: float, observations: float, count: int) -> None:
    """Over any mixture of scales: either a maximum or the named error."""
    eigenvalues = torch.logspace(-6, 2, count, dtype=torch.float64)
    evidence = Evidence(
        eigenvalues=eigenvalues, observations=observations, residual_sum_of_squares=10**energy, squared_norm=10**norm
    )
    for given_noise, given_prior in ((None, None), (1.0, None), (None, 1.0)):
        try:
            noise, prior = evidence.maximise(noise=given_noise, prior=given_prior)
        except EvidenceError:
            continue
        best = evidence.value(noise=noise, prior=prior)
        for s, t in ((1.05, 1.0), (0.95, 1.0), (1.0, 1.05), (1.0, 0.95)):
            if (s != 1.0 and given_noise is not None) or (t != 1.0 and given_prior is not None):
                continue
            assert evidence.value(noise=s * noise, prior=t * prior) <= best + 1e-9 * abs(best)


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"residual_sum_of_squares": 0.0}, {}, "residuals that are not all zero.*give noise="),
        ({"residual_sum_of_squares": 0.0}, {"prior": 1.0}, "residuals that are not all zero"),
        ({"squared_norm": 0.0}, {}, "weights that are not all zero.*prior_precision="),
        ({"squared_norm": 0.0}, {"noise": 1.0}, "weights that are not all zero"),
        ({"eigenvalues": torch.zeros(5, dtype=torch.float64)}, {}, "curvature that is not zero"),
        ({"eigenvalues": torch.zeros(5, dtype=torch.float64)}, {"noise": 1.0}, "curvature that is not zero"),
        ({"squared_norm": 1e-80}, {"noise": 1.0}, "an interior maximum"),
    ],
)
@pytest.mark.bad_input
def test_no_maximum(changes: dict, settings: dict, message: str) -> None:
    evidence = least_squares()
    arguments = {
        name: getattr(evidence, name) for name in ("eigenvalues", "observations", "residual_sum_of_squares", "squared_norm")
    }
    with pytest.raises(EvidenceError, match=message):
        Evidence(**{**arguments, **changes}).maximise(**settings)


@pytest.mark.bad_input
def test_no_maximum_within_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPAN", (-46.0, -20.0))
    with pytest.raises(EvidenceError, match="an interior maximum.*prior_precision= or noise="):
        least_squares().maximise()


def test_an_operator_that_interpolates_has_a_maximum_far_down() -> None:
    """Energies near rounding: the ratio of E and W, not the curvature, sets the scale."""
    evidence = least_squares()
    tiny = Evidence(
        eigenvalues=evidence.eigenvalues, observations=40.0, residual_sum_of_squares=1e-40, squared_norm=evidence.squared_norm
    )
    noise, prior = tiny.maximise()
    assert noise == pytest.approx(1e-40 / (40 - 5), rel=1e-5)  # N - k degrees of freedom are left
    assert prior == pytest.approx(5 / evidence.squared_norm, rel=1e-5)
