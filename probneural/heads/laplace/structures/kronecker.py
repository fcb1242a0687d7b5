"""Kronecker factors per layer, and per mode of spectral convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from probneural.checks import check_flag
from probneural.curvature.kfac.factorisation import kronecker
from probneural.curvature.kfac.factors import KroneckerWeights
from probneural.heads.diagonal_evidence import learn
from probneural.heads.laplace.structures.base import Structure
from probneural.heads.weight_posterior import WeightPosterior
from probneural.heads.weight_problem import WeightProblem


@dataclass(frozen=True, kw_only=True)
class Kronecker(Structure):
    """A Kronecker product for every linear layer and every mode of a spectral convolution; layers are independent.

    Where modes have several channels, prior precisions of a real and an imaginary part have to be equal, or one of them
    infinite.

    Args:
        probes: Random projections per function that replace its output values; by default every value counts.
        eigenvalue_correction: Whether eigenvalues are estimated anew in the eigenbasis (EKFAC).

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
        self._check_count("probes")
        check_flag(self.eigenvalue_correction, "eigenvalue_correction")

    def fit(self, problem: WeightProblem, *, seed: int, show_progress: bool) -> WeightPosterior:
        """Find the factors from whitened gradients, and solve in their eigenbasis.

        Raises:
            UnsupportedError: If the prior treats real and imaginary parts differently where that leaves no Kronecker product.
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
