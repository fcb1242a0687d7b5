"""Dense, diagonal and Kronecker-factored covariances of weights, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from probneural.checks import check_integer
from probneural.curvature.kronecker_factorisation import kronecker
from probneural.curvature.kronecker_factors import KroneckerWeights
from probneural.curvature.weights import DiagonalWeights
from probneural.errors import UnsupportedError
from probneural.heads.evidence import LayeredEvidence
from probneural.heads.weight_posterior import Structure, WeightPosterior, learn, weight_posterior
from probneural.heads.weight_problem import WeightProblem
from probneural.settings import Count


@dataclass(frozen=True, kw_only=True)
class Kronecker(Structure):
    """A Kronecker product for every linear layer and every mode of a spectral convolution; layers are independent.

    The prior precisions of real and imaginary parts of a mode must be equal, or one of them infinite.

    Args:
        probes: Number of random projections per sample that replace its output values; by default all values are used.

    Raises:
        ArgumentError: If `probes` is not a positive integer.

    Reference:
        Martens and Grosse (2015), Optimizing neural networks with Kronecker-factored approximate curvature.
    """

    name: ClassVar[str] = "kronecker"
    probes: Count | None = None

    def fit(self, problem: WeightProblem, *, seed: int, show_progress: bool) -> WeightPosterior:
        """Find the factors from whitened gradients, and solve in their eigenbasis.

        Raises:
            UnsupportedError: If different priors of real and imaginary parts rule out a Kronecker product.
            EvidenceError: If the evidence determines no noise or prior.
        """
        rows = problem.rows(probes=self.probes, seed=seed, show_progress=show_progress)
        factors = kronecker(
            problem.layout, problem.operator, rows=rows, prior_std=problem.prior_std, summed=problem.data.summed
        )
        each = math.prod(problem.weights.shape[-2:]) if self.probes is None else self.probes
        present, groups = torch.unique(factors.layers, return_inverse=True)
        names = [problem.layout.names[number] for number in present.tolist()]
        learned = learn(problem, factors.eigenvalues, groups=groups, names=names)
        return WeightPosterior(
            root=KroneckerWeights(factors, prior_std=problem.prior_std, noise_scale=learned.noise, scale=learned.scales),
            noise=learned.noise,
            prior_precision=learned.prior_precision,
            log_evidence=learned.log_evidence,
            report={"null_directions": float((factors.eigenvalues == 0).sum()), "rows": float(problem.data.functions * each)},
        )


@dataclass(frozen=True, kw_only=True)
class Diagonal(Structure):
    """Independent parameters: the diagonal of the Gauss-Newton matrix."""

    name: ClassVar[str] = "diagonal"

    def fit(self, problem: WeightProblem, *, seed: int, show_progress: bool) -> WeightPosterior:
        """Find the diagonal, and solve entry by entry.

        Raises:
            EvidenceError: If the evidence determines no noise or prior.
        """
        diagonal = torch.zeros(problem.layout.size, dtype=torch.float64, device=problem.vector.device)
        for rows in problem.rows(show_progress=show_progress)():
            diagonal += rows.to(torch.float64).square().sum(0)
        problem.data.summed(diagonal)
        learned = learn(problem, diagonal)
        std = problem.prior_std * (diagonal / learned.noise + learned.scales).rsqrt()
        return WeightPosterior(
            root=DiagonalWeights(std),
            noise=learned.noise,
            prior_precision=learned.prior_precision,
            log_evidence=learned.log_evidence,
        )


LARGEST = 5000
"""Maximum number of parameters for a dense covariance (200 MB)."""


@dataclass(frozen=True, kw_only=True)
class Full(Structure):
    """Exact dense covariance, for at most 5,000 parameters."""

    name: ClassVar[str] = "full"

    def fit(self, problem: WeightProblem, *, seed: int, show_progress: bool) -> WeightPosterior:
        """Form the Gauss-Newton matrix, and solve.

        Raises:
            UnsupportedError: If there are too many parameters.
            EvidenceError: If the evidence determines no noise or prior.
        """
        size = problem.layout.size
        remedy = "choose parameters=, another structure=, or LastLayerLaplace"
        check_integer(size, "number of parameters for a dense covariance", most=LARGEST, remedy=remedy, error=UnsupportedError)
        curvature = torch.zeros(size, size, dtype=torch.float64, device=problem.vector.device)
        prior_std = problem.prior_std
        for rows in problem.rows(show_progress=show_progress)():
            flat = rows.to(torch.float64)
            curvature += flat.mT @ flat
        problem.data.summed(curvature)
        safe = torch.where(prior_std > 0, prior_std, 1.0)  # rows are whitened already; `weight_posterior` whitens too
        curvature = curvature / safe / safe[:, None]
        centre = problem.vector.to(torch.float64)
        prior, noise = problem.prior, problem.noise
        solve = partial(
            weight_posterior,
            curvature,
            centre,
            observations=problem.observations,
            residual_sum_of_squares=problem.residual_sum_of_squares,
        )
        if problem.learns_layers:
            shared = solve(noise=noise, prior=None)
            start = (shared.noise, float(shared.prior_precision[0]))
            noise, priors = _layered(problem, curvature).maximise(start=start, noise=noise)
            prior = priors.to(curvature.device)[problem.groups]
        return solve(noise=noise, prior=prior)


def _layered(problem: WeightProblem, curvature: Tensor) -> LayeredEvidence:
    groups = problem.groups

    def log_determinant(log_noise: Tensor, log_priors: Tensor) -> Tensor:
        matrix = curvature * torch.exp(-log_noise).to(curvature) + log_priors.to(curvature).exp()[groups].diag()
        return 2.0 * torch.linalg.cholesky(matrix).diagonal().log().sum().cpu()

    return problem.layered(log_determinant)
