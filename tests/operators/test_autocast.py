"""Lower precision inside, none of it in what comes out."""

from __future__ import annotations

import pytest
import torch

from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators import FNO, AttentionOperator, DeepONet, Operator
from probneural.operators.layers import PointwiseLinear, ReadoutLinear
from probneural.pairs import FieldPairs
from tests.helpers import normal

GRID = Grid.uniform(32)
PAIRS = FieldPairs(
    Field(normal(40, 1, 32).float().cumsum(-1), GRID), Field(300.0 + normal(40, 1, 32, seed=1).float().cumsum(-1), GRID)
)
"""Outputs like temperatures in kelvins: bfloat16 numbers near 300 lie 2 apart."""


def built(name: str) -> Operator:
    operator: Operator
    if name == "FNO":
        operator = FNO(1, 1, modes=(6,), width=16, depth=2, seed=0)
    elif name == "attention":
        operator = AttentionOperator(1, 1, dimension=1, width=16, depth=2, seed=0)
    else:
        operator = DeepONet(1, 1, sensors=GRID, seed=0)
    operator.fit_normalizers(PAIRS)
    return operator.eval()


@pytest.mark.parametrize("name", ["FNO", "attention", "DeepONet", "points"])
def test_outputs_are_not_rounded(name: str) -> None:
    operator = built(name)
    points = GRID.points.float()[None, :20].expand(len(PAIRS), -1, -1)

    def evaluated() -> torch.Tensor:
        if isinstance(operator, DeepONet) and name == "points":
            return operator.evaluate_at(PAIRS.inputs.values, points)
        return operator(PAIRS.inputs.values, grid=GRID)

    with torch.no_grad():
        exact = evaluated()
        with torch.autocast("cpu", torch.bfloat16):
            found = evaluated()
    assert found.dtype == torch.float32
    assert not torch.equal(found, exact)
    assert float((found - exact).std() / PAIRS.outputs.values.std()) < 0.01


def test_a_readout_is_its_layer_in_the_precision_of_its_weights() -> None:
    plain, readout = PointwiseLinear(3, 1), ReadoutLinear(3, 1)
    readout.load_state_dict(plain.state_dict())
    values = normal(4, 3, 10).float()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(readout(values), plain.double()(values.double()).float(), rtol=1e-5, atol=1e-6)
        assert readout(values.bfloat16()).dtype == torch.float32
