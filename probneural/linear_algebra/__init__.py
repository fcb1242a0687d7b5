"""Linear algebra: Gaussian conditioning and densities, conjugate gradients, principal components, interpolation.

It works on tensors only, not on fields, weights or operators.
"""

from probneural.linear_algebra.conditioning import LowRankUpdate
from probneural.linear_algebra.conjugate_gradients import LowRankPreconditioner, Solution, solve

__all__ = ["LowRankPreconditioner", "LowRankUpdate", "Solution", "solve"]
