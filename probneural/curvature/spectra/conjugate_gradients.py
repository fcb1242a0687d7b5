"""Linear systems with a positive definite map, many right-hand sides at once, to a residual that is checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_counts
from probneural.curvature.spectra.symmetric_maps import Map, apply
from probneural.errors import ArgumentError, DataError, ShapeError

_RESTARTS = 5
"""How often iterations start anew from the true residual after theirs has drifted from it."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Solutions of linear systems A x = b.

    Attributes:
        solution: `(s, P)`.
        relative_residuals: ||b - A x|| / ||b|| computed from x by one more product, `(s,)`, float64; zero where b is.
        iterations: Number of products with A on all systems that were still open, checks included.
        converged: Whether every relative residual is at most the tolerance.
    """

    solution: Float[Tensor, "s P"]
    relative_residuals: Float64[Tensor, " s"]
    iterations: int
    converged: bool


@dataclass(frozen=True, eq=False)
class LowRankPreconditioner:
    """The inverse of V diag(values) V^T + shift I, which clusters the spectrum of G + shift I if V holds G's top eigenvectors.

        M^-1 = (I + V diag(shift / (values + shift) - 1) V^T) / shift

    Args:
        values: `(r,)`, >= 0.
        vectors: V, `(P, r)`, orthonormal columns.
        shift: > 0, in the units of `values`.

    Raises:
        ShapeError: If there is not one value per vector.
        ArgumentError: If the shift is not positive, or a value is negative.

    Examples:
        >>> inverse = LowRankPreconditioner(torch.tensor([3.0]), torch.tensor([[1.0], [0.0]]), shift=1.0)
        >>> inverse(torch.tensor([[4.0, 4.0]]))
        tensor([[1., 4.]])
    """

    values: Float[Tensor, " r"]
    vectors: Float[Tensor, "P r"]
    shift: float

    def __post_init__(self) -> None:
        """Check shapes and signs."""
        if self.values.ndim != 1 or self.vectors.ndim != 2 or len(self.values) != self.vectors.shape[1]:
            raise ShapeError(
                expected="values (r,) and vectors (P, r)",
                got=f"{tuple(self.values.shape)} and {tuple(self.vectors.shape)}",
                remedy="one eigenvector per column",
            )
        if not 0 < self.shift < math.inf or not bool((self.values >= 0).all()):
            raise ArgumentError(
                expected="a positive shift, and values of at least 0",
                got=f"{self.shift} and {self.values.tolist()[:8]}",
                remedy="clamp eigenvalues at zero",
            )

    def __call__(self, rows: Float[Tensor, "s P"]) -> Float[Tensor, "s P"]:
        """Multiply rows by M^-1."""
        vectors = self.vectors.to(rows)
        change = (self.shift / (self.values + self.shift) - 1.0).to(rows)
        return (rows + ((rows @ vectors) * change) @ vectors.mT) / self.shift


def solve(
    product: Map,
    right: Float[Tensor, "s P"],
    *,
    preconditioner: Map | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> Solution:
    """Solve A x = b for every row b by preconditioned conjugate gradients.

    Each system has step sizes of its own; it is left alone once it has converged, while products still run for the open ones.
    Whatever the iterations believe, the residual reported is that of the solution, from one more product; where it exceeds
    the tolerance although theirs did not, they start anew from it, at most 5 times. It is no error not to converge: look at
    `converged`.

    Args:
        product: A on rows, `(s, P)` to `(s, P)`, symmetric and positive definite on the span of the right-hand sides.
        right: Right-hand sides b.
        preconditioner: An approximate inverse of A on rows, symmetric positive definite.
        tolerance: On each relative residual ||b - A x|| / ||b||, dimensionless.
        max_iterations: Products with A, at most, besides the last check.

    Returns:
        Solutions in b's dtype, with their residuals.

    Raises:
        ArgumentError: If the map or the preconditioner turns out not to be positive definite.
        DataError: If `right` or a product is not finite.
        ShapeError: If `right` is not a matrix, or a product has another shape.

    Reference:
        Hestenes & Stiefel (1952), Methods of conjugate gradients for solving linear systems; Greenbaum (1997), Iterative
        methods for solving linear systems, section 7.3, for the gap between recursive and true residuals.

    Examples:
        >>> solve(lambda rows: 4.0 * rows, torch.tensor([[8.0, 4.0]])).solution
        tensor([[2., 1.]])
    """
    check_counts(max_iterations=max_iterations)
    if not 0 < tolerance < 1:
        raise ArgumentError(expected="a tolerance in (0, 1)", got=str(tolerance), remedy="1e-6 in float64, 1e-5 in float32")
    if right.ndim != 2:
        raise ShapeError(expected="right-hand sides (s, P)", got=str(tuple(right.shape)), remedy="one row per system")
    if not right.is_floating_point() or not bool(right.isfinite().all()):
        raise DataError(expected="right-hand sides that are real and finite", got="others", remedy="check what they come from")
    size = right.shape[1]
    scale = _norms(right)
    # Systems are solved for b / max |b|: squares of very small or large numbers would not be representable.
    unit = right.abs().amax(dim=1, keepdim=True) if size else right.new_ones(len(right), 1)
    unit = torch.where(unit > 0, unit, 1.0)
    right = right / unit
    scale = _norms(right)
    limits = tolerance * scale
    solution = torch.zeros_like(right)
    residual = right.clone()
    norms, iterations = scale.clone(), 0
    for _ in range(_RESTARTS + 1):
        open_ = (norms > limits).nonzero()[:, 0]
        if len(open_) == 0 or iterations >= max_iterations:
            break
        change, spent = _iterate(
            product, residual[open_], limits[open_], preconditioner=preconditioner, limit=max_iterations - iterations
        )
        candidate = solution[open_] + change
        fresh = right[open_] - apply(product, candidate, size=size)
        iterations += spent + 1
        better = _norms(fresh) < norms[open_]
        taken = open_[better]
        solution[taken], residual[taken], norms[taken] = candidate[better], fresh[better], _norms(fresh[better])
        if not bool(better.any()):
            break
    relative = torch.where(scale > 0, norms / torch.where(scale > 0, scale, 1.0), 0.0)
    return Solution(solution * unit, relative, iterations, converged=bool((relative <= tolerance).all()))


def _iterate(product: Map, right: Tensor, limits: Tensor, *, preconditioner: Map | None, limit: int) -> tuple[Tensor, int]:
    """Solve from zero until the recursive residuals are below their limits; return solutions and number of products."""
    size = right.shape[1]
    solution, residual = torch.zeros_like(right), right.clone()
    active = torch.arange(len(right), device=right.device)
    direction, before = torch.zeros_like(right), torch.ones(len(right), dtype=torch.float64, device=right.device)
    for step in range(limit):
        here = residual[active]
        conditioned = here if preconditioner is None else apply(preconditioner, here, size=size)
        now = _dots(here, conditioned)
        if bool((now <= 0).any()):
            _refuse("preconditioner", "r^T M r", float(now.min()))
        ahead = conditioned + direction[active] * (now / before[active] if step else torch.zeros_like(now)).to(here)[:, None]
        image = apply(product, ahead, size=size)
        curvature = _dots(ahead, image)
        if bool((curvature <= 0).any()):
            _refuse("map", "p^T A p", float(curvature.min()))
        length = (now / curvature).to(here)[:, None]
        solution[active] += length * ahead
        residual[active] = here - length * image
        direction[active], before[active] = ahead, now
        active = active[_norms(residual[active]) > limits[active]]
        if len(active) == 0:
            return solution, step + 1
    return solution, limit


def _refuse(what: str, form: str, value: float) -> None:
    raise ArgumentError(
        expected=f"a positive definite {what}",
        got=f"{form} = {value:.2e}",
        remedy="add a positive multiple of the identity, use the Gauss-Newton matrix, or work in float64",
    )


def _dots(left: Tensor, right: Tensor) -> Float64[Tensor, " s"]:
    return (left.to(torch.float64) * right.to(torch.float64)).sum(1)


def _norms(rows: Tensor) -> Float64[Tensor, " s"]:
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
