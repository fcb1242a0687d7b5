"""The root of fields that are sums of a few modes with independent random coordinates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.distributions.linear_algebra import Shrink
from probneural.distributions.roots import Root
from probneural.errors import GridError, ShapeError
from probneural.functionals import Functional

_CHUNK_ELEMENTS = 2**24
"""Entries of a dense root held at once (128 MiB)."""


class Coordinates(ABC):
    """A linear map from a latent vector in R^k to f coordinates of each of n functions; abstract."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """`(n, f, k)`."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of products."""

    @abstractmethod
    def product(self, latents: Float64[Tensor, "s k"]) -> Float64[Tensor, "s n f"]:
        """Map s latent vectors."""

    @abstractmethod
    def product_each(self, latents: Float64[Tensor, "n k"]) -> Float64[Tensor, "n f"]:
        """Map one latent vector per function."""

    @abstractmethod
    def transposed_product(self, values: Float64[Tensor, "s n f"]) -> Float64[Tensor, "s k"]:
        """Apply the transpose of the joint map."""

    @abstractmethod
    def pull(self, values: Float64[Tensor, "n m f"]) -> Float64[Tensor, "n m k"]:
        """Apply each function's own transpose."""

    @abstractmethod
    def row_squares(self, modes: Float64[Tensor, "f c p"]) -> Float64[Tensor, "n c p"]:
        """Variances of the fields that have these coordinates."""

    @abstractmethod
    def select(self, index: slice | Tensor) -> Coordinates:
        """The map for some of the functions, from the same latent."""

    @abstractmethod
    def compose(self, shrink: Shrink) -> Coordinates:
        """The map times one on the latent side, of this latent dimension: one for all functions, or one each."""

    @abstractmethod
    def dense(self) -> Float64[Tensor, "n f k"]:
        """Form the map."""

    def alone(self, index: int) -> Coordinates:
        """A map to the coordinates of one function with the right covariance, from a latent of its own if that is smaller."""
        return self.select(slice(index, index + 1))


