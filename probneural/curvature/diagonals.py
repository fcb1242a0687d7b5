"""Diagonals and row norms of matrix-free linear maps, with error estimates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_counts, check_floating, check_least, validated
from probneural.errors import ArgumentError
from probneural.linear_algebra.symmetric_maps import Map, apply, gaussian, inner, orthonormal, signs
from probneural.randomness import stream

_BATCH = 64
"""Number of vectors per product."""
_DEPTH = 2
"""Number of blocks of the sketch's Krylov space, each F^T F times the previous one. Compared with 1, 2 lowers the error by 10
to 30 % for smooth kernels and changes little for others; power iteration, at twice the products per column, brought no gain."""
_CHUNK = 2**16
"""Number of diagonal entries per chunk."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Estimate:
    """Estimate of non-negative numbers, such as the diagonal of a positive semi-definite matrix.

    Attributes:
        values: Estimates, `(P,)`, float64.
        errors: Standard errors, `(P,)`, float64, >= 0; zero for exact values.
        lower: Lower bounds of the true values, up to rounding, `(P,)`, float64, >= 0.
        products: Number of products, including those with the transpose.
    """

    values: Float64[Tensor, " P"]
    errors: Float64[Tensor, " P"]
    lower: Float64[Tensor, " P"]
    products: int


