"""Exact draws of weights without a factorisation: sample, then optimise by conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.curvature.conjugate_gradients import solve
from probneural.curvature.weight_roots import WeightRoot
from probneural.errors import UnsupportedError

Map = Callable[[Tensor], Tensor]
"""A linear map of row vectors."""


@dataclass(frozen=True, eq=False)
class IterativeWeights(WeightRoot):
    """R = diag(spread) (F^T F + I)^-1 [F^T, I], whose covariance is diag(spread) (F^T F + I)^-1 diag(spread) exactly.

    A draw solves the least-squares problem of data and prior that are both perturbed by their noise. Every product solves one
    system per vector and fails, with a named error, unless the residual it is left with is below the tolerance.

    Args:
        forward: F, whitened Jacobian over the noise, `(s, P)` to `(s, m)`.
        transposed: F^T, `(s, m)` to `(s, P)`.
        observations: m.
        spread: Prior standard deviations, `(P,)`.
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
    spread: Float[Tensor, " P"]
    name: str
    preconditioner: Map | None = None
    tolerance: float = 1e-6
    max_iterations: int = 1000

    @property
    def size(self) -> int:
        """P."""
        return self.spread.shape[0]

    @property
    def rank(self) -> int:
        """Length m + P: noise of the data and of the prior."""
        return self.observations + self.size

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the spread."""
        return self.spread.dtype

    @property
    def device(self) -> torch.device:
        """Device of the spread."""
        return self.spread.device

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s P"]:
        """Draw weights."""
        noise, prior = latents.to(self.spread).split([self.observations, self.size], dim=-1)
        return self._solved(self.transposed(noise) + prior) * self.spread

    def transposed_product(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s k"]:
        """R^T w."""
        solved = self._solved(vectors.to(self.spread) * self.spread)
        return torch.cat([self.forward(solved), solved], dim=-1)

    def identity(self) -> str:
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
