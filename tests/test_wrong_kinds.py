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
from probneural.errors import ArgumentError, DataError, GridError, LatentError, ShapeError
from probneural.fields import Field
from probneural.pairs import FieldPairs

pytestmark = pytest.mark.bad_input
KINDS = (ArgumentError, DataError, GridError, LatentError, ShapeError)
BURGERS = pn.problems.Burgers(random_field=pn.problems.GaussianRandomField(1, 3), design_dim=2)
TRAIN, TEST = BURGERS.sample(12, resolution=16, seed=0), BURGERS.sample(3, resolution=16, seed=1)
GRID = TEST.outputs.grid
VALUES, ARRAY = TEST.inputs.values, TEST.inputs.values.numpy()
PROBE = pn.functionals.sensors(GRID, [[0.25], [0.75]])
LOADER = DataLoader(TensorDataset(TRAIN.inputs.values, TRAIN.outputs.values), batch_size=4)
LAST, DIAGONAL, KERNEL = pn.heads.LastLayerLaplace(), pn.heads.Laplace(structure="diagonal"), pn.heads.KernelOperator()
ENSEMBLE = pn.heads.DeepEnsemble(2, train=pn.fit, show_progress=False)
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
def build_predictor() -> Predictor:
    return LAST.fit(operator(), TRAIN)


@cache
def field() -> GaussianField:
    u = build_predictor()(TEST.inputs)
    assert isinstance(u, GaussianField)
    return u


def encode(design: Tensor) -> Field:
    return BURGERS.encode(design.float(), grid=GRID)


def fit(operator: object, data: object = TRAIN, **options: object) -> object:
    return pn.fit(operator, data, epochs=1, show_progress=False, **options)  # type: ignore[arg-type]


def simulated(simulator: object, store: object = "folder") -> object:
    return pn.active.simulate(simulator, TEST.inputs, store=store)  # type: ignore[arg-type]


CASES: dict[str, Callable[[], object]] = {
    "operator(array)": lambda: operator()(ARRAY),
    "operator(field)": lambda: operator()(TEST.inputs),
    "operator(list)": lambda: operator()(ARRAY.tolist()),
    "operator(None)": lambda: operator()(None),
    "operator(grid=size)": lambda: operator()(VALUES, grid=16),
    "operator(grid=shape)": lambda: operator()(VALUES, grid=(16,)),
    "operator(query=size)": lambda: operator()(VALUES, query=32),
    "operator(query=points)": lambda: operator()(VALUES, query=GRID.points),
    "solve(tensor)": lambda: BURGERS.solve(VALUES),
    "solve(pairs)": lambda: BURGERS.solve(TEST),
    "encode(list)": lambda: BURGERS.encode([[0.5, 0.5]], grid=GRID),
    "encode(grid=size)": lambda: BURGERS.encode(torch.rand(1, 2), grid=16),
    "Field(array)": lambda: Field(ARRAY, GRID),
    "Field(shape)": lambda: Field(VALUES, (16,)),
    "FieldPairs(tensors)": lambda: FieldPairs(VALUES, VALUES),
    "from_numpy(field)": lambda: FieldPairs.from_numpy(TEST.inputs, TEST.outputs, grid=GRID),
    "from_numpy(grid=shape)": lambda: FieldPairs.from_numpy(ARRAY, ARRAY, grid=(16,)),
    "from_numpy(out_grid)": lambda: FieldPairs.from_numpy(ARRAY, ARRAY, grid=GRID, out_grid=16),
    "resample(size)": lambda: TEST.inputs.resample(32),
    "fit(loader)": lambda: fit(operator(), LOADER),
    "fit(tuple)": lambda: fit(operator(), (TRAIN.inputs, TRAIN.outputs)),
    "fit(problem)": lambda: fit(operator(), BURGERS),
    "fit(swapped)": lambda: fit(TRAIN, operator()),
    "fit(class)": lambda: fit(pn.operators.FNO),
    "fit(function)": lambda: fit(torch.sin),
    "fit(predictor)": lambda: fit(build_predictor()),
    "fit(loss=name)": lambda: fit(operator(), loss="mse"),
    "fit(loss=MSELoss)": lambda: fit(operator(), loss=torch.nn.MSELoss()),
    "fit(loss=field)": lambda: fit(operator(), loss=lambda a, b, grid: a - b),
    "fit(loss=number)": lambda: fit(operator(), loss=lambda a, b, grid: 1.0),
    "LastLayer(function)": lambda: LAST.fit(torch.sin, TRAIN),
    "LastLayer(None)": lambda: LAST.fit(None, TRAIN),
    "LastLayer(predictor)": lambda: LAST.fit(build_predictor(), TRAIN),
    "LastLayer(loader)": lambda: LAST.fit(operator(), LOADER),
    "Laplace(class)": lambda: DIAGONAL.fit(pn.operators.FNO, TRAIN),
    "Laplace(field)": lambda: DIAGONAL.fit(operator(), TRAIN.inputs),
    "ensemble(list)": lambda: ENSEMBLE.fit([operator(), operator()], TRAIN),
    "ensemble(loader)": lambda: ENSEMBLE.fit(operator(), LOADER),
    "anchored(function)": lambda: ANCHORED.fit(torch.sin, TRAIN),
    "kernel(function)": lambda: KERNEL.fit(torch.sin, TRAIN),
    "kernel(swapped)": lambda: KERNEL.fit(TRAIN, None),
    "predict(tensor)": lambda: build_predictor()(VALUES),
    "predict(pairs)": lambda: build_predictor()(TEST),
    "predict(query=size)": lambda: build_predictor()(TEST.inputs, 32),
    "draw(array)": lambda: build_predictor().draw(0)(ARRAY),
    "draw(field)": lambda: build_predictor().draw(0)(TEST.inputs),
    "scale(operator)": lambda: SCALE.fit(operator(), TRAIN),
    "scale(loader)": lambda: SCALE.fit(build_predictor(), LOADER),
    "scale(distribution)": lambda: SCALE.fit(field(), TRAIN),
    "band(operator)": lambda: BAND.fit(operator(), TRAIN),
    "band(field)": lambda: BAND.fit(build_predictor(), TRAIN.inputs),
    "apply(function)": lambda: field().apply(lambda values: values.mean()),
    "apply(maker)": lambda: field().apply(pn.functionals.integral),
    "apply(name)": lambda: field().apply("integral"),
    "apply(matrix)": lambda: field().apply(torch.ones(1, 16)),
    "constrain(function)": lambda: field().constrain(torch.mean, torch.zeros(3, 1, 1)),
    "constrain(field)": lambda: field().constrain(PROBE, TEST.outputs),
    "condition(function)": lambda: field().condition(torch.mean, torch.zeros(3, 1, 1), noise=0.1),
    "log_prob(field)": lambda: field().log_prob(TEST.outputs, noise=0.1),
    "under(field)": lambda: field().under(field()),
    "under(None)": lambda: field().under(None),
    "functional(field)": lambda: PROBE(TEST.outputs),
    "functional(distribution)": lambda: PROBE(field()),
    "functional + number": lambda: PROBE + 1,
    "sensors(field)": lambda: pn.functionals.sensors(TEST.outputs, [[0.25]]),
    "integral(size)": lambda: pn.functionals.integral(16),
    "derivative(field)": lambda: pn.functionals.derivative(TEST.outputs),
    "stack(one)": lambda: pn.functionals.stack(PROBE),
    "stack(functions)": lambda: pn.functionals.stack([torch.mean]),
    "score(tensor)": lambda: pn.metrics.score(VALUES, TEST.outputs),
    "score(predictor)": lambda: pn.metrics.score(build_predictor(), TEST.outputs),
    "score(truth=tensor)": lambda: pn.metrics.score(field(), VALUES),
    "score(truth=pairs)": lambda: pn.metrics.score(field(), TEST),
    "relative_l2(tensor)": lambda: pn.metrics.relative_l2(VALUES, TEST.outputs),
    "rmse(truth=tensor)": lambda: pn.metrics.rmse(TEST.outputs, VALUES),
    "OperatorModel(operator)": lambda: pn.active.OperatorModel(operator(), encode=encode, functional=PROBE),
    "OperatorModel(encode=problem)": lambda: pn.active.OperatorModel(build_predictor(), encode=BURGERS, functional=PROBE),
    "OperatorModel(functional=function)": lambda: pn.active.OperatorModel(
        build_predictor(), encode=encode, functional=torch.mean
    ),
    "simulate(name)": lambda: simulated("solver"),
    "simulate(store=path)": lambda: simulated(BURGERS.solve, Path("x")),
}
"""Objects of the wrong kind at each verb of the program."""


