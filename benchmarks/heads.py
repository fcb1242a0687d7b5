"""Comparison of heads with the same networks, data and calibration, and with their cost.

Per problem, operator, amount of data and seed, every head is fitted to networks of one recipe, scaled by `VarianceScale` on
the same held-out samples, and tested on others. Finished work items are stored, so an interrupted
benchmark continues.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from scipy.stats import studentized_range

from benchmarks import environment, exact, head_figure, head_units, kept_units, sections
from benchmarks.evaluation import CHANCE, COVERED
from benchmarks.head_makers import BRIEF, DEFAULT, ENSEMBLE, HEADS
from benchmarks.head_units import FEW, LEVEL, Unit
from benchmarks.measurements import NOISE
from benchmarks.over_seeds import CONFIDENCE, Row, difference, grouped, half_width, mean, mean_of, ratio
from probneural.calibration import VarianceScale

SEEDS = {"default": 2, "full": 5, "small": 1}
"""Default numbers of seeds."""
OPERATORS = ("FNO", "DeepONet")
"""Operators; the first is that of the default run."""
COMPARED = ("joint_nll", "crps", "energy")
"""Scores in ranks and comparisons; lower is better."""
AFFORDED = 2
"""Largest cost in trainings in the last column of `wins`."""
NOTES = (
    "means over seeds with separate samples, weights and batches, which all heads share. Every head is scaled by "
    f"{VarianceScale()!r} on the same 200 samples (100 in two dimensions), and tested on the same number of others; stacking "
    "fits its weights to these scaling samples, and scales its predictors on further ones",
    f"all outputs have measurement noise of {NOISE:g} of their root mean square, which is passed to all scales: without noise, "
    "exact predictions have no density",
    f"coverage and width: central intervals at {LEVEL:g}; simultaneous: coverage of fields. auroc: of the predicted variance, "
    "for samples from shifts. raw chi2: before scales",
    f"relative to the ensemble: differences of nats, ratios of others, paired by seed; {CONFIDENCE:.0%} intervals of Student's",
    "wins: number of problems on which a head's mean over seeds is lower than the ensemble's; clearly: by more than half the "
    "interval. cost: processor seconds of trainings, head, scales and weights of stacking, in units of one training; median "
    "and largest over problems",
    "ranks: 1 is best, over problems, operators and amounts of data; means over seeds are ranked. The critical difference is "
    f"Nemenyi's at {1 - CONFIDENCE:.1g}",
    f"with few samples there are up to {head_units.EVALUATIONS} times the epochs, never more evaluations than with all",
    "random scale: ScaleMixture after VarianceScale, on the same samples. whole: fraction of test samples inside bands with "
    f"{LEVEL:g} of the draws; coverage: pointwise",
    f"whole fields: number of problems with a mean fraction between {COVERED[0]:g} and {COVERED[1]:g}. For a right model its "
    f"standard deviation is {CHANCE:g} for one seed in one dimension",
)
"""Notes for readers."""
_HEAD = ("problem", "operator", "regime", "head")
_LOGARITHMIC = ("joint_nll",)
"""Scores compared by differences; others by ratios."""


def chosen(mode: str, problem: str | None, *, operator: str | None = None) -> list[tuple[str, str]]:
    """Problems and operators of a run: by default FNOs, and DeepONets too unless it is the default run.

    Raises:
        ValueError: If no name of a problem starts with the text, or no problem has that operator.
    """
    cases = exact.chosen("full", problem=problem)
    cases = cases[:1] if mode == "small" else cases
    kinds = (operator,) if operator else OPERATORS[:1] if mode == "default" else OPERATORS
    found = [(case.source.name, recipe.kind) for case in cases for recipe in case.operators if recipe.kind in kinds]
    if not found:
        raise ValueError(f"{', '.join(case.source.name for case in cases)}: no {' and no '.join(kinds)} there")
    return found


def main(
    *,
    mode: str,
    output: Path,
    workers: int,
    problem: str | None = None,
    operator: str | None = None,
    functions: int | None = None,
    seeds: int | None = None,
) -> dict[str, Any]:
    """Run all work items and tabulate their rows."""
    repetitions = seeds or SEEDS[mode]
    commit = environment.commit()
    sizes = head_units.SMALL if mode == "small" else head_units.Sizes()
    part = {"problem": problem, "operator": operator, "functions": functions}
    amounts = (functions,) if functions else (None,) if mode == "default" else (None, FEW)

    @cache
    def run() -> dict[str, list[Row]]:
        todo = [
            Unit(name, kind, pairs, seed, commit, sizes, *((BRIEF, 1) if mode == "default" else (tuple(HEADS), 2)))
            for seed in range(repetitions)
            for name, kind in chosen(mode, problem, operator=operator)
            for pairs in amounts
        ]
        found = kept_units.spread(todo, output / "heads", workers=workers, notes=notes)
        every = {part: [row for unit in todo for row in found[unit][part]] for part in ("rows", "random scale")}
        notes.extend(failures(every["rows"]))
        seconds = [sum(found[unit]["processor_seconds"] for unit in todo if unit.seed == seed) for seed in range(repetitions)]
        notes.append(f"a seed takes {statistics.median(seconds):.0f} s of one processor")
        return every

    parts: dict[str, Callable[[Sequence[Row]], list[Row]]] = {
        "scores": averaged,
        "beside the ensemble": compared,
        "wins": wins,
        "joint densities": partial(side_by_side, name="joint_nll"),
        "crps": partial(side_by_side, name="crps"),
        "whole functions": partial(side_by_side, name="simultaneous_coverage"),
        "ranks": ranked,
        "costs": costs,
    }
    randomly = {"random scale": random_scale, "whole fields": whole_fields}
    notes = list(NOTES)
    results = sections.write(
        "heads",
        sections.made_of(lambda: run()["rows"], parts) | sections.made_of(lambda: run()["random scale"], randomly),
        mode=mode,
        output=output,
        notes=notes,
        commit=commit,
        chosen=part,
        seeds=seeds,
    )
    image = output / f"{sections.stem('heads', chosen=part)}.png"
    environment.write_bytes(head_figure.against_cost(points(run()["rows"])), image)
    return results


def points(rows: Sequence[Row]) -> list[Row]:
    """Cost in trainings and mean scores relative to the ensemble, for each problem and head."""
    costs = _costs(rows)
    table: list[Row] = []
    for group, own in _beside_the_ensemble(rows).items():
        row: Row = dict(zip(_HEAD, group, strict=True)) | {"cost": costs[group]}
        for name in head_figure.PANELS:
            found = mean(_differences(own[name], name))
            row[name] = found if found is None or name in _LOGARITHMIC else math.exp(found)
        table.append(row)
    return table


def random_scale(rows: Sequence[Row]) -> list[Row]:
    """Effect of a scale mixture, paired by seed: coverages, and scores with intervals."""
    table = []
    for group, own in grouped(rows, _HEAD).items():
        line: Row = dict(zip(_HEAD, group, strict=True)) | {"seeds": len(own)}
        for name in ("whole", "coverage"):
            line |= {
                title: mean_of(own, f"{name}, {scale}") for scale, title in (("scale", name), ("random", f"{name}, random"))
            }
        for name in ("joint_nll", "crps"):
            pairs = [(row[f"{name}, random"], row[f"{name}, scale"]) for row in own]
            known = [(one, other) for one, other in pairs if one is not None and other is not None]
            is_difference = name in _LOGARITHMIC
            line[name] = (
                difference([one - other for one, other in known], digits=3)
                if is_difference
                else ratio([one / other for one, other in known])
            )
        table.append(line)
    return table


def whole_fields(rows: Sequence[Row]) -> list[Row]:
    """Number of problems with nominal simultaneous coverage, with one scale and with a scale mixture."""
    table = []
    for (operator, regime, head), own in grouped(rows, _HEAD[1:]).items():
        for scale in ("scale", "random"):
            shares = {name: mean_of(some, f"whole, {scale}") for (name,), some in grouped(own, ("problem",)).items()}
            known = {name: share for name, share in shares.items() if share is not None}
            missed = {name: share for name, share in known.items() if not COVERED[0] <= share <= COVERED[1]}
            line: Row = {"operator": operator, "regime": regime, "head": head, "random scale": scale == "random"}
            line |= {"met": len(known) - len(missed), "of": len(known)}
            table.append(line | {"missed": "; ".join(f"{name}: {share:.3f}" for name, share in missed.items())})
    return table


def averaged(rows: Sequence[Row]) -> list[Row]:
    """Means over seeds by problem, operator, amount of data, test set and head."""
    keys = ("problem", "operator", "regime", "on", "head")
    names = (*head_units.SCORES, "auroc")
    return [
        dict(zip(keys, group, strict=True)) | {"seeds": len(own)} | {name: mean_of(own, name) for name in names}
        for group, own in grouped(rows, keys).items()
    ]


def compared(rows: Sequence[Row]) -> list[Row]:
    """Every head relative to the ensemble of four, in distribution, with intervals over seeds."""
    table = []
    for group, own in _beside_the_ensemble(rows).items():
        line: Row = dict(zip(_HEAD, group, strict=True)) | {"seeds": max(len(pairs) for pairs in own.values())}
        line |= {
            name: difference(_differences(pairs, name), digits=2)
            if name in _LOGARITHMIC
            else ratio([one / other for one, other in pairs])
            for name, pairs in own.items()
        }
        table.append(line)
    return table


def wins(rows: Sequence[Row]) -> list[Row]:
    """Number of problems on which a head beats the ensemble on joint NLL and CRPS, by means and beyond intervals; cost."""
    table = []
    found = _beside_the_ensemble(rows)
    costs = _costs(rows)
    for head in dict.fromkeys(group[-1] for group in found):
        own = {group: pairs for group, pairs in found.items() if group[-1] == head}
        line: Row = {"head": head, "problems": len(own)}
        for name in ("joint_nll", "crps"):
            line[name] = sum(_is_lower(pairs[name], name) for pairs in own.values())
        for title, clearly in (("both", False), ("both, clearly", True)):
            line[title] = sum(_beats(pairs, clearly=clearly) for pairs in own.values())
        line["cost"] = statistics.median(costs[group] for group in own)
        line["largest cost"] = max(costs[group] for group in own)
        line[f"both, cost up to {AFFORDED}"] = sum(costs[group] <= AFFORDED and _beats(pairs) for group, pairs in own.items())
        table.append(line)
    return table


def side_by_side(rows: Sequence[Row], *, name: str, shifted: bool = False) -> list[Row]:
    """One score in distribution or under shifts, as means over seeds, with a row per problem and a column per head."""
    keys = ("problem", "operator", "regime", *(("on",) if shifted else ()))
    chosen = [row for row in rows if (row["on"] != "in distribution") == shifted]
    return [
        dict(zip(keys, group, strict=True)) | {head: mean_of(some, name) for (head,), some in grouped(own, ("head",)).items()}
        for group, own in grouped(chosen, keys).items()
    ]


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Mean ranks of heads over problems, operators and amounts of data, with the critical difference."""
    ordinary = [row for row in rows if row["on"] == "in distribution"]
    heads = list(dict.fromkeys(row["head"] for row in rows))
    table: list[Row] = [{"head": head} for head in heads]
    for name in COMPARED:
        places: list[dict[str, float]] = []
        for own in grouped(ordinary, ("problem", "operator", "regime")).values():
            means = {head: mean_of(some, name) for (head,), some in grouped(own, ("head",)).items()}
            if len(means) == len(heads) and None not in means.values():
                order = sorted(means, key=lambda head: means[head] or 0.0)
                places.append({head: order.index(head) + 1.0 for head in order})
        for line in table:
            line[name] = statistics.fmean(place[line["head"]] for place in places) if places else None
        table[0].setdefault("blocks", len(places))
    blocks = table[0]["blocks"]
    for line in table:
        line["critical difference"] = critical_difference(len(heads), blocks) if blocks else None
        line["blocks"] = blocks
    return table


