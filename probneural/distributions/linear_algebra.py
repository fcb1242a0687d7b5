"""Gaussian linear algebra on roots, in float64, by singular values: stable from no noise to much noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.errors import ConstraintError

RANK_TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-6}
"""Singular values of row-normalised matrices below this share of the largest count as zero, by the field's dtype."""
ATTAINED_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""An exact observation is met if it is missed by less than this share of the standardised residuals."""
LOG_TWO_PI = math.log(2.0 * math.pi)


@dataclass(frozen=True)
class LatentUpdate:
    """What observations say about xi ~ N(0, I): xi = shift + factor xi', with xi' standard normal again."""

    shift: Float64[Tensor, "... k"]
    factor: Float64[Tensor, "... k k"]
    chi2: Float64[Tensor, "..."]


def observe(
    root: Float64[Tensor, "... m k"], residual: Float64[Tensor, "... m"], noise: Float64[Tensor, "... m"]
) -> LatentUpdate:
    """Condition xi ~ N(0, I) on residual = root xi + N(0, diag(noise)) with noise > 0.

    With R = diag(noise)^(-1/2) root = U S V^T, the posterior has mean V S/(1+S^2) U^T r and the symmetric square root
    I + V (1/sqrt(1+S^2) - 1) V^T of its covariance.
    """
    inverse = noise.rsqrt()
    left, values, right = torch.linalg.svd(root * inverse[..., None], full_matrices=False)
    whitened = residual * inverse
    along = (left.mT @ whitened[..., None])[..., 0]
    rest = whitened - (left @ along[..., None])[..., 0]
    gain = values.square() + 1.0
    shift = (right.mT @ (values / gain * along)[..., None])[..., 0]
    chi2 = (along.square() / gain).sum(-1) + rest.square().sum(-1)
    return LatentUpdate(shift=shift, factor=_shrink(right, gain.rsqrt()), chi2=chi2 / residual.shape[-1])


def fulfil(
    root: Float64[Tensor, "... m k"],
    residual: Float64[Tensor, "... m"],
    *,
    rounding: Float64[Tensor, "... m"],
    dtype: torch.dtype,
) -> LatentUpdate:
    """Condition xi ~ N(0, I) on residual = root xi exactly.

    Args:
        root: Rows of the observed numbers.
        residual: What they still lack.
        rounding: How large a row, or a residual, may be by rounding alone; smaller ones count as zero. Without it, what an
            earlier observation left of a row, some 1e-16, would pass for a direction of its own.
        dtype: Dtype that the numbers were computed in.

    Raises:
        ConstraintError: If some combination of the observations has no variance left to meet it: more independent
            observations than the rank, a functional the distribution is already certain of, or a contradiction.
    """
    size = root.norm(dim=-1)
    free = size > rounding
    scale = torch.where(free, size, torch.ones_like(size))
    rows = torch.where(free[..., None], root / scale[..., None], torch.zeros_like(root))
    left, values, right = torch.linalg.svd(rows, full_matrices=False)
    keep = values > RANK_TOLERANCE[dtype] * values[..., :1]
    inverse = torch.where(keep, 1.0 / torch.where(keep, values, torch.ones_like(values)), torch.zeros_like(values))
    wanted = torch.where(free, residual / scale, torch.zeros_like(residual))
    along = (left.mT @ wanted[..., None])[..., 0] * keep
    unmet = (wanted - (left @ along[..., None])[..., 0]) * scale
    missed = torch.where(free, unmet, residual).abs()
    allowed = rounding + torch.where(free, ATTAINED_TOLERANCE[dtype] * scale * wanted.norm(dim=-1, keepdim=True), 0.0)
    if bool((missed > allowed).any()):
        raise ConstraintError(
            expected="exact observations that the distribution has the freedom to meet",
            got=f"{root.shape[-2]} observations of numerical rank {int(keep.sum(-1).min())}, "
            f"{int((missed > allowed).sum())} of which stay unmet by up to {float(missed.max()):.1e}",
            remedy="drop repeated or contradicting observations, or give them noise > 0 with condition(..., noise=...)",
        )
    standardised = along * inverse
    shift = (right.mT @ standardised[..., None])[..., 0]
    chi2 = standardised.square().sum(-1) / keep.sum(-1).clamp_min(1)
    return LatentUpdate(shift=shift, factor=_shrink(right, (~keep).to(root)), chi2=chi2)


def log_density(
    root: Float64[Tensor, "... m k"], residual: Float64[Tensor, "... m"], noise: Float64[Tensor, "... m"]
) -> Float64[Tensor, "..."]:
    """Log density of residual under N(0, root root^T + diag(noise)) with noise > 0, natural units."""
    inverse = noise.rsqrt()
    left, values, _ = torch.linalg.svd(root * inverse[..., None], full_matrices=False)
    whitened = residual * inverse
    along = (left.mT @ whitened[..., None])[..., 0]
    rest = whitened - (left @ along[..., None])[..., 0]
    gain = values.square() + 1.0
    quadratic = (along.square() / gain).sum(-1) + rest.square().sum(-1)
    log_determinant = gain.log().sum(-1) + noise.log().sum(-1)
    return -0.5 * (quadratic + log_determinant + residual.shape[-1] * LOG_TWO_PI)


def log_density_without_noise(
    root: Float64[Tensor, "... m k"], residual: Float64[Tensor, "... m"], *, dtype: torch.dtype
) -> Float64[Tensor, "..."]:
    """Log density of residual under N(0, root root^T), natural units; NaN unless the numerical rank of root is m."""
    if root.shape[-1] < root.shape[-2]:
        return torch.full_like(residual.sum(-1), math.nan)
    left, values, _ = torch.linalg.svd(root, full_matrices=False)
    quadratic = ((left.mT @ residual[..., None])[..., 0] / values).square().sum(-1)
    density = -0.5 * (quadratic + 2.0 * values.log().sum(-1) + residual.shape[-1] * LOG_TWO_PI)
    return torch.where(values[..., -1] > RANK_TOLERANCE[dtype] * values[..., 0], density, math.nan)


def _shrink(right: Tensor, factors: Tensor) -> Tensor:
    """The symmetric matrix I + V (diag(factors) - 1) V^T, for orthonormal rows V^T."""
    identity = torch.eye(right.shape[-1], dtype=right.dtype, device=right.device)
    return identity + right.mT @ ((factors - 1.0)[..., None] * right)
