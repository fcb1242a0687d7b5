"""Calibration on held-out fields: scales of variances, bands with a finite-sample guarantee, and when not to trust either."""

from probneural.calibration.bands.bands import Band, PointwiseBand, SimultaneousBand
from probneural.calibration.bands.by_lead import (
    BandCoverage,
    BandTrajectory,
    HorizonBand,
    TrajectoryBand,
    conformal_scores_by_lead,
)
from probneural.calibration.bands.conditional import GroupBand, WeightedBand
from probneural.calibration.bands.conformal import ConformalScores, conformal_scores
from probneural.calibration.bands.residual import ResidualBand, ResidualBound
from probneural.calibration.bands.risk_control import BandLoss, MissedExceedance, RiskBand, RiskControl, fraction_outside
from probneural.calibration.bands.shapes import BandField
from probneural.calibration.decomposition import Decomposition
from probneural.calibration.lead_scale import LeadScale, LeadScaling, ScaledForecast
from probneural.calibration.local_scale import LocalScale
from probneural.calibration.novelty import Novelty, NoveltyDetector
from probneural.calibration.novelty_scale import InflatedPredictor, NoveltyScale
from probneural.calibration.scale import VarianceScale
from probneural.calibration.scale_mixture import ScaleMixture, ScaleMixturePredictor
from probneural.calibration.scaled_predictor import ScaledPredictor
from probneural.calibration.stacking import Stacking
from probneural.calibration.stationary_process import StationaryProcess
from probneural.calibration.synthetic_inputs import synthetic_shifts

__all__ = [
    "Band",
    "BandCoverage",
    "BandField",
    "BandLoss",
    "BandTrajectory",
    "ConformalScores",
    "Decomposition",
    "GroupBand",
    "HorizonBand",
    "InflatedPredictor",
    "LeadScale",
    "LeadScaling",
    "LocalScale",
    "MissedExceedance",
    "Novelty",
    "NoveltyDetector",
    "NoveltyScale",
    "PointwiseBand",
    "ResidualBand",
    "ResidualBound",
    "RiskBand",
    "RiskControl",
    "ScaleMixture",
    "ScaleMixturePredictor",
    "ScaledForecast",
    "ScaledPredictor",
    "SimultaneousBand",
    "Stacking",
    "StationaryProcess",
    "TrajectoryBand",
    "VarianceScale",
    "WeightedBand",
    "conformal_scores",
    "conformal_scores_by_lead",
    "fraction_outside",
    "synthetic_shifts",
]
