"""Leading rows of observations of a long latent, found by products with a root that is not formed.

A function's whitened rows R are `(c * p, k)`. Fields are smooth, so few combinations Qᵀ R of them, with orthonormal columns Q,
say all that R does: RᵀR = RᵀQ QᵀR.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.distributions import GaussianField
from probneural.distributions.roots.base import Root
from probneural.linear_algebra.principal_components import eigenpairs
from probneural.randomness import stream

_BLOCK = 16
"""Random combinations of latent directions pushed at once."""
_FRACTION = 1e-10
"""Of tr R Rᵀ that may be left out."""
_NATS = 1e-7
"""The same in nats, where the precision of products allows."""
_VALUES = 2**15
"""Values of tangents that a gradient takes at once."""

PosteriorAt = Callable[[Tensor], GaussianField]
"""From values of n input functions to their posterior."""


class Directions:
    """Directions in which fields were observed, kept for a second evaluation at the same inputs: that of a gradient."""

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor]] = []

    def of(self, values: Float[Tensor, "n c *grid"], find: Callable[[], Tensor]) -> Float[Tensor, "n r c p"]:
        """Those of inputs of these values, found by `find()` when they are first asked for."""
        for inputs, directions in self._kept:
            if inputs.shape == values.shape and torch.equal(inputs, values):
                return directions
        directions = find()
        self._kept.append((values.detach(), directions))
        return directions


def leading_rows(
    posterior_at: PosteriorAt, values: Float[Tensor, "n c *grid"], weights: Float64[Tensor, "c p"], *, directions: Directions
) -> Float64[Tensor, "n r k"]:
    """Rows Qᵀ R of n functions whose Gram matrices are those of all rows, to 1e-10 of their trace.

    The range of R is found from random combinations of its columns, some at a time, until the next ones lie in what is found.
    With r directions that takes r + 16 products with R, which all functions share, and r with Rᵀ for each of them. A gain from
    these rows is too small by at most half of the trace that is left out, in nats.

    The gradient in the inputs holds Q fixed. So it is exact where Q spans the range, as nothing is gained by turning it, and it
    takes r more products with R, whose graphs are held for a few directions at a time. It can be taken once.

    Args:
        posterior_at: The posterior at inputs of these values; differentiable.
        values: Of the input functions.
        weights: Of `observation_weights` on the field's grid.
        directions: Where Q is kept.

    Returns:
        Dimensionless; r is that of the function that needs most.

    Reference:
        Halko, Martinsson & Tropp (2011), Finding structure with randomness, algorithm 4.2. Deviation: the error is measured on
        a block of fresh combinations, as a fraction of their squares.
    """
    rows: Tensor = _LeadingRows.apply(values, posterior_at, weights, directions)
    return rows


class _LeadingRows(torch.autograd.Function):
    """Rows at fixed directions, with a backward pass that multiplies by R rather than differentiate products with Rᵀ."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, posterior_at: PosteriorAt, weights: Tensor, directions: Directions) -> Tensor:
        """Find the directions and pull them back."""
        root = posterior_at(values).root
        cotangents = directions.of(values, lambda: _found(root, weights.sqrt().to(root.device)))
        ctx.save_for_backward(values, cotangents)
        ctx.posterior_at = posterior_at
        return root.pull(cotangents).to(torch.float64)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradient of sum over j of q_jᵀ R g_j, for gradients g_j in the rows."""
        values, cotangents = ctx.saved_tensors
        step = max(8, _VALUES // cotangents[0, 0].numel())
        pieces = []
        for index in range(len(values)):
            total = torch.zeros_like(values[index : index + 1])
            with torch.enable_grad():
                leaf = values[index : index + 1].detach().requires_grad_()
                root = ctx.posterior_at(leaf).root
            pairs = _leading_pairs(gradient[index], cotangents[index])
            for latents, weighted in zip(*(part.split(step) for part in pairs), strict=True):
                with torch.enable_grad():
                    pushed = root.product(latents.to(root.like))[:, 0]
                    value = (pushed * weighted).sum()
                if value.requires_grad:  # the root of a linear model is the same at all inputs
                    total += torch.autograd.grad(value, leaf, retain_graph=True)[0]
            pieces.append(total)
        return torch.cat(pieces), None, None, None


def _leading_pairs(gradient: Float64[Tensor, "r k"], cotangents: Float[Tensor, "r c p"]) -> tuple[Tensor, Tensor]:
    """Fewer pairs with the sum of g_j q_jᵀ, but for a part of 1e-10 of its squares: singular vectors in the rows' space."""
    squares, vectors = eigenpairs(gradient @ gradient.mT)
    is_leading = squares.cumsum(0) > _FRACTION * squares.sum()
    mixing = vectors[:, is_leading].mT
    return mixing @ gradient, torch.tensordot(mixing.to(cotangents), cotangents, dims=1)


def _found(root: Root, scale: Float64[Tensor, "c p"]) -> Float[Tensor, "n r c p"]:
    """Cotangents that give the leading rows: orthonormal columns that span what whitened rows map to, times the whitening."""
    functions, _, _, rank = root.shape
    most = min(scale.numel(), rank)
    rounding = 64.0 * torch.finfo(root.dtype).eps ** 2
    generator = stream(0, "observed directions")
    basis = torch.zeros(functions, scale.numel(), 0, dtype=torch.float64, device=root.device)
    while basis.shape[2] < most:
        latents = torch.randn(_BLOCK, rank, generator=generator, dtype=torch.float64, device="cpu")
        images = (root.product(latents.to(root.like)).to(torch.float64) * scale).flatten(2).movedim(0, 2)
        residual = images - basis @ (basis.mT @ images)
        trace, left_out = (part.square().sum((1, 2)) / _BLOCK for part in (images, residual))
        allowed = trace * torch.clamp(_NATS / trace, max=_FRACTION).clamp_min(rounding)
        if bool((left_out <= allowed).all()):
            break
        basis = torch.linalg.qr(torch.cat([basis, residual], dim=2)).Q[:, :, :most]  # Householder's: orthonormal come what may
    return (basis.mT.unflatten(2, scale.shape) * scale).to(root.like)
