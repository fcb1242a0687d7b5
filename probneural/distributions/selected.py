"""Identities of the samples of a field, kept in selections from one prediction."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from probneural.errors import ConstraintError


class SelectedFunctions(NamedTuple):
    """Which functions a field is of, so that a discrepancy is known again in what is selected from one prediction.

    Attributes:
        prediction: Whose functions they are; compared by identity.
        rows: Their numbers there, `(n,)`, on the CPU.
    """

    prediction: object
    rows: Int64[Tensor, " n"]

    def select(self, rows: slice | Tensor) -> SelectedFunctions:
        """Some of them."""
        return SelectedFunctions(self.prediction, self.rows[rows if isinstance(rows, slice) else rows.cpu()])

    def anew(self) -> SelectedFunctions:
        """The same functions in a field of which no other is known to share discrepancies."""
        return SelectedFunctions(object(), self.rows)

    @property
    def number(self) -> int:
        """How many they are; what was selected twice counts once."""
        return len(self.rows.unique())

    @property
    def places(self) -> Int64[Tensor, " n"]:
        """Where each of them stands among the different ones, `(n,)`, in the order in which they first come."""
        _, place = self.rows.unique(return_inverse=True)
        number = torch.arange(len(place), device=place.device)
        first = torch.full_like(number[: self.number], len(number)).scatter_reduce(0, place, number, "amin")
        return first.argsort().argsort()[place]

    def check_distinct(self) -> None:
        """Raise a ConstraintError if one of them was selected twice."""
        if self.number < len(self.rows):
            raise ConstraintError(
                expected="observations of different functions, where each has a discrepancy",
                got=f"{len(self.rows)} of {self.number} functions",
                remedy="observe each once: average repeated observations and divide their noise, or stack their functionals",
            )

    def shared_with(self, other: SelectedFunctions) -> Int64[Tensor, "m 2"]:
        """Places here and there of the functions that both have."""
        if self.prediction is not other.prediction:
            return torch.zeros(0, 2, dtype=torch.int64, device="cpu")
        return (self.rows[:, None] == other.rows).nonzero()
