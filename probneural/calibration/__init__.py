"""Calibration on held-out fields: scales of variances, bands with a finite-sample guarantee, and when not to trust either."""

from probneural.calibration.band_fields import BandField
from probneural.calibration.band_losses import BandLoss, MissedExceedance, fraction_outside
from probneural.calibration.bands import Band, PointwiseBand, SimultaneousBand
from probneural.calibration.calibrate import calibrate
from probneural.calibration.conditional_bands import GroupBand, WeightedBand
from probneural.calibration.conformal import ConformalScores, conformal_scores
from probneural.calibration.decomposition import Decomposition
from probneural.calibration.horizon import (
    BandCoverage,
    BandTrajectory,
    HorizonBand,
    TrajectoryBand,
    conformal_scores_by_lead,
)
from probneural.calibration.lead_scale import LeadScale, LeadScaling, ScaledForecast
from probneural.calibration.local_scale import LocalScale
from probneural.calibration.novelty import Novelty, NoveltyDetector
from probneural.calibration.novelty_scale import InflatedPredictor, NoveltyScale
from probneural.calibration.residual_bands import ResidualBand, ResidualBound
from probneural.calibration.risk_control import RiskBand, RiskControl
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
    "calibrate",
    "conformal_scores",
    "conformal_scores_by_lead",
    "fraction_outside",
    "synthetic_shifts",
]
