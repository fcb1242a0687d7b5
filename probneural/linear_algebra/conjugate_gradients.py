"""Batched conjugate gradients, to a verified residual or up to negative curvature."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_counts, validated
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.linear_algebra.symmetric_maps import Map, apply, row_norms

_RESTARTS = 5
"""Maximum number of restarts from the true residual, after the recursive one has drifted from it."""


@dataclass(frozen=True, eq=False, kw_only=True)
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


@validated
def solve(
    product: Map,
    right: Float[Tensor, "s P"],
    *,
    preconditioner: Map | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> Solution:
    """Solve A x = b for every row b by preconditioned conjugate gradients.

    Each system has its step sizes, and stops once it has converged, while products still run for the open ones. The reported
    residual is that of the solution, from one more product; if it exceeds the tolerance although the recursive one does not,
    iterations restart from it, at most 5 times. A system that does not converge is no error: see `converged`.

    Args:
        product: A on rows, `(s, P)` to `(s, P)`, symmetric and positive definite on the span of the right-hand sides.
        right: Right-hand sides b.
        preconditioner: An approximate inverse of A on rows, symmetric positive definite. For A = G + I and orthonormal
            eigenvectors V of G with the largest eigenvalues, `LowRankUpdate(V^T, 1 / (1 + eigenvalues)).product`.
        tolerance: On each relative residual ||b - A x|| / ||b||, dimensionless.
        max_iterations: Maximum number of products with A before the final check.

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
        raise DataError(expected="right-hand sides that are real and finite", got="others", remedy="check their source")
    size = right.shape[1]
    # Systems are solved for b / max |b|: squares of very small or large numbers would not be representable.
    unit = right.abs().amax(dim=1, keepdim=True) if size else right.new_ones(len(right), 1)
    unit = torch.where(unit > 0, unit, 1.0)
    right = right / unit
    scale = row_norms(right)
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
        better = row_norms(fresh) < norms[open_]
        improved = open_[better]
        solution[improved], residual[improved], norms[improved] = candidate[better], fresh[better], row_norms(fresh[better])
        if not bool(better.any()):
            break
    relative = torch.where(scale > 0, norms / torch.where(scale > 0, scale, 1.0), 0.0)
    return Solution(
        solution=solution * unit,
        relative_residuals=relative,
        iterations=iterations,
        converged=bool((relative <= tolerance).all()),
    )


def _iterate(product: Map, right: Tensor, limits: Tensor, *, preconditioner: Map | None, limit: int) -> tuple[Tensor, int]:
    """Solve from zero until the recursive residuals are below their limits; return solutions and number of products."""
    size = right.shape[1]
    solution, residual = torch.zeros_like(right), right.clone()
    active = torch.arange(len(right), device=right.device)
    direction, previous = torch.zeros_like(right), torch.ones(len(right), dtype=torch.float64, device=right.device)
    for step in range(limit):
        open_residual = residual[active]
        conditioned = open_residual if preconditioner is None else apply(preconditioner, open_residual, size=size)
        squared_norm = _dots(open_residual, conditioned)
        if bool((squared_norm <= 0).any()):
            _refuse("preconditioner", "r^T M r", float(squared_norm.min()))
        # z = M r, p = z + (r.z / r_old.z_old) p_old
        ratio = squared_norm / previous[active] if step else torch.zeros_like(squared_norm)
        search = conditioned + direction[active] * ratio.to(open_residual)[:, None]
        image = apply(product, search, size=size)
        curvature = _dots(search, image)
        if bool((curvature <= 0).any()):
            _refuse("map", "p^T A p", float(curvature.min()))
        # x += a p, r -= a A p with a = r.z / p.A p
        length = (squared_norm / curvature).to(open_residual)[:, None]
        solution[active] += length * search
        residual[active] = open_residual - length * image
        direction[active], previous[active] = search, squared_norm
        active = active[row_norms(residual[active]) > limits[active]]
        if len(active) == 0:
            return solution, step + 1
    return solution, limit


@torch.no_grad()
def solve_truncated(
    product: Map,
    right: Float[Tensor, "s P"],
    *,
    shift: Float[Tensor, " s"] | float = 0.0,
    tolerance: Float[Tensor, " s"] | float,
    max_iterations: int,
) -> tuple[Float[Tensor, "s P"], Float[Tensor, "s P"]]:
    """Solve (A_i + shift_i I) x_i = b_i, each to the accuracy of an inexact Newton step.

    A system stops once its residual is small, or at the first direction without positive curvature. Unlike in `solve`, products
    run for all systems to the end, for maps that are evaluated together, and indefinite maps raise no error.

    Args:
        product: All A_i on one row each, `(s, P)` to `(s, P)`, symmetric.
        right: Right-hand sides b.
        shift: Added to each map.
        tolerance: On relative residuals, dimensionless.
        max_iterations: Products, at most.

    Returns:
        Solutions x, and A x.

    Reference:
        Nocedal & Wright (2006), Numerical optimization, section 7.1.

    Examples:
        >>> maps = torch.tensor([[4.0], [-1.0]])
        >>> solve_truncated(lambda rows: maps * rows, torch.ones(2, 1), tolerance=1e-6, max_iterations=5)[0].tolist()
        [[0.25], [0.0]]
    """
    shift = torch.as_tensor(shift).to(right)
    solution, image, residual, direction = torch.zeros_like(right), torch.zeros_like(right), right, right
    size = residual.square().sum(-1)
    target = tolerance**2 * size
    active = size > 0
    for _ in range(max_iterations):
        if not bool(active.any()):
            break
        mapped = product(direction)
        curved = (direction * mapped).sum(-1) + shift * direction.square().sum(-1)
        active = active & (curved > 0)
        # x += a p, r -= a (A + shift) p with a = |r|^2 / p.(A + shift) p
        length = torch.where(active, size / torch.where(active, curved, 1.0), 0.0)[:, None]
        solution, image = solution + length * direction, image + length * mapped
        residual = residual - length * (mapped + shift[..., None] * direction)
        before, size = size, residual.square().sum(-1)
        active = active & (size > target)
        direction = residual + torch.where(active, size / torch.where(active, before, 1.0), 0.0)[:, None] * direction
    return solution, image


def _refuse(what: str, form: str, value: float) -> None:
    raise ArgumentError(
        expected=f"a positive definite {what}",
        got=f"{form} = {value:.2e}",
        remedy="add a positive multiple of the identity, use the Gauss-Newton matrix, or work in float64",
    )


def _dots(first: Tensor, second: Tensor) -> Float64[Tensor, " s"]:
    return (first.to(torch.float64) * second.to(torch.float64)).sum(1)
