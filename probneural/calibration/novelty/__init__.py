"""Novelty of inputs: scores, conformal p-values, and variances that grow with them."""
