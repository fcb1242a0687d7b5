"""Scores of a distribution over fields against the true fields.

[`score`][probneural.metrics.scores.score] computes them all; [`compare`][probneural.metrics.comparison.compare] and the
functions of a `Comparison` give each one per function and channel.
[`score_by_lead`][probneural.metrics.lead_scoring.score_by_lead] scores forecasts.
"""

from probneural.metrics.accuracy import relative_l2, rmse
from probneural.metrics.comparison import compare
from probneural.metrics.energy import energy_score
from probneural.metrics.lead_scoring import score_by_lead
from probneural.metrics.likelihood import joint_nll, nll
from probneural.metrics.member_pool import rank_histogram
from probneural.metrics.ranked_probability import crps
from probneural.metrics.ranking import rank_correlation
from probneural.metrics.reliability import calibration_error, chi2, coverage, interval_width, pit, simultaneous_coverage
from probneural.metrics.scores import score, score_pairs
from probneural.metrics.sparsification import ause
from probneural.metrics.spectra import power_spectrum
from probneural.metrics.spread import interval_score, n_merci, sharpness, spread_skill
from probneural.metrics.variogram import variogram_score

__all__ = [
    "ause",
    "calibration_error",
    "chi2",
    "compare",
    "coverage",
    "crps",
    "energy_score",
    "interval_score",
    "interval_width",
    "joint_nll",
    "n_merci",
    "nll",
    "pit",
    "power_spectrum",
    "rank_correlation",
    "rank_histogram",
    "relative_l2",
    "rmse",
    "score",
    "score_by_lead",
    "score_pairs",
    "sharpness",
    "simultaneous_coverage",
    "spread_skill",
    "variogram_score",
]
