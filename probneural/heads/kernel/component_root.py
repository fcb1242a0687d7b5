"""The root of fields that are sums of a few modes with independent random coordinates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.distributions.latent import Seeds
from probneural.distributions.roots.base import DenseRoot, DerivedRoot, Root, check_transform, grid_shape
from probneural.functionals import Functional
from probneural.linear_algebra.conditioning import LowRankUpdate, UpdateSequence
from probneural.linear_algebra.principal_components import narrowed


@dataclass(frozen=True, eq=False)
class BlockCoordinates(Root):
    """Coordinates that are independent of each other, and correlated among N functions as their group says.

    Coordinate k of the functions is deviation_k * F_g(k) xi_k, with xi_k of N numbers of its own: k = f * N latent dimensions.
    The factors F are formed when a joint product is first asked for; variances need none.

    Args:
        std: `(f,)`, in the units of the fields divided by those of the modes.
        sizes: How many consecutive coordinates each group has.
        variances: Gives the row squares of each group's factor, `(g, M)`.
        factors: Gives the factors, `(g, N, N)`, lower triangular; or `(g, M, N)` of M functions in separate batches.
        joint: N.
        rows: Indices of these functions among the M or N.
        paths: Gives F xi of a seed, `(m, f)`, at m functions by their indices: equal in all calls.
    """

    std: Float64[Tensor, " f"]
    sizes: tuple[int, ...]
    variances: Callable[[], Float64[Tensor, "g M"]]
    factors: Callable[[], Float64[Tensor, "g M N"]]
    joint: int
    rows: Int64[Tensor, " n"]
    paths: Callable[[int, Int64[Tensor, " m"]], Float64[Tensor, "m f"]]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, 1, f, k)`."""
        return len(self.rows), 1, len(self.std), len(self.std) * self.joint

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.std

    @cached_property
    def _blocks(self) -> Float64[Tensor, "g n N"]:
        return self.factors()[:, self.rows]

    @cached_property
    def _row_squares(self) -> Float64[Tensor, "g n"]:
        return self.variances()[:, self.rows]

    def latents(self, seeds: Seeds) -> Float64[Tensor, "m k"]:
        """Xi of seeds, from F xi = path values at all N functions."""
        everywhere = torch.arange(self.joint, device=self.device)
        values = {seed: self.paths(seed, everywhere).split(self.sizes, dim=1) for seed in dict.fromkeys(seeds.seeds)}
        factors = self.factors()
        diagonal = torch.where(factors.diagonal(dim1=1, dim2=2) > 0, 0.0, 1.0)  # a certain value has no randomness
        factors = factors + torch.diag_embed(diagonal.to(factors))
        solved = {
            seed: torch.cat(
                [torch.linalg.solve_triangular(one, part, upper=False) for one, part in zip(factors, parts, strict=True)], dim=1
            ).mT.flatten()
            for seed, parts in values.items()
        }
        return torch.stack([solved[seed] for seed in seeds.seeds])

    def draw(self, seeds: Seeds, *, each: bool = False) -> Float[Tensor, "..."]:
        """Path values at these functions, equal in all calls of a predictor: `(s, n, 1, f)`, or `(n, 1, f)`."""
        if not each:
            return (torch.stack([self.paths(seed, self.rows) for seed in seeds.seeds]) * self.std)[:, :, None]
        values = torch.zeros(len(self.rows), len(self.std), dtype=self.dtype, device=self.device)
        for seed, rows in seeds.rows().items():
            index = torch.tensor(rows, device=self.device)
            values = values.index_copy(0, index, self.paths(seed, self.rows[index]))
        return (values * self.std)[:, None]

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n 1 f"]:
        """Map s latent vectors."""
        parts = latents.to(self.std).unflatten(1, (-1, self.joint)).split(self.sizes, dim=1)
        moved = [torch.einsum("nm,sfm->snf", block, part) for block, part in zip(self._blocks, parts, strict=True)]
        return (torch.cat(moved, dim=2) * self.std)[:, :, None]

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n 1 f"]:
        """Map one latent vector per function."""
        parts = latents.to(self.std).unflatten(1, (-1, self.joint)).split(self.sizes, dim=1)
        moved = [torch.einsum("nm,nfm->nf", block, part) for block, part in zip(self._blocks, parts, strict=True)]
        return (torch.cat(moved, dim=1) * self.std)[:, None]

    def transposed_product(self, values: Float[Tensor, "s n 1 f"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        parts = (values[:, :, 0].to(self.std) * self.std).split(self.sizes, dim=2)
        moved = [torch.einsum("nm,snf->sfm", block, part) for block, part in zip(self._blocks, parts, strict=True)]
        return torch.cat(moved, dim=1).flatten(1)

    def pull(self, cotangents: Float[Tensor, "n m 1 f"]) -> Float[Tensor, "n m k"]:
        """Apply each function's own transpose."""
        parts = (cotangents[:, :, 0].to(self.std) * self.std).split(self.sizes, dim=2)
        moved = [torch.einsum("nN,nmf->nmfN", block, part) for block, part in zip(self._blocks, parts, strict=True)]
        return torch.cat(moved, dim=2).flatten(2)

    def row_squares(self) -> Float64[Tensor, "n 1 f"]:
        """Variances of the coordinates."""
        return (self._row_squares[self._groups] * self.std.square()[:, None]).mT[:, None]

    def field_variances(self, modes: Float64[Tensor, "f c p"]) -> Float64[Tensor, "n c p"]:
        """Variances of the fields that have these coordinates, which are independent of each other."""
        parts = (modes * self.std[:, None, None]).square().split(self.sizes)
        by_group = torch.stack([part.sum(0) for part in parts])
        return torch.einsum("gn,gcp->ncp", self._row_squares, by_group)

    def dense_fields(self, modes: Float64[Tensor, "f c p"]) -> Float64[Tensor, "n c p k"]:
        """Form the root of the fields that have these coordinates, without forming that of the coordinates."""
        parts = (modes * self.std[:, None, None]).split(self.sizes)
        formed = [torch.einsum("fcp,nN->ncpfN", part, block) for part, block in zip(parts, self._blocks, strict=True)]
        return torch.cat(formed, dim=3).flatten(3)

    def scale(self, factors: Float[Tensor, " 1"]) -> BlockCoordinates:
        """Multiply all coordinates."""
        return replace(self, std=self.std * factors.to(self.std))

    def select(self, index: slice | Tensor) -> BlockCoordinates:
        """Select functions; the latent stays that of all."""
        return replace(self, rows=self.rows[index.to(self.device) if isinstance(index, Tensor) else index])

    def compose(self, transform: LowRankUpdate) -> UpdatedCoordinates:
        """Remember the map."""
        return UpdatedCoordinates(self, UpdateSequence((transform,)))

    def std_of(self, index: int) -> Float64[Tensor, " f"]:
        """Standard deviations of one function's coordinates, which are independent of each other."""
        return self.std * self._row_squares[self._groups, index].sqrt()

    def marginal(self, index: int) -> DenseRoot:
        """The coordinates of one function, which are independent: f latent dimensions, and no factor."""
        return DenseRoot(torch.diag_embed(self.std_of(index))[None, None])

    def coordinates_of(self, index: int, latents: Float64[Tensor, "s k"]) -> Float64[Tensor, "s f"]:
        """Map s latent vectors to one function's coordinates, without copies of them."""
        parts = latents.unflatten(1, (-1, self.joint)).split(self.sizes, dim=1)
        return torch.cat([part @ block[index] for part, block in zip(parts, self._blocks, strict=True)], dim=1) * self.std

    @property
    def _groups(self) -> Tensor:
        return torch.repeat_interleave(torch.arange(len(self.sizes)), torch.tensor(self.sizes)).to(self.device)

    def dense(self) -> Float64[Tensor, "n 1 f k"]:
        """Form the map: a block per coordinate."""
        functions, _, coordinates, rank = self.shape
        formed = self.std.new_zeros(functions, coordinates, coordinates, self.joint)
        blocks = self._blocks[self._groups] * self.std[:, None, None]
        row, number = torch.arange(functions, device=self.device)[:, None], torch.arange(coordinates, device=self.device)
        return formed.index_put((row, number, number), blocks.movedim(0, 1)).reshape(functions, 1, coordinates, rank)


@dataclass(frozen=True, eq=False)
class UpdatedCoordinates(DerivedRoot):
    """Independent coordinates after observations, B S1 S2 ..., kept in the numbers that B and the observations take.

    B maps k = f * N latent dimensions to f coordinates, so B S has n * f * f * N numbers where B has n * N: it is not formed.
    What concerns one function alone is computed in a basis of few dimensions: the f rows of its B, which are orthogonal, and
    what sticks out of them, of the r directions of its own observations or, in f dimensions, of those that functions share.

    Args:
        base: B.
        updates: S1 S2 ...
    """

    base: BlockCoordinates
    updates: UpdateSequence

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n 1 f"]:
        """Map s latent vectors, by one function after another where each has updates of its own."""
        if self.updates.is_per_function:
            return torch.cat([one.product(latents) for one in self._singles()], dim=1)
        return self.base.product(self.updates.product(latents))

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n 1 f"]:
        """Map one latent vector per function."""
        return self.base.product_each(self.updates.product(latents))

    def transposed_product(self, values: Float[Tensor, "s n 1 f"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        if self.updates.is_per_function:
            parts = (one.transposed_product(values[:, [index]]) for index, one in enumerate(self._singles()))
            return sum(parts, start=values.new_zeros(len(values), self.shape[3]))
        return self.updates.transposed_product(self.base.transposed_product(values))

    def pull(self, cotangents: Float[Tensor, "n m 1 f"]) -> Float[Tensor, "n m k"]:
        """Apply each function's own transpose."""
        return self.updates.transposed_product(self.base.pull(cotangents))

    def row_squares(self) -> Float[Tensor, "n 1 f"]:
        """Variances of the coordinates, function by function."""
        return torch.cat([self.marginal(index).row_squares() for index in range(self.shape[0])])

    def scale(self, factors: Float[Tensor, " 1"]) -> UpdatedCoordinates:
        """Multiply all coordinates."""
        return replace(self, base=self.base.scale(factors))

    def select(self, index: slice | Tensor) -> UpdatedCoordinates:
        """Select functions, and what was learned about each of them."""
        return UpdatedCoordinates(self.base.select(index), self.updates[index])

    def compose(self, transform: LowRankUpdate) -> UpdatedCoordinates:
        """Remember the map."""
        return replace(self, updates=self.updates.then(transform))

    def marginal(self, index: int) -> DenseRoot:
        """One function's coordinates, with two latent dimensions for each of them, or one more for each of its observations."""
        std = self.base.std_of(index)
        inverse = torch.where(std > 0, 1.0 / std, 0.0)
        if not self.updates.is_per_function:
            return self._marginal_of_shared(index, std, inverse)
        one = self._single(index)
        updates = [update.to(std) for update in one.updates.updates]
        directions = torch.cat([update.directions for update in updates])
        along = one.base.product(directions)[:, 0, 0] * inverse  # in the orthonormal rows of B; the rest sticks out of them
        rest = directions - one.base.pull((along * inverse)[None, :, None])[0]
        _, outside = torch.linalg.qr(rest.mT)
        basis = torch.cat([along, outside.mT], dim=1)  # the directions again, in f + r dimensions
        parts = basis.split([len(update.factors) for update in updates])
        sequence = UpdateSequence(tuple(LowRankUpdate(part, one.factors) for part, one in zip(parts, updates, strict=True)))
        start = torch.nn.functional.pad(torch.diag_embed(std), (0, basis.shape[1] - len(std)))
        return DenseRoot(sequence.transposed_product(start)[None, None])

    def _marginal_of_shared(self, index: int, std: Tensor, inverse: Tensor) -> DenseRoot:
        """The same where all functions have the same updates, of which there may be thousands.

        With Q the orthonormal directions of all updates, S1 S2 ... = I + Q^T M Q, E the unit rows of B, and A = Q E^T,

            E S = (I + A^T M A) E + A^T M (Q - A E),        (Q - A E)(Q - A E)^T = I - A A^T.
        """
        directions, change = self._change
        along = self.base.coordinates_of(index, directions) * inverse
        if along.requires_grad:  # the decompositions below have no derivative where something is certain
            return DenseRoot(self._single(index).dense())
        pulled = along.mT @ change
        left, cosines, _ = torch.linalg.svd(along, full_matrices=False)
        sines = (1.0 - cosines.square()).clamp_min(0.0).sqrt()
        outside = pulled + ((pulled @ left) * (sines - 1.0)) @ left.mT
        inside = torch.eye(len(std), dtype=std.dtype, device=std.device) + pulled @ along
        return DenseRoot((std[:, None] * torch.cat([inside, narrowed(outside)], dim=1))[None, None])

    @cached_property
    def _change(self) -> tuple[Float64[Tensor, "r k"], Float64[Tensor, "r r"]]:
        """Q and M of updates that all functions share."""
        updates = [update.to(self.like) for update in self.updates.updates]
        if len(updates) == 1:
            return updates[0].directions, (updates[0].factors - 1.0).diag()
        stacked = torch.cat([update.directions for update in updates])
        orthonormal, _ = torch.linalg.qr(stacked.mT)
        within = UpdateSequence(tuple(replace(update, directions=update.directions @ orthonormal) for update in updates))
        identity = torch.eye(orthonormal.shape[1], dtype=stacked.dtype, device=stacked.device)
        return orthonormal.mT, within.transposed_product(identity) - identity

    def dense(self) -> Float[Tensor, "n 1 f k"]:
        """Form the map."""
        return self.updates.transposed_product(self.base.dense())

    def _single(self, index: int) -> UpdatedCoordinates:
        """One function, whose own updates then serve all."""
        return UpdatedCoordinates(self.base.select(slice(index, index + 1)), self.updates[index])

    def _singles(self) -> Iterator[UpdatedCoordinates]:
        return (self._single(index) for index in range(self.shape[0]))


@dataclass(frozen=True, eq=False)
class ComponentRoot(Root):
    """u_c(x) = sum over k of z_k modes_kc(x), with Gaussian coordinates z: nothing of size n * c * p * k is kept.

    Args:
        modes: `(f, c, p)`, in the units of the fields divided by those of the coordinates.
        coordinates: Root of z, `(n, 1, f, k)`.
    """

    modes: Float64[Tensor, "f c p"]
    coordinates: Root

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k)`."""
        functions, _, _, rank = self.coordinates.shape
        return functions, self.modes.shape[1], self.modes.shape[2], rank

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.modes

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws."""
        return torch.einsum("snf,fcp->sncp", self.coordinates.product(latents)[:, :, 0], self.modes)

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        return torch.einsum("nf,fcp->ncp", self.coordinates.product_each(latents)[:, 0], self.modes)

    def latents(self, seeds: Seeds) -> Float64[Tensor, "m k"]:
        """The latent vectors of the coordinates."""
        return self.coordinates.latents(seeds)

    def draw(self, seeds: Seeds, *, each: bool = False) -> Float[Tensor, "..."]:
        """The coordinates' draws times the modes."""
        coordinates = self.coordinates.draw(seeds, each=each)[..., 0, :]
        return torch.einsum("nf,fcp->ncp" if each else "snf,fcp->sncp", coordinates, self.modes)

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        return self.coordinates.transposed_product(torch.einsum("sncp,fcp->snf", values.to(self.modes), self.modes)[:, :, None])

    def pull(self, cotangents: Float[Tensor, "n m c p"]) -> Float[Tensor, "n m k"]:
        """Apply each input's own transpose."""
        return self.coordinates.pull(torch.einsum("nmcp,fcp->nmf", cotangents.to(self.modes), self.modes)[:, :, None])

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares; of coordinates that are not independent, function by function."""
        if isinstance(self.coordinates, BlockCoordinates):
            return self.coordinates.field_variances(self.modes)
        maps = (self.coordinates.marginal(index).dense()[0, 0] for index in range(self.shape[0]))
        rows = [torch.einsum("fcp,fk->cpk", self.modes, one).square().sum(-1) for one in maps]
        return torch.stack(rows) if rows else self.modes.new_zeros(0, *self.modes.shape[1:])

    def push(self, functional: Functional) -> Root:
        """Apply the functional to each mode."""
        return ComponentRoot(functional(self.modes.unflatten(-1, grid_shape(functional, self.shape[2]))), self.coordinates)

    def compose(self, transform: LowRankUpdate) -> Root:
        """Multiply the coordinates on the latent side."""
        check_transform(transform, self.shape)
        return ComponentRoot(self.modes, self.coordinates.compose(transform))

    def scale(self, factors: Float[Tensor, " c"]) -> Root:
        """Multiply each channel of the modes."""
        return ComponentRoot(self.modes * factors.to(self.modes)[:, None], self.coordinates)

    def select(self, index: slice | Tensor) -> Root:
        """Select inputs."""
        return ComponentRoot(self.modes, self.coordinates.select(index))

    def marginal(self, index: int) -> Root:
        """One function, with as few columns as its coordinates need."""
        return ComponentRoot(self.modes, self.coordinates.marginal(index))

    def dense(self) -> Float[Tensor, "n c p k"]:
        """Form the root."""
        if isinstance(self.coordinates, BlockCoordinates):
            return self.coordinates.dense_fields(self.modes)
        if isinstance(self.coordinates, UpdatedCoordinates):
            return self.coordinates.updates.transposed_product(self.coordinates.base.dense_fields(self.modes))
        return torch.einsum("fcp,nfk->ncpk", self.modes, self.coordinates.dense()[:, 0])

    def gram(self) -> Float64[Tensor, "n cp cp"]:
        """The covariance of each function's values, by way of that of its coordinates."""
        modes = self.modes.flatten(1)
        maps = (self.coordinates.marginal(index).dense()[0, 0] for index in range(self.shape[0]))
        roots = [one.mT @ modes for one in maps]
        return torch.stack([root.mT @ root for root in roots]) if roots else modes.new_zeros(0, *2 * modes.shape[1:])
