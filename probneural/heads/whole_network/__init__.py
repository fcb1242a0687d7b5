"""Posteriors of all weights that are neither Gaussian at the trained ones nor linearised: chains and variational inference."""
