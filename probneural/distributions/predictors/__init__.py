"""Predictors: the base class, calibrated ones, mixtures, and conditioning on measurements."""

import probneural.distributions.predictors.conditioned  # noqa: F401 - it completes Predictor
