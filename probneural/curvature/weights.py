"""Roots of weight covariances: linear maps from a latent vector xi in R^k to the parameters, never formed as covariances."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.distributions.latent import digest
from probneural.distributions.roots.base import LatentMap
from probneural.linear_algebra.conditioning import LowRankUpdate
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

    def fingerprint(self) -> str:
        """A short name from the factors and up to a million entries of the directions."""
        return digest(self.prior_std, self.directions[:: 1 + self.directions.numel() // 2**20], self.factors)

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s P"]:
        """Sharpen, then scale by the prior."""
        return self._sharpened(latents.to(self.directions)) * self.prior_std.to(self.directions)

    def transposed_product(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s k"]:
        """Scale by the prior, then sharpen."""
        return self._sharpened(vectors.to(self.directions) * self.prior_std.to(self.directions))

    def _sharpened(self, vectors: Tensor) -> Tensor:
        return LowRankUpdate(self.directions.mT, self.factors.to(self.directions)).product(vectors)
