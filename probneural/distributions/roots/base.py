"""Lazy roots: linear maps from a latent vector xi in R^k to fields, never formed as covariances.

A root stands for a tensor `(n, c, p, k)`: n inputs, c channels, p points, k latent dimensions. The joint over inputs is the
same thing viewed as `(n * c * p, k)`. Everything a Gaussian field does needs the few operations of
[`Root`][probneural.distributions.roots.base.Root].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_count, check_floating, check_shape
from probneural.contexts import Undisturbed
from probneural.distributions.latent import Seeds
from probneural.errors import GridError
from probneural.functionals import Functional
from probneural.linear_algebra.conditioning import LowRankUpdate, UpdateSequence

_CHUNK_ELEMENTS = 2**24
"""Maximum number of entries per chunk of sums over the latent side (64 or 128 MiB)."""
_SQUARED_ELEMENTS = 2**18
"""Number of entries of a dense root of features per chunk of squares, which fit into the processor's caches."""
_NO_UPDATES = UpdateSequence()


class LatentMap(ABC):
    """A linear map from a standard normal latent vector, a root of the covariance of its image; abstract."""

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


class Root(Undisturbed, LatentMap):
    """Linear operations on the root of a Gaussian field; abstract."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k)`."""

    @abstractmethod
    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws: every input sees the same vector."""

    @abstractmethod
    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""

    def latents(self, seeds: Seeds) -> Float[Tensor, "m k"]:
        """The latent vectors of seeds: standard normal, and equal in all calls of a predictor."""
        return seeds.latents(self.shape[3]).to(self.device)

    def draw(self, seeds: Seeds, *, each: bool = False) -> Float[Tensor, "..."]:
        """The products with the latent vectors of seeds: `(s, n, c, p)`, or `(n, c, p)` with one seed for each input."""
        return self.product_each(self.latents(seeds)) if each else self.product(self.latents(seeds))

    @abstractmethod
    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""

    @abstractmethod
    def pull(self, cotangents: Float[Tensor, "n m c p"]) -> Float[Tensor, "n m k"]:
        """Apply each input's transpose to m vectors: the latent rows of m linear observations of each function."""

    @abstractmethod
    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares: the marginal variances, by a sum that cannot become negative."""

    def push(self, functional: Functional) -> Root:
        """Return the root of the functional's values, `(n, c, m, k)`; by default, pull its weights back, channel by channel."""
        inputs, channels, points, rank = self.shape
        identity = torch.eye(functional.size, dtype=torch.float64, device="cpu")
        matrix = functional.adjoint(identity).flatten(-len(functional.grid.shape)).to(self.like)
        pushed = []
        for channel in range(channels):
            cotangents = self.like.new_zeros(inputs, functional.size, channels, points)
            cotangents[:, :, channel] = matrix
            pushed.append(self.pull(cotangents).to(self.like))
        return DenseRoot(torch.stack(pushed, 1) if pushed else self.like.new_zeros(inputs, 0, functional.size, rank))

    @abstractmethod
    def compose(self, transform: LowRankUpdate) -> Root:
        """Return this root times a map on the latent side, one for all inputs or `(n, r, k)` one each.

        Raises:
            ShapeError: If the map is of another latent dimension or number of inputs.
        """

    def marginal(self, index: int) -> Root:
        """Return a root of one sample's marginal covariance, `(1, c, p, k')`, with any latent.

        Densities of one sample are cheaper with fewer columns; roots with a smaller marginal root override this.
        """
        return self.select(slice(index, index + 1))

    @abstractmethod
    def scale(self, factors: Float[Tensor, " c"]) -> Root:
        """Return the root with each channel's rows multiplied by a factor."""

    @abstractmethod
    def select(self, index: slice | Tensor) -> Root:
        """Return the root of some of the inputs."""

    @abstractmethod
    def dense(self) -> Float[Tensor, "n c p k"]:
        """Form the root."""

    def without_white(self) -> tuple[Root | None, Float64[Tensor, "n c p"]]:
        """The root without its white noise component, and the variances of that component.

        Densities treat the latter as noise. The root is None if the field is white noise only.
        """
        inputs, channels, points, _ = self.shape
        return self, torch.zeros(inputs, channels, points, dtype=torch.float64, device=self.device)

    def magnitude(self) -> Float[Tensor, "n c"]:
        """Largest standard deviation per sample and channel; an upper bound or an estimate suffices."""
        return self.row_norms().amax(-1)

    def row_norms(self) -> Float[Tensor, "n c p"]:
        """Norms of the rows: the marginal standard deviations, of any size, where their squares may vanish or overflow."""
        squares = self.row_squares()
        units = square_units(squares)
        if bool((units == 1.0).all()):
            return square_root(squares)
        norms = torch.zeros_like(squares)
        for unit in units.unique(dim=0):
            rows = (units == unit).all(1).nonzero()[:, 0]
            scaled = self.select(rows).scale(unit.reciprocal()).row_squares()
            norms = norms.index_copy(0, rows, square_root(scaled) * unit[:, None])
        return norms

    def gram(self) -> Float64[Tensor, "n cp cp"]:
        """The covariance of each sample's values, channels first, summed in float64 over chunks of latent dimensions."""
        inputs, channels, points, rank = self.shape
        total = torch.zeros(inputs, channels * points, channels * points, dtype=torch.float64, device=self.device)
        if min(self.shape) == 0:
            return total
        step = max(1, _CHUNK_ELEMENTS // (inputs * channels * points))
        for piece in self.dense().flatten(1, 2).split(min(step, rank), dim=-1):
            columns = piece.to(torch.float64)
            total = total + columns @ columns.mT
        return total


@dataclass(frozen=True, eq=False)
class DerivedRoot(Root):
    """A root with the latent of another one; abstract."""

    base: Root

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k)`."""
        return self.base.shape

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.base.like

    def latents(self, seeds: Seeds) -> Float[Tensor, "m k"]:
        """The latent vectors of the base."""
        return self.base.latents(seeds)


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
        check_floating(self.matrix, "root")
        check_shape(self.matrix, "a root", "n", "c", "p", "k", remedy="add the missing axes")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k)`."""
        inputs, channels, points, rank = self.matrix.shape
        return inputs, channels, points, rank

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.matrix

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws."""
        return torch.einsum("ncpk,sk->sncp", self.matrix, latents.to(self.matrix))

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        return torch.einsum("ncpk,nk->ncp", self.matrix, latents.to(self.matrix))

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        return torch.einsum("ncpk,sncp->sk", self.matrix, values.to(self.matrix))

    def pull(self, cotangents: Float[Tensor, "n m c p"]) -> Float[Tensor, "n m k"]:
        """Apply each input's transpose."""
        return torch.einsum("ncpk,nmcp->nmk", self.matrix, cotangents.to(self.matrix))

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares."""
        return self.matrix.square().sum(-1)

    def push(self, functional: Functional) -> Root:
        """Apply the functional to each latent column."""
        columns = self.matrix.movedim(-1, 0).unflatten(-1, grid_shape(functional, self.shape[2]))
        return DenseRoot(functional(columns).movedim(0, -1))

    def compose(self, transform: LowRankUpdate) -> Root:
        """Multiply on the latent side."""
        check_transform(transform, self.shape)
        return DenseRoot(transform.product(self.matrix))

    def scale(self, factors: Float[Tensor, " c"]) -> Root:
        """Multiply each channel's rows."""
        return DenseRoot(self.matrix * factors.to(self.matrix)[:, None, None])

    def select(self, index: slice | Tensor) -> Root:
        """Select inputs."""
        return DenseRoot(self.matrix[index])

    def dense(self) -> Float[Tensor, "n c p k"]:
        """The matrix itself."""
        return self.matrix


