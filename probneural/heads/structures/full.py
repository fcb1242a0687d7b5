"""The dense covariance: the exact reference for small models."""

from __future__ import annotations

import torch
from torch import Tensor

from probneural.errors import UnsupportedError
from probneural.heads.front import WeightProblem
from probneural.heads.layers import LayeredEvidence
from probneural.heads.structures.settings import Settings
from probneural.heads.weights import WeightPosterior, weight_posterior

LARGEST = 5000
"""Parameters beyond which a dense covariance (200 MB) stops being reasonable."""


def fit(problem: WeightProblem, settings: Settings) -> WeightPosterior:
    """Form the Gauss-Newton matrix, and solve.

    Raises:
        UnsupportedError: If there are too many parameters.
        EvidenceError: If the evidence determines no noise or prior.
    """
    size = problem.layout.size
    if size > LARGEST:
        raise UnsupportedError(
            expected=f"at most {LARGEST} parameters for a dense covariance",
            got=str(size),
            remedy="choose parameters=, another structure=, or LastLayerLaplace",
        )
    curvature = torch.zeros(size, size, dtype=torch.float64, device=problem.vector.device)
    spread = problem.spread
    for rows in problem.rows(probes=settings.probes, seed=settings.seed)():
        flat = rows.to(torch.float64)
        curvature += flat.mT @ flat
    safe = torch.where(spread > 0, spread, 1.0)  # rows came whitened; `weight_posterior` whitens by itself
    curvature = curvature / safe / safe[:, None]
    centre = problem.vector.to(torch.float64)
    prior, noise, evidence = problem.prior, problem.noise, None
    if problem.learns_layers:
        shared = weight_posterior(
            curvature, centre, observations=problem.observations, energy=problem.energy, noise=noise, prior=None
        )
        evidence = _layered(problem, curvature)
        start = (shared.noise, float(shared.prior_precision[0]))
        noise, priors = evidence.maximise(start=start, noise=noise)
        prior = priors.to(curvature.device)[problem.groups]
    return weight_posterior(
        curvature, centre, observations=problem.observations, energy=problem.energy, noise=noise, prior=prior
    )


def _layered(problem: WeightProblem, curvature: Tensor) -> LayeredEvidence:
    groups = problem.groups

    def log_determinant(log_noise: Tensor, log_priors: Tensor) -> Tensor:
        matrix = curvature * torch.exp(-log_noise).to(curvature) + log_priors.to(curvature).exp()[groups].diag()
        return 2.0 * torch.linalg.cholesky(matrix).diagonal().log().sum().cpu()

    return problem.layered(log_determinant)
