"""Scores of a distribution over fields against the true fields.

[`score`][probneural.metrics.scores.score] computes them all; [`compare`][probneural.metrics.comparison.compare] and the
functions of a `Comparison` give each one per function and channel.
[`score_by_lead`][probneural.metrics.by_lead.score_by_lead] scores forecasts.
"""

from probneural.metrics.by_lead import score_by_lead
from probneural.metrics.comparison import Comparison, compare, relative_l2, rmse
from probneural.metrics.lead_table import HorizonScores, LeadScore, LeadScores, RankHistograms, Spectra
from probneural.metrics.likelihood import gaussian_nll, joint_nll, nll
from probneural.metrics.member_pool import rank_deviation, rank_histogram
from probneural.metrics.proper_scores import (
    crps,
    energy_score,
    gaussian_crps,
    gaussian_mixture_crps,
    mixture_crps,
    variogram_score,
)
from probneural.metrics.ranking import (
    RankCorrelation,
    SparsificationCurve,
    SparsificationError,
    ause,
    rank_correlation,
    sparsification_curve,
)
from probneural.metrics.reliability import (
    calibration_error,
    chi2,
    coverage,
    interval_width,
    pit,
    pit_histogram,
    simultaneous_coverage,
)
from probneural.metrics.scores import Scores, score, score_pairs
from probneural.metrics.spectra import PowerSpectrum, power_spectrum
from probneural.metrics.spread import (
    SpreadSkillCurve,
    interval_score,
    n_merci,
    sharpness,
    spread_skill,
    spread_skill_curve,
)

__all__ = [
    "Comparison",
    "HorizonScores",
    "LeadScore",
    "LeadScores",
    "PowerSpectrum",
    "RankCorrelation",
    "RankHistograms",
    "Scores",
    "SparsificationCurve",
    "SparsificationError",
    "Spectra",
    "SpreadSkillCurve",
    "ause",
    "calibration_error",
    "chi2",
    "compare",
    "coverage",
    "crps",
    "energy_score",
    "gaussian_crps",
    "gaussian_mixture_crps",
    "gaussian_nll",
    "interval_score",
    "interval_width",
    "joint_nll",
    "mixture_crps",
    "n_merci",
    "nll",
    "pit",
    "pit_histogram",
    "power_spectrum",
    "rank_correlation",
    "rank_deviation",
    "rank_histogram",
    "relative_l2",
    "rmse",
    "score",
    "score_by_lead",
    "score_pairs",
    "sharpness",
    "simultaneous_coverage",
    "sparsification_curve",
    "spread_skill",
    "spread_skill_curve",
    "variogram_score",
]
