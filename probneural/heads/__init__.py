"""Uncertainty heads: `.fit(operator, data)` turns any operator into a predictor of field distributions."""

from probneural.heads.laplace import Laplace, LaplacePredictor
from probneural.heads.last_layer import LastLayerLaplace, LastLayerPredictor

__all__ = ["Laplace", "LaplacePredictor", "LastLayerLaplace", "LastLayerPredictor"]
