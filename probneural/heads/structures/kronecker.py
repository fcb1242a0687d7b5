"""Kronecker factors per layer, and per mode of spectral convolutions."""

from __future__ import annotations

import torch

from probneural.curvature.kronecker import kronecker
from probneural.curvature.kronecker_factors import KroneckerWeights
from probneural.heads.front import WeightProblem
from probneural.heads.separable import learn
from probneural.heads.structures.settings import Settings
from probneural.heads.weights import WeightPosterior


def fit(problem: WeightProblem, settings: Settings) -> WeightPosterior:
    """Find the factors from whitened gradients, and solve in their eigenbasis.

    Raises:
        UnsupportedError: If the prior treats real and imaginary parts differently where that leaves no Kronecker product.
        EvidenceError: If the evidence determines no noise or prior.
    """
    rows = problem.rows(probes=settings.probes, seed=settings.seed)
    factors = kronecker(problem.layout, problem.operator, rows, corrected=settings.corrected, spread=problem.spread)
    present, groups = torch.unique(factors.layers, return_inverse=True)
    names = [problem.layout.names[number] for number in present.tolist()]
    found = learn(problem, factors.eigenvalues, groups=groups, names=names)
    return WeightPosterior(
        root=KroneckerWeights(factors, spread=problem.spread, level=found.noise, scale=found.scales),
        noise=found.noise,
        prior_precision=found.prior_precision,
        log_evidence=found.log_evidence,
        report={"null_directions": float((factors.eigenvalues == 0).sum()), "rows": float(len(rows))},
    )
