"""Mistakes that neither the sweep of `signatures` nor another test makes."""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import numpy as np
import torch
from torch import nn

import probneural as pn
from probneural import active
from probneural.distributions import DenseRoot, EmpiricalField
from probneural.errors import ArgumentError, DataError, FileError, GridError, ProbneuralError, ShapeError
from probneural.fields import Field
from probneural.grids import interpolation_matrix
from probneural.pairs import FieldPairs
from probneural.training import DataOptions, EarlyStopping, Optimization, RunOptions
from tests.bad_input.world import (
    GRID,
    PLANE,
    SCATTERED,
    Case,
    build_predictor,
    burgers,
    empirical,
    fno,
    gaussian,
    halve,
    model,
    normal,
    pairs,
    refused,
    rescaled,
    select,
    trained,
    truth,
)

NAN = float("nan")
INF = float("inf")

GRIDS = [
    Case(
        "interpolation from scattered points",
        lambda: interpolation_matrix(SCATTERED, normal(2, 1).double()),
        GridError,
        "uniform",
    ),
]

FIELDS = [
    *refused(
        "to",
        pairs().inputs.to,
        (torch.int64, torch.complex64, torch.float16, "toaster", None, 3),
        (DataError, ArgumentError),
        "float32 or float64|device",
    ),
    *refused(
        "from_numpy",
        lambda v: FieldPairs.from_numpy(v, np.zeros((4, 8)), periodic=True),
        (np.zeros(8), np.zeros((4, 2, 8)), np.zeros((3, 8)), np.float64(1.0)),
        ShapeError,
        "inputs|pair",
    ),
    *refused(
        "from_numpy periodic",
        lambda v: FieldPairs.from_numpy(np.zeros((4, 8)), np.zeros((4, 8)), periodic=v),
        (["no"], None, "yes", (True, True), 1),
        (ArgumentError, ShapeError),
        "periodic|grid axes",
    ),
    *refused(
        "from_xarray",
        lambda v: FieldPairs.from_xarray(v, v, periodic=True),
        (np.zeros((4, 8)), 3, "file.nc"),
        DataError,
        "DataArray",
    ),
    *refused(
        "evaluate", lambda v: pn.fields.evaluate(torch.nn.Identity(), v), (torch.zeros(1, 1, 16), None), DataError, "Field"
    ),
]

FUNCTIONALS = [
    *refused("sum with", lambda v: pn.functionals.integral(GRID) + v, (3, None, "a"), DataError, "functionals"),
    *refused("times", lambda v: pn.functionals.integral(GRID) * v, ("a", None, NAN, 1j, True, INF), ArgumentError, "factor"),
]

PROBLEMS = []


def fit(**changes: Any) -> object:
    """Train for one epoch."""
    settings: dict[str, Any] = {"operator": fno(), "train": pairs(), "epochs": 1, "show_progress": False} | changes
    return pn.fit(settings.pop("operator"), settings.pop("train"), **settings)


def complex_pairs() -> Any:
    """A hole in the type system: pairs whose values were made complex behind a Field's back."""
    made = Field(normal(12, 1, 16), GRID)
    object.__setattr__(made, "values", made.values.to(torch.complex64))
    return made


OPERATORS = [
    *refused(
        "forward query",
        lambda v: trained()(normal(1, 1, 16), query=v),
        (16, "here", PLANE),
        GridError,
        "[Gg]rid|dimension|points",
    ),
]

TRAINING = [
    Case(
        "decay of another optimizer", lambda: Optimization(optimizer=torch.optim.SGD, weight_decay=0.1), ArgumentError, "AdamW"
    ),
    Case("lbfgs in half precision", lambda: Optimization(optimizer="lbfgs", precision="float16"), ArgumentError, "lbfgs"),
    Case(
        "nothing to watch",
        lambda: fit(data=DataOptions(validation=0.0), optimization=Optimization(early_stopping=EarlyStopping(patience=2))),
        ArgumentError,
        "validation",
    ),
    Case("no optimizer made", lambda: fit(optimization=Optimization(optimizer=lambda p, lr: 3)), ArgumentError, "optimizer"),
    Case("no schedule made", lambda: fit(optimization=Optimization(schedule=lambda o, steps: 3)), ArgumentError, "schedule"),
    *refused(
        "callbacks",
        lambda v: fit(run=RunOptions(callbacks=v)),
        (3, "print", [print], [pn.training.EachEpoch]),
        ArgumentError,
        "callbacks",
    ),
    *refused("device", lambda v: fit(run=RunOptions(device=v)), ("toaster", 3.5, "meta"), ArgumentError, "device"),
    Case("checkpoint in no folder", lambda: fit(run=RunOptions(checkpoint="/nowhere/at/all")), FileError, "folder"),
    Case("train, complex", lambda: fit(train=FieldPairs(complex_pairs(), pairs().outputs)), DataError, "float"),
    Case("train, other channels", lambda: fit(train=pairs(12, channels=2)), (ShapeError, DataError), "channels|shape"),
    Case("train, other precision", lambda: fit(train=pairs().to(torch.float64)), DataError, "float"),
    Case(
        "train, other dimension",
        lambda: fit(train=FieldPairs(Field(normal(4, 1, 4, 6), PLANE), Field(normal(4, 1, 4, 6), PLANE))),
        (ShapeError, GridError),
        "shape|grid",
    ),
    Case("operator with other outputs", lambda: fit(operator=nn.Conv1d(1, 3, 1)), ShapeError, "predictions"),
    Case("operator made in inference mode", lambda: fit(operator=made_in_inference_mode()), ArgumentError, "inference"),
]


