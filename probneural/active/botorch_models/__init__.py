"""Predictors as BoTorch models: posteriors, samplers, looking ahead, function draws."""
