"""Independent weights: the diagonal of the Gauss-Newton matrix, exactly or by XDiag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.curvature.spectra import diagonals
from probneural.curvature.weights import DiagonalWeights
from probneural.heads.diagonal_evidence import learn
from probneural.heads.laplace.structures.base import Structure
from probneural.heads.weight_posterior import WeightPosterior
from probneural.heads.weight_problem import WeightProblem


@dataclass(frozen=True, kw_only=True)
class Diagonal(Structure):
    """Parameters are independent: only the diagonal of the Gauss-Newton matrix counts.

    Args:
        probes: Products that XDiag may use; by default the diagonal is exact.

    Raises:
        ArgumentError: If `probes` is not a positive integer.
    """

    name: ClassVar[str] = "diagonal"
    probes: int | None = None

    def __post_init__(self) -> None:
        """Check the number of products."""
        self._check_count("probes")

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
    """XDiag; an estimate below zero is replaced by zero, the bound that is certain, and counted."""
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