def costs(rows: Sequence[Row]) -> list[Row]:
    """Processor seconds of trainings and head, and variance factors."""
    ordinary = [row for row in rows if row["on"] == "in distribution"]
    return [
        {
            "problem": problem,
            "head": head,
            "training s": mean_of(own, "training_seconds"),
            "head s": mean_of(own, "fit_seconds"),
        }
        | {
            "raw chi2": mean_of(own, "raw_chi2"),
            "scale": mean_of(own, "scale"),
            "scores s": mean_of(own, "seconds"),
        }
        for (problem, head), own in grouped(ordinary, ("problem", "head")).items()
    ]


def failures(rows: Sequence[Row]) -> list[str]:
    """Notes on failed heads."""
    return [
        ", ".join(
            ["failed", *(str(row[key]) for key in ("problem", "operator", "regime", "head", "seed")), row["failed"][:200]]
        )
        for row in rows
        if "failed" in row
    ]


def critical_difference(heads: int, blocks: int) -> float:
    """Critical difference of mean ranks by Nemenyi's test.

    Reference:
        Demšar (2006), Statistical comparisons of classifiers over multiple data sets, section 3.2.2.

    Examples:
        >>> round(critical_difference(4, 14), 2)  # q = 2.291 in table 5(a) at .10
        1.12
    """
    quantile = float(studentized_range.ppf(CONFIDENCE, heads, math.inf)) / math.sqrt(2.0)
    return quantile * math.sqrt(heads * (heads + 1) / (6.0 * blocks))


