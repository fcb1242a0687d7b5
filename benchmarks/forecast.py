"""Probabilistic forecasts on equations with exact trajectories: comparison of draws, heads and trainings.

Networks of one step are trained on windows of exact trajectories. Heads give posteriors, whose draws are rolled out.
Forecasts are scaled by lead on some trajectories and scored on others. Trainings take equal time. Each
finished work item is stored, so an interrupted benchmark continues.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import environment, forecast_cases, forecast_units, kept_units, sections
from benchmarks.forecast_cases import Sizes
from benchmarks.forecast_units import BASELINES, BOUND, CHOICE, LEVEL, ONE_FACTOR, POSTERIORS, VALID, Unit
from benchmarks.over_seeds import CONFIDENCE, Row, average, difference, mean, ratio

SEEDS = range(20, 23)
"""Seeds of functions, weights and draws; smaller seeds were used during development of `LeadScale`."""
SKILL_RANGE, POINTS = (0.9, 1.1), 0.02
"""Range of the spread-skill ratio at every lead, and tolerance of the coverage of whole trajectories."""
REFERENCE = "one step, residuals"
"""Reference forecast: the network of one step plus its errors on other trajectories."""
Results = Mapping[Unit, Mapping[str, Any]]

NOTES = (
    "each seed has its own trajectories, weights and draws, which all methods share; means over seeds. Intervals are "
    f"{CONFIDENCE:.0%} intervals of Student's t over seeds, of the logarithms of ratios",
    "CRPS: fair, relative to that of the climatology, the distribution of the states at that lead; 'all' is over all leads. "
    f"'over residuals': CRPS over all leads relative to that of '{REFERENCE}', one state per lead plus its errors on the "
    "scaling trajectories; below 1 is better",
    "posteriors are scaled on trajectories without part in training and scores: the variance of one step before the roll-out "
    "(VarianceScale), roll-outs by lead with a factor that varies in space (LeadScale); 'raw' is before the latter. "
    f"spread-skill: least and largest ratio over leads. coverage: pointwise, nominal {LEVEL:g}; horizon: of whole "
    "trajectories at all points and leads, by ranks among the members; band: of whole trajectories by a conformal band "
    f"(HorizonBand) from {Sizes().bands} other trajectories (shallow water: fewer)",
    f"scales: effect of LeadScale. raw: without it; {ONE_FACTOR}: one factor per lead (local=False); local: the default. CRPS "
    "is over all leads, relative to that with one factor, paired by seed",
    "all forecasts start at the second state of a trajectory",
    f"the kernel operator is fitted to {Sizes().kernel} windows, evenly spread over all. A low-rank posterior is omitted: "
    "its scaled linearised draws need the variance at every state of a member, at the cost of a gradient per value of the "
    "field; and roll-outs of operators with weights drawn from it were not finite by lead 12, on Burgers' equation",
    "verdicts: the posterior of networks with results for all seeds and the least mean CRPS on the scaling trajectories, so "
    "test trajectories select nothing; regions of members are those of 'horizon'. Met if, in means over seeds, spread over "
    f"skill is in {SKILL_RANGE[0]:g} to {SKILL_RANGE[1]:g} at every lead and the band's coverage within {POINTS:g} of "
    f"{LEVEL:g}. Both vary by chance, if few samples dominate the errors: see seeds and interval",
    "recipes take equal time, by the median cost of a batch over six equations, in whole epochs; seconds are processor time. "
    f"error: relative L2. valid: leads until it exceeds {VALID:g}. stable: number of starts from which the long roll-out "
    f"stays below {BOUND:g} times the largest true norm",
)


def chosen(problem: str | None) -> list[forecast_cases.Case]:
    """Problems of a run: all, or those whose names start with a text."""
    return forecast_cases.chosen(problem, small=False)


def main(*, mode: str, output: Path, workers: int, problem: str | None = None) -> dict[str, Any]:
    """Run all problems, or those whose names start with a text, and write their tables."""
    small = mode == "small"
    commit = environment.commit()
    todo = forecast_cases.chosen(problem, small=small)
    notes = list(NOTES)

    def run() -> Results:
        every = forecast_units.units(todo, seeds=SEEDS[:1] if small else SEEDS, commit=commit)
        results = kept_units.spread(every, output / "forecast", workers=workers, notes=notes)
        notes.extend([*costs(results), *failures(results)])
        return results

    def table(results: Results, *, rows: Any) -> list[Row]:
        return [row for case in todo for row in rows(case.name, results)]

    return sections.write(
        "forecast",
        sections.made_of(run, {name: partial(table, rows=rows) for name, rows in TABLES.items()}),
        mode=mode,
        output=output,
        notes=notes,
        commit=commit,
        chosen={"problem": problem},
    )


def posterior_rows(problem: str, results: Results) -> list[Row]:
    """One row per forecast: scores over leads, and CRPS relative to the reference."""
    every = _methods(problem, results)
    rows = []
    for name, runs in every.items():
        row: Row = {"problem": problem, "forecast": name, "seeds": len(runs)}
        rows.append(row)
        if not runs:
            continue
        leads = len(next(iter(runs.values()))["scores"]["crps"]["values"])
        skill = {seed: _skill(run, every["climatology"][seed]) for seed, run in runs.items()}
        for lead in _shown(leads):
            row[f"CRPS {lead}"] = mean(one["values"][lead - 1] for one in skill.values())
        row["CRPS all"] = mean(one["overall"] for one in skill.values())
        own, other = (
            {seed: run["scores"]["crps"]["overall"] for seed, run in some.items()} for some in (runs, every.get(REFERENCE, {}))
        )
        row["over residuals"] = ratio([own[seed] / other[seed] for seed in own if seed in other])
        row["spread-skill"] = _range([run["scores"]["spread_skill"]["values"] for run in runs.values()])
        raw = [run["raw"]["scores"]["spread_skill"]["values"] for run in runs.values() if "raw" in run]
        row["raw"] = _range(raw) if raw else None
        row["coverage"] = mean(run["scores"]["coverage"]["overall"] for run in runs.values())
        row["horizon"] = mean(run["horizon"]["coverage"][0] for run in runs.values())
        row["band"] = mean(run["band"] for run in runs.values())
        row["energy"] = mean(
            run["scores"]["energy"]["overall"] / every["climatology"][seed]["scores"]["energy"]["overall"]
            for seed, run in runs.items()
        )
        row["valid"] = mean(run["horizon"]["valid_time"][0] for run in runs.values())
    return rows


def verdict_rows(problem: str, results: Results) -> list[Row]:
    """One row: test scores of the head that is best on the scaling trajectories."""
    methods = {
        name: list(runs.values())
        for name, runs in _methods(problem, results).items()
        if runs and all(CHOICE in run for run in runs.values()) and not name.startswith("kernel")
    }
    seeds = max(map(len, methods.values()), default=0)
    means = {name: mean(run[CHOICE] for run in runs) for name, runs in methods.items() if len(runs) == seeds}
    known = {name: value for name, value in means.items() if value is not None}
    if not known:
        return []
    name = min(known, key=lambda one: known[one])
    runs = methods[name]
    ratios = [run["scores"]["spread_skill"]["values"] for run in runs]
    bands, own = [run["band"] for run in runs], [run["horizon"]["coverage"][0] for run in runs]
    within = all(each is not None and SKILL_RANGE[0] <= each <= SKILL_RANGE[1] for each in _by_lead(ratios))
    band = mean(bands)
    return [
        {
            "problem": problem,
            "best forecast": name,
            "spread-skill": _range(ratios),
            "seeds, where furthest from 1": _by_seed(ratios),
            "pointwise coverage": mean(run["scores"]["coverage"]["overall"] for run in runs),
            "members' own regions": _interval(own),
            "band": _interval(bands),
            "spread-skill met": "yes" if within else "no",
            "band met": "yes" if band is not None and abs(band - LEVEL) <= POINTS else "no",
        }
    ]


def scale_rows(problem: str, results: Results) -> list[Row]:
    """One row per scaled forecast: one factor per lead compared with local scales."""
    rows = []
    for name, every in _methods(problem, results).items():
        runs = [run for run in every.values() if ONE_FACTOR in run]
        if not runs:
            continue
        row: Row = {"problem": problem, "forecast": name, "seeds": len(runs)}
        own, other = ([run["scores"]["crps"]["overall"] for run in some] for some in (runs, [run[ONE_FACTOR] for run in runs]))
        row["CRPS"] = ratio([one / two for one, two in zip(own, other, strict=True)])
        ways = {"raw": [run["raw"] for run in runs], ONE_FACTOR: [run[ONE_FACTOR] for run in runs], "local": runs}
        for way, some in ways.items():
            row[f"spread-skill, {way}"] = _range([run["scores"]["spread_skill"]["values"] for run in some])
        for way, some in ways.items():
            row[f"coverage, {way}"] = mean(run["scores"]["coverage"]["overall"] for run in some)
        for way, some in ways.items():
            row[f"horizon, {way}"] = mean(run["horizon"]["coverage"][0] for run in some)
        rows.append(row)
    return rows


def recipe_rows(problem: str, results: Results) -> list[Row]:
    """One row per recipe: errors of roll-outs relative to the recipe of one step."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for unit, result in results.items():
        if (unit.case.name, unit.kind) == (problem, "recipes"):
            found.setdefault(unit.recipe, {})[unit.seed] = result
    rows = []
    for name, runs in found.items():
        leads = len(next(iter(runs.values()))["errors"])
        row: Row = {"problem": problem, "training": name, "seeds": len(runs)}
        row["epochs"] = next(iter(runs.values()))["epochs"]
        row["seconds"] = mean(run["seconds"] for run in runs.values())
        for lead in _shown(leads):
            row[f"error {lead}"] = mean(run["errors"][lead - 1] for run in runs.values())
        ratios = [run["errors"][-1] / found["one step"][seed]["errors"][-1] for seed, run in runs.items()]
        row[f"error {leads} over one step"] = ratio(ratios)
        gains = [run["valid"] - found["one step"][seed]["valid"] for seed, run in runs.items()]
        row["valid"] = mean(run["valid"] for run in runs.values())
        row["gain in valid"] = difference(gains, digits=1)
        row["stable"] = mean(run["stable"] for run in runs.values())
        rows.append(row)
    return rows


