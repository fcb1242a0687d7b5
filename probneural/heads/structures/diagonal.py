"""Independent weights: the diagonal of the Gauss-Newton matrix, exactly or by XDiag."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.curvature import diagonals
from probneural.curvature.weight_roots import DiagonalWeights
from probneural.heads.front import WeightProblem
from probneural.heads.separable import learn
from probneural.heads.structures.settings import Settings
from probneural.heads.weights import WeightPosterior


def fit(problem: WeightProblem, settings: Settings) -> WeightPosterior:
    """Find the diagonal, and solve entry by entry.

    Raises:
        EvidenceError: If the evidence determines no noise or prior.
    """
    report: dict[str, float] = {}
    diagonal = _exact(problem) if settings.probes is None else _estimated(problem, settings, report)
    found = learn(problem, diagonal)
    deviations = problem.spread * (diagonal / found.noise + found.scales).rsqrt()
    return WeightPosterior(
        root=DiagonalWeights(deviations),
        noise=found.noise,
        prior_precision=found.prior_precision,
        log_evidence=found.log_evidence,
        report=report,
    )


def _exact(problem: WeightProblem) -> Float64[Tensor, " P"]:
    diagonal = torch.zeros(problem.layout.size, dtype=torch.float64, device=problem.vector.device)
    for rows in problem.rows()():
        diagonal += rows.to(torch.float64).square().sum(0)
    return diagonal


def _estimated(problem: WeightProblem, settings: Settings, report: dict[str, float]) -> Float64[Tensor, " P"]:
    """XDiag; an estimate below zero is replaced by zero, the bound that is certain, and counted."""
    assert settings.probes is not None
    estimate = diagonals.xdiag(
        lambda vectors: problem.product(vectors.to(problem.vector)).to(vectors),
        problem.layout.size,
        products=settings.probes,
        seed=settings.seed,
    )
    below = estimate.values < 0
    total = float(estimate.values.abs().sum())
    report["relative_error"] = float(estimate.errors.square().sum().sqrt() / estimate.values.square().sum().sqrt())
    report["below_zero"] = float(below.sum())
    report["below_zero_share"] = float(estimate.values[below].abs().sum()) / total if total > 0 else 0.0
    return torch.where(below, 0.0, estimate.values)
