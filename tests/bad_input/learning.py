"""Mistakes with BoTorch models, selectors, stores and the learning loop."""

from __future__ import annotations

import tempfile
from typing import Any

import torch

import probneural as pn
from probneural import active
from probneural.active.botorch_models.conditioning import observation_variance
from probneural.active.information.observation import observation_weights
from probneural.active.selection.pool_features import FeatureSketch
from probneural.errors import ArgumentError, DataError, FileError, GridError, ShapeError, UnsupportedError
from probneural.fields import Field
from tests.bad_input.data import INF, NAN, NO_COUNT, NO_FLAG
from tests.bad_input.world import (
    GRID,
    Case,
    build_predictor,
    burgers,
    designs,
    encode,
    ensemble,
    gaussian,
    halve,
    model,
    normal,
    pairs,
    probe,
    refused,
    select,
)


def store() -> active.ResultStore:
    """An empty store."""
    return active.ResultStore(tempfile.mkdtemp())


def learner(**changes: Any) -> object:
    """A loop over twelve functions."""
    settings: dict[str, Any] = {
        "pool": pairs().inputs,
        "training": active.OperatorTraining(torch.nn.Conv1d(1, 1, 1), halve),
        "plan": active.LearningPlan(initial=4, batch=2),
        "simulation": active.SimulationOptions(show_progress=False),
        "simulator": burgers(),
        "head": pn.heads.LastLayerLaplace(),
        "acquisition": active.RandomSelection(),
    } | changes
    parts = [settings.pop(name) for name in ("simulator", "head")]
    return active.ActiveLearner(*parts, store=settings.pop("store", store()), **settings)


def simulated(**changes: Any) -> object:
    """Simulate two functions in this process."""
    settings: dict[str, Any] = {"store": store(), "show_progress": False} | changes
    return active.simulate(settings.pop("simulator", burgers().solve), settings.pop("inputs", pairs().inputs[:2]), **settings)


MODELS = [
    *refused(
        "predictor",
        lambda v: active.OperatorModel(v, encode=encode, functional=probe()),
        (None, gaussian()),
        DataError,
        "Predictor",
    ),
    *refused(
        "encode",
        lambda v: active.OperatorModel(build_predictor(), encode=v, functional=probe()),
        (None, 3),
        ArgumentError,
        "encode",
    ),
    *refused(
        "functional",
        lambda v: active.OperatorModel(build_predictor(), encode=encode, functional=v),
        (None, torch.mean, normal(2, 16)),
        DataError,
        "Functional",
    ),
    *refused(
        "noise",
        lambda v: active.OperatorModel(build_predictor(), encode=encode, functional=probe(), noise=v),
        (-1.0, NAN, "1", True, 1j),
        ArgumentError,
        "noise",
    ),
    *refused(
        "moment_matched",
        lambda v: active.OperatorModel(ensemble(), encode=encode, functional=probe(), moment_matched=v),
        NO_FLAG,
        ArgumentError,
        "moment_matched",
    ),
    *refused(
        "X",
        lambda v: model().posterior(v),
        (None, [[0.5, 0.5]], torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.complex64)),
        DataError,
        "designs|X|tensor",
    ),
    *refused("X", lambda v: model().posterior(v), (torch.zeros(2), torch.tensor(0.5)), ShapeError, "designs|X"),
    *refused(
        "X",
        lambda v: model().posterior(v),
        (torch.full((1, 2), 1.5).double(), torch.full((1, 2), NAN).double()),
        (ArgumentError, DataError),
        "design|finite",
    ),
    *refused(
        "output_indices",
        lambda v: model().posterior(designs(3), output_indices=v),
        ([2], [-3], [0.5], ["a"], 0),
        ArgumentError,
        "output",
    ),
    *refused(
        "observation_noise",
        lambda v: model().posterior(designs(3), observation_noise=v),
        ("yes", 3, None),
        ArgumentError,
        "observation_noise",
    ),
    *refused(
        "observation_noise",
        lambda v: model().posterior(designs(3), observation_noise=v),
        (torch.tensor(-1.0), torch.tensor(NAN)),
        ArgumentError,
        "noise",
    ),
    *refused(
        "Y",
        lambda v: model().condition_on_observations(designs(3), v),
        (None, normal(3), normal(3, 1), [[0.0, 0.0]] * 3),
        (ShapeError, DataError),
        "Y",
    ),
    Case("Y, NaN", lambda: model().condition_on_observations(designs(3), torch.full((3, 2), NAN)), DataError, "finite"),
    *refused(
        "Y noise",
        lambda v: model().condition_on_observations(designs(3), normal(3, 2), noise=v),
        (0.0, -1.0, NAN, "1", True, 1j),
        ArgumentError,
        "noise",
    ),
    *refused("sampler", lambda v: model().fantasize(designs(3), v), (None, 64), ArgumentError, "sampler"),
    *refused("count of draws", lambda v: active.OperatorDraws(model(), v), (0, 1.5, True, "3"), ArgumentError, "draws"),
    *refused("seed of draws", lambda v: active.OperatorDraws(model(), seed=v), (0.5, "0", True), ArgumentError, "seed"),
    Case(
        "ensemble conditioned",
        lambda: active.OperatorModel(ensemble(), encode=encode, functional=probe()).condition_on_observations(
            designs(3), normal(3, 2)
        ),
        UnsupportedError,
        "ensemble|Gaussian",
    ),
    *refused(
        "observation_variance",
        lambda v: observation_variance(build_predictor(), v),
        (None, torch.mean),
        DataError,
        "Functional",
    ),
    *refused(
        "observation_weights",
        lambda v: observation_weights(build_predictor(), GRID, noise=v),
        (0.0, -1.0, NAN, "1", True, 1j),
        ArgumentError,
        "noise",
    ),
    *refused(
        "targets", lambda v: active.FieldIntegratedVariance(model(), targets=v), (None, normal(3, 1, 16)), DataError, "Field"
    ),
    *refused(
        "target_weights",
        lambda v: active.FieldIntegratedVariance(model(), targets=pairs().inputs, target_weights=v),
        (-torch.ones(12), torch.zeros(12)),
        ArgumentError,
        "weights",
    ),
    *refused(
        "target_weights",
        lambda v: active.FieldIntegratedVariance(model(), targets=pairs().inputs, target_weights=v),
        (torch.ones(3),),
        ShapeError,
        "weight",
    ),
    *refused("grid", lambda v: active.FieldInformationGain(model(), grid=v), (16, "fine"), GridError, "Grid"),
]