@pytest.mark.parametrize("call", CASES.values(), ids=list(CASES))
def test_a_wrong_kind_of_object_gets_a_typed_error(call: Callable[[], object]) -> None:
    """It says what was expected, what came (by its type, or as it is written), and what to do."""
    with pytest.raises(KINDS) as caught:
        call()
    error = caught.value
    assert error.expected.split()[0] in ("a", "an", "encode", "predictor", "functional", "values", "design"), error.expected
    came = (
        "Tensor",
        "ndarray",
        "Field",
        "type",
        "class",
        "None",
        "int",
        "str",
        "float",
        "function",
        "Readings",
        "(",
        "'",
        "1.0",
    )
    assert any(word in error.got for word in came), error.got
    assert len(error.remedy) > 10


COARSE = BURGERS.sample(12, resolution=8, seed=0)
BOTH = [COARSE, TRAIN]
ONE_GRID: dict[str, Callable[[], object]] = {
    "last layer": lambda: LAST.fit(operator(), BOTH),  # type: ignore[arg-type]
    "Laplace": lambda: DIAGONAL.fit(operator(), BOTH),  # type: ignore[arg-type]
    "ensemble": lambda: ENSEMBLE.fit(operator(), tuple(BOTH)),  # type: ignore[arg-type]
    "kernel": lambda: KERNEL.fit(None, BOTH),  # type: ignore[arg-type]
    "scale": lambda: SCALE.fit(build_predictor(), BOTH),  # type: ignore[arg-type]
    "band": lambda: BAND.fit(build_predictor(), BOTH),  # type: ignore[arg-type]
    "novelty": lambda: pn.calibration.Novelty().fit(build_predictor(), BOTH),  # type: ignore[arg-type]
    "scores": lambda: pn.metrics.score_pairs(build_predictor(), BOTH),  # type: ignore[arg-type]
}
"""What takes one data set, given several that training takes."""


@pytest.mark.parametrize("call", ONE_GRID.values(), ids=list(ONE_GRID))
def test_several_resolutions_are_for_training_alone(call: Callable[[], object]) -> None:
    fit(operator(), BOTH)
    with pytest.raises(DataError, match="one Dataset as .* data, whose functions have one grid") as caught:
        call()
    assert caught.value.got in ("a list of 2, which only pn.fit takes", "a tuple of 2, which only pn.fit takes")
    assert "give the one on the grid that you predict on" in caught.value.remedy


def test_arrays_are_taken_where_numbers_are_wanted() -> None:
    zeros = np.zeros((3, 1, 2))
    torch.testing.assert_close(
        field().condition(PROBE, zeros, noise=0.1).mean, field().condition(PROBE, torch.from_numpy(zeros), noise=0.1).mean
    )
    torch.testing.assert_close(PROBE(ARRAY), PROBE(VALUES))
