"""Deep ensembles: what members are, how they are trained and evaluated, and what is refused."""

from __future__ import annotations

import copy
import functools
import io
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import probneural as pn
from probneural.distributions import EmpiricalField
from probneural.errors import ArgumentError, ShapeError, TrainingError, UnsupportedError
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.heads import DeepEnsemble
from probneural.heads import weight_samples as sampled
from probneural.heads.ensembles import deep_ensemble as members
from probneural.heads.ensembles.deep_ensemble import MemberTask
from probneural.heads.ensembles.reinitialisation import Initialisation
from probneural.heads.weight_samples import WeightSampledPredictor
from probneural.operators import FNO
from probneural.pairs import FieldPairs
from probneural.processes import launched
from probneural.randomness import seeded, stream_seed
from tests.heads.cases import ComplexSpectral, briefly, data_for, fields, operator_case, reinitialise
from tests.helpers import generator

RECIPE = functools.partial(pn.fit, epochs=1, data=pn.training.DataOptions(batch_size=3, validation=0.34), show_progress=False)


def head(count: int = 3, **settings: object) -> DeepEnsemble:
    return DeepEnsemble(count, **{"train": briefly, "show_progress": False, **settings})


def exits(operator: nn.Module, data: FieldPairs, *, seed: int) -> None:
    """What running out of memory looks like."""
    os._exit(seed % 2 + 3)


def by_hand(operator: nn.Module, data: FieldPairs, number: int, *, seed: int = 0) -> nn.Module:
    """A member as the documentation describes it."""
    module, member_seed = copy.deepcopy(operator), stream_seed(seed, "ensemble member", number)
    with seeded(member_seed, "member training"):
        for child in reversed(list(module.modules())):
            if hasattr(child, "reset_parameters"):
                child.reset_parameters()
        briefly(module, data, seed=member_seed)
    return module.eval()


@pytest.mark.parametrize("name", ["fno-ends", "conv"])
def test_predictions_are_the_members_own(name: str) -> None:
    """By hand, with running statistics that differ between members, and with quadrature weights that differ between points."""
    case = operator_case(name)
    operator = copy.deepcopy(case.operator).train()  # where running statistics move
    predictor = head(seed=5).fit(operator, case.data)
    expected = [by_hand(operator, case.data, number, seed=5) for number in range(3)]
    with torch.no_grad():
        samples = torch.stack([evaluate(module, case.inputs) for module in expected])
        fit = torch.stack([evaluate(module, case.data.inputs) for module in expected]).mean(0)
    field = predictor(case.inputs)
    assert isinstance(field, EmpiricalField)
    torch.testing.assert_close(field.samples, samples, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(field.mean, (samples[0] + samples[1] + samples[2]) / 3, rtol=1e-12, atol=1e-12)
    squares = sum((member - field.mean) ** 2 for member in samples) / 3
    torch.testing.assert_close(field.variance, squares, rtol=1e-9, atol=1e-14)
    grid = case.data.outputs.grid
    misfit = ((case.data.outputs.values - fit)[:, 0].square() * grid.weights).sum(1) / grid.weights.sum()
    torch.testing.assert_close(predictor.noise, misfit.mean()[None], rtol=1e-9, atol=0)
    assert bool(predictor.buffers) == (name == "conv")
    assert predictor.members == 3
    for seed in range(4):
        drawn = predictor.draw(seed)(case.inputs.values)
        assert any(torch.allclose(drawn, member, rtol=1e-9, atol=1e-12) for member in samples)


def test_noise_of_each_channel_has_a_floor() -> None:
    fields_ = fields(Grid.uniform(8), 5, 2, seed=1)
    operator = nn.Conv1d(2, 2, 1).double()

    def exact(module: nn.Module, data: FieldPairs, *, seed: int) -> None:
        with torch.no_grad():
            module.weight.copy_(torch.eye(2)[:, :, None])
            module.bias.copy_(torch.tensor([0.0, 0.5]))

    predictor = head(train=exact).fit(operator, FieldPairs(fields_, fields_))
    variance = fields_.values[:, 0].var(correction=0)
    torch.testing.assert_close(predictor.noise, torch.stack([1e-12 * variance, torch.tensor(0.25).double()]), rtol=1e-6, atol=0)


def test_a_member_is_the_same_in_an_ensemble_of_any_size() -> None:
    case = operator_case("fno-1d")
    three, two, other = (head(count, seed=seed).fit(case.operator, case.data) for count, seed in ((3, 0), (2, 0), (3, 1)))
    assert torch.equal(three.vectors[:2], two.vectors)
    rows = torch.cat([three.vectors, other.vectors])
    distances = torch.cdist(rows, rows) + torch.eye(len(rows))
    assert float(distances.min()) > 0.1


def test_frozen_parameters_keep_their_values() -> None:
    case = operator_case("channels-last")
    module = copy.deepcopy(case.operator)
    module.layers[0].requires_grad_(False)
    for given in (None, reinitialise):
        predictor = head(reinitialise=given).fit(module, case.data)
        for vector in predictor.vectors:
            parameters = predictor.layout.unflatten(vector)
            assert torch.equal(parameters["layers.0.weight"], module.layers[0].weight)
            assert not torch.equal(parameters["layers.2.weight"], module.layers[2].weight)


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
    first = head(train=noisy, reinitialise=reinitialise).fit(operator, data)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(7)
    second = head(train=noisy, reinitialise=reinitialise).fit(operator, data)
    assert torch.equal(first.vectors, second.vectors)
    assert begun[:3] == begun[3:]
    assert len({*begun}) == 3
    assert first.vectors.shape == (3, 6)
    assert float(first(data.inputs).variance.min()) > 0


@pytest.mark.parametrize("name", ["fno-1d", "fno-2d", "conv", "complex", "denormalised"])
def test_members_evaluated_together_are_those_evaluated_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = operator_case(name)
    predictor = head(train=briefly, reinitialise=reinitialise).fit(case.operator, case.data)
    query = case.inputs.grid.resized([2 * size for size in case.inputs.grid.shape])
    more = fields(case.inputs.grid, 5, case.inputs.channels, seed=3)
    with monkeypatch.context() as patch:
        patch.setattr(sampled, "_VMAP_POINTS", 0)
        expected, finer, all_five = (predictor(*call).samples for call in ((case.inputs,), (case.inputs, query), (more,)))
    together: list[int] = []
    samples = predictor._samples
    monkeypatch.setattr(sampled, "_VMAP_POINTS", 2**16)
    monkeypatch.setattr(predictor, "_samples", lambda *call: together.append(call[2]) or samples(*call))
    scale = float(expected.abs().max())
    torch.testing.assert_close(predictor(case.inputs).samples, expected, rtol=0, atol=1e-12 * scale)
    torch.testing.assert_close(predictor(case.inputs, query).samples, finer, rtol=0, atol=1e-12 * scale)
    assert together[-1] == 3
    monkeypatch.setattr(sampled, "_BATCH_POINTS", 2 * case.inputs.grid.size)  # two functions, or one of two members, at once
    whole = predictor(more).samples
    torch.testing.assert_close(whole, all_five, rtol=0, atol=1e-12 * scale)
    torch.testing.assert_close(whole[:, 4:], predictor(more[4:]).samples, rtol=0, atol=1e-12 * scale)
    assert together[-1] == 2


class Unfollowable(nn.Conv1d):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) * (1.0 if self.weight.detach().sum().item() > -1e9 else 0.0)


