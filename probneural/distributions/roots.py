"""Lazy roots: linear maps from a latent vector xi in R^k to fields, never formed as covariances.

A root stands for a tensor `(n, c, p, k)`: n inputs, c channels, p points, k latent dimensions. The joint over inputs is the
same thing viewed as `(n * c * p, k)`. Everything a Gaussian field does needs the few operations of
[`Root`][probneural.distributions.roots.Root].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.errors import GridError, ShapeError
from probneural.functionals import Functional

_CHUNK_ELEMENTS = 2**24
"""Entries of a dense root that row sums of squares may hold at once (64 MiB in float32)."""


class Root(ABC):
    """The operations a Gaussian field asks of its root; abstract."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k)`."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Dtype of products."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of products."""

    @abstractmethod
    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws: every input sees the same vector."""

    @abstractmethod
    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""

    @abstractmethod
    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""

    @abstractmethod
    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares: the marginal variances, by a sum that cannot become negative."""

    @abstractmethod
    def push(self, functional: Functional) -> Root:
        """Return the root of the functional's values, `(n, c, m, k)`."""

    @abstractmethod
    def compose(self, matrix: Float[Tensor, "..."]) -> Root:
        """Return this root times a matrix on the latent side, `(k, k')` for all inputs or `(n, k, k')` one each."""

    @abstractmethod
    def scale(self, factors: Float[Tensor, " c"]) -> Root:
        """Return the root with each channel's rows multiplied by a factor."""

    @abstractmethod
    def select(self, index: slice | Tensor) -> Root:
        """Return the root of some of the inputs."""

    @abstractmethod
    def dense(self) -> Float[Tensor, "n c p k"]:
        """Form the root."""


