"""Largest eigenvalues of a matrix-free positive semi-definite map."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_counts, check_finite, check_floating, check_integer, check_positive, check_shape, validated
from probneural.errors import ArgumentError
from probneural.linear_algebra.symmetric_maps import Map, apply, gaussian, inner, orthonormal, row_norms
from probneural.randomness import stream

_BLOCK = 8
"""Number of vectors per product."""
_FLOOR = 50.0
"""Multiple of epsilon times the largest eigenvalue below which eigenvalues are zero; lower bound of residual tolerances."""
_NEXT = 0.1
"""Relative residual of the first omitted pair."""
_ROOM = 2**26
"""Maximum number of entries of the basis before a restart (256 MiB in float32, and as much for its image)."""
_INDEFINITE = 1e-3
"""Tolerance of negative Ritz values and of asymmetry of products, as a fraction of the largest eigenvalue."""
_UNRESOLVED = 0.3
"""Maximum relative residual of additional pairs for a quadrature."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RitzPairs:
    """Ritz vectors and values of A.

    Attributes:
        values: v^T A v, `(q,)`, descending, float64.
        vectors: `(P, q)`, orthonormal columns.
    """

    values: Float64[Tensor, " q"]
    vectors: Float[Tensor, "P q"]


def check_semidefinite(least: float, largest: float) -> None:
    """Raise an ArgumentError if the least eigenvalue of a map is negative beyond rounding."""
    if least < -_INDEFINITE * max(largest, 0.0):
        raise ArgumentError(
            expected="a positive semi-definite map",
            got=f"eigenvalues down to {least:.2e}, up to {largest:.2e}",
            remedy="use the Gauss-Newton matrix, which is positive semi-definite",
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Eigenpairs:
    """The largest eigenvalues of a positive semi-definite map, with their eigenvectors.

    Attributes:
        values: `(r,)`, descending, all positive, float64. By Cauchy's interlacing none exceeds the true one of its rank.
        vectors: `(P, r)`, orthonormal columns.
        residuals: ||A v - lambda v|| of each pair, `(r,)`, float64, from the products with A themselves; an eigenvalue of A
            lies within that distance of lambda.
        next_value: Estimate of the largest eigenvalue outside the span: the next Ritz value plus its residual. Zero if the
            remainder is at rounding level or empty.
        is_converged: Whether all residuals met the tolerance and the next value is resolved.
        products: Number of products with A.
        unresolved: Further pairs with residuals below 0.3 of the values, orthonormal to the others, at no extra cost. A
            quadrature that also deflates them needs about half as many steps.
    """

    values: Float64[Tensor, " r"]
    vectors: Float[Tensor, "P r"]
    residuals: Float64[Tensor, " r"]
    next_value: float
    is_converged: bool
    products: int
    unresolved: RitzPairs | None = None


@validated
def top_eigenpairs(
    product: Map,
    size: int,
    *,
    rank: int,
    start: Float[Tensor, "P k"] | None = None,
    tolerance: float = 1e-4,
    max_products: int | None = None,
    seed: int = 0,
    like: Tensor | None = None,
) -> Eigenpairs:
    """Find the largest eigenpairs of A by block Lanczos with full reorthogonalisation and thick restarts.

        A v_j = lambda_j v_j,  lambda_1 >= lambda_2 >= ... >= 0

    Fewer than `rank` pairs are returned if A has fewer: eigenvalues below 50 eps lambda_1 (6e-6 lambda_1 in
    float32) are zero. A pair has converged when ||A v - lambda v|| <= max(tolerance * lambda, 50 eps lambda_1).
    Blocks have eight vectors; eigenvalues of higher multiplicity may be found too few times. Memory is that of the
    basis and its image: 2^26 numbers each, or three times `rank` vectors if that is more.

    A residual certifies an eigenvalue near the Ritz value. It does not exclude a larger eigenvalue.

    Args:
        product: A on rows, `(s, P)` to `(s, P)`; its result is not differentiated.
        size: P.
        rank: Number of pairs.
        start: Directions near the wanted ones, `(P, k)`, added to the random start for k products; any scale.
        tolerance: On residuals relative to each eigenvalue, dimensionless.
        max_products: Maximum number of products after the first block; by default 20 per pair, and at least 400.
        seed: Seed of the random start.
        like: A tensor of the dtype and on the device of the vectors, float64 on the CPU by default; small matrices are
            float64.

    Returns:
        The pairs, whether they converged, and the next one.

    Raises:
        ArgumentError: If the rank exceeds P, or A is clearly not symmetric or has a clearly negative eigenvalue.
        ShapeError: If `start` or a product has the wrong shape.
        DataError: If `start` or a product is not finite.

    Reference:
        Golub & Van Loan (2013), Matrix Computations, section 10.3.6; Wu & Simon (2000), Thick-restart Lanczos method for large
        symmetric eigenvalue problems. Deviation: the image of the basis is kept, so residuals are true ones, any start can be
        used, and the block that follows is spanned by residuals of the first pairs that have not converged (in exact arithmetic
        and from a random start, this is Lanczos' own block).

    Examples:
        >>> weights = torch.tensor([3.0, 0.0, 5.0], dtype=torch.float64)
        >>> top_eigenpairs(lambda rows: rows * weights, 3, rank=2).values
        tensor([5.0000, 3.0000], dtype=torch.float64)
    """
    check_counts(size=size, max_products=max_products)
    check_integer(rank, "rank", most=size, remedy="ask for fewer pairs")
    check_positive(tolerance, "tolerance")
    if start is not None:
        check_shape(start, "start", size, "k", remedy="one direction per column")
        check_finite(start, "start", remedy="leave it out")
    like = torch.zeros((), dtype=torch.float64, device="cpu") if like is None else check_floating(like, "like").new_zeros(())
    search = _Search(product, size, rank=rank, tolerance=tolerance, like=like)
    return search.run(start, limit=max_products or max(400, 20 * rank), generator=stream(seed, "eigenpairs"))


class _Search:
    """An orthonormal basis V as rows with its images A V and the small matrix V A V^T, and the pairs found in it so far."""

    def __init__(self, product: Map, size: int, *, rank: int, tolerance: float, like: Tensor) -> None:
        self.product, self.size, self.rank = product, size, rank
        self.block, self.tolerance, self.like = min(_BLOCK, size), tolerance, like
        self.rows = like.new_empty(0, size)
        self.images = like.new_empty(0, size)
        self.count = 0
        self.matrix = torch.empty(0, 0, dtype=torch.float64)
        self.values = torch.empty(0, dtype=torch.float64)
        self.mixing = torch.empty(0, 0, dtype=torch.float64)
        self.products = 0
        self.settled = 0  # number of leading pairs that had converged at the last check

    def run(self, start: Tensor | None, *, limit: int, generator: torch.Generator) -> Eigenpairs:
        """Extend the basis until the pairs and the one after them are resolved."""
        first = gaussian(self.block, self.size, generator=generator, like=self.like)
        if start is not None:
            first = torch.cat([orthonormal(start.detach().to(self.like).mT), first])
        self.extend(orthonormal(first))
        trusted: Tensor | None = None  # Ritz values when larger ones might have been hidden
        while True:
            window = self.settle()
            if self.count == self.size:
                return self.result(window is None)
            is_closed = window is None and self.is_invariant()
            if window is None and self.count > self.rank:
                largest = self.values[: self.rank]
                # Pairs of a good start have converged before random vectors, which know of larger ones, were multiplied twice.
                is_sure = start is None and not is_closed
                if is_sure or (trusted is not None and self.agree(largest, trusted)):
                    return self.result(True)
                trusted = largest
            if self.products + self.block > limit:
                return self.result(False)
            if is_closed or (window is None and start is None):
                window = gaussian(self.block, self.size, generator=generator, like=self.like)
                if self.extend(orthonormal(window, against=self.basis)[: self.size - self.count]) <= self.floor:
                    return self.result(True, exhausted=True)
            else:
                window = self.open_residuals() if window is None else window
                self.restart()
                self.extend(orthonormal(window, against=self.basis)[: self.block])

    @property
    def basis(self) -> Tensor:
        """V, `(m, P)`."""
        return self.rows[: self.count]

    @property
    def floor(self) -> float:
        """Rounding level of eigenvalues and residuals."""
        return _FLOOR * torch.finfo(self.like.dtype).eps * float(self.values[0].clamp_min(0.0))

    def extend(self, fresh: Tensor) -> float:
        """Add orthonormal rows, at least one, and return the norm of the largest of their images."""
        images = apply(self.product, fresh, size=self.size).detach()
        self.products += len(fresh)
        old, new = self.count, self.count + len(fresh)
        if new > len(self.rows):
            room = min(self.size, max(new, 2 * len(self.rows)))
            self.rows = torch.cat([self.rows, self.rows.new_empty(room - len(self.rows), self.size)])
            self.images = torch.cat([self.images, self.images.new_empty(room - len(self.images), self.size)])
        coupling = inner(self.images[:old], fresh).cpu()
        self.rows[old:new], self.images[old:new] = fresh, images
        self.count = new
        columns = inner(self.basis, images).cpu()
        scale = float(self.values.abs().max()) if old else 0.0
        scale = max(scale, float(columns[old:].abs().max()))
        asymmetry = float((columns[old:] - columns[old:].mT).abs().max())
        if old:
            asymmetry = max(asymmetry, float((coupling - columns[:old]).abs().max()))
        if asymmetry > _INDEFINITE * scale:
            raise ArgumentError(
                expected="a symmetric map", got=f"v^T A w and w^T A v that differ by {asymmetry:.1e}", remedy="pass A^T A"
            )
        matrix = torch.zeros(new, new, dtype=torch.float64)
        matrix[:old, :old] = self.matrix
        matrix[:old, old:] = (coupling + columns[:old]) / 2
        matrix[old:, :old] = matrix[:old, old:].mT
        matrix[old:, old:] = (columns[old:] + columns[old:].mT) / 2
        self.decompose(matrix)
        return float(images.to(torch.float64).norm(dim=1).max())

    def decompose(self, matrix: Tensor) -> None:
        """Take Ritz values of the small matrix."""
        values, mixing = torch.linalg.eigh(matrix)
        self.matrix, self.values, self.mixing = matrix, values.flip(0), mixing.flip(1)

        check_semidefinite(float(self.values[-1]), float(self.values[0]))

    def agree(self, values: Tensor, others: Tensor) -> bool:
        """Whether two lists of Ritz values are the same to the tolerance."""
        return len(values) == len(others) and torch.allclose(values, others, rtol=self.tolerance, atol=self.floor)

    def residual(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """A y - theta y of some Ritz pairs, `(s, P)`, and their norms, float64 on the CPU."""
        mixing = self.mixing[:, first:last]
        rows = (mixing.mT.to(self.like) @ self.images[: self.count]) - (mixing * self.values[first:last]).mT.to(
            self.like
        ) @ self.basis
        return rows, row_norms(rows).cpu()

    def settle(self) -> Tensor | None:
        """Count pairs that have converged; return the residuals of the first ones that have not, or None."""
        while True:
            need = min(self.rank + 1, self.count)
            if self.settled >= need:
                # Larger eigenvalues may have turned up since, and moved all others down: look at every pair again.
                _, norms = self.residual(0, need)
                self.settled = self.first_open(norms, 0, need)
                if self.settled >= need:
                    return None
            first = self.settled
            rows, norms = self.residual(first, min(first + 2 * self.block, self.count))
            self.settled = self.first_open(norms, first, need)
            if self.settled < min(need, first + len(norms)):
                rows, norms = rows[self.settled - first :], norms[self.settled - first :]
                return rows[norms > self.floor]  # smaller vectors are rounding errors

    def first_open(self, norms: Tensor, first: int, last: int) -> int:
        """Index of the first pair with too large a residual from an index on; otherwise the next index to check."""
        for index, norm in enumerate(norms.tolist(), start=first):
            if index >= last or not self.resolved(index, norm):
                return index
        return first + len(norms)

    def resolved(self, index: int, norm: float) -> bool:
        """Whether a pair's residual is small enough; the first pair left out need not be as good."""
        value = float(self.values[index].clamp_min(0.0))
        if norm <= max(self.tolerance * value, self.floor):
            return True
        return index >= self.rank and norm <= _NEXT * value

    def open_residuals(self) -> Tensor:
        """Residuals of the first pairs that A does not map into the basis, `(s, P)`."""
        parts: list[Tensor] = []
        for first in range(0, self.count, 2 * self.block):
            rows, norms = self.residual(first, min(first + 2 * self.block, self.count))
            parts.append(rows[norms > self.floor])
            if sum(map(len, parts)) >= self.block:
                break
        return torch.cat(parts)

    def is_invariant(self) -> bool:
        """Whether A maps the whole basis into its span, to rounding: eigenvalues may then hide outside."""
        last = self.count
        for first in range(0, last, 2 * self.block):
            if float(self.residual(first, min(first + 2 * self.block, last))[1].max()) > self.floor:
                return False
        return True

    def restart(self) -> None:
        """Restart a long basis with the best Ritz vectors, about three times the requested number."""
        retained = self.rank + 2 * self.block
        room = max(_ROOM // self.size, 3 * self.rank, self.rank + 12 * self.block)
        if self.count + self.block <= room or retained >= self.count:
            return
        mixing = self.mixing[:, :retained].mT.to(self.like)
        self.rows[:retained], self.images[:retained] = mixing @ self.basis, mixing @ self.images[: self.count]
        self.count = retained
        self.decompose(self.values[:retained].diag())

    def result(self, converged: bool, *, exhausted: bool = False) -> Eigenpairs:
        """The pairs found, without those that are zero."""
        target = min(self.rank, self.count)
        positive = int((self.values[:target] > self.floor).sum())
        following = 0.0
        if positive == target and target < self.count:
            following = float(self.values[target].clamp_min(0.0) + self.residual(target, target + 1)[1][0])
        elif positive == target and target < self.size and not exhausted:
            following = float(self.values[-1].clamp_min(0.0))
        following = following if following > self.floor else 0.0
        return Eigenpairs(
            values=self.values[:positive].to(self.like.device),
            vectors=self.basis.mT @ self.mixing[:, :positive].to(self.like),
            residuals=self.residual(0, positive)[1].to(self.like.device),
            next_value=following,
            is_converged=converged,
            products=self.products,
            unresolved=self.unresolved(positive) if positive == target else None,
        )

    def unresolved(self, first: int) -> RitzPairs | None:
        """Additional pairs with residuals small enough for a quadrature."""
        last = first
        while last < self.count:
            norms = self.residual(last, min(last + 2 * self.block, self.count))[1]
            values = self.values[last : last + len(norms)]
            rough = norms > (_UNRESOLVED * values).clamp_min(self.floor)
            last += int(rough.nonzero()[0]) if bool(rough.any()) else len(norms)
            if bool(rough.any()):
                break
        while last > first and float(self.values[last - 1]) <= self.floor:
            last -= 1
        if last == first:
            return None
        vectors = self.basis.mT @ self.mixing[:, first:last].to(self.like)
        return RitzPairs(values=self.values[first:last].to(self.like.device), vectors=vectors)
