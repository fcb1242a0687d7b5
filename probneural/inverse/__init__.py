"""Inverse problems: parameters of inputs from observations of outputs, with the predictor's uncertainty in the likelihood."""

from probneural.inverse.posterior import InversePosterior
from probneural.inverse.problem import InverseProblem
from probneural.inverse.sensors import place_sensors

__all__ = ["InversePosterior", "InverseProblem", "place_sensors"]

__dir__ = __all__.copy
