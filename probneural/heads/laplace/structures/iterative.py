"""The exact covariance of any number of weights, never factored: every draw solves a linear system to a certified residual."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from probneural.curvature.weights import IterativeWeights, LowRankWeights
from probneural.distributions.latent import digest
from probneural.heads.laplace.structures.base import Structure
from probneural.heads.laplace.structures.low_rank import LowRank
from probneural.heads.training_data import in_memory
from probneural.heads.weight_posterior import WeightPosterior
from probneural.heads.weight_problem import WeightProblem
from probneural.linear_algebra.conjugate_gradients import LowRankPreconditioner


@dataclass(frozen=True, kw_only=True)
class Iterative(Structure):
    """Nothing is assumed, for any number of parameters: draws solve linear systems over the training data.

    A draw has a random number for every value of the training outputs, so memory grows with their number: some thousand
    functions, not a million. Several processes each do all of it.

    Args:
        rank: Directions of the preconditioner; by default they grow until the next one carries less than the prior.

    Raises:
        ArgumentError: If `rank` is not a positive integer.
    """

    name: ClassVar[str] = "iterative"
    is_sum: ClassVar[bool] = False
    rank: int | None = None

    def __post_init__(self) -> None:
        """Check the number of directions."""
        self._check_count("rank")

    def fit(self, problem: WeightProblem, *, seed: int, show_progress: bool) -> WeightPosterior:
        """Learn hyper-parameters from a low-rank structure, which then preconditions.

        Raises:
            EvidenceError: If the evidence determines no noise or prior.
        """
        problem = problem.in_double_precision.with_own_inputs()
        truncated = LowRank(rank=self.rank).fit(problem, seed=seed, show_progress=show_progress)
        root = truncated.root
        assert isinstance(root, LowRankWeights)
        noise = truncated.noise
        ratios = root.factors.reciprocal().square() - 1.0
        prior_std = root.prior_std.to(problem.vector)
        weight = (problem.weights / noise).sqrt().to(problem.vector)
        shape = (problem.data.functions, *weight.shape)

        def forward(vectors: Tensor) -> Tensor:
            return (problem.jacobian_product(vectors * prior_std) * weight).flatten(1)

        def transposed(numbers: Tensor) -> Tensor:
            return problem.transposed_jacobian_product(numbers.unflatten(-1, shape) * weight) * prior_std

        inputs = in_memory(problem.data.inputs)
        return WeightPosterior(
            root=IterativeWeights(
                forward,
                transposed,
                observations=math.prod(shape),
                prior_std=prior_std,
                name=digest(problem.vector, prior_std, weight, inputs.values),
                preconditioner=LowRankPreconditioner(ratios, root.directions, shift=1.0),
                tolerance=1e-4 if prior_std.dtype == torch.float32 else 1e-9,
            ),
            noise=noise,
            prior_precision=truncated.prior_precision,
            log_evidence=truncated.log_evidence,
            evidence_error=truncated.evidence_error,
            report={"preconditioner_rank": truncated.report["rank"]},
        )
