"""Batched conjugate gradients up to negative curvature, and line searches along their steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.linear_algebra.symmetric_maps import Map


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


@torch.no_grad()
def line_search(
    function: Callable[[Tensor], Tensor],
    start: Float[Tensor, "*n d"],
    step: Float[Tensor, "*n d"],
    *,
    value: Float[Tensor, "*n"],
    slope: Float[Tensor, "*n"],
    halvings: int,
) -> tuple[Float[Tensor, "*n d"], Float[Tensor, "*n"]]:
    """Backtracking line search of several minimisations, with Armijo constant 1e-4.

    Args:
        function: Map from points `(*n, d)` to values `(*n,)`.
        start: Points `(*n, d)`.
        step: Steps to try, `(*n, d)`.
        value: Values at the points, `(*n,)`.
        slope: Derivatives along the steps, `(*n,)`.
        halvings: Maximum number of lengths of a step.

    Returns:
        Points and values; those of the start where no length satisfies the condition.
    """
    length, searching = torch.ones_like(value), torch.ones_like(value, dtype=torch.bool)
    best, lowest = start, value
    for _ in range(halvings):
        candidate = start + length[..., None] * step
        reached = function(candidate)
        falls = searching & (reached <= value + 1e-4 * length * slope)
        best, lowest = torch.where(falls[..., None], candidate, best), torch.where(falls, reached, lowest)
        searching = searching & ~falls
        if not bool(searching.any()):
            break
        length = torch.where(searching, 0.5 * length, length)
    return best, lowest
