"""Forecasts: trajectories of members, and their functionals, variance shares and files."""