class FormedRoot(DenseRoot):
    """A root with lazily formed entries; draws do not need them.

    Args:
        source: A lazy root of few entries.
    """

    source: Root

    def __init__(self, source: Root) -> None:
        object.__setattr__(self, "source", source)

    @cached_property
    def matrix(self) -> Float[Tensor, "n c p k"]:
        """The entries, `(n, c, p, k)`."""
        return self.source.dense()

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k)`."""
        return self.source.shape

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.source.like

    def draw(self, seeds: Seeds, *, each: bool = False) -> Float[Tensor, "..."]:
        """The lazy root's draws."""
        return self.source.draw(seeds, each=each)

    def scale(self, factors: Float[Tensor, " c"]) -> Root:
        """Multiply each channel's rows."""
        return FormedRoot(self.source.scale(factors))


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
        """Check the shapes of features and factor."""
        remedy = "give features (n, p, f) and a factor (n or 1, c, f, k)"
        features, factor = check_floating(self.features, "features"), check_floating(self.factor, "factor")
        check_shape(features, "features", "n", "p", "f", remedy=remedy)
        samples = 1 if factor.shape[:1] == (1,) else len(features)
        check_shape(factor, "a factor", samples, "c", features.shape[2], "k", remedy=remedy)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k)`."""
        return self.features.shape[0], self.factor.shape[1], self.features.shape[1], self.factor.shape[3]

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.features

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws."""
        weights = torch.einsum("ncfk,sk->sncf", self.factor, latents.to(self.factor))
        return torch.einsum("npf,sncf->sncp", self.features, weights.to(self.features))

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        weights = (self.factor @ latents.to(self.factor)[:, None, :, None])[..., 0]
        return torch.einsum("npf,ncf->ncp", self.features, weights.to(self.features))

    def draw(self, seeds: Seeds, *, each: bool = False) -> Float[Tensor, "..."]:
        """Features times the drawn weights, formed once per distinct seed."""
        if not each or self.factor.shape[0] > 1:
            return super().draw(seeds, each=each)
        numbers = {seed: number for number, seed in enumerate(seeds.rows())}
        latents = replace(seeds, seeds=tuple(numbers)).latents(self.shape[3]).to(self.factor)
        weights = torch.einsum("cfk,sk->scf", self.factor[0], latents).to(self.features)
        return torch.einsum("npf,ncf->ncp", self.features, weights[[numbers[seed] for seed in seeds.seeds]])

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        moments = torch.einsum("npf,sncp->sncf", self.features, values.to(self.features)).to(self.factor)
        return torch.einsum("ncfk,sncf->sk", self.factor.expand(self.shape[0], -1, -1, -1), moments)

    def pull(self, cotangents: Float[Tensor, "n m c p"]) -> Float[Tensor, "n m k"]:
        """Apply each input's transpose, in the factor's dtype from the features on."""
        moments = torch.einsum("npf,nmcp->nmcf", self.features, cotangents.to(self.features)).to(self.factor)
        return torch.einsum("ncfk,nmcf->nmk", self.factor.expand(self.shape[0], -1, -1, -1), moments)

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares, in chunks of inputs."""
        root = self._narrowed()
        inputs, channels, points, rank = root.shape
        step = max(1, _SQUARED_ELEMENTS // max(1, channels * points * rank))
        pieces = [_feature_squares(root.select(slice(start, start + step))) for start in range(0, inputs, step)]
        return torch.cat(pieces) if pieces else self.features.new_zeros(0, channels, points)

    def _narrowed(self) -> FeatureRoot:
        """A root of each channel's covariance with at most as many latents as features, or this root if that costs more.

        A channel's factor L and the triangle R of the QR decomposition of its transpose have the same L L^T = R^T R. The
        channels' joint covariance is lost. Gradients do not pass, since the derivative of a QR decomposition needs full rank.
        """
        _, _, points, rank = self.shape
        features = self.features.shape[2]
        shared = self.factor.shape[0] == 1
        if rank <= features or self.factor.requires_grad or not (shared or points > features):
            return self
        return FeatureRoot(self.features, torch.linalg.qr(self.factor.mT, mode="r").R.mT)

    def push(self, functional: Functional) -> Root:
        """Apply the functional to each feature."""
        columns = self.features.mT.unflatten(-1, grid_shape(functional, self.shape[2]))
        return FeatureRoot(functional(columns).mT, self.factor)

    def compose(self, transform: LowRankUpdate) -> Root:
        """Multiply the factor on the latent side."""
        check_transform(transform, self.shape)
        factor = self.factor.expand(self.shape[0], -1, -1, -1) if transform.batch_shape else self.factor
        return FeatureRoot(self.features, transform.product(factor))

    def scale(self, factors: Float[Tensor, " c"]) -> Root:
        """Multiply each channel's rows of the factor."""
        return FeatureRoot(self.features, self.factor * factors.to(self.factor)[:, None, None])

    def select(self, index: slice | Tensor) -> FeatureRoot:
        """Select inputs."""
        factor = self.factor if self.factor.shape[0] == 1 else self.factor[index]
        return FeatureRoot(self.features[index], factor)

    def dense(self) -> Float[Tensor, "n c p k"]:
        """Form the root."""
        return self.features[:, None] @ self.factor.to(self.features)


