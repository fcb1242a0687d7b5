"""Symmetries that a map between functions is known to have, as further training pairs.

Where an operator commutes with a symmetry, the image of a pair is a pair as good as the pair itself, and costs no simulation.
A network without position embedding commutes with shifts on periodic axes as it is; kernel methods, DeepONets and mirrors or
turns of any operator need the copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Protocol, runtime_checkable

import torch

from probneural.checks import check_instance, check_integer, check_real
from probneural.contexts import undisturbed
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field, check_field
from probneural.grids import Axis, Grid, check_grid
from probneural.pairs import FieldPairs
from probneural.randomness import stream

_ROUNDING = 1e-6
"""Of a cell, that a fraction of the period may miss a point by."""


@runtime_checkable
class Symmetry(Protocol):
    """A map of functions on a grid to functions on it, with which an operator commutes."""

    def __call__(self, field: Field, /) -> Field:
        """Map every function of a field."""


@dataclass(frozen=True)
class Shift:
    """Move functions along periodic axes: u(x) becomes u(x − f L), L the length of the axis.

    Inputs and outputs are moved alike on grids of different resolutions, as long as both have a point where the first goes.

    Args:
        fractions: Parts f of the period per axis, dimensionless, of any sign; 0 on axes that are not periodic.

    Raises:
        ArgumentError: If a fraction is no finite number.

    Examples:
        >>> field = Field(torch.arange(4.0)[None, None], Grid.uniform(4))
        >>> Shift((0.25,))(field).values.flatten().tolist()
        [3.0, 0.0, 1.0, 2.0]
    """

    fractions: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check the numbers."""
        for one in self.fractions:
            check_real(one, "fractions")

    def __call__(self, field: Field) -> Field:
        """Move every function.

        Raises:
            GridError: If the grid is scattered or has another dimension, an axis that is moved along is not periodic, or points
                do not move to points.
        """
        axes = _axes(field)
        if len(axes) != len(self.fractions):
            raise GridError(
                expected=f"a grid of {len(self.fractions)} axes", got=f"{len(axes)} axes", remedy="give a fraction for each"
            )
        if any(part and not axis.periodic for part, axis in zip(self.fractions, axes, strict=True)):
            raise GridError(
                expected="periodic axes where functions are moved",
                got=repr(field.grid),
                remedy="give 0 for the axes that are not periodic: nothing is known beyond their ends",
            )
        exact = [part * axis.size for part, axis in zip(self.fractions, axes, strict=True)]
        cells = [round(one) for one in exact]
        if any(abs(one - whole) > _ROUNDING for one, whole in zip(exact, cells, strict=True)):
            raise GridError(
                expected="fractions that are whole numbers of cells",
                got=f"{exact} cells on {field.grid!r}",
                remedy="draw shifts on the coarsest grid: the points of a finer one that holds it are moved to points, too",
            )
        return Field(field.values.roll(cells, dims=tuple(range(2, 2 + len(axes)))), field.grid)


