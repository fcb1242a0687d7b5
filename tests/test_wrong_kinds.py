"""Beginner's mistakes in the five-minute program: an object of the wrong kind at each of its verbs gets a typed error."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import probneural as pn
from probneural.distributions import GaussianField, Predictor
from probneural.errors import ArgumentError, DataError, GridError, LatentError, ProbneuralError, ShapeError
from probneural.fields import Field, FieldPairs

pytestmark = pytest.mark.bad_input
BURGERS = pn.problems.Burgers(modes=3, design_dim=2)
TRAIN, TEST = BURGERS.sample(12, resolution=16, seed=0), BURGERS.sample(3, resolution=16, seed=1)
GRID = TEST.outputs.grid
VALUES, ARRAY = TEST.inputs.values, TEST.inputs.values.numpy()
PROBE = pn.functionals.sensors(GRID, [[0.25], [0.75]])
LOADER = DataLoader(TensorDataset(TRAIN.inputs.values, TRAIN.outputs.values), batch_size=4)
LAST, DIAGONAL, KERNEL = pn.heads.LastLayerLaplace(), pn.heads.Laplace(structure="diagonal"), pn.heads.KernelOperator()
ENSEMBLE = pn.heads.DeepEnsemble(2, train=pn.fit, progress=False)
ANCHORED = pn.heads.AnchoredEnsemble(2, noise=0.1, prior_precision=1.0)
SCALE, BAND = pn.calibration.VarianceScale(), pn.calibration.SimultaneousBand(level=0.5)


@cache
def operator() -> pn.operators.FNO:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = pn.operators.FNO(in_channels=1, out_channels=1, modes=(4,), width=4, depth=1, projection=4)
    pn.fit(module, TRAIN, epochs=1, show_progress=False)
    return module


@cache
def predictor() -> Predictor:
    return LAST.fit(operator(), TRAIN)


@cache
def field() -> GaussianField:
    u = predictor()(TEST.inputs)
    assert isinstance(u, GaussianField)
    return u


def encode(design: Tensor) -> Field:
    return BURGERS.encode(design.float(), grid=GRID)


def fit(operator: object, data: object = TRAIN, **options: object) -> object:
    return pn.fit(operator, data, epochs=1, show_progress=False, **options)  # type: ignore[arg-type]


def simulated(simulator: object, store: object = "folder") -> object:
    return pn.active.simulate(simulator, TEST.inputs, store=store)  # type: ignore[arg-type]


MODULE = "expected an nn.Module as operator; got "
PAIRS = "expected FieldPairs; got an object of type "
TENSOR = " as a tensor; got an object of type "
FUNCTIONAL = "expected a Functional; got "
CASES: list[tuple[str, Callable[[], object], type[ProbneuralError], str]] = [
    # an operator is called with tensors, and told where they live by grids
    ("operator(array)", lambda: operator()(ARRAY), DataError, "values" + TENSOR + "ndarray; convert arrays"),
    ("operator(field)", lambda: operator()(TEST.inputs), DataError, "type Field; .*field.values"),
    ("operator(list)", lambda: operator()(ARRAY.tolist()), DataError, TENSOR + "list"),
    ("operator(None)", lambda: operator()(None), DataError, "as a tensor; got None"),
    ("operator(grid=size)", lambda: operator()(VALUES, grid=16), GridError, "a Grid as grid; got 16; make one with"),
    ("operator(grid=shape)", lambda: operator()(VALUES, grid=(16,)), GridError, "a Grid as grid; got .* tuple"),
    ("operator(query=size)", lambda: operator()(VALUES, query=32), GridError, "a Grid as query; got 32"),
    ("operator(query=points)", lambda: operator()(VALUES, query=GRID.points), GridError, "query; got .* Tensor"),
    # data
    ("solve(tensor)", lambda: BURGERS.solve(VALUES), DataError, "a Field of inputs; got .* Tensor; wrap a tensor"),
    ("solve(pairs)", lambda: BURGERS.solve(TEST), DataError, "a Field of inputs; .*take pairs.inputs"),
    ("encode(list)", lambda: BURGERS.encode([[0.5, 0.5]], grid=GRID), DataError, "a design" + TENSOR + "list"),
    ("encode(grid=size)", lambda: BURGERS.encode(torch.rand(1, 2), grid=16), GridError, "a Grid as grid; got 16"),
    ("Field(array)", lambda: Field(ARRAY, GRID), DataError, "float32 or float64 tensor; .*ndarray"),
    ("Field(shape)", lambda: Field(VALUES, (16,)), GridError, "expected a Grid; .*tuple"),
    ("FieldPairs(tensors)", lambda: FieldPairs(VALUES, VALUES), DataError, "two Fields; .*Tensor"),
    (
        "from_numpy(field)",
        lambda: FieldPairs.from_numpy(TEST.inputs, TEST.outputs, grid=GRID),
        DataError,
        "an array of numbers",
    ),
    ("from_numpy(grid=shape)", lambda: FieldPairs.from_numpy(ARRAY, ARRAY, grid=(16,)), GridError, "a Grid as grid; .*tuple"),
    (
        "from_numpy(out_grid)",
        lambda: FieldPairs.from_numpy(ARRAY, ARRAY, grid=GRID, out_grid=16),
        GridError,
        "as out_grid; got 16",
    ),
    ("resample(size)", lambda: TEST.inputs.resample(32), GridError, "a Grid as target; got 32"),
    # training
    ("fit(loader)", lambda: fit(operator(), LOADER), DataError, PAIRS + "DataLoader; pair the whole data set"),
    ("fit(tuple)", lambda: fit(operator(), (TRAIN.inputs, TRAIN.outputs)), DataError, PAIRS + "tuple"),
    ("fit(problem)", lambda: fit(operator(), BURGERS), DataError, PAIRS + "Burgers"),
    ("fit(swapped)", lambda: fit(TRAIN, operator()), ArgumentError, MODULE + "an object of type FieldPairs"),
    ("fit(class)", lambda: fit(pn.operators.FNO), ArgumentError, MODULE + "the class FNO; build the class first"),
    ("fit(function)", lambda: fit(torch.sin), ArgumentError, MODULE),
    ("fit(predictor)", lambda: fit(predictor()), ArgumentError, "LastLayerPredictor; .*a predictor is no operator"),
    ("fit(loss=name)", lambda: fit(operator(), loss="mse"), ArgumentError, "a loss called as loss.*; got 'mse'"),
    (
        "fit(loss=MSELoss)",
        lambda: fit(operator(), loss=torch.nn.MSELoss()),
        ArgumentError,
        "MSELoss: .*wrap one of two arguments",
    ),
    ("fit(loss=field)", lambda: fit(operator(), loss=lambda a, b, grid: a - b), ShapeError, r"got \(11, 1, 16\); average over"),
    ("fit(loss=number)", lambda: fit(operator(), loss=lambda a, b, grid: 1.0), ShapeError, "got 1.0"),
    # heads
    ("LastLayer(function)", lambda: LAST.fit(torch.sin, TRAIN), ArgumentError, MODULE),
    ("LastLayer(None)", lambda: LAST.fit(None, TRAIN), ArgumentError, MODULE + "None"),
    ("LastLayer(predictor)", lambda: LAST.fit(predictor(), TRAIN), ArgumentError, MODULE),
    ("LastLayer(loader)", lambda: LAST.fit(operator(), LOADER), DataError, PAIRS + "DataLoader"),
    ("Laplace(class)", lambda: DIAGONAL.fit(pn.operators.FNO, TRAIN), ArgumentError, MODULE + "the class FNO"),
    ("Laplace(field)", lambda: DIAGONAL.fit(operator(), TRAIN.inputs), DataError, PAIRS + "Field"),
    ("ensemble(list)", lambda: ENSEMBLE.fit([operator(), operator()], TRAIN), ArgumentError, MODULE + "an object of type list"),
    ("ensemble(loader)", lambda: ENSEMBLE.fit(operator(), LOADER), DataError, PAIRS + "DataLoader"),
    ("anchored(function)", lambda: ANCHORED.fit(torch.sin, TRAIN), ArgumentError, MODULE),
    ("kernel(function)", lambda: KERNEL.fit(torch.sin, TRAIN), ArgumentError, MODULE),
    ("kernel(swapped)", lambda: KERNEL.fit(TRAIN, None), ArgumentError, MODULE + "an object of type FieldPairs"),
    # predictors and calibration
    ("predict(tensor)", lambda: predictor()(VALUES), DataError, "a Field of inputs; .*Tensor; wrap a tensor"),
    ("predict(pairs)", lambda: predictor()(TEST), DataError, "a Field of inputs; .*take pairs.inputs"),
    ("predict(query=size)", lambda: predictor()(TEST.inputs, 32), GridError, "a Grid to evaluate on; got 32"),
    ("draw(array)", lambda: predictor().draw(0)(ARRAY), DataError, TENSOR + "ndarray"),
    ("draw(field)", lambda: predictor().draw(0)(TEST.inputs), DataError, TENSOR + "Field"),
    ("scale(operator)", lambda: SCALE.fit(operator(), TRAIN), DataError, "a Predictor; .*fit a head first"),
    ("scale(loader)", lambda: SCALE.fit(predictor(), LOADER), DataError, PAIRS + "DataLoader"),
    ("scale(distribution)", lambda: SCALE.fit(field(), TRAIN), DataError, "a Predictor; .*GaussianField"),
    ("band(operator)", lambda: BAND.fit(operator(), TRAIN), DataError, "a Predictor"),
    ("band(field)", lambda: BAND.fit(predictor(), TRAIN.inputs), DataError, PAIRS + "Field"),
    # field distributions and functionals
    (
        "apply(function)",
        lambda: field().apply(lambda values: values.mean()),
        ArgumentError,
        FUNCTIONAL + ".*function; make one",
    ),
    ("apply(maker)", lambda: field().apply(pn.functionals.integral), ArgumentError, FUNCTIONAL),
    ("apply(name)", lambda: field().apply("integral"), ArgumentError, FUNCTIONAL + "'integral'"),
    ("apply(matrix)", lambda: field().apply(torch.ones(1, 16)), ArgumentError, FUNCTIONAL + "an object of type Tensor"),
    ("constrain(function)", lambda: field().constrain(torch.mean, torch.zeros(3, 1, 1)), ArgumentError, FUNCTIONAL),
    ("constrain(field)", lambda: field().constrain(PROBE, TEST.outputs), DataError, TENSOR + "Field"),
    ("condition(function)", lambda: field().condition(torch.mean, torch.zeros(3, 1, 1), noise=0.1), ArgumentError, FUNCTIONAL),
    ("condition(array)", lambda: field().condition(PROBE, np.zeros((3, 1, 2)), noise=0.1), DataError, TENSOR + "ndarray"),
    ("log_prob(field)", lambda: field().log_prob(TEST.outputs, noise=0.1), DataError, TENSOR + "Field"),
    ("under(field)", lambda: field().under(field()), LatentError, "a Latent; .*GaussianField; .*v.latent"),
    ("under(None)", lambda: field().under(None), LatentError, "a Latent; got None"),
    ("functional(field)", lambda: PROBE(TEST.outputs), DataError, "values" + TENSOR + "Field; .*field.values"),
    ("functional(array)", lambda: PROBE(ARRAY), DataError, TENSOR + "ndarray"),
    ("functional(distribution)", lambda: PROBE(field()), DataError, TENSOR + "GaussianField"),
    ("functional + number", lambda: PROBE + 1, ArgumentError, FUNCTIONAL + "1"),
    ("sensors(field)", lambda: pn.functionals.sensors(TEST.outputs, [[0.25]]), GridError, "a Grid as grid; .*field.grid"),
    ("integral(size)", lambda: pn.functionals.integral(16), GridError, "a Grid as grid; got 16"),
    ("derivative(field)", lambda: pn.functionals.derivative(TEST.outputs), GridError, "a Grid as grid"),
    ("stack(one)", lambda: pn.functionals.stack(PROBE), ArgumentError, "a list of functionals; got .*Readings"),
    ("stack(functions)", lambda: pn.functionals.stack([torch.mean]), ArgumentError, FUNCTIONAL),
    # scores and models
    (
        "score(tensor)",
        lambda: pn.metrics.score(VALUES, TEST.outputs),
        DataError,
        "a FieldDistribution; .*what a predictor returns",
    ),
    ("score(predictor)", lambda: pn.metrics.score(predictor(), TEST.outputs), DataError, "a FieldDistribution; .*Predictor"),
    ("score(truth=tensor)", lambda: pn.metrics.score(field(), VALUES), DataError, "a Field of true functions; .*Tensor"),
    (
        "score(truth=pairs)",
        lambda: pn.metrics.score(field(), TEST),
        DataError,
        "true functions; .*take pairs.inputs or pairs.outputs",
    ),
    ("relative_l2(tensor)", lambda: pn.metrics.relative_l2(VALUES, TEST.outputs), DataError, "a Field of predictions"),
    ("rmse(truth=tensor)", lambda: pn.metrics.rmse(TEST.outputs, VALUES), DataError, "a Field of true functions"),
    (
        "OperatorModel(operator)",
        lambda: pn.active.OperatorModel(operator(), encode=encode, functional=PROBE),
        ArgumentError,
        "to be a Predictor",
    ),
    (
        "OperatorModel(encode=problem)",
        lambda: pn.active.OperatorModel(predictor(), encode=BURGERS, functional=PROBE),
        ArgumentError,
        "encode as a function of designs",
    ),
    (
        "OperatorModel(functional=function)",
        lambda: pn.active.OperatorModel(predictor(), encode=encode, functional=torch.mean),
        ArgumentError,
        "to be a Functional",
    ),
    ("simulate(name)", lambda: simulated("solver"), ArgumentError, "a simulator, called with a Field; got 'solver'"),
    ("simulate(store=path)", lambda: simulated(BURGERS.solve, Path("x")), ArgumentError, "a ResultStore as store"),
]


@pytest.mark.parametrize(("call", "kind", "says"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_wrong_kind_of_object_gets_a_typed_error(call: Callable[[], object], kind: type[ProbneuralError], says: str) -> None:
    with pytest.raises(kind, match=says) as caught:
        call()
    assert type(caught.value) is kind
    assert len(caught.value.remedy) > 10
