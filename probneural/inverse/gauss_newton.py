"""The most probable parameters and the Gauss-Newton approximation of the posterior there, in standard normal coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import NDArray
from torch import Tensor

from probneural.contexts import undisturbed
from probneural.errors import DataError
from probneural.inverse.model import InverseModel
from probneural.linear_algebra.conjugate_gradients import line_search

_HALVINGS = 14
"""Maximum number of times that a step is halved."""
_GAUSS_NEWTON_STEPS = 20
"""Maximum number of Gauss-Newton steps before L-BFGS takes over."""


@dataclass(frozen=True, eq=False)
class GaussianApproximation:
    """N(mode, factor factor^T) in standard normal coordinates, for each target.

    Attributes:
        mode: `(t, d)`, dimensionless.
        factor: Lower triangular, `(t, d, d)`, dimensionless.
        log_evidence: Laplace approximation of the log density of the data, `(t,)`, in nats.
        chi2: Squared standardised residual of the data per observation at the mode, `(t,)`, dimensionless.
        has_converged: Whether the last step of each target is below the tolerance, `(t,)`.
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
    gradient, halved until the potential falls. Where S depends on z, these steps may converge slowly; L-BFGS steps in the
    metric of the last one follow. The approximation has the covariance (I + J^T S^-1 J)^-1.
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
    state = _linearised(problem, z)
    while iteration < min(iterations, _GAUSS_NEWTON_STEPS) and bool((state.distance > tolerance).any()):
        iteration += 1
        step = -torch.cholesky_solve(state.gradient[..., None], state.triangle)[..., 0]
        slope = (state.gradient * step).sum(-1)
        moved, lower = line_search(partial(potential, problem), z, step, value=height, slope=slope, halvings=_HALVINGS)
        if not bool((lower < height).any()):
            break
        z, height = moved, lower
        state = _linearised(problem, z)
    targets, best = torch.arange(len(z)), height.argmin(1)
    z = z[targets, best][:, None]
    state = _linearised(problem, z)
    if bool((state.distance > tolerance).any()) and iteration < iterations:
        z, steps = _polished(problem, z, state.triangle[:, 0], iterations=iterations - iteration, tolerance=tolerance)
        iteration, state = iteration + steps, _linearised(problem, z)
    eye = torch.eye(problem.size, dtype=z.dtype)
    inverse = torch.linalg.solve_triangular(state.triangle[:, 0], eye.expand(len(z), -1, -1), upper=False)
    factor = torch.linalg.cholesky(inverse.mT @ inverse)
    with torch.no_grad():
        height = potential(problem, z)[:, 0]
    return GaussianApproximation(
        mode=z[:, 0],
        factor=factor,
        log_evidence=-height + factor.diagonal(dim1=-2, dim2=-1).log().sum(-1),
        chi2=state.residual[:, 0].square().mean(-1),
        has_converged=state.distance[:, 0] <= tolerance,
        iterations=iteration,
    )


class _Linearisation(NamedTuple):
    """Gradient of the potential, Cholesky factor of I + J^T S^-1 J, and the residual whitened by S."""

    gradient: Float64[Tensor, "t n d"]
    triangle: Float64[Tensor, "t n d d"]
    residual: Float64[Tensor, "t n q"]

    @property
    def distance(self) -> Float64[Tensor, "t n"]:
        """Length of the Gauss-Newton step in standard deviations of the approximation."""
        return torch.linalg.solve_triangular(self.triangle, self.gradient[..., None], upper=False).norm(dim=(-2, -1))


@torch.enable_grad()
def _linearised(problem: InverseModel, z: Float64[Tensor, "t n d"]) -> _Linearisation:
    at = z.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(potential(problem, at).sum(), at)
    mean, covariance = problem.moments(problem.prior.from_normal(at))
    if not mean.requires_grad:
        raise DataError(
            expected="predictions that are differentiable in the parameters",
            got="values without a graph",
            remedy='write encode with torch operations; or use sample("smc") or kalman()',
        )
    columns = [torch.autograd.grad(mean[..., row].sum(), at, retain_graph=True)[0] for row in range(mean.shape[-1])]
    whitening = torch.linalg.cholesky(covariance.detach())
    rows = torch.linalg.solve_triangular(whitening, torch.stack(columns, dim=-2), upper=False)
    residual = torch.linalg.solve_triangular(whitening, (problem.data - mean).detach()[..., None], upper=False)[..., 0]
    precision = torch.eye(problem.size, dtype=z.dtype) + rows.mT @ rows
    return _Linearisation(gradient, torch.linalg.cholesky(precision), residual)


def _polished(
    problem: InverseModel, z: Float64[Tensor, "t 1 d"], triangle: Float64[Tensor, "t d d"], *, iterations: int, tolerance: float
) -> tuple[Float64[Tensor, "t 1 d"], int]:
    """L-BFGS steps of all targets together, in coordinates in which I + J^T S^-1 J = triangle triangle^T is I."""

    def moved(white: NDArray[Any]) -> Tensor:
        change = torch.from_numpy(white).view(len(z), -1, 1)
        return z + torch.linalg.solve_triangular(triangle.mT, change, upper=True).mT

    def objective(white: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        at = moved(white).requires_grad_()
        height = potential(problem, at).sum()
        (gradient,) = torch.autograd.grad(height, at)
        return float(height.detach()), torch.linalg.solve_triangular(triangle, gradient.mT, upper=False).flatten().numpy()

    start = np.zeros(len(z) * problem.size)
    settings = {"maxiter": iterations, "gtol": tolerance / problem.size**0.5, "ftol": 0.0}
    from scipy.optimize import minimize  # costs half a second to import

    result = minimize(objective, start, jac=True, method="L-BFGS-B", options=settings)
    return moved(result.x), int(result.nit)
