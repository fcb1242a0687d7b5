"""Variables: arrays whose axes have roles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from probneural.arrays import layouts
from probneural.arrays.layouts import Layout, ambiguity_remedy
from probneural.arrays.reading import turned_mask
from probneural.data.readers import ArrayReader, arranged, gather
from probneural.errors import DataError, ShapeError
from probneural.grids import Grid

FUNCTION, TIME = 0, 1
"""Columns of a place: the number of the sample or trajectory, and the step of time."""


@dataclass(frozen=True, eq=False, kw_only=True)
class AxisLabels:
    """Names of the axes of a variable in a file, and its coordinates along them.

    Args:
        sample: The dimension of samples or trajectories.
        space: The dimensions of space; none where they have no names.
        coordinates: Those of the file, by dimension; as they are in it, but ascending.
        attributes: Attributes of the coordinates, units for example.
        turned: Mask `(*space,)` in the order of the stored array to a mask in the order of the grid; None without axes of
            space.
    """

    sample: str = "sample"
    space: tuple[str, ...] = ()
    coordinates: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    turned: Callable[[Any], Any] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Variable:
    """Samples in an array whose first axes are samples and times, unless it is constant along these.

    Args:
        name: Name in messages.
        reader: The array.
        leading: The first axes, `FUNCTION` and `TIME` or fewer; the array is constant along the missing ones.
        channel_axes: Axes of channels, counted after the leading ones; the others are space.
        grid_shape: Points per axis of space.
        varies: Whether the array varies along each axis of space; it has no axis for the others. By default all.
        labels: Names and coordinates of the axes in the file.
        unit: Unit of the values, "" if unknown.
    """

    name: str
    reader: ArrayReader
    leading: tuple[int, ...]
    channel_axes: tuple[int, ...]
    grid_shape: tuple[int, ...]
    varies: tuple[bool, ...] | None = None
    labels: AxisLabels = field(default_factory=AxisLabels)
    unit: str = ""

    def __post_init__(self) -> None:
        """Check that the axes fit the grid and the numbers are real."""
        rank = len(self._expected_space) + len(self.channel_axes)
        if self._space_shape != self._expected_space or len(self.inner_shape) != rank:
            leading = [(layouts.SAMPLE, layouts.TIME)[column] for column in self.leading]
            raise ShapeError(
                expected=f"{self.name} of shape {self._expected_shape}",
                got=str(self.reader.shape),
                remedy=f"state the grid by grid=, or {ambiguity_remedy(self.reader.shape, leading)}",
            )
        kind = self.reader.dtype
        if kind.kind not in "biuf" or kind.itemsize > 8:
            remedy = "store real and imaginary parts as two channels" if kind.kind == "c" else "store it as float32 or float64"
            raise DataError(expected=f"real {self.name} of at most 64 bits", got=f"dtype {kind}", remedy=remedy)

    @property
    def inner_shape(self) -> tuple[int, ...]:
        """Lengths of the axes after the leading ones."""
        return self.reader.shape[len(self.leading) :]

    @property
    def channels(self) -> int:
        """Number of channels c."""
        return math.prod(self.inner_shape[axis] for axis in self.channel_axes)

    @property
    def dtype(self) -> torch.dtype:
        """float64 if the numbers are of it, else float32."""
        return torch.float64 if self.reader.dtype.kind == "f" and self.reader.dtype.itemsize == 8 else torch.float32

    def count(self, column: int) -> int | None:
        """Number of samples, or times; None if the array is constant along them."""
        return self.reader.shape[self.leading.index(column)] if column in self.leading else None

    def read(self, places: NDArray[np.int64]) -> NDArray[np.generic]:
        """Read values `(m, c, *grid)` at places `(m, 2)`."""
        values = gather(self.reader, places[:, self.leading])
        count = len(values)
        values = np.moveaxis(values, [1 + axis for axis in self.channel_axes], range(1, 1 + len(self.channel_axes)))
        flags = iter(self._space_shape)
        space = [next(flags) if varies else 1 for varies in self._flags]
        return np.broadcast_to(values.reshape(count, self.channels, *space), (count, self.channels, *self.grid_shape))

    @property
    def _flags(self) -> tuple[bool, ...]:
        return (True,) * len(self.grid_shape) if self.varies is None else self.varies

    @property
    def _space_shape(self) -> tuple[int, ...]:
        return tuple(length for axis, length in enumerate(self.inner_shape) if axis not in self.channel_axes)

    @property
    def _expected_space(self) -> tuple[int, ...]:
        return tuple(length for length, varies in zip(self.grid_shape, self._flags, strict=True) if varies)

    @property
    def _expected_shape(self) -> str:
        words = [("samples", "times")[column] for column in self.leading]
        space = iter(self._expected_space)
        for axis in range(len(self._expected_space) + len(self.channel_axes)):
            words.append("channels" if axis in self.channel_axes else str(next(space)))
        return f"({', '.join(words)})"


def variable_of(
    reader: ArrayReader,
    layout: Layout,
    grid: Grid,
    name: str,
    *,
    descending: Sequence[int] = (),
    starts: Sequence[int] = (),
    dims: Sequence[str] = (),
) -> Variable:
    """An array as a variable: samples and times first, then channels and space in their order.

    Args:
        reader: The array.
        layout: Roles of its axes.
        grid: Where it lives; it is constant there if no axis is space.
        name: The variable's name in messages.
        descending: Axes of the array that are read from the last entry to the first.
        starts: Per axis of the array, the entry that comes first.
        dims: Names of the axes of the array, if they have any.

    Raises:
        ShapeError: If it does not fit the grid.
    """
    columns = {layouts.SAMPLE: FUNCTION, layouts.TIME: TIME}
    leading = [role for role in columns if role in layout.roles]
    space = iter(layout.space_axes)  # in the order of the grid, where the array has another one
    roles = ((axis, role) for axis, role in enumerate(layout.roles) if role == layouts.CHANNEL or role in layout.space)
    stored_axes = [axis if role == layouts.CHANNEL else next(space) for axis, role in roles]
    names: Sequence[Any] = dims if len({*dims}) == len(layout.roles) else range(len(layout.roles))
    turns: dict[str, Any] = {
        "dims": names,
        "sample": next((names[axis] for axis in layout.axes(layouts.SAMPLE)), None),
        "space": [names[axis] for axis in layout.space_axes],
        "descending": [names[axis] for axis in descending],
        "shifts": [starts[axis] for axis in layout.space_axes] if starts else (),
    }
    return Variable(
        name=name,
        reader=arranged(reader, [layout.axes(role)[0] for role in leading] + stored_axes, descending=descending, starts=starts),
        leading=tuple(columns[role] for role in leading),
        channel_axes=tuple(number for number, axis in enumerate(stored_axes) if layout.roles[axis] == layouts.CHANNEL),
        grid_shape=grid.shape,
        varies=(bool(layout.space),) * len(grid.shape),
        labels=AxisLabels(turned=partial(turned_mask, **turns) if layout.space else None),
    )


def common_dtype(variables: Iterable[Variable]) -> torch.dtype:
    """float64 if the numbers of a variable are of it, else float32."""
    is_double = any(variable.dtype == torch.float64 for variable in variables)
    return torch.float64 if is_double else torch.float32
