"""Predictors that draw: variational inference of the whole network, and noise-conditioned operators."""
