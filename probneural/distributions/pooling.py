"""Gaussian fields brought to one: a weighted mean, and the mean and covariance of a mixture about it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.distributions.gaussian import GaussianField
from probneural.distributions.latent import Latent
from probneural.distributions.roots.base import DenseRoot, Root
from probneural.distributions.roots.sums import SideBySideRoot
from probneural.distributions.roots.weighted import weigh


def pooled(
    components: Sequence[GaussianField], weights: Float64[Tensor, "m *rest"], *, name: str, is_shared_across_calls: bool
) -> GaussianField:
    """The Gaussian field u = m + Σ_k √w_k (u_k - m_k) + Σ_k √w_k (m_k - m) ζ_k, with m = Σ_k w_k m_k.

    The deviations u_k - m_k and the standard normal numbers ζ_k are independent. So mean and variance of every value are those
    of the mixture Σ_k w_k N(m_k, v_k), and with weights that are the same at all points, so are all covariances of one
    function. Weights may depend on the point: where they vary smoothly, so do draws, which no choice of a component would do.

    Args:
        components: m fields of the same functions on one grid, with means m_k and variances v_k, in physical units.
        weights: w: `(m,)`, `(m, n)` or `(m, n, c, p)`, not negative, with the sum 1 over the components, dimensionless.
        name: Of the components' latents and the numbers ζ together, in this order.
        is_shared_across_calls: Whether later calls have the same ones.
    """
    mass = weights if weights.ndim == 4 else weights.reshape(len(weights), -1, 1, 1)
    shape = components[0].grid.shape
    means = [field.mean.flatten(2) for field in components]
    # m = Σ_k w_k m_k; the root is [√w_1 R_1, ..., √w_m R_m, √w_1 (m_1 - m), ..., √w_m (m_m - m)].
    mean = functools.reduce(torch.add, (weight.to(part) * part for weight, part in zip(mass, means, strict=True)))
    roots = mass.sqrt()
    parts = [_times(field.root, root) for field, root in zip(components, roots, strict=True)]
    parts.append(DenseRoot(torch.stack([(part - mean) * root.to(mean) for part, root in zip(means, roots, strict=True)], -1)))
    discrepancies = [
        _times(field.discrepancy, root) for field, root in zip(components, roots, strict=True) if field.discrepancy is not None
    ]
    joined = functools.reduce(SideBySideRoot, parts)
    field = GaussianField(
        mean.unflatten(-1, shape),
        joined,
        latent=Latent(
            id=name,
            rank=joined.shape[3],
            is_shared_across_calls=is_shared_across_calls,
            source=",".join(field.latent.key for field in components),
        ),
        grid=components[0].grid,
        discrepancy=functools.reduce(SideBySideRoot, discrepancies) if discrepancies else None,
    )
    selected = components[0]._functions
    is_one_selection = all(torch.equal(selected.rows, field_k._functions.rows) for field_k in components)
    return field._of(selected.anew()) if is_one_selection else field


def _times(root: Root, factors: Float[Tensor, "n c p"]) -> Root:
    """A root times factors of its rows, or one factor of all."""
    if factors.numel() == 1:
        return root.scale(factors.flatten().expand(root.shape[1]))
    return weigh(root, factors.expand(root.shape[:3]).to(root.like))
