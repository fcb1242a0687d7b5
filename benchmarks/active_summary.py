"""Tables of the active-learning benchmark; comparisons with random choice are paired by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scipy.stats import binom
from scipy.stats import t as student

from benchmarks.active_runs import ENSEMBLE, RANDOM

Row = dict[str, Any]
Curve = tuple[Sequence[int], Sequence[float]]
"""Ascending numbers of labels, and the error at each."""

LEVEL = 0.95
"""Level of the intervals of mean ratios."""
MEDIAN_LEVEL = 0.9
"""Least level of intervals of medians: of ten seeds, the second from either end have 97.9 %."""
ERRORS = ("rmse", "q50", "q95", "q99")

CLAIM_ARM = (ENSEMBLE, "stochastic")
"""Head and selector of the claim, fixed before the run: the best of several arms could fulfil it by chance."""
CLAIM_LEAST = 5
"""Least number of six problems on which the interval of the area lies below random choice."""
GOAL = 0.5
"""Goal of the median fraction of labels."""


def mean_log_error(curve: Curve) -> float:
    """Area under (log labels, log error) by the trapezoidal rule, divided by the length of the labels' axis.

    The exponential of a difference is the mean ratio of errors over rounds.

    Examples:
        >>> round(mean_log_error(([16, 64, 256], [1.0, math.e, math.e])), 12)
        0.75
    """
    sizes, errors = ([math.log(number) for number in part] for part in curve)
    if len(sizes) == 1:
        return errors[0]
    steps = zip(sizes, sizes[1:], errors, errors[1:], strict=False)
    return sum((after - before) * (first + second) / 2.0 for before, after, first, second in steps) / (sizes[-1] - sizes[0])


def labels_to_reach(curve: Curve, target: float) -> float:
    """Number of labels after which the error stays at or below a target, interpolated on doubly logarithmic axes.

    An error that falls below the target and rises again has not reached it. Infinity if the last error is
    above the target or NaN; the first number of labels if no error is.

    Examples:
        >>> round(labels_to_reach(([16, 64, 256], [1.0, 0.25, 0.0625]), 0.125), 9)
        128.0
        >>> labels_to_reach(([16, 64, 256], [1.0, 0.1, 0.3]), 0.2)
        inf
    """
    sizes, errors = curve
    above = [place for place, error in enumerate(errors) if not error <= target]  # also NaN, of a diverged training
    if above and above[-1] == len(errors) - 1:
        return math.inf
    if not above:
        return float(sizes[0])
    before, after = above[-1], above[-1] + 1
    if not math.isfinite(errors[before]):
        return float(sizes[after])
    share = math.log(errors[before] / target) / math.log(errors[before] / errors[after])
    return float(sizes[before] * (sizes[after] / sizes[before]) ** share)


def label_share(curve: Curve, baseline: Curve) -> float:
    """Labels to reach a baseline's final error, over the baseline's labels for it by the same rule.

    The baseline may reach that error before its last round, so its last number of labels is no reference: for a
    baseline against itself the fraction is 1.

    Examples:
        >>> random = [16, 32, 64, 128], [1.0, 0.5, 0.25, 0.5]
        >>> label_share(([16, 32, 64, 128], [1.0, 1.0, 0.5, 0.25]), random), label_share(random, random)
        (2.0, 1.0)
    """
    goal = baseline[1][-1]
    return labels_to_reach(curve, goal) / labels_to_reach(baseline, goal)


def mean_ratio(log_ratios: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Geometric mean of ratios, and its t interval of level LEVEL over seeds (none for one seed).

    Examples:
        >>> [round(number, 3) for number in mean_ratio([math.log(0.5), math.log(0.8), math.log(0.5), math.log(0.8)])]
        [0.632, 0.411, 0.974]
    """
    centre = statistics.fmean(log_ratios)
    if len(log_ratios) < 2:
        return math.exp(centre), None, None
    error = statistics.stdev(log_ratios) / math.sqrt(len(log_ratios))
    reach = float(student.ppf(0.5 + LEVEL / 2.0, len(log_ratios) - 1)) * error
    return math.exp(centre), math.exp(centre - reach), math.exp(centre + reach)


