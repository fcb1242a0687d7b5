"""Calibration on held-out fields: a scale for the variance, and bands with a finite-sample guarantee."""

from probneural.calibration.bands import Band, BandField, SimultaneousBand
from probneural.calibration.conformal import ConformalScores, conformal_scores
from probneural.calibration.scale import ScaledPredictor, VarianceScale

__all__ = [
    "Band",
    "BandField",
    "ConformalScores",
    "ScaledPredictor",
    "SimultaneousBand",
    "VarianceScale",
    "conformal_scores",
]
