"""First derivatives of Gaussian posteriors in closed form: singular vectors have none where values repeat.

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
    """Zeros with the derivative of the values: a linear function of them has a derivative and the value zero."""
    zeros: Tensor = _Increment.apply(values)
    return zeros


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
    """U, S and V^T of rows A, without gradients, and the rows' increment, or None if no derivative is recorded.

    Attributes:
        u: U, `(..., m, r)`.
        values: S, `(..., r)`.
        vt: V^T, `(..., r, k)`.
        change: Of the rows, `(..., m, k)`.
    """

    u: Float64[Tensor, "... m r"]
    values: Float64[Tensor, "... r"]
    vt: Float64[Tensor, "... r k"]
    change: Float64[Tensor, "... m k"] | None

    @classmethod
    def of(cls, rows: Float64[Tensor, "... m k"]) -> Decomposition:
        """Decompose rows, large ones first, after reflections to a lower triangle.

        Rows of 1e15 times the size of others would hide these otherwise.
        """
        order = by_size(rows)
        orthonormal, triangle = torch.linalg.qr(rows.detach().take_along_dim(order[..., None], -2).mT)
        u, values, vt = singular_values(triangle.mT)
        u = u.take_along_dim(order.argsort(-1)[..., None], -2)
        vt = vt @ orthonormal.mT
        recorded = rows.requires_grad and torch.is_grad_enabled()
        return cls(u, values, vt, increment(rows) if recorded else None)

    def along(self, vector: Float64[Tensor, "... m"]) -> Float64[Tensor, "... r"]:
        """U^T times a vector."""
        return (self.u.mT @ vector[..., None])[..., 0]

    def combined(self, coefficients: Float64[Tensor, "... r"]) -> Float64[Tensor, "... m"]:
        """U times coefficients."""
        return (self.u @ coefficients[..., None])[..., 0]

    def to_latent(self, coefficients: Float64[Tensor, "... r"]) -> Float64[Tensor, "... k"]:
        """V times coefficients."""
        return (self.vt.mT @ coefficients[..., None])[..., 0]

    def inner(self, weights: Float64[Tensor, "... r"]) -> Tensor:
        """The change of a function of A whose derivative is U diag(weights) V^T."""
        if self.change is None:
            return self.values.new_zeros(())
        return (((self.u * weights[..., None, :]) @ self.vt) * self.change).sum((-2, -1))

    def distance(
        self, target: Float64[Tensor, "... m"], pull: Float64[Tensor, "... m"], latent: Float64[Tensor, "... k"]
    ) -> Tensor:
        """The change of w^T N^-1 w, with N^-1 w and A^T N^-1 w as they are: 2 pull^T (dw - dA latent)."""
        change = (pull * increment(target)).sum(-1)
        if self.change is not None:
            change = change - (pull[..., None, :] @ self.change @ latent[..., None])[..., 0, 0]
        return 2.0 * change

    def with_unit_noise(
        self, target: Float64[Tensor, "... m"]
    ) -> tuple[Float64[Tensor, "... r"], Float64[Tensor, "... m"], Float64[Tensor, "... k"], Float64[Tensor, "..."]]:
        """For N = A A^T + I: sqrt(1 + S^2), N^-1 w and A^T N^-1 w without gradients, and w^T N^-1 w with its derivative."""
        gain = torch.hypot(self.values, torch.ones_like(self.values))
        along = self.along(target.detach())
        orthogonal = target.detach() - self.combined(along)
        along = along / gain
        # N^-1 is (1 + S^2)^-1 on the span of U, and the identity on its complement
        pull, latent = orthogonal + self.combined(along / gain), self.to_latent(self.values / gain * along)
        quadratic = along.square().sum(-1) + orthogonal.square().sum(-1) + self.distance(target, pull, latent)
        return gain, pull, latent, quadratic

    def solution(
        self,
        target: Float64[Tensor, "... m"],
        pull: Float64[Tensor, "... m"],
        latent: Float64[Tensor, "... k"],
        *,
        inverse: Float64[Tensor, "... r"],
        unit: float,
    ) -> tuple[Float64[Tensor, "... m"], Float64[Tensor, "... k"]]:
        """N^-1 w and A^T N^-1 w with N = A A^T + unit I, with derivatives.

        Args:
            target: w.
            pull: N^-1 w, without a gradient.
            latent: A^T N^-1 w, likewise.
            inverse: 1/(S² + unit), 0 in directions that are left out.
            unit: 1, or 0 for a solution in the range of A.
        """
        change = increment(target)
        if self.change is None and not change.requires_grad:
            return pull, latent
        if self.change is not None:  # of N^-1 w: N^-1 (dw - dN N^-1 w)
            from_latent = (self.change @ latent[..., None])[..., 0]
            from_pull = (self.change.mT @ pull[..., None])[..., 0]
            change = change - from_latent - self.combined(self.values * (self.vt @ from_pull[..., None])[..., 0])
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

        To first order they are no longer orthonormal, which makes gaps of singular values unnecessary: between two
        directions the derivative of the map is slopes times that of A^T A, and rows change by it over the sum of both factors
        less one; towards the complement they turn.

        Args:
            factors: f(S²), in each direction; 1 in directions that are left out.
            slopes: (f(s) - f(t))/(s - t) for squares s and t of two values, its limit where they are equal.
        """
        if self.change is None:
            return self.vt
        values, excess = self.values, factors - 1.0
        projected = self.u.mT @ self.change
        within = projected @ self.vt.mT
        change = within.mT * values[..., None, :] + values[..., :, None] * within
        sums = excess[..., :, None] + excess[..., None, :]
        is_separable = sums != 0
        turned = (
            torch.where(is_separable, slopes / torch.where(is_separable, sums, torch.ones_like(sums)), torch.zeros_like(sums))
            * change
        )
        held = (excess != 0) & (values > 0)
        inverse = torch.where(held, 1.0 / torch.where(held, values, torch.ones_like(values)), torch.zeros_like(values))
        away = inverse[..., :, None] * (projected - within @ self.vt)
        return self.vt + turned @ self.vt + away
