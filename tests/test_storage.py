"""Files of operators and predictors: what is loaded is what was saved, to the last bit."""

from __future__ import annotations

import ast
import copy
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import probneural as pn
from probneural import registry
from probneural.active.loop.history import LearningHistory, Round, RoundErrors, RoundSeconds, SimulationCounts
from probneural.calibration import ResidualBand, VarianceScale
from probneural.distributions import EmpiricalField, PredictorTraits
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.errors import ArgumentError, DataWarning, FileError, UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads import Laplace
from probneural.operators import FNO, Operator
from probneural.pairs import FieldPairs
from probneural.physics import Residual
from probneural.storage import load, save
from probneural.training import EarlyStopping, Optimization, RunOptions, files, fit
from probneural.training.callbacks import History
from tests import fitted_objects
from tests.calibration.synthetic import scaled_by
from tests.heads import cases
from tests.helpers import PerSetPredictor, accelerator, held_out
from tests.training.cases import BUILDERS, built, data, same

SAVED = list(cases.HEADS)
OPERATORS = ["fno-outputs", "fno-ends", "deeponet", "pod-deeponet", "regression", "conv", "complex"]
PAIRS = [(head, operator) for head in SAVED for operator in OPERATORS]
ENSEMBLES = [(head, operator) for head in ("deep-ensemble", "residual-process") for operator in ("fno-ends", "conv")]
ENSEMBLES.append(("in-context-permuted", "in-context-ordered"))
FOREIGN = ["Convolutional", "Complex", "Tied"]


class Mine(FNO):
    """A subclass: what its constructor takes is unknown."""


def mine() -> nn.Module:
    return Mine(1, 1, modes=(2,), width=2, depth=1, projection=2)


MODULES = {**BUILDERS, "Mine": mine}


