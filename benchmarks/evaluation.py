"""What is asked of every predictor of the main benchmark, in the same way for all of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import torch

import probneural as pn
from benchmarks.sources import Source
from probneural.errors import CalibrationError, ConstraintError
from probneural.randomness import stream

LEVEL = 0.9
WHOLE = {1: 200, 2: 20, 3: 10}
"""Functions per place that scores of whole functions, and laws, are computed on, by dimension: work grows with the points."""
SPLITS = 100


def evaluate(
    raw: pn.distributions.Predictor,
    source: Source,
    places: Mapping[str, pn.FieldPairs],
    *,
    compares_scales: bool = False,
    draws_figures: bool = False,
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, bytes]]:
    """Calibrate a predictor, score it at every place, and try its bands; returns facts, evaluations and figures."""
    start = time.perf_counter()
    calibration = source.calibration
    facts: dict[str, Any] = {"noise": raw.noise.tolist()}
    predict = raw
    try:
        predict = scaled = pn.calibration.VarianceScale().fit(raw, calibration)
        facts |= {"scale": scaled.scale.tolist(), "noise_scale": scaled.noise_scale.tolist()}
    except CalibrationError as error:  # a linear problem, solved up to rounding: there is nothing to calibrate
        facts["not_calibrated"] = str(error)
    facts["calibration_seconds"] = time.perf_counter() - start
    evaluations: list[dict[str, Any]] = []
    figures: dict[str, bytes] = {}
    pool = source.pool
    band = pn.calibration.SimultaneousBand(level=LEVEL).fit(predict, calibration) if pool is None else None
    for name, pairs in places.items():
        start = time.perf_counter()
        query = None if pairs.outputs.grid == pairs.inputs.grid else pairs.outputs.grid
        u = predict(pairs.inputs, query)
        whole = WHOLE[pairs.outputs.grid.dimension]
        scores = pn.metrics.score(u, pairs.outputs, noise=predict.noise, level=LEVEL, whole=whole).to_dict()
        scores["whole_functions"] = min(whole, len(pairs))
        row: dict[str, Any] = {"on": name, "resolution": list(pairs.outputs.grid.shape), "fields": len(pairs), "scores": scores}
        row["seconds"] = time.perf_counter() - start
        if band is not None:
            inside = pn.calibration.conformal_scores(predict, pairs, modulation="deviation").values <= band.quantile
            row["bands"] = {"coverage": float(inside.double().mean())}
        evaluations.append(row)
        if draws_figures and name in list(places)[:2]:
            figures |= _figures(name, u, pairs.outputs, predict.noise)
    first, pairs = evaluations[0], next(iter(places.values()))
    few = pairs[: WHOLE[pairs.outputs.grid.dimension]]
    u = predict(few.inputs)
    if isinstance(u, pn.distributions.GaussianField):
        first["constrained"] = _constrained(u, few.outputs)
    if pool is not None:
        with contextlib.suppress(CalibrationError):  # as above
            first["bands"] = bands(predict, pool)
    if compares_scales:
        common = pn.calibration.VarianceScale(separate=False).fit(raw, calibration)
        alike = pn.metrics.score(
            common(pairs.inputs), pairs.outputs, noise=common.noise, level=LEVEL, whole=WHOLE[pairs.outputs.grid.dimension]
        ).to_dict()
        first["common_scale"] = {key: alike[key] for key in ("crps", "nll", "joint_nll", "calibration_error")}
        if pool is not None:
            first["common_scale"]["width_ratio"] = bands(common, pool)["width_ratio"]
    return facts, evaluations, figures


def bands(predict: pn.distributions.Predictor, pool: pn.FieldPairs) -> dict[str, float]:
    """Coverage and mean width of conformal bands over random halvings of a pool, against constant-width bands."""
    half = len(pool) // 2
    kinds = {kind: pn.calibration.conformal_scores(predict, pool, modulation=kind) for kind in ("deviation", "constant")}
    coverage: dict[str, list[float]] = {kind: [] for kind in kinds}
    width: dict[str, list[float]] = {kind: [] for kind in kinds}
    for split in range(SPLITS):
        order = torch.randperm(len(pool), generator=stream(split, "benchmark halves"))
        for kind, scores in kinds.items():
            quantile = scores[order[:half]].quantile(LEVEL)
            rest = scores[order[half:]]
            coverage[kind].append(float((rest.values <= quantile).double().mean()))
            width[kind].append(2.0 * quantile * float(rest.scale.mean()))
    mean = {kind: (sum(coverage[kind]) / SPLITS, sum(width[kind]) / SPLITS) for kind in kinds}
    return {
        "splits": SPLITS,
        "level": LEVEL,
        "coverage": mean["deviation"][0],
        "width": mean["deviation"][1],
        "constant_coverage": mean["constant"][0],
        "constant_width": mean["constant"][1],
        "width_ratio": mean["deviation"][1] / mean["constant"][1],
    }


def _constrained(u: pn.distributions.GaussianField, truth: pn.Field) -> dict[str, Any]:
    """What a known law does to accuracy: the integral where the domain is periodic, the values at two corners elsewhere."""
    grid = truth.grid
    ends = [[axis.origin for axis in grid.axes], [axis.origin + axis.length for axis in grid.axes]]
    law = pn.functionals.integral(grid) if all(grid.periodic) else pn.functionals.sensors(grid, ends)
    wanted = law(truth.values)
    name = "integral" if all(grid.periodic) else "values at the ends"
    try:
        v = u.constrain(law, wanted)
    except ConstraintError as error:  # every draw obeys the law already, up to rounding, so nothing can be moved
        return {"law": name, "reason": str(error)}
    before, after = (float(pn.metrics.relative_l2(pn.Field(field.mean, grid), truth).mean()) for field in (u, v))
    size = wanted.abs().max().clamp_min(truth.values.abs().max())
    return {
        "law": name,
        "residual_before": float((law(u.mean) - wanted).abs().max() / size),
        "residual_after": float((law(v.mean) - wanted).abs().max() / size),
        "relative_l2_ratio": after / before if before else None,
    }


def _figures(where: str, u: pn.distributions.FieldDistribution, truth: pn.Field, noise: torch.Tensor) -> dict[str, bytes]:
    figures = {}
    if truth.grid.dimension <= 2:
        figures[f"one function, {where}"] = pn.plots.png(pn.plots.field(u, truth, noise=noise), dpi=120.0)
    if where == "in distribution":
        figures[f"calibration, {where}"] = pn.plots.png(pn.plots.calibration(u, truth, noise=noise), dpi=120.0)
        skill = pn.plots.spread_skill({"predicted": u}, truth, noise=noise)
        figures[f"error against stated deviation, {where}"] = pn.plots.png(skill, dpi=120.0)
    return figures