@dataclass(frozen=True, eq=False)
class DenseRoot(Root):
    """A root held as a tensor.

    Args:
        matrix: `(n, c, p, k)`, in the units of the field.

    Raises:
        ShapeError: If the tensor does not have four axes.
    """

    matrix: Float[Tensor, "..."]

    def __post_init__(self) -> None:
        """Check the number of axes."""
        if self.matrix.ndim != 4:
            raise ShapeError(
                expected="a root of shape (n, c, p, k)", got=str(tuple(self.matrix.shape)), remedy="add the missing axes"
            )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k)`."""
        inputs, channels, points, rank = self.matrix.shape
        return inputs, channels, points, rank

    @property
    def dtype(self) -> torch.dtype:
        """The matrix's dtype."""
        return self.matrix.dtype

    @property
    def device(self) -> torch.device:
        """The matrix's device."""
        return self.matrix.device

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws."""
        return torch.einsum("ncpk,sk->sncp", self.matrix, latents.to(self.matrix))

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        return torch.einsum("ncpk,nk->ncp", self.matrix, latents.to(self.matrix))

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        return torch.einsum("ncpk,sncp->sk", self.matrix, values.to(self.matrix))

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares."""
        return self.matrix.square().sum(-1)

    def push(self, functional: Functional) -> Root:
        """Apply the functional to each latent column."""
        columns = self.matrix.movedim(-1, 1).unflatten(-1, _grid_shape(functional, self.shape[2]))
        return DenseRoot(functional(columns).movedim(1, -1))

    def compose(self, matrix: Float[Tensor, "..."]) -> Root:
        """Multiply on the latent side."""
        return DenseRoot(self.matrix @ _per_input(matrix).to(self.matrix))

    def scale(self, factors: Float[Tensor, " c"]) -> Root:
        """Multiply each channel's rows."""
        return DenseRoot(self.matrix * factors.to(self.matrix)[:, None, None])

    def select(self, index: slice | Tensor) -> Root:
        """Select inputs."""
        return DenseRoot(self.matrix[index])

    def dense(self) -> Float[Tensor, "n c p k"]:
        """The matrix itself."""
        return self.matrix


@dataclass(frozen=True, eq=False)
class FeatureRoot(Root):
    """The root of fields u_c(x) = sum over j of phi_j(x) w_cj whose weights w = factor xi are Gaussian.

    The features are shared by the channels, so nothing of size c * p * k is kept; push-forwards act on the features and
    conditioning acts on the factor.

    Args:
        features: phi, `(n, p, f)`, dimensionless.
        factor: `(n, c, f, k)` or `(1, c, f, k)`, in the units of the field; kept in float64.

    Raises:
        ShapeError: If the two do not fit together.
    """

    features: Float[Tensor, "n p f"]
    factor: Float[Tensor, "..."]

    def __post_init__(self) -> None:
        """Check that features and factor fit together."""
        features, factor = tuple(self.features.shape), tuple(self.factor.shape)
        fits = len(features) == 3 and len(factor) == 4 and factor[2] == features[2] and factor[0] in (1, features[0])
        if not fits:
            raise ShapeError(
                expected="features (n, p, f) and a factor (n or 1, c, f, k)",
                got=f"{features} and {factor}",
                remedy="the number of features must agree",
            )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k)`."""
        return self.features.shape[0], self.factor.shape[1], self.features.shape[1], self.factor.shape[3]

    @property
    def dtype(self) -> torch.dtype:
        """The features' dtype."""
        return self.features.dtype

    @property
    def device(self) -> torch.device:
        """The features' device."""
        return self.features.device

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws."""
        weights = torch.einsum("ncfk,sk->sncf", self.factor, latents.to(self.factor))
        return torch.einsum("npf,sncf->sncp", self.features, weights.to(self.features))

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        weights = (self.factor @ latents.to(self.factor)[:, None, :, None])[..., 0]
        return torch.einsum("npf,ncf->ncp", self.features, weights.to(self.features))

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        moments = torch.einsum("npf,sncp->sncf", self.features, values.to(self.features)).to(self.factor)
        return torch.einsum("ncfk,sncf->sk", self.factor.expand(self.shape[0], -1, -1, -1), moments)

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares, formed for a few inputs at a time."""
        inputs, channels, points, rank = self.shape
        step = max(1, _CHUNK_ELEMENTS // max(1, channels * points * rank))
        pieces = [self.select(slice(start, start + step)).dense().square().sum(-1) for start in range(0, inputs, step)]
        return torch.cat(pieces) if pieces else self.features.new_zeros(0, channels, points)

    def push(self, functional: Functional) -> Root:
        """Apply the functional to each feature."""
        columns = self.features.mT.unflatten(-1, _grid_shape(functional, self.shape[2]))
        return FeatureRoot(functional(columns).mT, self.factor)

    def compose(self, matrix: Float[Tensor, "..."]) -> Root:
        """Multiply the factor on the latent side."""
        return FeatureRoot(self.features, self.factor @ _per_input(matrix).to(self.factor))

    def scale(self, factors: Float[Tensor, " c"]) -> Root:
        """Multiply each channel's rows of the factor."""
        return FeatureRoot(self.features, self.factor * factors.to(self.factor)[:, None, None])

    def select(self, index: slice | Tensor) -> Root:
        """Select inputs."""
        factor = self.factor if self.factor.shape[0] == 1 else self.factor[index]
        return FeatureRoot(self.features[index], factor)

    def dense(self) -> Float[Tensor, "n c p k"]:
        """Form the root."""
        return self.features[:, None] @ self.factor.to(self.features)


def _per_input(matrix: Tensor) -> Tensor:
    """Insert the channel axis of a matrix given once `(k, k')` or per input `(n, k, k')`."""
    if matrix.ndim not in (2, 3):
        raise ShapeError(
            expected="a matrix (k, k') or (n, k, k')", got=str(tuple(matrix.shape)), remedy="one matrix, or one per input"
        )
    return matrix if matrix.ndim == 2 else matrix[:, None]


def _grid_shape(functional: Functional, points: int) -> Sequence[int]:
    if functional.grid.size != points:
        raise GridError(
            expected=f"a functional on the field's {points} points",
            got=f"one on {functional.grid!r}",
            remedy="build the functional from the distribution's grid",
        )
    return functional.grid.shape