@dataclass(frozen=True, eq=False)
class DenseCoordinates(Coordinates):
    """A map held as a tensor.

    Args:
        matrix: `(n, f, k)`.
    """

    matrix: Float64[Tensor, "n f k"]

    @property
    def shape(self) -> tuple[int, int, int]:
        """`(n, f, k)`."""
        functions, coordinates, rank = self.matrix.shape
        return functions, coordinates, rank

    @property
    def device(self) -> torch.device:
        """The matrix's device."""
        return self.matrix.device

    def product(self, latents: Float64[Tensor, "s k"]) -> Float64[Tensor, "s n f"]:
        """Map s latent vectors."""
        return torch.einsum("nfk,sk->snf", self.matrix, latents)

    def product_each(self, latents: Float64[Tensor, "n k"]) -> Float64[Tensor, "n f"]:
        """Map one latent vector per function."""
        return torch.einsum("nfk,nk->nf", self.matrix, latents)

    def transposed_product(self, values: Float64[Tensor, "s n f"]) -> Float64[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        return torch.einsum("nfk,snf->sk", self.matrix, values)

    def pull(self, values: Float64[Tensor, "n m f"]) -> Float64[Tensor, "n m k"]:
        """Apply each function's own transpose."""
        return values @ self.matrix

    def row_squares(self, modes: Float64[Tensor, "f c p"]) -> Float64[Tensor, "n c p"]:
        """Variances of the fields, a few functions at a time."""
        step = max(1, _CHUNK_ELEMENTS // max(1, modes[0].numel() * self.matrix.shape[2]))
        parts = [torch.einsum("fcp,nfk->ncpk", modes, part).square().sum(-1) for part in self.matrix.split(step)]
        return torch.cat(parts)

    def select(self, index: slice | Tensor) -> DenseCoordinates:
        """Select functions."""
        return DenseCoordinates(self.matrix[index])

    def compose(self, shrink: Shrink) -> DenseCoordinates:
        """Multiply on the latent side."""
        return DenseCoordinates(shrink.product(self.matrix))

    def dense(self) -> Float64[Tensor, "n f k"]:
        """The matrix itself."""
        return self.matrix


@dataclass(frozen=True, eq=False)
class BlockCoordinates(Coordinates):
    """Coordinates that are independent of each other, and correlated among N functions as their group says.

    Coordinate k of the functions is deviation_k * F_g(k) xi_k, with xi_k of N numbers of its own: k = f * N latent dimensions.
    The factors F are formed when a joint product is first asked for; variances need none.

    Args:
        deviations: `(f,)`, in the units of the fields divided by those of the modes.
        sizes: How many consecutive coordinates each group has.
        variances: Row squares of each group's factor, `(g, n)`.
        factors: Gives the factors, `(g, N, N)`.
        joint: N.
        rows: Which of the N functions these are; all by default.
    """

    deviations: Float64[Tensor, " f"]
    sizes: tuple[int, ...]
    variances: Float64[Tensor, "g n"]
    factors: Callable[[], Float64[Tensor, "g N N"]]
    joint: int
    rows: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """`(n, f, k)`."""
        return self.variances.shape[1], len(self.deviations), len(self.deviations) * self.joint

    @property
    def device(self) -> torch.device:
        """The deviations' device."""
        return self.deviations.device

    @cached_property
    def _blocks(self) -> Float64[Tensor, "g n N"]:
        factors = self.factors()
        return factors if self.rows is None else factors[:, self.rows]

    def product(self, latents: Float64[Tensor, "s k"]) -> Float64[Tensor, "s n f"]:
        """Map s latent vectors."""
        parts = latents.unflatten(1, (-1, self.joint)).split(self.sizes, dim=1)
        moved = [torch.einsum("nm,sfm->snf", block, part) for block, part in zip(self._blocks, parts, strict=True)]
        return torch.cat(moved, dim=2) * self.deviations

    def product_each(self, latents: Float64[Tensor, "n k"]) -> Float64[Tensor, "n f"]:
        """Map one latent vector per function."""
        parts = latents.unflatten(1, (-1, self.joint)).split(self.sizes, dim=1)
        moved = [torch.einsum("nm,nfm->nf", block, part) for block, part in zip(self._blocks, parts, strict=True)]
        return torch.cat(moved, dim=1) * self.deviations

    def transposed_product(self, values: Float64[Tensor, "s n f"]) -> Float64[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        parts = (values * self.deviations).split(self.sizes, dim=2)
        moved = [torch.einsum("nm,snf->sfm", block, part) for block, part in zip(self._blocks, parts, strict=True)]
        return torch.cat(moved, dim=1).flatten(1)

    def pull(self, values: Float64[Tensor, "n m f"]) -> Float64[Tensor, "n m k"]:
        """Apply each function's own transpose."""
        parts = (values * self.deviations).split(self.sizes, dim=2)
        moved = [torch.einsum("nN,nmf->nmfN", block, part) for block, part in zip(self._blocks, parts, strict=True)]
        return torch.cat(moved, dim=2).flatten(2)

    def row_squares(self, modes: Float64[Tensor, "f c p"]) -> Float64[Tensor, "n c p"]:
        """Variances of the fields."""
        parts = (modes * self.deviations[:, None, None]).square().split(self.sizes)
        by_group = torch.stack([part.sum(0) for part in parts])
        return torch.einsum("gn,gcp->ncp", self.variances, by_group)

    def select(self, index: slice | Tensor) -> BlockCoordinates:
        """Select functions; the latent stays that of all."""
        everyone = torch.arange(self.joint, device=self.device) if self.rows is None else self.rows
        chosen = everyone[index.to(self.device) if isinstance(index, Tensor) else index]
        return replace(self, variances=self.variances[:, index], rows=chosen)

    def compose(self, shrink: Shrink) -> ShrunkCoordinates:
        """Remember the map."""
        return ShrunkCoordinates(self, (shrink,))

    def own_deviations(self, index: int) -> Float64[Tensor, " f"]:
        """Standard deviations of one function's coordinates, which are independent of each other."""
        return self.deviations * self.variances[self._groups, index].sqrt()

    def alone(self, index: int) -> DenseCoordinates:
        """The coordinates of one function, which are independent: f latent dimensions, and no factor."""
        return DenseCoordinates(torch.diag_embed(self.own_deviations(index))[None])

    @property
    def _groups(self) -> Tensor:
        return torch.repeat_interleave(torch.arange(len(self.sizes)), torch.tensor(self.sizes)).to(self.device)

    def dense(self) -> Float64[Tensor, "n f k"]:
        """Form the map: a block per coordinate."""
        functions, coordinates, rank = self.shape
        found = self.deviations.new_zeros(functions, coordinates, coordinates, self.joint)
        blocks = self._blocks[self._groups] * self.deviations[:, None, None]
        row, number = torch.arange(functions, device=self.device)[:, None], torch.arange(coordinates, device=self.device)
        return found.index_put((row, number, number), blocks.movedim(0, 1)).reshape(functions, coordinates, rank)


@dataclass(frozen=True, eq=False)
class ShrunkCoordinates(Coordinates):
    """Independent coordinates after observations, B S1 S2 ..., kept in the numbers that B and the observations take.

    B maps k = f * N latent dimensions to f coordinates, so B S has n * f * f * N numbers where B has n * N: it is not formed.
    What concerns one function alone is computed in a basis of f + r dimensions: the f rows of its B are orthogonal, and the r
    directions of its observations add what sticks out of them.

    Args:
        blocks: B.
        shrinks: Maps of the latent side, in the order in which they are composed.
    """

    blocks: BlockCoordinates
    shrinks: tuple[Shrink, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """`(n, f, k)`."""
        return self.blocks.shape

    @property
    def device(self) -> torch.device:
        """The blocks' device."""
        return self.blocks.device

    def product(self, latents: Float64[Tensor, "s k"]) -> Float64[Tensor, "s n f"]:
        """Map s latent vectors, by one function after another where each has a map of its own."""
        if any(shrink.batch_shape for shrink in self.shrinks):
            return torch.cat([one.product(latents) for one in self._singles()], dim=1)
        return self.blocks.product(self._shrunk(latents))

    def product_each(self, latents: Float64[Tensor, "n k"]) -> Float64[Tensor, "n f"]:
        """Map one latent vector per function."""
        return self.blocks.product_each(self._shrunk(latents))

    def transposed_product(self, values: Float64[Tensor, "s n f"]) -> Float64[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        if any(shrink.batch_shape for shrink in self.shrinks):
            parts = (one.transposed_product(values[:, [index]]) for index, one in enumerate(self._singles()))
            return sum(parts, start=values.new_zeros(len(values), self.shape[2]))
        latents = self.blocks.transposed_product(values)
        for shrink in self.shrinks:
            latents = shrink.product(latents)
        return latents

    def pull(self, values: Float64[Tensor, "n m f"]) -> Float64[Tensor, "n m k"]:
        """Apply each function's own transpose."""
        latents = self.blocks.pull(values)
        for shrink in self.shrinks:
            latents = shrink.product(latents)
        return latents

    def row_squares(self, modes: Float64[Tensor, "f c p"]) -> Float64[Tensor, "n c p"]:
        """Variances of the fields, function by function."""
        return torch.cat([self.alone(index).row_squares(modes) for index in range(self.shape[0])])

    def select(self, index: slice | Tensor) -> ShrunkCoordinates:
        """Select functions, and what was learnt about each of them."""
        shrinks = tuple(shrink[index] if shrink.batch_shape else shrink for shrink in self.shrinks)
        return ShrunkCoordinates(self.blocks.select(index), shrinks)

    def compose(self, shrink: Shrink) -> ShrunkCoordinates:
        """Remember the map."""
        return ShrunkCoordinates(self.blocks, (*self.shrinks, shrink))

    def alone(self, index: int) -> DenseCoordinates:
        """One function's coordinates, with a latent dimension for each of them and each observation."""
        one = self._single(index)
        deviations = self.blocks.own_deviations(index)
        inverse = torch.where(deviations > 0, 1.0 / deviations, 0.0)
        own = [shrink.to(deviations) for shrink in one.shrinks]
        directions = torch.cat([shrink.directions for shrink in own])
        along = one.blocks.product(directions)[:, 0] * inverse  # in the orthonormal rows of B; the rest sticks out of them
        rest = directions - one.blocks.pull((along * inverse)[None])[0]
        _, outside = torch.linalg.qr(rest.mT)
        basis = torch.cat([along, outside.mT], dim=1)  # the directions again, in f + r dimensions
        start = torch.nn.functional.pad(torch.diag_embed(deviations), (0, basis.shape[1] - len(deviations)))
        parts = basis.split([len(shrink.factors) for shrink in own])
        for part, shrink in zip(parts, own, strict=True):
            start = Shrink(part, shrink.factors).product(start)
        return DenseCoordinates(start[None])

    def dense(self) -> Float64[Tensor, "n f k"]:
        """Form the map."""
        formed = self.blocks.dense()
        for shrink in self.shrinks:
            formed = shrink.product(formed)
        return formed

    def _shrunk(self, latents: Tensor) -> Tensor:
        for shrink in reversed(self.shrinks):
            latents = shrink.product(latents)
        return latents

    def _single(self, index: int) -> ShrunkCoordinates:
        """One function, whose own maps then serve all."""
        shrinks = tuple(shrink[index] if shrink.batch_shape else shrink for shrink in self.shrinks)
        return ShrunkCoordinates(self.blocks.select(slice(index, index + 1)), shrinks)

    def _singles(self) -> Iterator[ShrunkCoordinates]:
        return (self._single(index) for index in range(self.shape[0]))


@dataclass(frozen=True, eq=False)
class ComponentRoot(Root):
    """u_c(x) = sum over k of z_k modes_kc(x), with Gaussian coordinates z: nothing of size n * c * p * k is kept.

    Args:
        modes: `(f, c, p)`, in the units of the fields divided by those of the coordinates.
        coordinates: The map from the latent to z.

    Raises:
        ShapeError: If the numbers of modes and coordinates differ.
    """

    modes: Float64[Tensor, "f c p"]
    coordinates: Coordinates

    def __post_init__(self) -> None:
        """Check that modes and coordinates fit together."""
        if self.modes.shape[0] != self.coordinates.shape[1]:
            raise ShapeError(
                expected=f"a mode for each of {self.coordinates.shape[1]} coordinates",
                got=str(self.modes.shape[0]),
                remedy="the first axis of the modes counts them",
            )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k)`."""
        functions, _, rank = self.coordinates.shape
        return functions, self.modes.shape[1], self.modes.shape[2], rank

    @property
    def dtype(self) -> torch.dtype:
        """The modes' dtype."""
        return self.modes.dtype

    @property
    def device(self) -> torch.device:
        """The modes' device."""
        return self.modes.device

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws."""
        return torch.einsum("snf,fcp->sncp", self.coordinates.product(latents.to(self.modes)), self.modes)

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        return torch.einsum("nf,fcp->ncp", self.coordinates.product_each(latents.to(self.modes)), self.modes)

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        return self.coordinates.transposed_product(torch.einsum("sncp,fcp->snf", values.to(self.modes), self.modes))

    def pull(self, cotangents: Float[Tensor, "n m c p"]) -> Float[Tensor, "n m k"]:
        """Apply each input's own transpose."""
        return self.coordinates.pull(torch.einsum("nmcp,fcp->nmf", cotangents.to(self.modes), self.modes))

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares."""
        return self.coordinates.row_squares(self.modes)

    def push(self, functional: Functional) -> Root:
        """Apply the functional to each mode."""
        if functional.grid.size != self.modes.shape[2]:
            raise GridError(
                expected=f"a functional on the field's {self.modes.shape[2]} points",
                got=f"one on {functional.grid!r}",
                remedy="build the functional from the distribution's grid",
            )
        return ComponentRoot(functional(self.modes.unflatten(-1, functional.grid.shape)), self.coordinates)

    def compose(self, shrink: Shrink) -> Root:
        """Multiply the coordinates on the latent side."""
        if shrink.rank != self.shape[3] or tuple(shrink.batch_shape) not in ((), (self.shape[0],)):
            raise ShapeError(
                expected=f"directions (r, {self.shape[3]}) or ({self.shape[0]}, r, {self.shape[3]})",
                got=str(tuple(shrink.directions.shape)),
                remedy="one map for all inputs, or one per input",
            )
        return ComponentRoot(self.modes, self.coordinates.compose(shrink))

    def scale(self, factors: Float[Tensor, " c"]) -> Root:
        """Multiply each channel of the modes."""
        return ComponentRoot(self.modes * factors.to(self.modes)[:, None], self.coordinates)

    def select(self, index: slice | Tensor) -> Root:
        """Select inputs."""
        return ComponentRoot(self.modes, self.coordinates.select(index))

    def alone(self, index: int) -> Root:
        """One function, with as few columns as its coordinates need."""
        return ComponentRoot(self.modes, self.coordinates.alone(index))

    def dense(self) -> Float[Tensor, "n c p k"]:
        """Form the root."""
        return torch.einsum("fcp,nfk->ncpk", self.modes, self.coordinates.dense())

    def gram(self) -> Float64[Tensor, "n cp cp"]:
        """The covariance of each function's values, by way of that of its coordinates."""
        modes = self.modes.flatten(1)
        maps = (self.coordinates.alone(index).dense()[0] for index in range(self.shape[0]))
        roots = [own.mT @ modes for own in maps]
        return torch.stack([root.mT @ root for root in roots]) if roots else modes.new_zeros(0, *2 * modes.shape[1:])
