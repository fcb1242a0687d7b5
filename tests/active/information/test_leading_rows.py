"""Rows found by products with a root: as good as all rows, in values and gradients."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from probneural.active import FieldInformationGain, FieldIntegratedVariance, OperatorModel
from probneural.active.information import acquisition, leading_rows
from probneural.active.information.leading_rows import Directions
from probneural.active.information.observation import observation_weights, whitened_rows
from probneural.curvature.jacobian_root import JacobianRoot
from probneural.distributions import GaussianField, Predictor
from probneural.functionals import integral
from probneural.heads import Laplace, LowRank
from probneural.heads.laplace import laplace as laplace_module
from probneural.operators import FNO
from probneural.problems import Burgers

PROBLEM = Burgers(viscosity=0.1)
TRAIN = PROBLEM.sample(6, resolution=64, seed=0, dtype=torch.float64)
GRID = TRAIN.inputs.grid


@pytest.fixture(autouse=True)
def _roots_are_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laplace_module, "_MATERIALISED", 0)


@cache
def fitted() -> Predictor:
    operator = FNO(1, 1, modes=(3,), width=4, depth=2, projection=6, seed=0).double()
    operator.fit_normalizers(TRAIN)
    return Laplace(LowRank(rank=4), noise=1e-3, prior_precision=0.1).fit(operator, TRAIN)


def model() -> OperatorModel:
    return OperatorModel(fitted(), encode=lambda designs: PROBLEM.encode(designs, grid=GRID), functional=integral(GRID))


def designs() -> Tensor:
    return torch.rand(2, 2, PROBLEM.design_dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("kind", ["gain", "variance"])
@pytest.mark.parametrize("pending", [False, True])
def test_values_and_gradients_are_those_of_all_rows(kind: str, pending: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for formed in (256, 0):
        monkeypatch.setattr(acquisition, "_FORMED", formed)
        score = (
            FieldInformationGain(model())
            if kind == "gain"
            else FieldIntegratedVariance(model(), targets=PROBLEM.sample_inputs(3, resolution=64, seed=5, dtype=torch.float64))
        )
        score.set_X_pending(designs()[0, :1] * 0.5 if pending else None)
        X = designs().requires_grad_()
        values = score(X)
        results.append((values.detach(), *torch.autograd.grad(values.sum(), X)))
        assert bool((values > 1e-3 * (kind == "gain")).all())
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-8, atol=0.0)
    torch.testing.assert_close(results[1][1], results[0][1], rtol=0.0, atol=1e-4 * float(results[0][1].abs().max()))


def test_pending_designs_may_need_different_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a run of its own, with so many rows of zeros added: they say nothing."""
    pending, find, added = torch.cat([*designs()]), acquisition.leading_rows, itertools.count()

    def padded(*arguments: Any, **settings: Any) -> Tensor:
        return torch.nn.functional.pad(find(*arguments, **settings), (0, 0, 0, next(added)))

    monkeypatch.setattr(acquisition, "_FORMED", 0)
    scores = [FieldInformationGain(model()) for _ in range(2)]
    scores[0].set_X_pending(pending)
    monkeypatch.setattr(acquisition, "_ENTRIES", 1)
    monkeypatch.setattr(acquisition, "leading_rows", padded)
    scores[1].set_X_pending(pending)
    assert next(added) == len(pending)
    monkeypatch.setattr(acquisition, "leading_rows", find)
    values = [score(designs()[:, :1] + 0.01).detach() for score in scores]
    torch.testing.assert_close(values[1], values[0], rtol=1e-8, atol=1e-10)


def test_few_rows_have_the_moments_of_all() -> None:
    inputs = PROBLEM.sample_inputs(2, resolution=64, seed=1, dtype=torch.float64)

    def posterior_at(values: Tensor) -> GaussianField:
        field = fitted()(type(inputs)(values, GRID))
        assert isinstance(field, GaussianField)
        return field

    weights = observation_weights(fitted(), GRID)
    rows = leading_rows.leading_rows(posterior_at, inputs.values, weights, directions=Directions())
    whole = whitened_rows(posterior_at(inputs.values), weights)
    assert rows.shape[1] < whole.shape[1]
    left_out = (whole.square().sum((1, 2)) - rows.square().sum((1, 2))) / whole.square().sum((1, 2))
    assert bool((left_out.abs() < 1e-9).all())


def test_a_rough_field_keeps_all_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing may be left out every direction is found, and no more."""
    monkeypatch.setattr(leading_rows, "_FRACTION", 0.0)
    monkeypatch.setattr(leading_rows, "_NATS", 0.0)
    root = fitted()(PROBLEM.sample_inputs(2, resolution=64, seed=1, dtype=torch.float64)).root
    assert isinstance(root, JacobianRoot)
    found = leading_rows._found(root, torch.ones(1, 64, dtype=torch.float64)).flatten(2)
    identity = torch.eye(64, dtype=torch.float64).expand(2, -1, -1)
    assert found.shape[1] <= 64
    torch.testing.assert_close(found @ found.mT, identity[:, : found.shape[1], : found.shape[1]], rtol=0.0, atol=1e-12)


def test_directions_are_kept_for_the_same_inputs_only() -> None:
    kept, some = Directions(), [torch.full((1, 1, 4), float(size)) for size in (0, 1, 0)]
    found = [kept.of(values, lambda n=n: torch.full((1, 2, 1, 4), float(n))) for n, values in enumerate(some)]
    assert [float(directions[0, 0, 0, 0]) for directions in found] == [0.0, 1.0, 0.0]
