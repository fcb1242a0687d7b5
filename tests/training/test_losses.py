"""Losses against closed forms, at several resolutions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import probneural as pn
from probneural.errors import ArgumentError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.physics import Residual
from probneural.training import DataOptions, RelativeL2, WeightedSum, fit, relative_l2
from probneural.training.losses import Loss
from tests.training.cases import built, data


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
    with pytest.raises(ShapeError, match="predictions of shape \\(2, 2, 4\\)"):
        relative_l2(torch.zeros(shape), torch.zeros(2, 2, 4), grid=Grid.uniform(4))


def wave(grid: Grid, cycles: float, *, size: float = 1.0) -> Tensor:
    """A sine along the first axis, `(1, 1, *grid)`."""
    return (size * torch.sin(2 * math.pi * cycles * grid.points[:, 0] / grid.lengths[0])).reshape(1, 1, *grid.shape)


def heat(u: Field, inputs: Field | None) -> Tensor:
    """u'' + f for an input f."""
    assert inputs is not None
    return pn.physics.laplacian(u).values + inputs.values


def test_sums_weigh_their_terms_and_hand_on_inputs() -> None:
    """u = a sin(2 pi x), f = 4 pi^2 sin(2 pi x): the mean square residual is 8 pi^4 (1 - a)^2."""
    grid = Grid.uniform(32)
    inputs, target, predicted = Field(4 * math.pi**2 * wave(grid, 1), grid), wave(grid, 1), wave(grid, 1, size=0.5)
    physical = Residual(heat).loss(weight=1e-3)
    assert physical(predicted, target[:, :0], grid, inputs=inputs).item() == pytest.approx(1e-3 * 8 * math.pi**4 * 0.25)
    total = WeightedSum([(2.0, RelativeL2()), (0.1, physical)])(predicted, target, grid, inputs=inputs)
    assert total.item() == pytest.approx(2.0 * 0.5 + 0.1 * 0.5**2 + 1e-4 * 8 * math.pi**4 * 0.25)


@pytest.mark.parametrize(
    "loss",
    [RelativeL2(), WeightedSum([(1.0, RelativeL2())]), Residual(heat).loss(weight=1e-4), Residual(heat).loss()],
    ids=lambda loss: type(loss).__name__,
)
def test_operators_train_on_every_loss(loss: Loss) -> None:
    history = fit(
        built("FNO"), data(), loss=loss, epochs=8, data=DataOptions(batch_size=6), learning_rate=0.01, show_progress=False
    )
    assert history.train[-1] < history.train[0]
    if isinstance(loss, RelativeL2):
        default = fit(built("FNO"), data(), epochs=8, data=DataOptions(batch_size=6), learning_rate=0.01, show_progress=False)
        assert default.train == history.train


@pytest.mark.bad_input
def test_losses_that_cannot_be_are_refused() -> None:
    for terms in ((), [RelativeL2()], [(1.0, "l2")], [(-1.0, RelativeL2())]):
        with pytest.raises(ArgumentError):
            WeightedSum(terms)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="equation"):
        Residual(3)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="predictions of shape"):
        RelativeL2()(torch.zeros(2, 1, 8), torch.zeros(1, 1, 8), Grid.uniform(8))