class Misled(nn.Conv1d):
    """A module that knows when it is batched, as one with a state of its own would."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) + float(torch._C._functorch.is_batchedtensor(self.weight))


def test_what_vmap_cannot_follow_is_evaluated_one_by_one() -> None:
    case = operator_case("fno-1d")
    for module in (Unfollowable(1, 1, 1), Misled(1, 1, 1)):
        predictor = head().fit(module.double(), case.data)
        assert not predictor._is_followed_by_vmap
        expected = [evaluate(member(predictor, i), case.inputs) for i in range(3)]
        torch.testing.assert_close(predictor(case.inputs).samples, torch.stack(expected), rtol=1e-12, atol=1e-14)
    copied = copy.deepcopy(predictor)
    assert torch.equal(copied(case.inputs).samples, predictor(case.inputs).samples)


class Choosy(nn.Conv1d):
    """A module that refuses what it was not trained on."""

    def forward(self, values: Tensor) -> Tensor:
        if bool((values < 0).any()):
            raise ValueError("concentrations are not negative")
        return super().forward(values)


def test_operators_that_refuse_some_inputs_are_evaluated_on_the_others() -> None:
    """Whether vmap follows is tried on an input of the library's own, which must not be what fails."""
    grid = Grid.uniform(6)
    positive = Field(torch.rand(4, 1, 6, generator=generator(0), dtype=torch.float64) + 0.1, grid)
    predictor = head().fit(Choosy(1, 1, 1).double(), FieldPairs(positive, positive))
    assert predictor(positive[:1]).samples.shape == (3, 1, 1, 6)


def member(predictor: WeightSampledPredictor, number: int) -> nn.Module:
    module = copy.deepcopy(predictor.operator)
    with torch.no_grad():
        for name, value in predictor.layout.unflatten(predictor.vectors[number]).items():
            module.get_parameter(name).copy_(value)
    return module


def test_workers_find_what_the_loop_finds() -> None:
    """To the last bit, at one thread."""
    case = operator_case("fno-1d")
    expected = head(train=RECIPE).fit(case.operator, case.data)
    with ThreadPoolExecutor(2) as executor:
        for workers in (2, executor):
            predictor = head(train=RECIPE, workers=workers).fit(case.operator, case.data)
            assert torch.equal(predictor.vectors, expected.vectors)
            assert predictor.buffers.keys() == expected.buffers.keys()
            for name, values in expected.buffers.items():
                assert torch.equal(values, predictor.buffers[name])
            assert torch.equal(predictor.noise, expected.noise)
        assert executor.submit(int, "3").result() == 3  # which stays open
    assert "OMP_NUM_THREADS" not in os.environ or os.environ["OMP_NUM_THREADS"] == "1"


