"""Detection of shifts by novelty scores, and coverage of inflated error bars.

See `novelty_units` for the work on each problem. Nothing is fitted to named shifts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import kept_units, sections
from benchmarks.measurements import NOISE
from benchmarks.novelty_units import ALARM, ALL_KINDS, COMBINED, FAILED, LEVEL, LIKE, NOT_WIDENED, OTHER_KINDS, REFERRED, Unit
from benchmarks.over_seeds import CONFIDENCE, Row, grouped, half_width, mean_of

CLAIMED = ("amplitude", "roughness")
"""Shifts in the claim on inflated error bars."""
COVERAGE, WIDTH, DETECTED = 0.85, 1.3, 0.95
"""Least coverage there, largest relative width in distribution, and least AUROC."""

Results = Mapping[Unit, Mapping[str, Any]]


def main(*, mode: str, output: Path, workers: int, problem: str | None = None, seeds: int | None = None) -> dict[str, Any]:
    """Run all problems and seeds without stored results, and average."""
    todo = Unit.planned(mode, problem, seeds=seeds)

    def run() -> Results:
        results = kept_units.spread(todo, output / "novelty", workers=workers, notes=notes)
        notes.extend(kept_units.failures(row for one in results.values() for row in one[FAILED]))
        return results

    parts = {"detection": partial(averaged, table="detection"), "coverage": partial(averaged, table="coverage"), "shown": shown}
    notes = [
        "Problems, sizes and recipes as in `exact`, with samples and weights for each seed. Means over seeds; "
        f"±: half of Student's {CONFIDENCE:.0%} interval over seeds.",
        f"All outputs have measurement noise of {NOISE:g} of their root mean square, which is passed to scales: without noise, "
        "exact predictions have no scale.",
        f"Detection: AUROC of each score against test samples in distribution; flagged: combined p-value <= {ALARM}. "
        "Scores are fitted to half of the calibration samples; reference: to the training samples. "
        "Shifts of the equation do not change the inputs: no score of inputs can detect them.",
        f"Coverage: of pointwise intervals and of simultaneous bands, nominal {LEVEL}; bands are calibrated in distribution. "
        "Width: mean standard deviation of measurements, on the shift and in distribution, relative to that of the predictor "
        "without inflation in distribution; a mean over channels.",
        "Widening of other kinds: without synthetic shifts that resemble the tested one "
        f"({'; '.join(name + ': ' + ' and '.join(kinds) for name, kinds in LIKE.items())}).",
        "Nothing is fitted to named shifts. Synthetic shifts of Darcy's equation in two dimensions change the source only: "
        "the solver requires harmonic roots of permeabilities.",
        f"Shown: number of problems and shifts with an AUROC of {DETECTED} of the combined scores, if inputs change, and with "
        f"a coverage of {COVERAGE} on {' and '.join(CLAIMED)} at no more than {WIDTH} times the width in distribution. "
        "Means over seeds are compared.",
    ]
    return sections.write(
        "novelty",
        sections.made_of(run, parts),
        mode=mode,
        output=output,
        commit=todo[0].commit,
        chosen={"problem": problem},
        notes=notes,
        seeds=seeds,
    )


def averaged(results: Results, table: str) -> list[Row]:
    """Means over seeds."""
    keys = ("problem", "head", "shift", "inputs", "place", "widening")
    rows = []
    for own in grouped((row for result in results.values() for row in result[table]), keys).values():
        named = {key: own[0][key] for key in keys if key in own[0]}
        measures = [name for name in own[0] if name not in (*keys, "seed")]
        row = named | {"seeds": len(own)} | {name: mean_of(own, name) for name in measures}
        halves = {f"{name}, ±": half_width([one[name] for one in own]) for name in (COMBINED, "coverage") if name in row}
        rows.append(row | halves)
    return rows


def shown(results: Results) -> list[Row]:
    """Number of problems and shifts on which each head fulfils each claim, and the others."""
    detected, covered = (averaged(results, table) for table in ("detection", "coverage"))
    visible = dict.fromkeys((row["problem"], row["shift"]) for row in detected if row["inputs"] == "changed")
    claimed = [(problem, shift) for problem, shift in visible if shift in CLAIMED]
    rows = []
    for head in dict.fromkeys(row["head"] for row in (*detected, *covered)):
        told = {(row["problem"], row["shift"]): row for row in detected if row["head"] == head}
        for score in (COMBINED, REFERRED):
            missed = {place: _undetected(told.get(place), score) for place in visible}
            rows.append(_count(head, f"AUROC >= {DETECTED}, {score}", missed))
        bars = {(row["problem"], row["place"], row["widening"]): row for row in covered if row["head"] == head}
        for widening in (NOT_WIDENED, ALL_KINDS, OTHER_KINDS):
            missed = {place: _uncovered(bars.get((*place, widening))) for place in claimed}
            rows.append(_count(head, f"coverage >= {COVERAGE}, widened: {widening}", missed))
    return rows


def _count(head: str, claim: str, missed: Mapping[tuple[str, str], str | None]) -> Row:
    """One claim: number of problems and shifts that fulfil it, and those that do not."""
    short = [f"{problem}, {shift}: {found}" for (problem, shift), found in missed.items() if found is not None]
    return {"head": head, "claim": claim, "met": len(missed) - len(short), "of": len(missed), "missed": "; ".join(short)}


def _undetected(row: Row | None, score: str) -> str | None:
    """Deficit of a row of the first table, or None; NaN is a deficit."""
    if row is None:
        return "no row"
    return None if row[score] >= DETECTED else f"{row[score]:.3f}"


def _uncovered(row: Row | None) -> str | None:
    """Deficit of a row of the second table, or None; NaN is a deficit."""
    if row is None:
        return "no row"
    width = row["width in distribution"]
    parts = [] if row["coverage"] >= COVERAGE else [f"{row['coverage']:.3f}"]
    parts += [] if width <= WIDTH else [f"width {width:.2f}"]
    return ", ".join(parts) or None
