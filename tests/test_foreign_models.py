"""Operators of another library, on every road from training to acquisition; and what is said where they fail."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import probneural as pn
from probneural.distributions import Predictor
from probneural.errors import ArgumentError, DataError, OperatorError, ProbneuralError, ShapeError, UnsupportedError
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.randomness import stream_seed
from tests.foreign import ForeignFNO, PointTransformer, UNet, build

BURGERS = pn.problems.Burgers(random_field=pn.problems.GaussianRandomField(1, 3), design_dim=2)
TRAIN = functools.partial(pn.fit, epochs=2, data=pn.training.DataOptions(batch_size=4, validation=0.0), show_progress=False)
GIVEN = {"noise": 1e-2, "prior_precision": 1.0}
HEADS = {
    "last layer": pn.heads.LastLayerLaplace(),
    **{
        structure: pn.heads.Laplace(structure=structure, **GIVEN) for structure in ("full", "low_rank", "kronecker", "diagonal")
    },
    "ensemble": pn.heads.DeepEnsemble(2, train=TRAIN, build=build, show_progress=False),
    "residual kernel": pn.heads.KernelOperator(iterations=2),
}
every_head = pytest.mark.parametrize("name", HEADS)


@cache
def data(count: int, seed: int, points: int = 16) -> FieldPairs:
    return BURGERS.sample(count, resolution=points, seed=seed)


@cache
def operator() -> nn.Module:
    module = build(0)
    TRAIN(module, data(12, 0), seed=0)
    return module


@cache
def build_predictor(name: str) -> Predictor:
    return HEADS[name].fit(operator(), data(12, 0))


def encode(design: Tensor) -> Field:
    return BURGERS.encode(design.float(), grid=data(4, 2).inputs.grid)


@every_head
def test_heads_calibrate_score_and_become_models(name: str) -> None:
    """Not that it runs alone: the mean is the operator's own, and a model's posterior is that of the field."""
    test, fine = data(4, 2), data(4, 2, points=32)
    predictor = pn.calibration.VarianceScale().fit(build_predictor(name), data(8, 1))
    u = predictor(test.inputs)
    if name not in ("ensemble", "residual kernel"):
        with torch.no_grad():
            torch.testing.assert_close(u.mean, operator()(test.inputs.values), rtol=1e-4, atol=1e-5)
    assert float(u.variance.min()) > 0
    assert pn.metrics.score(u, test.outputs, noise=predictor.noise).functions == 4
    assert predictor(fine.inputs).mean.shape == fine.outputs.values.shape
    probe = pn.functionals.sensors(test.outputs.grid, [[0.25], [0.75]])
    model = pn.active.OperatorModel(predictor, encode=encode, functional=probe)
    design = torch.rand(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean = model.posterior(design).mean.detach().reshape(3, 2).float()
    torch.testing.assert_close(mean, predictor(encode(design)).apply(probe).mean[:, 0].detach().float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", ["last layer", "ensemble"])
def test_active_learning_trains_it_anew_each_round(head: str, tmp_path: Path) -> None:
    """The last round's predictor is that of the head fitted by hand to the learner's own pairs."""
    alone = head == "ensemble"
    untrained = build(3)
    with ThreadPoolExecutor(1) as executor:
        learner = pn.active.ActiveLearner(
            BURGERS,
            HEADS[head],
            acquisition=pn.active.StochasticSelection(),
            pool=BURGERS.sample_inputs(16, resolution=16, seed=5),
            store=tmp_path,
            training=pn.active.OperatorTraining(untrained, None if alone else TRAIN, warm_start=False),
            plan=pn.active.LearningPlan(initial=6, batch=3),
            simulation=pn.active.SimulationOptions(executor=executor, show_progress=False),
        )
        learner.run(rounds=2)
    again = build(3)
    if not alone:
        TRAIN(again, learner.pairs, seed=stream_seed(0, "round recipe", 1))
    expected = HEADS[head].fit(again, learner.pairs)(data(4, 2).inputs)
    torch.testing.assert_close(learner.predictor(data(4, 2).inputs).mean, expected.mean, rtol=1e-4, atol=1e-5)


class Dense(nn.Module):
    """What only takes the resolution it was built for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values)


def field(*shape: int, dtype: torch.dtype = torch.float32) -> Field:
    return Field(torch.zeros(shape, dtype=dtype), Grid.uniform(shape[2:]))


