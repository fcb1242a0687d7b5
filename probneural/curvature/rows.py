"""Jacobians of operators with respect to their parameters, Gauss-Newton matrices, and the rows of both, streamed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.func import jacrev, vjp, vmap

from probneural.checks import check_count, check_counts, validated
from probneural.contexts import copy_for_call, jvp
from probneural.curvature.parameters import ParameterVector
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.linear_algebra.principal_components import narrowed
from probneural.pairs import FieldSource
from probneural.randomness import stream


def evaluate_at(
    operator: nn.Module, layout: ParameterVector, *, vector: Float[Tensor, " P"], inputs: Field, query: Grid | None = None
) -> Float[Tensor, "n c *grid"]:
    """Evaluate an operator with its chosen parameters replaced: the pure function that derivatives are taken of."""
    return evaluate(copy_for_call(operator, layout.unflatten(vector)), inputs, query)


@validated
def jacobian(
    operator: nn.Module, layout: ParameterVector, *, inputs: Field, query: Grid | None = None, chunk: int = 64
) -> Float[Tensor, "n c p P"]:
    """Form the Jacobian of the output values in the parameters, differentiable in the inputs.

    Takes forward mode where there are at most two parameters to a point, else reverse mode; `chunk` passes run at once.

    Args:
        operator: Any module from fields to fields.
        layout: The parameters.
        inputs: n inputs.
        query: Grid of the outputs; the inputs' grid by default.
        chunk: Number of tangents or cotangents per pass.

    Returns:
        `(n, c, p, P)`, in output units per unit of each parameter.
    """
    check_counts(chunk=chunk)
    vector = layout.flatten(dict(operator.named_parameters()))
    pieces = []
    for index in range(len(inputs)):  # one sample at a time: n of them in one pass would cost n^2
        single = inputs[index]
        where = None if query is None else query.select(slice(index, index + 1))

        def outputs(parameters: Tensor, single: Field = single, where: Grid | None = where) -> Tensor:
            return evaluate_at(operator, layout, vector=parameters, inputs=single, query=where)[0].flatten(1)

        forward = layout.size <= 2 * (single.grid if where is None else where).size
        pieces.append(_forward_jacobian(outputs, vector, chunk) if forward else jacrev(outputs, chunk_size=chunk)(vector))
    return torch.stack(pieces)


def _forward_jacobian(function: Callable[[Tensor], Tensor], vector: Tensor, chunk: int) -> Tensor:
    """`torch.func.jacfwd` in chunks of columns."""

    def column(tangent: Tensor) -> Tensor:
        derivative: Tensor = jvp(function, (vector,), (tangent,))[1]
        return derivative

    unit = torch.eye(len(vector), dtype=vector.dtype, device=vector.device)
    columns: Tensor = vmap(column, out_dims=-1, chunk_size=chunk)(unit)
    return columns


@validated
def gauss_newton(jacobian: Float[Tensor, "n c p P"], *, grid: Grid, precision: Float[Tensor, " c"]) -> Float64[Tensor, "P P"]:
    """Sum over samples of the Gauss-Newton matrices of the quadrature likelihood, in float64.

    G = sum over i, c of precision_c / |D| * integral of J_ic^T J_ic: weighted by quadrature, so it does not grow with the
    number of grid points.

    Args:
        jacobian: `(n, c, p, P)`.
        grid: Grid of p points, or n of them.
        precision: One number per channel: effective observations over noise variance.

    Returns:
        `(P, P)`.

    Raises:
        ShapeError: If the points are not the grid's.

    Examples:
        >>> ones = torch.ones(2, 1, 4, 1)
        >>> gauss_newton(ones, grid=Grid.uniform((4,)), precision=torch.tensor([3.0])).round().item()
        6.0
    """
    check_count(jacobian.shape[2], grid.size, "points", remedy="pass the Jacobian's own grid")
    mean_weights = grid.sample_weights.to(jacobian.device)
    weight = (precision.to(mean_weights)[:, None] * mean_weights).sqrt()
    rows = (jacobian.to(torch.float64) * weight[..., None]).flatten(0, 2)
    matrix = rows.mT @ rows
    return (matrix + matrix.mT) / 2  # some matrix products round the two halves differently


_LARGEST_KEPT = 2**27
"""Maximum number of cached entries per prediction (512 MiB in float32)."""
_LARGEST_NARROW = 2**25
"""Maximum number of cached entries of square matrices (256 MiB)."""
_READ_VALUES = 2**16
"""Number of output values per chunk."""


@dataclass(frozen=True, eq=False)
class GaussNewtonRows:
    """Repeatable iterator over the rows sqrt(weights) J diag(prior_std) of a Gauss-Newton matrix, in chunks.

    One row per output value gives the matrix exactly. With `probes`, each sample yields that many random projections
    e^T sqrt(weights) J / sqrt(probes) with e ~ N(0, I) instead: the sum is then right in expectation, whatever the grid. On one
    mesh per sample each sample has its own stream of random numbers, and padding has none.

    Args:
        operator: Any module from fields to fields.
        layout: The parameters.
        inputs: n inputs, read in chunks.
        query: Grid of all outputs; the inputs' grid by default.
        weights: Curvature of the negative log likelihood in each output value, `(c, p)`, or `(n, c, p)` on one mesh per
            sample: precision times weight of the domain.
        prior_std: Factor on each parameter, `(P,)`; prior standard deviations whiten the prior away.
        probes: Random projections per function, or projections of each, `(r, c, p)`; every output value by default.
        seed: Seed of the projections.
    """

    operator: nn.Module
    layout: ParameterVector
    _: KW_ONLY
    inputs: FieldSource
    query: Grid | None = None
    weights: Float[Tensor, "*n c p"]
    prior_std: Float[Tensor, " P"] | None = None
    probes: int | Sequence[Tensor] | None = None
    seed: int = 0

    def __call__(self, *, chunk: int = 64, first: int = 0) -> Iterator[Float[Tensor, "r P"]]:
        """Iterate over the rows, `chunk` at a time, in the operator's dtype.

        In data that several processes share, `first` functions come before these; projections follow from the number among all.
        """
        vector = self.layout.flatten(dict(self.operator.named_parameters()))
        roots = self.weights.sqrt().to(vector)
        prior_std = None if self.prior_std is None else self.prior_std.to(vector)
        generator = stream(self.seed, "gradient rows")
        if isinstance(self.probes, int) and roots.ndim == 2:
            for _ in range(first):
                self._normals(roots, generator)
        for index, single in enumerate(self._singles(math.prod(roots.shape[-2:]))):
            root = roots
            if roots.ndim == 3:
                root, generator = roots[index], stream(self.seed, "gradient rows", first + index)
            if self.probes is None:
                pieces = self._every(single, vector, root, chunk)
            elif isinstance(self.probes, int):
                pieces = self._random(single, vector, root, generator, chunk)
            else:
                pieces = self._pulled(single, vector, (self.probes[index] * root).split(chunk))
            for rows in pieces:
                yield rows if prior_std is None else rows * prior_std

    def _singles(self, values: int) -> Iterator[Field]:
        """Iterate over single samples of some output values, read in chunks."""
        size = max(1, _READ_VALUES // values)
        for start in range(0, len(self.inputs), size):
            batch = self.inputs[start : min(start + size, len(self.inputs))]
            yield from (batch[index] for index in range(len(batch)))

    def _every(self, single: Field, vector: Tensor, root: Tensor, chunk: int) -> Iterator[Tensor]:
        if self.layout.size <= 2 * root.shape[1]:  # `jacobian` then uses forward mode, which yields all rows together
            rows = jacobian(self.operator, self.layout, inputs=single, query=self.query, chunk=chunk).detach()[0]
            yield from (rows * root[..., None]).flatten(0, 1).split(chunk)
            return
        unit = torch.arange(root.numel(), device=root.device)
        cotangents = (
            torch.zeros(len(piece), root.numel()).to(root).scatter_(1, piece[:, None], 1.0) for piece in unit.split(chunk)
        )
        yield from self._pulled(single, vector, (cotangent.unflatten(-1, root.shape) * root for cotangent in cotangents))

    def _random(self, single: Field, vector: Tensor, root: Tensor, generator: torch.Generator, chunk: int) -> Iterator[Tensor]:
        assert isinstance(self.probes, int)
        signs = self._normals(root, generator).to(root)
        yield from self._pulled(single, vector, (signs * root / math.sqrt(self.probes)).split(chunk))

    def _normals(self, root: Tensor, generator: torch.Generator) -> Tensor:
        """The random numbers of one sample; zero at padding."""
        assert isinstance(self.probes, int)
        is_used = (
            (root > 0).any(0).cpu() if self.weights.ndim == 3 else torch.ones(root.shape[1], dtype=torch.bool, device="cpu")
        )
        normals = torch.zeros(self.probes, *root.shape, dtype=torch.float64, device="cpu")
        shape = (self.probes, len(root), int(is_used.sum()))
        normals[..., is_used] = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        return normals

    def _pulled(self, single: Field, vector: Tensor, cotangents: Iterator[Tensor] | tuple[Tensor, ...]) -> Iterator[Tensor]:
        """Cotangents `(r, c, p)` to rows `(r, P)`, with one forward pass for all of them."""

        def outputs(parameters: Tensor) -> Tensor:
            return evaluate_at(self.operator, self.layout, vector=parameters, inputs=single, query=self.query)[0].flatten(1)

        _, pull = vjp(outputs, vector)  # type: ignore[misc]
        for piece in cotangents:
            rows: Tensor = vmap(lambda cotangent: pull(cotangent)[0])(piece)
            yield rows.detach()


@dataclass(frozen=True, eq=False)
class KeptRows:
    """The lazily formed matrices J R of samples, before functionals, updates and scales.

    Args:
        tensors: Matrices of samples of the prediction, `(c * p, k)`, by number, as far as they are formed.
        narrow_tensors: Square matrices with the same Gram matrix, for marginals of one sample, by input and grid; several
            predictions may share them.
        numbers: Numbers of these samples.
        holds_rows: Whether the matrices of all samples fit into the memory budget.
    """

    tensors: dict[int, Tensor]
    narrow_tensors: dict[Hashable, Tensor]
    numbers: tuple[int, ...]
    holds_rows: bool

    @classmethod
    def of(cls, functions: int, *, rows: int, rank: int) -> KeptRows:
        """Storage for rows of a number of samples."""
        return cls({}, {}, tuple(range(functions)), functions * rows * rank <= _LARGEST_KEPT)

    def __getitem__(self, index: int | slice | Tensor) -> KeptRows:
        """Select samples; the cache is shared."""
        chosen = torch.arange(len(self.numbers))[index].reshape(-1)
        return replace(self, numbers=tuple(self.numbers[position] for position in chosen.tolist()))

    @property
    def are_formed(self) -> bool:
        """Whether all of these are there."""
        return all(number in self.tensors for number in self.numbers)

    def form(self, make: Callable[[int], Tensor]) -> Sequence[Float[Tensor, "cp k"]]:
        """Return the matrices; missing ones are formed by `make(position)`."""
        formed = []
        for position, number in enumerate(self.numbers):
            matrix = self.tensors[number] if number in self.tensors else make(position)
            if self.holds_rows:
                self.tensors[number] = matrix
            formed.append(matrix)
        return formed

    def narrow(self, key: Hashable, make: Callable[[], Sequence[Tensor]]) -> Float64[Tensor, "cp cp"]:
        """Return the square matrix of the only sample, under a key of its input and grid; `make` forms its rows if needed."""
        matrix = self.narrow_tensors.get(key)
        if matrix is None:
            (rows,) = make()
            matrix = narrowed(rows)
            if (1 + len(self.narrow_tensors)) * matrix.numel() > _LARGEST_NARROW:
                self.narrow_tensors.clear()
            self.narrow_tensors[key] = matrix
        return matrix
