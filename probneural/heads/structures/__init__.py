"""Forms of the weights' covariance: each module fits one to a `WeightProblem`."""

from probneural.heads.structures import diagonal, full, iterative, kronecker, low_rank
from probneural.heads.structures.settings import Settings

FITS = {
    "low_rank": low_rank.fit,
    "kronecker": kronecker.fit,
    "diagonal": diagonal.fit,
    "full": full.fit,
    "iterative": iterative.fit,
}
"""Name of each structure to what fits it."""

__all__ = ["FITS", "Settings"]
