"""Linear algebra that several layers share: Gaussian conditioning and densities, conjugate gradients, principal components.

It knows tensors only, no fields, weights or operators.
"""

from probneural.linear_algebra.conditioning import LowRankUpdate
from probneural.linear_algebra.conjugate_gradients import LowRankPreconditioner, Solution, solve

__all__ = ["LowRankPreconditioner", "LowRankUpdate", "Solution", "solve"]
