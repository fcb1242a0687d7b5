"""Training through several steps, compared with steps written out by hand, and resumed after kills."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probneural.data import StoredPairs, Trajectories
from probneural.errors import DataError, FileError, GridError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators import FNO
from probneural.pairs import Dataset, FieldPairs
from probneural.training import Checkpoint, DataOptions, Optimization, RunOptions, Unroll, files, fit, relative_l2
from probneural.training.run import Objective
from probneural.training.unrolling import FirstStep
from tests.training.cases import same
from tests.training.test_resuming import KillAt, Killed

GRID = Grid.uniform(12)
SETTINGS: dict[str, Any] = {"epochs": 4, "data": DataOptions(batch_size=8), "seed": 1, "show_progress": False}
RECIPES = {
    "unrolled": Unroll(steps=3),
    "pushed forward": Unroll(steps=3, pushforward=True),
}


def states(count: int = 8, times: int = 7, *, channels: int = 1) -> Tensor:
    """Waves that turn, `(n, times, c, x)`, with an offset that stays."""
    generator = torch.Generator().manual_seed(3)
    phase = 2 * torch.pi * (GRID.points[:, 0] - 0.05 * torch.arange(times)[:, None, None])
    sizes = torch.rand(count, 1, channels, 1, generator=generator, dtype=torch.float64) + 0.5
    return sizes * (phase + sizes).sin() + 0.3


def windows(*, history: int = 1, steps: int = 1, channels: int = 1, dtype: torch.dtype = torch.float64) -> StoredPairs:
    found = Trajectories.from_array(states(channels=channels), times=[float(step) for step in range(7)], grid=GRID, dtype=dtype)
    return found.windows(history=history, steps=steps)


class Step(nn.Module):
    """A nonlinear map of some states and a parameter to a state, with dropout."""

    def __init__(self, channels: int, out_channels: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Conv1d(channels, 5, 3, padding=1, padding_mode="circular")
        self.last = nn.Conv1d(5, out_channels, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        return self.last(self.dropout(torch.tanh(self.first(values))))


def step(channels: int = 1, out_channels: int = 1, *, dropout: float = 0.0, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return Step(channels, out_channels, dropout=dropout).double()


def gradients(operator: nn.Module, value: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(operator.parameters())))


def error(predicted: Tensor, target: Tensor) -> Tensor:
    return relative_l2(predicted, target, grid=GRID).mean()


def with_parameter(pairs: FieldPairs) -> FieldPairs:
    """A constant channel after the states of the input."""
    size = torch.linspace(-1.0, 1.0, len(pairs), dtype=torch.float64)[:, None, None].expand(-1, 1, GRID.size)
    return FieldPairs(Field(torch.cat([pairs.inputs.values, size], dim=1), GRID), pairs.outputs)


@pytest.mark.parametrize("pushforward", [False, True])
def test_gradients_are_those_of_steps_written_out(pushforward: bool) -> None:
    """Two states of two channels, a parameter, three steps."""
    batch = with_parameter(windows(history=2, steps=3, channels=2)[:6])
    operator = step(5, 2)
    first, second, parameter = batch.inputs.values[:, :2], batch.inputs.values[:, 2:4], batch.inputs.values[:, 4:]
    targets = [batch.outputs.values[:, 2 * number : 2 * number + 2] for number in range(3)]
    one = operator(torch.cat([first, second, parameter], dim=1))
    stopped = one.detach() if pushforward else one
    two = operator(torch.cat([second, stopped, parameter], dim=1))
    three = operator(torch.cat([stopped, two.detach() if pushforward else two, parameter], dim=1))
    losses = [error(value, target) for value, target in zip((one, two, three), targets, strict=True)]
    expected = (losses[0] + losses[2]) / 2 if pushforward else sum(losses[1:], losses[0]) / 3
    unroll = Unroll(steps=3, history=2, pushforward=pushforward)
    found = Objective(operator, None, precision=None, unroll=unroll)(batch)
    torch.testing.assert_close(found, expected, atol=0.0, rtol=1e-14)
    torch.testing.assert_close(gradients(operator, found), gradients(operator, expected), atol=1e-14, rtol=1e-12)


def test_the_gradient_that_is_stopped_is_another_one() -> None:
    batch, operator = windows(steps=2)[:6], step()
    whole, cut = (
        gradients(operator, Objective(operator, None, precision=None, unroll=Unroll(steps=2, pushforward=flag))(batch))
        for flag in (False, True)
    )
    assert max(float((one - other).abs().max()) for one, other in zip(whole, cut, strict=True)) > 1e-3


@pytest.mark.parametrize("kind", ["FNO", "Step"])
def test_one_step_is_plain_training_bit_for_bit(kind: str) -> None:
    pairs = windows()
    plain, unrolled = (
        FNO(1, 1, modes=(3,), width=4, depth=1, projection=4, seed=0).double() if kind == "FNO" else step(dropout=0.2)
        for _ in range(2)
    )
    expected = fit(plain, pairs, **SETTINGS)
    found = fit(unrolled, pairs, loss=Unroll(), **SETTINGS)
    assert (found.train, found.validation) == (expected.train, expected.validation)
    assert same(unrolled.state_dict(), plain.state_dict())


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_lowers_the_error_of_all_steps(name: str) -> None:
    """By what is watched, which is the mean over all steps whatever is trained."""
    history = fit(step(), windows(steps=3), loss=RECIPES[name], **{**SETTINGS, "epochs": 20, "learning_rate": 0.02})
    assert history.validation[-1] < 0.4 * history.validation[0]


def test_what_is_watched_is_the_mean_of_all_steps() -> None:
    pairs, operator = windows(steps=3), step(dropout=0.2)
    history = fit(operator, pairs, loss=RECIPES["pushed forward"], **SETTINGS)
    operator.eval()
    first = step(dropout=0.2)
    fit(first, pairs, loss=Unroll(steps=3), **SETTINGS)  # the same split, which the seed names
    watched = _watched(pairs)
    with torch.no_grad():
        state, losses = watched.inputs.values, []
        for target in watched.outputs.values.split(1, dim=1):
            state = operator(state)
            losses.append(float(error(state, target)))
    assert history.validation[-1] == pytest.approx(sum(losses) / 3, rel=1e-12)


def _watched(pairs: Dataset) -> FieldPairs:
    """The validation split of `fit` under the seed of the settings."""
    seen: list[Dataset] = []

    class Spy(FNO):
        def fit_normalizers(self, *train: Dataset) -> None:
            seen.extend(train)

    fit(Spy(1, 1, modes=(2,), width=2, depth=1, projection=2).double(), pairs, loss=Unroll(steps=3), **SETTINGS)
    trained = seen[0][:].inputs.values
    everything = pairs[:]
    rows = [number for number, one in enumerate(everything.inputs.values) if not bool((one == trained).all((1, 2)).any())]
    return everything[rows]


def test_units_are_those_of_one_step() -> None:
    several = windows(history=2, steps=3, channels=2)
    one = FieldPairs(several[:].inputs, Field(several[:].outputs.values[:, :2], GRID))
    operators = [FNO(4, 2, modes=(3,), width=4, depth=1, projection=4, seed=0).double() for _ in range(2)]
    fit(
        operators[0], several, loss=Unroll(steps=3, history=2), **SETTINGS | {"data": DataOptions(batch_size=8, validation=0.0)}
    )
    operators[1].fit_normalizers(one)
    for name in ("input_normalizer", "output_normalizer"):
        assert same(getattr(operators[0], name).state_dict(), getattr(operators[1], name).state_dict())


def test_the_first_step_of_windows_is_a_dataset() -> None:
    several = windows(steps=3)
    first = FirstStep(several, 3)
    assert isinstance(first, Dataset)
    assert (len(first), first.fingerprint) == (len(several), several.fingerprint)
    expected = several[:].outputs.values[:, :1]
    assert torch.equal(first[:].outputs.values, expected)
    assert torch.equal(first.outputs[3:5].values, expected[3:5])
    assert torch.equal(first.subset([4, 0]).detached()[:].outputs.values, expected[[4, 0]])
    assert sum(map(len, first.split(5, seed=0))) == len(first)
    single = first.to(torch.float32)
    assert (single.outputs.dtype, single.outputs.to(torch.float64).dtype) == (torch.float32, torch.float64)
    assert (first.outputs.device, len(first.outputs), first.inputs.channels) == (torch.device("cpu"), len(several), 1)


@pytest.mark.parametrize("name", RECIPES)
def test_killed_at_every_step_it_resumes_at_the_same_bits(name: str, tmp_path: Path) -> None:
    pairs = windows(steps=3)
    calls: list[int] = []

    def loss(predicted: Tensor, target: Tensor, grid: Grid) -> Tensor:
        calls.append(int(torch.is_grad_enabled()))
        return error(predicted, target)

    unroll = replace(RECIPES[name], loss=loss)
    whole = step(dropout=0.2)
    expected = fit(whole, pairs, loss=unroll, optimization=Optimization(accumulation=2), **SETTINGS)
    judged = {"unrolled": 3, "pushed forward": 2}[name]
    batches = -(-28 // 8)
    assert sum(calls) == batches * judged * SETTINGS["epochs"]
    path, count = tmp_path / "run", -(-batches // 2) * SETTINGS["epochs"]
    for number in range(2, count + 1):
        with pytest.raises(Killed):
            fit(
                step(dropout=0.2, seed=number - 2),
                pairs,
                loss=unroll,
                optimization=Optimization(accumulation=2),
                run=RunOptions(checkpoint=Checkpoint(path, steps=1), callbacks=[KillAt(number)]),
                **SETTINGS,
            )
    assert files.read(path)[1]["step"] == 1
    resumed = step(dropout=0.2, seed=9)
    calls.clear()
    found = fit(
        resumed,
        pairs,
        loss=unroll,
        optimization=Optimization(accumulation=2),
        run=RunOptions(checkpoint=Checkpoint(path, steps=1)),
        **SETTINGS,
    )
    assert (found.train, found.validation) == (expected.train, expected.validation)
    assert same(resumed.state_dict(), whole.state_dict())
    assert sum(calls) == batches // 2 * judged


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    fit(step(), windows(steps=3), loss=RECIPES["unrolled"], run=RunOptions(checkpoint=tmp_path / "run"), **SETTINGS)
    with pytest.raises(FileError, match="rates and options"):
        fit(step(), windows(steps=3), loss=RECIPES["pushed forward"], run=RunOptions(checkpoint=tmp_path / "run"), **SETTINGS)


def test_losses_are_given_the_input_of_each_step() -> None:
    seen: list[Tensor] = []

    def loss(predicted: Tensor, target: Tensor, grid: Grid, *, inputs: Field) -> Tensor:
        seen.append(inputs.values)
        return error(predicted, target)

    batch, operator = windows(steps=2)[:4], step()
    Objective(operator, loss, precision=None, unroll=Unroll(steps=2))(batch)
    assert torch.equal(seen[0], batch.inputs.values)
    assert torch.equal(seen[1], operator(batch.inputs.values))


@pytest.mark.bad_input
def test_pairs_that_do_not_hold_the_states_are_refused() -> None:
    for unroll in (Unroll(steps=2), Unroll(steps=3, history=2)):
        with pytest.raises(DataError, match=f"pairs of {unroll.history} states and the {unroll.steps} that follow"):
            fit(step(), windows(steps=3), loss=unroll, **SETTINGS)
    batch = windows(steps=2)[:6]
    finer = FieldPairs(batch.inputs, batch.outputs.resample(Grid.uniform(24)))
    with pytest.raises(GridError, match="outputs, as inputs are"):
        fit(step(), finer, loss=Unroll(steps=2), **SETTINGS)
