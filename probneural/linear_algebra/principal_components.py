"""Principal components of rows: directions and sizes of their variation, from the rows or from their Gram matrix."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Inexact
from torch import Tensor

from probneural.randomness import stream

_CHUNK_ELEMENTS = 2**24
"""Number of entries per conversion to float64 (128 MiB)."""


def singular_values(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The reduced singular value decomposition, U, S and V^T, of a real matrix; signs are those of `canonical` for U.

    Wide matrices are first made square by a QR decomposition of the transpose, which is as accurate and three to five times as
    fast at 6 x 300,000 and 64 x 300,000.
    """
    if matrix.shape[-1] <= matrix.shape[-2]:
        u, values, vt = _decomposed(matrix)
    else:
        orthonormal, triangle = torch.linalg.qr(matrix.mT)
        u, values, vt = _decomposed(triangle.mT)
        vt = vt @ orthonormal.mT
    signs = _phase(_fixed_vectors(u, 1)[0] @ u)
    return u * signs[..., None, :], values, vt * signs[..., None]


def _decomposed(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U, S and V^T; by QR iterations where LAPACK's faster method, divide and conquer, fails.

    It returns NaN without an error for some matrices with singular values close together.
    """
    u, values, vt = torch.linalg.svd(matrix, full_matrices=False)
    failed = ~(u.isfinite().flatten(-2).all(-1) & vt.isfinite().flatten(-2).all(-1))
    if bool(failed.any()) and bool(matrix.isfinite().all()):
        import scipy.linalg

        for index in failed.nonzero():
            array = matrix[tuple(index)].numpy(force=True)
            by_iterations = scipy.linalg.svd(array, full_matrices=False, lapack_driver="gesvd")
            for whole, part in zip((u, values, vt), by_iterations, strict=True):
                whole[tuple(index)] = torch.from_numpy(part).to(whole)
    return u, values, vt


def narrowed(rows: Float[Tensor, "m k"]) -> Float64[Tensor, "m r"]:
    """A matrix of the same Gram matrix with at most as many columns as rows: a root of the same covariance.

    In float64 it is the triangle of a QR decomposition. Rows in float32 have a relative error of 6e-8, which their Gram
    matrix in float64 resolves: its eigenvectors take a fraction of the time.
    """
    if rows.shape[-1] <= rows.shape[-2]:
        return rows.to(torch.float64)
    if rows.dtype == torch.float64:
        return torch.linalg.qr(rows.mT, mode="r").R.mT
    # R R^T = V diag(values) V^T, root V diag(values)^(1/2)
    gram = rows.new_zeros(len(rows), len(rows), dtype=torch.float64)
    for piece in rows.split(max(1, _CHUNK_ELEMENTS // len(rows)), dim=1):
        columns = piece.to(torch.float64)
        gram += columns @ columns.mT
    values, vectors = eigenpairs(gram)
    return vectors * values.sqrt()


def resolved_eigenpairs(gram: Float64[Tensor, "*b k k"]) -> tuple[Float64[Tensor, "*b k"], Float64[Tensor, "*b k k"]]:
    """Eigenpairs, where values within the rounding of the largest are zero.

    Divided by a small noise, rounding would count as information.
    """
    values, vectors = eigenpairs(gram)
    least = values.shape[-1] * torch.finfo(values.dtype).eps * values[..., -1:]
    return torch.where(values > least, values, 0.0), vectors


def eigenpairs(gram: Float64[Tensor, "*b k k"]) -> tuple[Float64[Tensor, "*b k"], Float64[Tensor, "*b k k"]]:
    """Eigenvalues, rising, and eigenvectors of a Gram matrix; negative values are rounding, and become zero.

    The vectors have the signs that this machine's library gives them: see `canonical`.
    """
    values, vectors = torch.linalg.eigh(gram)
    return values.clamp_min(0.0), vectors


def canonical(
    values: Float64[Tensor, "*b k"], vectors: Inexact[Tensor, "*b k k"]
) -> tuple[Float64[Tensor, "*b k"], Inexact[Tensor, "*b k k"]]:
    """Eigenpairs in a basis that does not depend on the library or device, up to rounding, and without negative values.

    Phases are free, and so is the basis of the null space to rounding. Both are chosen by products with fixed generic vectors,
    positive for phases and triangular for that basis. Random coordinates have to be in such a basis, or draws of one seed vary
    between devices. Repeated positive eigenvalues leave their basis open.

    Args:
        values: Eigenvalues of Gram matrices, rising, in any unit.
        vectors: Orthonormal eigenvectors, real or complex.

    Examples:
        >>> gram = torch.ones(2, 2, dtype=torch.float64)
        >>> values, vectors = torch.linalg.eigh(gram)
        >>> torch.allclose(canonical(values, -vectors)[1], canonical(values, vectors)[1])
        True
    """
    size = values.shape[-1]
    if size == 0:
        return values, vectors
    fixed = _fixed_vectors(vectors, size)
    vectors = vectors * _phase(fixed[0] @ vectors).conj()[..., None, :]
    values = torch.where(values > size * torch.finfo(values.dtype).eps * values[..., -1:], values, 0.0)
    zeros = (values == 0.0).sum(-1)
    for count in zeros[zeros > 1].unique().tolist():
        null = vectors[zeros == count][..., :count]
        basis, triangle = torch.linalg.qr(null.mH @ fixed[:count].mT)
        basis = basis * _phase(triangle.diagonal(dim1=-2, dim2=-1))[..., None, :]
        changed = vectors.clone()
        changed[zeros == count] = torch.cat([null @ basis, vectors[zeros == count][..., count:]], dim=-1)
        vectors = changed
    return values, vectors


def _fixed_vectors(vectors: Inexact[Tensor, "*b m k"], count: int) -> Inexact[Tensor, "q m"]:
    """Generic vectors, the same for every device."""
    shape = count, vectors.shape[-2]
    return torch.randn(shape, generator=stream(0, "canonical basis"), dtype=torch.float64, device="cpu").to(vectors)


def _phase(numbers: Inexact[Tensor, "..."]) -> Inexact[Tensor, "..."]:
    """Numbers of absolute value 1, and 1 for zero."""
    return torch.where(numbers == 0, 1.0, numbers / numbers.abs())
