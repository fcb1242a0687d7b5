"""Weights of a read-out that are no parameters, against dense posteriors of the parameters there are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.heads import LastLayerLaplace
from probneural.operators import DeepONet
from probneural.pairs import FieldPairs
from tests.heads.cases import data_for, fields

GRID = Grid.uniform(16)
SETTINGS = {"noise": 1.0, "prior_precision": 0.5, "effective_observations": 4.0}


def network(channels: int) -> DeepONet:
    return DeepONet(1, channels, sensors=GRID, basis=6, seed=0).double()


def rows(operator: DeepONet, inputs: Field) -> Tensor:
    """Derivatives of all outputs with respect to the parameters of the last layer, `(n, c, p, k)`."""
    values = evaluate(operator, inputs)
    parameters = list(operator.readout.parameters())
    gradients = [torch.autograd.grad(value, parameters, retain_graph=True) for value in values.flatten()]
    return torch.stack([torch.cat([part.flatten() for part in one]) for one in gradients]).unflatten(0, values.shape)


def reference(operator: DeepONet, data: FieldPairs, inputs: Field) -> Tensor:
    """Variances J (m/s^2 sum J^T W J + tau I)^-1 J^T."""
    seen, new = rows(operator, data.inputs), rows(operator, inputs)
    precision = 4.0 * torch.einsum("ncpk,p,ncpl->kl", seen, GRID.mean_weights, seen)
    covariance = torch.linalg.inv(precision + 0.5 * torch.eye(len(precision), dtype=torch.float64))
    return torch.einsum("ncpk,kl,ncpl->ncp", new, covariance, new)


@pytest.mark.parametrize("channels", [1, 2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_variances_are_those_of_the_parameters(channels: int) -> None:
    operator = network(channels)
    data, inputs = data_for(operator, fields(GRID, 8, 1, seed=1)), fields(GRID, 3, 1, seed=5)
    predictor = LastLayerLaplace(**SETTINGS).fit(operator, data)
    u = predictor(inputs)
    torch.testing.assert_close(u.variance, reference(operator, data, inputs), rtol=1e-8, atol=0)
    assert u.root.shape[3] == 7 * channels
    together = LastLayerLaplace(**SETTINGS).fit(operator, data[:5]).update(data[5:])
    torch.testing.assert_close(together(inputs).variance, u.variance, rtol=1e-8, atol=0)
