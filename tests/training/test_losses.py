"""Relative L2 errors against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from probneural.errors import ShapeError
from probneural.grids import Grid
from probneural.training import relative_l2


@pytest.mark.parametrize("size", [8, 9, 64])
def test_waves_have_a_closed_form(size: int) -> None:
    """|| sin - a cos || / || sin || = sqrt(1 + a^2), on any grid and domain."""
    grid = Grid.uniform(size, lengths=3.0)
    turn = 2 * math.pi * grid.points[:, 0] / 3.0
    error = relative_l2(turn.sin().expand(1, 1, -1) - 0.75 * turn.cos(), turn.sin().expand(1, 1, -1), grid=grid)
    torch.testing.assert_close(error, torch.full((1, 1), 0.75, dtype=torch.float64), atol=1e-14, rtol=0)


def test_weights_are_the_quadratures() -> None:
    grid = Grid.scattered([[0.0], [0.1], [0.9]], [0.2, 0.3, 0.5])
    predicted, target = torch.tensor([[[3.0, 1.0, 2.0]]]), torch.tensor([[[1.0, 1.0, -1.0]]])
    expected = math.sqrt((0.2 * 4.0 + 0.5 * 9.0) / 1.0)
    assert math.isclose(relative_l2(predicted, target, grid=grid).item(), expected, rel_tol=1e-6)


def test_functions_and_channels_stay_apart() -> None:
    grid = Grid.uniform((4, 5))
    target = torch.rand(3, 2, 4, 5, generator=torch.Generator().manual_seed(0)) + 1.0
    factors = torch.tensor([[1.5, 2.0], [0.0, -1.0], [3.0, 1.25]])
    torch.testing.assert_close(relative_l2(target * factors[..., None, None], target, grid=grid), (factors - 1.0).abs())


def test_zero_targets_are_measured_against_the_channel() -> None:
    grid = Grid.uniform(4)
    target = torch.zeros(3, 2, 4)
    target[:2, 0] = torch.tensor([[2.0], [4.0]])
    predicted = target + 1.0
    # Channel 0: mean norm (2 + 4 + 0) / 3 for the third function; channel 1: all zero, so absolute.
    expected = torch.tensor([[0.5, 1.0], [0.25, 1.0], [0.5, 1.0]])
    torch.testing.assert_close(relative_l2(predicted, target, grid=grid), expected)


def test_gradient_is_finite_where_the_error_vanishes() -> None:
    grid = Grid.uniform(4)
    predicted = torch.ones(1, 1, 4, requires_grad=True)
    relative_l2(predicted, torch.ones(1, 1, 4), grid=grid).sum().backward()
    assert predicted.grad is not None
    assert torch.equal(predicted.grad, torch.zeros(1, 1, 4))


@pytest.mark.bad_input
@pytest.mark.parametrize("shape", [(2, 1, 4), (1, 2, 4), (1, 1, 4), (2, 2, 5), (2, 2, 1)], ids=str)
def test_nothing_is_broadcast(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="shaped like the targets \\(2, 2, 4\\)"):
        relative_l2(torch.zeros(shape), torch.zeros(2, 2, 4), grid=Grid.uniform(4))
