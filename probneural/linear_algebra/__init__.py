"""Linear algebra that several layers share: Gaussian conditioning and densities, conjugate gradients, principal components.

It knows tensors only, no fields, weights or operators.
"""
