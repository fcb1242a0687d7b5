"""Deep ensembles: what members are, how they are trained and evaluated, and what is refused."""

from __future__ import annotations

import copy
import functools
import io
import os
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import probneural as pn
from probneural.distributions import EmpiricalField, GaussianField
from probneural.errors import ArgumentError, ShapeError, TrainingError, UnsupportedError
from probneural.fields import Field, FieldPairs, evaluate
from probneural.functionals import sensors
from probneural.grids import Grid
from probneural.heads import DeepEnsemble, WeightSampledPredictor, ensembles, members, sampled
from probneural.heads.members import MemberTask, Stopwatch, processes_pay
from probneural.heads.resets import Initialisation
from probneural.operators import FNO
from probneural.randomness import seeded, stream_seed
from tests.heads.cases import ComplexSpectral, briefly, data_for, fields, fitted, generator, operator_case, redraw, to_dtype

RECIPE = functools.partial(pn.fit, epochs=1, batch_size=3, validation=0.34, show_progress=False)


def head(count: int = 3, **settings: object) -> DeepEnsemble:
    return DeepEnsemble(count, **{"train": briefly, "execution": "loop", "progress": False, **settings})


def exits(operator: nn.Module, data: FieldPairs, *, seed: int) -> None:
    """What running out of memory looks like."""
    os._exit(seed % 2 + 3)


def by_hand(operator: nn.Module, data: FieldPairs, number: int, *, seed: int = 0) -> nn.Module:
    """A member as the documentation describes it."""
    module, own = copy.deepcopy(operator), stream_seed(seed, "ensemble member", number)
    with seeded(own, "member training"):
        for child in reversed(list(module.modules())):
            if hasattr(child, "reset_parameters"):
                child.reset_parameters()
        briefly(module, data, seed=own)
    return module.eval()


