"""Principal components of rows: the directions that they vary in, and how much, from the rows or from their Gram matrix."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

_CHUNK_ELEMENTS = 2**24
"""Entries taken to float64 at once (128 MiB)."""


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


def narrowed(rows: Float[Tensor, "m k"]) -> Float64[Tensor, "m r"]:
    """A matrix of the same Gram matrix with at most as many columns as rows: a root of the same covariance.

    In float64 it is the triangle of a QR decomposition. Rows in float32 are themselves known to 6e-8, which is what their Gram
    matrix in float64 resolves: its eigenvectors take a fraction of the time.
    """
    if rows.shape[-1] <= rows.shape[-2]:
        return rows.to(torch.float64)
    if rows.dtype == torch.float64:
        return torch.linalg.qr(rows.mT, mode="r").R.mT
    gram = rows.new_zeros(len(rows), len(rows), dtype=torch.float64)
    for piece in rows.split(max(1, _CHUNK_ELEMENTS // len(rows)), dim=1):
        columns = piece.to(torch.float64)
        gram += columns @ columns.mT
    values, vectors = eigenpairs(gram)
    return vectors * values.sqrt()


def resolved_eigenpairs(gram: Float64[Tensor, "*b k k"]) -> tuple[Float64[Tensor, "*b k"], Float64[Tensor, "*b k k"]]:
    """Eigenpairs, where values that rounding cannot tell from zero beside the largest are zero.

    Divided by a small noise, rounding would count as information.
    """
    values, vectors = eigenpairs(gram)
    least = values.shape[-1] * torch.finfo(values.dtype).eps * values[..., -1:]
    return torch.where(values > least, values, 0.0), vectors


def eigenpairs(gram: Float64[Tensor, "*b k k"]) -> tuple[Float64[Tensor, "*b k"], Float64[Tensor, "*b k k"]]:
    """Eigenvalues, rising, and eigenvectors of a Gram matrix: what is negative is rounding, and counts as zero."""
    values, vectors = torch.linalg.eigh(gram)
    return values.clamp_min(0.0), vectors
