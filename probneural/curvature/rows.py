"""Rows of a Gauss-Newton matrix: G = sum over rows g^T g, streamed and never stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.func import vjp, vmap

from probneural.curvature.jacobian import evaluate_at, jacobian
from probneural.curvature.parameters import ParameterVector
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.linear_algebra.principal_components import narrowed
from probneural.pairs import FieldSource
from probneural.randomness import stream

_LARGEST_KEPT = 2**27
"""Entries kept for all functions of one prediction (512 MiB in float32)."""
_READ_VALUES = 2**16
"""Output values of the functions that are read at once."""


@dataclass(frozen=True, eq=False)
class GaussNewtonRows:
    """The rows sqrt(weights) J diag(prior_std) of a Gauss-Newton matrix, a few at a time, as often as one asks.

    One row per output value gives the matrix exactly. With `probes`, each function yields that many random projections
    e^T sqrt(weights) J / sqrt(probes) with e ~ N(0, I) instead: the sum is then right in expectation, whatever the grid.

    Args:
        operator: Any module from fields to fields.
        layout: Which parameters.
        inputs: n input functions, read some at a time.
        query: Where to evaluate; the inputs' grid by default.
        weights: Curvature of the negative log likelihood in each output value, `(c, p)`: precision times weight of the domain.
        prior_std: Factor on each parameter, `(P,)`; prior standard deviations whiten the prior away.
        probes: Random projections per function; every output value by default.
        seed: Of the projections.

    Raises:
        ArgumentError: If `probes` is not positive.
    """

    operator: nn.Module
    layout: ParameterVector
    _: KW_ONLY
    inputs: FieldSource
    query: Grid | None = None
    weights: Float[Tensor, "c p"]
    prior_std: Float[Tensor, " P"] | None = None
    probes: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.probes is not None and self.probes < 1:
            raise ArgumentError(
                expected="probes of at least 1", got=str(self.probes), remedy="leave probes out for every output value"
            )

    @property
    def is_exact(self) -> bool:
        """Whether the rows add up to the matrix itself."""
        return self.probes is None

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.inputs) * (self.weights.numel() if self.probes is None else self.probes)

    def __call__(self, *, chunk: int = 64, first: int = 0) -> Iterator[Float[Tensor, "r P"]]:
        """Iterate over the rows, `chunk` at a time, in the operator's dtype.

        In data that several processes share, `first` functions come before these; projections follow from the number among all.
        """
        vector = self.layout.flatten(dict(self.operator.named_parameters()))
        root = self.weights.sqrt().to(vector)
        prior_std = None if self.prior_std is None else self.prior_std.to(vector)
        generator = stream(self.seed, "gradient rows")
        if self.probes is not None:
            for _ in range(first):
                self._normals(root, generator)
        for single in self._singles(root):
            pieces = (
                self._every(single, vector, root, chunk)
                if self.probes is None
                else self._random(single, vector, root, generator, chunk)
            )
            for rows in pieces:
                yield rows if prior_std is None else rows * prior_std

    def _singles(self, root: Tensor) -> Iterator[Field]:
        """Each function by itself, read some at a time."""
        size = max(1, _READ_VALUES // root.numel())
        for start in range(0, len(self.inputs), size):
            batch = self.inputs[start : min(start + size, len(self.inputs))]
            yield from (batch[index] for index in range(len(batch)))

    def _every(self, single: Field, vector: Tensor, root: Tensor, chunk: int) -> Iterator[Tensor]:
        if self.layout.size <= 2 * root.shape[1]:  # `jacobian` then takes forward mode, which yields all rows at once
            rows = jacobian(self.operator, self.layout, inputs=single, query=self.query, chunk=chunk).detach()[0]
            yield from (rows * root[..., None]).flatten(0, 1).split(chunk)
            return
        unit = torch.arange(root.numel(), device=root.device)
        cotangents = (
            torch.zeros(len(piece), root.numel()).to(root).scatter_(1, piece[:, None], 1.0) for piece in unit.split(chunk)
        )
        yield from self._pulled(single, vector, (cotangent.unflatten(-1, root.shape) * root for cotangent in cotangents))

    def _random(self, single: Field, vector: Tensor, root: Tensor, generator: torch.Generator, chunk: int) -> Iterator[Tensor]:
        assert self.probes is not None
        signs = self._normals(root, generator).to(root)
        yield from self._pulled(single, vector, (signs * root / math.sqrt(self.probes)).split(chunk))

    def _normals(self, root: Tensor, generator: torch.Generator) -> Tensor:
        """The random numbers of one function."""
        assert self.probes is not None
        return torch.randn(self.probes, *root.shape, generator=generator, dtype=torch.float64, device="cpu")

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
    """The matrices J R of some functions, before functionals, updates and scales: each is formed when it is first needed.

    Args:
        tensors: One per function of the prediction, `(c * p, k)`, or None where it has not been formed.
        narrow_tensors: The same with as many columns as rows, and the same Gram matrix: what one function by itself needs.
        numbers: Which of them these are.
    """

    tensors: list[Tensor | None]
    narrow_tensors: list[Tensor | None]
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, functions: int, *, rows: int, rank: int) -> KeptRows | None:
        """Keep rows of so many functions, or none if they would take too much memory."""
        if functions * rows * rank > _LARGEST_KEPT:
            return None
        return cls([None] * functions, [None] * functions, tuple(range(functions)))

    def __getitem__(self, index: int | slice | Tensor) -> KeptRows:
        """Select functions; what is formed for them later serves the others too."""
        chosen = torch.arange(len(self.numbers))[index].reshape(-1)
        return replace(self, numbers=tuple(self.numbers[position] for position in chosen.tolist()))

    @property
    def are_formed(self) -> bool:
        """Whether all of these are there."""
        return all(self.tensors[number] is not None for number in self.numbers)

    def form(self, make: Callable[[int], Tensor]) -> Sequence[Float[Tensor, "cp k"]]:
        """Return the matrices, made by `make(position)` where they are missing."""
        matrices = []
        for position, number in enumerate(self.numbers):
            tensor = self.tensors[number]
            if tensor is None:
                tensor = self.tensors[number] = make(position)
            matrices.append(tensor)
        return matrices

    def narrow(self, matrices: Sequence[Tensor]) -> Sequence[Float64[Tensor, "cp cp"]]:
        """Return the narrow matrices, made from the others where they are missing."""
        narrow = []
        for number, matrix in zip(self.numbers, matrices, strict=True):
            tensor = self.narrow_tensors[number]
            if tensor is None:
                tensor = self.narrow_tensors[number] = narrowed(matrix)
            narrow.append(tensor)
        return narrow
