"""The exact covariance of any number of weights, never factored: every draw solves a linear system to a certified residual."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from probneural.curvature.conjugate_gradients import LowRankPreconditioner
from probneural.curvature.iterative_weights import IterativeWeights
from probneural.curvature.weight_roots import LowRankWeights
from probneural.distributions.latents import digest
from probneural.heads.front import WeightProblem
from probneural.heads.structures import low_rank
from probneural.heads.structures.settings import Settings
from probneural.heads.weights import WeightPosterior


def fit(problem: WeightProblem, settings: Settings) -> WeightPosterior:
    """Learn hyper-parameters from a low-rank structure, which then preconditions.

    Raises:
        EvidenceError: If the evidence determines no noise or prior.
    """
    problem = problem.in_double_precision
    truncated = low_rank.fit(problem, settings)
    root = truncated.root
    assert isinstance(root, LowRankWeights)
    noise = truncated.noise
    ratios = root.factors.reciprocal().square() - 1.0
    spread = root.spread.to(problem.vector)
    weight = (problem.weights / noise).sqrt().to(problem.vector)
    shape = (len(problem.data), *weight.shape)

    def forward(vectors: Tensor) -> Tensor:
        return (problem.jacobian_product(vectors * spread) * weight).flatten(1)

    def transposed(numbers: Tensor) -> Tensor:
        return problem.transposed_jacobian_product(numbers.unflatten(-1, shape) * weight) * spread

    return WeightPosterior(
        root=IterativeWeights(
            forward,
            transposed,
            observations=math.prod(shape),
            spread=spread,
            name=digest(problem.vector, spread, weight, problem.data.inputs.values),
            preconditioner=LowRankPreconditioner(ratios, root.directions, shift=1.0),
            tolerance=1e-4 if spread.dtype == torch.float32 else 1e-9,
        ),
        noise=noise,
        prior_precision=truncated.prior_precision,
        log_evidence=truncated.log_evidence,
        evidence_error=truncated.evidence_error,
        report={"preconditioner_rank": truncated.report["rank"]},
    )
