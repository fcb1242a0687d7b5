"""Mistakes with operators, training and heads."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import nn

import probneural as pn
from probneural.errors import (
    ArgumentError,
    DataError,
    FileError,
    GridError,
    ProbneuralError,
    ReadoutError,
    ResolutionError,
    ShapeError,
    UnsupportedError,
)
from probneural.fields import Field
from probneural.pairs import FieldPairs
from probneural.training import Checkpoint, DataOptions, EarlyStopping, Optimization, RunOptions
from tests.bad_input.data import INF, NAN, NO_COUNT, NO_FLAG, NOT_POSITIVE
from tests.bad_input.world import GRID, PLANE, SCATTERED, Case, fno, halve, normal, pairs, refused, trained


def fit(**changes: Any) -> object:
    """Train for one epoch."""
    settings: dict[str, Any] = {"operator": fno(), "train": pairs(), "epochs": 1, "show_progress": False} | changes
    return pn.fit(settings.pop("operator"), settings.pop("train"), **settings)


def complex_pairs() -> Any:
    """A hole in the type system: pairs whose values were made complex behind a Field's back."""
    made = Field(normal(12, 1, 16), GRID)
    object.__setattr__(made, "values", made.values.to(torch.complex64))
    return made


def last_layer(**settings: Any) -> object:
    """Fit the default head."""
    return pn.heads.LastLayerLaplace(**settings).fit(trained(), pairs())


def laplace(**settings: Any) -> object:
    """Fit the read-out's weights."""
    return pn.heads.Laplace(**({"structure": "full", "parameters": ["readout"]} | settings)).fit(trained(), pairs())


def deeponet(**changes: Any) -> object:
    """A small DeepONet."""
    settings: dict[str, Any] = {"sensors": GRID, "basis": 2, "layers": pn.operators.HiddenLayers(width=4, depth=1)} | changes
    return pn.operators.DeepONet(1, 1, **settings)


NAN_PAIRS = FieldPairs(Field(torch.full((12, 1, 16), NAN), GRID), Field(normal(12, 1, 16), GRID))