@pytest.mark.parametrize("name", ["fno-ends", "conv"])
def test_predictions_are_the_members_own(name: str) -> None:
    """By hand, with running statistics that differ between members, and with quadrature weights that differ between points."""
    case = operator_case(name)
    operator = copy.deepcopy(case.operator).train()  # where running statistics move
    predict = head(seed=5).fit(operator, case.data)
    own = [by_hand(operator, case.data, number, seed=5) for number in range(3)]
    with torch.no_grad():
        samples = torch.stack([evaluate(module, case.inputs) for module in own])
        fit = torch.stack([evaluate(module, case.data.inputs) for module in own]).mean(0)
    field = predict(case.inputs)
    assert isinstance(field, EmpiricalField)
    torch.testing.assert_close(field.samples, samples, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(field.mean, (samples[0] + samples[1] + samples[2]) / 3, rtol=1e-12, atol=1e-12)
    squares = sum((member - field.mean) ** 2 for member in samples) / 3
    torch.testing.assert_close(field.variance, squares, rtol=1e-9, atol=1e-14)
    grid = case.data.outputs.grid
    misfit = ((case.data.outputs.values - fit)[:, 0].square() * grid.weights).sum(1) / grid.weights.sum()
    torch.testing.assert_close(predict.noise, misfit.mean()[None], rtol=1e-9, atol=0)
    assert bool(predict.buffers) == (name == "conv")
    assert predict.members == 3
    for seed in range(4):
        drawn = predict.draw(seed)(case.inputs.values)
        assert any(torch.allclose(drawn, member, rtol=1e-9, atol=1e-12) for member in samples)


def test_noise_of_each_channel_has_a_floor() -> None:
    fields_ = fields(Grid.uniform(8), 5, 2, seed=1)
    operator = nn.Conv1d(2, 2, 1).double()

    def exact(module: nn.Module, data: FieldPairs, *, seed: int) -> None:
        with torch.no_grad():
            module.weight.copy_(torch.eye(2)[:, :, None])
            module.bias.copy_(torch.tensor([0.0, 0.5]))

    predict = head(train=exact).fit(operator, FieldPairs(fields_, fields_))
    variance = fields_.values[:, 0].var(correction=0)
    torch.testing.assert_close(predict.noise, torch.stack([1e-12 * variance, torch.tensor(0.25).double()]), rtol=1e-6, atol=0)


def test_a_member_is_the_same_in_an_ensemble_of_any_size() -> None:
    case = operator_case("fno-1d")
    three, two, other = (head(count, seed=seed).fit(case.operator, case.data) for count, seed in ((3, 0), (2, 0), (3, 1)))
    assert torch.equal(three.vectors[:2], two.vectors)
    rows = torch.cat([three.vectors, other.vectors])
    distances = torch.cdist(rows, rows) + torch.eye(len(rows))
    assert float(distances.min()) > 0.1


def test_the_operator_can_be_a_member() -> None:
    case = operator_case("conv")
    kept = head(keeps_operator=True).fit(case.operator, case.data)
    anew = head().fit(case.operator, case.data)
    assert torch.equal(kept.vectors[1:], anew.vectors[1:])
    alone = DeepEnsemble(1, train=briefly, keeps_operator=True, progress=False).fit(case.operator, case.data)
    with torch.no_grad():
        own = evaluate(copy.deepcopy(case.operator).eval(), case.inputs)
    torch.testing.assert_close(kept(case.inputs).samples[0], own, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(alone(case.inputs).mean, own, rtol=1e-12, atol=1e-14)


def test_frozen_parameters_keep_their_values() -> None:
    case = operator_case("channels-last")
    module = copy.deepcopy(case.operator)
    module.layers[0].requires_grad_(False)
    for reset in (None, redraw):
        predict = head(reset=reset).fit(module, case.data)
        for vector in predict.vectors:
            found = predict.layout.unflatten(vector)
            assert torch.equal(found["layers.0.weight"], module.layers[0].weight)
            assert not torch.equal(found["layers.2.weight"], module.layers[2].weight)


class Odd(nn.Module):
    """Complex weights, and randomness at training from the global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, dtype=torch.complex128))

    def forward(self, values: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(values, norm="forward")[..., :3] * self.weight
        return torch.fft.irfft(spectrum, n=values.shape[-1], norm="forward")


def test_global_randomness_is_seeded_and_given_back() -> None:
    operator = Odd()
    data = data_for(operator, fields(Grid.uniform(8), 4, 1, seed=1))

    begun: list[int] = []

    def noisy(module: nn.Module, pairs: FieldPairs, *, seed: int) -> None:
        begun.append(torch.initial_seed())
        with torch.no_grad():
            module.weight.add_(torch.randn(3))

    state = torch.get_rng_state()
    first = head(train=noisy, reset=redraw).fit(operator, data)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(7)
    second = head(train=noisy, reset=redraw).fit(operator, data)
    assert torch.equal(first.vectors, second.vectors)
    assert begun[:3] == begun[3:]
    assert len({*begun}) == 3
    assert first.vectors.shape == (3, 6)
    assert float(first(data.inputs).variance.min()) > 0


@pytest.mark.parametrize("name", ["fno-1d", "fno-2d", "conv", "complex", "denormalised"])
def test_members_evaluated_together_are_those_evaluated_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = operator_case(name)
    loop, together = (
        head(train=briefly, reset=redraw, prediction=prediction).fit(case.operator, case.data)
        for prediction in ("loop", "vmap")
    )
    assert torch.equal(loop.vectors, together.vectors)
    expected = loop(case.inputs).samples
    scale = float(expected.abs().max())
    torch.testing.assert_close(together(case.inputs).samples, expected, rtol=0, atol=1e-12 * scale)
    assert set(together._widths.values()) == {3}
    query = case.inputs.grid.resized([2 * size for size in case.inputs.grid.shape])
    finer = loop(case.inputs, query).samples
    torch.testing.assert_close(together(case.inputs, query).samples, finer, rtol=0, atol=1e-12 * scale)
    monkeypatch.setattr(sampled, "_BATCH_POINTS", 2 * case.inputs.grid.size)  # two functions, or one of two members, at once
    more = fields(case.inputs.grid, 5, case.inputs.channels, seed=3)
    whole = together(more).samples
    torch.testing.assert_close(whole, loop(more).samples, rtol=0, atol=1e-12 * scale)
    torch.testing.assert_close(whole[:, 4:], together(more[4:]).samples, rtol=0, atol=1e-12 * scale)


class Unfollowable(nn.Conv1d):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) * (1.0 if self.weight.detach().sum().item() > -1e9 else 0.0)


class Misled(nn.Conv1d):
    """A module that knows when it is batched, as one with a state of its own would."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) + float(torch._C._functorch.is_batchedtensor(self.weight))


def test_the_way_of_evaluation_is_measured_once_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    case = operator_case("fno-1d")
    clock: list[float] = []
    monkeypatch.setattr(WeightSampledPredictor, "_seconds", lambda self, work: clock.append(1) or times[len(clock) - 1])
    # one evaluation, then three pairs: 3 members one by one, 3 members together
    for times, width in (
        ([1e-4, 3.0, 2.6, 9.0, 2.6, 3.0, 9.0], 3),
        ([1e-4, 3.0, 2.8, 3.0, 2.8, 3.0, 2.8], 1),  # not by much
        ([1e-1], 1),  # no overhead to save
    ):
        clock.clear()
        predict = head().fit(case.operator, case.data)
        for _ in range(2):
            predict(case.inputs)
        assert (len(clock), list(predict._widths.values())) == (len(times), [width])
    clock.clear()
    for module in (Unfollowable(1, 1, 1), Misled(1, 1, 1)):
        predict = head().fit(module.double(), case.data)
        predict(case.inputs)
        assert list(predict._widths.values()) == [1]
    assert not clock
    copied = copy.deepcopy(predict)
    assert torch.equal(copied(case.inputs).samples, predict(case.inputs).samples)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_the_operators(dtype: torch.dtype) -> None:
    case = operator_case("complex")
    other = torch.float64 if dtype == torch.float32 else torch.float32
    seen: list[torch.dtype] = []

    def recipe(operator: nn.Module, data: FieldPairs, *, seed: int) -> None:
        seen.extend([data.inputs.dtype, data.outputs.dtype])
        briefly(operator, data, seed=seed)

    predict = head(train=recipe, reset=redraw).fit(to_dtype(copy.deepcopy(case.operator), dtype), case.data.to(other))
    field = predict(case.inputs.to(other))
    assert {*seen, predict.dtype, field.samples.dtype, field.variance.dtype} == {dtype}
    assert predict.noise.dtype == torch.float64


def test_outputs_may_live_on_another_grid() -> None:
    case = operator_case("fno-1d")
    query = case.inputs.grid.resized(24)
    pairs = data_for(copy.deepcopy(case.operator).eval(), case.data.inputs, query=query)
    predict = head().fit(case.operator, pairs)
    assert predict.domain == case.inputs.grid
    assert predict(case.inputs, query).mean.shape == (2, 1, 24)


@pytest.mark.parametrize("name", ["fno-outputs", "conv"])
def test_files(name: str, tmp_path: Path) -> None:
    case = operator_case(name)
    predict = head(prediction="vmap").fit(case.operator, case.data)
    pn.save(predict, tmp_path / "ensemble")
    loaded = pn.load(tmp_path / "ensemble", operator=None if name == "fno-outputs" else case.operator)
    assert torch.equal(loaded(case.inputs).samples, predict(case.inputs).samples)
    assert torch.equal(loaded.noise, predict.noise)
    assert loaded.execution == "vmap"
    assert loaded.buffers.keys() == predict.buffers.keys()


def test_consumers_take_ensembles() -> None:
    case = operator_case("fno-1d")
    predict = fitted("deep-ensemble", "fno-1d")
    held_out = data_for(copy.deepcopy(case.operator).eval(), fields(case.inputs.grid, 25, 1, seed=21), seed=22, noise=0.5)
    calibrated = pn.calibration.VarianceScale().fit(predict, held_out)
    assert isinstance(calibrated(case.inputs), GaussianField)  # of the members' mean and covariance, and a discrepancy
    band = pn.calibration.SimultaneousBand(level=0.8).fit(predict, held_out)
    assert band.coverage(held_out) == pytest.approx(21 / 25)  # ⌈26 * 0.8⌉ = 21
    assert pn.metrics.score(calibrated(held_out.inputs), held_out.outputs, noise=calibrated.noise)
    probe = sensors(case.inputs.grid, [[0.25], [0.75]])

    def encode(designs: Tensor) -> Field:
        grid = case.inputs.grid
        return Field((designs[:, :1] * torch.sin(2 * torch.pi * grid.points[:, 0]))[:, None], grid)

    posterior = pn.active.OperatorModel(calibrated, encode=encode, functional=probe).posterior(torch.rand(2, 3, 1).double())
    assert posterior.mean.shape == (2, 3, 2)


def test_worker_processes_find_what_the_loop_finds() -> None:
    """To the last bit, at one thread; and in "auto", where processes pay, all but the first member come from workers."""
    case = operator_case("fno-1d")
    loop, processes = (
        head(train=RECIPE, execution=way, workers=2).fit(case.operator, case.data) for way in ("loop", "processes")
    )
    assert torch.equal(loop.vectors, processes.vectors)
    assert loop.buffers.keys() == processes.buffers.keys()
    for name, values in loop.buffers.items():
        assert torch.equal(values, processes.buffers[name])
    assert torch.equal(loop.noise, processes.noise)
    assert "OMP_NUM_THREADS" not in os.environ or os.environ["OMP_NUM_THREADS"] == "1"


def test_a_worker_that_dies_is_noticed() -> None:
    case = operator_case("fno-1d")
    with pytest.raises(TrainingError, match=r"member \d .*the end of its worker process"):
        head(2, train=exits, execution="processes", workers=1).fit(case.operator, case.data)


def test_auto_trains_here_what_cannot_be_sent_and_where_processes_do_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    case = operator_case("fno-1d")
    expected = head().fit(case.operator, case.data)

    def local(operator: nn.Module, data: FieldPairs, *, seed: int) -> None:
        briefly(operator, data, seed=seed)

    asked: list[int] = []
    for pays in (True, False):
        monkeypatch.setattr(
            ensembles, "processes_pay", lambda first, remaining, workers, threads, pays=pays: asked.append(remaining) or pays
        )
        found = head(train=local, execution="auto").fit(case.operator, case.data)
        assert torch.equal(found.vectors, expected.vectors)
    assert asked == [2, 2]
    sent: list[object] = []
    monkeypatch.setattr(ensembles, "processes_pay", lambda *_, threads: True)
    monkeypatch.setattr(
        ensembles,
        "train_in_processes",
        lambda task, jobs, *, workers, tick: sent.extend(jobs) or members.train_here(task, jobs, tick=tick),
    )
    assert torch.equal(head(execution="auto").fit(case.operator, case.data).vectors, expected.vectors)
    assert sent == [(number, stream_seed(0, "ensemble member", number)) for number in (1, 2)]


def test_when_processes_pay() -> None:
    def pays(seconds: float, remaining: int, workers: int, *, threads: int = 1, busy: float = 1.0) -> bool:
        return processes_pay(Stopwatch(seconds, busy * seconds), remaining, workers, threads=threads)

    assert pays(30.0, 4, 2)  # 120 s against 66 s
    assert not pays(30.0, 4, 1)
    assert not pays(30.0, 1, 2)
    assert not pays(3.0, 4, 2)  # 12 s against 6.6 s and the start
    assert pays(30.0, 4, 2, threads=2, busy=2.0)  # one thread takes 39 s at most
    assert not pays(30.0, 4, 2, threads=8, busy=8.0)  # and 93 s here
    assert pays(30.0, 4, 2, threads=8, busy=1.1)  # but not if the others were idle
    assert not pays(6.0, 2, 2)


def test_cores_that_others_use_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.2, 0.0, 0.0), raising=False)
    cores = members.available_cores()
    assert 1 <= cores <= 8
    assert members.idle_cores() == max(1, cores - 2)  # one of the load is this process
    monkeypatch.setattr(os, "getloadavg", lambda: (90.0, 0.0, 0.0), raising=False)
    assert members.idle_cores() == 1


