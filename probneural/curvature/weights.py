"""Roots of weight covariances: linear maps from a latent vector xi in R^k to the parameters, never formed as covariances."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.distributions.latent import digest
from probneural.distributions.roots.base import LatentMap
from probneural.errors import UnsupportedError
from probneural.linear_algebra.conditioning import LowRankUpdate
from probneural.linear_algebra.conjugate_gradients import solve
from probneural.linear_algebra.symmetric_maps import Map
from probneural.registry import stored


class WeightRoot(LatentMap):
    """The map R of weights w = centre + R xi with xi ~ N(0, I_k), so that their covariance is R R^T; abstract."""

    @property
    def size(self) -> int:
        """Number of parameters P, the length of `like`."""
        return self.like.shape[0]

    @property
    def rank(self) -> int:
        """Length k of the latent vector; P by default."""
        return self.size

    @abstractmethod
    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s P"]:
        """R xi, for s latent vectors."""

    @abstractmethod
    def transposed_product(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s k"]:
        """R^T w, for s parameter vectors."""

    def fingerprint(self) -> str:
        """A short name that follows from the contents: equal roots, equal names."""
        return digest(*vars(self).values())

    def dense(self) -> Float[Tensor, "P k"]:
        """Form the root."""
        return self.product(torch.eye(self.rank, dtype=self.dtype, device=self.device)).mT

    def covariance(self) -> Float[Tensor, "P P"]:
        """Form the covariance, in parameter units squared."""
        root = self.dense()
        return root @ root.mT


@stored()
@dataclass(frozen=True, eq=False)
class DenseWeights(WeightRoot):
    """A root held as a matrix.

    Args:
        factor: R, `(P, k)`, in parameter units.
    """

    factor: Float[Tensor, "P k"]

    @property
    def rank(self) -> int:
        """Number of columns k."""
        return self.factor.shape[1]

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.factor

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s P"]:
        """R xi."""
        return latents.to(self.factor) @ self.factor.mT

    def transposed_product(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s k"]:
        """R^T w."""
        return vectors.to(self.factor) @ self.factor

    def dense(self) -> Float[Tensor, "P k"]:
        """The matrix itself."""
        return self.factor


@stored()
@dataclass(frozen=True, eq=False)
class DiagonalWeights(WeightRoot):
    """Independent weights.

    Args:
        std: Standard deviations, `(P,)`, in parameter units; zero is allowed.
    """

    std: Float[Tensor, " P"]

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.std

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s P"]:
        """Scale entry by entry."""
        return latents.to(self.std) * self.std

    def transposed_product(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s k"]:
        """Scale entry by entry."""
        return vectors.to(self.std) * self.std


@stored(mixes_precisions=True)
@dataclass(frozen=True, eq=False)
class LowRankWeights(WeightRoot):
    """A diagonal prior sharpened in r directions: R = diag(prior_std) (I + V (diag(factors) - 1) V^T).

    Outside the span of V the weights keep their prior: nothing is dropped.

    Args:
        prior_std: Prior standard deviations, `(P,)`, in parameter units.
        directions: V, `(P, r)`, with orthonormal columns.
        factors: Ratio of posterior to prior standard deviation along each direction, `(r,)`, in (0, 1].
    """

    prior_std: Float[Tensor, " P"]
    directions: Float[Tensor, "P r"]
    _: KW_ONLY
    factors: Float[Tensor, " r"]

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.directions

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s P"]:
        """Sharpen, then scale by the prior."""
        return self._sharpened(latents.to(self.directions)) * self.prior_std.to(self.directions)

    def transposed_product(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s k"]:
        """Scale by the prior, then sharpen."""
        return self._sharpened(vectors.to(self.directions) * self.prior_std.to(self.directions))

    def _sharpened(self, vectors: Tensor) -> Tensor:
        return LowRankUpdate(self.directions.mT, self.factors.to(self.directions)).product(vectors)


@stored(parts="tensors")
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
        name: Name derived from the content of the maps.
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
            expected="a structure that a file can hold", got="iterative, which needs its data", remedy="save the operator"
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
