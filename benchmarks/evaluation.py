"""What is asked of every predictor of the main benchmark, in the same way for all of them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any

import torch

import probneural as pn
from benchmarks.sources import Source
from probneural.errors import CalibrationError, ConstraintError

LEVEL = 0.9
LEVELS = (0.9, 0.95)
"""Levels of the intervals of functionals."""
WHOLE = {1: 200, 2: 20, 3: 10}
"""Functions per place that scores of whole functions and constraints are computed on, by dimension: points cost."""
SET = 50
"""Functions of each calibration set of the conformal bands."""


def evaluate(
    raw: pn.distributions.Predictor,
    source: Source,
    places: Mapping[str, pn.FieldPairs],
    *,
    compares_scales: bool = False,
    draws_figures: bool = False,
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, bytes]]:
    """Calibrate a predictor, score it at every place, and try its bands and intervals; returns facts, evaluations, figures."""
    start = time.process_time()
    facts: dict[str, Any] = {"noise": raw.noise.tolist()}
    predictor, calibrated = _calibrated(raw, source.calibration)
    facts |= calibrated | {"calibration_seconds": time.process_time() - start}
    evaluations: list[dict[str, Any]] = []
    figures: dict[str, bytes] = {}
    for name, pairs in places.items():
        start = time.process_time()
        query = None if pairs.outputs.grid == pairs.inputs.grid else pairs.outputs.grid
        u = predictor(pairs.inputs, query)
        whole = WHOLE[pairs.outputs.grid.dimension]
        scores = pn.metrics.score(u, pairs.outputs, noise=predictor.noise, level=LEVEL, whole=whole).to_dict()
        scores["whole_functions"] = min(whole, len(pairs))
        row: dict[str, Any] = {"on": name, "resolution": list(pairs.outputs.grid.shape), "fields": len(pairs), "scores": scores}
        row["seconds"] = time.process_time() - start
        evaluations.append(row)
        if draws_figures and name in list(places)[:2]:
            figures |= _figures(name, u, pairs.outputs, predictor.noise)
    first, pairs = evaluations[0], next(iter(places.values()))
    first["raw"] = _raw(raw, predictor, pairs)
    few = pairs[: WHOLE[pairs.outputs.grid.dimension]]
    u = predictor(few.inputs)
    if isinstance(u, pn.distributions.GaussianField):
        first["constrained"] = _constrained(u, few.outputs)
    first["intervals"] = interval_coverage(predictor, source.pool)
    with contextlib.suppress(CalibrationError):  # a linear problem, solved up to rounding: there is nothing to calibrate
        first["bands"] = bands(predictor, source.pool, pairs)
    if compares_scales:
        common, _ = _calibrated(raw, source.calibration, separate=False)
        alike = pn.metrics.score(
            common(pairs.inputs), pairs.outputs, noise=common.noise, level=LEVEL, whole=WHOLE[pairs.outputs.grid.dimension]
        ).to_dict()
        first["common_scale"] = {key: alike[key] for key in ("crps", "nll", "joint_nll", "calibration_error")}
        first["common_scale"]["width_ratio"] = bands(common, source.pool, pairs)["width_ratio"]
    return facts, evaluations, figures


def _calibrated(
    raw: pn.distributions.Predictor, calibration: pn.FieldPairs, *, separate: bool = True
) -> tuple[pn.distributions.Predictor, dict[str, Any]]:
    """The scaled predictor and its numbers; the raw one, and why, where a linear problem is solved up to rounding."""
    try:
        scaled = pn.calibration.VarianceScale(separate=separate).fit(raw, calibration)
    except CalibrationError as error:
        return raw, {"not_calibrated": str(error)}
    scales = {name: getattr(scaled, name).tolist() for name in ("scale", "noise_scale")}
    return scaled, scales | {name: getattr(scaled.decomposition, name).tolist() for name in ("root_fraction", "white_fraction")}


def _raw(
    raw: pn.distributions.Predictor, predictor: pn.distributions.Predictor, pairs: pn.FieldPairs
) -> dict[str, float | None]:
    """What the head said before it was scaled, and by how much it was: the largest factors over channels."""
    comparison = pn.metrics.compare(raw(pairs.inputs), pairs.outputs, noise=raw.noise)
    found: dict[str, float | None] = {"chi2": float(pn.metrics.chi2(comparison).mean())}
    if isinstance(predictor, pn.calibration.ScaledPredictor):
        unexplained = predictor.noise_scale * raw.noise.double()
        total = predictor(pairs.inputs).variance.double().mean((0, *range(2, 2 + pairs.outputs.grid.dimension)))
        found |= {
            "scale": float(predictor.scale.max()),
            "noise_scale": float(predictor.noise_scale.max()),
            "noise_share": float((unexplained / total).mean()),
        }
    return found


def interval_coverage(predictor: pn.distributions.Predictor, pairs: pn.FieldPairs) -> dict[str, dict[str, float]]:
    """Coverage of the central intervals of functionals, read off the field's own distribution."""
    grid = pairs.outputs.grid
    u = predictor(pairs.inputs, None if pairs.inputs.grid == grid else grid)
    found: dict[str, dict[str, float]] = {}
    for name, functional in functionals(grid).items():
        image, truth = u.apply(functional), functional(pairs.outputs.values)
        found[name] = {f"{level:g}": float(image.interval(level).contains(truth).double().mean()) for level in LEVELS}
    return found


