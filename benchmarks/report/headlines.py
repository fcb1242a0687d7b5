"""Error, joint density and simultaneous coverage per problem and method, and the best method of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report.rows import Row, check, first, number


@dataclass(frozen=True)
class Headline:
    """Scores of one method on test samples in distribution.

    Attributes:
        error: Mean relative L2 error, dimensionless.
        joint_nll: Joint negative log density in nats per value, or None.
        whole: Simultaneous coverage of the posterior's band.
        level: Nominal coverage.
        functions: Number of samples of the coverage.
        seconds: Seconds of one core for training and fit.
    """

    error: float | None
    joint_nll: float | None
    whole: float | None
    level: float
    functions: int
    seconds: float | None

    @property
    def chance(self) -> float:
        """Two standard errors of the coverage, if bands are right."""
        return 2.0 * math.sqrt(self.level * (1.0 - self.level) / max(1, self.functions))

    @property
    def is_honest(self) -> bool | None:
        """Whether the coverage is within two standard errors of its level; None if unknown."""
        return None if self.whole is None else abs(self.whole - self.level) <= self.chance + 1e-12


Table = dict[str, dict[str, Headline]]
"""Numbers by problem and method."""


def method(run: Mapping[str, Any]) -> str:
    """Name of a method for readers.

    Examples:
        >>> method({"operator": "FNO", "head": "ensemble of 4"})
        'FNO, ensemble of 4'
    """
    return f"{run['operator']}, {run['head']}"


def headlines(results: Mapping[str, Any]) -> Table:
    """Numbers of every successful run on its first test set, for the first of several seeds."""
    check(results)
    table: Table = {}
    for run in results["runs"]:
        own = table.setdefault(run["problem"], {})
        if run["evaluations"] and method(run) not in own:
            own[method(run)] = _headline(run, run["evaluations"][0])
    return table


def methods(table: Table) -> list[str]:
    """All methods, in the order of problems."""
    return list(dict.fromkeys(name for own in table.values() for name in own))


def best(own: Mapping[str, Headline], score: str) -> str | None:
    """Method with the lowest error or joint NLL, or the coverage nearest to its level."""

    def distance(name: str) -> float:
        line = own[name]
        return abs(line.whole - line.level) if score == "whole" and line.whole is not None else float(getattr(line, score))

    return min((name for name in own if getattr(own[name], score) is not None), key=distance, default=None)


def brief_rows(runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row per method of a finished problem, for the terminal."""
    table = []
    for run in runs:
        row: Row = {"operator": run["operator"], "head": run["head"]}
        for place in run["evaluations"][:2]:
            suffix = "" if place is run["evaluations"][0] else f", {place['on']}"
            row[f"error{suffix}"] = number(first(place, ("scores.relative_l2",)))
        line = _headline(run, run["evaluations"][0]) if run["evaluations"] else None
        row |= {"joint NLL": line and line.joint_nll, "whole fields": line and line.whole, "seconds": line and line.seconds}
        table.append(row)
    return table


def _headline(run: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Headline:
    scores = evaluation.get("scores", {})
    seconds = (_finite(run.get(part, {}).get("seconds")) for part in ("train", "head_fit"))
    known = [value for value in seconds if value is not None]
    functions = scores.get("whole_functions") or scores.get("functions") or evaluation.get("fields") or 1
    return Headline(
        error=_finite(scores.get("relative_l2")),
        joint_nll=_finite(scores.get("joint_nll")),
        whole=_finite(scores.get("simultaneous_coverage")),
        level=float(scores.get("level") or 0.9),
        functions=int(functions),
        seconds=sum(known) if known else None,
    )


def _finite(value: Any) -> float | None:
    value = number(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
