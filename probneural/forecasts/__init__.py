"""Forecasts in closed form, and data assimilation."""

from probneural.distributions.forecasts.members import StepInputs
from probneural.forecasts.analysis import EnsembleKalmanFilter, EnsembleKalmanSmoother
from probneural.forecasts.observations import Observation, climatology
from probneural.forecasts.propagation import propagate
from probneural.forecasts.variational import four_d_var

__all__ = [
    "EnsembleKalmanFilter",
    "EnsembleKalmanSmoother",
    "Observation",
    "StepInputs",
    "climatology",
    "four_d_var",
    "propagate",
]

__dir__ = __all__.copy
