"""Data augmentation by symmetries of the operator.

Where an operator commutes with a symmetry, the image of a training pair is a training pair, and costs no simulation. A network
without position embedding commutes with shifts on periodic axes; kernel methods, DeepONets, and mirrors or turns of any
operator need augmented pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Annotated, Protocol, runtime_checkable

import torch
from torch import Tensor

from probneural.checks import assign, check_count, check_instance, check_integer, check_real, check_sequence, described
from probneural.contexts import undisturbed
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field, check_field
from probneural.grids import Axis, Grid, check_grid, check_unmasked
from probneural.pairs import FieldPairs
from probneural.randomness import stream
from probneural.settings import Index, Settings

_ROUNDING = 1e-6
"""Largest distance of a shifted point from a grid point, as a fraction of a cell."""
_BY_SIDE = "give a tuple of two symmetries, for inputs and for outputs, where their channels differ"


@runtime_checkable
class Symmetry(Protocol):
    """A map of fields to fields on the same grid, with which an operator commutes."""

    def __call__(self, field: Field, /) -> Field:
        """Map every sample of a field."""


@dataclass(frozen=True)
class Shift:
    """Shift samples along periodic axes: u(x) becomes u(x − f L), L the length of the axis.

    Inputs and outputs on different grids shift alike, if the shift is a whole number of cells on both.

    Args:
        fractions: Parts f of the period per axis, between −1 and 1, dimensionless; 0 on axes that are not periodic.

    Raises:
        ArgumentError: If a fraction is out of range, such as a number of cells.

    Examples:
        >>> field = Field(torch.arange(4.0)[None, None], Grid.uniform(4))
        >>> Shift((0.25,))(field).values.flatten().tolist()
        [3.0, 0.0, 1.0, 2.0]
    """

    fractions: Sequence[float]

    def __post_init__(self) -> None:
        """Check the numbers."""
        fractions = check_sequence(self.fractions, "fractions", remedy="give a tuple: Shift((0.25,))")
        assign(self, fractions=tuple(check_real(value, "fractions", above=-1.0, below=1.0) for value in fractions))

    def __call__(self, field: Field) -> Field:
        """Shift every sample.

        Raises:
            GridError: If the grid is scattered or has another dimension, a shifted axis is not periodic, or points do not
                move to points.
        """
        axes = _axes(field)
        check_count(len(axes), len(self.fractions), "axes of the grid", remedy="give a fraction for each", error=GridError)
        if any(part and not axis.periodic for part, axis in zip(self.fractions, axes, strict=True)):
            raise GridError(
                expected="periodic axes where samples are shifted", got=repr(field.grid), remedy="give 0 for the other axes"
            )
        exact = [part * axis.size for part, axis in zip(self.fractions, axes, strict=True)]
        cells = [round(cell) for cell in exact]
        if any(abs(cell - whole) > _ROUNDING for cell, whole in zip(exact, cells, strict=True)):
            raise GridError(
                expected="fractions that are whole numbers of cells",
                got=f"{exact} cells on {field.grid!r}",
                remedy="draw shifts on the coarsest common grid: 32 points for grids of 64 and 96",
            )
        return Field(field.values.roll(cells, dims=tuple(range(2, 2 + len(axes)))), field.grid)


@dataclass(frozen=True)
class Mirror(Settings):
    """Reflect samples about the middle of an axis: u(x) becomes u(L − x), for an axis from 0 to L.

    Args:
        axis: Number of the axis.
        odd: Channels that change sign: the component of a vector along the axis, a vorticity, or all for u(x) to −u(L − x).

    Raises:
        ArgumentError: If a number is not an integer from 0.

    Examples:
        >>> field = Field(torch.arange(4.0)[None, None], Grid.uniform(4, periodic=False))
        >>> Mirror(0)(field).values.flatten().tolist(), Mirror(0, odd=(0,))(field).values.flatten().tolist()
        ([3.0, 2.0, 1.0, 0.0], [-3.0, -2.0, -1.0, -0.0])
    """

    axis: Index
    odd: Annotated[Sequence[int], _numbers] = ()

    def __call__(self, field: Field) -> Field:
        """Reflect every sample.

        Raises:
            GridError: If the grid is scattered or has no such axis, or the axis has one of its two ends and is not periodic.
            ShapeError: If there is no such channel.
        """
        axes = _axes(field)
        if self.axis >= len(axes):
            raise GridError(expected=f"a grid with axis {self.axis}", got=repr(field.grid), remedy="axes count from zero")
        axis = axes[self.axis]
        _check_ends([axis], field.grid)
        values = field.values.flip(2 + self.axis)
        if axis.periodic:
            values = values.roll(1, dims=2 + self.axis)
        return Field(_signed(values, self.odd), field.grid)


@dataclass(frozen=True)
class Transpose(Settings):
    """Permute axes with equal points.

    (1, 0) is the mirror of a square about its diagonal, (1, 2, 0) a turn of a cube. A quarter turn of a square is
    `Composition((Transpose((1, 0)), Mirror(0)))`.

    Args:
        order: Permutation of the axes.
        channels: Permutation of the channels: the same as `order` for the components of a vector; None to keep channels.
        odd: Channels that change sign, a vorticity for example; counted after the permutation.

    Raises:
        ArgumentError: If an order does not name every number once, or a channel is not an integer from 0.

    Examples:
        >>> field = Field(torch.arange(4.0).reshape(1, 1, 2, 2), Grid.uniform((2, 2)))
        >>> Transpose((1, 0))(field).values.flatten().tolist()
        [0.0, 2.0, 1.0, 3.0]
    """

    order: Annotated[Sequence[int], _permutation]
    channels: Annotated[Sequence[int], _permutation] | None = None
    odd: Annotated[Sequence[int], _numbers] = ()

    def __call__(self, field: Field) -> Field:
        """Permute the axes of every sample.

        Raises:
            GridError: If the grid is scattered or has another dimension, or permuted axes have different points.
            ShapeError: If the number of channels differs.
        """
        axes = _axes(field)
        if len(self.order) != len(axes) or any(axes[source] != axis for source, axis in zip(self.order, axes, strict=True)):
            remedy = "permuted axes need the same points, ends and period"
            raise GridError(expected=f"a grid whose axes can be permuted to {self.order}", got=repr(field.grid), remedy=remedy)
        values = field.values.permute(0, 1, *(2 + source for source in self.order))
        if self.channels is not None:
            check_count(field.channels, len(self.channels), "channels", remedy=_BY_SIDE)
            values = values[:, list(self.channels)]
        return Field(_signed(values, self.odd).contiguous(), field.grid)


@dataclass(frozen=True)
class Composition:
    """One symmetry after another.

    Args:
        parts: Symmetries in the order of their application.

    Raises:
        ArgumentError: If there are no parts.
        DataError: If a part is not callable.

    Examples:
        >>> field = Field(torch.arange(4.0)[None, None], Grid.uniform(4))
        >>> Composition((Shift((0.25,)), Mirror(0)))(field).values.flatten().tolist()
        [3.0, 2.0, 1.0, 0.0]
    """

    parts: Sequence[Symmetry]

    def __post_init__(self) -> None:
        """Check the parts."""
        parts = check_sequence(self.parts, "parts", remedy="give a tuple of symmetries")
        assign(self, parts=tuple(_check_symmetry(part) for part in parts))

    def __call__(self, field: Field) -> Field:
        """Apply all of them."""
        for part in self.parts:
            field = part(field)
        return field


@undisturbed()
def shifts(grid: Grid, count: int, *, seed: int) -> list[Symmetry]:
    """Draw different shifts along the periodic axes of a grid, by whole cells, without the identity.

    Args:
        grid: A uniform grid with a periodic axis.
        count: Number of shifts.
        seed: Seed of the draw.

    Returns:
        `count` shifts, or all shifts of the grid if it has less.

    Raises:
        GridError: If no axis is periodic.
        ArgumentError: If the count is not a positive integer, or the seed no integer.

    Examples:
        >>> len(shifts(Grid.uniform(64), 8, seed=0)), len(shifts(Grid.uniform(4), 8, seed=0))
        (8, 3)
    """
    check_grid(grid)
    check_integer(count, "count")
    if not any(grid.periodic):
        raise GridError(
            expected="a grid with a periodic axis", got=repr(grid), remedy="axes that are not periodic have mirrors, not shifts"
        )
    sizes = [axis.size if axis.periodic else 1 for axis in grid.axes]
    total = math.prod(sizes)
    chosen = torch.randperm(total - 1, generator=stream(seed, "shifts"), device="cpu")[:count] + 1
    places = torch.stack(torch.unravel_index(chosen, sizes), dim=1)
    return [Shift(tuple(cell / size for cell, size in zip(place, sizes, strict=True))) for place in places.tolist()]


def box(grid: Grid) -> list[Symmetry]:
    """All mirrors and permutations of axes that map a grid's box to itself, for scalar fields, without the identity.

    A line has 1, a rectangle 3, a square 7, a cube 47. All axes count as space; an axis of time has no symmetry. Vectors and
    channels that change sign under mirrors need symmetries of your own: [`Mirror`][probneural.augmentation.Mirror] and
    [`Transpose`][probneural.augmentation.Transpose] with `odd` and `channels`, combined by
    [`Composition`][probneural.augmentation.Composition].

    Args:
        grid: A uniform grid whose axes are periodic or have both ends.

    Returns:
        One symmetry for each.

    Raises:
        GridError: If the grid is scattered, or an axis that is not periodic has one of its two ends only.

    Examples:
        >>> len(box(Grid.uniform(5, periodic=False))), len(box(Grid.uniform((5, 5)))), len(box(Grid.uniform((5, 4))))
        (1, 7, 3)
    """
    check_grid(grid)
    axes = _uniform(grid)
    _check_ends(axes, grid)
    numbers = range(len(axes))
    mirrored = [(False, True) if axes[number].size > (2 if axes[number].periodic else 1) else (False,) for number in numbers]
    symmetries: list[Symmetry] = []
    for order in permutations(numbers):
        moved = [number for number, target in enumerate(order) if number != target]
        if any(axes[order[number]] != axes[number] or axes[number].size == 1 for number in moved):
            continue
        for flags in product(*mirrored):
            parts: list[Symmetry] = [Transpose(order)] if moved else []
            parts += [Mirror(axis) for axis, flag in enumerate(flags) if flag]
            if parts:
                symmetries.append(parts[0] if len(parts) == 1 else Composition(tuple(parts)))
    return symmetries


def augment(pairs: FieldPairs, symmetries: Sequence[Symmetry | tuple[Symmetry, Symmetry]]) -> FieldPairs:
    """Append the images of pairs under symmetries.

    Augmented pairs are not independent. A posterior that is fitted to them counts each as one sample, so fit heads to the pairs
    alone, or scale their variances on held-out pairs without augmentation.

    Args:
        pairs: Pairs in memory.
        symmetries: Symmetries of inputs and outputs; tuples of two where they differ. A callable of your own is applied to both
            sides: it must be deterministic, and must not change its argument.

    Returns:
        `len(pairs) * (1 + len(symmetries))` pairs: the pairs, then the images under each symmetry. A pair and its images are
        one group, together with its trajectory, so neither `split` nor the validation split of `fit` divides them.

    Raises:
        ArgumentError: If the symmetries are no sequence.
        DataError: If the pairs are not in memory, or a symmetry is not callable.
        GridError: If a symmetry does not fit a grid, or changes it.
        ShapeError: If a symmetry changes the number of channels or samples.

    Examples:
        >>> grid = Grid.uniform(8)
        >>> pairs = FieldPairs(Field(torch.randn(3, 1, 8), grid), Field(torch.randn(3, 1, 8), grid))
        >>> len(augment(pairs, shifts(grid, 4, seed=0)))
        15
    """
    check_instance(pairs, FieldPairs, "pairs", remedy="read a part of a data set into memory: pairs[:1000]")
    for field in (pairs.inputs, pairs.outputs):
        check_unmasked(field.grid, "symmetries")
    entries = check_sequence(symmetries, "symmetries", remedy="give a list, of one if there is one")
    both = [tuple(entry) if isinstance(entry, tuple) else (entry, entry) for entry in entries]
    if any(len(entry) != 2 for entry in both):
        raise DataError(
            expected="tuples of two symmetries", got=repr(entries), remedy="the first is for inputs, the second for outputs"
        )
    sides = [[pairs.inputs], [pairs.outputs]]
    for maps in both:
        for side, symmetry in zip(sides, maps, strict=True):
            side.append(check_field(_check_symmetry(symmetry)(side[0]), "the image under a symmetry"))
    groups = torch.arange(len(pairs), device="cpu") if pairs.groups is None else pairs.groups
    rows = torch.arange(len(pairs), device="cpu").repeat(1 + len(both))
    clock = None if pairs.clock is None else pairs.clock[rows]
    return FieldPairs(*(Field.cat(side) for side in sides), groups=groups[rows], clock=clock)


def _numbers(values: object, name: str) -> tuple[int, ...]:
    """Integers from 0, as a tuple."""
    remedy = f"give a tuple: {name}=(0,)"
    return tuple(check_integer(value, name, least=0) for value in check_sequence(values, name, remedy=remedy))


def _permutation(values: object, name: str) -> tuple[int, ...]:
    """Every number from 0 once."""
    order = _numbers(values, name)
    if not order or sorted(order) != list(range(len(order))):
        raise ArgumentError(
            expected=f"every number from 0 once as {name}", got=repr(values), remedy="(1, 0) exchanges the first two"
        )
    return order


def _signed(values: Tensor, odd: Sequence[int]) -> Tensor:
    """Change the sign of some channels of `(n, c, *grid)`."""
    if not odd:
        return values
    channels = values.shape[1]
    if max(odd) >= channels:
        raise ShapeError(expected=f"odd channels below {channels}", got=repr(tuple(odd)), remedy=_BY_SIDE)
    signs = values.new_ones(channels)
    signs[list(odd)] = -1.0
    return values * signs.reshape(-1, *[1] * (values.ndim - 2))


def _check_ends(axes: Sequence[Axis], grid: Grid) -> None:
    if any(not axis.periodic and not axis.endpoint for axis in axes):
        remedy = "images lie between the points: field.resample(grid) brings functions to a grid with both ends"
        raise GridError(expected="axes that are periodic or have both of their ends", got=repr(grid), remedy=remedy)


def _check_symmetry(symmetry: object) -> Symmetry:
    if not isinstance(symmetry, Symmetry) or isinstance(symmetry, type):
        expected, got = "a symmetry, or for copies also a tuple of one for inputs and one for outputs", described(symmetry)
        raise DataError(expected=expected, got=got, remedy="for example one of pn.augmentation.box(pairs.inputs.grid)")
    return symmetry


def _uniform(grid: Grid) -> tuple[Axis, ...]:
    remedy = "bring fields to one: field.resample(Grid.uniform(...))"
    return check_unmasked(check_grid(grid, uniform=True, remedy=remedy), "symmetries").axes


def _axes(field: Field) -> tuple[Axis, ...]:
    check_field(field, "field")
    return _uniform(field.grid)


def __dir__() -> list[str]:
    """Symmetries, and functions that make or apply them."""
    return [name for name, value in globals().items() if getattr(value, "__module__", "") == __name__ and name[0] != "_"]