def test_progress_bars_of_recipes_are_off_unless_asked_for() -> None:
    def shows(recipe: object) -> bool:
        return members._shows_progress(recipe)

    assert shows(functools.partial(pn.fit, epochs=2))
    assert not shows(functools.partial(pn.fit, epochs=2, show_progress=True))
    assert not shows(briefly)
    case = operator_case("fno-1d")
    asked: list[bool] = []

    def recipe(operator: nn.Module, data: FieldPairs, *, seed: int, show_progress: bool = True) -> None:
        asked.append(show_progress)
        briefly(operator, data, seed=seed)

    head(2, train=recipe).fit(case.operator, case.data)
    assert asked == [False, False]


def test_what_a_worker_answers() -> None:
    case = operator_case("fno-1d")
    task = MemberTask(case.operator, case.data, briefly, Initialisation(), 2, torch.device("cpu"))
    answer = members._answer(task, 1, 9)
    assert isinstance(answer, bytes)
    state = torch.load(io.BytesIO(answer), weights_only=True)
    assert state.keys() == members.state_of(case.operator).keys()
    broken = MemberTask(case.operator, case.data, failing, Initialisation(), 2, torch.device("cpu"))
    assert isinstance(members._answer(broken, 1, UNLUCKY), TrainingError)


UNLUCKY = stream_seed(0, "ensemble member", 1)


