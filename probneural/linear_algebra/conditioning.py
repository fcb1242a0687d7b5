"""Conditioning of roots on Gaussian observations, in float64: updates, posteriors and gains, with first derivatives.

Singular vectors have no derivatives where values repeat, so values come from a singular value decomposition A = U S V^T without
a gradient. To each is added a term that is zero and has the right first derivative, in which neither gaps of singular values
nor inverses of small ones occur. Second derivatives raise an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from probneural.checks import check_shape
from probneural.errors import ConstraintError
from probneural.linear_algebra.principal_components import resolved_eigenpairs, singular_values


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
        change: Change of the rows, `(..., m, k)`.
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


RANK_TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-6}
"""Singular values of row-normalised matrices below this fraction of the largest count as zero, by the field's dtype."""
_ATTAINED_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""An exact observation is met if it is missed by less than this fraction of the standardised residuals."""
_LIKELY = 100.0
"""Largest standardised residual of a likely observation of a row whose norm is below the rounding of the mean."""


@dataclass(frozen=True, eq=False)
class LowRankUpdate:
    """The symmetric map S = I + V^T (diag(factors) - 1) V of R^k, which scales r orthonormal directions.

    The effect of r observations on a standard normal vector, stored as r * k numbers: the k x k matrix is never formed.

    Args:
        directions: V, orthonormal rows `(*batch, r, k)`; without batch axes one map serves all, `(n, r, k)` is one map
            per input.
        factors: `(*batch, r)`, dimensionless; 0 for directions without variance.

    Examples:
        >>> transform = LowRankUpdate(torch.tensor([[0.0, 1.0]]), torch.tensor([0.5]))
        >>> transform.product(torch.tensor([4.0, 4.0])).tolist()
        [4.0, 2.0]
    """

    directions: Float[Tensor, "..."]
    factors: Float[Tensor, "..."]

    @property
    def rank(self) -> int:
        """Length k of the vectors it maps."""
        return self.directions.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """`(n,)` for one map per input, else `()`."""
        return self.directions.shape[:-2]

    def product(self, latents: Float[Tensor, "*_ k"]) -> Float[Tensor, "*_ k"]:
        """Apply to vectors `(*batch, ..., k)`, in their dtype and on their device."""
        directions, change = self.directions.to(latents), (self.factors - 1.0).to(latents)
        rows = latents.reshape(*self.batch_shape, math.prod(latents.shape[len(self.batch_shape) : -1]), self.rank)
        return (rows + ((rows @ directions.mT) * change[..., None, :]) @ directions).reshape(latents.shape)

    def dense(self) -> Float[Tensor, "*_ k k"]:
        """Form the matrix, `(*batch, k, k)`."""
        identity = torch.eye(self.rank, dtype=self.directions.dtype, device=self.directions.device)
        return self.product(identity.expand(*self.batch_shape, -1, -1))

    def to(self, like: Tensor) -> LowRankUpdate:
        """Return the map in the dtype and on the device of a tensor."""
        return LowRankUpdate(self.directions.to(like), self.factors.to(like))

    def __getitem__(self, index: int | slice | Tensor) -> LowRankUpdate:
        """Select the maps of some inputs.

        Raises:
            ShapeError: If one map serves all inputs.
        """
        check_shape(self.directions, "directions", "...", "n", "r", "k", remedy="use the map as it is: it serves all inputs")
        return LowRankUpdate(self.directions[index], self.factors[index])


@dataclass(frozen=True, eq=False)
class UpdateSequence:
    """S1 S2 ...: the updates that a root was composed with, each shared by all samples or per sample.

    Args:
        updates: In the order in which they were composed.
    """

    updates: tuple[LowRankUpdate, ...] = ()

    @property
    def is_per_function(self) -> bool:
        """Whether any of them differs between samples."""
        return any(update.batch_shape for update in self.updates)

    def then(self, update: LowRankUpdate) -> UpdateSequence:
        """Compose with one more update."""
        return UpdateSequence((*self.updates, update))

    def product(self, latents: Float[Tensor, "*_ k"]) -> Float[Tensor, "*_ k"]:
        """S1 S2 ... xi, for vectors `(*batch, ..., k)`."""
        for update in reversed(self.updates):
            latents = update.product(latents)
        return latents

    def transposed_product(self, latents: Float[Tensor, "*_ k"]) -> Float[Tensor, "*_ k"]:
        """... S2 S1 xi: rows of a root times the sequence."""
        for update in self.updates:
            latents = update.product(latents)
        return latents

    def __getitem__(self, index: int | slice | Tensor) -> UpdateSequence:
        """The updates of some samples, or of one, which then serve all."""
        return UpdateSequence(tuple(update[index] if update.batch_shape else update for update in self.updates))


@dataclass(frozen=True, eq=False)
class LatentUpdate:
    """The posterior of xi ~ N(0, I) under observations: xi = shift + S xi', with xi' standard normal.

    The multipliers are those of the observations: shift = root^T multipliers.
    """

    shift: Float64[Tensor, "... k"]
    transform: LowRankUpdate
    chi2: Float64[Tensor, "..."]
    multipliers: Float64[Tensor, "... m"]


class Rounding(NamedTuple):
    """Bounds of rounding errors.

    Attributes:
        residuals: Largest residual that rounding makes, `(..., m)`, in the observations' units.
        rows: Largest norm of a row of the root that rounding makes, likewise; it does not depend on the mean.
    """

    residuals: Float64[Tensor, "... m"]
    rows: Float64[Tensor, "... m"]

    def flatten(self, start: int = 0) -> Rounding:
        """Both, with the axes from `start` on as one."""
        return Rounding(self.residuals.flatten(start), self.rows.flatten(start))


def posterior_root(
    root: Float64[Tensor, "*b p k"], gram: Float64[Tensor, "*b k k"], *, rounding: float = 0.0
) -> tuple[Float64[Tensor, "*b p k"], Float64[Tensor, "*b"]]:
    """R (I + M)^(-1/2) and log det(I + M): the posterior of a Gaussian with root R under data with the moments M = R^T G R.

    The inverse square root is the symmetric one, which no library's choice of eigenvectors changes. The remaining variance of a
    direction is accurate up to the rounding of the others'.

    Args:
        root: R, of the covariance before, in any unit.
        gram: M, the Gram matrix of the data's whitened rows times R; dimensionless.
        rounding: Eigenvalues of M up to here are no information: that of G may have made them.

    Returns:
        A root of the covariance after, whose rounding cannot make variances negative; and twice the information gain, in nats.

    Examples:
        >>> root, gain = posterior_root(2.0 * torch.eye(1, dtype=torch.float64), torch.full((1, 1), 3.0, dtype=torch.float64))
        >>> root.item(), round(gain.item(), 6)
        (1.0, 1.386294)
    """
    values, vectors = resolved_eigenpairs(gram)
    values = torch.where(values > rounding, values, 0.0)
    return (root @ vectors * (1.0 + values).rsqrt()[..., None, :]) @ vectors.mT, values.log1p().sum(-1)


def condition_noisily(
    root: Float64[Tensor, "... m k"], residual: Float64[Tensor, "... m"], noise: Float64[Tensor, "... m"]
) -> LatentUpdate:
    """Condition xi ~ N(0, I) on residual = root xi + N(0, diag(noise)) with noise > 0.

    With R = diag(noise)^(-1/2) root = U S V^T, the posterior has mean V S/(1+S^2) U^T r and the symmetric square root
    I + V (1/sqrt(1+S^2) - 1) V^T of its covariance. S^2 is never formed: noise may be tiny.
    """
    inverse = noise.rsqrt()
    # R = diag(noise)^(-1/2) root = U S V^T
    svd = Decomposition.of(root * inverse[..., None])
    whitened = residual * inverse
    gain, pull, latent, chi2 = svd.with_unit_noise(whitened)
    pull, shift = svd.solution(whitened, pull, latent, inverse=gain.square().reciprocal(), unit=1.0)
    # f(s) = 1/sqrt(1 + s): (f(s) - f(t))/(s - t) = -1/(g_s g_t (g_s + g_t)) with g_s = sqrt(1 + s)
    slopes = -1.0 / (gain[..., :, None] * gain[..., None, :] * (gain[..., :, None] + gain[..., None, :]))
    factors = gain.reciprocal()
    transform = LowRankUpdate(svd.directions(factors, slopes), factors)
    return LatentUpdate(shift, transform, chi2 / max(1, residual.shape[-1]), inverse * pull)


def condition_exactly(
    root: Float64[Tensor, "... m k"], residual: Float64[Tensor, "... m"], *, rounding: Rounding, dtype: torch.dtype
) -> LatentUpdate:
    """Condition xi ~ N(0, I) on residual = root xi exactly.

    Args:
        root: Rows of the observed numbers.
        residual: Observations minus the mean.
        rounding: Rows and residuals up to these bounds count as zero. Without it, the remainder of a row after an earlier
            observation, some 1e-16, would pass for a direction. A row between the two bounds counts if its observation is
            likely.
        dtype: Dtype that the numbers were computed in.

    Raises:
        ConstraintError: If some combination of the observations has no variance left to meet it: more independent
            observations than the rank, a functional without variance, or a contradiction.
    """
    size = row_norms(root)
    is_likely = (size > rounding.rows) & (residual.detach().abs() <= _LIKELY * size.detach())
    free = (size > torch.maximum(*rounding)) | is_likely
    scale = torch.where(free, size, torch.ones_like(size))
    rows = torch.where(free[..., None], root / scale[..., None], torch.zeros_like(root))
    # rows = U S V^T, and the pseudo-inverse S^+ of singular values above the tolerance
    svd = Decomposition.of(rows)
    keep = svd.values > RANK_TOLERANCE[dtype] * svd.values[..., :1]
    inverse = torch.where(keep, 1.0 / torch.where(keep, svd.values, torch.ones_like(svd.values)), torch.zeros_like(svd.values))
    target = torch.where(free, residual / scale, torch.zeros_like(residual))
    along = svd.along(target.detach()) * keep
    unmet = (target.detach() - svd.combined(along)) * scale.detach()
    missed = torch.where(free, unmet, residual).abs()
    allowed = rounding.residuals + torch.where(
        free, _ATTAINED_TOLERANCE[dtype] * scale * target.norm(dim=-1, keepdim=True), 0.0
    )
    if bool((missed > allowed).any()):
        raise ConstraintError(
            expected="exact observations that the distribution has the freedom to meet",
            got=f"{root.shape[-2]} observations of numerical rank {int(keep.sum(-1).min())}, "
            f"{int((missed > allowed).sum())} of which stay unmet by up to {float(missed.max()):.1e}",
            remedy="drop repeated or contradicting observations, or give them noise > 0 with condition(..., noise=...)",
        )
    # multipliers = U S^+2 U^T r, shift = V S^+ U^T r
    standardised = along * inverse
    pull, latent = svd.combined(standardised * inverse), svd.to_latent(standardised)
    chi2 = (standardised.square().sum(-1) + svd.distance(target, pull, latent)) / keep.sum(-1).clamp_min(1)
    pull, shift = svd.solution(target, pull, latent, inverse=inverse.square(), unit=0.0)
    factors = (~keep).to(root)
    directions = svd.directions(factors, torch.zeros_like(inverse[..., :, None] * inverse[..., None, :]))
    return LatentUpdate(shift, LowRankUpdate(directions, factors), chi2, torch.where(free, pull / scale, 0.0))


def discrepancy_gain(
    rows: Float64[Tensor, "n m r"], noise: Float64[Tensor, "n m"] | None, *, dtype: torch.dtype
) -> tuple[Float64[Tensor, "n r m"], Float64[Tensor, "n m m"]]:
    """Kalman gain of zeta ~ N(0, I) under observations y = R zeta + N(0, diag(noise)), with rows R.

    The gain G = R^T N^-1, and L^-1, with N = R R^T + diag(noise) = L L^T. L comes from a QR decomposition of R beside the
    noise's deviations: N holds the squares of nearly dependent rows, which vanish in its rounding.

    Args:
        rows: R, in the units of each number.
        noise: Variances > 0, in those units squared; None where the numbers are exact.
        dtype: Dtype that exact numbers were computed in, whose rounding may hide a linear dependence.

    Raises:
        ConstraintError: If some combination of one sample's numbers has no variance in N.
    """
    parts = rows if noise is None else torch.cat([rows, torch.diag_embed(noise.sqrt())], dim=-1)
    if parts.shape[1] > parts.shape[2]:
        raise _dependent(rows)
    size = row_norms(parts)
    scale = torch.where(size > 0, size, torch.ones_like(size)).reciprocal()
    # [R, noise^(1/2)]^T = Q L^T, so N = L L^T; whitening = L^-1, and the gain is the first r rows of Q L^-1
    orthonormal, upper = torch.linalg.qr((parts * scale[..., None]).mT)
    identity = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device).expand_as(upper)
    inverse = torch.linalg.solve_triangular(upper.mT, identity, upper=False)
    smallest = inverse.detach().norm(dim=(-2, -1)).reciprocal()  # singular value of rows of length 1, up to a factor sqrt(m)
    if not bool((smallest > RANK_TOLERANCE[dtype if noise is None else torch.float64]).all()):
        raise _dependent(rows)
    whitening = inverse * scale[..., None, :]
    return orthonormal[..., : rows.shape[2], :] @ whitening, whitening


def _dependent(rows: Tensor) -> ConstraintError:
    return ConstraintError(
        expected="observations of which, beside their noise, none follows from the others for a function's discrepancy",
        got=f"{rows.shape[1]} observations of a sample with a discrepancy of rank {rows.shape[2]}",
        remedy="give more noise, or drop repeated observations",
    )
