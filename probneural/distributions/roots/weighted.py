"""Roots whose rows are multiplied by factors that vary from function to function and from point to point."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.distributions.latent import Seeds
from probneural.distributions.roots.base import DenseRoot, FeatureRoot, FormedRoot, Root
from probneural.distributions.roots.modulated import DiagonalRoot, ModulatedRoot
from probneural.distributions.roots.sums import CorrectedRoot, SideBySideRoot
from probneural.errors import ShapeError
from probneural.functionals import Functional
from probneural.linear_algebra.conditioning import LowRankUpdate


def weigh(root: Root, weights: Float[Tensor, "n c p"]) -> Root:
    """The root of g(x) u(x), for u of this root: of the same kind where that costs nothing.

    Args:
        root: `(n, c, p, k)`, in physical units.
        weights: g, `(n, c, p)`, dimensionless.

    Raises:
        ShapeError: If there is not one weight for each row.
    """
    if tuple(weights.shape) != root.shape[:3]:
        raise ShapeError(
            expected=f"weights of shape {root.shape[:3]}", got=str(tuple(weights.shape)), remedy="one for each row of the root"
        )
    if isinstance(root, DenseRoot) and not isinstance(root, FormedRoot):
        return DenseRoot(root.matrix * weights.to(root.matrix)[..., None])
    if isinstance(root, FeatureRoot) and root.shape[1] == 1:
        return FeatureRoot(root.features * weights.to(root.features)[:, 0, :, None], root.factor)
    if isinstance(root, ModulatedRoot | DiagonalRoot):
        return type(root)(root.std * weights.to(root.std), *([root.modes] if isinstance(root, ModulatedRoot) else []))
    if isinstance(root, SideBySideRoot):
        return SideBySideRoot(weigh(root.first, weights), weigh(root.second, weights))
    return WeightedRoot(root, weights.to(root.like))


@dataclass(frozen=True, eq=False)
class WeightedRoot(Root):
    """diag(g) R, for a root R of any kind.

    Args:
        base: R, `(n, c, p, k)`, in physical units.
        weights: g, `(n, c, p)`, dimensionless.
    """

    base: Root
    weights: Float[Tensor, "n c p"]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k)`."""
        return self.base.shape

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.base.like

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws."""
        return self.base.product(latents) * self.weights

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        return self.base.product_each(latents) * self.weights

    def latents(self, seeds: Seeds) -> Float[Tensor, "m k"]:
        """The latent vectors of the base."""
        return self.base.latents(seeds)

    def draw(self, seeds: Seeds, *, each: bool = False) -> Float[Tensor, "..."]:
        """The base's draws, weighted."""
        return self.base.draw(seeds, each=each) * self.weights

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        return self.base.transposed_product(values.to(self.weights) * self.weights)

    def pull(self, cotangents: Float[Tensor, "n m c p"]) -> Float[Tensor, "n m k"]:
        """Apply each input's own transpose."""
        return self.base.pull(cotangents.to(self.weights) * self.weights[:, None])

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares."""
        return (self.base.row_norms() * self.weights).square()  # squares of either may not be held where that of the product is

    def push(self, functional: Functional) -> DenseRoot:
        """Pull the functional's weights, times g, back to the latent side, channel by channel."""
        inputs, channels, points, rank = self.shape
        identity = torch.eye(functional.size, dtype=torch.float64, device="cpu")
        matrix = functional.adjoint(identity).flatten(-len(functional.grid.shape)).to(self.weights)
        pushed = []
        for channel in range(channels):
            cotangents = self.weights.new_zeros(inputs, functional.size, channels, points)
            cotangents[:, :, channel] = matrix
            pushed.append(self.pull(cotangents).to(self.weights))
        return DenseRoot(torch.stack(pushed, 1) if pushed else self.weights.new_zeros(inputs, 0, functional.size, rank))

    def compose(self, transform: LowRankUpdate) -> CorrectedRoot:
        """Keep the map as thin matrices."""
        return CorrectedRoot.composed(self, transform)

    def marginal(self, index: int) -> Root:
        """The weighted root of one function's own covariance."""
        return weigh(self.base.marginal(index), self.weights[index : index + 1])

    def scale(self, factors: Float[Tensor, " c"]) -> WeightedRoot:
        """Multiply each channel's rows."""
        return WeightedRoot(self.base.scale(factors), self.weights)

    def select(self, index: slice | Tensor) -> WeightedRoot:
        """Select inputs."""
        return WeightedRoot(self.base.select(index), self.weights[index])

    def dense(self) -> Float[Tensor, "n c p k"]:
        """Form the root."""
        return self.base.dense() * self.weights[..., None]

    def without_white(self) -> tuple[Root | None, Float64[Tensor, "n c p"]]:
        """What is not independent from value to value, weighted, and the variances of what is."""
        correlated, white = self.base.without_white()
        return None if correlated is None else weigh(correlated, self.weights), white * self.weights.to(white).square()
