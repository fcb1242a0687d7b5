"""Dense, diagonal and Kronecker-factored covariances of weights, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_flag
from probneural.curvature import diagonals
from probneural.curvature.kronecker_factorisation import kronecker
from probneural.curvature.kronecker_factors import KroneckerWeights
from probneural.curvature.weights import DiagonalWeights
from probneural.errors import UnsupportedError
from probneural.heads.evidence import LayeredEvidence
from probneural.heads.weight_posterior import Structure, WeightPosterior, learn, weight_posterior
from probneural.heads.weight_problem import WeightProblem


@dataclass(frozen=True, kw_only=True)
class Kronecker(Structure):
    """A Kronecker product for every linear layer and every mode of a spectral convolution; layers are independent.

    For modes of several channels, the prior precisions of real and imaginary part must be equal, or one of them infinite.

    Args:
        probes: Number of random projections per sample that replace its output values; by default all values are used.
        eigenvalue_correction: Whether eigenvalues are re-estimated in the eigenbasis (EKFAC).

    Raises:
        ArgumentError: If `probes` is not a positive integer, or `eigenvalue_correction` is neither True nor False.

    Reference:
        George et al. (2018), Fast approximate natural gradient descent in a Kronecker-factored eigenbasis.
    """

    name: ClassVar[str] = "kronecker"
    probes: int | None = None
    eigenvalue_correction: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_flag(self.eigenvalue_correction, "eigenvalue_correction")

    def fit(self, problem: WeightProblem, *, seed: int, show_progress: bool) -> WeightPosterior:
        """Find the factors from whitened gradients, and solve in their eigenbasis.

        Raises:
            UnsupportedError: If different priors of real and imaginary parts rule out a Kronecker product.
            EvidenceError: If the evidence determines no noise or prior.
        """
        rows = problem.rows(probes=self.probes, seed=seed)
        factors = kronecker(
            problem.layout,
            problem.operator,
            rows=rows,
            eigenvalue_correction=self.eigenvalue_correction,
            prior_std=problem.prior_std,
            summed=problem.data.summed,
        )
        each = problem.weights.numel() if self.probes is None else self.probes
        present, groups = torch.unique(factors.layers, return_inverse=True)
        names = [problem.layout.names[number] for number in present.tolist()]
        learned = learn(problem, factors.eigenvalues, groups=groups, names=names)
        return WeightPosterior(
            root=KroneckerWeights(factors, prior_std=problem.prior_std, noise_scale=learned.noise, scale=learned.scales),
            noise=learned.noise,
            prior_precision=learned.prior_precision,
            log_evidence=learned.log_evidence,
            report={
                "null_directions": float((factors.eigenvalues == 0).sum()),
                "rows": float(problem.data.functions * each),
            },
        )


@dataclass(frozen=True, kw_only=True)
class Diagonal(Structure):
    """Independent parameters: the diagonal of the Gauss-Newton matrix.

    Args:
        probes: Number of products for XDiag; by default the diagonal is exact.

    Raises:
        ArgumentError: If `probes` is not a positive integer.
    """

    name: ClassVar[str] = "diagonal"
    probes: int | None = None

    def fit(self, problem: WeightProblem, *, seed: int, show_progress: bool) -> WeightPosterior:
        """Find the diagonal, and solve entry by entry.

        Raises:
            EvidenceError: If the evidence determines no noise or prior.
        """
        report: dict[str, float] = {}
        diagonal = _exact(problem) if self.probes is None else _estimated(problem, self.probes, report, seed=seed)
        learned = learn(problem, diagonal)
        std = problem.prior_std * (diagonal / learned.noise + learned.scales).rsqrt()
        return WeightPosterior(
            root=DiagonalWeights(std),
            noise=learned.noise,
            prior_precision=learned.prior_precision,
            log_evidence=learned.log_evidence,
            report=report,
        )


def _exact(problem: WeightProblem) -> Float64[Tensor, " P"]:
    diagonal = torch.zeros(problem.layout.size, dtype=torch.float64, device=problem.vector.device)
    for rows in problem.rows()():
        diagonal += rows.to(torch.float64).square().sum(0)
    return problem.data.summed(diagonal)


def _estimated(problem: WeightProblem, products: int, report: dict[str, float], *, seed: int) -> Float64[Tensor, " P"]:
    """XDiag; negative estimates are set to zero, a certain lower bound, and counted."""
    estimate = diagonals.xdiag(
        lambda vectors: problem.product(vectors.to(problem.vector)).to(vectors),
        problem.layout.size,
        products=products,
        seed=seed,
    )
    below = estimate.values < 0
    total = float(estimate.values.abs().sum())
    report["relative_error"] = float(estimate.errors.square().sum().sqrt() / estimate.values.square().sum().sqrt())
    report["below_zero"] = float(below.sum())
    report["below_zero_share"] = float(estimate.values[below].abs().sum()) / total if total > 0 else 0.0
    return torch.where(below, 0.0, estimate.values)


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
        if size > LARGEST:
            raise UnsupportedError(
                expected=f"at most {LARGEST} parameters for a dense covariance",
                got=str(size),
                remedy="choose parameters=, another structure=, or LastLayerLaplace",
            )
        curvature = torch.zeros(size, size, dtype=torch.float64, device=problem.vector.device)
        prior_std = problem.prior_std
        for rows in problem.rows()():
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
        if problem.given.learns_layers:
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
