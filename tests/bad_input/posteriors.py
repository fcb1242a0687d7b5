"""Mistakes with predictors, distributions, calibration, metrics, plots and files."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import probneural as pn
from probneural.distributions import DenseRoot, EmpiricalField, GaussianField, Latent
from probneural.errors import (
    ArgumentError,
    CalibrationError,
    ConstraintError,
    DataError,
    FileError,
    GridError,
    LatentError,
    ShapeError,
    UnsupportedError,
)
from probneural.fields import Field
from probneural.metrics.likelihood import gaussian_nll
from probneural.metrics.ranked_probability import gaussian_crps, mixture_crps
from probneural.metrics.reliability import pit_histogram
from probneural.metrics.spread import spread_skill_curve
from tests.bad_input.data import INF, NAN, NO_FLAG
from tests.bad_input.world import (
    GRID,
    PLANE,
    Case,
    band,
    build_predictor,
    comparison,
    empirical,
    ensemble,
    gaussian,
    kernel,
    laplace,
    normal,
    pairs,
    probe,
    refused,
    rescaled,
    truth,
)

NUMBERS = [[[0.0, 0.0]]] * 3
"""Values of two sensors for three functions."""
UNREAL: tuple[Any, ...] = (
    None,
    "a",
    torch.zeros(3, 1, 2, dtype=torch.complex64),
    np.zeros((3, 1, 2), complex),
    pairs().inputs,
    [[["a", "b"]]] * 3,
)
NOT_FINITE: tuple[Any, ...] = (torch.full((3, 1, 2), NAN), np.full((3, 1, 2), INF), [[[NAN, 0.0]]] * 3)
OTHER_SHAPES: tuple[Any, ...] = (
    torch.zeros(2),
    torch.zeros(3, 2),
    torch.zeros(3, 1, 3),
    np.zeros((1, 1, 2)),
    0.0,
    [[0.0, 0.0]],
)
NO_VARIANCE = (-1.0, NAN, INF, "1", None, 1j, True, torch.tensor(-1.0), torch.zeros(2), [[1.0]])
NO_LEVEL = (0.0, 1.0, 90, -0.9, NAN, INF, "0.9", None, True, 1j)


def drawn() -> EmpiricalField:
    """An empirical field of so many members that they have quantiles of their own."""
    return EmpiricalField(normal(120, 3, 1, 16), grid=GRID)


PREDICTORS = [
    *[
        case
        for name, made in (("last layer", build_predictor), ("Laplace", laplace), ("kernel", kernel), ("ensemble", ensemble))
        for case in (
            *refused(
                f"{name} inputs",
                lambda v, made=made: made()(v),
                (None, normal(1, 1, 16), np.zeros((1, 1, 16)), pairs()),
                DataError,
                "Field",
            ),
            Case(
                f"{name} inputs, two channels", lambda made=made: made()(Field(normal(1, 2, 16), GRID)), ShapeError, "channels"
            ),
            Case(f"{name} inputs, none", lambda made=made: made()(pairs().inputs[:0]), DataError, "one input"),
            Case(
                f"{name} inputs, NaN", lambda made=made: made()(Field(torch.full((1, 1, 16), NAN), GRID)), DataError, "finite"
            ),
            Case(
                f"{name} inputs, other domain",
                lambda made=made: made()(Field(normal(1, 1, 16), pn.Grid.uniform((16,), lengths=2.0))),
                GridError,
                "domain",
            ),
            *refused(
                f"{name} query", lambda v, made=made: made()(pairs().inputs, v), (16, "here", normal(3, 1)), GridError, "Grid"
            ),
        )
    ],
    *refused("sampled", lambda v: laplace().sampled(v, seed=0), (0, -1, 1.5, "3", True), ArgumentError, "members"),
    *refused("kernel sampled", lambda v: kernel().sampled(v, seed=0), (0, 1.5, True), ArgumentError, "members"),
    *refused("update", lambda v: build_predictor().update(v), (None, pairs().inputs, normal(3)), DataError, "FieldPairs"),
    Case("update, other channels", lambda: build_predictor().update(pairs(channels=2)), ShapeError, "channels"),
    Case("a converted draw", lambda: build_predictor().draw(0).double(), UnsupportedError, "dtype"),
    Case("bounds of a full structure", lambda: laplace().variance_bounds(pairs().inputs), UnsupportedError, "low-rank"),
]

DISTRIBUTIONS = [
    *[
        case
        for name, call in (
            ("constrain", lambda v: gaussian().constrain(probe(), v)),
            ("condition", lambda v: gaussian().condition(probe(), v, noise=0.1)),
        )
        for case in (
            *refused(f"{name} values", call, UNREAL, DataError, "values"),
            *refused(f"{name} values", call, NOT_FINITE, DataError, "finite"),
            *refused(f"{name} values", call, OTHER_SHAPES, ShapeError, "values"),
        )
    ],
    *refused(
        "constrain functional",
        lambda v: gaussian().constrain(v, NUMBERS),
        (None, probe().matrix, "mean", sum),
        DataError,
        "Functional",
    ),
    *refused("condition functional", lambda v: gaussian().condition(v, NUMBERS), (None, [[0.5]], sum), DataError, "Functional"),
    *refused(
        "apply", lambda v: gaussian().apply(v), (None, probe().matrix, [1.0] * 16, "mean", torch.mean), DataError, "Functional"
    ),
    Case("apply a maximum", lambda: gaussian().apply(pn.functionals.maximum(GRID)), DataError, "apply_by_draws"),
    *refused("by draws", lambda v: gaussian().apply_by_draws(v), (None, 3, "max"), ArgumentError, "function"),
    *refused(
        "by draws, a function", lambda v: gaussian().apply_by_draws(v), (torch.sum, lambda v: v.amax(-1)), ShapeError, "keepdim"
    ),
    Case("by draws, another grid", lambda: gaussian().apply_by_draws(pn.functionals.maximum(PLANE)), GridError, "grid"),
    *refused("draws", lambda v: gaussian().apply_by_draws(probe(), draws=v), (0, 1.5, None, True), ArgumentError, "draws"),
    *refused("draws seed", lambda v: gaussian().apply_by_draws(probe(), seed=v), (-1, 1.5, None, True), ArgumentError, "seed"),
    *refused("empirical draws", lambda v: empirical().apply_by_draws(probe(), draws=v), (0, None), ArgumentError, "draws"),
    *refused("empirical apply", lambda v: empirical().apply(v), (None, np.ones(16), torch.mean), DataError, "Functional"),
    Case("apply on another grid", lambda: gaussian().apply(pn.functionals.integral(PLANE)), GridError, "grid"),
    *refused("condition noise", lambda v: gaussian().condition(probe(), NUMBERS, noise=v), NO_VARIANCE, ArgumentError, "noise"),
    Case(
        "condition noise, mixed",
        lambda: gaussian().condition(probe(), NUMBERS, noise=torch.tensor([[[0.0, 1.0]]] * 3)),
        ArgumentError,
        "noise",
    ),
    Case("more exact observations than rank", lambda: gaussian().condition(probe(), NUMBERS), ConstraintError, "rank"),
    *refused(
        "scale",
        lambda v: gaussian().scale(v),
        (None, "a", 1j, torch.ones(1, dtype=torch.complex64), ["a"]),
        DataError,
        "factors",
    ),
    *refused("scale", lambda v: gaussian().scale(v), ([0.0], [-1.0], [NAN], [INF], torch.zeros(1)), ArgumentError, "factors"),
    *refused("scale", lambda v: gaussian().scale(v), (2.0, [1.0, 2.0], [[1.0]]), ShapeError, "factors"),
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
    *refused("contains", lambda v: gaussian().interval().contains(v), (None, "a", pairs(), 1j), DataError, "values"),
    *refused(
        "contains", lambda v: gaussian().interval().contains(v), (0.0, normal(16), normal(1, 1, 16)), ShapeError, "values"
    ),
    *refused("empirical scale", lambda v: empirical().scale(v), ([0.0], [NAN]), ArgumentError, "factors"),
    *refused("empirical scale", lambda v: empirical().scale(v), (None, "a"), DataError, "factors"),
    *refused(
        "log_prob",
        lambda v: gaussian().log_prob(v, noise=0.1),
        (None, "a", torch.zeros(3, 1, 16, dtype=torch.complex64), truth()),
        DataError,
        "values",
    ),
    *refused("log_prob", lambda v: gaussian().log_prob(v, noise=0.1), (torch.full((3, 1, 16), NAN),), DataError, "finite"),
    *refused("log_prob", lambda v: gaussian().log_prob(v, noise=0.1), (normal(16), normal(1, 1, 16)), ShapeError, "values"),
    *refused("log_prob noise", lambda v: gaussian().log_prob(truth().values, noise=v), NO_VARIANCE, ArgumentError, "noise"),
    *refused(
        "log_prob joint", lambda v: gaussian().log_prob(truth().values, noise=0.1, joint=v), NO_FLAG, ArgumentError, "joint"
    ),
    Case("log_prob without variance", lambda: gaussian().log_prob(truth().values), ArgumentError, "variance"),
    *refused(
        "rsample",
        lambda v: gaussian().rsample(v),
        (3, 2.5, "ab", None, (-1,), (1.5,), (True,)),
        ArgumentError,
        "shape of draws",
    ),
    *refused(
        "base samples",
        lambda v: gaussian().rsample((2,), base_samples=v),
        (torch.full((2, 5), NAN), torch.full((2, 5), INF), "a", torch.zeros(2, 5, dtype=torch.complex64)),
        DataError,
        "base samples",
    ),
    *refused(
        "base samples",
        lambda v: gaussian().rsample((2,), base_samples=v),
        (torch.zeros(5), torch.zeros(2, 4)),
        ShapeError,
        "base samples",
    ),
    Case("seed and base samples", lambda: gaussian().rsample((), seed=0, base_samples=torch.zeros(5)), ArgumentError, "both"),
    *refused(
        "empirical base samples",
        lambda v: empirical().rsample((2,), base_samples=v),
        (torch.tensor([0, 9]), torch.tensor([0.0, 1.0]), torch.tensor([-1, 0]), torch.tensor([True, False])),
        (ArgumentError, DataError),
        "member numbers",
    ),
    *refused("empirical rsample", lambda v: empirical().rsample(v), (3, None, (-1,)), ArgumentError, "shape of draws"),
    *refused(
        "weights",
        lambda v: EmpiricalField(normal(4, 3, 1, 16), v, grid=GRID),
        ([-1.0, 1, 1, 1], [NAN] * 4, [0.0] * 4, "a", [1j] * 4),
        DataError,
        "weights",
    ),
    *refused(
        "weights", lambda v: EmpiricalField(normal(4, 3, 1, 16), v, grid=GRID), ([1.0], 1.0, [[1.0] * 4]), ShapeError, "weights"
    ),
    *refused(
        "samples",
        lambda v: EmpiricalField(v, grid=GRID),
        (
            None,
            np.zeros((4, 3, 1, 16)),
            torch.zeros(4, 3, 1, 16, dtype=torch.complex64),
            torch.zeros(4, 3, 1, 16, dtype=torch.int64),
        ),
        DataError,
        "samples",
    ),
    *refused("samples", lambda v: EmpiricalField(v, grid=GRID), (normal(3, 1, 16), normal(0, 3, 1, 16)), ShapeError, "samples"),
    *refused("empirical grid", lambda v: EmpiricalField(normal(4, 3, 1, 16), grid=v), (None, 16), GridError, "Grid"),
    *refused(
        "mean",
        lambda v: GaussianField(v, DenseRoot(normal(3, 1, 16, 5)), latent="xi", grid=GRID),
        (None, np.zeros((3, 1, 16)), torch.zeros(3, 1, 16, dtype=torch.complex64)),
        DataError,
        "mean",
    ),
    *refused(
        "mean",
        lambda v: GaussianField(v, DenseRoot(normal(3, 1, 16, 5)), latent="xi", grid=GRID),
        (normal(3, 16), normal(2, 1, 16)),
        ShapeError,
        "mean",
    ),
    *refused(
        "root",
        lambda v: GaussianField(normal(3, 1, 16), v, latent="xi", grid=GRID),
        (None, normal(3, 1, 16, 5)),
        DataError,
        "[Rr]oot",
    ),
    *refused(
        "latent",
        lambda v: GaussianField(normal(3, 1, 16), DenseRoot(normal(3, 1, 16, 5)), latent=v, grid=GRID),
        (None, 3),
        LatentError,
        "[Ll]atent",
    ),
    *refused(
        "Gaussian grid",
        lambda v: GaussianField(normal(3, 1, 16), DenseRoot(normal(3, 1, 16, 5)), latent="xi", grid=v),
        (None, 16),
        GridError,
        "Grid",
    ),
    *refused(
        "DenseRoot",
        DenseRoot,
        (None, np.zeros((1, 1, 2, 2)), torch.zeros(1, 1, 2, 2, dtype=torch.complex64)),
        DataError,
        "root",
    ),
    *refused("under", lambda v: gaussian().under(v), (None, "xi", gaussian()), LatentError, "latent"),
    Case("under a stranger", lambda: gaussian().under(Latent(id="other", rank=5)), LatentError, "conditioned from"),
    *refused("cross_covariance", lambda v: gaussian().cross_covariance(v), (None, empirical()), DataError, "Gaussian"),
    *refused(
        "iterations",
        lambda v: gaussian().constrain_residual(lambda u: u.flatten(1)[:, :1], iterations=v),
        (0, 1.5, "9", True),
        ArgumentError,
        "iteration",
    ),
    *refused(
        "tolerance",
        lambda v: gaussian().constrain_residual(lambda u: u.flatten(1)[:, :1], tolerance=v),
        (0.0, -1.0, NAN, "0"),
        ArgumentError,
        "tolerance",
    ),
    *refused(
        "residual",
        lambda v: gaussian().constrain_residual(v),
        (None, 3, lambda u: 3.0, lambda u: u),
        (ArgumentError, ShapeError, DataError),
        "residual",
    ),
    *refused("index", lambda v: gaussian()[v], (1.5, "a", None, [9]), DataError, "index|rows"),
]

CALIBRATION = [
    *refused(
        "scale predictor",
        lambda v: pn.calibration.VarianceScale().fit(v, pairs()),
        (None, gaussian(), "head"),
        DataError,
        "Predictor",
    ),
    *refused(
        "scale data",
        lambda v: pn.calibration.VarianceScale().fit(build_predictor(), v),
        (None, pairs().inputs, normal(3)),
        DataError,
        "FieldPairs",
    ),
    *refused("separate", lambda v: pn.calibration.VarianceScale(separate=v), NO_FLAG, ArgumentError, "separate"),
    Case(
        "one calibration field",
        lambda: pn.calibration.VarianceScale().fit(build_predictor(), pairs()[:1]),
        CalibrationError,
        "2 calibration",
    ),
    Case(
        "scale, other channels",
        lambda: pn.calibration.VarianceScale().fit(build_predictor(), pairs(channels=2)),
        ShapeError,
        "channels",
    ),
    *refused(
        "level",
        lambda v: pn.calibration.SimultaneousBand(level=v),
        (0.0, 1.0, 1.5, NAN, "0.9", None, True),
        ArgumentError,
        "level",
    ),
    *refused(
        "modulation",
        lambda v: pn.calibration.SimultaneousBand(modulation=v),
        ("wild", None, ["std"]),
        ArgumentError,
        "modulation",
    ),
    *refused("floor", lambda v: pn.calibration.SimultaneousBand(floor=v), (-0.1, 1.1, NAN, "0", None), ArgumentError, "floor"),
    Case(
        "too few fields",
        lambda: pn.calibration.SimultaneousBand(0.99).fit(build_predictor(), pairs(seed=3)),
        CalibrationError,
        "99 calibration",
    ),
    *refused(
        "band data",
        lambda v: pn.calibration.SimultaneousBand(0.5).fit(build_predictor(), v),
        (None, pairs().inputs),
        DataError,
        "FieldPairs",
    ),
    *refused("band inputs", band(), (None, normal(1, 1, 16)), DataError, "Field"),
    *refused("contains", lambda v: band()(pairs().inputs).contains(v), (None, normal(12, 1, 16)), DataError, "Field"),
    *refused(
        "ScaledPredictor",
        lambda v: rescaled(v),
        (torch.zeros(1), torch.ones(2), torch.tensor([NAN]), 2.0, None, "a"),
        (ArgumentError, DataError, ShapeError),
        "scale",
    ),
]

METRICS = [
    *refused(
        "score u", lambda v: pn.metrics.score(v, truth()), (None, normal(3, 1, 16), truth()), DataError, "FieldDistribution"
    ),
    *refused(
        "score truth",
        lambda v: pn.metrics.score(gaussian(), v),
        (None, truth().values, np.zeros((3, 1, 16))),
        DataError,
        "Field",
    ),
    Case(
        "score, other grid",
        lambda: pn.metrics.score(gaussian(), Field(normal(3, 1, 8), pn.Grid.uniform((8,)))),
        GridError,
        "grid",
    ),
    Case("score, fewer functions", lambda: pn.metrics.score(gaussian(), truth()[:2]), ShapeError, "truth"),
    Case("score, NaN", lambda: pn.metrics.score(gaussian(), Field(torch.full((3, 1, 16), NAN), GRID)), DataError, "finite"),
    Case("score, none", lambda: pn.metrics.score(gaussian()[:0], truth()[:0]), DataError, "one function"),
    *refused("score noise", lambda v: pn.metrics.score(gaussian(), truth(), noise=v), NO_VARIANCE, ArgumentError, "noise"),
    *refused(
        "score level",
        lambda v: pn.metrics.score(gaussian(), truth(), level=v),
        (0.0, 1.0, NAN, "0.9", None),
        ArgumentError,
        "level",
    ),
    *refused(
        "score whole", lambda v: pn.metrics.score(gaussian(), truth(), whole=v), (0, -1, 1.5, "2", True), ArgumentError, "whole"
    ),
    *refused("coverage level", lambda v: pn.metrics.coverage(comparison(), level=v), (0.0, 1.5, "0.9"), ArgumentError, "level"),
    *refused("coverage", pn.metrics.coverage, (None, gaussian()), DataError, "[Cc]ompar"),
    *refused("bins", lambda v: pit_histogram(comparison(), bins=v), (0, 2.5, "9", True), ArgumentError, "bin"),
    *refused("curve bins", lambda v: spread_skill_curve(comparison(), bins=v), (0, 2.5, "9", True), ArgumentError, "bin"),
    *refused(
        "draws", lambda v: pn.metrics.simultaneous_coverage(comparison(), draws=v), (0, 2.5, "9", True), ArgumentError, "draw"
    ),
    *refused(
        "energy draws", lambda v: pn.metrics.energy_score(comparison(), draws=v), (0, 1, 2.5, True), ArgumentError, "draw"
    ),
    *refused(
        "corrects_size",
        lambda v: pn.metrics.spread_skill(comparison(), corrects_size=v),
        NO_FLAG,
        ArgumentError,
        "corrects_size",
    ),
    *refused(
        "relative_l2", lambda v: pn.metrics.relative_l2(v, truth()), (None, truth().values, gaussian()), DataError, "Field"
    ),
    Case("gaussian_nll", lambda: gaussian_nll(normal(3), torch.ones(1)), ShapeError, "variance"),
    Case("gaussian_crps", lambda: gaussian_crps(normal(3), torch.ones(1)), ShapeError, "variance"),
    Case("mixture_crps", lambda: mixture_crps(normal(4, 3), normal(2)), ShapeError, "samples|truth"),
]

PLOTS = [
    *refused("field u", pn.plots.field, (None, truth()), DataError, "FieldDistribution"),
    *refused("field truth", lambda v: pn.plots.field(gaussian(), v), (3, truth().values), DataError, "Field"),
    *refused("index", lambda v: pn.plots.field(gaussian(), index=v), (3, -4, 0.5, "0", None, True), ArgumentError, "index"),
    *refused("channel", lambda v: pn.plots.field(gaussian(), channel=v), (1, 0.5), ArgumentError, "channel"),
    *refused("draws", lambda v: pn.plots.field(gaussian(), draws=v), (-1, 0.5, "3", True), ArgumentError, "draws"),
    *refused("level", lambda v: pn.plots.field(gaussian(), level=v), (0.0, 1.0, "0.9", None), ArgumentError, "level"),
    *refused("noise", lambda v: pn.plots.field(gaussian(), noise=v), (-1.0, "1", None), ArgumentError, "noise"),
    *refused("axes", lambda v: pn.plots.field(gaussian(), axes=v), ((), None, 3), ArgumentError, "axis names"),
    *refused("quantity u", pn.plots.quantity, (None, truth()), DataError, "FieldDistribution"),
    Case("quantity of a field", lambda: pn.plots.quantity(gaussian()), GridError, "forward"),
    *[
        case
        for option, values in (
            ("channel", (1, 0.5)),
            ("level", (0.0, 90, None)),
            ("noise", (-1.0, None)),
            ("order", ("size", None)),
            ("labels", ("a", ["a"], [1, 2], 3)),
        )
        for case in refused(
            f"quantity {option}",
            lambda v, option=option: pn.plots.quantity(gaussian().apply(probe()), **{option: v}),
            values,
            ArgumentError,
            option,
        )
    ],
    *refused("quantity truth", lambda v: pn.plots.quantity(gaussian().apply(probe()), v), ("a", 1j), DataError, "truth"),
    Case("quantity truth, a field", lambda: pn.plots.quantity(gaussian().apply(probe()), truth()), DataError, "functional"),
    *refused(
        "quantity truth", lambda v: pn.plots.quantity(gaussian().apply(probe()), v), (0.0, normal(3, 2)), ShapeError, "truth"
    ),
    *refused("band", pn.plots.band, (None, band(), gaussian()), DataError, "BandField"),
    *refused("calibration", lambda v: pn.plots.calibration(v, truth()), (None, truth()), DataError, "FieldDistribution"),
    *refused("training", pn.plots.training, (None, [1.0]), DataError, "History"),
    *refused(
        "fields",
        lambda v: pn.plots.fields(v, truth()),
        ({}, None, [gaussian()], {"a": 3}),
        DataError,
        "predictions|FieldDistribution",
    ),
    *refused("pit", lambda v: pn.plots.pit(v, truth()), ({}, None, {"a": 3}), DataError, "predictions|FieldDistribution"),
    *refused("active_learning", pn.plots.active_learning, (None, {}, 3), DataError, "histor"),
    *refused("cost", pn.plots.cost, ({}, None, {"a": 3}, {"a": (NAN, 1.0)}), DataError, "points|number"),
    *refused("png", pn.plots.png, (None, 3), DataError, "Figure"),
]

FILES = [
    *refused(
        "save", lambda v: pn.save(v, "/tmp/never-written"), (None, {}, "a", pairs(), gaussian()), UnsupportedError, "nn.Module"
    ),
    *refused("save path", lambda v: pn.save(build_predictor(), v), (None, 3, 1.5, ["a"]), ArgumentError, "path"),
    Case("save to no folder", lambda: pn.save(build_predictor(), "/nowhere/at/all"), FileError, "folder"),
    *refused("load path", pn.load, (None, 3, 1.5), ArgumentError, "path"),
    *refused("load", pn.load, ("/nowhere/at/all", "/"), FileError, "file"),
    *refused("load device", lambda v: pn.load("/nowhere", device=v), ("toaster", 1.5), ArgumentError, "device"),
    *refused("load operator", lambda v: pn.load("/nowhere", operator=v), (3, "FNO"), ArgumentError, "nn.Module"),
]

CASES = [*PREDICTORS, *DISTRIBUTIONS, *CALIBRATION, *METRICS, *PLOTS, *FILES]
