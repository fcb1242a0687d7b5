"""Scores of a distribution over fields against the true fields.

[`score`][probneural.metrics.scores.score] computes all scores; the functions of a `Comparison`, which
[`compare`][probneural.metrics.comparison.compare] returns, compute one score per sample and channel.
[`score_by_lead`][probneural.metrics.by_lead.score_by_lead] scores forecasts.
"""

from probneural.metrics.by_lead import score_by_lead
from probneural.metrics.comparison import compare, relative_l2, rmse
from probneural.metrics.member_pool import rank_histogram
from probneural.metrics.proper_scores import crps, energy_score, joint_nll, nll
from probneural.metrics.reliability import calibration_error, chi2, coverage, interval_width, pit, simultaneous_coverage
from probneural.metrics.residuals import residual
from probneural.metrics.scores import score, score_pairs
from probneural.metrics.spectra import power_spectrum
from probneural.metrics.spread import interval_score, rank_correlation, sharpness, spread_skill

__all__ = [
    "calibration_error",
    "chi2",
    "compare",
    "coverage",
    "crps",
    "energy_score",
    "interval_score",
    "interval_width",
    "joint_nll",
    "nll",
    "pit",
    "power_spectrum",
    "rank_correlation",
    "rank_histogram",
    "relative_l2",
    "residual",
    "rmse",
    "score",
    "score_by_lead",
    "score_pairs",
    "sharpness",
    "simultaneous_coverage",
    "spread_skill",
]

__dir__ = __all__.copy
