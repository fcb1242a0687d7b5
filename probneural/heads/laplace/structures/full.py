"""The dense covariance: the exact reference for small models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from probneural.errors import UnsupportedError
from probneural.heads.laplace.structures.base import Structure
from probneural.heads.layer_evidence import LayeredEvidence
from probneural.heads.weight_posterior import WeightPosterior, weight_posterior
from probneural.heads.weight_problem import WeightProblem

LARGEST = 5000
"""Parameters beyond which a dense covariance (200 MB) stops being reasonable."""


@dataclass(frozen=True, kw_only=True)
class Full(Structure):
    """Nothing is assumed: the covariance is dense. The exact reference, for at most 5,000 parameters.

    Args:
        probes: Random projections per function that replace its output values; by default everything is exact.

    Raises:
        ArgumentError: If `probes` is not a positive integer.
    """

    name: ClassVar[str] = "full"
    probes: int | None = None

    def __post_init__(self) -> None:
        """Check the number of projections."""
        self._check_count("probes")

    def fit(self, problem: WeightProblem, *, seed: int, show_progress: bool) -> WeightPosterior:
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
        prior_std = problem.prior_std
        for rows in problem.rows(probes=self.probes, seed=seed)():
            flat = rows.to(torch.float64)
            curvature += flat.mT @ flat
        problem.data.summed(curvature)
        safe = torch.where(prior_std > 0, prior_std, 1.0)  # rows came whitened; `weight_posterior` whitens by itself
        curvature = curvature / safe / safe[:, None]
        centre = problem.vector.to(torch.float64)
        prior, noise, evidence = problem.prior, problem.noise, None
        if problem.given.learns_layers:
            shared = weight_posterior(
                curvature,
                centre,
                observations=problem.observations,
                residual_sum_of_squares=problem.residual_sum_of_squares,
                noise=noise,
                prior=None,
            )
            evidence = _layered(problem, curvature)
            start = (shared.noise, float(shared.prior_precision[0]))
            noise, priors = evidence.maximise(start=start, noise=noise)
            prior = priors.to(curvature.device)[problem.groups]
        return weight_posterior(
            curvature,
            centre,
            observations=problem.observations,
            residual_sum_of_squares=problem.residual_sum_of_squares,
            noise=noise,
            prior=prior,
        )


def _layered(problem: WeightProblem, curvature: Tensor) -> LayeredEvidence:
    groups = problem.groups

    def log_determinant(log_noise: Tensor, log_priors: Tensor) -> Tensor:
        matrix = curvature * torch.exp(-log_noise).to(curvature) + log_priors.to(curvature).exp()[groups].diag()
        return 2.0 * torch.linalg.cholesky(matrix).diagonal().log().sum().cpu()

    return problem.layered(log_determinant)
