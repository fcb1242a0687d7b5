"""Candidates of a pool, and the order in which ties are broken."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from probneural.checks import check_finite, check_integer
from probneural.errors import DataError, ShapeError
from probneural.fields import Field, check_field
from probneural.randomness import stream

TIE = 1e-10
"""Scores closer than this fraction of the largest first score count as equal: far above rounding, far below what matters."""
_SAME = 1e-6
"""Functions closer than this fraction of their size are one: above rounding in single precision."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """The functions of a pool that may be chosen.

    A simulator gives a function's copy the same answer, so copies are selected last.

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
        """Mask of the fresh functions of the pool."""
        return torch.zeros_like(self.order, dtype=torch.bool).index_fill_(0, self.fresh, True)

    def shuffled(self) -> Int64[Tensor, " ab"]:
        """All candidates in the seeded random order, copies last."""
        return torch.cat([part[self.order[part].argsort()] for part in (self.fresh, self.spare)])

    def best(self, scores: Float64[Tensor, " n"], available: Bool[Tensor, " n"], *, reference: float) -> int:
        """The available function of the largest score; the first in the random order among equals.

        Args:
            scores: One per function of the pool.
            available: Mask of the functions that may be selected; at least one.
            reference: A typical large score: differences below 1e-10 of it are no differences.
        """
        top = scores[available].max()
        equal = (available & (scores >= top - TIE * reference)).nonzero()[:, 0]
        return int(equal[self.order[equal].argmin()])

    def completed(self, chosen: list[int], count: int) -> Int64[Tensor, " count"]:
        """`count` indices: the chosen ones, then the others in the random order, copies last."""
        selected = set(chosen)
        remaining = [index for index in self.shuffled().tolist() if index not in selected]
        return torch.tensor((chosen + remaining)[:count], dtype=torch.int64)


def candidates(pool: Field, count: int, *, seed: int, labelled: Field | None) -> Candidates:
    """Return the candidates, and check the arguments that all selectors have.

    Args:
        pool: Input functions.
        count: Number of functions to select.
        seed: Seed of the random order.
        labelled: Input functions whose outputs are known. Those of the pool that equal one cannot be chosen: whose difference,
            on the coarser of the two grids, has a root mean square of at most 1e-6 of the function's.

    Raises:
        DataError: If pool or labelled are no fields, or not finite, or nothing is left to choose.
        ShapeError: If their channels differ.
        GridError: If labelled functions live on a grid that cannot be compared with the pool's.
        ArgumentError: If `count` is no integer, or not between 1 and the number of functions that are not labelled.
    """
    check_field(pool, "pool")
    if labelled is not None:
        check_field(labelled, "labelled")
    check_finite(pool.values, "pool functions")
    if labelled is not None:
        check_finite(labelled.values, "labelled functions")
        if labelled.channels != pool.channels:
            raise ShapeError(
                expected=f"labelled functions of {pool.channels} channels, as in the pool",
                got=str(labelled.channels),
                remedy="use one layout for both",
            )
    if not len(pool):
        raise DataError(expected="functions to choose from", got="nothing: the pool is empty", remedy="draw a pool")
    is_labelled = [False] * len(pool) if labelled is None or not len(labelled) else _is_labelled(pool, labelled).tolist()
    fresh: list[int] = []
    spare: list[int] = []
    digests = set()
    for index, digest in enumerate(_digests(pool)):
        if not is_labelled[index]:
            (spare if digest in digests else fresh).append(index)
            digests.add(digest)
    total = len(fresh) + len(spare)
    if not total:
        raise DataError(
            expected="functions to choose from",
            got=f"{len(pool)} known ones: the pool is fully labelled",
            remedy="draw a larger pool",
        )
    count = check_integer(count, "count", most=total, remedy="choose fewer unlabelled functions, or draw a larger pool")
    order = torch.randperm(len(pool), generator=stream(seed, "ties")).argsort()
    return Candidates(torch.tensor(fresh, dtype=torch.int64), torch.tensor(spare, dtype=torch.int64), order)


def _is_labelled(pool: Field, labelled: Field) -> Bool[Tensor, " n"]:
    """Mask of the functions of the pool that equal a labelled one.

    They are compared on the coarser grid: a function that was labelled on it may have lost what the finer one resolves.
    Channels count in units of their root mean square, and each function's tolerance is relative to its own.
    """
    grid = pool.grid if pool.grid.size <= labelled.grid.size else labelled.grid
    ours, theirs = (
        Field(field.values.detach().to("cpu", torch.float64), field.grid).resample(grid).values.flatten(2)
        for field in (pool, labelled)
    )
    scales = ours.square().mean((0, 2)).sqrt()
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))[:, None]
    ours, theirs = (ours / scales).flatten(1), (theirs / scales).flatten(1)
    sizes, others = ours.square().sum(1), theirs.square().sum(1)
    # Products cancel to about 1e-15 of the squared sizes, well below the squared tolerance of 1e-12.
    return torch.stack(
        [(size + others - 2 * (theirs @ row) <= _SAME**2 * size).any() for row, size in zip(ours, sizes, strict=True)]
    )


def _digests(field: Field) -> list[bytes]:
    """A key per function, equal where functions are equal bit for bit."""
    values = field.values.detach().to("cpu").flatten(1) + 0.0  # -0.0 becomes 0.0
    return [row.numpy().tobytes() for row in values]
