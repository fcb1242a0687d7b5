"""Limits, fixed before a run, of the largest of many Monte Carlo errors."""

from __future__ import annotations

import math
from collections.abc import Mapping

from scipy.stats import norm

FALSE_ALARMS = 0.01
"""Probability that exact samplers exceed a limit of the benchmark."""


def largest_z(comparisons: int, *, families: int) -> float:
    """Limit of the largest |z| of many standard normal errors, by Bonferroni's inequality.

    Each of `families` such largest values exceeds its limit with probability at most `FALSE_ALARMS` / `families`, for any
    dependence of the errors.

    Args:
        comparisons: Number of errors in the maximum.
        families: Number of maxima that a benchmark tests.

    Examples:
        >>> round(largest_z(1, families=1), 3)
        2.576
        >>> round(largest_z(2145, families=10), 2)
        5.04
    """
    return float(norm.isf(0.5 * FALSE_ALARMS / (families * comparisons)))


def verdict(measured: Mapping[str, float], limits: Mapping[str, float]) -> str:
    """`pass` if every number is within its limit, else `miss` and the names of others; NaN is a miss.

    Examples:
        >>> verdict({"z": 3.0, "error": 0.2}, {"z": 4.0, "error": 0.1})
        'miss: error'
    """
    missed = [name for name, limit in limits.items() if not (math.isfinite(measured[name]) and measured[name] <= limit)]
    return f"miss: {', '.join(missed)}" if missed else "pass"
