"""Laplace structures compared with the dense posterior of a small operator, at the same noise and prior."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

import probneural as pn

RANKS = (8, 16, 32, 64, 128, 256, 512)


def trained(*, small: bool = False) -> tuple[pn.operators.FNO, pn.FieldPairs, pn.Field]:
    """An operator of about a thousand parameters in float64, its training pairs, and new inputs."""
    problem = pn.problems.Burgers(viscosity=0.1)
    train = problem.sample(50, resolution=64, seed=20_000).to(torch.float64)
    inputs = problem.sample(8, resolution=64, seed=20_001).inputs.to(torch.float64)
    operator = pn.operators.FNO(1, 1, modes=(6,), width=6, depth=2, projection=16, seed=0).to(torch.float64)
    pn.fit(operator, train, epochs=3 if small else 300, seed=0, show_progress=False)
    return operator, train, inputs


def run(*, small: bool = False) -> dict[str, Any]:
    """Accuracy of every structure, of low rank by rank, and of the evidence."""
    torch.set_num_threads(1)
    operator, train, inputs = trained(small=small)
    dense = pn.heads.Laplace("full").fit(operator, train)
    given = {
        "noise": dense.noise,
        "prior_precision": float(dense.prior_precision[0]),
        "effective_observations": dense.effective_observations,
    }
    reference = _covariances(dense, inputs)
    heads: dict[str, Any] = {
        "full": pn.heads.Laplace("full", **given),
        "low rank, grown": pn.heads.Laplace("low_rank", **given),
        "kronecker": pn.heads.Laplace(structure="kronecker", **given),
        "kronecker, 16 probes": pn.heads.Laplace(pn.heads.Kronecker(probes=16), **given),
        "diagonal": pn.heads.Laplace(structure="diagonal", **given),
    }
    rows = []
    for name, head in heads.items():
        start = time.perf_counter()
        predictor = head.fit(operator, train)
        seconds = time.perf_counter() - start
        covariance = _covariances(predictor, inputs)
        rows.append(
            {
                "structure": name,
                "weights": _relative(predictor.weight_covariance, dense.weight_covariance),
                **_compared(covariance, reference, float(dense.noise[0])),
                "evidence": predictor.log_evidence,
                "evidence_dense": dense.log_evidence,
                "evidence_error": predictor.log_evidence_error,
                "fit_seconds": seconds,
            }
        )
    layer = pn.heads.LastLayerLaplace(noise=dense.noise, effective_observations=dense.effective_observations)
    rows.append(
        {
            "structure": "last layer",
            **_compared(_covariances(layer.fit(operator, train), inputs), reference, float(dense.noise[0])),
        }
    )
    return {
        "parameters": dense.layout.size,
        "functions": len(train),
        "points": train.outputs.grid.size,
        "noise": dense.noise.tolist(),
        "prior_precision": given["prior_precision"],
        "rows": rows,
        "ranks": [_at_rank(rank, operator, train, inputs, given, reference) for rank in RANKS],
        "learned": _learned(operator, train),
    }


def _at_rank(
    rank: int,
    operator: pn.operators.FNO,
    train: pn.FieldPairs,
    inputs: pn.Field,
    given: dict[str, Any],
    reference: torch.Tensor,
) -> dict[str, Any]:
    """Captured energy of a truncation, its accuracy with and without complement, and its bounds."""
    predictor = pn.heads.Laplace(pn.heads.LowRank(rank=rank), **given).fit(operator, train)
    lower, upper = predictor.variance_bounds(inputs)
    exact = reference.diagonal(dim1=-2, dim2=-1)
    kept = predictor.weights.directions * predictor.weights.factors
    columns = kept.mT * predictor.weights.prior_std
    jacobian = pn.curvature.jacobian(predictor.operator, predictor.layout, inputs=inputs).flatten(1, 2)
    span = jacobian @ columns.mT
    dropped = span @ span.mT
    slack = 1e-9 * exact
    return {
        "rank": len(predictor.weights.factors),
        "captured_energy": predictor.report["captured_energy"],
        "next_ratio": predictor.report["next_ratio"],
        "frobenius": _relative(_covariances(predictor, inputs), reference),
        "frobenius_dropped": _relative(dropped, reference),
        "sd_ratio": float((upper.flatten(1) / exact).sqrt().mean()),
        "sd_ratio_dropped": float((dropped.diagonal(dim1=-2, dim2=-1) / exact).clamp_min(0).sqrt().mean()),
        "sd_ratio_lower": float((lower.flatten(1) / exact).sqrt().mean()),
        "bounds_hold": float(((lower.flatten(1) <= exact + slack) & (exact <= upper.flatten(1) + slack)).double().mean()),
        "evidence": predictor.log_evidence,
        "evidence_error": predictor.log_evidence_error,
    }


def _learned(operator: pn.operators.FNO, train: pn.FieldPairs) -> list[dict[str, Any]]:
    """Hyper-parameters and evidence of each structure at its own optimum."""
    rows = []
    for structure in ("full", "low_rank", "kronecker", "diagonal"):
        for per_layer in (False, True):
            form = pn.heads.LowRank(rank=256) if structure == "low_rank" else structure
            head = pn.heads.Laplace(form, prior_precision="per_layer" if per_layer else None)
            predictor = head.fit(operator, train)
            rows.append(
                {
                    "structure": structure,
                    "per_layer": per_layer,
                    "noise": float(predictor.noise[0]),
                    "prior_precision": float(predictor.prior_precision.log().mean().exp()),
                    "evidence": predictor.log_evidence,
                    "evidence_error": predictor.log_evidence_error,
                }
            )
    return rows


def _covariances(predictor: Any, inputs: pn.Field) -> torch.Tensor:
    """Covariance of the values of each sample, `(n, p, p)`."""
    rows = predictor(inputs).root.dense().flatten(1, 2).double()
    return rows @ rows.mT


def _relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def _compared(covariance: torch.Tensor, reference: torch.Tensor, noise: float) -> dict[str, float]:
    """Frobenius error, marginal sd and KL divergence per value of noisy samples, relative to the dense posterior."""
    deviation, exact = (matrix.diagonal(dim1=-2, dim2=-1).sqrt() for matrix in (covariance, reference))
    identity = noise * torch.eye(covariance.shape[-1], dtype=covariance.dtype)
    right, left = covariance + identity, reference + identity
    points = covariance.shape[-1]
    ratio = torch.linalg.solve(right, left)
    divergence = ratio.diagonal(dim1=-2, dim2=-1).sum(-1) - points - torch.linalg.slogdet(ratio)[1]
    return {
        "frobenius": _relative(covariance, reference),
        "sd_ratio": float((deviation / exact).mean()),
        "sd_error": float((deviation / exact - 1.0).abs().mean()),
        "kl_per_value": float(divergence.mean()) / (2 * points) if math.isfinite(float(divergence.mean())) else math.nan,
    }