TABLES = {"verdicts": verdict_rows, "posteriors": posterior_rows, "scales": scale_rows, "recipes": recipe_rows}


def costs(results: Results) -> list[str]:
    """A note on costs of work items."""
    kinds = {kind: [one["processor_seconds"] for unit, one in results.items() if unit.kind == kind] for kind in KINDS}
    said = ", ".join(f"{kind} {statistics.median(seconds):.0f} s" for kind, seconds in kinds.items() if seconds)
    return [f"a unit of one problem, recipe and seed takes, in the median, of one processor: {said}"]


KINDS = ("recipes", BASELINES, "posteriors")


def failures(results: Results) -> list[str]:
    """Notes on failed forecasts."""
    return [
        f"failed: {unit.name}, {method}: {found['failed']}"
        for unit, result in results.items()
        for method, found in result.get("methods", {}).items()
        if "failed" in found
    ]


def _methods(problem: str, results: Results) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Results by forecast and seed without failures; forecasts without network first."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for recipe in ("", *POSTERIORS):
        for unit, result in results.items():
            if unit.case.name != problem or unit.kind == "recipes" or unit.recipe != recipe:
                continue
            for method, scores in result["methods"].items():
                own = found.setdefault(f"{recipe}, {method}" if recipe else method, {})
                if "failed" not in scores:
                    own[unit.seed] = scores
    return found