def failing(operator: nn.Module, data: FieldPairs, *, seed: int) -> None:
    if seed == UNLUCKY:
        raise ValueError("no luck")
    briefly(operator, data, seed=seed)


def breaking(operator: nn.Module, data: FieldPairs, *, seed: int) -> None:
    briefly(operator, data, seed=seed)
    with torch.no_grad():
        next(operator.parameters()).fill_(torch.nan)


def idle(operator: nn.Module, data: FieldPairs, *, seed: int) -> nn.Module:
    trained = copy.deepcopy(operator)
    briefly(trained, data, seed=seed)
    return trained


def growing(operator: nn.Module, data: FieldPairs, *, seed: int) -> None:
    briefly(operator, data, seed=seed)
    operator.register_buffer("extra", torch.zeros(1))


def resizing(operator: nn.Module, data: FieldPairs, *, seed: int) -> None:
    briefly(operator, data, seed=seed)
    operator.norm.running_mean = torch.zeros(seed % 1009 + 1)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (failing, "member 1 .*ValueError: no luck"),
        (breaking, "member 0 .*NaN or infinite in"),
        (idle, "member 0 .*weights as they were"),
        (growing, "member 0 .*extra"),
    ],
)
def test_a_member_that_fails_is_named(recipe: object, message: str) -> None:
    case = operator_case("fno-1d")
    with pytest.raises(TrainingError, match=message):
        head(train=recipe).fit(case.operator, case.data)


