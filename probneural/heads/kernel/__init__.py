"""Gaussian processes between principal coefficients of inputs and outputs."""
