"""Variational inference over all weights against closed forms of operators that are linear in them."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from probneural.curvature.weights import LowRankPlusDiagonalWeights
from probneural.distributions import GaussianField
from probneural.errors import ArgumentError, ConvergenceWarning
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
from tests.helpers import normal

BRIEF = pytest.mark.filterwarnings("ignore:(mean_field|low_rank) has not converged")


@cache
def fitted(family: str, steps: int = 20_000) -> LaplacePredictor:
    head = BayesianOperator(family, rank=1, steps=steps, laplace=DIAGONAL, batch_size=COUNT, show_progress=False)
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
    predictor = fitted("mean_field", steps)
    mean, precision = exact()
    variances = predictor.weight_covariance.diagonal()
    torch.testing.assert_close(variances, precision.diagonal().reciprocal(), rtol=tolerance, atol=0)
    assert float(variances[0] / torch.linalg.inv(precision)[0, 0]) < 0.8  # which is not the marginal one
    scale = precision.diagonal().rsqrt()
    assert bool(((trained(predictor) - mean).abs() <= tolerance * scale).all())
    divergence = 0.5 * float(precision.diagonal().log().sum() - torch.logdet(precision))
    assert predictor.report["bound"] == pytest.approx(log_evidence() - divergence, abs=2 * tolerance)


@pytest.mark.slow
def test_a_family_that_holds_the_posterior_finds_it() -> None:
    predictor = fitted("low_rank")
    mean, precision = exact()
    covariance = torch.linalg.inv(precision)
    scale = covariance.diagonal().sqrt()
    assert bool(((predictor.weight_covariance - covariance).abs() <= 0.1 * scale[:, None] * scale).all())
    assert bool(((trained(predictor) - mean).abs() <= 0.1 * scale).all())
    assert predictor.report["bound"] == pytest.approx(log_evidence(), abs=0.2)


@BRIEF
def test_predictions_are_linearised_at_the_mean() -> None:
    predictor = fitted("mean_field", 500)
    u = predictor(INPUTS)
    assert isinstance(u, GaussianField)
    rows = INPUTS.values.movedim(1, -1)
    torch.testing.assert_close(u.mean[:, 0], rows @ trained(predictor))
    expected = torch.einsum("npi,ij,npj->np", rows, predictor.weight_covariance, rows)
    torch.testing.assert_close(u.variance[:, 0], expected)
    assert torch.equal(predictor.noise, torch.tensor([NOISE], dtype=torch.float64))


@BRIEF
@pytest.mark.parametrize("family", ["mean_field", "low_rank"])
def test_any_operator_on_batches_saved_and_left_as_it_was(family: str, tmp_path: Path) -> None:
    case = operator_case("conv")
    before = {name: value.clone() for name, value in case.operator.state_dict().items()}
    state = torch.get_rng_state()
    head = BayesianOperator(family, steps=4, rank=2, laplace=DIAGONAL, batch_size=2, show_progress=False)
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
    predictor = BayesianOperator("mean_field", steps=3, laplace=laplace, show_progress=False).fit(linear(), DATA)
    assert isinstance(predictor, LaplacePredictor)
    assert float(trained(predictor)[1]) == -0.4
    assert predictor.weight_covariance.diagonal()[1] == 0 < predictor.weight_covariance.diagonal()[0]


def test_the_low_rank_root_is_a_diagonal_beside_columns() -> None:
    root = LowRankPlusDiagonalWeights(normal(5, seed=1).abs(), normal(5, 3, seed=2))
    torch.testing.assert_close(root.covariance(), root.std.square().diag() + root.columns @ root.columns.mT)
    vectors = normal(4, 5, seed=3)
    torch.testing.assert_close(root.transposed_product(vectors), vectors @ root.dense())
    assert (root.size, root.rank) == (5, 8)


def test_too_few_steps_are_told() -> None:
    with pytest.warns(ConvergenceWarning, match="mean_field has not converged"):
        BayesianOperator("mean_field", steps=2, laplace=DIAGONAL, show_progress=False).fit(linear(), DATA)


@pytest.mark.bad_input
def test_families_that_are_for_others() -> None:
    with pytest.raises(ArgumentError, match=r'Laplace\("full"\)'):
        BayesianOperator("full_rank")
