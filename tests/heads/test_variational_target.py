"""Energy of all weights against the exact one of an operator that is linear in them."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad

from probneural.errors import ArgumentError
from probneural.heads import BayesianOperator, Laplace
from probneural.heads.variational import NetworkTarget
from tests.heads.cases import PERIODIC, data_for, fields

NOISE, PRIOR, OBSERVATIONS, COUNT = 0.05, 2.0, 5.0, 12
GIVEN = {"noise": NOISE, "prior_precision": PRIOR, "effective_observations": OBSERVATIONS}
DIAGONAL = Laplace("diagonal", **GIVEN, show_progress=False)


def linear() -> nn.Module:
    """u = w_1 a_1 + w_2 a_2: linear in its weights, which are correlated given the data."""
    operator = nn.Conv1d(2, 1, 1, bias=False).double()
    operator.weight.data = torch.tensor([[[0.7], [-0.4]]], dtype=torch.float64)
    return operator


INPUTS = fields(PERIODIC, COUNT, 2, seed=1)
INPUTS.values[:, 1] += 0.8 * INPUTS.values[:, 0]
DATA = data_for(linear(), INPUTS)


@cache
def exact() -> tuple[Tensor, Tensor]:
    """Mean and precision by dense algebra: m / s^2 times sums of means over the domain, and the prior."""
    rows, targets = INPUTS.values.movedim(1, -1).flatten(0, 1), DATA.outputs.values.flatten()
    factor = OBSERVATIONS / (NOISE * PERIODIC.size)
    precision = factor * rows.mT @ rows + PRIOR * torch.eye(2, dtype=torch.float64)
    return torch.linalg.solve(precision, factor * rows.mT @ targets), precision


def test_mean_over_batches_is_the_energy_of_all_data() -> None:
    target = NetworkTarget.of(linear(), DATA, laplace=DIAGONAL, batch_size=4)
    vector = torch.tensor([0.3, 1.1], dtype=torch.float64)
    rows = target.batches(0, 0)
    seen = [next(rows) for _ in range(3)]
    assert sorted(torch.cat(seen).tolist()) == list(range(COUNT))
    mean, precision = exact()
    whole = torch.stack([grad(target.potential)(vector, batch) for batch in seen]).mean(0)
    torch.testing.assert_close(whole, precision @ (vector - mean))
    difference = target.potential(vector, slice(None)) - target.potential(mean, slice(None))
    torch.testing.assert_close(difference, 0.5 * (vector - mean) @ precision @ (vector - mean))


def test_largest_curvature_is_that_of_the_dense_matrix() -> None:
    target = NetworkTarget.of(linear(), DATA, laplace=DIAGONAL, batch_size=4)
    root = target.laplace.weights.dense()
    expected = float(torch.linalg.eigvalsh(root.mT @ exact()[1] @ root)[-1])
    assert target.largest_curvature(iterations=60) == pytest.approx(expected, rel=1e-6)
    full = NetworkTarget.of(linear(), DATA, laplace=Laplace("full", **GIVEN), batch_size=4)
    assert full.largest_curvature() == pytest.approx(1.0)


@pytest.mark.bad_input
class TestBadInput:
    def test_settings(self) -> None:
        for bad in ({"laplace": None}, {"batch_size": 0}, {"seed": -1}, {"show_progress": 3}):
            with pytest.raises(ArgumentError):
                BayesianOperator(**bad)  # type: ignore[arg-type]
