"""First derivatives of what Gaussian observations say, in closed form: singular vectors have none where values repeat.

Values come from a singular value decomposition A = U S V^T, without a gradient. To each is added a term that is zero and
has the right first derivative, in which neither gaps of singular values nor inverses of small ones occur. Second derivatives
raise an error.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from probneural.linear_algebra.principal_components import singular_values


class _Increment(torch.autograd.Function):
    """Zeros whose derivative is the identity, once."""

    @staticmethod
    def forward(ctx: FunctionCtx, values: Tensor) -> Tensor:
        del ctx
        return torch.zeros_like(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        del ctx
        return gradient


def increment(values: Tensor) -> Tensor:
    """Zeros that stand for a small change of the values: what is linear in them has its derivative and no value."""
    found: Tensor = _Increment.apply(values)
    return found


def row_norms(root: Float64[Tensor, "... m k"]) -> Float64[Tensor, "... m"]:
    """Euclidean norms of rows, whose squares neither overflow nor vanish."""
    if root.shape[-1] == 0:
        return root.new_zeros(root.shape[:-1])
    largest = root.detach().abs().amax(-1)
    unit = torch.where(largest > 0, largest, torch.ones_like(largest))
    return (root / unit[..., None]).norm(dim=-1) * unit


def by_size(rows: Float64[Tensor, "... m k"]) -> Int64[Tensor, "... m"]:
    """The order of rows by their norms, largest first.

    In it, Householder reflections of a triangle keep the digits of each row; of rows as they are they would need pivots, too.

    Reference:
        Higham (2002), Accuracy and stability of numerical algorithms, section 19.4 (row-wise stability).
    """
    return row_norms(rows.detach()).argsort(dim=-1, descending=True, stable=True)


class Decomposition(NamedTuple):
    """U, S and V^T of rows A, without gradients, and the rows' increment, or None where no derivative is asked for.

    Attributes:
        left: U, `(..., m, r)`.
        values: S, `(..., r)`.
        right: V^T, `(..., r, k)`.
        change: Of the rows, `(..., m, k)`.
    """

    left: Float64[Tensor, "... m r"]
    values: Float64[Tensor, "... r"]
    right: Float64[Tensor, "... r k"]
    change: Float64[Tensor, "... m k"] | None

    @classmethod
    def of(cls, rows: Float64[Tensor, "... m k"]) -> Decomposition:
        """Decompose what is left of the rows, large ones first, once reflections have made them a lower triangle.

        Rows of 1e15 times the size of others would hide them otherwise: of those, the triangle keeps what is no multiple apart.
        """
        order = by_size(rows)
        orthonormal, triangle = torch.linalg.qr(rows.detach().take_along_dim(order[..., None], -2).mT)
        left, values, right = singular_values(triangle.mT)
        left = left.take_along_dim(order.argsort(-1)[..., None], -2)
        right = right @ orthonormal.mT
        recorded = rows.requires_grad and torch.is_grad_enabled()
        return cls(left, values, right, increment(rows) if recorded else None)

    def along(self, vector: Float64[Tensor, "... m"]) -> Float64[Tensor, "... r"]:
        """U^T times a vector."""
        return (self.left.mT @ vector[..., None])[..., 0]

    def combined(self, coefficients: Float64[Tensor, "... r"]) -> Float64[Tensor, "... m"]:
        """U times coefficients."""
        return (self.left @ coefficients[..., None])[..., 0]

    def to_latent(self, coefficients: Float64[Tensor, "... r"]) -> Float64[Tensor, "... k"]:
        """V times coefficients."""
        return (self.right.mT @ coefficients[..., None])[..., 0]

    def inner(self, weights: Float64[Tensor, "... r"]) -> Tensor:
        """The change of a function of A whose derivative is U diag(weights) V^T."""
        if self.change is None:
            return self.values.new_zeros(())
        return (((self.left * weights[..., None, :]) @ self.right) * self.change).sum((-2, -1))

    def distance(
        self, wanted: Float64[Tensor, "... m"], pull: Float64[Tensor, "... m"], latent: Float64[Tensor, "... k"]
    ) -> Tensor:
        """The change of w^T N^-1 w, with N^-1 w and A^T N^-1 w as they are: 2 pull^T (dw - dA latent)."""
        change = (pull * increment(wanted)).sum(-1)
        if self.change is not None:
            change = change - (pull[..., None, :] @ self.change @ latent[..., None])[..., 0, 0]
        return 2.0 * change

    def solution(
        self,
        wanted: Float64[Tensor, "... m"],
        pull: Float64[Tensor, "... m"],
        latent: Float64[Tensor, "... k"],
        *,
        inverse: Float64[Tensor, "... r"],
        unit: float,
    ) -> tuple[Float64[Tensor, "... m"], Float64[Tensor, "... k"]]:
        """N^-1 w and A^T N^-1 w with N = A A^T + unit I, with derivatives.

        Args:
            wanted: w.
            pull: N^-1 w, without a gradient.
            latent: A^T N^-1 w, likewise.
            inverse: 1/(S² + unit), 0 in directions that are left out.
            unit: 1, or 0 where only what A reaches is solved for.
        """
        change = increment(wanted)
        if self.change is None and not change.requires_grad:
            return pull, latent
        if self.change is not None:  # of N^-1 w: N^-1 (dw - dN N^-1 w)
            there = (self.change @ latent[..., None])[..., 0]
            back = (self.change.mT @ pull[..., None])[..., 0]
            change = change - there - self.combined(self.values * (self.right @ back[..., None])[..., 0])
        along = self.along(change)
        moved = self.combined(inverse * along)
        if unit:
            moved = moved + (change - self.combined(along)) / unit
        pulled = latent + self.to_latent(self.values * inverse * along)
        if self.change is not None:
            pulled = pulled + (self.change.mT @ pull[..., None])[..., 0]
        return pull + moved, pulled

    def directions(self, factors: Float64[Tensor, "... r"], slopes: Float64[Tensor, "... r r"]) -> Float64[Tensor, "... r k"]:
        """Rows V^T such that I + V (diag(factors) - 1) V^T has the derivative of that function of A^T A.

        To first order they are no longer orthonormal, which is what makes gaps of singular values unnecessary: between two
        directions the derivative of the map is slopes times that of A^T A, and rows change by it over the sum of both factors
        less one; towards the rest of the space they turn.

        Args:
            factors: f(S²), in each direction; 1 in directions that are left out.
            slopes: (f(s) - f(t))/(s - t) for squares s and t of two values, its limit where they are equal.
        """
        if self.change is None:
            return self.right
        values, less = self.values, factors - 1.0
        projected = self.left.mT @ self.change
        within = projected @ self.right.mT
        change = within.mT * values[..., None, :] + values[..., :, None] * within
        sums = less[..., :, None] + less[..., None, :]
        some = sums != 0
        turned = torch.where(some, slopes / torch.where(some, sums, torch.ones_like(sums)), torch.zeros_like(sums)) * change
        held = (less != 0) & (values > 0)
        inverse = torch.where(held, 1.0 / torch.where(held, values, torch.ones_like(values)), torch.zeros_like(values))
        away = inverse[..., :, None] * (projected - within @ self.right)
        return self.right + turned @ self.right + away
