"""Calibration on held-out fields: scales of variances, bands with a finite-sample guarantee, and when not to trust either."""

from probneural.calibration.band_losses import MissedExceedance, fraction_outside
from probneural.calibration.bands import PointwiseBand, SimultaneousBand
from probneural.calibration.calibrate import calibrate
from probneural.calibration.horizon import HorizonBand
from probneural.calibration.lead_scale import LeadScale
from probneural.calibration.novelty import Novelty
from probneural.calibration.novelty_scale import NoveltyScale
from probneural.calibration.residual_bands import ResidualBand
from probneural.calibration.risk_control import RiskControl
from probneural.calibration.scale import VarianceScale
from probneural.calibration.scale_mixture import ScaleMixture
from probneural.calibration.stacking import Stacking
from probneural.calibration.synthetic_inputs import synthetic_shifts

__all__ = [
    "HorizonBand",
    "LeadScale",
    "MissedExceedance",
    "Novelty",
    "NoveltyScale",
    "PointwiseBand",
    "ResidualBand",
    "RiskControl",
    "ScaleMixture",
    "SimultaneousBand",
    "Stacking",
    "VarianceScale",
    "calibrate",
    "fraction_outside",
    "synthetic_shifts",
]
