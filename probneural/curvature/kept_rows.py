"""Rows of a Jacobian root, formed once for each input function and shared by everything that is asked of one prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.linear_algebra.principal_components import narrowed

_LARGEST_KEPT = 2**27
"""Entries kept for all functions of one prediction (512 MiB in float32)."""


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
