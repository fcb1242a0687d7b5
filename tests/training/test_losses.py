"""Losses against closed forms, at several resolutions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import probneural as pn
from probneural.errors import ArgumentError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.training import (
    CRPS,
    DataOptions,
    EnergyScore,
    PDEResidual,
    RelativeL2,
    WeightedSum,
    fit,
    relative_l2,
)
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
    with pytest.raises(ShapeError, match="shaped like the targets \\(2, 2, 4\\)"):
        relative_l2(torch.zeros(shape), torch.zeros(2, 2, 4), grid=Grid.uniform(4))


def wave(grid: Grid, cycles: float, *, size: float = 1.0) -> Tensor:
    """A sine along the first axis, `(1, 1, *grid)`."""
    return (size * torch.sin(2 * math.pi * cycles * grid.points[:, 0] / grid.lengths[0])).reshape(1, 1, *grid.shape)


def test_ranked_probability_of_samples_with_an_offset() -> None:
    """Pressures in pascal: float32 holds the samples, so the score must not lose more digits than they have."""
    grid, generator = Grid.uniform(16), torch.Generator().manual_seed(1)
    drawn, target = (torch.randn(50, count, 16, generator=generator) + 1e6 for count in (8, 1))
    exact = CRPS(8)(drawn.double(), target.double(), grid).item()
    assert CRPS(8)(drawn, target, grid).item() == pytest.approx(exact, rel=1e-6)


def test_ranked_probability_of_normal_samples() -> None:
    """Of N(m, s^2) at y: s (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)), z = (y - m) / s; fair, so few samples do."""
    generator = torch.Generator().manual_seed(0)
    grid = Grid.uniform(50)
    for samples in (2, 5):
        drawn = 0.3 + 2.0 * torch.randn(2000, samples, 50, generator=generator, dtype=torch.float64)
        target = torch.full((2000, 1, 50), 1.5, dtype=torch.float64)
        z = (1.5 - 0.3) / 2.0
        phi, cumulative = math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi), (1 + math.erf(z / math.sqrt(2))) / 2
        expected = 2.0 * (z * (2 * cumulative - 1) + 2 * phi - 1 / math.sqrt(math.pi))
        assert CRPS(samples)(drawn, target, grid).item() == pytest.approx(expected, rel=0.02)


def test_scores_of_samples_by_hand() -> None:
    """Three samples, two channels: pairs are written out, and channels of one sample follow each other."""
    grid = Grid.scattered([[0.0], [1.0]], [0.25, 0.75])
    drawn = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    target = torch.randn(4, 2, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    crps = energy = 0.0
    for one in range(3):
        crps += ((drawn[:, one] - target).abs() @ weights).mean().item() / 3
        energy += ((drawn[:, one] - target).square() @ weights).mean(1).sqrt().mean().item() / 3
        for two in range(3):
            gap = drawn[:, one] - drawn[:, two]
            crps -= (gap.abs() @ weights).mean().item() / 12
            energy -= (gap.square() @ weights).mean(1).sqrt().mean().item() / 12
    assert CRPS(3)(drawn.flatten(1, 2), target, grid).item() == pytest.approx(crps)
    assert EnergyScore(3)(drawn.flatten(1, 2), target, grid).item() == pytest.approx(energy)


@pytest.mark.parametrize("loss", [CRPS, EnergyScore])
def test_almost_fair_scores_lie_between_the_fair_one_and_that_of_the_samples(loss: type) -> None:
    """At fairness 0 the score is that of a distribution with mass 1/M at each sample: E|X - X'| has the pairs i = i, too."""
    grid = Grid.uniform(3)
    drawn = torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    target = torch.randn(4, 1, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gaps, errors = drawn[:, :, None] - drawn[:, None], drawn - target
    if loss is CRPS:
        plain = errors.abs().mean() - gaps.abs().mean() / 2
    else:
        plain = errors.square().mean(-1).sqrt().mean() - gaps.square().mean(-1).sqrt().mean() / 2
    fair = loss(3)(drawn, target, grid)
    assert loss(3, fairness=0.0)(drawn, target, grid).item() == pytest.approx(plain.item())
    assert loss(3, fairness=0.95)(drawn, target, grid).item() == pytest.approx(float(0.95 * fair + 0.05 * plain))
    for fairness in (-0.1, 1.1):
        with pytest.raises(ArgumentError, match="fairness"):
            loss(2, fairness=fairness)


def test_the_fair_score_is_degenerate_and_the_almost_fair_one_is_not() -> None:
    """Two samples, one of them the truth: where the other is does not matter to the fair score."""
    grid = Grid.scattered([[0.5]], [1.0])
    losses = {
        fairness: [
            CRPS(2, fairness=fairness)(torch.tensor([[[0.0], [far]]]).double(), torch.zeros(1, 1, 1).double(), grid).item()
            for far in (1, 9)
        ]
        for fairness in (1.0, 0.95)
    }
    assert losses[1.0] == [0.0, 0.0]
    assert losses[0.95] == pytest.approx([0.0125, 0.1125])  # |x| (1 - w) / 2 with w = 1 - .05 / 2


def test_the_energy_score_of_normal_samples_has_no_bias() -> None:
    """X, y ~ N(0, I_d): E||X - y|| - E||X - X'|| / 2 = E||N(0, 2 I)|| / 2 = Gamma((d + 1) / 2) / Gamma(d / 2), in the l2 norm.

    The deviation of one score is about .5 here, so the mean of 4,000 is within .03, four standard errors.
    """
    points = 6
    generator, grid = torch.Generator().manual_seed(3), Grid.uniform(points)
    expected = math.gamma((points + 1) / 2) / math.gamma(points / 2) / math.sqrt(points)
    for samples in (2, 5):
        drawn = torch.randn(4000, samples, points, generator=generator, dtype=torch.float64)
        target = torch.randn(4000, 1, points, generator=generator, dtype=torch.float64)
        assert EnergyScore(samples)(drawn, target, grid).item() == pytest.approx(expected, abs=0.03)


def test_gradients_of_scores_are_finite_where_samples_agree() -> None:
    grid = Grid.uniform(4)
    for loss in (CRPS(2), EnergyScore(2)):
        drawn = torch.zeros(1, 2, 4, requires_grad=True)
        loss(drawn, torch.ones(1, 1, 4), grid).backward()
        assert drawn.grad is not None
        assert bool(torch.isfinite(drawn.grad).all())
        assert float(drawn.grad.sum()) < 0.0  # towards the target


def heat(predicted: Tensor, inputs: Field, grid: Grid) -> Tensor:
    """u'' + f for an input f."""
    return pn.functionals.derivative(grid, order=2)(predicted).unflatten(-1, grid.shape) + inputs.values


def test_residuals_see_predictions_inputs_and_the_grid() -> None:
    """u = a sin(2 pi x), f = 4 pi^2 sin(2 pi x): the residual is 4 pi^2 (1 - a) sin, its mean square 8 pi^4 (1 - a)^2."""
    grid = Grid.uniform(32)
    inputs = Field(4 * math.pi**2 * wave(grid, 1), grid)
    loss = PDEResidual(heat)
    for size in (1.0, 0.5):
        found = loss(wave(grid, 1, size=size), torch.zeros(1, 1, 32), grid, inputs=inputs).item()
        assert found == pytest.approx(8 * math.pi**4 * (1 - size) ** 2, abs=1e-9)
    with pytest.raises(ShapeError, match=r"a residual of shape \(1, k, 32\)"):
        PDEResidual(lambda predicted, inputs, grid: predicted.mean(2))(wave(grid, 1), wave(grid, 1), grid, inputs=inputs)


def test_sums_weigh_their_terms_and_hand_on_inputs() -> None:
    grid = Grid.uniform(32)
    inputs, target, predicted = Field(4 * math.pi**2 * wave(grid, 1), grid), wave(grid, 1), wave(grid, 1, size=0.5)
    total = WeightedSum([(2.0, RelativeL2()), (1e-3, PDEResidual(heat))])(predicted, target, grid, inputs=inputs)
    assert total.item() == pytest.approx(2.0 * 0.5 + 1e-3 * 8 * math.pi**4 * 0.25)


@pytest.mark.parametrize(
    "loss",
    [RelativeL2(), WeightedSum([(1.0, RelativeL2()), (1e-4, PDEResidual(heat))])],
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


@pytest.mark.parametrize("loss", [CRPS(3), EnergyScore(3)], ids=lambda loss: type(loss).__name__)
def test_operators_that_draw_train_on_scores(loss: Loss) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(1, 8, 5, padding=2), nn.GELU(), nn.Conv1d(8, 3, 1))  # three samples of one channel
    history = fit(module, data(), loss=loss, epochs=8, show_progress=False)
    assert history.train[-1] < history.train[0]


@pytest.mark.bad_input
def test_losses_that_cannot_be_are_refused() -> None:
    for samples in (1, 2.5, "3"):
        with pytest.raises(ArgumentError, match="samples"):
            CRPS(samples)  # type: ignore[arg-type]
    for terms in ((), [RelativeL2()], [(1.0, "l2")], [(-1.0, RelativeL2())]):
        with pytest.raises(ArgumentError):
            WeightedSum(terms)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="residual"):
        PDEResidual(3)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="2 samples"):
        EnergyScore(2)(torch.zeros(1, 3, 8), torch.zeros(1, 1, 8), Grid.uniform(8))
    with pytest.raises(ShapeError, match="shaped like the targets"):
        RelativeL2()(torch.zeros(2, 1, 8), torch.zeros(1, 1, 8), Grid.uniform(8))
