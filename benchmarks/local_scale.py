"""What variances that follow slope, level and position bring: `VarianceScale` with and without its local scale, side by side.

Per problem and seed: one FNO and its last-layer Laplace posterior, and the kernel operator; both scaled on the same calibration
functions, with one factor and with a local one, and scored on the same test functions. Nothing is fitted on test functions.
"""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import probneural as pn
from benchmarks import environment, evaluation, exact, kept_units, sections
from benchmarks.over_seeds import Row, grouped, mean
from probneural.errors import CalibrationError
from probneural.randomness import stream_seed

SEEDS = range(3)
_COLUMNS = ("nll", "joint_nll", "coverage", "simultaneous_coverage", "chi2", "rank_within", "rank_within_attainable")


@dataclass(frozen=True)
class Unit:
    """One problem under one seed.

    Attributes:
        problem: Its name in `exact`.
        seed: Of functions and weights.
        commit: Of the code.
        is_small: Whether it takes seconds and means nothing.
    """

    problem: str
    seed: int
    commit: str
    is_small: bool = False

    @property
    def name(self) -> str:
        """For readers of the progress."""
        return f"{self.problem}, seed {self.seed}"

    def path(self, folder: Path) -> Path:
        """Where its rows are kept."""
        return folder / environment.file_name(self.name, self, suffix=".json")

    def run(self, folder: Path) -> dict[str, Any]:
        """Do it."""
        return {"rows": run(self.problem, self.seed, small=self.is_small)}


def main(*, mode: str, output: Path, workers: int) -> dict[str, Any]:
    """Run all problems and seeds, and average; finished ones of the same commit are not repeated."""
    rows: list[Row] = []
    commit, is_small = environment.commit(), mode == "small"

    def runs() -> list[Row]:
        names = [case.source.name for case in exact.chosen("full") if isinstance(case.source, exact.ProblemSource)]
        names, seeds = (names[:1], range(1)) if is_small else (names, SEEDS)
        todo = [Unit(name, seed, commit, is_small) for seed in seeds for name in names]
        found = kept_units.spread(todo, output / "local-scale", workers=workers)
        rows.extend(row for unit in todo for row in found[unit]["rows"])
        return rows

    return sections.write(
        "local-scale",
        {"runs": runs, "means": lambda: averaged(rows), "gains": lambda: gains(rows)},
        mode=mode,
        output=output,
        commit=commit,
        notes=[
            "Problems, sizes and recipes as in `exact`; functions and weights are drawn anew for each seed.",
            "Calibration: 200 functions. Scores: 200 others of the same grid.",
            "Steepest tenth: mean of squared standardised errors at the tenth of points where the predicted mean is steepest.",
            "A kernel operator that solves a linear problem up to rounding has nothing to scale, and no row.",
        ],
    )


def averaged(rows: list[Row]) -> list[Row]:
    """Means over seeds per problem, head and scale."""
    keys = ("problem", "head", "scale")
    table = []
    for group, own in grouped(rows, keys).items():
        names = [name for name in own[0] if name not in (*keys, "seed")]
        table.append(dict(zip(keys, group, strict=True)) | {name: mean(row[name] for row in own) for name in names})
    return table


def gains(rows: list[Row]) -> list[Row]:
    """What the local scale changes, paired by seed: mean and standard error, per problem and head."""
    known = {(row["problem"], row["head"], row["seed"], row["scale"]): row for row in rows}
    pairs: dict[tuple[str, str], list[tuple[Row, Row]]] = {(row["problem"], row["head"]): [] for row in rows}
    for problem, head, seed, scale in known:
        if scale == "local":
            pairs[problem, head].append((known[problem, head, seed, "one"], known[problem, head, seed, "local"]))
    table = []
    for (problem, head), own in pairs.items():
        row: Row = {"problem": problem, "head": head, "seeds": len(own)}
        for name in ("nll", "joint_nll", "rank_within"):
            changes = [after[name] - before[name] for before, after in own if None not in (before[name], after[name])]
            row[name] = mean(changes)
            row[f"{name}, error"] = statistics.stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else None
        table.append(row)
    return table


def run(name: str, seed: int, *, small: bool = False) -> list[Row]:
    """Train, fit heads, scale them in both ways, and score."""
    torch.set_num_threads(1)
    (case,) = exact.chosen("small" if small else "full", problem=name)
    source = case.source
    assert isinstance(source, exact.ProblemSource)
    train, calibration, test = (
        source.problem.sample(count, resolution=source.resolution, seed=stream_seed(seed, "local-scale functions", part))
        for part, count in enumerate((source.pairs, source.fields, source.fields))
    )
    (recipe,) = [recipe for recipe in case.operators if recipe.kind == "FNO"]
    operator, _, _ = recipe.train(train, seed=stream_seed(seed, "local-scale recipe"), tick=lambda: None)
    heads = {
        "last-layer Laplace": pn.heads.LastLayerLaplace().fit(operator, train),
        "kernel operator": pn.heads.KernelOperator().fit(None, train),
    }
    rows = []
    for head, raw in heads.items():
        with contextlib.suppress(CalibrationError):
            for scale in ("one", "local"):
                predictor = pn.calibration.VarianceScale(local=scale == "local").fit(raw, calibration)
                rows.append({"problem": name, "head": head, "scale": scale, "seed": seed} | _scores(predictor, test))
    return rows


def _scores(predictor: pn.distributions.Predictor, test: pn.FieldPairs) -> Row:
    """Scores of the fields, and of quantities of interest."""
    u = predictor(test.inputs)
    scores = pn.metrics.score(u, test.outputs, noise=predictor.noise).to_dict()
    found = {name: scores[name] for name in _COLUMNS}
    squares = (test.outputs.values.double() - u.mean.double()).square() / u.variance.double()
    found["steepest tenth"] = float(squares[_is_steep(u.mean.double(), u.grid)].mean())
    for name, levels in evaluation.interval_coverage(predictor, test).items():
        found[f"{name}, 0.9"] = levels["0.9"]
    return found


def _is_steep(mean: torch.Tensor, grid: pn.Grid) -> torch.Tensor:
    """Where the predicted mean is steepest: a tenth of the points, over all functions."""
    slopes = torch.zeros_like(mean)
    for axis in range(grid.dimension):
        step = grid.lengths[axis] / grid.shape[axis]
        slopes += torch.gradient(mean, spacing=step, dim=2 + axis)[0].square()
    return slopes >= slopes.flatten().quantile(0.9)
