"""SWAG against the stationary distribution of SGD on a quadratic, and against its own formula."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from probneural.calibration import VarianceScale
from probneural.curvature.weights import LowRankPlusDiagonalWeights
from probneural.distributions import GaussianField
from probneural.errors import TrainingError
from probneural.fields import Field
from probneural.heads import SWAG
from probneural.pairs import FieldPairs
from probneural.storage import load, save
from tests.heads.cases import PERIODIC, briefly, data_for, fields, operator_case
from tests.helpers import normal

HESSIAN = torch.tensor([[1.0, 0.4], [0.4, 0.5]], dtype=torch.float64)
NOISE = torch.tensor([[0.5, -0.2], [-0.2, 1.0]], dtype=torch.float64)
RATE, STEPS, SNAPSHOTS = 0.2, 40, 150


def linear(channels: int = 2) -> nn.Module:
    """u = w_1 a_1 + w_2 a_2: linear in its weights."""
    return nn.Conv1d(channels, 1, 1, bias=False).double()


def noisy_descent(operator: nn.Module, data: FieldPairs, *, seed: int) -> None:
    """w <- w - rate (H w + e) with e ~ N(0, S): forty steps, after which little is left of where it began."""
    draws = normal(STEPS, 2, seed=seed) @ torch.linalg.cholesky(NOISE).mT
    weight = operator.weight.data.flatten().clone()
    for noise in draws:
        weight = weight - RATE * (HESSIAN @ weight + noise)
    operator.weight.data = weight.view_as(operator.weight)


def stationary() -> Tensor:
    """C = (I - rate H) C (I - rate H) + rate² S, solved as a linear system."""
    step = torch.eye(2, dtype=torch.float64) - RATE * HESSIAN
    system = torch.eye(4, dtype=torch.float64) - torch.kron(step, step)
    return torch.linalg.solve(system, RATE**2 * NOISE.flatten()).unflatten(0, (2, 2))


INPUTS = fields(PERIODIC, 5, 2, seed=1)
DATA = FieldPairs(INPUTS, Field(INPUTS.values[:, :1], PERIODIC))


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_covariance_is_that_of_stationary_descent_on_a_quadratic(fraction: float) -> None:
    """Within five standard errors of a sample covariance; the diagonal part keeps variances and drops correlations."""
    head = SWAG(SNAPSHOTS, train=noisy_descent, diagonal_fraction=fraction, show_progress=False)
    predictor = head.fit(linear(), DATA)
    exact = stationary()
    wanted = (1 - fraction) * exact + fraction * exact.diagonal().diag()
    variance = exact.diagonal()
    error = ((exact.square() + variance[:, None] * variance) / SNAPSHOTS).sqrt()
    assert bool(((predictor.weight_covariance - wanted).abs() <= 5 * error).all())
    centre = predictor.operator.weight.flatten()  # type: ignore[union-attr, operator]
    assert bool((centre.abs() <= 5 * (variance / SNAPSHOTS).sqrt()).all())


def test_predictions_push_the_covariance_through_a_linear_operator() -> None:
    predictor = SWAG(10, train=noisy_descent, show_progress=False).fit(linear(), DATA)
    u = predictor(INPUTS)
    assert isinstance(u, GaussianField)
    rows = INPUTS.values.movedim(1, -1)
    expected = torch.einsum("npi,ij,npj->np", rows, predictor.weight_covariance, rows)
    torch.testing.assert_close(u.variance[:, 0], expected)
    sampled = predictor.sampled(2000, seed=0)(INPUTS)
    torch.testing.assert_close(sampled.variance, u.variance, rtol=5 * math.sqrt(2 / 2000), atol=0)
    residual = DATA.outputs.values - u.mean
    torch.testing.assert_close(predictor.noise, residual.square().mean((0, 2)))


def test_the_root_is_a_diagonal_beside_columns() -> None:
    root = LowRankPlusDiagonalWeights(normal(5, seed=1).abs(), normal(5, 3, seed=2))
    torch.testing.assert_close(root.covariance(), root.std.square().diag() + root.columns @ root.columns.mT)
    vectors = normal(4, 5, seed=3)
    torch.testing.assert_close(root.transposed_product(vectors), vectors @ root.dense())
    assert (root.size, root.rank) == (5, 8)


def test_any_operator_saved_calibrated_and_left_as_it_was(tmp_path: Path) -> None:
    case = operator_case("fno-1d")
    before = {name: value.clone() for name, value in case.operator.state_dict().items()}
    predictor = SWAG(4, train=briefly, show_progress=False).fit(case.operator, case.data)
    assert all(torch.equal(value, before[name]) for name, value in case.operator.state_dict().items())
    again = SWAG(4, train=briefly, show_progress=False).fit(case.operator, case.data)
    assert again.latent.id == predictor.latent.id
    save(predictor, tmp_path / "swag")
    loaded = load(tmp_path / "swag")
    assert torch.equal(loaded(case.inputs).variance, predictor(case.inputs).variance)  # type: ignore[operator]
    held_out = data_for(case.operator.eval(), fields(PERIODIC, 8, 1, seed=31), seed=32)
    assert bool((VarianceScale(local=False).fit(predictor, held_out)(case.inputs).variance > 0).all())
    assert predictor.draw(1)(case.inputs.values).shape == case.inputs.values.shape


def test_seeds_tell_runs_apart() -> None:
    first, second = (SWAG(3, train=noisy_descent, seed=seed, show_progress=False).fit(linear(), DATA) for seed in (0, 1))
    assert not torch.equal(first.weight_covariance, second.weight_covariance)


@pytest.mark.bad_input
class TestBadInput:
    def test_training_that_does_nothing(self) -> None:
        with pytest.raises(TrainingError, match="member 0"):
            SWAG(2, train=lambda operator, data, seed: None, show_progress=False).fit(linear(), DATA)
