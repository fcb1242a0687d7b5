"""Operators that noise enters: where it does, what it starts from, and a toy whose law is known."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from probneural.errors import ArgumentError, GridError, OperatorError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators import FNO, DeepONet, HiddenLayers, NoiseConditionedOperator, NoiseField
from probneural.pairs import FieldPairs
from probneural.storage import load, save
from probneural.training import CRPS, Callback, Checkpoint, EnergyScore, fit
from probneural.training.callbacks import Progress
from tests.foreign import ForeignFNO
from tests.helpers import generator

GRID = Grid.uniform(8)


def fno(channels: int = 1, **options: object) -> FNO:
    return FNO(channels, 1, modes=(3,), width=4, depth=2, projection=4, seed=0, **options)  # type: ignore[arg-type]


def modulated(operator: nn.Module | None = None, **options: object) -> NoiseConditionedOperator:
    """One that noise has an effect on."""
    arguments = {"layers": ["spectral"], "noise": NoiseField(2, modes=(3,)), "seed": 0, **options}
    found = NoiseConditionedOperator(fno() if operator is None else operator, **arguments)  # type: ignore[arg-type]
    assert found.modulation is not None
    with torch.no_grad():
        weight = found.modulation.layers[-1].weight
        weight.add_(0.1 * torch.randn(weight.shape, generator=generator("modulation")))
    return found


def smooth(grid: Grid, count: int = 3) -> Tensor:
    turn = 2 * torch.pi * grid.points[:, 0]
    waves = torch.stack([torch.ones_like(turn), turn.cos(), turn.sin()])
    return torch.randn(count, 1, 3, generator=generator("smooth"), dtype=torch.float64) @ waves


def data(count: int = 12) -> FieldPairs:
    values = smooth(GRID, count).float()
    return FieldPairs(Field(values, GRID), Field(values + torch.randn(count, 1, 1, generator=generator("shift")), GRID))


def test_noise_begins_without_effect_and_draws_are_channels() -> None:
    inner, values = fno(), smooth(GRID).float()
    operator = NoiseConditionedOperator(inner, layers=["spectral", "lift"], samples=3, seed=0)
    assert operator.layers == ("spectral.0", "spectral.1", "lift")
    assert torch.equal(operator(values), inner(values).expand(-1, 3, -1))
    assert (operator.in_channels, operator.out_channels) == (1, 3)
    two = modulated(FNO(1, 2, modes=(3,), width=4, depth=2, seed=0), samples=2)
    torch.manual_seed(1)
    drawn = two(values)
    torch.manual_seed(1)
    noise = torch.randn(6, two.noise_size)
    expected = two.conditioned(values.repeat_interleave(2, 0), noise).reshape(3, 4, 8)
    assert torch.equal(drawn, expected)
    assert not torch.allclose(drawn[:, :2], drawn[:, 2:])


@torch.no_grad()
def test_draws_agree_across_resolutions() -> None:
    """The activations alias a little on the coarse grid; from 32 to 64 points they hardly do."""
    operator = modulated().double()
    noise = torch.randn(3, operator.noise_size, generator=generator("draws"), dtype=torch.float64)
    found = {size: operator.conditioned(smooth(Grid.uniform(size)), noise) for size in (16, 32, 64)}
    spread = (found[64] - operator.operator(smooth(Grid.uniform(64)))).abs().max()
    first = (found[32][..., ::2] - found[16]).abs().max()
    second = (found[64][..., ::2] - found[32]).abs().max()
    assert float(second) < 1e-3 * float(spread)
    assert float(second) < 0.1 * float(first) + 1e-12
    at_query = operator.conditioned(smooth(Grid.uniform(32)), noise, grid=Grid.uniform(32), query=Grid.uniform(64))
    torch.testing.assert_close(at_query[..., ::2], found[32], atol=1e-10, rtol=0)


def test_gradients_reach_inputs_noise_and_weights() -> None:
    operator = modulated().double()
    values, noise = smooth(GRID, 2).requires_grad_(), torch.zeros(2, operator.noise_size, dtype=torch.float64)
    noise = noise.normal_(generator=generator("gradients")).requires_grad_()
    assert torch.autograd.gradcheck(operator.conditioned, (values, noise))
    operator.conditioned(values, noise).square().sum().backward()
    dead = [name for name, value in operator.named_parameters() if value.grad is None]
    assert dead == []


def test_noise_among_the_input_channels() -> None:
    operator = NoiseConditionedOperator(fno(3), noise=NoiseField(2), samples=2)
    assert (operator.in_channels, operator.noise_size) == (1, 2)
    operator.fit_normalizers(data())
    normalizer = operator.operator.input_normalizer  # type: ignore[union-attr]
    assert normalizer.mean[1:].tolist() == [0.0, 0.0]
    assert normalizer.scale[1:].tolist() == pytest.approx([1.0, 1.0])
    values = smooth(GRID).float()
    assert operator(values).shape == (3, 2, 8)
    noise = torch.randn(3, 2, generator=generator("channels"))
    entered = torch.cat([values, noise[:, :, None].expand(-1, -1, 8)], 1)
    assert torch.equal(operator.conditioned(values, noise), operator.operator(entered))


def test_other_modules_and_layers() -> None:
    """A module of another library, by a convolution on the grid; a DeepONet, by the numbers of its branch."""
    foreign = ForeignFNO()
    foreign.in_channels, foreign.out_channels = 1, 1
    deeponet = DeepONet(1, 1, sensors=GRID, basis=3, layers=HiddenLayers(width=5, depth=2), seed=0)
    branch = next(name for name, module in deeponet.named_modules() if isinstance(module, nn.Linear) and "branch" in name)
    for module, layer, noise in ((foreign, "lifting", NoiseField(1, modes=(2,))), (deeponet, branch, NoiseField(3))):
        operator = modulated(module, layers=[layer], noise=noise)
        state = copy.deepcopy(module.state_dict())
        torch.manual_seed(0)
        drawn = operator(smooth(GRID).float()).detach()
        assert float((drawn[:, 0] - drawn[:, 1]).abs().max()) > 1e-4
        assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
        assert not any(one._forward_hooks for one in module.modules())


@pytest.mark.parametrize("loss", [CRPS(2), pytest.param(EnergyScore(3), marks=pytest.mark.slow)])
def test_the_law_of_a_linear_toy_is_learned(loss: CRPS | EnergyScore) -> None:
    """v = 2 u + .5 z with one z for a whole function: v given u has mean 2 u and deviation .5, fully correlated.

    From n = 600 functions maximum likelihood has standard errors .5 / sqrt(n) = .02 of the mean and .5 / sqrt(2 n) = .0144 of
    the deviation; scores are somewhat less efficient, and the last steps still move, so that .08 and .06 are asked for.
    """
    grid, count = Grid.uniform(4), 600
    inputs = torch.randn(count, 1, 1, generator=generator("toy inputs")).expand(-1, 1, 4).contiguous()
    shifts = torch.randn(count, 1, 1, generator=generator("toy noise"))
    pairs = FieldPairs(Field(inputs, grid), Field(2.0 * inputs + 0.5 * shifts, grid))
    layer = nn.Conv1d(2, 1, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer.reset_parameters()
    operator = NoiseConditionedOperator(layer, noise=NoiseField(1), samples=loss.samples)
    fit(operator, pairs, epochs=8, batch_size=20, learning_rate=0.03, loss=loss, validation=0.0, show_progress=False)
    assert layer.weight[0, 0, 0].item() == pytest.approx(2.0, abs=0.08)
    assert layer.bias[0].item() == pytest.approx(0.0, abs=0.08)  # type: ignore[index]
    assert abs(layer.weight[0, 1, 0].item()) == pytest.approx(0.5, abs=0.06)


class _Killed(BaseException):
    pass


class _KillAt(Callback):
    def on_step(self, progress: Progress) -> None:
        if progress.step == 4:
            torch.rand(3)
            raise _Killed


def test_killed_training_resumes_at_the_same_bits(tmp_path: Path) -> None:
    def settings(path: Path) -> dict[str, object]:
        return {
            "epochs": 3,
            "batch_size": 4,
            "loss": CRPS(2),
            "checkpoint": Checkpoint(path, steps=1),
            "show_progress": False,
        }

    whole, cut = modulated(), modulated()
    fit(whole, data(), **settings(tmp_path / "whole"))  # type: ignore[arg-type]
    with pytest.raises(_Killed):
        fit(cut, data(), callbacks=[_KillAt()], **settings(tmp_path / "cut"))  # type: ignore[arg-type]
    again = modulated()
    fit(again, data(), **settings(tmp_path / "cut"))  # type: ignore[arg-type]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_files_hold_the_operator(tmp_path: Path) -> None:
    noise = torch.randn(3, 10, generator=generator("files"))
    for operator in (modulated(), NoiseConditionedOperator(fno(2), noise=NoiseField(1), samples=2)):
        save(operator, tmp_path / "operator")
        loaded = load(tmp_path / "operator")
        own = noise[:, : operator.noise_size]
        assert torch.equal(loaded.conditioned(smooth(GRID).float(), own), operator.conditioned(smooth(GRID).float(), own))
        assert (loaded.samples, loaded.layers) == (operator.samples, operator.layers)


def test_new_weights() -> None:
    operator = modulated()
    before = operator.operator.readout.weight.clone()  # type: ignore[union-attr]
    operator.reset_parameters()
    assert not torch.equal(operator.operator.readout.weight, before)  # type: ignore[union-attr]
    drawn = operator(smooth(GRID).float())
    assert torch.equal(drawn[:, 0], drawn[:, 1])
    layer = nn.Sequential(nn.Conv1d(2, 1, 1))
    layer.in_channels, layer.out_channels = 2, 1
    with pytest.raises(ArgumentError, match="reset_parameters"):
        NoiseConditionedOperator(layer, noise=NoiseField(1)).reset_parameters()


@pytest.mark.bad_input
def test_bad_operators() -> None:
    with pytest.raises(ArgumentError, match="says its out_channels"):
        NoiseConditionedOperator(ForeignFNO(), layers=["lifting"])
    with pytest.raises(ArgumentError, match="more than 4 input channels"):
        NoiseConditionedOperator(fno())
    for layers, match in ((["nothing"], "layers among"), ([], "one layer or more"), (["input_normalizer"], "out_features")):
        with pytest.raises(ArgumentError, match=match):
            NoiseConditionedOperator(fno(), layers=layers)
    with pytest.raises(ArgumentError, match="samples"):
        NoiseConditionedOperator(fno(), layers=["spectral"], samples=1)
    values = smooth(GRID).float()
    with pytest.raises(OperatorError, match="calls pointwise.0"):  # spectral layers take their weights, and do not call them
        modulated(layers=["pointwise"])(values)
    with pytest.raises(ShapeError, match="values of shape"):
        modulated()(values[:, 0])
    with pytest.raises(ShapeError, match="coefficients"):
        modulated().conditioned(values, torch.zeros(3, 1))
    with pytest.raises(GridError, match="as the noise has it"):
        modulated().conditioned(values, torch.zeros(3, 10), grid=Grid.uniform(8, periodic=False))
    deeponet = DeepONet(1, 1, sensors=GRID, basis=3, layers=HiddenLayers(width=5, depth=2), seed=0)
    trunk = next(name for name, module in deeponet.named_modules() if isinstance(module, nn.Linear) and "trunk" in name)
    with pytest.raises(OperatorError, match="of each of 6 functions"):
        modulated(deeponet, layers=[trunk], noise=NoiseField(1))(values)
    branch = next(name for name, module in deeponet.named_modules() if isinstance(module, nn.Linear) and "branch" in name)
    with pytest.raises(OperatorError, match="on the inputs' grid"):
        modulated(deeponet, layers=[branch])(values)


def test_without_a_grid_it_is_where_its_operator_is() -> None:
    values = smooth(GRID)
    operator = NoiseConditionedOperator(fno(periodic=False).to(values.dtype), layers=["spectral"], samples=2, seed=0)
    torch.testing.assert_close(operator(values)[:, :1], operator.operator(values))