OPERATORS = [
    *[
        case
        for name in ("in_channels", "out_channels", "width", "depth", "projection", "lifting")
        for case in refused(f"FNO {name}", lambda v, name=name: fno(**{name: v}), (0, 1.5, True, "4"), ArgumentError, name)
    ],
    *refused(
        "modes", lambda v: fno(modes=v), ((), (0,), (2.5,), 16, "16", None, (2, 2, 2, 2), (True,)), ArgumentError, "modes"
    ),
    *refused("periodic", lambda v: fno(periodic=v), ("no", ["no"], (True, True), 1, None), ArgumentError, "periodic"),
    *refused("embeds_position", lambda v: fno(embeds_position=v), NO_FLAG, ArgumentError, "embeds_position"),
    *refused("channel_mlp", lambda v: fno(channel_mlp=v), (-1, 1.5, True, "4"), ArgumentError, "channel_mlp"),
    *refused("continuation", lambda v: fno(continuation=v), ("none", None, True, ["even"]), ArgumentError, "continuation"),
    *refused("forward", trained(), (None, np.zeros((1, 1, 16)), [[[0.0] * 16]], pairs().inputs), DataError, "tensor"),
    *refused(
        "forward",
        trained(),
        (normal(16), normal(1, 16), normal(1, 2, 16), normal(0, 1, 16), normal(1, 1, 4, 4)),
        ShapeError,
        "shape|function",
    ),
    *refused(
        "forward",
        trained(),
        (normal(1, 1, 16).double(), torch.zeros(1, 1, 16, dtype=torch.int64), torch.zeros(1, 1, 16, dtype=torch.complex64)),
        DataError,
        "float32",
    ),
    Case("forward, too coarse", lambda: trained()(normal(1, 1, 4)), ResolutionError, "points"),
    *refused("forward grid", lambda v: trained()(normal(1, 1, 16), grid=v), (16, PLANE, "grid", SCATTERED), GridError, "grid"),
    *refused(
        "forward query",
        lambda v: trained()(normal(1, 1, 16), query=v),
        (16, "here", PLANE),
        GridError,
        "[Gg]rid|dimension|points",
    ),
    *refused("sensors", lambda v: deeponet(sensors=v), (None, 16), GridError, "Grid"),
    *refused("domain", lambda v: deeponet(domain=v), (16, SCATTERED), GridError, "[Gg]rid|domain"),
    *refused("basis", lambda v: deeponet(basis=v), (0, 1.5, True), ArgumentError, "basis"),
    *refused(
        "activation", lambda v: pn.operators.HiddenLayers(activation=v), ("swish2", None, nn.ReLU), ArgumentError, "activation"
    ),
    *refused("layers", lambda v: deeponet(layers=v), (64, None, (64, 64)), ArgumentError, "layers"),
    *refused("coupling", lambda v: deeponet(coupling=v), ("loose", None, ["independent"]), ArgumentError, "coupling"),
    *refused("branching", lambda v: deeponet(branching=v), ("wild", None), ArgumentError, "branching"),
    *refused(
        "POD basis",
        lambda v: pn.operators.PODDeepONet(1, 1, sensors=GRID, out_grid=GRID, basis=v),
        (0, 17, 2.5, "4"),
        ArgumentError,
        "basis|modes",
    ),
    *refused("layers", lambda v: pn.operators.RecurrentOperator(1, 1, layers=v), (32, None, {}), ArgumentError, "layers"),
    *refused(
        "encoder", lambda v: pn.operators.RecurrentOperator(1, 1, encoder=v), (3, (16,), "spectral"), ArgumentError, "encoder"
    ),
    *refused("horizon", lambda v: pn.operators.RecurrentLayers(horizon=v), NO_COUNT, ArgumentError, "horizon"),
    *refused("history", lambda v: pn.operators.SpectralEncoder(modes=(3,), history=v), NO_COUNT, ArgumentError, "history"),
    *refused(
        "solver", lambda v: pn.operators.NeuralODEOperator(1, 1, modes=(3,), solver=v), ("rk4", None), ArgumentError, "solver"
    ),
    *refused("solver time", lambda v: pn.operators.ODESolver(time=v), NOT_POSITIVE, ArgumentError, "time"),
    *refused("solver steps", lambda v: pn.operators.ODESolver(steps=v), NO_COUNT, ArgumentError, "steps"),
    *refused(
        "components",
        lambda v: pn.operators.LinearRegression.fitted(pairs(), components=v),
        NO_COUNT,
        ArgumentError,
        "components",
    ),
    *refused("fitted", pn.operators.LinearRegression.fitted, (None, pairs().inputs, normal(3)), DataError, "FieldPairs"),
    Case("fitted, one pair", lambda: pn.operators.LinearRegression.fitted(pairs()[:1]), DataError, "2 or more"),
    Case("fitted, NaN", lambda: pn.operators.LinearRegression.fitted(NAN_PAIRS), DataError, "finite"),
    *refused(
        "in_grid",
        lambda v: pn.operators.LinearRegression(1, 1, in_grid=v, out_grid=GRID),
        (None, 16, SCATTERED),
        GridError,
        "[Gg]rid",
    ),
]

