"""Gaussian linear algebra on roots, in float64, by singular values: stable from no noise to much noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.errors import ConstraintError

RANK_TOLERANCE = 1e-11
"""Singular values of row-normalised matrices below this share of the largest count as zero."""
ATTAINED_TOLERANCE = 1e-6
"""An exact observation is met if its standardised residual falls below this share of what it was before."""


@dataclass(frozen=True)
class LatentUpdate:
    """What observations say about xi ~ N(0, I): xi = shift + factor xi', with xi' standard normal again."""

    shift: Float64[Tensor, "... k"]
    factor: Float64[Tensor, "... k k"]
    chi2: Float64[Tensor, "..."]


def observe(root: Float64[Tensor, "... m k"], residual: Float64[Tensor, "... m"], noise: Float64[Tensor, "... m"]) -> LatentUpdate:
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


def fulfil(root: Float64[Tensor, "... m k"], residual: Float64[Tensor, "... m"]) -> LatentUpdate:
    """Condition xi ~ N(0, I) on residual = root xi exactly.

    Raises:
        ConstraintError: If some combination of the observations has no variance left to meet it: more independent
            observations than the rank, a functional the distribution is already certain of, or a contradiction.
    """
    size = root.norm(dim=-1)
    largest = size.amax(-1, keepdim=True) if size.shape[-1] else size
    scale = torch.where(size > RANK_TOLERANCE * largest, size, torch.ones_like(size))
    left, values, right = torch.linalg.svd(root / scale[..., None], full_matrices=False)
    keep = values > RANK_TOLERANCE * values.amax(-1, keepdim=True)
    inverse = torch.where(keep, 1.0 / torch.where(keep, values, torch.ones_like(values)), torch.zeros_like(values))
    wanted = residual / scale
    along = (left.mT @ wanted[..., None])[..., 0] * keep
    unmet = (wanted - (left @ along[..., None])[..., 0]).norm(dim=-1)
    if bool((unmet > ATTAINED_TOLERANCE * wanted.norm(dim=-1) + torch.finfo(root.dtype).tiny).any()):
        raise ConstraintError(
            expected="exact observations that the distribution has the freedom to meet",
            got=f"{root.shape[-2]} observations of numerical rank {int(keep.sum(-1).min())} that leave a share "
            f"{float((unmet / wanted.norm(dim=-1).clamp_min(1e-300)).max()):.1e} of the residual unmet",
            remedy="drop repeated or contradicting observations, or give them noise > 0 with condition(..., noise=...)",
        )
    standardised = along * inverse
    shift = (right.mT @ standardised[..., None])[..., 0]
    chi2 = standardised.square().sum(-1) / max(residual.shape[-1], 1)
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
    normaliser = residual.shape[-1] * torch.log(torch.tensor(2.0 * torch.pi, dtype=torch.float64))
    return -0.5 * (quadratic + log_determinant + normaliser)


def _shrink(right: Tensor, factors: Tensor) -> Tensor:
    """The symmetric matrix I + V (diag(factors) - 1) V^T, for orthonormal rows V^T."""
    identity = torch.eye(right.shape[-1], dtype=right.dtype, device=right.device)
    return identity + right.mT @ ((factors - 1.0)[..., None] * right)
