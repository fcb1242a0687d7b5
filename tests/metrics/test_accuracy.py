from __future__ import annotations

import math

import pytest
import torch

from probneural.errors import DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import relative_l2, rmse
from tests.helpers import normal
from tests.metrics.cases import GRIDS, shares


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_both_errors_are_weighted_sums_over_the_grid(grid: Grid) -> None:
    guess, true = normal(4, 2, *grid.shape, seed=1), normal(4, 2, *grid.shape, seed=2)
    for field in range(4):
        for channel in range(2):
            squares = [
                sum(float(w) * float(v) ** 2 for w, v in zip(grid.weights, values.flatten(), strict=True))
                for values in (guess[field, channel] - true[field, channel], true[field, channel])
            ]
            error = relative_l2(Field(guess, grid), Field(true, grid))[field, channel]
            assert float(error) == pytest.approx(math.sqrt(squares[0] / squares[1]), rel=1e-12)
    expected = ((guess - true).square().flatten(2) * shares(grid)).sum(-1).mean(0).sqrt()
    torch.testing.assert_close(rmse(Field(guess, grid), Field(true, grid)), expected)


@pytest.mark.bad_input
def test_errors() -> None:
    grid = Grid.uniform((4,))
    ones, zeros = Field(torch.ones(2, 1, 4), grid), Field(torch.zeros(2, 1, 4), grid)
    with pytest.raises(DataError, match=r"2 of 2 \(function, channel\) pairs"):
        relative_l2(ones, zeros)
    assert rmse(ones, zeros).item() == 1.0
    with pytest.raises(GridError, match=r"query=truth\.grid"):
        rmse(ones, Field(torch.ones(2, 1, 5), Grid.uniform((5,))))
    with pytest.raises(ShapeError, match="predictions of shape"):
        rmse(ones, Field(torch.ones(1, 1, 4), grid))
    for pair in ((ones, Field(torch.full((2, 1, 4), math.nan), grid)), (Field(torch.full((2, 1, 4), math.inf), grid), ones)):
        with pytest.raises(DataError, match="NaN or infinite"):
            relative_l2(*pair)