def test_buffers_of_several_shapes_are_refused() -> None:
    case = operator_case("conv")
    with pytest.raises(UnsupportedError, match="buffers of one shape.*norm.running_mean"):
        head(train=resizing).fit(case.operator, case.data)


class Bare(nn.Module):
    """It owns a parameter, beside a layer that can be reset."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(1, 1, 1)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, values: Tensor) -> Tensor:
        return self.gain * self.layer(values)


class Constant(nn.Module):
    """Its initial weights are no draw."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, values: Tensor) -> Tensor:
        return self.weight * values


class Incomplete(Bare):
    """Its own reset forgets the layer, whose own reset does not; and a normalisation's ones are a fine start."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.gain)

    def forward(self, values: Tensor) -> Tensor:
        return self.norm(super().forward(values)) + self.layer(values)


def test_resets_are_complete_or_refused() -> None:
    pairs = data_for(Bare(), fields(Grid.uniform(8), 4, 1, seed=1).to(torch.float32))
    with pytest.raises(ArgumentError, match="Bare with gain, which none reaches"):
        head().fit(Bare(), pairs)
    with pytest.raises(ArgumentError, match="the same weights for two seeds"):
        head().fit(Constant(), pairs)
    with pytest.raises(ArgumentError, match="the same weights for two seeds"):
        head(reset=lambda module: None).fit(Bare(), pairs)
    with pytest.raises(ArgumentError, match="the same weights for two seeds"):
        head().fit(Bare().requires_grad_(False), pairs)
    normed = Bare()
    nn.utils.parametrizations.weight_norm(normed.layer)
    normed.gain.requires_grad_(False)
    with pytest.raises(ArgumentError, match="layer.parametrizations.weight.original"):
        head().fit(normed, pairs)
    kept = Incomplete()
    before = copy.deepcopy(kept.state_dict())
    predict = head().fit(kept, pairs)
    assert float(torch.cdist(predict.vectors, predict.vectors)[0, 1:].min()) > 1e-3
    for name, value in kept.state_dict().items():
        assert torch.equal(value, before[name])


def built(seed: int) -> nn.Module:
    """A factory for a module whose complex weights no `reset_parameters` reaches."""
    return ComplexSpectral().double()


ONE = ComplexSpectral().double()


class Named:
    """A factory that draws from a generator of its own, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def __call__(self, seed: int) -> nn.Module:
        self.seeds.append(seed)
        module, own = ComplexSpectral().double(), generator(seed)
        for parameter in module.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=own, dtype=parameter.dtype))
        return module