@pytest.mark.parametrize(
    ("module", "inputs", "cause", "says"),
    [
        (Dense(), field(2, 1, 12), RuntimeError, "Dense to take Field.2 x 1 on Grid.uniform..12,.*mat1 and mat2 shapes"),
        (ForeignFNO(), field(2, 2, 16), RuntimeError, r"ForeignFNO to take Field\(2 x 2 on .*to have 2 channels, but got 3"),
        (ForeignFNO(), field(2, 1, 16, dtype=torch.float64), RuntimeError, "torch.float64.*; got RuntimeError: "),
        (ForeignFNO(), field(2, 1, 4, 4), AssertionError, r"uniform\(\(4, 4\).* number of dimensions"),
        (ForeignFNO(), field(2, 1, 4), RuntimeError, r"uniform\(\(4,\).*einsum.*inputs.resample\(grid\)"),
    ],
    ids=["grid", "channels", "dtype", "dimension", "coarse"],
)
def test_what_a_module_cannot_take_names_module_grid_and_remedy(
    module: nn.Module, inputs: Field, cause: type[Exception], says: str
) -> None:
    with pytest.raises(OperatorError, match=says) as caught:
        evaluate(module, inputs)
    assert isinstance(caught.value.__cause__, cause)
    assert str(caught.value.__cause__) in str(caught.value)


def test_every_road_to_a_module_says_so() -> None:
    module, pairs = Dense(), data(6, 0, points=24)
    for call in (
        lambda: pn.fit(module, pairs, epochs=1, show_progress=False),
        lambda: pn.heads.Laplace(structure="diagonal", **GIVEN).fit(module, pairs),
        lambda: pn.heads.DeepEnsemble(2, train=TRAIN, show_progress=False).fit(module, pairs),
        lambda: pn.heads.KernelOperator().fit(module, pairs),
        lambda: pn.heads.LastLayerLaplace().fit(module, pairs),
        lambda: pn.heads.Laplace(structure="diagonal", **GIVEN).fit(module, data(6, 0))(pairs.inputs),
    ):
        with pytest.raises(OperatorError, match=r"Dense to take .*\(24,\).*mat1 and mat2 shapes cannot be multiplied"):
            call()


class Raising(nn.Module):
    """Raises what it is told to."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, values: Tensor) -> Tensor:
        raise self.error


ERRORS: list[BaseException] = [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
    ),
    MemoryError("out of memory"),
    NotImplementedError("no kernel"),
    RecursionError("too deep"),
    KeyboardInterrupt(),
    KeyError("weights"),
    AttributeError("no such layer"),
    TypeError("forward() missing 1 required positional argument"),
    DataError(expected="a", got="b", remedy="c"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_other_faults_pass_as_they_are(error: BaseException) -> None:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 (KeyboardInterrupt among them)
        evaluate(Raising(error), field(1, 1, 8))
    assert caught.value is error


def test_faults_that_have_nothing_to_do_with_shapes_keep_their_text() -> None:
    with pytest.raises(RuntimeError, match="Raising to take .*; got RuntimeError: the licence server is down"):
        evaluate(Raising(RuntimeError("the licence server is down")), field(1, 1, 8))


class Answer(nn.Module):
    """Returns what it is told to."""

    def __init__(self, answer: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, values: Tensor) -> object:
        return self.answer(values)


@pytest.mark.parametrize("answer", [lambda values: values[:1], lambda values: None, lambda values: (values,)])
def test_what_is_no_field_is_a_shape_error(answer: Callable[[Tensor], object]) -> None:
    with pytest.raises(ShapeError, match="wrap the module") as caught:
        evaluate(Answer(answer), field(2, 1, 8))
    assert isinstance(caught.value, ProbneuralError)


class InPlace(nn.Module):
    """As many hand-written networks are: it centres its inputs where they lie."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.readout = nn.Conv1d(1, 4, 1), nn.Conv1d(4, 1, 1)

    def forward(self, values: Tensor) -> Tensor:
        values -= 0.5
        return self.readout(torch.tanh(self.hidden(values)))


@pytest.mark.parametrize("name", ["last layer", "full", "low_rank", "diagonal", "residual kernel"])
def test_modules_that_work_in_place_change_no_data(name: str) -> None:
    pairs, probe = data(12, 0), data(4, 2).inputs
    before = [pairs.inputs.values.clone(), probe.values.clone()]
    predictor = HEADS[name].fit(InPlace(), pairs)
    assert torch.equal(predictor(probe).mean, predictor(probe).mean)
    assert torch.equal(pairs.inputs.values, before[0])
    assert torch.equal(probe.values, before[1])


def test_operators_that_were_compiled_by_a_wrapper_are_refused(tmp_path: Path) -> None:
    """The wrapper hides grid and normalisers: it was trained as a foreign module, and as another operator than was meant."""
    pairs = BURGERS.sample(4, resolution=16, seed=0)
    operator = pn.operators.FNO(1, 1, modes=(4,), width=4, depth=1)
    wrapped = torch.compile(operator)
    roads = [
        lambda: TRAIN(wrapped, pairs),
        lambda: evaluate(wrapped, pairs.inputs),
        lambda: pn.heads.LastLayerLaplace().fit(wrapped, pairs),
        lambda: pn.save(wrapped, tmp_path / "wrapped.safetensors"),
        lambda: pn.operators.Rollout(wrapped, 2),
    ]
    for road in roads:
        with pytest.raises(ArgumentError, match=r"FNO itself as .* compile it in place: operator.compile\(\)"):
            road()
    foreign = torch.compile(ForeignFNO(), backend="eager")  # takes no grid: nothing is hidden
    assert evaluate(foreign, pairs.inputs).shape == (4, 1, 16)