def _feature_squares(root: FeatureRoot) -> Float[Tensor, "n c p"]:
    """Row sums of squares of a dense root of features."""
    if root.factor.shape[0] > 1:
        return root.dense().square().sum(-1)
    _, channels, _, rank = root.shape
    columns = root.factor[0].to(root.features).movedim(1, 0).flatten(1)  # one product for all channels and inputs
    return (root.features @ columns).square().unflatten(-1, (channels, rank)).sum(-1).mT


def square_units(squares: Float[Tensor, "n c *points"]) -> Float[Tensor, "n c"]:
    """Return units of each sample's channels for squares without overflow or underflow.

    They are 1 where the dtype holds the squares to its full precision; elsewhere the root of the dtype's smallest number, or
    the inverse.
    """
    limits = torch.finfo(squares.dtype)
    units = squares.new_ones(squares.shape[:2])
    if not squares.numel():
        return units
    largest = squares.detach().flatten(2).amax(2)
    units = torch.where(largest < limits.tiny / limits.eps, limits.tiny**0.5, units)
    return torch.where(torch.isinf(largest), limits.tiny**-0.5, units)


def square_root(squares: Float[Tensor, "*values"]) -> Float[Tensor, "*values"]:
    """Square roots, with a derivative of 0 where the square is 0.

    A deviation that is 0 on a boundary, say, then has no gradient there, in place of one that is not a number.

    Examples:
        >>> squares = torch.tensor([0.0, 4.0], requires_grad=True)
        >>> square_root(squares).sum().backward()
        >>> squares.grad.tolist()
        [0.0, 0.25]
    """
    positive = squares > 0
    root = torch.where(positive, squares, torch.ones_like(squares)).sqrt()
    return torch.where(positive, root, squares.detach().sqrt())


