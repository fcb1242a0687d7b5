"""Calibration on held-out fields: scales of variances, bands with a finite-sample guarantee, and when not to trust either."""

from probneural.calibration.bands.conformal import HorizonBand, PointwiseBand, ResidualBand, SimultaneousBand
from probneural.calibration.calibrate import calibrate
from probneural.calibration.novelty.detector import Novelty
from probneural.calibration.novelty.inflation import NoveltyScale
from probneural.calibration.novelty.synthetic_inputs import synthetic_shifts
from probneural.calibration.stacking import Stacking
from probneural.calibration.variance.by_lead import LeadScale
from probneural.calibration.variance.scale_mixture import ScaleMixture
from probneural.calibration.variance.variance_scale import VarianceScale

__all__ = [
    "HorizonBand",
    "LeadScale",
    "Novelty",
    "NoveltyScale",
    "PointwiseBand",
    "ResidualBand",
    "ScaleMixture",
    "SimultaneousBand",
    "Stacking",
    "VarianceScale",
    "calibrate",
    "synthetic_shifts",
]

__dir__ = __all__.copy
