"""Work items of the calibration benchmark: heads on one problem and seed, with one factor, a local scale and a scale mixture.

All heads share four trained FNOs: the last-layer posterior of the first, the mixture of those of the first two, and the
ensemble of all. The kernel operator needs none. All are scaled on the same calibration and scored on the same test
samples.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import torch

import probneural as pn
from benchmarks import evaluation
from benchmarks.head_makers import DEFAULT, ENSEMBLE, KERNEL, Data, Workshop
from benchmarks.kept_units import noted
from benchmarks.over_seeds import Row
from benchmarks.problem_units import ProblemUnit
from probneural.randomness import stream_seed

HEADS = (DEFAULT, KERNEL, "mixture of 2", ENSEMBLE)
SCALES = ("one", "local", "mixed")
"""One variance factor per channel, a local scale, and a local scale with a scale mixture."""
WHOLE = (200, 40)
"""Test samples of joint densities and rank correlations, by dimension."""
BLOCKS = 10
"""Blocks of these samples for standard errors."""
FAILED = "failed"
_COLUMNS = ("nll", "joint_nll", "coverage", "chi2", "rank_within", "rank_within_attainable")


class Unit(ProblemUnit):
    """Heads on one problem and seed, with every scale."""

    def run(self, folder: Path) -> dict[str, Any]:
        """Train, fit heads, apply all scales, and score."""
        del folder
        source = self.source
        train, calibration, test, pool = (
            source.problem.sample(
                count, resolution=source.resolution, seed=stream_seed(self.seed, "local-scale functions", part)
            )
            for part, count in enumerate((source.pairs, *[source.fields] * 3))
        )
        exactly = torch.zeros(train.outputs.channels, dtype=torch.float64)
        shop = Workshop(self.case.recipe("FNO"), Data(train, calibration, calibration, exactly), seed=self.seed)
        rows: list[Row] = []
        failed: list[Row] = []
        for head in HEADS:
            whose = {"problem": source.name, "head": head, "seed": self.seed}
            own: list[Row] = []
            with noted(own, "head"):
                raw = shop.head(head).predictor
                for scale in SCALES:
                    with noted(own, f"scale {scale}"):
                        predictor: pn.distributions.Predictor
                        predictor = pn.calibration.VarianceScale(local=scale != "one").fit(raw, calibration)
                        if scale == "mixed":
                            predictor = pn.calibration.ScaleMixture(seed=self.seed).fit(predictor, calibration)
                        rows.append(whose | {"scale": scale} | scores(predictor, test, pool, failed=own))
            failed += [whose | row for row in own]
        return {"rows": rows, FAILED: failed}


def scores(predictor: pn.distributions.Predictor, test: pn.FieldPairs, pool: pn.FieldPairs, *, failed: list[Row]) -> Row:
    """Scores of the fields, of bands, and of quantities of interest."""
    u = predictor(test.inputs)
    whole = WHOLE[min(test.outputs.grid.dimension, 2) - 1]
    known = pn.metrics.score(u, test.outputs, noise=predictor.noise, whole=whole).to_dict()
    found: Row = {name: known[name] for name in _COLUMNS}
    found["whole fields"] = evaluation.whole_coverage(predictor, test)
    found |= gap(predictor, test[:whole])
    squares = (test.outputs.values.double() - u.mean.double()).square() / u.variance.double()
    found["steepest tenth"] = float(squares[is_steep(u.mean.double(), u.grid)].mean())
    bands: dict[str, float] = {}
    with noted(failed, "band"):
        bands = evaluation.bands(predictor, pool, test)
    found |= {"band": bands.get("width_ratio"), "band coverage": bands.get("coverage")}
    found["constant band coverage"] = bands.get("constant_coverage")
    for name, levels in evaluation.interval_coverage(predictor, test).items():
        found[f"{name}, 0.9"] = levels["0.9"]
    return found


def gap(predictor: pn.distributions.Predictor, pairs: pn.FieldPairs) -> Row:
    """Difference of attainable and achieved rank correlation within samples, and its standard error."""
    size = len(pairs) // BLOCKS
    gaps = []
    for start in range(0, size * BLOCKS, size):
        some = pairs[start : start + size]
        comparison = pn.metrics.compare(predictor(some.inputs), some.outputs, noise=predictor.noise)
        ranks = pn.metrics.rank_correlation(comparison)
        gaps.append(float((ranks.attainable_within - ranks.within).mean()))
    if not all(map(math.isfinite, gaps)):  # a constant standard deviation has no ranks
        return {"gap": None, "gap, error": None}
    return {"gap": statistics.fmean(gaps), "gap, error": statistics.stdev(gaps) / BLOCKS**0.5}


def is_steep(mean: torch.Tensor, grid: pn.Grid) -> torch.Tensor:
    """True at the tenth of all points with the steepest predicted mean."""
    slopes = torch.zeros_like(mean)
    for axis in range(grid.dimension):
        step = grid.lengths[axis] / grid.shape[axis]
        slopes += torch.gradient(mean, spacing=step, dim=2 + axis)[0].square()
    return slopes >= slopes.flatten().quantile(0.9)