def root_sum_of_squares(first: Float[Tensor, "*values"], second: Float[Tensor, "*values"]) -> Float[Tensor, "*values"]:
    """(a² + b²)^1/2 without overflow, with a derivative of 0 where both are 0."""
    none = (first == 0) & (second == 0)
    return torch.where(none, torch.zeros_like(first), torch.hypot(torch.where(none, torch.ones_like(first), first), second))


def check_transform(transform: LowRankUpdate, shape: tuple[int, int, int, int]) -> None:
    """Raise a ShapeError unless the map is one for all inputs, or one per input, of the root's latent dimension."""
    samples = [shape[0]] if transform.batch_shape else []
    check_shape(transform.directions, "directions", *samples, "r", shape[3], remedy="one map for all inputs, or one per input")


def grid_shape(functional: Functional, points: int) -> Sequence[int]:
    """The shape that values on a functional's grid have, or a GridError unless it has this many points."""
    remedy = "build the functional from the distribution's grid"
    check_count(functional.grid.size, points, "points of a functional's grid, the field's", remedy=remedy, error=GridError)
    return functional.grid.shape


@dataclass(frozen=True, eq=False)
class RecordedMaps:
    """The maps A of values and S of latent vectors that make A R S of a root R.

    Args:
        factors: One factor per channel, `(c,)`, dimensionless.
        functionals: Applied to the values in turn.
        updates: Applied to the latent side.
    """

    factors: Float[Tensor, " c"]
    functionals: tuple[Functional, ...] = ()
    updates: UpdateSequence = _NO_UPDATES

    def push(self, functional: Functional) -> RecordedMaps:
        """Record a functional."""
        return replace(self, functionals=(*self.functionals, functional))

    def compose(self, update: LowRankUpdate) -> RecordedMaps:
        """Record an update."""
        return replace(self, updates=self.updates.then(update))

    def scale(self, factors: Float[Tensor, " c"]) -> RecordedMaps:
        """Record factors."""
        return replace(self, factors=self.factors * factors.to(self.factors))

    def __getitem__(self, index: int | slice | Tensor) -> RecordedMaps:
        """Operations applied to several samples, or to one."""
        rows = slice(index, index + 1) if isinstance(index, int) else index
        return replace(self, functionals=tuple(one.select(rows) for one in self.functionals), updates=self.updates[index])

    def size(self, points: int) -> int:
        """Number of values that p points become."""
        return self.functionals[-1].size if self.functionals else points

    def values(self, values: Float[Tensor, "n c *grid"]) -> Float[Tensor, "n c p"]:
        """Apply functionals and factors."""
        for functional in self.functionals:
            values = functional(values)
        return values.flatten(2) * self.factors.to(values)[:, None]