SELECTION = [
    *refused("count", lambda v: select(active.RandomSelection(), count=v), (*NO_COUNT, 13), ArgumentError, "count"),
    *refused(
        "pool", lambda v: select(active.RandomSelection(), pool=v), (None, normal(3, 1, 16), pairs()), DataError, "Field|pool"
    ),
    *refused(
        "labelled",
        lambda v: select(active.RandomSelection(), labelled=v),
        (normal(3, 1, 16), pairs(), 3),
        DataError,
        "Field|labelled",
    ),
    Case(
        "labelled, other channels",
        lambda: select(active.RandomSelection(), labelled=pairs(channels=2).inputs),
        ShapeError,
        "channels",
    ),
    Case("fully labelled", lambda: select(active.RandomSelection(), labelled=pairs().inputs), DataError, "fully labelled"),
    *refused("predictor", lambda v: select(active.LCMDSelection(), predictor=v), (None, gaussian()), DataError, "Predictor"),
    *refused("query", lambda v: select(active.RandomSelection(), query=v), (16, "fine"), GridError, "Grid"),
    *refused("power", active.StochasticSelection, (-1.0, NAN, INF, "1", None, True), ArgumentError, "power"),
    *refused(
        "selector noise",
        lambda v: active.IntegratedVarianceSelection(noise=v),
        (0.0, -1.0, NAN, "1", True, 1j),
        ArgumentError,
        "noise",
    ),
    *refused("BAIT noise", lambda v: active.BAITSelection(noise=v), (0.0, "1"), ArgumentError, "noise"),
    *refused("sketch dimension", lambda v: FeatureSketch(dimension=v), NO_COUNT, ArgumentError, "dimension|positive"),
    *refused("sketch", lambda v: active.LCMDSelection(sketch=v), (None, 512), ArgumentError, "sketch|FeatureSketch"),
    *refused("space filling count", lambda v: active.space_filling_designs(v, 2, seed=0), NO_COUNT, ArgumentError, "count"),
    *refused(
        "space filling kind",
        lambda v: active.space_filling_designs(4, 2, seed=0, kind=v),
        ("grid", None),
        ArgumentError,
        "kind",
    ),
    *refused("Growth", active.Growth, (1.0, 0.5, NAN, INF, "2", None, True), ArgumentError, "factor"),
]

