"""Rows of a Jacobian root, formed once for each input function and shared by everything that is asked of one prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

_LARGEST_KEPT = 2**27
"""Entries kept for all functions of one prediction (512 MiB in float32)."""


@dataclass(frozen=True, eq=False)
class KeptRows:
    """The matrices J R of some functions, before functionals, updates and scales: each is formed when it is first needed.

    Args:
        tensors: One per function of the prediction, `(c * p, k)`, or None where it has not been formed.
        numbers: Which of them these are.
    """

    tensors: list[Tensor | None]
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, functions: int, *, rows: int, rank: int) -> KeptRows | None:
        """Keep rows of so many functions, or none if they would take too much memory."""
        return cls([None] * functions, tuple(range(functions))) if functions * rows * rank <= _LARGEST_KEPT else None

    def __getitem__(self, index: int | slice | Tensor) -> KeptRows:
        """Select functions; what is formed for them later serves the others too."""
        chosen = torch.arange(len(self.numbers))[index].reshape(-1)
        return KeptRows(self.tensors, tuple(self.numbers[position] for position in chosen.tolist()))

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
