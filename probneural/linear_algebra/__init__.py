"""Linear algebra: Gaussian conditioning and densities, conjugate gradients, principal components, interpolation.

It works on tensors only, not on fields, weights or operators.
"""
