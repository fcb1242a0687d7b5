"""Scores of functions that are given some at a time: sums over them, and numbers per function where ranks need all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from probneural.errors import ArgumentError, DataError, UnsupportedError
from probneural.fields import Field
from probneural.metrics.accuracy import relative_l2
from probneural.metrics.comparison import Comparison
from probneural.metrics.energy import energy_score
from probneural.metrics.likelihood import joint_nll, nll
from probneural.metrics.ranked_probability import crps
from probneural.metrics.ranking import RankSums
from probneural.metrics.reliability import (
    LEVELS,
    chi2,
    coverage,
    interval_width,
    level_coverages,
    simultaneous_coverage,
)
from probneural.metrics.spread import ErrorSums, interval_score, sharpness, size_factor, spread_skill_ratio

Score = Callable[[Comparison], Tensor]


class ScoreSums:
    """What all scores of [`Scores`][probneural.metrics.scores.Scores] follow from, whatever the number of functions.

    Of each function, the root mean squares behind rank correlations are kept; of all others there are sums.

    Args:
        level: Nominal level of the coverages, the width and the interval score.
    """

    def __init__(self, *, level: float) -> None:
        self._level = level
        self._each: dict[str, Score] = {
            "coverage": lambda comparison: coverage(comparison, level=level),
            "interval_width": lambda comparison: interval_width(comparison, level=level),
            "chi2": chi2,
            "interval_score": lambda comparison: interval_score(comparison, level=level),
            "sharpness": sharpness,
            "relative_l2": _relative_l2,
            "crps": crps,
            "nll": nll,
            "rmse": lambda comparison: comparison.average(comparison.residual.square()),
            "calibration_error": lambda comparison: level_coverages(comparison).movedim(0, 1),
            "spread_skill": _predictive_variance,
        }
        self._whole: dict[str, Score] = {
            "energy": energy_score,
            "simultaneous_coverage": lambda comparison: simultaneous_coverage(comparison, level=level),
            "joint_nll": joint_nll,
        }
        self._sums: dict[str, Tensor] = {}
        self._reasons: dict[str, str] = {}
        self._counts = {True: 0, False: 0}
        self._ranks = RankSums()
        self._errors = ErrorSums()

    def add(self, comparison: Comparison) -> None:
        """Add some functions to the scores of values."""
        self._counts[False] += len(comparison.truth)
        self._errors.add(comparison)
        self._accumulate(self._each, comparison)

    def add_whole(self, comparison: Comparison) -> None:
        """Add some functions to the scores of whole functions."""
        self._counts[True] += len(comparison.truth)
        self._ranks.add(comparison)
        self._accumulate(self._whole, comparison)

    def _accumulate(self, scores: dict[str, Score], comparison: Comparison) -> None:
        for name, compute in scores.items():
            if name in self._reasons:
                continue
            try:
                part = compute(comparison).sum(0)
            except (ArgumentError, DataError, UnsupportedError) as missing:
                self._reasons[name] = str(missing)
                continue
            self._sums[name] = self._sums[name] + part if name in self._sums else part

    def level_coverages(self) -> tuple[float, ...]:
        """Coverage of the central intervals of the levels .05, .10, ..., .95, averaged over functions and channels."""
        return tuple((self._sums["calibration_error"].mean(1) / self._counts[False]).tolist())

    def numbers(self) -> tuple[dict[str, float | None], dict[str, str]]:
        """Each score by name, averaged over functions and channels, or None; and for each that is None, why."""
        reasons = dict(self._reasons)
        found: dict[str, float | None] = {}

        def put(name: str, compute: Callable[[], Any]) -> None:
            try:
                found[name] = float(compute().mean())
            except DataError as missing:
                found[name], reasons[name] = None, str(missing)

        means = {name: total / self._counts[name in self._whole] for name, total in self._sums.items() if name not in reasons}
        for name in (*self._each, *self._whole):
            found[name] = float(means[name].mean()) if name in means else None
        levels = torch.tensor(LEVELS, device="cpu").to(means["calibration_error"])[:, None]
        found["calibration_error"] = float((means["calibration_error"] - levels).abs().mean())
        put("rmse", means["rmse"].sqrt)
        put("n_merci", self._errors.n_merci)
        if "spread_skill" in means or bool((means["rmse"] == 0).any()):
            put("spread_skill", lambda: spread_skill_ratio(means.get("spread_skill", means["rmse"]), means["rmse"]))
        names = ("rank_across", "rank_within", "rank_across_attainable", "rank_within_attainable")
        try:
            found |= {name: float(value.mean()) for name, value in zip(names, self._ranks.result(), strict=True)}
        except DataError as missing:
            found |= dict.fromkeys(names)
            reasons |= dict.fromkeys(names, str(missing))
        return found, reasons


def _relative_l2(comparison: Comparison) -> Tensor:
    return relative_l2(Field(comparison.mean, comparison.grid.unmasked), Field(comparison.truth, comparison.grid))


def _predictive_variance(comparison: Comparison) -> Tensor:
    """Mean over the domain, corrected for the number of members."""
    variance = size_factor(comparison.distribution) * (comparison.variance - comparison.noise) + comparison.noise
    return comparison.average(variance)