def made_in_inference_mode() -> nn.Module:
    """An operator that autograd refuses."""
    with torch.inference_mode():
        return fno()


HEADS = [
    *refused(
        "ensemble operator",
        lambda v: pn.heads.DeepEnsemble(2, train=halve).fit(v, pairs()),
        (None, lambda x: x),
        ArgumentError,
        "nn.Module",
    ),
    Case(
        "training function that fails",
        lambda: pn.heads.DeepEnsemble(2, train=functools.partial(pn.fit, epoch=1), show_progress=False).fit(fno(), pairs()),
        ProbneuralError,
        "member 0",
    ),
]

NO_VARIANCE = (-1.0, NAN, INF, "1", None, 1j, True, torch.tensor(-1.0), torch.zeros(2), [[1.0]])
NO_LEVEL = (0.0, 1.0, 90, -0.9, NAN, INF, "0.9", None, True, 1j)


def drawn() -> EmpiricalField:
    """An empirical field of so many members that they have quantiles of their own."""
    return EmpiricalField(normal(120, 3, 1, 16), grid=GRID)


PREDICTORS = [
    Case("update, other channels", lambda: build_predictor().update(pairs(channels=2)), ShapeError, "channels"),
]

DISTRIBUTIONS = [
    *[
        case
        for name, u in (("", gaussian), ("empirical ", empirical), ("many members' ", drawn))
        for case in (
            *refused(f"{name}interval", lambda v, u=u: u().interval(v), NO_LEVEL, ArgumentError, "level"),
            *refused(f"{name}interval noise", lambda v, u=u: u().interval(noise=v), NO_VARIANCE, ArgumentError, "noise"),
            *refused(f"{name}quantile", lambda v, u=u: u().quantile(v), (*NO_LEVEL, [[0.5]], [0.5, NAN]), ArgumentError, "q"),
            *refused(f"{name}quantile noise", lambda v, u=u: u().quantile(0.5, noise=v), NO_VARIANCE, ArgumentError, "noise"),
        )
    ],
    *refused(
        "base samples",
        lambda v: gaussian().rsample((2,), base_samples=v),
        (torch.full((2, 5), NAN), torch.full((2, 5), INF), "a", torch.zeros(2, 5, dtype=torch.complex64)),
        DataError,
        "base samples",
    ),
    *refused(
        "DenseRoot",
        DenseRoot,
        (None, np.zeros((1, 1, 2, 2)), torch.zeros(1, 1, 2, 2, dtype=torch.complex64)),
        DataError,
        "root",
    ),
    *refused("index", lambda v: gaussian()[v], (1.5, "a", None, [9]), DataError, "index|rows"),
]

CALIBRATION = [
    *refused(
        "ScaledPredictor",
        lambda v: rescaled(v),
        (torch.zeros(1), torch.ones(2), torch.tensor([NAN]), 2.0, None, "a"),
        (ArgumentError, DataError, ShapeError),
        "scale",
    ),
]

METRICS = [
    Case("score, none", lambda: pn.metrics.score(gaussian()[:0], truth()[:0]), DataError, "one function"),
]


FILES = [
    Case("save to no folder", lambda: pn.save(build_predictor(), "/nowhere/at/all"), FileError, "folder"),
]


def store() -> active.ResultStore:
    """An empty store."""
    return active.ResultStore(tempfile.mkdtemp())


def simulated(**changes: Any) -> object:
    """Simulate two functions in this process."""
    options = active.SimulationOptions(show_progress=False)
    settings: dict[str, Any] = {"store": store(), "options": options} | changes
    return active.simulate(settings.pop("simulator", burgers().solve), settings.pop("inputs", pairs().inputs[:2]), **settings)


MODELS = [
    *refused(
        "X",
        lambda v: model().posterior(v),
        (torch.full((1, 2), 1.5).double(), torch.full((1, 2), NAN).double()),
        (ArgumentError, DataError),
        "design|finite",
    ),
]

SELECTION = [
    Case(
        "labelled, other channels",
        lambda: select(active.RandomSelection(), labelled=pairs(channels=2).inputs),
        ShapeError,
        "channels",
    ),
    Case(
        "fully labelled",
        lambda: select(active.RandomSelection(), labelled=pairs().inputs),
        DataError,
        "unlabelled functions in the pool",
    ),
]

LOOP = [
    Case("store on a file", lambda: active.ResultStore("/dev/null"), FileError, "folder"),
    *refused(
        "key",
        lambda v: store().key(v),
        (None, normal(1, 1, 16), pairs().inputs, Field(torch.full((1, 1, 16), NAN), GRID)),
        DataError,
        "function|Field|finite",
    ),
    *refused("simulator", lambda v: simulated(simulator=v), (None, 3), ArgumentError, "simulator"),
    *refused("simulate store", lambda v: simulated(store=v), (None, 3), ArgumentError, "store|ResultStore"),
]

CASES = [
    *GRIDS,
    *FIELDS,
    *FUNCTIONALS,
    *PROBLEMS,
    *OPERATORS,
    *TRAINING,
    *HEADS,
    *PREDICTORS,
    *DISTRIBUTIONS,
    *CALIBRATION,
    *METRICS,
    *FILES,
    *MODELS,
    *SELECTION,
    *LOOP,
]
