"""Forecasts that go beyond draws: closed forms of uncertainty in time, and what observations in time say about the states."""

from probneural.forecasts.propagation import propagate
from probneural.forecasts.trajectories import GaussianTrajectory

__all__ = ["GaussianTrajectory", "propagate"]