def _skill(run: Mapping[str, Any], climate: Mapping[str, Any]) -> dict[str, Any]:
    """CRPS relative to the climatology, by lead and over all leads."""
    own, other = run["scores"]["crps"], climate["scores"]["crps"]
    values = [one / two for one, two in zip(own["values"], other["values"], strict=True)]
    return {"values": values, "overall": own["overall"] / other["overall"]}


def _shown(leads: int) -> list[int]:
    return sorted({1, min(5, leads), leads})


def _by_lead(ratios: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Means over seeds; None if a seed has no value, such as for equal members."""
    return [mean(values) for values in zip(*ratios, strict=True)]


def _range(ratios: Sequence[Sequence[float | None]]) -> str:
    """Least and largest mean over seeds among leads, and the number of leads without a mean."""
    every = _by_lead(ratios)
    means = [value for value in every if value is not None]
    if not means:
        return ""
    unknown = f", {len(every) - len(means)} of {len(every)} unknown" if len(means) < len(every) else ""
    return f"{min(means):.2f} to {max(means):.2f}{unknown}"


def _by_seed(ratios: Sequence[Sequence[float | None]]) -> str:
    """Values of seeds at the lead whose mean is furthest from 1, and this lead."""
    distances = [-1.0 if value is None or value <= 0 else abs(math.log(value)) for value in _by_lead(ratios)]
    if not max(distances, default=-1.0) >= 0:
        return ""
    lead = distances.index(max(distances))
    return f"{', '.join(f'{run[lead]:.2f}' for run in ratios)} (lead {lead + 1})"


def _interval(values: Sequence[float | None]) -> str | None:
    """Mean over seeds with its interval; None if a seed has no value."""
    known = [value for value in values if value is not None]
    return average(known, digits=3) if len(known) == len(values) else None
