"""Laplace posteriors of all layers, by structure of the curvature."""