TRAINING = [
    *refused("epochs", lambda v: fit(epochs=v), (*NO_COUNT, np.float64(2.0), INF), ArgumentError, "epochs"),
    *refused("batch_size", lambda v: DataOptions(batch_size=v), NO_COUNT, ArgumentError, "batch_size"),
    *refused("seed", lambda v: fit(seed=v), (-1, 0.5, "0", None, True), ArgumentError, "seed"),
    *refused("learning_rate", lambda v: fit(learning_rate=v), NOT_POSITIVE, ArgumentError, "learning_rate"),
    *refused(
        "weight_decay", lambda v: Optimization(weight_decay=v), (-0.1, NAN, INF, "0", None, True), ArgumentError, "weight_decay"
    ),
    *refused("optimizer", lambda v: Optimization(optimizer=v), ("adam", 3, None), ArgumentError, "optimizer"),
    *refused("schedule", lambda v: Optimization(schedule=v), ("linear", 3), ArgumentError, "schedule"),
    *refused(
        "gradient_clip", lambda v: Optimization(gradient_clip=v), (0.0, -1.0, NAN, "1", True), ArgumentError, "gradient_clip"
    ),
    *refused("accumulation", lambda v: Optimization(accumulation=v), NO_COUNT, ArgumentError, "accumulation"),
    *refused("averaging", lambda v: Optimization(averaging=v), (0.0, 1.0, NAN, "0.9", True), ArgumentError, "averaging"),
    *refused("precision", lambda v: Optimization(precision=v), ("half", 16), ArgumentError, "precision"),
    *refused("early_stopping", lambda v: Optimization(early_stopping=v), (5, "yes"), ArgumentError, "early_stopping"),
    *refused("patience", lambda v: EarlyStopping(patience=v), NO_COUNT, ArgumentError, "patience"),
    *refused("optimization", lambda v: fit(optimization=v), ("adamw", {}), ArgumentError, "optimization"),
    *refused("data", lambda v: fit(data=v), (2, {}, pairs()), ArgumentError, "data"),
    *refused("run", lambda v: fit(run=v), ("run.safetensors", {}), ArgumentError, "run"),
    *refused("workers", lambda v: DataOptions(workers=v), (-1, 0.5, "2", None, True), ArgumentError, "workers"),
    *refused("prefetch", lambda v: DataOptions(prefetch=v), NO_COUNT, ArgumentError, "prefetch"),
    *refused("steps", lambda v: Checkpoint("run", steps=v), (0, 0.5, "2", True), ArgumentError, "steps"),
    *refused("seconds", lambda v: Checkpoint("run", seconds=v), (-1.0, NAN, "2", True), ArgumentError, "seconds"),
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
        "validation", lambda v: DataOptions(validation=v), (1.0, -0.1, NAN, "0.1", None, True), ArgumentError, "validation"
    ),
    Case("nothing left to train on", lambda: fit(data=DataOptions(validation=0.99)), ArgumentError, "validation"),
    *refused("loss", lambda v: fit(loss=v), (3, "mse"), ArgumentError, "loss"),
    *refused(
        "loss that returns",
        lambda v: fit(loss=lambda p, t, g: v),
        (1.0, None, normal(2), torch.tensor(1.0)),
        ArgumentError,
        "loss",
    ),
    *refused(
        "callbacks",
        lambda v: RunOptions(callbacks=v),
        (3, "print", [print], [pn.training.EachEpoch]),
        ArgumentError,
        "callbacks",
    ),
    *refused("function", lambda v: pn.training.EachEpoch(v), (3, "print", None), ArgumentError, "function"),
    *refused("device", lambda v: fit(run=RunOptions(device=v)), ("toaster", 3.5, "meta"), ArgumentError, "device"),
    *refused("checkpoint", lambda v: RunOptions(checkpoint=v), (3, 1.5, ["a"]), ArgumentError, "checkpoint"),
    Case("checkpoint in no folder", lambda: fit(run=RunOptions(checkpoint="/nowhere/at/all")), FileError, "folder"),
    *refused("show_progress", lambda v: fit(show_progress=v), NO_FLAG, ArgumentError, "show_progress"),
    *refused("operator", lambda v: fit(operator=v), (None, lambda x: x, pn.operators.FNO, "FNO"), ArgumentError, "nn.Module"),
    *refused(
        "operator without parameters",
        lambda v: fit(operator=v),
        (nn.Identity(), fno().requires_grad_(False)),
        ArgumentError,
        "parameters",
    ),
    *refused(
        "train",
        lambda v: fit(train=v),
        (None, normal(4, 1, 16), (pairs().inputs, pairs().outputs), pairs().inputs, [1, 2]),
        DataError,
        "FieldPairs",
    ),
    Case("train, one pair", lambda: fit(train=pairs()[:1]), DataError, "2 or more"),
    Case("train, NaN", lambda: fit(train=NAN_PAIRS), DataError, "finite"),
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
    *refused(
        "relative_l2",
        lambda v: pn.training.relative_l2(v, normal(2, 1, 16), grid=GRID),
        (normal(2, 16), normal(1, 1, 16)),
        ShapeError,
        "predictions",
    ),
]


def made_in_inference_mode() -> nn.Module:
    """An operator that autograd refuses."""
    with torch.inference_mode():
        return fno()


