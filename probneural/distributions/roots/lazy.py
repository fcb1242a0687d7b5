"""Roots of features evaluated in chunks, for features that exceed a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probneural.distributions.latent import Seeds
from probneural.distributions.roots.base import FeatureRoot, Root, check_transform, grid_shape
from probneural.functionals import Functional
from probneural.linear_algebra.conditioning import LowRankUpdate

HELD_ELEMENTS = 2**28
"""Features that one prediction holds: 1 GiB in float32."""
_PART_ELEMENTS = 2**23
"""Features of one part (32 MiB in float32), or of one sample if it has more."""


@dataclass(frozen=True, eq=False)
class LazyFeatureRoot(Root):
    """A [`FeatureRoot`][probneural.distributions.FeatureRoot] with features evaluated in each operation.

    Each operation evaluates the features of a few samples at a time and drops them, so memory does not grow with the number
    of samples. It costs one forward pass of the operator per operation.

    Args:
        evaluate: The features of samples, from their indices `(b,)` to `(b, p, f)`, dimensionless.
        indices: The samples of this root, `(n,)`.
        size: Number of points p and features f.
        factor: `(n, c, f, k)` or `(1, c, f, k)`, in the units of the field; float64.
        example: A tensor of the features' dtype and device.
    """

    evaluate: Callable[[Int64[Tensor, " b"]], Float[Tensor, "b p f"]]
    indices: Int64[Tensor, " n"]
    size: tuple[int, int]
    factor: Float[Tensor, "..."]
    example: Tensor

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k)`."""
        return len(self.indices), self.factor.shape[1], self.size[0], self.factor.shape[3]

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.example

    def parts(self) -> Iterator[FeatureRoot]:
        """Yield roots of chunks of samples with their features; a single empty root if there are no samples."""
        step = max(1, _PART_ELEMENTS // (self.size[0] * self.size[1]))
        for rows in torch.arange(len(self.indices)).split(step):
            features = self.evaluate(self.indices[rows]) if len(rows) else self.example.new_zeros(0, *self.size)
            yield FeatureRoot(features, self.factor if self.factor.shape[0] == 1 else self.factor[rows])

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws."""
        return torch.cat([root.product(latents) for root in self.parts()], dim=1)

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        return self._joined(lambda root, rows: root.product_each(latents[rows]))

    def draw(self, seeds: Seeds, *, each: bool = False) -> Float[Tensor, "..."]:
        """Features times the drawn weights."""
        if not each:
            return torch.cat([root.draw(seeds) for root in self.parts()], dim=1)
        return self._joined(lambda root, rows: root.draw(replace(seeds, seeds=seeds.seeds[rows]), each=True))

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        total, start = torch.zeros(len(values), self.shape[3], dtype=self.factor.dtype, device=self.factor.device), 0
        for root in self.parts():
            total = total + root.transposed_product(values[:, start : start + root.shape[0]])
            start += root.shape[0]
        return total

    def pull(self, cotangents: Float[Tensor, "n m c p"]) -> Float[Tensor, "n m k"]:
        """Apply each input's transpose, in the factor's dtype from the features on."""
        return self._joined(lambda root, rows: root.pull(cotangents[rows]))

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares."""
        return self._joined(lambda root, rows: root.row_squares())

    def push(self, functional: Functional) -> LazyFeatureRoot:
        """Apply the functional to each feature, once if the results fit the memory budget."""
        shape, evaluate = grid_shape(functional, self.shape[2]), self.evaluate

        def pushed(indices: Int64[Tensor, " b"]) -> Float[Tensor, "b m f"]:
            return functional(evaluate(indices).mT.unflatten(-1, shape)).mT

        size = (functional.size, self.size[1])
        if len(self.indices) * size[0] * size[1] > HELD_ELEMENTS:
            return replace(self, evaluate=pushed, size=size)
        features = self._joined(lambda root, rows: functional(root.features.mT.unflatten(-1, shape)).mT)
        return replace(self, evaluate=lambda indices: features[indices], indices=torch.arange(len(self.indices)), size=size)

    def compose(self, transform: LowRankUpdate) -> LazyFeatureRoot:
        """Multiply the factor on the latent side."""
        check_transform(transform, self.shape)
        factor = self.factor.expand(self.shape[0], -1, -1, -1) if transform.batch_shape else self.factor
        return replace(self, factor=transform.product(factor))

    def scale(self, factors: Float[Tensor, " c"]) -> LazyFeatureRoot:
        """Multiply each channel's rows of the factor."""
        return replace(self, factor=self.factor * factors.to(self.factor)[:, None, None])

    def select(self, index: slice | Tensor) -> LazyFeatureRoot:
        """Select inputs."""
        indices = self.indices[index.to(self.indices.device) if isinstance(index, Tensor) else index]
        return replace(self, indices=indices, factor=self.factor if self.factor.shape[0] == 1 else self.factor[index])

    def dense(self) -> Float[Tensor, "n c p k"]:
        """Form the root."""
        return self._joined(lambda root, rows: root.dense())

    def _joined(self, operation: Callable[[FeatureRoot, slice], Tensor]) -> Tensor:
        """The results of an operation on each part and its rows, joined."""
        results, start = [], 0
        for root in self.parts():
            results.append(operation(root, slice(start, start + root.shape[0])))
            start += root.shape[0]
        return torch.cat(results)
