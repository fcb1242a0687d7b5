"""Scores of a distribution over fields against the true fields.

[`score`][probneural.metrics.scores.score] computes them all; [`compare`][probneural.metrics.comparison.compare] and the
functions of a `Comparison` give each one per function and channel.
"""

from probneural.metrics.accuracy import relative_l2, rmse
from probneural.metrics.comparison import Comparison, compare
from probneural.metrics.likelihood import gaussian_nll, joint_nll, nll
from probneural.metrics.ranked_probability import crps, gaussian_crps, mixture_crps
from probneural.metrics.reliability import (
    calibration_error,
    chi2,
    coverage,
    interval_width,
    pit,
    simultaneous_coverage,
)
from probneural.metrics.scores import Scores, score

__all__ = [
    "Comparison",
    "Scores",
    "calibration_error",
    "chi2",
    "compare",
    "coverage",
    "crps",
    "gaussian_crps",
    "gaussian_nll",
    "interval_width",
    "joint_nll",
    "mixture_crps",
    "nll",
    "pit",
    "relative_l2",
    "rmse",
    "score",
    "simultaneous_coverage",
]