def functionals(grid: pn.Grid) -> dict[str, pn.functionals.Functional]:
    """Quantities of interest: averages of quarters, values and slopes at five points, and the integral."""
    if not grid.is_uniform:
        return {"integral": pn.functionals.integral(grid)}
    low, size = ([getattr(axis, name) for axis in grid.axes] for name in ("origin", "length"))
    along = torch.linspace(0.13, 0.87, 5, dtype=torch.float64).tolist()
    points = [
        [start + extent * along[(number * (axis + 1)) % 5] for axis, (start, extent) in enumerate(zip(low, size, strict=True))]
        for number in range(5)
    ]
    quarters = []
    for corner in range(4):
        ends = [(0.5 * (corner % 2), 0.5 * (corner % 2) + 0.5), (0.5 * (corner // 2), 0.5 * (corner // 2) + 0.5)]
        bounds = [(0.25 * corner, 0.25 * corner + 0.25)] if grid.dimension == 1 else ends[: grid.dimension]
        bounds += [(0.0, 1.0)] * (grid.dimension - len(bounds))
        lower, upper = (
            [start + extent * bound[side] for start, extent, bound in zip(low, size, bounds, strict=True)] for side in (0, 1)
        )
        quarters.append(pn.functionals.average(grid, lower=lower, upper=upper))
    return {
        "averages of quarters": pn.functionals.stack(quarters),
        "sensors": pn.functionals.sensors(grid, points),
        "integral": pn.functionals.integral(grid),
        "slopes": pn.functionals.derivative(grid, at=points),
    }


def bands(predictor: pn.distributions.Predictor, pool: pn.FieldPairs, fresh: pn.FieldPairs) -> dict[str, float]:
    """Coverage of fresh functions by conformal bands, each calibrated on functions of its own, and their widths.

    The pool is cut into calibration sets. The coverage of a band of n functions at rank r is a Beta(r, n + 1 - r) variable, of
    mean r/(n + 1): what the average over sets should come near.
    """
    size = min(SET, len(pool))
    kinds = {
        kind: [pn.calibration.conformal_scores(predictor, some, modulation=kind) for some in (pool, fresh)]
        for kind in ("std", "constant")
    }
    coverage: dict[str, list[float]] = {kind: [] for kind in kinds}
    width: dict[str, list[float]] = {kind: [] for kind in kinds}
    for start in range(0, len(pool) - size + 1, size):
        for kind, (calibration, test) in kinds.items():
            quantile = calibration[start : start + size].quantile(LEVEL)
            coverage[kind].append(float((test.values <= quantile).double().mean()))
            width[kind].append(2.0 * quantile * float(test.scale.mean()))
    mean = {kind: (sum(values) / len(values), sum(width[kind]) / len(values)) for kind, values in coverage.items()}
    return {
        "sets": len(coverage["std"]),
        "functions_each": size,
        "level": LEVEL,
        "expected": math.ceil((size + 1) * LEVEL - 1e-9) / (size + 1),
        "coverage": mean["std"][0],
        "least_coverage": min(coverage["std"]),
        "most_coverage": max(coverage["std"]),
        "width": mean["std"][1],
        "constant_coverage": mean["constant"][0],
        "constant_width": mean["constant"][1],
        "width_ratio": mean["std"][1] / mean["constant"][1],
    }


def _constrained(u: pn.distributions.GaussianField, truth: pn.Field) -> dict[str, Any]:
    """What a known constraint does to accuracy: the integral on periodic domains, the values at two corners elsewhere."""
    grid = truth.grid
    ends = [[axis.origin for axis in grid.axes], [axis.origin + axis.length for axis in grid.axes]]
    constraint = pn.functionals.integral(grid) if all(grid.periodic) else pn.functionals.sensors(grid, ends)
    wanted = constraint(truth.values)
    name = "integral" if all(grid.periodic) else "values at the ends"
    try:
        v = u.constrain(constraint, wanted)
    except ConstraintError as error:  # every draw obeys it already, up to rounding, so nothing can be moved
        return {"constraint": name, "reason": str(error)}
    before, after = (float(pn.metrics.relative_l2(pn.Field(field.mean, grid), truth).mean()) for field in (u, v))
    size = wanted.abs().max().clamp_min(truth.values.abs().max())
    return {
        "constraint": name,
        "residual_before": float((constraint(u.mean) - wanted).abs().max() / size),
        "residual_after": float((constraint(v.mean) - wanted).abs().max() / size),
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
