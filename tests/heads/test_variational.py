"""Variational inference over all weights against closed forms of operators that are linear in them."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from probneural.distributions import GaussianField
from probneural.errors import ConvergenceWarning
from probneural.heads import BayesianOperator, Laplace
from probneural.heads.laplace.laplace import LaplacePredictor
from probneural.storage import load, save
from tests.heads.cases import operator_case
from tests.heads.test_variational_target import (
    COUNT,
    DATA,
    DIAGONAL,
    INPUTS,
    NOISE,
    OBSERVATIONS,
    PRIOR,
    exact,
    linear,
)

BRIEF = pytest.mark.filterwarnings("ignore:the variational posterior has not converged")


@cache
def fitted(steps: int) -> LaplacePredictor:
    head = BayesianOperator(steps=steps, laplace=DIAGONAL, batch_size=COUNT, show_progress=False)
    predictor = head.fit(linear(), DATA)
    assert isinstance(predictor, LaplacePredictor)
    return predictor


def log_evidence() -> float:
    """Of the quadrature likelihood and the prior N(0, 1 / tau), by dense algebra."""
    mean, precision = exact()
    misfit = (DATA.outputs.values - torch.einsum("i,nip->np", mean, INPUTS.values)[:, None]).square().mean((1, 2)).sum()
    energy = 0.5 * (OBSERVATIONS / NOISE * misfit + PRIOR * mean.square().sum())
    likelihood = -0.5 * COUNT * OBSERVATIONS * math.log(2 * math.pi * NOISE)
    return float(likelihood - energy + 0.5 * (len(mean) * math.log(PRIOR) - torch.logdet(precision)))


def trained(predictor: LaplacePredictor) -> Tensor:
    return predictor.layout.flatten(dict(predictor.operator.named_parameters()))


@BRIEF
@pytest.mark.parametrize(
    ("steps", "tolerance"), [(500, 0.25), pytest.param(20_000, 0.1, marks=pytest.mark.slow)], ids=["briefly", "to the end"]
)
def test_independent_weights_have_the_variances_given_all_others(steps: int, tolerance: float) -> None:
    """A factor 12, the number of functions, were it forgotten; 2, were the energy's 1/2."""
    predictor = fitted(steps)
    mean, precision = exact()
    variances = predictor.weight_covariance.diagonal()
    torch.testing.assert_close(variances, precision.diagonal().reciprocal(), rtol=tolerance, atol=0)
    assert float(variances[0] / torch.linalg.inv(precision)[0, 0]) < 0.8  # which is not the marginal one
    scale = precision.diagonal().rsqrt()
    assert bool(((trained(predictor) - mean).abs() <= tolerance * scale).all())
    divergence = 0.5 * float(precision.diagonal().log().sum() - torch.logdet(precision))
    assert predictor.report["bound"] == pytest.approx(log_evidence() - divergence, abs=2 * tolerance)


@BRIEF
def test_predictions_are_linearised_at_the_mean() -> None:
    predictor = fitted(500)
    u = predictor(INPUTS)
    assert isinstance(u, GaussianField)
    rows = INPUTS.values.movedim(1, -1)
    torch.testing.assert_close(u.mean[:, 0], rows @ trained(predictor))
    expected = torch.einsum("npi,ij,npj->np", rows, predictor.weight_covariance, rows)
    torch.testing.assert_close(u.variance[:, 0], expected)
    assert torch.equal(predictor.noise, torch.tensor([NOISE], dtype=torch.float64))


@BRIEF
def test_any_operator_on_batches_saved_and_left_as_it_was(tmp_path: Path) -> None:
    case = operator_case("conv")
    before = {name: value.clone() for name, value in case.operator.state_dict().items()}
    state = torch.get_rng_state()
    head = BayesianOperator(steps=4, laplace=DIAGONAL, batch_size=2, show_progress=False)
    predictor, again = (head.fit(case.operator, case.data) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in case.operator.state_dict().items())
    assert torch.equal(predictor(case.inputs).variance, again(case.inputs).variance)
    save(predictor, tmp_path / "variational")
    loaded = load(tmp_path / "variational", operator=case.operator)
    assert torch.equal(loaded(case.inputs).variance, predictor(case.inputs).variance)  # type: ignore[operator]
    assert bool((predictor.sampled(3, seed=0)(case.inputs).variance > 0).all())  # type: ignore[union-attr]


@BRIEF
def test_weights_that_the_prior_fixes_stay() -> None:
    laplace = Laplace("diagonal", noise=NOISE, prior_precision=torch.tensor([2.0, torch.inf]), show_progress=False)
    predictor = BayesianOperator(steps=3, laplace=laplace, show_progress=False).fit(linear(), DATA)
    assert isinstance(predictor, LaplacePredictor)
    assert float(trained(predictor)[1]) == -0.4
    assert predictor.weight_covariance.diagonal()[1] == 0 < predictor.weight_covariance.diagonal()[0]


def test_too_few_steps_are_told() -> None:
    with pytest.warns(ConvergenceWarning, match="has not converged"):
        BayesianOperator(steps=2, laplace=DIAGONAL, show_progress=False).fit(linear(), DATA)