def test_a_factory_makes_the_members() -> None:
    """By hand: build under the member's seed, train, evaluate."""
    case = operator_case("complex")
    predict = head(build=Named(), seed=5).fit(case.operator, case.data)
    expected = []
    for number in range(3):
        member = stream_seed(5, "ensemble member", number)
        module = Named()(member)
        briefly(module, case.data, seed=member)
        with torch.no_grad():
            expected.append(evaluate(module.eval(), case.inputs))
    torch.testing.assert_close(predict(case.inputs).samples, torch.stack(expected), rtol=1e-12, atol=1e-12)
    with pytest.raises(ArgumentError, match="with spectral, which none reaches; give build="):
        head().fit(case.operator, case.data)


def test_a_factory_is_called_once_for_each_member_trained() -> None:
    case, factory = operator_case("complex"), Named()
    kept = head(build=factory, keeps_operator=True).fit(case.operator, case.data)
    assert factory.seeds[2:] == [
        stream_seed(0, "ensemble member", number) for number in (1, 2)
    ]  # the first two are a check that seeds differ
    with torch.no_grad():
        torch.testing.assert_close(kept(case.inputs).samples[0], evaluate(case.operator, case.inputs))


def test_members_start_with_the_buffers_of_the_factory() -> None:
    """A given operator's units belong to its own training; what is built takes new ones."""
    case = operator_case("fno-1d")

    def build(seed: int) -> nn.Module:
        return FNO(1, 1, modes=(3,), width=4, depth=2, projection=6).double()

    operator = build(0)
    operator.output_normalizer.scale.fill_(7.0)
    data = Field(3.0 * case.data.outputs.values, case.data.outputs.grid)
    recipe = functools.partial(pn.fit, epochs=1, validation=0.0, show_progress=False)
    predict = head(train=recipe, build=build).fit(operator, FieldPairs(case.data.inputs, data))
    expected = (data.values.square().mean() - data.values.mean().square()).sqrt()
    torch.testing.assert_close(predict.operator.output_normalizer.scale.flatten()[0], expected, rtol=1e-2, atol=0)


