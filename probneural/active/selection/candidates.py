"""Which functions of a pool may be chosen, and in which order ties are broken: what all selectors share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.fields import Field, check_finite

TIE = 1e-10
"""Scores closer than this share of the largest first score count as equal: far above rounding, far below what matters."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """The functions of a pool that may be chosen.

    A simulator gives a function's copy the same answer, so that copies are chosen only when nothing else is left.

    Args:
        fresh: Indices of functions that are not labelled, without copies of each other, ascending.
        spare: Indices of their copies, ascending.
        order: Place of each function of the pool in a seeded random order, which breaks ties.
    """

    fresh: Int64[Tensor, " a"]
    spare: Int64[Tensor, " b"]
    order: Int64[Tensor, " n"]

    @property
    def available(self) -> Bool[Tensor, " n"]:
        """Which functions of the pool are fresh."""
        return torch.zeros_like(self.order, dtype=torch.bool).index_fill_(0, self.fresh, True)

    def shuffled(self) -> Int64[Tensor, " ab"]:
        """All of them in the seeded random order, copies last."""
        return torch.cat([part[self.order[part].argsort()] for part in (self.fresh, self.spare)])

    def best(self, scores: Float64[Tensor, " n"], available: Bool[Tensor, " n"], *, reference: float) -> int:
        """The available function of the largest score; the first in the random order among equals.

        Args:
            scores: One per function of the pool.
            available: Which ones may be taken; at least one.
            reference: A typical large score: differences below 1e-10 of it are no differences.
        """
        top = scores[available].max()
        equal = (available & (scores >= top - TIE * reference)).nonzero()[:, 0]
        return int(equal[self.order[equal].argmin()])

    def completed(self, chosen: list[int], count: int) -> Int64[Tensor, " count"]:
        """`count` indices: those chosen, and after them what is left, in the random order, copies last."""
        taken = set(chosen)
        rest = [index for index in self.shuffled().tolist() if index not in taken]
        return torch.tensor((chosen + rest)[:count], dtype=torch.int64)


def candidates(pool: Field, count: int, *, seed: int, labelled: Field | None) -> Candidates:
    """Find what may be chosen, and check the arguments that all selectors have.

    Args:
        pool: Input functions.
        count: How many to choose.
        seed: Of the random order.
        labelled: Input functions whose outputs are known. Those of the pool that equal one bit for bit cannot be chosen.

    Raises:
        DataError: If pool or labelled are no fields, or not finite.
        ShapeError: If their channels differ.
        ArgumentError: If `count` is not between 1 and the number of functions that are not labelled.
    """
    for name, value in (("pool", pool), ("labelled", labelled)):
        if not isinstance(value, Field) and (value is not None or name == "pool"):
            raise DataError(
                expected=f"{name} to be a Field of input functions",
                got=str(type(value)),
                remedy="wrap the tensor: pn.Field(values, grid)",
            )
    check_finite(pool.values, "pool functions")
    if labelled is not None:
        check_finite(labelled.values, "labelled functions")
        if labelled.channels != pool.channels:
            raise ShapeError(
                expected=f"labelled functions of {pool.channels} channels, as in the pool",
                got=str(labelled.channels),
                remedy="use one layout for both",
            )
    known = set() if labelled is None or labelled.grid != pool.grid else set(_digests(labelled, like=pool))
    fresh: list[int] = []
    spare: list[int] = []
    seen = set()
    for index, digest in enumerate(_digests(pool, like=labelled or pool)):
        if digest not in known:
            (spare if digest in seen else fresh).append(index)
            seen.add(digest)
    total = len(fresh) + len(spare)
    if not 1 <= count <= total:
        raise ArgumentError(
            expected=f"a count from 1 to {total}, the functions of the pool that are not labelled",
            got=repr(count),
            remedy="choose fewer, or draw a larger pool",
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(pool), generator=generator).argsort()
    return Candidates(torch.tensor(fresh, dtype=torch.int64), torch.tensor(spare, dtype=torch.int64), order)


def _digests(field: Field, *, like: Field) -> list[bytes]:
    """A key per function, equal where functions are equal in the coarser of the two dtypes."""
    coarser = torch.float32 if torch.float32 in (field.dtype, like.dtype) else torch.float64
    values = field.values.detach().to("cpu", coarser).flatten(1) + 0.0  # -0.0 becomes 0.0
    return [row.numpy().tobytes() for row in values]
