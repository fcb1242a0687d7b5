"""Exact draws of weights without a factorisation: sample, then optimise by conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.curvature.weights.roots import WeightRoot
from probneural.errors import UnsupportedError
from probneural.linear_algebra.conjugate_gradients import solve
from probneural.linear_algebra.symmetric_maps import Map


@dataclass(frozen=True, eq=False)
class IterativeWeights(WeightRoot):
    """R = diag(prior_std) (F^T F + I)^-1 [F^T, I], whose covariance is diag(prior_std) (F^T F + I)^-1 diag(prior_std) exactly.

    A draw solves the least-squares problem of data and prior that are both perturbed by their noise. Every product solves one
    system per vector and fails, with a named error, unless the residual it is left with is below the tolerance.

    Args:
        forward: F, whitened Jacobian over the noise, `(s, P)` to `(s, m)`.
        transposed: F^T, `(s, m)` to `(s, P)`.
        observations: m.
        prior_std: Prior standard deviations, `(P,)`.
        name: A name that follows from what the maps are made of.
        preconditioner: An approximate inverse of F^T F + I on rows, or None.
        tolerance: Largest relative residual.
        max_iterations: Per solve.

    Reference:
        Antorán, Padhy, Barbano, Nalisnick, Janz & Hernández-Lobato (2023), Sampling-based inference for large linear models,
        with application to linearised Laplace, section 3.
    """

    forward: Map
    transposed: Map
    observations: int
    prior_std: Float[Tensor, " P"]
    name: str
    preconditioner: Map | None = None
    tolerance: float = 1e-6
    max_iterations: int = 1000

    @property
    def size(self) -> int:
        """P."""
        return self.prior_std.shape[0]

    @property
    def rank(self) -> int:
        """Length m + P: noise of the data and of the prior."""
        return self.observations + self.size

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.prior_std

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s P"]:
        """Draw weights."""
        noise, prior = latents.to(self.prior_std).split([self.observations, self.size], dim=-1)
        return self._solved(self.transposed(noise) + prior) * self.prior_std

    def transposed_product(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s k"]:
        """R^T w."""
        solved = self._solved(vectors.to(self.prior_std) * self.prior_std)
        return torch.cat([self.forward(solved), solved], dim=-1)

    def fingerprint(self) -> str:
        """The name it was given."""
        return self.name

    def tensors(self) -> dict[str, Tensor]:
        """Refuse: the data are part of it.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            expected="a structure that a file can hold",
            got="iterative, which needs its data",
            remedy="save the operator, and fit anew",
        )

    def _solved(self, right: Tensor) -> Tensor:
        result = solve(
            lambda vectors: self.transposed(self.forward(vectors)) + vectors,
            right,
            preconditioner=self.preconditioner,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
        )
        if not result.converged:
            worst = float(result.relative_residuals.max())
            raise UnsupportedError(
                expected=f"conjugate gradients with a relative residual below {self.tolerance:.1e}",
                got=f"{worst:.1e} after {result.iterations} iterations",
                remedy="give a higher rank= to the preconditioner, or use float64",
            )
        return result.solution