def row_squares_estimate(
    product: Map,
    transposed_product: Map,
    *,
    shape: tuple[int, int],
    sketch: int,
    probes: int,
    seed: int = 0,
    like: Tensor | None = None,
) -> Estimate:
    """Estimate the row sums of squares of F: R^k -> R^m, hence the variances of F xi for xi ~ N(0, I).

        diag(F F^T) = sum over j of (F q_j)^2 + E[(F (I - Q Q^T) xi)^2]

    The orthonormal columns q_j span random combinations of F's rows, Q = orth(F^T Omega). The first term is exact and bounds
    the result from below. The second is a mean over `probes` independent draws, positive and unbiased given Q: a true
    remainder r is estimated by r times chi-square(probes)/probes. The error is sqrt(2/(probes + 2)) times the estimated
    remainder; its square is unbiased for the variance. It is proportional to the estimated remainder: an underestimate comes
    with too small an error, so below about 10 probes the error is only an order of magnitude. All rows share the draws,
    so errors of nearby rows are correlated.

    Gradients flow through the products with F, at a fixed Q: unbiased like the values, but not their exact derivative at a
    fixed seed unless Q spans R^k.

    Args:
        product: F on rows, `(s, k)` to `(s, m)`.
        transposed_product: F^T on rows, `(s, m)` to `(s, k)`.
        shape: `(m, k)`.
        sketch: Maximum number of columns of Q; each takes one product with F and one with F^T.
        probes: Number of draws for the second term, one product with F each.
        seed: Seed of the random numbers.
        like: Tensor with the dtype and device of the random numbers passed to `transposed_product`, whose result sets the
            dtype of the remaining computation; float64 on the CPU by default.

    Returns:
        Row sums of squares, their errors and lower bounds; exact if Q spans R^k.

    Raises:
        ArgumentError: If a number is not positive.
        ShapeError: If a product has the wrong shape.
        DataError: If a product is not finite.

    Reference:
        Meyer, Musco, Musco & Woodruff (2021), Hutch++: optimal stochastic trace estimation, for the split; Musco & Musco
        (2015), Randomized block Krylov methods, for the space. Deviation: row by row, with Gaussian draws, so that the second
        term cannot be negative.

    Examples:
        >>> root = torch.tensor([[3.0, 4.0], [1.0, 0.0]], dtype=torch.float64)
        >>> found = row_squares_estimate(lambda x: x @ root.T, lambda y: y @ root, shape=(2, 2), sketch=2, probes=1)
        >>> found.values.round().tolist(), found.errors.tolist()
        ([25.0, 1.0], [0.0, 0.0])
    """
    rows, latent = shape
    check_counts(rows=rows, latent=latent, sketch=sketch, probes=probes)
    generator = stream(seed, "row squares")
    like = torch.zeros((), dtype=torch.float64, device="cpu") if like is None else check_floating(like, "like").new_zeros(())
    count = min(sketch, latent)
    spent = 0
    basis: Tensor | None = None
    exact: Tensor | None = None
    block = -(-count // min(_DEPTH, count))
    images, is_random = gaussian(block, rows, generator=generator, like=like), True
    while remaining := min(count - (0 if basis is None else len(basis)), count - (spent + 1) // 2):
        pulled = _batched(transposed_product, images.detach()[:remaining], size=latent).detach()
        # float64 for every dtype: norms of directions differ by orders of magnitude, and a repeated direction must vanish.
        fresh = orthonormal(pulled.to(torch.float64), against=basis)
        spent += len(pulled) + len(fresh)
        like = like.to(pulled)
        if len(fresh) == 0 and is_random:  # the rows of F are spanned, to rounding
            break
        if len(fresh) == 0:  # the block's Krylov space is spanned, as where singular values repeat
            images, is_random = gaussian(block, rows, generator=generator, like=like), True
            continue
        images, is_random = _batched(product, fresh.to(like), size=rows), False
        squares = images.to(torch.float64).square().sum(0)
        exact = squares if exact is None else exact + squares
        basis = fresh if basis is None else torch.cat([basis, fresh])
    if basis is None or exact is None:
        zeros = torch.zeros(rows, dtype=torch.float64, device=like.device)
        return Estimate(values=zeros, errors=zeros, lower=zeros, products=spent)
    if len(basis) == latent:
        return Estimate(values=exact, errors=torch.zeros_like(exact), lower=exact, products=spent)
    draws = gaussian(probes, latent, generator=generator, like=basis)
    draws = draws - inner(draws, basis) @ basis
    remainder = torch.zeros_like(exact)
    for piece in draws.to(like).split(_BATCH):
        remainder = remainder + apply(product, piece, size=rows).to(torch.float64).square().sum(0) / probes
    values = exact + remainder
    return Estimate(
        values=values, errors=(remainder * math.sqrt(2.0 / (probes + 2.0))).detach(), lower=exact, products=spent + probes
    )


def _batched(product: Map, rows: Tensor, *, size: int) -> Tensor:
    return torch.cat([apply(product, piece, size=size) for piece in rows.split(_BATCH)])


@validated
def xdiag(product: Map, size: int, *, products: int, seed: int = 0, like: Tensor | None = None) -> Estimate:
    """Estimate the diagonal of a positive semi-definite A by XDiag, which uses every random vector as sketch and as probe.

        d_i = diag(Q_i Q_i^T A) + w_i * (I - Q_i Q_i^T) A w_i,   Q_i = orth(A w_j, j != i),   estimate = mean over i of d_i

    with n = products // 2 vectors w_i of random signs. The estimate is unbiased, so entries can be negative. The error is the
    standard error of n independent d_i, sqrt(sum over i of (d_i - mean)^2 / (n (n - 1))); the d_i are exchangeable but not
    independent, so only its order of magnitude is right. It is heavy-tailed: if the sketch captures nearly all of A, one d_i
    can be an outlier. The lower bound is the diagonal of the Nyström approximation A Q (Q^T A Q)^-1 Q^T A, from the
    same products; if A's eigenvalues decay fast it is often the better estimate.

    Args:
        product: A on rows, `(s, P)` to `(s, P)`.
        size: P.
        products: Total number of products, at least 4; with P or more, the diagonal is exact.
        seed: Seed of the signs.
        like: Tensor with the dtype and device of the vectors, which occupy `(products, P)`; float64 on the CPU by default.

    Returns:
        The diagonal in A's units, with errors and lower bounds.

    Raises:
        ArgumentError: If there are fewer than 4 products.
        ShapeError: If a product has the wrong shape.
        DataError: If a product is not finite.

    Reference:
        Epperly, Tropp & Webber (2024), XTrace: making the most of every sample in stochastic trace estimation, section 4 and
        supplement. Deviation: Q comes from a truncated singular value decomposition, so A may have fewer than n non-zero
        eigenvalues.

    Examples:
        >>> weights = torch.tensor([2.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
        >>> xdiag(lambda rows: rows * weights, 5, products=5).values
        tensor([2., 1., 0., 0., 0.], dtype=torch.float64)
    """
    check_counts(products=products, size=size)
    check_least(products, min(4, size), "products", remedy="an error bar takes two random vectors", error=ArgumentError)
    like = torch.zeros((), dtype=torch.float64, device="cpu") if like is None else check_floating(like, "like").new_zeros(())
    if products >= size:
        values = _exact_diagonal(product, size, like)
        return Estimate(values=values, errors=torch.zeros_like(values), lower=values.clamp_min(0.0), products=size)
    count = products // 2
    tests = signs(count, size, generator=stream(seed, "diagonal"), like=like)
    sketch = _Sketch.of(product, tests)
    estimates, errors, lower = [], [], []
    root = sketch.nystrom_root()
    for piece in torch.arange(size, device=like.device).split(max(1, _CHUNK // count)):
        basis = sketch.basis[:, piece].to(torch.float64)
        images = sketch.images[:, piece].to(torch.float64)
        base = (basis * images).sum(0)
        alone = sketch.along[:, None] * tests[:, piece].to(torch.float64)
        shifts = (sketch.missing @ basis) * (alone - sketch.missing @ images)
        estimates.append(base + shifts.mean(0))
        errors.append(shifts.std(0) / math.sqrt(count))
        lower.append((root @ images).square().sum(0))
    return Estimate(
        values=torch.cat(estimates), errors=torch.cat(errors), lower=torch.cat(lower), products=count + len(sketch.basis)
    )


@dataclass(frozen=True, eq=False)
class _Sketch:
    """Y = A W, an orthonormal basis of its span, and each column's component outside the span of the other columns.

    Attributes:
        basis: Q^T, `(r, P)`.
        images: (A Q)^T, `(r, P)`.
        missing: Rows s_i, `(n, r)`: Q s_i is orthogonal to all columns of Y except the ith; zero if the others span the ith.
        along: s_i^T Q^T y_i, `(n,)`.
    """

    basis: Tensor
    images: Tensor
    missing: Tensor
    along: Tensor

    @staticmethod
    def of(product: Map, tests: Tensor) -> _Sketch:
        count, size = tests.shape
        sketched = _batched(product, tests, size=size).detach()
        left_vectors, singular, right_vectors = torch.linalg.svd(sketched.to(torch.float64), full_matrices=False)
        resolved = singular > 10.0 * torch.finfo(tests.dtype).eps * math.sqrt(count) * singular[0]
        left_vectors, singular, right_vectors = left_vectors[:, resolved], singular[resolved], right_vectors[resolved]
        basis = right_vectors.to(tests)
        images = _batched(product, basis, size=size).detach() if len(basis) else basis
        # The ith column is not spanned by the others exactly when its leverage, the ith row norm of `left`, is one.
        alone = left_vectors.square().sum(1) > 1.0 - 1e-8
        missing = torch.where(alone[:, None], left_vectors / singular, 0.0)
        missing = torch.where(alone[:, None], missing / missing.norm(dim=1, keepdim=True).clamp_min(1e-300), 0.0)
        return _Sketch(basis, images, missing, (missing * left_vectors * singular).sum(1))

    def nystrom_root(self) -> Tensor:
        """T^(-1/2) on the span where T = Q^T A Q is clearly positive, `(r', r)`: rows of it times A Q sum to the bound."""
        matrix = inner(self.basis, self.images)
        values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
        if len(values) == 0:
            return vectors.mT
        resolved = values > 100.0 * torch.finfo(self.basis.dtype).eps * values[-1].clamp_min(0.0)
        return (vectors[:, resolved] * values[resolved].rsqrt()).mT


def _exact_diagonal(product: Map, size: int, like: Tensor) -> Tensor:
    pieces = []
    for piece in torch.arange(size, device=like.device).split(_BATCH):
        unit = torch.zeros(len(piece), size, dtype=like.dtype, device=like.device).scatter_(1, piece[:, None], 1.0)
        pieces.append(apply(product, unit, size=size).detach().gather(1, piece[:, None])[:, 0])
    return torch.cat(pieces).to(torch.float64)