@pytest.mark.slow
def test_a_factory_travels_to_worker_processes() -> None:
    case = operator_case("complex")
    loop, processes = (
        head(2, build=built, execution=way, workers=2).fit(case.operator, case.data) for way in ("loop", "processes")
    )
    torch.testing.assert_close(loop.vectors, processes.vectors, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda seed: nn.Conv1d(1, 1, 1).double(),
            "operators like the one given, a ComplexSpectral; got a Conv1d with another",
        ),
        (
            lambda seed: ComplexSpectral(modes=2).double(),
            r"another spectral: \(\(1, 4, 2\), .*\) for \(\(1, 4, 3\)",
        ),
        (lambda seed: ComplexSpectral(), "another head.bias: .*float32.* for .*float64"),
        (lambda seed: ComplexSpectral, "an nn.Module as what build returns; got the class ComplexSpectral"),
        (lambda seed: ONE, "new weights for each seed"),
    ],
    ids=["class", "shape", "dtype", "no-module", "one-module"],
)
def test_factories_that_do_not_fit_are_refused(build: object, message: str) -> None:
    case = operator_case("complex")
    with pytest.raises(ArgumentError, match=message):
        head(build=build).fit(case.operator, case.data)


@pytest.mark.bad_input
def test_what_cannot_be_sent_to_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = operator_case("fno-1d")
    with pytest.raises(UnsupportedError, match="can be sent to other processes.*execution='loop'"):
        head(train=lambda operator, data, seed: None, execution="processes").fit(case.operator, case.data)
    script = types.ModuleType("__main__")
    script.__file__ = str(tmp_path / "script.py")
    Path(script.__file__).write_text("import probneural\n")
    monkeypatch.setitem(sys.modules, "__main__", script)
    with pytest.raises(UnsupportedError, match="script.py, which has no `if __name__ == '__main__':`"):
        head(execution="processes").fit(case.operator, case.data)
    Path(script.__file__).write_text("if __name__ == '__main__':\n    pass\n")
    assert members._main_can_be_imported()


@pytest.mark.bad_input
def test_bad_settings() -> None:
    with pytest.raises(ArgumentError, match=r"train=functools.partial\(pn.fit, epochs=50\)"):
        DeepEnsemble(5)
    for name, value in (
        ("members", 0),
        ("members", 2.0),
        ("members", True),
        ("seed", -1),
        ("seed", 0.5),
        ("seed", True),
        ("workers", 0),
        ("execution", "vmap"),
        ("prediction", "processes"),
        ("reset", "all"),
        ("build", "FNO"),
    ):
        with pytest.raises(ArgumentError, match=name):
            DeepEnsemble(**{"members": 3, "train": briefly, name: value})
    with pytest.raises(ArgumentError, match="reset= or build=; got both"):
        head(reset=redraw, build=built)
    with pytest.raises(TypeError):
        DeepEnsemble(3, briefly)
    case = operator_case("fno-1d")
    mixed = nn.Sequential(nn.Conv1d(1, 2, 1), nn.Conv1d(2, 1, 1).double())
    with pytest.raises(UnsupportedError, match="one precision"):
        head().fit(mixed, case.data)
    predict = head(prediction="vmap").fit(Unfollowable(1, 1, 1).double(), case.data)
    with pytest.raises(UnsupportedError, match="prediction='loop'"):
        predict(case.inputs)
    with pytest.raises(ShapeError, match="check its channels"):  # before anything is trained
        head(train=failing).fit(nn.Conv1d(1, 2, 1), case.data)
