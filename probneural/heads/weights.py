"""The Gaussian posterior of weights, from their curvature: what every dense structure has in common."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.heads.evidence import Evidence


@dataclass(frozen=True)
class WeightPosterior:
    """N(centre, factor factor^T), with the hyper-parameters it belongs to.

    Attributes:
        factor: `(P, P)`, float64, in weight units; rows of weights that the prior fixes are zero.
        noise: Observation variance, in the units of the curvature's.
        prior_precision: `(P,)`, float64, per weight unit squared.
        log_evidence: In nats.
    """

    factor: Float64[Tensor, "P P"]
    noise: float
    prior_precision: Float64[Tensor, " P"]
    log_evidence: float


def weight_posterior(
    curvature: Float64[Tensor, "P P"],
    centre: Float64[Tensor, " P"],
    *,
    observations: float,
    energy: float,
    noise: float | None,
    prior: Float64[Tensor, " P"] | None,
) -> WeightPosterior:
    """Solve for (curvature / noise + diag(prior))^-1 around `centre`, learning by evidence what is None.

    The prior is whitened away first, so infinite precisions are exact and all of it takes one eigendecomposition.

    Args:
        curvature: Gauss-Newton matrix at unit noise variance.
        centre: The trained weights.
        observations: Number of effective observations in all.
        energy: Sum of squared residuals at unit noise variance.
        noise: Observation variance, or None to learn it.
        prior: Prior precision of each weight, or None to learn one for all.

    Raises:
        EvidenceError: If the evidence determines no noise or prior.
    """
    spread = torch.ones_like(centre) if prior is None else prior.to(curvature).rsqrt()
    values, vectors = torch.linalg.eigh(spread[:, None] * curvature * spread)
    values = values.clamp_min(0.0)  # a Gram matrix: what is negative is rounding
    free = spread > 0
    model = Evidence(
        eigenvalues=values[len(values) - int(free.sum()) :].cpu(),
        observations=observations,
        energy=energy,
        squared_norm=float((centre[free] / spread[free]).square().sum()),
    )
    level, scale = model.maximise(noise=noise, prior=None if prior is None else 1.0)
    return WeightPosterior(
        factor=spread[:, None] * vectors * (values / level + scale).rsqrt(),
        noise=level,
        prior_precision=torch.full_like(centre, scale) if prior is None else prior,
        log_evidence=model.value(noise=level, prior=scale),
    )