NOISES = (0.0, -1.0, NAN, INF, "1", True, 1j, torch.tensor(1j), [1.0, 2.0], torch.zeros(1), torch.ones(1, 1), {})
PRECISIONS = (0.0, -1.0, NAN, "1", True, torch.tensor(1j))

HEADS = [
    *refused("LastLayerLaplace noise", lambda v: last_layer(noise=v), NOISES, ArgumentError, "noise"),
    *refused(
        "LastLayerLaplace prior_precision",
        lambda v: last_layer(prior_precision=v),
        PRECISIONS,
        ArgumentError,
        "prior_precision",
    ),
    Case("prior_precision of another shape", lambda: last_layer(prior_precision=torch.ones(3)), ShapeError, "prior_precision"),
    *refused(
        "effective_observations",
        lambda v: last_layer(effective_observations=v),
        (0.0, -1.0, NAN, "1", True, torch.ones(2)),
        ArgumentError,
        "effective_observations",
    ),
    *refused(
        "readout", lambda v: last_layer(readout=v), ("nowhere", 3, True), (ReadoutError, ArgumentError), "submodule|readout"
    ),
    *refused(
        "data",
        lambda v: pn.heads.LastLayerLaplace().fit(trained(), v),
        (None, normal(2, 1, 16), pairs().inputs, NAN_PAIRS, pairs()[:0]),
        DataError,
        "FieldPairs|finite|or more",
    ),
    *refused(
        "operator",
        lambda v: pn.heads.LastLayerLaplace().fit(v, pairs()),
        (None, lambda x: x, "FNO", 3),
        ArgumentError,
        "nn.Module",
    ),
    *refused("Laplace operator", lambda v: pn.heads.Laplace().fit(v, pairs()), (None, lambda x: x), ArgumentError, "nn.Module"),
    *refused(
        "kernel operator",
        lambda v: pn.heads.KernelOperator().fit(v, pairs()),
        (lambda x: x, "FNO", 3),
        ArgumentError,
        "nn.Module",
    ),
    *refused(
        "ensemble operator",
        lambda v: pn.heads.DeepEnsemble(2, train=halve).fit(v, pairs()),
        (None, lambda x: x),
        ArgumentError,
        "nn.Module",
    ),
    Case(
        "no read-out",
        lambda: pn.heads.LastLayerLaplace().fit(nn.Sequential(nn.Conv1d(1, 1, 3, padding=1), nn.Tanh()), pairs()),
        ReadoutError,
        "affine",
    ),
    Case(
        "outputs of other channels",
        lambda: pn.heads.LastLayerLaplace().fit(nn.Sequential(nn.Conv1d(1, 3, 1)), pairs()),
        (ShapeError, ReadoutError),
        "outputs|channels",
    ),
    *refused("structure", pn.heads.Laplace, ("round", None, 3, ["full"]), (UnsupportedError, ArgumentError), "structure"),
    *refused("parameters", lambda v: laplace(parameters=v), (["nowhere"], [], 3, [3], "readout"), ArgumentError, "parameter"),
    *refused("Laplace noise", lambda v: laplace(noise=v), NOISES, ArgumentError, "noise"),
    *refused(
        "Laplace prior_precision",
        lambda v: laplace(prior_precision=v),
        (*PRECISIONS, {"nowhere": 1.0}),
        ArgumentError,
        "prior_precision|prior precision",
    ),
    Case(
        "Laplace prior_precision of another shape",
        lambda: laplace(prior_precision=torch.ones(3)),
        ShapeError,
        "prior_precision",
    ),
    *refused("show_progress", lambda v: pn.heads.Laplace(show_progress=v), NO_FLAG, ArgumentError, "show_progress"),
    *refused("rank", lambda v: pn.heads.LowRank(rank=v), (0, -1, 1.5, True, "3"), ArgumentError, "rank"),
    *refused("probes", lambda v: pn.heads.Kronecker(probes=v), (0, 1.5, True), ArgumentError, "probes"),
    *refused(
        "eigenvalue_correction",
        lambda v: pn.heads.Kronecker(eigenvalue_correction=v),
        ("no", 1, None),
        ArgumentError,
        "eigenvalue_correction",
    ),
    *refused(
        "variance_estimation",
        lambda v: pn.heads.Laplace(variance_estimation=v),
        (3, "much", None),
        ArgumentError,
        "variance_estimation",
    ),
    *refused(
        "exact_passes", lambda v: pn.curvature.VarianceEstimation(exact_passes=v), (-1, 1.5, "3"), ArgumentError, "exact_passes"
    ),
    *[
        case
        for name in ("sketch", "probes", "chunk")
        for case in refused(
            name, lambda v, name=name: pn.curvature.VarianceEstimation(**{name: v}), (0, 1.5, "3"), ArgumentError, name
        )
    ],
    *refused("kernel", pn.heads.KernelOperator, ("fast", None, 3, ["rbf"]), ArgumentError, "rbf"),
    *[
        case
        for name in ("input_components", "groups", "iterations")
        for case in refused(
            name, lambda v, name=name: pn.heads.KernelOperator(**{name: v}), (0, 1.5, True, "4"), ArgumentError, name
        )
    ],
    *refused(
        "learns_relevances", lambda v: pn.heads.KernelOperator(learns_relevances=v), NO_FLAG, ArgumentError, "learns_relevances"
    ),
    Case("two pairs", lambda: pn.heads.KernelOperator().fit(None, pairs()[:2]), DataError, "three"),
    *refused("members", lambda v: pn.heads.DeepEnsemble(v, train=halve), NO_COUNT, ArgumentError, "members"),
    *refused(
        "train", lambda v: pn.heads.DeepEnsemble(2, train=v), (None, 3, "fit"), ArgumentError, "train=, a training function"
    ),
    *refused(
        "reinitialise",
        lambda v: pn.heads.DeepEnsemble(2, train=halve, reinitialise=v),
        (3, "xavier"),
        ArgumentError,
        "reinitialise",
    ),
    *refused(
        "keeps_operator",
        lambda v: pn.heads.DeepEnsemble(2, train=halve, keeps_operator=v),
        NO_FLAG,
        ArgumentError,
        "keeps_operator",
    ),
    *refused(
        "workers", lambda v: pn.heads.DeepEnsemble(2, train=halve, workers=v), (0, 1.5, True, "2"), ArgumentError, "workers"
    ),
    *refused(
        "show_progress",
        lambda v: pn.heads.DeepEnsemble(2, train=halve, show_progress=v),
        NO_FLAG,
        ArgumentError,
        "show_progress",
    ),
    Case(
        "training function that fails",
        lambda: pn.heads.DeepEnsemble(2, train=functools.partial(pn.fit, epoch=1), show_progress=False).fit(fno(), pairs()),
        ProbneuralError,
        "member 0",
    ),
    *refused(
        "anchored noise",
        lambda v: pn.heads.AnchoredEnsemble(2, prior_precision=1.0, noise=v).fit(trained(), pairs()),
        (None, 0.0, NAN, "1", True),
        ArgumentError,
        "noise",
    ),
    *refused(
        "max_iterations",
        lambda v: pn.heads.LevenbergMarquardt(max_iterations=v),
        (0, 1.5, "9", True),
        ArgumentError,
        "max_iterations",
    ),
    *refused(
        "tolerance",
        lambda v: pn.heads.LevenbergMarquardt(tolerance=v),
        (0.0, 1.0, NAN, "0", None),
        ArgumentError,
        "tolerance",
    ),
    *refused(
        "method",
        lambda v: pn.heads.BayesianLastLayer(method=v),
        ("gibbs", None, ["nuts"]),
        (UnsupportedError, ArgumentError),
        "method",
    ),
    *refused("samples", lambda v: pn.heads.NUTS(samples=v), (3, 10.5, True), ArgumentError, "samples"),
    *refused(
        "infer_hyperparameters",
        lambda v: pn.heads.NUTS(infer_hyperparameters=v),
        NO_FLAG,
        ArgumentError,
        "infer_hyperparameters",
    ),
    *refused("steps", lambda v: pn.heads.VariationalInference(steps=v), (0, 1.5, True), ArgumentError, "steps"),
]

CASES = [*OPERATORS, *TRAINING, *HEADS]
