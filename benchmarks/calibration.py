"""Local scales and scale mixtures compared with one variance factor per channel.

See `calibration_units` for the work on each problem.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import kept_units, sections
from benchmarks.calibration_units import FAILED, WHOLE, Unit
from benchmarks.evaluation import CHANCE, COVERED, LEVEL
from benchmarks.over_seeds import Row, grouped, mean, mean_of

ATTAINABLE, MEANINGLESS, ERRORS = 0.9, 0.05, 2.0
"""Least fraction of the attainable rank correlation, least attainable value for it, tolerance of gaps in standard errors."""
FRONTS, FRONT_RANK = ("Burgers, viscosity 0.01", "Variable-speed advection, time 0.5"), 0.45
"""Problems with fronts, and the least rank correlation there."""
STEEPEST, WIDTH = (0.8, 1.25), 0.6
"""Limits of the mean square in the steepest tenth, and the largest width of a band relative to the constant one."""
CHANGES = (("one", "local"), ("local", "mixed"))
"""Compared scales."""


def main(*, mode: str, output: Path, workers: int, problem: str | None = None, seeds: int | None = None) -> dict[str, Any]:
    """Run all problems and seeds without stored results, and average."""
    todo = Unit.planned(mode, problem, seeds=seeds)
    repetitions = len({unit.seed for unit in todo})

    def run() -> list[Row]:
        found = kept_units.spread(todo, output / "calibration", workers=workers, notes=notes)
        notes.extend(kept_units.failures(row for unit in todo for row in found[unit][FAILED]))
        return [row for unit in todo for row in found[unit]["rows"]]

    notes = [
        "Problems, sizes and recipes as in `exact`, with four FNOs, samples and weights for each seed.",
        "scale: one variance factor per channel; local: the default VarianceScale; mixed: ScaleMixture after it. Calibration "
        "and scores: 200 samples each, on the same grid; joint densities and rank correlations: the first "
        f"{WHOLE[1]} in two dimensions. whole fields: fraction inside bands with {LEVEL:g} of the draws, without conformal "
        "calibration.",
        "rank_within: rank correlation of predicted deviation and error between the points of one sample; attainable: its mean "
        "for errors drawn from the predicted distribution. gap: attainable minus achieved value, with a standard error over "
        f"samples, not over trainings. of attainable: their ratio, meaningless for attainable values below {MEANINGLESS:g}.",
        "Steepest tenth: mean squared standardised error at the tenth of points where the predicted mean is steepest.",
        "band: width of conformal bands that follow the predicted deviation, relative to bands of constant width, both "
        "calibrated on the same sets of 50 samples and tested on the same others.",
        f"Shown: number of problems on which means over seeds reach {ATTAINABLE:g} of the attainable rank correlation (or, "
        f"for attainable values below {MEANINGLESS:g}, come within {ERRORS:g} standard errors of it), a rank correlation of "
        f"{FRONT_RANK:g} on problems with fronts, a steepest tenth from {STEEPEST[0]:g} to {STEEPEST[1]:g}, a band of at most "
        f"{WIDTH:g} of the constant one, and {COVERED[0]:g} to {COVERED[1]:g} of whole fields.",
        f"For a right model and 200 samples each for calibration and test, whole fields at {LEVEL:g} have a standard deviation "
        f"of {CHANCE:g}, {CHANCE / repetitions**0.5:.2g} over seeds: of ten problems it misses about one by chance.",
        "Variances of a kernel operator that solves a linear problem up to rounding are not scaled.",
    ]
    return sections.write(
        "calibration",
        sections.made_of(run, {"runs": list, "means": averaged, "gains": gains, "shown": shown}),
        mode=mode,
        output=output,
        commit=todo[0].commit,
        chosen={"problem": problem},
        notes=notes,
        seeds=seeds,
    )


def averaged(rows: Sequence[Row]) -> list[Row]:
    """Means over seeds per problem, head and scale."""
    keys = ("problem", "head", "scale")
    table = []
    for group, own in grouped(rows, keys).items():
        names = [name for name in own[0] if name not in (*keys, "seed")]
        row = dict(zip(keys, group, strict=True)) | {"seeds": len(own)} | {name: mean_of(own, name) for name in names}
        row["gap, error"] = root_sum_of_squares([one["gap, error"] for one in own])
        reached, attainable = row["rank_within"], row["rank_within_attainable"]
        is_known = reached is not None and attainable is not None and attainable >= MEANINGLESS
        row["of attainable"] = reached / attainable if is_known else None
        table.append(row)
    return table


def root_sum_of_squares(errors: Sequence[float | None]) -> float | None:
    """Standard error of a mean of independent values with these errors; None if one is missing.

    Examples:
        >>> root_sum_of_squares([3.0, 4.0]), root_sum_of_squares([1.0, None])
        (2.5, None)
    """
    known = [error for error in errors if error is not None]
    return math.hypot(*known) / len(known) if known and len(known) == len(errors) else None


def gains(rows: Sequence[Row]) -> list[Row]:
    """Differences between scales, paired by seed: mean and standard error per problem, head and change."""
    known = {(row["problem"], row["head"], row["seed"], row["scale"]): row for row in rows}
    table = []
    for (problem, head), own in grouped(rows, ("problem", "head")).items():
        seeds = list(dict.fromkeys(row["seed"] for row in own))
        for before, after in CHANGES:
            found = [tuple(known.get((problem, head, seed, scale)) for scale in (before, after)) for seed in seeds]
            pairs = [(one, two) for one, two in found if one is not None and two is not None]
            row: Row = {"problem": problem, "head": head, "from": before, "to": after, "seeds": len(pairs)}
            for name in ("nll", "joint_nll", "rank_within"):
                changes = [two[name] - one[name] for one, two in pairs if None not in (one[name], two[name])]
                row[name] = mean(changes)
                row[f"{name}, error"] = statistics.stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else None
            table.append(row)
    return table


def shown(rows: Sequence[Row]) -> list[Row]:
    """Number of problems on which each head and scale fulfils each claim, and the others."""
    claims: dict[str, Callable[[Row], str | None]] = {
        f"rank within >= {ATTAINABLE:g} of attainable": _rank_missed,
        f"rank within >= {FRONT_RANK:g} at fronts": _front_missed,
        f"steepest tenth in [{STEEPEST[0]:g}, {STEEPEST[1]:g}]": _steepest_missed,
        f"band <= {WIDTH:g} of the constant": _band_missed,
        f"whole fields in [{COVERED[0]:g}, {COVERED[1]:g}]": _whole_missed,
    }
    means = averaged(rows)
    problems = list(dict.fromkeys(row["problem"] for row in means))
    table = []
    for (head, scale), own in grouped(means, ("head", "scale")).items():
        known = {row["problem"]: row for row in own}
        for claim, missed in claims.items():
            asked = [name for name in problems if name in FRONTS] if missed is _front_missed else problems
            short = _short({name: known.get(name) for name in asked}, missed)
            row: Row = {"head": head, "scale": scale, "claim": claim, "met": len(asked) - len(short), "of": len(asked)}
            table.append(row | {"missed": "; ".join(short)})
    return table


def _short(rows: Mapping[str, Row | None], missed: Callable[[Row], str | None]) -> list[str]:
    found = {name: "no row" if row is None else missed(row) for name, row in rows.items()}
    return [f"{name}: {what}" for name, what in found.items() if what is not None]


def _rank_missed(row: Row) -> str | None:
    if row["of attainable"] is not None:
        return _outside(row["of attainable"], least=ATTAINABLE)
    gap, error = row["gap"], row["gap, error"]
    if gap is None or error is None:
        return "unknown"
    return None if abs(gap) <= ERRORS * error else f"gap {gap:.3f}, error {error:.3f}"


def _front_missed(row: Row) -> str | None:
    return _outside(row["rank_within"], least=FRONT_RANK)


def _steepest_missed(row: Row) -> str | None:
    return _outside(row["steepest tenth"], least=STEEPEST[0], most=STEEPEST[1])


def _band_missed(row: Row) -> str | None:
    return _outside(row["band"], most=WIDTH)


def _whole_missed(row: Row) -> str | None:
    return _outside(row["whole fields"], least=COVERED[0], most=COVERED[1])


def _outside(value: float | None, *, least: float = -math.inf, most: float = math.inf) -> str | None:
    """The value if it lies outside these limits, else None."""
    if value is None:
        return "unknown"
    return None if least <= value <= most else f"{value:.2f}"