@dataclass(frozen=True)
class Mirror:
    """Reflect functions about the middle of an axis; on a periodic axis, about its left end, which is the same up to a shift.

    Args:
        axis: Which axis.
        odd: Channels that change sign: the component of a vector along the axis, or all of them for u(x) to −u(−x).

    Raises:
        ArgumentError: If a number is no integer from 0.

    Examples:
        >>> field = Field(torch.arange(4.0)[None, None], Grid.uniform(4, periodic=False))
        >>> Mirror(0)(field).values.flatten().tolist(), Mirror(0, odd=(0,))(field).values.flatten().tolist()
        ([3.0, 2.0, 1.0, 0.0], [-3.0, -2.0, -1.0, -0.0])
    """

    axis: int
    odd: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the numbers."""
        for number, name in ((self.axis, "axis"), *((one, "odd") for one in self.odd)):
            check_integer(number, name, least=0)

    def __call__(self, field: Field) -> Field:
        """Reflect every function.

        Raises:
            GridError: If the grid is scattered or has no such axis, or the axis has one of its two ends and is not periodic.
            ShapeError: If there is no such channel.
        """
        axes = _axes(field)
        _check_axis(self.axis, axes, field.grid)
        axis = axes[self.axis]
        if not axis.periodic and not axis.endpoint:
            raise GridError(
                expected="a periodic axis, or one with both of its ends",
                got=repr(field.grid),
                remedy="the image lies between the points: field.resample(grid) brings functions to a grid with both ends",
            )
        if any(channel >= field.channels for channel in self.odd):
            raise ShapeError(
                expected=f"channels below {field.channels}",
                got=repr(self.odd),
                remedy="channels count from zero, for each side",
            )
        values = field.values.flip(2 + self.axis)
        if axis.periodic:
            values = values.roll(1, dims=2 + self.axis)
        if self.odd:
            signs = values.new_ones(field.channels)
            signs[list(self.odd)] = -1.0
            values = values * signs.reshape(-1, *[1] * len(axes))
        return Field(values, field.grid)


@dataclass(frozen=True)
class Turn:
    """Exchange axes that have the same points.

    Args:
        order: For each axis, the one that takes its place: (1, 0) mirrors a square about its diagonal.
        channels: For each channel, the one that takes its place, where channels are components of vectors; None for the same.

    Raises:
        ArgumentError: If an order does not name every number once.

    Examples:
        >>> field = Field(torch.arange(4.0).reshape(1, 1, 2, 2), Grid.uniform((2, 2)))
        >>> Turn((1, 0))(field).values.flatten().tolist()
        [0.0, 2.0, 1.0, 3.0]
    """

    order: tuple[int, ...]
    channels: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Check that both are permutations."""
        for order, name in ((self.order, "order"), (self.channels or (), "channels")):
            if sorted(order) != list(range(len(order))):
                raise ArgumentError(
                    expected=f"an {name} that names every number from 0 once" if name == "order" else "channels, each once",
                    got=repr(order),
                    remedy="(1, 0) exchanges the first two",
                )

    def __call__(self, field: Field) -> Field:
        """Exchange the axes of every function.

        Raises:
            GridError: If the grid is scattered or has another dimension, or the axes that change places have other points.
            ShapeError: If the number of channels is another.
        """
        axes = _axes(field)
        if len(self.order) != len(axes) or any(axes[one] != axis for one, axis in zip(self.order, axes, strict=True)):
            raise GridError(
                expected=f"a grid whose axes may change places as {self.order}",
                got=repr(field.grid),
                remedy="axes that change places need the same points, ends and period",
            )
        values = field.values.permute(0, 1, *(2 + one for one in self.order))
        if self.channels is not None:
            if len(self.channels) != field.channels:
                raise ShapeError(
                    expected=f"{len(self.channels)} channels", got=str(field.channels), remedy="name every channel of a side"
                )
            values = values[:, list(self.channels)]
        return Field(values.contiguous(), field.grid)


@dataclass(frozen=True)
class Composition:
    """One symmetry after another.

    Args:
        parts: The first that is applied comes first.

    Raises:
        DataError: If a part is no map of fields.

    Examples:
        >>> field = Field(torch.arange(4.0)[None, None], Grid.uniform(4))
        >>> Composition((Shift((0.25,)), Mirror(0)))(field).values.flatten().tolist()
        [3.0, 2.0, 1.0, 0.0]
    """

    parts: tuple[Symmetry, ...]

    def __post_init__(self) -> None:
        """Check the parts."""
        for part in self.parts:
            _check_symmetry(part)

    def __call__(self, field: Field) -> Field:
        """Apply all of them."""
        for part in self.parts:
            field = part(field)
        return field


@undisturbed()
def shifts(grid: Grid, count: int, *, seed: int) -> list[Symmetry]:
    """Draw different shifts along the periodic axes of a grid, all but the one that moves nothing.

    Args:
        grid: A uniform grid with a periodic axis.
        count: How many; all there are where there are no more.
        seed: Of the draw.

    Returns:
        At most `count` shifts, by whole cells of this grid.

    Raises:
        GridError: If no axis is periodic.
        ArgumentError: If the count is no positive integer.

    Examples:
        >>> len(shifts(Grid.uniform(64), 8, seed=0)), len(shifts(Grid.uniform(4), 8, seed=0))
        (8, 3)
    """
    check_grid(grid)
    check_integer(count, "count")
    if not any(grid.periodic):
        raise GridError(
            expected="a grid with a periodic axis", got=repr(grid), remedy="functions on other axes have mirrors, not shifts"
        )
    sizes = [axis.size if axis.periodic else 1 for axis in grid.axes]
    total = math.prod(sizes)
    chosen = torch.randperm(total - 1, generator=stream(seed, "shifts"))[:count] + 1
    places = torch.stack(torch.unravel_index(chosen, sizes), dim=1)
    return [Shift(tuple(cell / size for cell, size in zip(place, sizes, strict=True))) for place in places.tolist()]


