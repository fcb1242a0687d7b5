"""The lazy root of a linearised posterior: a Jacobian times a root of the weights' covariance."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_integer
from probneural.contexts import is_transformed
from probneural.curvature.diagonals import row_squares_estimate
from probneural.curvature.parameters import ParameterVector
from probneural.curvature.products.core import jacobian_product, transposed_jacobian_product
from probneural.curvature.rows import KeptRows, evaluate_at
from probneural.curvature.weights import WeightRoot
from probneural.distributions.latent import Seeds
from probneural.distributions.roots.base import DenseRoot, RecordedMaps, Root, grid_shape
from probneural.errors import UnsupportedError
from probneural.fields import Field
from probneural.fingerprints import fingerprint_of
from probneural.functionals import Functional
from probneural.grids import Grid
from probneural.linear_algebra.conditioning import LowRankUpdate
from probneural.linear_algebra.principal_components import narrowed
from probneural.randomness import stream
from probneural.registry import stored
from probneural.settings import Count, Index, Seed, Settings

_POINTS = 2**15
"""Number of grid points of inputs per pass through the operator, for each tangent."""
_LARGEST_DENSE = 2**29
"""Maximum number of entries of a dense root (2 GiB in float32)."""


@stored()
@dataclass(frozen=True, kw_only=True)
class VarianceEstimation(Settings):
    """Settings of row sums of squares, that is, of marginal variances.

    Exactly, by one pass per value or latent direction, where that takes at most `exact_passes` passes; else by a sketch of
    `sketch` random projections, exact on their span, and `probes` draws for the remaining variance.

    Args:
        exact_passes: Maximum number of passes per sample for exact variances.
        sketch: Random projections, two passes each.
        probes: Draws for the remainder, one pass each; its relative standard error is sqrt(2 / probes).
        seed: Seed of projections and draws.
        chunk: Minimum number of tangents or cotangents per pass; more for few points, up to 32,768 points in total.

    Raises:
        ArgumentError: If a number is not an integer, or not positive; `exact_passes` may be zero.
    """

    exact_passes: Index = 512
    sketch: Count = 24
    probes: Count = 32
    seed: Seed = 0
    chunk: Count = 8


_VARIANCE_ESTIMATION = VarianceEstimation()


@dataclass(frozen=True, eq=False)
class JacobianRoot(Root):
    """J R of u = f(w) + J R xi: a Jacobian in the parameters times a root R of their covariance, never formed.

    Differentiable in the inputs' values. Functionals, conditioning and scales are recorded and applied to
    products. All results are exact, except for row sums of squares estimated by `variance_estimation`.

    Args:
        operator: Any module from fields to fields.
        layout: The parameters that vary.
        vector: Parameters at which the Jacobian is evaluated, `(P,)`.
        inputs: n inputs.
        query: Grid of the outputs; the inputs' grid by default.
        weights: R.
        variance_estimation: Settings of exact and estimated variances.
        recorded: Functionals, updates and scales, with as many factors as the output has channels.

    Attributes:
        rows_cache: Cache of rows for these inputs, shared with derived roots; None where no pass takes a row, or variances are
            estimated.
    """

    operator: nn.Module
    layout: ParameterVector
    _: KW_ONLY
    vector: Float[Tensor, " P"]
    inputs: Field
    query: Grid | None = None
    weights: WeightRoot
    recorded: RecordedMaps
    variance_estimation: VarianceEstimation = _VARIANCE_ESTIMATION
    rows_cache: KeptRows | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Keep rows where variances are exact and take a pass per row."""
        functions, channels, _, rank = self.shape
        rows = channels * self.grid.size
        if rows <= min(rank, self.variance_estimation.exact_passes):
            object.__setattr__(self, "rows_cache", KeptRows.of(functions, rows=rows, rank=rank))

    def sharing(self, narrow_tensors: dict[Hashable, Tensor]) -> JacobianRoot:
        """Return the root with a cache that predictions with the same operator, parameters and R share, of `KeptRows`."""
        return self._derived(self.rows_cache and replace(self.rows_cache, narrow_tensors=narrow_tensors))

    @property
    def grid(self) -> Grid:
        """Grid of the outputs."""
        return self.inputs.grid if self.query is None else self.query

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k)`."""
        return len(self.inputs), len(self.recorded.factors), self.recorded.size(self.grid.size), self.weights.rank

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.vector

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws, by one Jacobian product each."""
        if self.recorded.updates.is_per_function or self.keeps_rows(len(latents)):
            pieces = [root.product_one(latents) for root in self.singles()]
            return torch.stack(pieces, dim=1)
        return self.push_tangents(self._tangents(latents))

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        return torch.stack([root.product_one(latents[index : index + 1])[0] for index, root in enumerate(self.singles())])

    def draw(self, seeds: Seeds, *, each: bool = False) -> Float[Tensor, "..."]:
        """The products with the latent vectors of seeds, by one Jacobian product for each distinct seed."""
        if not each:
            return self.product(self.latents(seeds))
        products: dict[int, Tensor] = {}
        for seed, rows in seeds.rows().items():
            (latent,) = replace(seeds, seeds=(seed,)).latents(self.shape[3]).to(self.device).split(1)
            selected = self.select(torch.tensor(rows, device="cpu"))
            products |= dict(zip(rows, selected.product(latent)[0], strict=True))
        return torch.stack([products[row] for row in range(len(products))])

    def product_one(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s c p"]:
        """Map s latent vectors to s draws at the first input."""
        if not self.keeps_rows(len(latents)):
            return self._forward(self._tangents(latents))[:, 0]
        (rows,) = self.formed_rows()
        values = self.recorded.updates.product(latents).to(rows) @ rows.mT
        return self.recorded.values(values.unflatten(1, (-1, *self.grid.shape)))

    def push_tangents(self, tangents: Float[Tensor, "s P"]) -> Float[Tensor, "s n c p"]:
        """J t, for s changes of the parameters."""
        step = max(1, _POINTS // self.grid.size)
        parts = (slice(start, start + step) for start in range(0, len(self.inputs), step))
        return torch.cat([self.select(part)._forward(tangents) for part in parts], dim=1)

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        return sum(root.transposed_one(values[:, index]) for index, root in enumerate(self.singles()))  # type: ignore[return-value]

    def transposed_one(self, values: Float[Tensor, "s c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the map of the first input."""
        if self.keeps_rows(len(values)):
            (rows,) = self.formed_rows()
            shape = (1, len(self.recorded.factors), *self.grid.shape)
            latents = transposed_jacobian_product(
                lambda outputs: self.recorded.values(outputs.unflatten(0, shape))[0], rows.new_zeros(len(rows)), values.to(rows)
            )
            latents = latents @ rows
        else:
            pulled = transposed_jacobian_product(
                lambda theta: self._outputs(theta)[0], self.vector, values.to(self.vector), chunk=self._block(1)
            )
            latents = self.weights.transposed_product(pulled)
        return self.recorded.updates.transposed_product(latents)

    def matrix_one(self) -> Float[Tensor, "cp k"]:
        """The root of the first input as a matrix, by a pass for each row unless rows are kept."""
        _, channels, points, _ = self.shape
        if self.keeps_rows(channels * points) and not self.recorded.functionals:
            (rows,) = self.formed_rows()
            factors = self.recorded.factors.to(rows)
            scaled = rows if bool((factors == 1.0).all()) else rows * factors.repeat_interleave(points)[:, None]
            return self.recorded.updates.transposed_product(scaled)
        unit = torch.eye(channels * points, dtype=self.dtype, device=self.device).unflatten(-1, (channels, points))
        return torch.cat([self.transposed_one(piece) for piece in unit.split(self._block(1))])

    def pull(self, cotangents: Float[Tensor, "n m c p"]) -> Float[Tensor, "n m k"]:
        """Apply each input's transpose to m vectors."""
        return torch.stack([root.transposed_one(cotangents[index]) for index, root in enumerate(self.singles())])

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares; see `VarianceEstimation` for when they are exact."""
        return torch.stack([root.row_squares_one()[0] for root in self.singles()])

    def row_squares_error(self) -> Float[Tensor, "n c p"]:
        """Standard error of `row_squares`, in its units; zero for exact values."""
        return torch.stack([root.row_squares_one()[1] for root in self.singles()])

    @property
    def is_exact(self) -> bool:
        """Whether row sums of squares are exact."""
        _, channels, points, rank = self.shape
        return min(channels * points, rank) <= self.variance_estimation.exact_passes

    def marginal(self, index: int) -> Root:
        """The square marginal root of one sample, if passes take rows."""
        single = self.select(slice(index, index + 1))
        _, channels, points, rank = single.shape
        if rank < channels * points or not single.keeps_rows(channels * self.grid.size):
            return single
        if single.recorded.updates.updates:
            (first,) = single.singles()  # its updates have no axis of inputs
            return DenseRoot(narrowed(first.matrix_one()).unflatten(0, (channels, points))[None])
        assert single.rows_cache is not None
        key = (fingerprint_of(single.inputs.values), single.inputs.grid, single.grid)
        narrow = single.rows_cache.narrow(key, single.formed_rows)
        values = single.recorded.values(narrow.mT.unflatten(1, (channels, *self.grid.shape)))
        return DenseRoot(values.movedim(0, -1)[None])

    def magnitude(self) -> Float[Tensor, "n c"]:
        """Estimate of the largest row norm per channel, from a few draws."""
        generator = stream(self.variance_estimation.seed, "row magnitude")
        latents = torch.randn(8, self.shape[3], generator=generator, dtype=torch.float64, device="cpu")
        return self.product(latents.to(self.vector)).square().mean(0).amax(-1).sqrt() * 2.0

    def push(self, functional: Functional) -> Root:
        """Remember the functional."""
        grid_shape(functional, self.shape[2])
        return self._derived(self.rows_cache, recorded=self.recorded.push(functional))

    def compose(self, transform: LowRankUpdate) -> Root:
        """Remember the transform."""
        return self._derived(self.rows_cache, recorded=self.recorded.compose(transform))

    def scale(self, factors: Float[Tensor, " c"]) -> Root:
        """Remember the factors."""
        return self._derived(self.rows_cache, recorded=self.recorded.scale(factors))

    def select(self, index: slice | Tensor) -> JacobianRoot:
        """Select inputs and their recorded updates."""
        inputs, query = self.inputs[index], None if self.query is None else self.query.select(index)
        rows_cache = self.rows_cache and self.rows_cache[index]
        return self._derived(rows_cache, inputs=inputs, query=query, recorded=self.recorded[index])

    def dense(self) -> Float[Tensor, "n c p k"]:
        """Form the root, with min(rows, columns) passes per input.

        Raises:
            UnsupportedError: If it would not fit into memory.
        """
        _, channels, points, rank = self.shape
        size, remedy = math.prod(self.shape), "use fewer samples or points, a functional of them, or products"
        check_integer(size, "size of a root to form", least=0, most=_LARGEST_DENSE, remedy=remedy, error=UnsupportedError)
        if rank < channels * points:
            unit = torch.eye(rank, dtype=self.dtype, device=self.device)
            return self.product(unit).movedim(0, -1)
        return torch.stack([root.matrix_one() for root in self.singles()]).unflatten(1, (channels, points))

    def gram(self) -> Float[Tensor, "n cp cp"]:
        """J R R^T J^T of each input, in chunks of columns."""
        _, channels, points, _ = self.shape
        unit = torch.eye(channels * points, dtype=self.dtype, device=self.device).unflatten(-1, (channels, points))
        pieces = []
        for root in self.singles():
            columns = [root.product_one(root.transposed_one(piece)) for piece in unit.split(self._block(1))]
            matrix = torch.cat(columns).flatten(1).to(torch.float64)
            pieces.append((matrix + matrix.mT) / 2)
        return torch.stack(pieces)

    def singles(self) -> Iterator[JacobianRoot]:
        """The root of each input."""
        for index in range(len(self.inputs)):
            single = self.select(slice(index, index + 1))
            yield single._derived(single.rows_cache, recorded=self.recorded[index])

    def _derived(self, rows_cache: KeptRows | None, **changes: Any) -> JacobianRoot:
        """A root with other inputs or maps, and the rows kept for those inputs."""
        derived = replace(self, **changes)
        object.__setattr__(derived, "rows_cache", rows_cache)
        return derived

    def keeps_rows(self, passes: int) -> bool:
        """Whether to use rows of J R in place of passes through the operator: if they are cached, or of similar cost."""
        if self.rows_cache is None or is_transformed():
            return False
        if any(tensor.requires_grad for tensor in (self.inputs.values, self.vector, self.weights.like)):
            return False
        return self.rows_cache.are_formed or 2 * passes >= len(self.recorded.factors) * self.grid.size

    def formed_rows(self) -> Sequence[Tensor]:
        """J R of each input, `(c * p, k)`, before all that is recorded."""
        assert self.rows_cache is not None
        channels = len(self.recorded.factors)
        unit = torch.eye(channels * self.grid.size, dtype=self.dtype, device=self.device).unflatten(-1, (channels, -1))
        plain = RecordedMaps(torch.ones_like(self.recorded.factors))

        def make(position: int) -> Tensor:
            part = self.select(slice(position, position + 1))
            root = self._derived(None, inputs=part.inputs, query=part.query, recorded=plain)
            return root.transposed_one(unit).to(self.vector)

        return self.rows_cache.form(make)

    def row_squares_one(self) -> tuple[Tensor, Tensor]:
        """Row sums of squares at the first input, `(c, p)`, and their standard errors."""
        _, channels, points, rank = self.shape
        shape, chunk = (channels, points), self._block(1)
        if self.is_exact and rank < channels * points:
            unit = torch.eye(rank, dtype=self.dtype, device=self.device)
            squares = torch.stack([self.product_one(piece).square().sum(0) for piece in unit.split(chunk)]).sum(0)
            return squares, torch.zeros_like(squares)
        if self.is_exact and self.keeps_rows(channels * points):
            squares = self.marginal(0).row_squares()[0].to(self.dtype)
            return squares, torch.zeros_like(squares)
        if self.is_exact:
            unit = torch.eye(channels * points, dtype=self.dtype, device=self.device).unflatten(-1, shape)
            squares = torch.cat([self.transposed_one(piece).square().sum(-1) for piece in unit.split(chunk)])
            return squares.to(self.dtype).unflatten(-1, shape), torch.zeros(shape, dtype=self.dtype, device=self.device)
        estimate = row_squares_estimate(
            lambda latents: self.product_one(latents).flatten(1),
            lambda values: self.transposed_one(values.unflatten(-1, shape)),
            shape=(channels * points, rank),
            sketch=self.variance_estimation.sketch,
            probes=self.variance_estimation.probes,
            seed=self.variance_estimation.seed,
            like=self.like,
        )
        return estimate.values.to(self.dtype).unflatten(-1, shape), estimate.errors.to(self.dtype).unflatten(-1, shape)

    def _tangents(self, latents: Tensor) -> Tensor:
        """Latent vectors to tangents in the parameters, `(s, P)`."""
        return self.weights.product(self.recorded.updates.product(latents)).to(self.vector)

    def _outputs(self, parameters: Tensor) -> Tensor:
        values = evaluate_at(self.operator, self.layout, vector=parameters, inputs=self.inputs, query=self.query)
        return self.recorded.values(values)

    def _forward(self, tangents: Tensor) -> Tensor:
        """J t for s tangents, `(s, n, c, p)`, in one pass."""
        return jacobian_product(self._outputs, self.vector, tangents, chunk=self._block(len(self.inputs)))

    def _block(self, functions: int) -> int:
        """Number of tangents or cotangents per pass for a number of samples."""
        return max(self.variance_estimation.chunk, _POINTS // (functions * self.grid.size))
