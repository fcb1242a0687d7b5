"""Limits that are fixed before anything is run: how large the largest of many Monte Carlo errors may be."""

from __future__ import annotations

import math
from collections.abc import Mapping

from scipy.stats import norm

FALSE_ALARMS = 0.01
"""Chance that a whole benchmark of exact samplers misses one of its limits."""


def largest_z(comparisons: int, *, families: int) -> float:
    """The limit of the largest |z| of many standard normal errors, by Bonferroni's inequality.

    Every one of `families` such largest values exceeds its limit with probability `FALSE_ALARMS` / `families` at most, however
    the errors depend on each other.

    Args:
        comparisons: Errors of which the largest is looked at.
        families: Largest values that a benchmark holds against limits, each of its own errors.

    Examples:
        >>> round(largest_z(1, families=1), 3)
        2.576
        >>> round(largest_z(2145, families=10), 2)
        5.04
    """
    return float(norm.isf(0.5 * FALSE_ALARMS / (families * comparisons)))


def verdict(measured: Mapping[str, float], limits: Mapping[str, float]) -> str:
    """`pass` if every number is within its limit, else `miss` and what is not; NaN is not.

    Examples:
        >>> verdict({"z": 3.0, "error": 0.2}, {"z": 4.0, "error": 0.1})
        'miss: error'
    """
    missed = [name for name, limit in limits.items() if not (math.isfinite(measured[name]) and measured[name] <= limit)]
    return f"miss: {', '.join(missed)}" if missed else "pass"
