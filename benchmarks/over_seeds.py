"""Means and intervals over seeds, for tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from scipy.stats import t as student

CONFIDENCE = 0.9
"""Confidence of all intervals (Student's, over seeds)."""

Row = dict[str, Any]


def grouped(rows: Iterable[Row], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """Rows grouped by the values of some columns (None if missing), in their order."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return found


def mean(values: Iterable[float | None]) -> float | None:
    """Mean; None for no values or a missing one.

    Examples:
        >>> mean([1.0, 2.0]), mean([1.0, None]), mean([])
        (1.5, None, None)
    """
    found = list(values)
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if known and len(known) == len(found) else None


def mean_of(rows: Iterable[Row], name: str) -> float | None:
    """Mean of one column; None if a row lacks it."""
    return mean(row.get(name) for row in rows)


def half_width(values: Sequence[float]) -> float | None:
    """Half width of Student's interval of a mean; None for fewer than two values.

    Examples:
        >>> round(half_width([1.0, 2.0, 3.0]), 3)
        1.686
    """
    if len(values) < 2:
        return None
    quantile = float(student.ppf(0.5 + CONFIDENCE / 2, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def average(values: Sequence[float], *, digits: int) -> str | None:
    """Mean with its interval.

    Examples:
        >>> average([1.0, 2.0, 3.0], digits=1), average([1.0], digits=0)
        ('2.0 ± 1.7', '1')
    """
    found = difference(values, digits=digits)
    return None if found is None else found.removeprefix("+")


def difference(values: Sequence[float], *, digits: int) -> str | None:
    """Mean of differences with its interval.

    Examples:
        >>> difference([1.0, 2.0, 3.0], digits=1), difference([-1.0], digits=0)
        ('+2.0 ± 1.7', '-1')
    """
    if not values:
        return None
    half = half_width(values)
    return f"{statistics.fmean(values):+.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def ratio(ratios: Sequence[float]) -> str | None:
    """Geometric mean of ratios with Student's interval of logarithms; None unless all are positive and finite.

    Examples:
        >>> ratio([0.5, 2.0]), ratio([0.5]), ratio([0.0, 1.0])
        ('1.00 (0.01 to 79.55)', '0.50', None)
    """
    if not ratios or min(ratios) <= 0.0 or not all(map(math.isfinite, ratios)):
        return None
    logs = [math.log(one) for one in ratios]
    middle, half = statistics.fmean(logs), half_width(logs)
    interval = "" if half is None else f" ({math.exp(middle - half):.2f} to {math.exp(middle + half):.2f})"
    return f"{math.exp(middle):.2f}{interval}"
