"""The most probable parameters and the Gauss-Newton approximation of the posterior there, in standard normal coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.contexts import undisturbed
from probneural.errors import DataError
from probneural.inverse.model import InverseModel

_HALVINGS = 14
"""Maximum number of times that a step is halved."""


@dataclass(frozen=True, eq=False)
class GaussianApproximation:
    """N(mode, factor factor^T) in standard normal coordinates, for each target.

    Attributes:
        mode: `(t, d)`, dimensionless.
        factor: Lower triangular, `(t, d, d)`, dimensionless.
        log_evidence: Laplace approximation of the log density of the data, `(t,)`, in nats.
        chi2: Squared standardised residual of the data per observation at the mode, `(t,)`, dimensionless.
        has_converged: Whether the gradient of each target is below the tolerance, `(t,)`.
        iterations: Gauss-Newton steps taken.
    """

    mode: Float64[Tensor, "t d"]
    factor: Float64[Tensor, "t d d"]
    log_evidence: Float64[Tensor, " t"]
    chi2: Float64[Tensor, " t"]
    has_converged: Tensor
    iterations: int

    def moved(self, white: Float64[Tensor, "t n d"]) -> Float64[Tensor, "t n d"]:
        """The points mode + factor white."""
        return self.mode[:, None] + white @ self.factor.mT

    def whitened(self, z: Float64[Tensor, "t n d"]) -> Float64[Tensor, "t n d"]:
        """The inverse of `moved`."""
        return torch.linalg.solve_triangular(self.factor, (z - self.mode[:, None]).mT, upper=False).mT


def potential(problem: InverseModel, z: Float64[Tensor, "t n d"]) -> Float64[Tensor, "t n"]:
    """|z|² / 2 - log likelihood(T(z)), differentiable: the negative log posterior up to a constant."""
    return 0.5 * z.square().sum(-1) - problem.log_densities(problem.prior.from_normal(z))


@undisturbed()
def approximate(
    problem: InverseModel, starts: Float64[Tensor, "t n d"], *, iterations: int, tolerance: float
) -> GaussianApproximation:
    """Minimise the potential from n starts of each target, and keep the lowest of each.

    With residual r(z) = data - m(z), J = dm/dz and the data's covariance S, a step is -(I + J^T S^-1 J)^-1 times the exact
    gradient, halved until the potential falls. The approximation has the covariance (I + J^T S^-1 J)^-1.
    """
    z, iteration = starts, 0
    with torch.no_grad():
        height = potential(problem, z)
    if not bool(height.isfinite().any(1).all()):
        raise DataError(
            expected="a finite log likelihood at the prior's centre",
            got="NaN or an infinite one",
            remedy="check encode, the predictor, and the noise, which is a variance",
        )
    scale = None
    while True:
        gradient, jacobian, covariance, residual = _linearised(problem, z)
        size = gradient.norm(dim=-1)
        scale = size.clamp_min(1.0) if scale is None else scale
        done = size <= tolerance * scale
        # precision I + J^T S^-1 J
        rows = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), jacobian, upper=False)
        precision = torch.eye(problem.size, dtype=z.dtype) + rows.mT @ rows
        triangle = torch.linalg.cholesky(precision)
        if bool(done.all()) or iteration == iterations:
            break
        iteration += 1
        step = -torch.cholesky_solve(gradient[..., None], triangle)[..., 0]
        moved, lower = _searched(problem, z, step, gradient, height)
        if not bool((lower < height).any()):
            break
        z, height = moved, lower
    best = height.argmin(1)
    targets = torch.arange(len(z))
    inverse = torch.linalg.solve_triangular(triangle[targets, best], torch.eye(problem.size, dtype=z.dtype), upper=False)
    factor = torch.linalg.cholesky(inverse.mT @ inverse)
    whitened = torch.linalg.solve_triangular(
        torch.linalg.cholesky(covariance[targets, best]), residual[targets, best][..., None], upper=False
    )
    return GaussianApproximation(
        mode=z[targets, best],
        factor=factor,
        log_evidence=-height[targets, best] + factor.diagonal(dim1=-2, dim2=-1).log().sum(-1),
        chi2=whitened.square().mean((-2, -1)),
        has_converged=done[targets, best],
        iterations=iteration,
    )


@torch.enable_grad()
def _linearised(problem: InverseModel, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient of the potential `(t, n, d)`, Jacobian of the data's mean `(t, n, q, d)`, its covariance, and the residual."""
    at = z.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(potential(problem, at).sum(), at)
    mean, covariance = problem.moments(problem.prior.from_normal(at))
    if not mean.requires_grad:
        raise DataError(
            expected="predictions that are differentiable in the parameters",
            got="values without a graph",
            remedy='write encode with torch operations; or use sample("pcn", ...) from the prior, kalman() or "smc"',
        )
    columns = [torch.autograd.grad(mean[..., row].sum(), at, retain_graph=True)[0] for row in range(mean.shape[-1])]
    jacobian = torch.stack(columns, dim=-2)
    return gradient, jacobian, covariance.detach(), (problem.data - mean).detach()


@torch.no_grad()
def _searched(problem: InverseModel, z: Tensor, step: Tensor, gradient: Tensor, height: Tensor) -> tuple[Tensor, Tensor]:
    """Backtracking line search for each start, with Armijo constant 1e-4."""
    length, slope = torch.ones_like(height), (gradient * step).sum(-1)
    best, lowest = z, height
    searching = torch.ones_like(height, dtype=torch.bool)
    for _ in range(_HALVINGS):
        candidate = z + length[..., None] * step
        value = potential(problem, candidate)
        falls = searching & (value <= height + 1e-4 * length * slope)
        best, lowest = torch.where(falls[..., None], candidate, best), torch.where(falls, value, lowest)
        searching = searching & ~falls
        if not bool(searching.any()):
            break
        length = torch.where(searching, 0.5 * length, length)
    return best, lowest


def log_normal(z: Float64[Tensor, "*n d"]) -> Float64[Tensor, "*n"]:
    """Log density of N(0, I)."""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2.0 * math.pi))
