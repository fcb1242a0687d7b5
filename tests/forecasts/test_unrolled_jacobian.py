"""Linearised propagation of a network with one operator at all steps: the Jacobian of the unrolled map in its weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from probneural.fields import Field
from probneural.forecasts import propagate
from probneural.grids import Grid
from probneural.heads import LastLayerLaplace
from probneural.operators import FNO, Rollout
from probneural.pairs import FieldPairs
from tests.heads.cases import fields

STEPS = 4


def network(channels: int, grid: Grid) -> tuple[FNO, FieldPairs]:
    """A nonlinear step with units of its own, and what it was trained on."""
    periodic = all(grid.periodic)
    operator = FNO(channels, channels, modes=(3,), width=4, depth=2, projection=5, periodic=periodic, seed=0).double()
    inputs = fields(grid, 6, channels, seed=1)
    pairs = FieldPairs(inputs, Field(3.0 * inputs.values.roll(1, -1).tanh() + 0.5, grid))
    operator.fit_normalizers(pairs)
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter *= 2.0  # untrained, it hardly depends on its input
    return operator.eval().requires_grad_(False), pairs


@pytest.mark.parametrize("kind", ["plain", "increments", "boundary values kept"])
@pytest.mark.parametrize("channels", [1, 2])
def test_the_root_is_the_dense_jacobian_of_the_unrolled_map(channels: int, kind: str) -> None:
    keeps_boundary = kind == "boundary values kept"
    grid = Grid.uniform(8, periodic=not keeps_boundary)
    inside = torch.ones(grid.shape, dtype=torch.bool)
    inside[[0, -1]] = not keeps_boundary
    operator, pairs = network(channels, grid)
    step: nn.Module = operator if kind == "plain" else Rollout(operator, 1, residual=True, keeps_boundary=keeps_boundary)
    predictor = LastLayerLaplace(noise=1e-3, prior_precision=2.0, effective_observations=4.0).fit(step, pairs)
    start = fields(grid, 2, channels, seed=9)
    forecast = propagate(predictor, start, steps=STEPS)
    weights = dict(operator.readout.named_parameters(prefix="readout"))

    def unrolled(given: dict[str, Tensor]) -> Tensor:
        states = [start.values]
        for _ in range(STEPS):
            moved = torch.func.functional_call(operator, given, (states[-1],), {"grid": grid})
            moved = moved if kind == "plain" else states[-1] + moved
            states.append(torch.where(inside, moved, states[-1]))
        return torch.stack(states)  # (leads, n, c, p)

    jacobians = torch.func.jacrev(unrolled)(weights)
    linear, bias = jacobians["readout.weight"].flatten(5), jacobians["readout.bias"]
    rows = torch.cat([linear, bias[..., None]], dim=-1)  # (leads, n, c, p, c', f): by the weights of channel c'
    rows = rows / operator.output_normalizer.scale[:, None]  # from dimensionless weights to physical ones
    expected = torch.einsum("lncpdf,dfk->lncpk", rows, predictor.factor[0])
    means = unrolled(weights)
    assert forecast.latent == predictor.latent
    for lead in range(1, STEPS + 1):
        u = forecast.at(lead)
        assert float((u.mean - means[lead]).abs().max()) <= 1e-12 * float(means[lead].abs().max())
        size = float(expected[lead].abs().max())
        assert float((u.root.dense() - expected[lead]).abs().max()) <= 1e-8 * size
    ahead = predictor(Field(means[STEPS - 1], grid)).root.dense()  # of one step alone: what the others add is no trifle
    assert float((ahead - expected[STEPS]).abs().max()) >= 0.1 * size