def made(name: str, *, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODULES[name]()


def skeleton(operator: str) -> nn.Module | None:
    """What `load` needs of a case: an untrained module in training mode, or nothing where the operator is ours."""
    case = cases.operator_case(operator)
    if isinstance(case.operator, Operator):
        return None
    module = copy.deepcopy(case.operator).train()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    return module


def stored(predictor: object, path: Path, operator: nn.Module | None = None) -> Any:
    save(predictor, path / "predictor")
    return load(path / "predictor", operator=operator)


def assert_equal(first: object, second: object) -> None:
    """Equal bit for bit, dtypes included."""
    if isinstance(first, Tensor):
        assert isinstance(second, Tensor)
        assert first.dtype == second.dtype
        assert torch.equal(first, second)
    else:
        assert type(first) is type(second)
        assert first == second


def assert_predicts_the_same(first: Any, second: Any, inputs: Field) -> None:
    assert type(first) is type(second)
    assert first.domain == second.domain
    names = ["in_channels", "out_channels", "dtype", "noise", "prior_precision", "effective_observations", "log_evidence"]
    names += ["log_evidence_error", "report", "structure", "shift", "layout", "variance_estimation", "scale", "noise_scale"]
    names += ["calibrated_on", "residual_variance"]
    for name in names:
        assert hasattr(first, name) == hasattr(second, name)
        if hasattr(first, name):
            assert_equal(getattr(first, name), getattr(second, name))
    u, v = first(inputs), second(inputs)
    assert_equal(u.mean, v.mean)
    assert_equal(u.variance, v.variance)
    if isinstance(u, EmpiricalField):
        assert_equal(u.samples, v.samples)
    else:
        assert u.latent.id == v.latent.id
        assert u.latent.rank == v.latent.rank
        assert_equal(u.rsample(torch.Size([3]), seed=5), v.rsample(torch.Size([3]), seed=5))
    assert_equal(first.draw(3)(inputs.values, grid=inputs.grid), second.draw(3)(inputs.values, grid=inputs.grid))


# Operators


def test_load_leaves_the_random_state_alone(tmp_path: Path) -> None:
    save(made("FNO"), str(tmp_path / "operator"))
    state = torch.get_rng_state()
    assert same(load(str(tmp_path / "operator")).state_dict(), made("FNO").state_dict())
    torch.set_rng_state(state)
    load(tmp_path / "operator")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", [*FOREIGN, "Mine", "FNO"])
def test_modules_of_others_are_filled_with_their_state(name: str, tmp_path: Path) -> None:
    module, given = made(name), made(name, seed=1)
    module(torch.randn(4, 1, 16))  # which moves running statistics
    next(module.parameters()).requires_grad_(False)
    before, flags = copy.deepcopy(given.state_dict()), [parameter.requires_grad for parameter in given.parameters()]
    save(module, tmp_path / "operator")
    loaded = load(tmp_path / "operator", operator=given)
    assert type(loaded) is type(module)
    assert not loaded.training
    assert module.training
    assert same(loaded.state_dict(), module.state_dict())
    assert [tensor.dtype for tensor in loaded.state_dict().values()] == [t.dtype for t in module.state_dict().values()]
    assert [parameter.requires_grad for parameter in loaded.parameters()] == [p.requires_grad for p in module.parameters()]
    values = torch.randn(2, 1, 16)
    assert torch.equal(loaded(values), module.eval()(values))
    assert loaded is not given
    assert given.training
    assert same(given.state_dict(), before)
    assert [parameter.requires_grad for parameter in given.parameters()] == flags


def layers(activation: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(1, 2, 1), activation, nn.Conv1d(2, 1, 1))


def test_other_classes_with_the_same_state_are_told(tmp_path: Path) -> None:
    save(layers(nn.GELU()), tmp_path / "operator")
    with pytest.warns(DataWarning, match=r"1: torch\S+ReLU in place of torch\S+GELU$"):
        load(tmp_path / "operator", operator=layers(nn.ReLU()))


def test_of_several_modules_that_fit_the_one_of_the_same_classes_is_taken(tmp_path: Path) -> None:
    save(layers(nn.GELU()), tmp_path / "operator")
    loaded = load(tmp_path / "operator", operator=[layers(nn.ReLU()), layers(nn.GELU())])
    assert isinstance(loaded, nn.Sequential)
    assert isinstance(loaded[1], nn.GELU)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    save(built("Tied"), tmp_path / "operator")
    loaded = load(tmp_path / "operator", operator=built("Tied", seed=1))
    assert loaded.first.weight is loaded.last.weight
    assert [name for name, _ in loaded.named_parameters()] == [name for name, _ in built("Tied").named_parameters()]


@pytest.mark.parametrize("name", ["FNO", "Convolutional"])
def test_weights_keep_their_memory_order(name: str, tmp_path: Path) -> None:
    module = made(name).double()
    first = next(parameter for parameter in module.parameters() if parameter.ndim > 1)
    first.data = first.data.movedim(0, -1).contiguous().movedim(-1, 0)
    save(module, tmp_path / "operator")
    loaded = load(tmp_path / "operator", operator=None if name == "FNO" else made(name).double())
    assert [p.stride() for p in loaded.parameters()] == [p.stride() for p in module.parameters()]
    assert same(loaded.state_dict(), module.state_dict())


class DescribedInside(nn.Linear):
    """Adds a description without a prefix, as models of neuraloperator do, which a wrapper does not know."""

    def state_dict(self, *args: Any, **options: Any) -> Any:
        return super().state_dict(*args, **options) | {"_metadata": {"in_features": self.in_features}}

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict({name: one for name, one in state.items() if name != "_metadata"}, strict, assign)


class Wrapper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = DescribedInside(16, 16)

    def state_dict(self, *args: Any, **options: Any) -> Any:
        """A description that an inner module has put into the dictionary that all share."""
        return super().state_dict(*args, **options) | {"_metadata": {"in_features": self.inner.in_features}}

    def forward(self, values: Tensor) -> Tensor:
        return self.inner(values)


def test_a_wrapper_around_a_module_that_describes_itself_is_saved_trained_and_resumed(tmp_path: Path) -> None:
    module = Wrapper()
    save(module, tmp_path / "operator")
    loaded = load(tmp_path / "operator", operator=Wrapper())
    assert torch.equal(loaded.inner.weight, module.inner.weight)
    settings: dict[str, Any] = {"epochs": 2, "run": RunOptions(checkpoint=tmp_path / "checkpoint"), "show_progress": False}
    settings["optimization"] = Optimization(early_stopping=EarlyStopping(patience=5))
    fit(module, data(), **settings)
    again = Wrapper()
    fit(again, data(), **settings)
    assert torch.equal(again.inner.weight, module.inner.weight)
    assert not torch.equal(again.inner.weight, loaded.inner.weight)


class Packed(nn.Module):
    """Keeps its weight under another name, in another form."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}packed"] = 2.0 * self.weight.detach()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        self.weight.data = state_dict[f"{prefix}packed"] / 2.0


def test_modules_read_their_own_state(tmp_path: Path) -> None:
    module = Packed()
    save(module, tmp_path / "operator")
    assert torch.equal(load(tmp_path / "operator", operator=Packed()).weight, module.weight)


def test_an_operator_changed_by_hand_is_loaded_into_one_changed_alike(tmp_path: Path) -> None:
    def changed() -> nn.Module:
        operator = made("FNO")
        operator.readout = nn.Conv1d(4, 3, 1)
        return operator

    module = changed()
    save(module, tmp_path / "operator")
    assert same(load(tmp_path / "operator", operator=changed()).state_dict(), module.state_dict())
    with pytest.raises(FileError, match="fits FNO; got differences in readout.bias, readout.weight; .*give operator="):
        load(tmp_path / "operator")


# Predictors


@pytest.mark.parametrize(("head", "operator"), [*cases.parameters(PAIRS), *ENSEMBLES])
def test_every_head_predicts_the_same(head: str, operator: str, tmp_path: Path) -> None:
    predictor, case = cases.fitted(head, operator), cases.operator_case(operator)
    given = skeleton(operator)
    before = copy.deepcopy(given)
    loaded = stored(predictor, tmp_path, given)
    assert_predicts_the_same(predictor, loaded, case.inputs)
    assert all(isinstance(shape, torch.Size) for shape in (loaded.layout.shapes if hasattr(loaded, "layout") else ()))
    assert not any(module.training for module in loaded.operator.modules())
    assert not any(parameter.requires_grad for parameter in loaded.operator.parameters())
    if given is not None and before is not None:
        assert loaded.operator is not given
        assert given.training
        assert same(given.state_dict(), before.state_dict())


@pytest.mark.parametrize("head", ["last-layer", "full", "low-rank"])
def test_updated_predictors_keep_their_shift(head: str, tmp_path: Path) -> None:
    case = cases.operator_case("fno-outputs")
    more = [cases.data_for(copy.deepcopy(case.operator).eval(), cases.fields(cases.PERIODIC, 2, 2, seed=s)) for s in (20, 21)]
    predictor = cases.fitted(head, case.name).update(more[0])
    assert predictor.shift is not None
    loaded = stored(predictor, tmp_path)
    assert_predicts_the_same(predictor, loaded, case.inputs)
    assert_predicts_the_same(predictor.update(more[1]), loaded.update(more[1]), case.inputs)


@pytest.mark.parametrize("operator", ["fno-outputs", "complex"])
def test_sampled_weights(operator: str, tmp_path: Path) -> None:
    predictor = cases.fitted("diagonal", operator).sampled(3, seed=1)
    loaded = stored(predictor, tmp_path, skeleton(operator))
    assert_predicts_the_same(predictor, loaded, cases.operator_case(operator).inputs)
    assert_equal(predictor.vectors, loaded.vectors)


@pytest.mark.parametrize("head", ["last-layer", "kronecker"])
def test_calibrated_predictors_and_what_they_wrap(head: str, tmp_path: Path) -> None:
    case = cases.operator_case("fno-outputs")
    once = VarianceScale().fit(cases.fitted(head, case.name), held_out(case.data))
    loaded = stored(once, tmp_path)
    assert_predicts_the_same(once, loaded, case.inputs)
    assert_predicts_the_same(once.inner, loaded.inner, case.inputs)


@pytest.mark.parametrize("structure", ["full", "kronecker", "low_rank"])
def test_scattered_points_and_single_precision(structure: str, tmp_path: Path) -> None:
    generator = cases.generator(0)
    points = torch.rand(8, 1, generator=generator, dtype=torch.float64)
    grid = Grid.scattered(points, torch.rand(8, generator=generator, dtype=torch.float64))
    operator = cases.BranchTrunk()
    pairs = cases.data_for(operator.double(), Field(torch.randn(6, 1, 8, generator=generator).double(), grid))
    inputs = pairs.inputs.to(torch.float32)
    head = Laplace(structure=structure, noise=0.01, prior_precision=1.0)
    predictor = head.fit(operator.float(), FieldPairs(inputs, pairs.outputs.to(torch.float32)))
    loaded = stored(predictor, tmp_path, cases.BranchTrunk())
    assert loaded.dtype == torch.float32
    assert_predicts_the_same(predictor, loaded, inputs)
    assert_equal(grid.points, loaded.domain.points)
    assert_equal(grid.weights, loaded.domain.weights)


@pytest.mark.parametrize(
    "grid",
    [
        Grid.uniform((8, 7), lengths=(1.0, 0.1), periodic=(True, False), endpoint=False, origin=(-1.0, 1 / 3)),
        Grid.latlon([-60.0, -30.0, 0.0, 30.0, 60.0], [0.0, 60.0, 120.0, 180.0, 240.0, 300.0], latitude_first=False),
    ],
)
def test_axes_of_a_domain_survive(grid: Grid, tmp_path: Path) -> None:
    operator = FNO(1, 1, modes=(2, 2), width=2, depth=1, projection=3, periodic=(True, False)).double()
    pairs = cases.data_for(operator, cases.fields(grid, 4, 1, seed=0))
    predictor = cases.HEADS["last-layer-given"].fit(operator, pairs)
    loaded = stored(predictor, tmp_path)
    assert_predicts_the_same(predictor, loaded, pairs.inputs)
    assert loaded.domain.axes == grid.axes


def test_the_prior_of_every_parameter_and_fixed_ones(tmp_path: Path) -> None:
    """Infinities are numbers too."""
    case = cases.operator_case("conv")
    head = Laplace(structure="diagonal", parameters=["first", "last"], noise=0.01, prior_precision=torch.tensor(1.0))
    size = head.fit(case.operator, case.data).layout.size
    prior = torch.linspace(1.0, 2.0, size)
    prior[3] = torch.inf
    predictor = Laplace(structure="diagonal", parameters=["first", "last"], noise=0.01, prior_precision=prior).fit(
        case.operator, case.data
    )
    loaded = stored(predictor, tmp_path, skeleton("conv"))
    assert_predicts_the_same(predictor, loaded, case.inputs)
    assert torch.isinf(loaded.prior_precision).sum() == 1


READER = """
import hashlib, sys, torch
torch.set_num_threads(1)
import probneural as pn
from probneural.training import files
predict = pn.load(sys.argv[1])
u = predict(pn.Field(files.read(sys.argv[2])[0]["values"], predict.domain))
print(u.latent.id, hashlib.sha256(torch.stack([u.mean, u.variance, u.rsample(seed=1)]).numpy().tobytes()).hexdigest())
"""


def test_another_process_predicts_the_same(tmp_path: Path) -> None:
    case = cases.operator_case("fno-outputs")
    predictor = VarianceScale().fit(cases.fitted("full", case.name), held_out(case.data))
    save(predictor, tmp_path / "predictor")
    files.write(tmp_path / "inputs", {"values": case.inputs.values}, metadata={})
    command = [sys.executable, "-c", READER, str(tmp_path / "predictor"), str(tmp_path / "inputs")]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    u = predictor(case.inputs)
    content = torch.stack([u.mean, u.variance, u.rsample(seed=1)]).numpy().tobytes()
    assert finished.stdout.split() == [u.latent.id, hashlib.sha256(content).hexdigest()]


# Fitted objects


@pytest.mark.parametrize("name", fitted_objects.KINDS)
def test_fitted_objects_give_equal_bits_and_keep_their_guarantee(name: str, tmp_path: Path) -> None:
    saved = fitted_objects.fitted(name)
    loaded = stored(saved, tmp_path)
    assert type(loaded) is type(saved)
    assert repr(loaded) == repr(saved)
    for array, expected in zip(*(fitted_objects.arrays(name, thing) for thing in (loaded, saved)), strict=True):
        assert_equal(array, expected)
    if name not in ("lead scales", "of a corrected predictor"):  # no coverage; corrections take their time
        assert fitted_objects.coverage(name, loaded) == pytest.approx(0.9, abs=0.08)


def test_histories_are_equal(tmp_path: Path) -> None:
    counts, errors = SimulationCounts(simulated=3, reused=0, failed=1), RoundErrors(mean=0.1 + 0.2)
    seconds = RoundSeconds(select=0.0, simulate=1.5, train=2.0, fit=0.1)
    line = Round(number=0, labels=3, chosen=(2, 0, 1), simulations=counts, loss=None, errors=errors, seconds=seconds)
    training = History(train=(1.0, 1 / 3), validation=(), seconds=(0.1, 0.2), restored=1, weights=({"data": 1.0}, {}))
    for history in (training, LearningHistory((line, line))):
        assert stored(history, tmp_path) == history


# What cannot be


@pytest.mark.bad_input
def test_devices_that_are_not_here(tmp_path: Path) -> None:
    save(made("FNO"), tmp_path / "operator")
    for device in ("toaster", "cuda:99", 1.5):
        with pytest.raises(ArgumentError, match="a device of this machine"):
            load(tmp_path / "operator", device=device)  # type: ignore[arg-type]


@pytest.mark.bad_input
def test_a_module_is_needed_and_must_be_one(tmp_path: Path) -> None:
    save(cases.fitted("last-layer", "conv"), tmp_path / "predictor")
    with pytest.raises(ArgumentError, match=r"operator=, a module .*\(tests.heads.cases.ConvStack\); got None; .*state only"):
        load(tmp_path / "predictor")
    for operator in ("ConvStack", ["ConvStack"]):
        with pytest.raises(ArgumentError, match=r"an nn.Module as operator; got str"):
            load(tmp_path / "predictor", operator=operator)  # type: ignore[arg-type]


def test_operators_of_several_architectures_come_from_a_list(tmp_path: Path) -> None:
    """Each saved module is a copy of the first that it fits; an FNO is built."""
    operators = ["conv", "fno-1d", "complex"]
    mixture = MixturePredictor([cases.fitted("last-layer", name) for name in operators])
    save(mixture, tmp_path / "predictor")
    foreign = [cases.operator_case(name).operator for name in ("complex", "conv")]
    again, inputs = load(tmp_path / "predictor", operator=foreign), cases.operator_case("conv").inputs
    assert torch.equal(again(inputs).mean, mixture(inputs).mean)
    with pytest.raises(ArgumentError, match="a state that fits ComplexSpectral; got differences in first.bias"):
        load(tmp_path / "predictor", operator=foreign[:1])
    with pytest.raises(ArgumentError, match="operator=, a module .*ConvStack"):
        load(tmp_path / "predictor", operator=[])


def untied() -> nn.Module:
    module = built("Tied")
    module.last.weight = nn.Parameter(module.first.weight.detach().clone())
    return module


def retied() -> nn.Module:
    module = untied()
    module.last.bias = module.first.bias
    return module


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("saved", "given", "message"),
    [
        (lambda: made("Convolutional"), lambda: made("FNO"), "fits FNO; got differences in first.bias, .* and others"),
        (
            lambda: made("FNO"),
            lambda: FNO(1, 1, modes=(3,), width=4, depth=2, projection=4),
            "got differences in spectral.0.weight",
        ),
        (lambda: made("Convolutional"), lambda: made("Convolutional").double(), "architecture and dtype"),
        (lambda: nn.Linear(2, 1), lambda: nn.Linear(2, 1, bias=False), "got differences in bias;"),
        (lambda: nn.Linear(2, 1, bias=False), lambda: nn.Linear(2, 1), "got differences in bias;"),
        (lambda: built("Tied"), untied, "got differences in last.weight;"),
        (untied, lambda: built("Tied"), "got differences in last.weight;"),
        (untied, retied, "got differences in last.bias;"),
    ],
    ids=["another", "shape", "dtype", "one less", "one more", "untied", "tied", "tied elsewhere"],
)
def test_a_state_that_does_not_fit(saved: Any, given: Any, message: str, tmp_path: Path) -> None:
    save(saved(), tmp_path / "operator")
    module = given()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(ArgumentError, match=message):
        load(tmp_path / "operator", operator=module)
    assert same(module.state_dict(), before)


@pytest.mark.bad_input
def test_a_namesake_of_our_operator_is_not_rebuilt(tmp_path: Path) -> None:
    namesake = type("FNO", (nn.Linear,), {})
    save(namesake(1, 1), tmp_path / "operator")
    with pytest.raises(ArgumentError, match="operator=, a module .*FNO"):
        load(tmp_path / "operator")


class OneOfTheirs(PerSetPredictor):
    """A predictor that nobody has registered."""

    def _field(self, inputs: Field, query: Grid | None) -> Any:
        return None


class WithExtraState(nn.Linear):
    """Keeps something that is no tensor."""

    def get_extra_state(self) -> object:
        return {"secret": object()}


def test_a_search_for_a_kind_registers_every_stored_class() -> None:
    trees = [ast.parse(path.read_text()) for path in Path(pn.__file__).parent.rglob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    marked = {node.name for node in classes if any(ast.unparse(one).startswith("stored(") for one in node.decorator_list)}
    command = [
        sys.executable,
        "-c",
        "from probneural.registry import *; [kind_named(name) for name in ('', 'Run', 'LearningHistory')]; print(*KINDS)",
    ]
    registered = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert len(registered) > 50
    assert {*registered} == marked


@pytest.mark.bad_input
def test_classes_of_other_packages_and_namesakes_are_not_registered() -> None:
    for cls in (OneOfTheirs, type("FNO", (FNO,), {"__module__": FNO.__module__})):
        with pytest.raises(ArgumentError, match=f"with a name of its own; got .*{cls.__name__}"):
            registry.stored()(cls)
    assert registry.KINDS["FNO"].cls is FNO
    assert "OneOfTheirs" not in registry.KINDS


@pytest.mark.bad_input
def test_what_cannot_be_saved(tmp_path: Path) -> None:
    one = torch.ones(1, dtype=torch.float64)
    unknown = OneOfTheirs(PredictorTraits(in_channels=1, noise=one, domain=cases.PERIODIC, like=one))
    things = {"str": "operator", "dict": {}, "Tensor": one, "VarianceScale": VarianceScale(), "OneOfTheirs": unknown}
    residual, (predictor, pairs, _) = Residual(lambda u, inputs: u.values), fitted_objects.setting()
    nested = [("OneOfTheirs", scaled_by(1.0, unknown)), ("function", residual.corrected(predictor))]
    for name, thing in [*things.items(), *nested, ("function", ResidualBand(residual).fit(predictor, pairs.inputs))]:
        message = f"an nn.Module, or a fitted object of this library .* your own; got {name}; save the operator"
        with pytest.raises(UnsupportedError, match=message):
            save(thing, tmp_path / "file")  # type: ignore[arg-type]
    namesake = type("LastLayerPredictor", (OneOfTheirs,), {})(unknown.traits)
    with pytest.raises(UnsupportedError, match="got LastLayerPredictor; save the operator"):
        save(namesake, tmp_path / "file")
    with pytest.raises(UnsupportedError, match="state is made of tensors; got <class 'dict'> as _extra_state"):
        save(WithExtraState(1, 1), tmp_path / "file")
    assert not list(tmp_path.iterdir())


@pytest.mark.bad_input
def test_a_damaged_predictor_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "predictor"
    save(cases.fitted("kronecker", "fno-outputs"), path)
    payload = bytearray(path.read_bytes())
    for position in range(8, len(payload), len(payload) // 40):
        damaged = bytearray(payload)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(FileError):
            load(path)
    path.write_bytes(payload[:-1])
    with pytest.raises(FileError):
        load(path)


@pytest.mark.bad_input
def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="a safetensors file at .*missing"):
        load(tmp_path / "missing")
    fit(made("FNO"), data(), epochs=1, run=RunOptions(checkpoint=tmp_path / "fit"), show_progress=False)
    with pytest.raises(FileError, match="a file of pn.save; got checkpoint; is this a fit's checkpoint"):
        load(tmp_path / "fit")
    for metadata in ({"kind": "something"}, {}):
        files.write(tmp_path / "other", {}, metadata=metadata)
        with pytest.raises(FileError, match="a file of pn.save; got (something|None)"):
            load(tmp_path / "other")


@pytest.mark.bad_input
@pytest.mark.parametrize("change", ["more", "less"])
def test_files_of_other_versions_are_named(change: str, tmp_path: Path) -> None:
    path = tmp_path / "predictor"
    save(cases.fitted("last-layer", "fno-outputs"), path)
    tensors, metadata = files.read(path)
    if change == "more":
        metadata["parts"]["temperature"] = 1.0
    else:
        del metadata["parts"]["factor"]
    files.write(path, tensors, metadata=metadata)
    with pytest.raises(FileError, match="what a LastLayerPredictor of this version is made of; got .*(temperature|factor)"):
        load(path)


@pytest.mark.gpu
@pytest.mark.parametrize("head", SAVED)
def test_a_file_moves_between_devices(head: str, tmp_path: Path) -> None:
    case = cases.operator_case("fno-outputs")
    predictor = cases.HEADS[head].fit(copy.deepcopy(case.operator).to(accelerator()), case.data)
    save(predictor, tmp_path / "predictor")
    there, here = load(tmp_path / "predictor", device=accelerator()), load(tmp_path / "predictor")
    assert_predicts_the_same(predictor, there, case.inputs)
    assert there.device.type == accelerator()
    assert there.noise.device == predictor.noise.device
    if hasattr(predictor, "prior_precision"):
        assert there.prior_precision.device == predictor.prior_precision.device
    assert here.device.type == "cpu"
    assert there.latent.id == here.latent.id
    torch.testing.assert_close(here(case.inputs).mean, there(case.inputs).mean.cpu())
