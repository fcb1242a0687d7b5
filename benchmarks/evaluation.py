"""Evaluation of a predictor in the main benchmark, the same for all predictors."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import probneural as pn
from benchmarks.method_figures import Sketch
from benchmarks.sources import Source
from probneural.calibration.bands.conformal import conformal_scores
from probneural.calibration.variance.scaled_predictor import ScaledPredictor
from probneural.errors import CalibrationError, ConstraintError

LEVEL = 0.9
LEVELS = (0.9, 0.95)
"""Levels of the intervals of functionals."""
WHOLE = {1: 200, 2: 20, 3: 10}
"""Samples per test set for field-wise scores and constraints, by dimension."""
COVERED = (0.88, 0.92)
"""Nominal range of simultaneous coverage at `LEVEL`."""
CHANCE = 0.027
"""Standard deviation of that coverage for a right model and 200 samples, from 30 simulations."""
TOGETHER = 10
"""Samples per batch of that coverage."""
SET = 50
"""Samples per calibration set of conformal bands."""


@dataclass(frozen=True)
class Extent:
    """Extent of the evaluation.

    Attributes:
        whole: Samples per test set for field-wise scores, by dimension.
        shifts: Number of shifts; None for all.
        pool: Samples of the pool for bands and intervals; None for all.
        ensembles: Operators with an ensemble; None for all.
        compares_scales: Whether to compare one common scale with separate ones.
    """

    whole: Mapping[int, int] = field(default_factory=lambda: WHOLE)
    shifts: int | None = None
    pool: int | None = None
    ensembles: tuple[str, ...] | None = None
    compares_scales: bool = True

    def has_ensemble(self, kind: str) -> bool:
        """Whether operators of a kind have an ensemble."""
        return self.ensembles is None or kind in self.ensembles


FULL = Extent()
SMALL = Extent(whole={1: 20, 2: 4, 3: 2}, shifts=1)
"""The small run."""
QUICK = Extent(whole={1: 50, 2: 5, 3: 5}, shifts=1, pool=100, ensembles=("FNO",), compares_scales=False)
"""The default run of the main benchmark: fewer trainings, and fewer samples for expensive scores."""


def evaluate(
    raw: pn.distributions.Predictor,
    source: Source,
    places: Mapping[str, pn.FieldPairs],
    *,
    name: str,
    extent: Extent = FULL,
    compares_scales: bool = False,
    tick: Callable[[pn.FieldPairs], None] = lambda pairs: None,
) -> tuple[dict[str, Any], list[dict[str, Any]], Sketch]:
    """Calibrate a predictor, score it on every test set, and test bands and intervals.

    Args:
        raw: The predictor.
        source: Calibration samples and the pool.
        places: Test sets by name, on the training grid first.
        name: Name of the method in figures.
        extent: Extent of the evaluation.
        compares_scales: Whether to score one common scale too.
        tick: Called with each scored test set.

    Returns:
        Facts of the calibration, one evaluation per test set, and data of figures.
    """
    start = time.process_time()
    facts: dict[str, Any] = {"noise": raw.noise.tolist()}
    predictor, calibrated = _calibrated(raw, source.calibration)
    facts |= calibrated | {"calibration_seconds": time.process_time() - start}
    evaluations: list[dict[str, Any]] = []
    for place, pairs in places.items():
        start = time.process_time()
        query = None if pairs.outputs.grid == pairs.inputs.grid else pairs.outputs.grid
        u = predictor(pairs.inputs, query)
        whole = extent.whole[pairs.outputs.grid.dimension]
        scores = pn.metrics.score(u, pairs.outputs, noise=predictor.noise, level=LEVEL, whole=whole).to_dict()
        scores["whole_functions"] = min(whole, len(pairs))
        row: dict[str, Any] = {
            "on": place,
            "resolution": list(pairs.outputs.grid.shape),
            "fields": len(pairs),
            "scores": scores,
        }
        row["seconds"] = time.process_time() - start
        if not evaluations:
            sketch = Sketch.of(name, pn.metrics.compare(u, pairs.outputs, noise=predictor.noise), pairs.outputs.grid)
        evaluations.append(row)
        tick(pairs)
    pairs = next(iter(places.values()))
    whole, pool = extent.whole[pairs.outputs.grid.dimension], source.pool[: extent.pool]
    evaluations[0] |= _first(raw, predictor, pool, pairs, whole=whole)
    if compares_scales:
        common, _ = _calibrated(raw, source.calibration, separate=False)
        evaluations[0]["common_scale"] = _common_scale(common, pool, pairs, whole=whole)
    return facts, evaluations, sketch


def _first(
    raw: pn.distributions.Predictor,
    predictor: pn.distributions.Predictor,
    pool: pn.FieldPairs,
    pairs: pn.FieldPairs,
    *,
    whole: int,
) -> dict[str, Any]:
    """Evaluation on the first test set only: raw numbers, a constraint, intervals of functionals, conformal bands."""
    found: dict[str, Any] = {"raw": _raw(raw, predictor, pairs)}
    few = pairs[:whole]
    u = predictor(few.inputs)
    if isinstance(u, pn.distributions.GaussianField):
        found["constrained"] = _constrained(u, few.outputs)
    found["intervals"] = interval_coverage(predictor, pool)
    with contextlib.suppress(CalibrationError):  # a linear problem solved up to rounding cannot be calibrated
        found["bands"] = bands(predictor, pool, pairs)
    return found


def _common_scale(
    common: pn.distributions.Predictor, pool: pn.FieldPairs, pairs: pn.FieldPairs, *, whole: int
) -> dict[str, float]:
    """Scores with one common scale."""
    alike = pn.metrics.score(common(pairs.inputs), pairs.outputs, noise=common.noise, level=LEVEL, whole=whole).to_dict()
    found: dict[str, float] = {key: alike[key] for key in ("crps", "nll", "joint_nll", "calibration_error")}
    return found | {"width_ratio": bands(common, pool, pairs)["width_ratio"]}


def _calibrated(
    raw: pn.distributions.Predictor, calibration: pn.FieldPairs, *, separate: bool = True
) -> tuple[pn.distributions.Predictor, dict[str, Any]]:
    """The scaled predictor and its numbers; the raw one with a reason if a linear problem is solved up to rounding."""
    try:
        scaled = pn.calibration.VarianceScale(separate=separate).fit(raw, calibration)
    except CalibrationError as error:
        return raw, {"not_calibrated": str(error)}
    scales = {name: getattr(scaled, name).tolist() for name in ("scale", "noise_scale")}
    return scaled, scales | {name: getattr(scaled.decomposition, name).tolist() for name in ("root_fraction", "white_fraction")}


def _raw(
    raw: pn.distributions.Predictor, predictor: pn.distributions.Predictor, pairs: pn.FieldPairs
) -> dict[str, float | None]:
    """Scores before scaling, and the largest scale factors over channels."""
    comparison = pn.metrics.compare(raw(pairs.inputs), pairs.outputs, noise=raw.noise)
    found: dict[str, float | None] = {"chi2": float(pn.metrics.chi2(comparison).mean())}
    if isinstance(predictor, ScaledPredictor):
        unexplained = predictor.noise_scale * raw.noise.double()
        total = predictor(pairs.inputs).variance.double().mean((0, *range(2, 2 + pairs.outputs.grid.dimension)))
        found |= {
            "scale": float(predictor.scale.max()),
            "noise_scale": float(predictor.noise_scale.max()),
            "noise_share": float((unexplained / total).mean()),
        }
    return found


def interval_coverage(predictor: pn.distributions.Predictor, pairs: pn.FieldPairs) -> dict[str, dict[str, float]]:
    """Coverage of central intervals of functionals of the predicted field."""
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
    """Coverage of new samples by conformal bands with separate calibration sets, and widths of the bands.

    The pool is divided into calibration sets. The coverage of a band from n samples at rank r is a Beta(r, n + 1 - r) variable
    with mean r/(n + 1), which the average over sets approximates.
    """
    size = min(SET, len(pool))
    kinds = {
        kind: [conformal_scores(predictor, some, modulation=kind) for some in (pool, fresh)] for kind in ("std", "constant")
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
    """Effect of an exact constraint on accuracy: the integral on periodic domains, values at two corners on others."""
    grid = truth.grid
    ends = [[axis.origin for axis in grid.axes], [axis.origin + axis.length for axis in grid.axes]]
    constraint = pn.functionals.integral(grid) if all(grid.periodic) else pn.functionals.sensors(grid, ends)
    wanted = constraint(truth.values)
    name = "integral" if all(grid.periodic) else "values at the ends"
    try:
        v = u.constrain(constraint, wanted)
    except ConstraintError as error:  # all draws fulfil it already, up to rounding
        return {"constraint": name, "reason": str(error)}
    before, after = (float(pn.metrics.relative_l2(pn.Field(field.mean, grid), truth).mean()) for field in (u, v))
    size = wanted.abs().max().clamp_min(truth.values.abs().max())
    return {
        "constraint": name,
        "residual_before": float((constraint(u.mean) - wanted).abs().max() / size),
        "residual_after": float((constraint(v.mean) - wanted).abs().max() / size),
        "relative_l2_ratio": after / before if before else None,
    }


def whole_coverage(predictor: pn.distributions.Predictor, pairs: pn.FieldPairs) -> float:
    """Fraction of samples inside bands with nine tenths of the draws, without conformal calibration."""
    inside = []
    for start in range(0, len(pairs), TOGETHER):
        some = pairs[start : start + TOGETHER]
        comparison = pn.metrics.compare(predictor(some.inputs), some.outputs, noise=predictor.noise)
        inside.append(pn.metrics.simultaneous_coverage(comparison, level=LEVEL))
    return float(torch.cat(inside).mean())