def box(grid: Grid) -> list[Symmetry]:
    """All mirrors and turns that map a grid's box to itself, for scalar functions; all but the one that moves nothing.

    A line has 1, a rectangle 3, a square 7, a cube 47. Vectors need symmetries of your own:
    [`Mirror`][probneural.symmetries.Mirror] with `odd` channels and [`Turn`][probneural.symmetries.Turn] with `channels`,
    put together by [`Composition`][probneural.symmetries.Composition].

    Args:
        grid: A uniform grid whose axes are periodic or have both ends.

    Returns:
        One symmetry for each.

    Raises:
        GridError: If the grid is scattered.

    Examples:
        >>> len(box(Grid.uniform(5, periodic=False))), len(box(Grid.uniform((5, 5)))), len(box(Grid.uniform((5, 4))))
        (1, 7, 3)
    """
    check_grid(grid)
    axes = _uniform(grid)
    found: list[Symmetry] = []
    for order in permutations(range(len(axes))):
        if any(axes[one] != axis for one, axis in zip(order, axes, strict=True)):
            continue
        for flags in product((False, True), repeat=len(axes)):
            parts: list[Symmetry] = [] if list(order) == sorted(order) else [Turn(order)]
            parts += [Mirror(axis) for axis, flag in enumerate(flags) if flag]
            if parts:
                found.append(parts[0] if len(parts) == 1 else Composition(tuple(parts)))
    return found


def with_copies(pairs: FieldPairs, symmetries: Sequence[Symmetry | tuple[Symmetry, Symmetry]]) -> FieldPairs:
    """Put the images of pairs under symmetries behind them.

    Copies are no independent data. A posterior that is fitted to them counts each as one, so fit heads to the pairs alone or
    scale their variances on functions apart, which get no copies.

    Args:
        pairs: Pairs in memory.
        symmetries: What inputs and outputs are mapped by; two where outputs are mapped by another one than inputs are.

    Returns:
        `len(pairs) * (1 + len(symmetries))` pairs: those given, then the images under each symmetry. A pair and its images
        are one group, with all of its trajectory where there are such, so `split` and the watched part of `fit` never divide
        them.

    Raises:
        DataError: If the pairs are none in memory, or a symmetry is no map of fields.
        GridError: If a symmetry does not fit a grid, or leads to another one.
        ShapeError: If a symmetry changes the number of channels or functions.

    Examples:
        >>> grid = Grid.uniform(8)
        >>> pairs = FieldPairs(Field(torch.randn(3, 1, 8), grid), Field(torch.randn(3, 1, 8), grid))
        >>> len(with_copies(pairs, shifts(grid, 4, seed=0)))
        15
    """
    check_instance(pairs, FieldPairs, "pairs", remedy="read a part of a data set into memory: pairs[:1000]")
    both = [one if isinstance(one, tuple) else (one, one) for one in symmetries]
    for symmetry in (one for some in both for one in some):
        _check_symmetry(symmetry)
    inputs = [pairs.inputs, *(check_field(first(pairs.inputs), "what a symmetry returns") for first, _ in both)]
    outputs = [pairs.outputs, *(check_field(second(pairs.outputs), "what a symmetry returns") for _, second in both)]
    groups = torch.arange(len(pairs), device="cpu") if pairs.groups is None else pairs.groups
    return FieldPairs(Field.cat(inputs), Field.cat(outputs), groups=groups.repeat(1 + len(both)))


def _check_symmetry(symmetry: object) -> None:
    if not callable(symmetry):
        raise DataError(
            expected="a symmetry, or for copies also a tuple of one for inputs and one for outputs",
            got=repr(symmetry),
            remedy="for example one of pn.symmetries.box(pairs.inputs.grid)",
        )


def _uniform(grid: Grid) -> tuple[Axis, ...]:
    if not grid.is_uniform:
        raise GridError(
            expected="a uniform grid",
            got=repr(grid),
            remedy="bring the functions to one with field.resample(Grid.uniform(...))",
        )
    return grid.axes


def _axes(field: Field) -> tuple[Axis, ...]:
    check_field(field, "field")
    return _uniform(field.grid)


def _check_axis(number: int, axes: Sequence[Axis], grid: Grid) -> None:
    if number >= len(axes):
        raise GridError(expected=f"a grid with axis {number}", got=repr(grid), remedy="axes count from zero")