def _beside_the_ensemble(rows: Sequence[Row]) -> dict[tuple[Any, ...], dict[str, list[tuple[float, float]]]]:
    """Pairs of a head's and the ensemble's score by seed, for every problem, head and score."""
    ordinary = [row for row in rows if row["on"] == "in distribution"]
    known = {(*(row[key] for key in _HEAD), row["seed"]): row for row in ordinary}
    found: dict[tuple[Any, ...], dict[str, list[tuple[float, float]]]] = {}
    for group, own in grouped(ordinary, _HEAD).items():
        if group[-1] == ENSEMBLE:
            continue
        others = [known.get((*group[:-1], ENSEMBLE, row["seed"]), {}) for row in own]
        found[group] = {
            name: [
                (row[name], other[name])
                for row, other in zip(own, others, strict=True)
                if row.get(name) is not None and other.get(name) is not None
            ]
            for name in COMPARED
        }
    return found


def _costs(rows: Sequence[Row]) -> dict[tuple[Any, ...], float]:
    """Cost of trainings and fit for every problem and head, in trainings of the last layer's network."""
    ordinary = grouped([row for row in rows if row["on"] == "in distribution"], _HEAD)
    seconds = {
        group: (mean_of(own, "training_seconds") or 0.0, mean_of(own, "fit_seconds") or 0.0) for group, own in ordinary.items()
    }
    return {group: sum(own) / seconds.get((*group[:-1], DEFAULT), (math.nan,))[0] for group, own in seconds.items()}


def _beats(pairs: Mapping[str, Sequence[tuple[float, float]]], *, clearly: bool = False) -> bool:
    """Whether both scores are lower."""
    return all(_is_lower(pairs[name], name, clearly=clearly) for name in ("joint_nll", "crps"))


def _differences(pairs: Sequence[tuple[float, float]], name: str) -> list[float]:
    """Differences of nats, or of logarithms of scores."""
    return [one - other if name in _LOGARITHMIC else math.log(one / other) for one, other in pairs]


def _is_lower(pairs: Sequence[tuple[float, float]], name: str, *, clearly: bool = False) -> bool:
    """Whether the head's mean is lower; if `clearly`, by more than half the interval over seeds."""
    found = _differences(pairs, name)
    half = half_width(found)
    if not found or (clearly and half is None):
        return False
    return statistics.fmean(found) < (-(half or 0.0) if clearly else 0.0)
