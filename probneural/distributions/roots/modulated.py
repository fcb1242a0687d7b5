"""Roots whose rows are multiplied by a standard deviation or by factors that vary over samples and points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.distributions.latent import Seeds
from probneural.distributions.roots.base import DenseRoot, DerivedRoot, FeatureRoot, FormedRoot, Root
from probneural.distributions.roots.sums import CorrectedRoot, SideBySideRoot
from probneural.functionals import Functional
from probneural.linear_algebra.conditioning import LowRankUpdate


@dataclass(frozen=True, eq=False)
class ModulatedRoot(Root):
    """d_c(x) = std_c(x) * sum over j of modes_cj(x) zeta_cj, channels independent: nothing of size n * c * p * k is kept.

    The latent dimensions are the c * r numbers zeta, channel by channel.

    Args:
        std: Standard deviations, `(n, c, p)`, in physical units.
        modes: `(c, p, r)`, or `(n, c, p, r)` where inputs have points of their own; dimensionless, with squares that add up to
            1 at every point.
    """

    std: Float[Tensor, "..."]
    modes: Float[Tensor, "..."]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, c r)`."""
        inputs, channels, points = self.std.shape
        return inputs, channels, points, channels * self.modes.shape[-1]

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.std

    @property
    def is_per_sample(self) -> bool:
        """Whether modes differ between samples."""
        return self.modes.ndim == 4

    @property
    def _modes(self) -> Tensor:
        return self.modes.to(self.std)

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws."""
        if self.is_per_sample:
            return torch.einsum("ncpr,scr->sncp", self._modes, self._by_channel(latents)) * self.std
        waves = torch.einsum("cpr,scr->scp", self._modes, self._by_channel(latents))
        return waves[:, None] * self.std

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        formula = "ncpr,ncr->ncp" if self.is_per_sample else "cpr,ncr->ncp"
        return torch.einsum(formula, self._modes, self._by_channel(latents)) * self.std

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        if self.is_per_sample:
            return torch.einsum("ncpr,sncp->scr", self._modes, values.to(self.std) * self.std).flatten(1)
        weighted = (values.to(self.std) * self.std).sum(1)
        return torch.einsum("cpr,scp->scr", self._modes, weighted).flatten(1)

    def pull(self, cotangents: Float[Tensor, "n m c p"]) -> Float[Tensor, "n m k"]:
        """Apply each input's transpose."""
        weighted = cotangents.to(self.std) * self.std[:, None]
        formula = "ncpr,nmcp->nmcr" if self.is_per_sample else "cpr,nmcp->nmcr"
        return torch.einsum(formula, self._modes, weighted).flatten(2)

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares."""
        return self.std.square() * self._modes.square().sum(-1)

    def push(self, functional: Functional) -> Root:
        """Apply the functional to each latent column, function by function and channel by channel."""
        inputs, channels, _ = self.std.shape
        rank = self.modes.shape[-1]
        pushed = self.std.new_zeros(inputs, channels, functional.size, channels, rank)
        for channel in range(channels):
            columns = (self.std[:, channel, :, None] * self._modes[..., channel, :, :]).mT.unflatten(-1, functional.grid.shape)
            pushed[:, channel, :, channel] = functional(columns).mT
        return DenseRoot(pushed.flatten(3))

    def compose(self, transform: LowRankUpdate) -> CorrectedRoot:
        """Keep the map as thin matrices."""
        return CorrectedRoot.composed(self, transform)

    def scale(self, factors: Float[Tensor, " c"]) -> ModulatedRoot:
        """Multiply each channel's standard deviations."""
        return ModulatedRoot(self.std * factors.to(self.std)[:, None], self.modes)

    def select(self, index: slice | Tensor) -> ModulatedRoot:
        """Select inputs."""
        return ModulatedRoot(self.std[index], self.modes[index] if self.is_per_sample else self.modes)

    def dense(self) -> Float[Tensor, "n c p k"]:
        """Form the root: a block per channel."""
        inputs, channels, points, rank = self.shape
        formed = self.std.new_zeros(inputs, channels, points, channels, rank // channels)
        for channel in range(channels):
            formed[:, channel, :, channel] = self.std[:, channel, :, None] * self._modes[..., channel, :, :]
        return formed.flatten(3)

    def _by_channel(self, latents: Tensor) -> Tensor:
        return latents.to(self.std).unflatten(-1, (self.modes.shape[-3], -1))


@dataclass(frozen=True, eq=False)
class DiagonalRoot(Root):
    """Independent values: d_c(x) = std_c(x) zeta_c(x), with a latent number for every channel and point of the grid.

    Args:
        std: Standard deviations, `(n, c, p)`, in physical units.
    """

    std: Float[Tensor, "n c p"]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, c p)`."""
        inputs, channels, points = self.std.shape
        return inputs, channels, points, channels * points

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.std

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s draws."""
        return latents.to(self.std).unflatten(1, self.std.shape[1:])[:, None] * self.std

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        return latents.to(self.std).unflatten(1, self.std.shape[1:]) * self.std

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        return (values.to(self.std) * self.std).sum(1).flatten(1)

    def pull(self, cotangents: Float[Tensor, "n m c p"]) -> Float[Tensor, "n m k"]:
        """Apply each input's transpose."""
        return (cotangents.to(self.std) * self.std[:, None]).flatten(2)

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares."""
        return self.std.square()

    def compose(self, transform: LowRankUpdate) -> CorrectedRoot:
        """Keep the map as thin matrices."""
        return CorrectedRoot.composed(self, transform)

    def scale(self, factors: Float[Tensor, " c"]) -> DiagonalRoot:
        """Multiply each channel's standard deviations."""
        return DiagonalRoot(self.std * factors.to(self.std)[:, None])

    def select(self, index: slice | Tensor) -> DiagonalRoot:
        """Select inputs."""
        return DiagonalRoot(self.std[index])

    def dense(self) -> Float[Tensor, "n c p k"]:
        """Form the root."""
        return torch.diag_embed(self.std.flatten(1)).unflatten(1, self.std.shape[1:])

    def without_white(self) -> tuple[Root | None, Float64[Tensor, "n c p"]]:
        """None, and the variances: all of it is white."""
        return None, self.std.to(torch.float64).square()


def weigh(root: Root, weights: Float[Tensor, "n c p"]) -> Root:
    """The root of g(x) u(x), for u of this root: of the same kind where that costs nothing.

    Args:
        root: `(n, c, p, k)`, in physical units.
        weights: g, `(n, c, p)`, dimensionless.
    """
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
class WeightedRoot(DerivedRoot):
    """diag(g) R, for a root R of any kind.

    Args:
        base: R, `(n, c, p, k)`, in physical units.
        weights: g, `(n, c, p)`, dimensionless.
    """

    weights: Float[Tensor, "n c p"]

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws."""
        return self.base.product(latents) * self.weights

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        return self.base.product_each(latents) * self.weights

    def draw(self, seeds: Seeds, *, each: bool = False) -> Float[Tensor, "..."]:
        """The base's draws, weighted."""
        return self.base.draw(seeds, each=each) * self.weights

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        return self.base.transposed_product(values.to(self.weights) * self.weights)

    def pull(self, cotangents: Float[Tensor, "n m c p"]) -> Float[Tensor, "n m k"]:
        """Apply each input's transpose."""
        return self.base.pull(cotangents.to(self.weights) * self.weights[:, None])

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares."""
        return (self.base.row_norms() * self.weights).square()  # squares of either may not be held where that of the product is

    def compose(self, transform: LowRankUpdate) -> CorrectedRoot:
        """Keep the map as thin matrices."""
        return CorrectedRoot.composed(self, transform)

    def marginal(self, index: int) -> Root:
        """The weighted root of one sample's marginal covariance."""
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
        """The weighted root without its white noise component, and the variances of that component."""
        correlated, white = self.base.without_white()
        return None if correlated is None else weigh(correlated, self.weights), white * self.weights.to(white).square()
