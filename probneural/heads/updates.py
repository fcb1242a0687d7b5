"""Learning from more data without refitting: exact Bayesian linear regression on top of a fitted posterior."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.curvature.lanczos import top_eigenpairs
from probneural.curvature.weight_roots import DenseWeights, LowRankWeights, WeightRoot
from probneural.errors import UnsupportedError
from probneural.fields import FieldPairs
from probneural.heads.front import WeightProblem, prepare
from probneural.heads.structures.low_rank import LARGEST_RANK, TOLERANCE

if TYPE_CHECKING:
    from probneural.heads.laplace import LaplacePredictor


@dataclass(frozen=True, eq=False)
class Update:
    """What new data make of a weight posterior.

    Attributes:
        weights: The new root.
        shift: Of the weights from the trained ones, `(P,)`, float64.
        log_evidence: What the new data add to it, in nats: log p(new | old).
        report: What changes of the structure's report.
    """

    weights: WeightRoot
    shift: Float64[Tensor, " P"]
    log_evidence: float
    report: Mapping[str, float]


def update(predictor: LaplacePredictor, data: FieldPairs) -> Update:
    """Condition on new pairs: see `LaplacePredictor.update`.

    With new rows J, noise S and residuals r at the old mean, the covariance becomes C' = (C^-1 + J^T S^-1 J)^-1, the mean
    moves by C' J^T S^-1 r, and log p(new | old) = -(1/2) [log det(2 pi S) + log det(C C'^-1) + r^T S^-1 r - g^T C' g] with
    g = J^T S^-1 r.

    Raises:
        UnsupportedError: If the structure has no closed form.
    """
    root = predictor.weights
    if not isinstance(root, DenseWeights | LowRankWeights):
        raise UnsupportedError(
            expected="a full or low-rank structure, which new data update in closed form",
            got=predictor.structure,
            remedy="fit anew on all data",
        )
    problem = prepare(
        predictor.operator,
        data,
        parameters=predictor.layout.names,
        noise=predictor.noise,
        prior_precision=None,
        counts=predictor.effective_observations.clamp_max(float(data.outputs.grid.size)),  # a coarse grid cannot tell more
        learns_layers=False,
    )
    old = torch.zeros_like(problem.vector) if predictor.shift is None else predictor.shift.to(problem.vector)
    residuals = problem.residuals.flatten(2) - problem.jacobian_product(old[None])[0].to(torch.float64)
    pulled = problem.transposed_jacobian_product((residuals * problem.weights)[None].to(problem.vector))
    gradient = pulled[0].to(torch.float64)
    report: dict[str, float] = {}
    weights: WeightRoot
    if isinstance(root, DenseWeights):
        weights, log_ratio = _dense(root, problem)
    else:
        sharpened, log_ratio, left = _low_rank(root, problem)
        weights = sharpened
        # what the old data say outside their span, and what the new span leaves of both, may add up along one direction
        report = {"rank": float(len(sharpened.factors)), "next_ratio": predictor.report["next_ratio"] + left}
    step = weights.product(weights.transposed_product(gradient[None]))[0].to(torch.float64)
    explained = float((residuals.square() * problem.weights).sum()) - float(gradient @ step)
    gain = -0.5 * (problem.observations * math.log(2 * math.pi) + log_ratio + explained) - problem.offset
    return Update(weights=weights, shift=old.to(torch.float64) + step, log_evidence=gain, report=report)


def _dense(root: DenseWeights, problem: WeightProblem) -> tuple[DenseWeights, float]:
    """R (I + R^T G R)^(-1/2), and log det(I + R^T G R)."""
    factor = root.factor.to(torch.float64)
    gain = torch.zeros(root.rank, root.rank, dtype=torch.float64, device=root.device)
    for rows in problem.rows()():
        seen = rows.to(torch.float64) @ factor
        gain += seen.mT @ seen
    values, vectors = torch.linalg.eigh(gain)
    values = values.clamp_min(0.0)  # a Gram matrix: what is negative is rounding
    return DenseWeights(factor @ vectors * (1.0 + values).rsqrt()), float(values.log1p().sum())


def _low_rank(root: LowRankWeights, problem: WeightProblem) -> tuple[LowRankWeights, float, float]:
    """Eigenpairs of the old directions plus the new curvature, with a rank that holds both where that is not too much."""
    dtype, problem = root.dtype, problem.in_double_precision
    directions, ratios = root.directions, (root.factors.to(torch.float64).reciprocal().square() - 1.0)
    spread = root.spread

    def product(vectors: Tensor) -> Tensor:
        along = (vectors @ directions.to(vectors)) * ratios.to(vectors)
        return along @ directions.mT.to(vectors) + problem.product(vectors * spread.to(vectors)) * spread.to(vectors)

    new = len(problem.data) * problem.weights.numel()
    rank = min(root.size, len(ratios) + new, max(len(ratios), LARGEST_RANK))
    pairs = top_eigenpairs(product, root.size, rank=rank, seed=0, start=directions, tolerance=TOLERANCE[dtype], **problem.place)
    values = pairs.values.clamp_min(0.0).to(torch.float64)
    found = LowRankWeights(spread, pairs.vectors.to(dtype), (1.0 + values).rsqrt())
    return found, float(values.log1p().sum() - ratios.log1p().sum()), max(pairs.next_value, 0.0)