LOOP = [
    *refused("store path", active.ResultStore, (3, None, 1.5), ArgumentError, "path"),
    Case("store on a file", lambda: active.ResultStore("/dev/null"), FileError, "folder"),
    *refused(
        "key",
        lambda v: store().key(v),
        (None, normal(1, 1, 16), pairs().inputs, Field(torch.full((1, 1, 16), NAN), GRID)),
        DataError,
        "function|Field|finite",
    ),
    *refused(
        "add",
        lambda v: store().add(pairs().inputs[:1], v, seconds=0.0),
        (None, normal(1, 1, 16), pairs().inputs),
        DataError,
        "function|Field",
    ),
    *refused(
        "seconds",
        lambda v: store().add(pairs().inputs[:1], pairs().inputs[:1], seconds=v),
        (-1.0, NAN, "1", None),
        ArgumentError,
        "seconds",
    ),
    *refused("pairs", lambda v: store().pairs(v), (["no key"],), ArgumentError, "a key of 40"),
    *refused("pairs", lambda v: store().pairs(v), ([],), DataError, "key"),
    *refused("remember", lambda v: store().remember(v, 1), ("", "a/b", 3, None), ArgumentError, "name"),
    *refused("remember", lambda v: store().remember("name", v), (NAN, {1, 2}, normal(2)), ArgumentError, "JSON"),
    *refused("simulator", lambda v: simulated(simulator=v), (None, 3), ArgumentError, "simulator"),
    *refused(
        "inputs", lambda v: simulated(inputs=v), (None, normal(2, 1, 16), pairs()), (DataError, ArgumentError), "Field|inputs"
    ),
    *refused("simulate store", lambda v: simulated(store=v), (None, 3), ArgumentError, "store|ResultStore"),
    *refused("workers", lambda v: simulated(workers=v), (0, 1.5, "2", True), ArgumentError, "workers"),
    *refused("timeout", lambda v: simulated(timeout=v), (0.0, -1.0, NAN, INF, "1", True), ArgumentError, "timeout"),
    *refused("attempts", lambda v: simulated(attempts=v), (0, 1.5, "2", True, None), ArgumentError, "attempts"),
    *refused("out_grid", lambda v: simulated(out_grid=v), (16, "fine"), GridError, "Grid"),
    *refused("learner simulator", lambda v: learner(simulator=v), (3, "sim"), ArgumentError, "a problem or a callable"),
    *refused("learner head", lambda v: learner(head=v), (None, 3), ArgumentError, "head"),
    *refused("learner acquisition", lambda v: learner(acquisition=v), (None, 3), ArgumentError, "Selector"),
    *refused("learner pool", lambda v: learner(pool=v), (None, normal(12, 1, 16)), ArgumentError, "pool"),
    *refused("learner training", lambda v: learner(training=v), (3, halve), ArgumentError, "OperatorTraining"),
    *refused("learner plan", lambda v: learner(plan=v), (16, {"initial": 4}), ArgumentError, "LearningPlan"),
    *refused("learner simulation", lambda v: learner(simulation=v), (3, "dask"), ArgumentError, "SimulationOptions"),
    *refused("plan initial", lambda v: active.LearningPlan(initial=v), (1, 4.0, True, "4", None), ArgumentError, "initial"),
    *refused("plan batch", lambda v: active.LearningPlan(batch=v), (0, 1.5, "2", True, None), ArgumentError, "batch"),
    *refused("plan seed", lambda v: active.LearningPlan(seed=v), (-1, 0.5, True, "0", None), ArgumentError, "seed"),
    *refused("attempts", lambda v: active.SimulationOptions(attempts=v), (0, 1.5, True, None), ArgumentError, "attempts"),
    *refused("time limit", lambda v: active.SimulationOptions(timeout=v), (0.0, NAN, "1"), ArgumentError, "timeout"),
    *refused("warm_start", lambda v: active.OperatorTraining(warm_start=v), NO_FLAG, ArgumentError, "warm_start"),
    *refused("learner store", lambda v: learner(store=v), (3, None), ArgumentError, "store|path"),
]

CASES = [*MODELS, *SELECTION, *LOOP]
