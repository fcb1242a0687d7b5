"""Hyper-parameters of covariances that are diagonal in some fixed basis: closed forms in the eigenvalues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.heads.evidence import Evidence
from probneural.heads.weight_problem import WeightProblem


@dataclass(frozen=True, eq=False)
class WhitenedHyperparameters:
    """Hyper-parameters of largest evidence.

    Attributes:
        noise: The noise scale.
        scales: Precision of each direction in the whitened basis, `(P,)`.
        prior_precision: Of each parameter, `(P,)`.
        log_evidence: In nats.
    """

    noise: float
    scales: Float64[Tensor, " P"]
    prior_precision: Float64[Tensor, " P"]
    log_evidence: float


def learn(
    problem: WeightProblem,
    eigenvalues: Float64[Tensor, " P"],
    *,
    groups: Tensor | None = None,
    names: Sequence[str] | None = None,
) -> WhitenedHyperparameters:
    """Maximise the evidence of a curvature with these eigenvalues, one prior precision for all or one per group.

    Args:
        problem: What is given and what is to be learned.
        eigenvalues: Of the whitened curvature at noise scale 1, in a basis that does not mix groups.
        groups: Group of each direction, and of each parameter; parameter tensors by default.
        names: What the groups are called.

    Raises:
        EvidenceError: If the evidence determines no noise or prior.
    """
    model = Evidence(
        eigenvalues=eigenvalues.cpu(),
        observations=problem.observations,
        residual_sum_of_squares=problem.residual_sum_of_squares,
        squared_norm=float(problem.whitened_centre.square().sum()),
    )
    noise, scale = model.maximise(noise=problem.noise, prior=None if problem.prior is None else 1.0)
    ones = torch.ones_like(eigenvalues)
    if problem.given.learns_layers:
        members = problem.groups if groups is None else groups.to(eigenvalues.device)

        def log_determinant(log_noise: Tensor, log_priors: Tensor) -> Tensor:
            return (eigenvalues.cpu() * torch.exp(-log_noise) + log_priors.exp()[members.cpu()]).log().sum()

        layered = problem.layered(log_determinant, groups=groups, names=names)
        noise_scale, priors = layered.maximise(start=(noise, scale), noise=problem.noise)
        value = layered.value(torch.tensor(noise_scale, dtype=torch.float64).log(), priors.log())
        scales = priors.to(eigenvalues)[members]
        return WhitenedHyperparameters(noise=noise_scale, scales=scales, prior_precision=scales, log_evidence=float(value))
    return WhitenedHyperparameters(
        noise=noise,
        scales=scale * ones,
        prior_precision=scale * ones if problem.prior is None else problem.prior.to(eigenvalues),
        log_evidence=model.value(noise=noise, prior=scale),
    )