def median_ratio(ratios: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Median, and the narrowest symmetric pair of order statistics that contains it with MEDIAN_LEVEL.

    Infinite entries, of runs that did not reach the target, count. With fewer than five seeds the pair is None.

    Examples:
        >>> median_ratio([0.9, 0.4, math.inf, 0.5, 0.7])
        (0.7, 0.4, inf)
    """
    if any(math.isnan(ratio) for ratio in ratios):  # random choice has no final error
        return math.nan, None, None
    ordered, count = sorted(ratios), len(ratios)
    lower, upper = ordered[(count - 1) // 2], ordered[count // 2]
    middle = upper if math.isinf(upper) else (lower + upper) / 2.0
    # P(median outside) is twice the chance that at most `cut` of the draws lie below it
    fits = [cut for cut in range((count + 1) // 2) if 1.0 - 2.0 * float(binom.cdf(cut, count, 0.5)) >= MEDIAN_LEVEL]
    return (middle, ordered[fits[-1]], ordered[count - 1 - fits[-1]]) if fits else (middle, None, None)


def curves(units: Iterable[Mapping[str, Any]]) -> list[Row]:
    """One row per problem, head, selector and number of labels: geometric means over seeds."""
    table: list[Row] = []
    for (problem, head, selector), own in _arms(units).items():
        for place, labels in enumerate(next(iter(own.values()))["labels"]):
            means = {error: _geometric_mean([one[error][place] for one in own.values()]) for error in ERRORS}
            ranks = statistics.fmean(one["ranks"][place] for one in own.values())
            who = {"problem": problem, "head": head, "selector": selector}
            table.append({**who, "labels": labels, "seeds": len(own), **means, "ranks": ranks})
    return table


def ratios(units: Iterable[Mapping[str, Any]]) -> list[Row]:
    """One row per problem, head and selector, relative to random choice on the same seeds."""
    arms = _arms(units)
    table: list[Row] = []
    for (problem, head, selector), every in arms.items():
        baseline = arms.get((problem, head, RANDOM), {})
        own = {seed: one for seed, one in every.items() if seed in baseline}
        if not own:
            continue
        row: Row = {"problem": problem, "head": head, "selector": selector, "seeds": len(own)}
        row["final RMSE"] = _geometric_mean([one["rmse"][-1] for one in own.values()])
        if selector != RANDOM:
            for error, heading in (("rmse", "area"), ("q95", "area, 95 %"), ("q99", "area, 99 %")):
                found = mean_ratio([_log_ratio(one, baseline[seed], error) for seed, one in own.items()])
                row[heading] = found[0]
                if error == "rmse":
                    row |= {"from": found[1], "to": found[2]}
            reached = [
                label_share((one["labels"], one["rmse"]), (baseline[seed]["labels"], baseline[seed]["rmse"]))
                for seed, one in own.items()
            ]
            row["labels"], row["labels from"], row["labels to"] = median_ratio(reached)
        row["ranks"] = statistics.fmean(statistics.fmean(one["ranks"]) for one in own.values())
        row["select s"] = _mean([seconds for one in own.values() for seconds in one["select_seconds"]])
        table.append(row)
    return table


def claim(rows: Iterable[Row]) -> list[Row]:
    """One row per problem: area and labels of the arm of the claim, and labels of the best arm.

    Args:
        rows: Rows of `ratios`.
    """
    compared = [row for row in rows if row["selector"] != RANDOM]
    table: list[Row] = []
    for row in compared:
        if (row["head"], row["selector"]) == CLAIM_ARM:
            others = [one for one in compared if one["problem"] == row["problem"] and not math.isnan(one["labels"])]
            best = min(others, key=lambda one: float(one["labels"]), default=row)
            table.append(
                {name: row[name] for name in ("problem", "head", "selector", "seeds", "area", "from", "to")}
                | {"below 1": "yes" if row["to"] is not None and row["to"] < 1.0 else "no"}
                | {name: row[name] for name in ("labels", "labels from", "labels to")}
                | {f"at most {GOAL}": "yes" if row["labels"] <= GOAL else "no"}
                | {"best of all arms": best["labels"], "which": f"{best['selector']}, {best['head']}"}
            )
    return table


def _arms(units: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str], dict[int, dict[str, list[Any]]]]:
    """Columns of the rounds by (problem, head, selector) and seed, without failed items."""
    arms: dict[tuple[str, str, str], dict[int, dict[str, list[Any]]]] = {}
    for unit in sorted(units, key=lambda one: int(one["seed"])):
        for head in dict.fromkeys(row["head"] for row in unit["rows"]):
            rows = [row for row in unit["rows"] if row["head"] == head]
            columns = {name: [row[name] for row in rows] for name in ("labels", *ERRORS, "ranks")}
            columns["select_seconds"] = [row["select_seconds"] for row in rows if "select_seconds" in row]
            arms.setdefault((unit["problem"], head, unit["selector"]), {})[int(unit["seed"])] = columns
    return arms


def _log_ratio(one: Mapping[str, list[Any]], other: Mapping[str, list[Any]], error: str) -> float:
    return mean_log_error((one["labels"], one[error])) - mean_log_error((other["labels"], other[error]))


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