def solitary(operator: nn.Module, data: FieldPairs, *, seed: int) -> None:
    """What a training function finds that would join other processes."""
    assert launched() == 1, "not alone"
    briefly(operator, data, seed=seed)


def test_workers_of_a_process_of_torchrun_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have its environment, and would wait for others, or train with theirs; threads and processes make one call."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    case = operator_case("conv")
    with ThreadPoolExecutor(2) as executor:
        for workers in (1, executor):
            assert head(2, train=solitary, workers=workers).fit(case.operator, case.data).members == 2


@pytest.mark.slow
def test_a_worker_that_dies_is_noticed() -> None:
    case = operator_case("fno-1d")
    with pytest.raises(TrainingError, match=r"member \d .*the end of its worker process"):
        head(2, train=exits, workers=2).fit(case.operator, case.data)


@pytest.mark.slow
def test_a_member_that_fails_in_a_worker_is_named() -> None:
    case = operator_case("fno-1d")
    with pytest.raises(TrainingError, match=r"member \d \(of 0 to 1\) to train"):
        head(2, train=failing, workers=2).fit(case.operator, case.data)


def test_progress_bars_of_recipes_are_off_unless_asked_for() -> None:
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
    answer = members._trained(task, 1, 9)
    assert isinstance(answer, bytes)
    state = torch.load(io.BytesIO(answer), weights_only=True)
    assert state.keys() == members.state_of(case.operator).keys()
    broken = MemberTask(case.operator, case.data, failing, Initialisation(), 2, torch.device("cpu"))
    with pytest.raises(TrainingError, match="member 1"):
        members._trained(broken, 1, UNLUCKY)


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
        head(reinitialise=lambda module: None).fit(Bare(), pairs)
    with pytest.raises(ArgumentError, match="the same weights for two seeds"):
        head().fit(Bare().requires_grad_(False), pairs)
    normed = Bare()
    nn.utils.parametrizations.weight_norm(normed.layer)
    normed.gain.requires_grad_(False)
    with pytest.raises(ArgumentError, match="layer.parametrizations.weight.original"):
        head().fit(normed, pairs)
    kept = Incomplete()
    before = copy.deepcopy(kept.state_dict())
    predictor = head().fit(kept, pairs)
    assert float(torch.cdist(predictor.vectors, predictor.vectors)[0, 1:].min()) > 1e-3
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
    predictor = head(build=Named(), seed=5).fit(case.operator, case.data)
    expected = []
    for number in range(3):
        member = stream_seed(5, "ensemble member", number)
        module = Named()(member)
        briefly(module, case.data, seed=member)
        with torch.no_grad():
            expected.append(evaluate(module.eval(), case.inputs))
    torch.testing.assert_close(predictor(case.inputs).samples, torch.stack(expected), rtol=1e-12, atol=1e-12)
    with pytest.raises(ArgumentError, match="with spectral, which none reaches; give build="):
        head().fit(case.operator, case.data)


def test_members_start_with_the_buffers_of_the_factory() -> None:
    """A given operator's units belong to its own training; what is built takes new ones."""
    case = operator_case("fno-1d")

    def build(seed: int) -> nn.Module:
        return FNO(1, 1, modes=(3,), width=4, depth=2, projection=6).double()

    operator = build(0)
    operator.output_normalizer.scale.fill_(7.0)
    data = Field(3.0 * case.data.outputs.values, case.data.outputs.grid)
    recipe = functools.partial(pn.fit, epochs=1, data=pn.training.DataOptions(validation=0.0), show_progress=False)
    predictor = head(train=recipe, build=build).fit(operator, FieldPairs(case.data.inputs, data))
    expected = (data.values.square().mean() - data.values.mean().square()).sqrt()
    torch.testing.assert_close(predictor.operator.output_normalizer.scale.flatten()[0], expected, rtol=1e-2, atol=0)


@pytest.mark.slow
def test_a_factory_travels_to_worker_processes() -> None:
    case = operator_case("complex")
    loop, processes = (head(2, build=built, workers=workers).fit(case.operator, case.data) for workers in (1, 2))
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
def test_what_cannot_be_sent_to_processes() -> None:
    case = operator_case("fno-1d")
    with pytest.raises(UnsupportedError, match="can be sent to other processes.*workers=1"):
        head(train=lambda operator, data, seed: None, workers=2).fit(case.operator, case.data)


@pytest.mark.bad_input
def test_bad_settings() -> None:
    with pytest.raises(ArgumentError, match=r"train=functools.partial\(pn.fit, epochs=50\)"):
        DeepEnsemble(5, train=None)
    with pytest.raises(ArgumentError, match="reinitialise= or build=; got both"):
        head(reinitialise=reinitialise, build=built)
    case = operator_case("fno-1d")
    mixed = nn.Sequential(nn.Conv1d(1, 2, 1), nn.Conv1d(2, 1, 1).double())
    with pytest.raises(UnsupportedError, match="one precision"):
        head().fit(mixed, case.data)
    with pytest.raises(ShapeError, match="check its channels"):  # before anything is trained
        head(train=failing).fit(nn.Conv1d(1, 2, 1), case.data)