HEAT = pn.problems.Heat(dimension=1, diffusivity=0.01, random_field=pn.problems.GaussianRandomField(1, 7))
(PROGRAM,) = (
    block
    for block in re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "docs/how-to/model.md").read_text(), re.DOTALL)
    if "from_numpy" in block
)


@cache
def pretrained(kind: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, train = kind(), HEAT.sample(496, resolution=16, seed=0)[:96]
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.mse_loss(model(train.inputs.values), train.outputs.values).backward()
        optimiser.step()
    return model


@pytest.mark.parametrize("kind", [UNet, PointTransformer])
def test_the_program_of_the_page_covers_in_both_precisions(kind: type[nn.Module]) -> None:
    """Mean, variance and coverage in bfloat16 are those of the rounded weights, within sampling errors those of float32."""
    assert len(PROGRAM.splitlines()) <= 15
    pairs = HEAT.sample(496, resolution=16, seed=0)
    truth, covered, fields = pairs[296:].outputs.values, {}, {}
    for dtype in (torch.float32, torch.bfloat16):
        model = copy.deepcopy(pretrained(kind)).to(dtype)
        space = {"model": model, "inputs": pairs.inputs.values.numpy(), "outputs": pairs.outputs.values.numpy()}
        exec(PROGRAM, space)
        u, band = space["u"], space["band"]
        exact = copy.deepcopy(model).float().eval()
        torch.testing.assert_close(u.mean, exact(pairs[296:].inputs.values).detach(), rtol=1e-5, atol=1e-6)
        pointwise = (truth - u.mean).abs() < 1.645 * (u.variance + space["predictor"].noise[:, None]).sqrt()
        whole = (band.lower <= truth) & (truth <= band.upper)
        covered[dtype] = torch.stack([pointwise.flatten(1).float().mean(1), whole.flatten(1).all(1).float()])
        fields[dtype] = u
    # 90 % of 200 functions, of band and points, after as many for calibration: three standard errors
    error = (0.9 * 0.1 / 200) ** 0.5
    for values in covered.values():
        assert bool(((values.mean(1) - 0.9).abs() < 3 * 2**0.5 * error).all())
    paired = covered[torch.bfloat16] - covered[torch.float32]
    assert bool((paired.mean(1).abs() < 2 * error).all())
    ratio = fields[torch.bfloat16].variance.mean() / fields[torch.float32].variance.mean()
    assert float(ratio) == pytest.approx(1.0, abs=0.15)


def test_other_channels_than_the_data_are_refused_with_both_numbers() -> None:
    pairs = HEAT.sample(12, resolution=16, seed=0)
    twice = FieldPairs(pairs.inputs, Field(pairs.outputs.values.repeat(1, 2, 1), pairs.outputs.grid))
    predictor = pn.heads.LastLayerLaplace(**GIVEN).fit(UNet(), pairs)
    sizes = {UNet: "to have 3 channels, but got 1 channels", PointTransformer: r"batch2 tensor to be: .*, 3\] but got: .*, 5\]"}
    for head in (pn.heads.LastLayerLaplace(), pn.heads.Laplace(structure="diagonal", **GIVEN), pn.heads.KernelOperator()):
        for kind, says in sizes.items():
            with pytest.raises(OperatorError, match=rf"{kind.__name__} to take Field\(\d+ x 1 on .*{says}"):
                head.fit(kind(channels=3), pairs)
            with pytest.raises(ShapeError, match=r"outputs of the operator of shape \(\d+, 2, 16\); got \(\d+, 1, 16\)"):
                head.fit(kind(), twice)
    with pytest.raises(ShapeError, match="1 channels of inputs; got 2"):
        predictor(twice.outputs)


def test_half_precision_in_other_heads() -> None:
    """All layers and kernels are fitted to the rounded weights in float32; members are not trained in half precision."""
    pairs = HEAT.sample(12, resolution=16, seed=0)
    half = UNet().to(torch.bfloat16)
    for head in (pn.heads.Laplace(structure="diagonal", **GIVEN), pn.heads.KernelOperator(iterations=2)):
        u, v = (head.fit(model, pairs)(pairs.inputs) for model in (half, copy.deepcopy(half).float()))
        assert torch.equal(u.mean, v.mean)
        assert torch.equal(u.variance, v.variance)
    assert next(half.parameters()).dtype == torch.bfloat16
    with pytest.raises(UnsupportedError, match="float32 or float64; got torch.bfloat16"):
        pn.heads.DeepEnsemble(2, train=TRAIN).fit(half, pairs)
    with pytest.raises(OperatorError, match=r"module.float\(\) its precision"):
        TRAIN(half, pairs)
