"""Gaussian densities of a low-rank plus diagonal covariance, differentiable."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.linear_algebra.densities import LOG_TWO_PI


def log_density_per_value(
    residual: Float64[Tensor, "n v"], variance: Float64[Tensor, "n v"], factors: Float64[Tensor, "n v r"]
) -> Float64[Tensor, " n"]:
    """Log density of N(0, F F^T + D) at a residual, divided by the number of values v, in nats.

    By the matrix determinant lemma and Woodbury's identity, with C = I + F^T D^-1 F of r x r:

        log det = log det D + log det C,        e^T (F F^T + D)^-1 e = e^T D^-1 e - b^T C^-1 b,  b = F^T D^-1 e.

    Args:
        residual: e.
        variance: The diagonal of D, positive, in the residual's units squared.
        factors: F, in the residual's units; r may be 0.

    Examples:
        >>> ones = torch.ones(1, 1, dtype=torch.float64)
        >>> density = log_density_per_value(ones, 3.0 * ones, ones[..., None])  # N(0, 4) at 1
        >>> round(float(density + 0.5 * (0.25 + LOG_TWO_PI)) / torch.tensor(2.0).log().item(), 6)
        -1.0
    """
    weighted = factors / variance[..., None]
    capacitance = factors.mT @ weighted
    capacitance = capacitance + torch.eye(factors.shape[2], dtype=factors.dtype, device=factors.device)
    triangle, _ = torch.linalg.cholesky_ex(capacitance)  # what overflows gives NaN, which the caller refuses
    along = torch.linalg.solve_triangular(triangle, (weighted.mT @ residual[..., None]), upper=False)[..., 0]
    log_determinant = variance.log().sum(1) + 2.0 * triangle.diagonal(dim1=1, dim2=2).log().sum(1)
    squares = (residual.square() / variance).sum(1) - along.square().sum(1)
    return -0.5 * ((squares + log_determinant) / residual.shape[1] + LOG_TWO_PI)
