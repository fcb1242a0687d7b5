"""Learning from more data without refitting: exact Bayesian linear regression on top of a fitted posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.curvature.problem import Minibatches
from probneural.curvature.products.functions import jacobian_vector_product, vector_jacobian_product
from probneural.curvature.spectra.lanczos import top_eigenpairs
from probneural.curvature.weights import DenseWeights, LowRankWeights
from probneural.heads.laplace.structures.low_rank import LARGEST_RANK, TOLERANCE
from probneural.heads.weight_problem import WeightProblem
from probneural.linear_algebra.conditioning import posterior_root


@dataclass(frozen=True, eq=False)
class Update:
    """What new data make of a weight posterior.

    Attributes:
        weights: The new root.
        shift: Of the weights from the trained ones, `(P,)`, float64.
        log_evidence: What the new data add to it, in nats: log p(new | old).
        next_value: Whitened precision that a low-rank root leaves out along the next direction; 0 of a dense one.
    """

    weights: DenseWeights | LowRankWeights
    shift: Float64[Tensor, " P"]
    log_evidence: float
    next_value: float


def update(problem: WeightProblem, root: DenseWeights | LowRankWeights, *, shift: Float64[Tensor, " P"] | None) -> Update:
    """Condition a posterior on the pairs of a problem: see `LaplacePredictor.update`.

    With new rows J, noise S and residuals r at the old mean, the covariance becomes C' = (C^-1 + J^T S^-1 J)^-1, the mean
    moves by C' J^T S^-1 r, and log p(new | old) = -(1/2) [log det(2 pi S) + log det(C C'^-1) + r^T S^-1 r - g^T C' g] with
    g = J^T S^-1 r.

    Args:
        problem: The new pairs, with the noise of the posterior.
        root: Of the posterior's covariance.
        shift: Of its mean from the trained weights.
    """
    old = torch.zeros_like(problem.vector) if shift is None else shift.to(problem.vector)
    gradient, squares = _misfit(problem, old)
    weights, log_ratio, next_value = _dense(root, problem) if isinstance(root, DenseWeights) else _low_rank(root, problem)
    step = weights.product(weights.transposed_product(gradient[None]))[0].to(torch.float64)
    explained = squares - float(gradient @ step)
    gain = -0.5 * (problem.observations * math.log(2 * math.pi) + log_ratio + explained) - problem.offset
    return Update(weights=weights, shift=old.to(torch.float64) + step, log_evidence=gain, next_value=next_value)


@torch.no_grad()
def _misfit(problem: WeightProblem, old: Tensor) -> tuple[Float64[Tensor, " P"], float]:
    """J^T S^-1 r and r^T S^-1 r with the residuals r at the old mean, a few functions at a time."""
    total = torch.zeros(len(old) + 1, dtype=torch.float64, device=old.device)
    for batch, residuals in problem.residuals():
        part = replace(problem.curvature, inputs=batch.inputs, batches=Minibatches())
        left = residuals - jacobian_vector_product(part, problem.vector, old).to(torch.float64)
        total[:-1] += vector_jacobian_product(part, problem.vector, (left * problem.weights).to(old)).to(torch.float64)
        total[-1] += (left.square() * problem.weights).sum()
    problem.data.summed(total)
    return total[:-1], float(total[-1])


def _dense(root: DenseWeights, problem: WeightProblem) -> tuple[DenseWeights, float, float]:
    """R (I + R^T G R)^(-1/2), log det(I + R^T G R), and 0: nothing is left out."""
    factor = root.factor.to(torch.float64)
    gain = torch.zeros(root.rank, root.rank, dtype=torch.float64, device=root.device)
    for rows in problem.rows()():
        latent_rows = rows.to(torch.float64) @ factor
        gain += latent_rows.mT @ latent_rows
    problem.data.summed(gain)
    factor, log_determinant = posterior_root(factor, gain)
    return DenseWeights(factor), float(log_determinant), 0.0


def _low_rank(root: LowRankWeights, problem: WeightProblem) -> tuple[LowRankWeights, float, float]:
    """Eigenpairs of the old directions plus the new curvature, with a rank that holds both where that is not too much."""
    dtype, problem = root.dtype, problem.in_double_precision
    directions, ratios = root.directions, (root.factors.to(torch.float64).reciprocal().square() - 1.0)
    prior_std = root.prior_std

    def product(vectors: Tensor) -> Tensor:
        along = (vectors @ directions.to(vectors)) * ratios.to(vectors)
        return along @ directions.mT.to(vectors) + problem.product(vectors * prior_std.to(vectors)) * prior_std.to(vectors)

    new = problem.data.functions * problem.weights.numel()
    rank = min(root.size, len(ratios) + new, max(len(ratios), LARGEST_RANK))
    pairs = top_eigenpairs(
        product, root.size, rank=rank, seed=0, start=directions, tolerance=TOLERANCE[dtype], like=problem.vector
    )
    values = pairs.values.clamp_min(0.0).to(torch.float64)
    weights = LowRankWeights(prior_std, pairs.vectors.to(dtype), factors=(1.0 + values).rsqrt())
    return weights, float(values.log1p().sum() - ratios.log1p().sum()), max(pairs.next_value, 0.0)
