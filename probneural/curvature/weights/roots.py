"""Roots of weight covariances: linear maps from a latent vector xi in R^k to the parameters, never formed as covariances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.distributions.latent import digest
from probneural.errors import ShapeError
from probneural.linear_algebra.conditioning import LowRankUpdate


class WeightRoot(ABC):
    """The map R of weights w = centre + R xi with xi ~ N(0, I_k), so that their covariance is R R^T; abstract."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of parameters P."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """Length k of the latent vector."""

    @property
    @abstractmethod
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of products."""
        return self.like.dtype

    @property
    def device(self) -> torch.device:
        """Device of products."""
        return self.like.device

    @abstractmethod
    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s P"]:
        """R xi, for s latent vectors."""

    @abstractmethod
    def transposed_product(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s k"]:
        """R^T w, for s parameter vectors."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The tensors it is made of, by name: what a file must hold."""

    def fingerprint(self) -> str:
        """A short name that follows from the contents: equal roots, equal names."""
        return digest(*self.tensors().values())

    def dense(self) -> Float[Tensor, "P k"]:
        """Form the root."""
        return self.product(torch.eye(self.rank, dtype=self.dtype, device=self.device)).mT

    def covariance(self) -> Float[Tensor, "P P"]:
        """Form the covariance, in parameter units squared."""
        root = self.dense()
        return root @ root.mT


@dataclass(frozen=True, eq=False)
class DenseWeights(WeightRoot):
    """A root held as a matrix.

    Args:
        factor: R, `(P, k)`, in parameter units.
    """

    factor: Float[Tensor, "P k"]

    @property
    def size(self) -> int:
        """Number of parameters P."""
        return self.factor.shape[0]

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

    def tensors(self) -> dict[str, Tensor]:
        """The factor."""
        return {"factor": self.factor}

    def dense(self) -> Float[Tensor, "P k"]:
        """The matrix itself."""
        return self.factor


@dataclass(frozen=True, eq=False)
class DiagonalWeights(WeightRoot):
    """Independent weights.

    Args:
        std: Their standard deviations, `(P,)`, in parameter units; zero is legal.
    """

    std: Float[Tensor, " P"]

    @property
    def size(self) -> int:
        """Number of parameters P."""
        return self.std.shape[0]

    @property
    def rank(self) -> int:
        """Number of parameters P again."""
        return self.std.shape[0]

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

    def tensors(self) -> dict[str, Tensor]:
        """The standard deviations."""
        return {"std": self.std}


@dataclass(frozen=True, eq=False)
class LowRankWeights(WeightRoot):
    """A diagonal prior sharpened in r directions: R = diag(prior_std) (I + V (diag(factors) - 1) V^T).

    Outside the span of V the weights keep their prior: nothing is dropped.

    Args:
        prior_std: Prior standard deviations, `(P,)`, in parameter units.
        directions: V, `(P, r)`, with orthonormal columns.
        factors: What is left of the standard deviation along each direction, `(r,)`, in (0, 1].

    Raises:
        ShapeError: If the three do not fit together.
    """

    prior_std: Float[Tensor, " P"]
    directions: Float[Tensor, "P r"]
    _: KW_ONLY
    factors: Float[Tensor, " r"]

    def __post_init__(self) -> None:
        """Check the shapes."""
        if tuple(self.directions.shape) != (len(self.prior_std), len(self.factors)):
            raise ShapeError(
                expected=f"directions ({len(self.prior_std)}, {len(self.factors)})",
                got=str(tuple(self.directions.shape)),
                remedy="one row per parameter, one column per factor",
            )

    @property
    def size(self) -> int:
        """Number of parameters P."""
        return self.prior_std.shape[0]

    @property
    def rank(self) -> int:
        """P again: the prior outside the span counts."""
        return self.prior_std.shape[0]

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

    def tensors(self) -> dict[str, Tensor]:
        """Prior, directions and factors."""
        return {"prior_std": self.prior_std, "directions": self.directions, "factors": self.factors}

    def _sharpened(self, vectors: Tensor) -> Tensor:
        return LowRankUpdate(self.directions.mT, self.factors.to(self.directions)).product(vectors)


@dataclass(frozen=True, eq=False)
class LowRankPlusDiagonalWeights(WeightRoot):
    """Independent weights plus some columns: R = [diag(std) C].

    Args:
        std: Standard deviations of the independent part, `(P,)`, in parameter units; zero is legal.
        columns: C, `(P, r)`, in parameter units.

    Raises:
        ShapeError: If the two do not fit together.
    """

    std: Float[Tensor, " P"]
    columns: Float[Tensor, "P r"]

    def __post_init__(self) -> None:
        """Check the shapes."""
        if self.columns.shape[0] != len(self.std):
            raise ShapeError(
                expected=f"columns of {len(self.std)} parameters",
                got=str(self.columns.shape[0]),
                remedy="one row per parameter",
            )

    @property
    def size(self) -> int:
        """Number of parameters P."""
        return self.std.shape[0]

    @property
    def rank(self) -> int:
        """P and the number of columns."""
        return self.std.shape[0] + self.columns.shape[1]

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.std

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s P"]:
        """Scale entry by entry, and add the columns."""
        own, along = latents.to(self.std).split([self.size, self.columns.shape[1]], dim=1)
        return own * self.std + along @ self.columns.mT

    def transposed_product(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s k"]:
        """Scale entry by entry, and multiply by the columns."""
        given = vectors.to(self.std)
        return torch.cat([given * self.std, given @ self.columns], dim=1)

    def tensors(self) -> dict[str, Tensor]:
        """Standard deviations and columns."""
        return {"std": self.std, "columns": self.columns}
