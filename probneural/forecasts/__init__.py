"""Forecasts that go beyond draws: closed forms of uncertainty in time, and what observations in time say about the states."""

from probneural.forecasts.analysis import EnsembleAnalysis
from probneural.forecasts.ensembles import EnsembleKalmanFilter, EnsembleKalmanMethod, EnsembleKalmanSmoother, gaspari_cohn
from probneural.forecasts.observations import Observation
from probneural.forecasts.priors import climatology
from probneural.forecasts.propagation import propagate
from probneural.forecasts.trajectories import GaussianTrajectory
from probneural.forecasts.variational import FourDVarAnalysis, four_d_var

__all__ = [
    "EnsembleAnalysis",
    "EnsembleKalmanFilter",
    "EnsembleKalmanMethod",
    "EnsembleKalmanSmoother",
    "FourDVarAnalysis",
    "GaussianTrajectory",
    "Observation",
    "climatology",
    "four_d_var",
    "gaspari_cohn",
    "propagate",
]
