"""Variables, arrays whose axes have roles; fields of variables that are read on access; masks of their samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from probneural.arrays import layouts
from probneural.arrays.reading import Mask, to_tensor, turned_mask
from probneural.checks import check_device
from probneural.data.readers import ArrayReader, arranged, gather
from probneural.errors import ArgumentError, DataError, FileError, ProbneuralError, ShapeError, UnsupportedError
from probneural.fields import Field, select_rows
from probneural.grids import Grid
from probneural.pairs import Rows

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
                remedy=f"state the grid by grid=, or {layouts.ambiguity_remedy(self.reader.shape, leading)}",
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
    layout: layouts.Layout,
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Part:
    """Channels of a field: a variable at one or several time steps, relative to the row's step."""

    variable: Variable
    steps: tuple[int, ...] = (0,)

    @property
    def channels(self) -> int:
        """Channels of all steps."""
        return len(self.steps) * self.variable.channels

    def read(self, places: NDArray[np.int64]) -> NDArray[np.generic]:
        """Read values `(m, c, *grid)`, the channels of the first step first."""
        shifts = np.array([(0, step) for step in self.steps], np.int64)
        values = self.variable.read((places[:, None] + shifts).reshape(-1, 2))
        return values.reshape(len(places), self.channels, *values.shape[2:])


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StoredFields:
    """n samples on one grid or one mesh each, read from files in chunks: a [`FieldSource`][probneural.pairs.FieldSource].

    Make them with [`open`][probneural.data.open] or [`from_arrays`][probneural.data.from_arrays].

    Args:
        parts: Variables that form the channels.
        places: Sample and time step of each row, `(n, 2)`.
        grid: Grid of the samples. NaN is allowed at masked points. A batch of no grids stands for masks read with the values
            (points where a channel is NaN); see `with_missing`.
        native_dtype: Dtype of the numbers read from the file.
        dtype: Dtype of the fields.
        device: Device of the fields.
    """

    parts: tuple[Part, ...]
    places: Int64[Tensor, "n 2"]
    grid: Grid
    native_dtype: torch.dtype
    dtype: torch.dtype
    device: torch.device

    @property
    def channels(self) -> int:
        """Number of channels c."""
        return sum(part.channels for part in self.parts)

    @property
    def labels(self) -> AxisLabels:
        """Names and coordinates of the axes of the first variable."""
        return self.parts[0].variable.labels

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the channels."""
        return tuple(part.variable.name for part in self.parts for _ in range(part.channels))

    @property
    def units(self) -> tuple[str, ...]:
        """Units of the channels; empty if unknown."""
        units = tuple(part.variable.unit for part in self.parts for _ in range(part.channels))
        return units if any(units) else ()

    def to(self, target: torch.device | torch.dtype | str) -> StoredFields:
        """The same samples, read to another device or dtype.

        Raises:
            DataError: If the dtype is neither float32 nor float64.
            ArgumentError: If the device does not exist.
        """
        if not isinstance(target, torch.dtype):
            return replace(self, device=check_device(target))
        if target not in (torch.float32, torch.float64):
            raise DataError(expected="float32 or float64", got=str(target), remedy="fields have real floating point values")
        return replace(self, dtype=target)

    def with_missing(self) -> StoredFields:
        """The same samples with NaN as a missing value: fields that are read have a mask per sample."""
        return replace(self, grid=self.grid.unmasked.masked(torch.ones(0, *self.grid.shape, dtype=torch.bool, device="cpu")))

    def with_grid(self, observed: Tensor) -> StoredFields:
        """The same samples with one mask for all: bool `(*grid,)`, False at missing points."""
        return replace(self, grid=self.grid.unmasked.masked(observed))

    def subset(self, index: Rows) -> StoredFields:
        """Choose some samples without reading them, in the order of the index."""
        rows = select_rows(index, len(self))
        grid = self.grid.select(rows) if self.grid.has_points_per_sample else self.grid
        return replace(self, places=self.places[rows], grid=grid)

    def __len__(self) -> int:
        """Number of samples n."""
        return len(self.places)

    def __getitem__(self, index: Rows) -> Field:
        """Read some samples, in the order of the index; one integer keeps the batch axis.

        Raises:
            DataError: If a value is NaN or infinite; the message names the sample.
            FileError: If a file cannot be read.
        """
        rows = select_rows(index, len(self))
        places, grid = self.places[rows].numpy(), self.grid
        is_per_sample = grid.has_points_per_sample
        parts = []
        for part in self.parts:
            try:
                values = part.read(places)
            except ProbneuralError:
                raise
            except Exception as error:  # codecs raise arbitrary exceptions if a file is replaced while open
                remedy = "check that the file is there, whole, and open it again if it was replaced"
                raise FileError(expected=f"{part.variable.name} to be readable", got=str(error), remedy=remedy) from error
            parts.append(_converted(values, part, places, self.native_dtype, takes_nan=grid.is_masked and not is_per_sample))
        channels = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        where = grid.select(rows) if is_per_sample else self._masked(channels, places) if grid.is_masked else grid
        read = Field(channels, where, names=self.names, units=self.units)
        read = read if self.dtype == read.dtype else read.to(self.dtype)
        return read if self.device == read.device else read.to(self.device)

    def _masked(self, values: Tensor, places: NDArray[np.int64]) -> Grid:
        """The grid masked where values are NaN, or a DataError that names the sample."""
        missing = values.isnan().any(1)
        if not self.grid.is_batch:
            bad = (missing & self.grid.observed).flatten(1).any(1)
            if not bool(bad.any()):
                return self.grid
            what = "NaN at points that the mask leaves"
            remedy = "repair it, leave it out: data.subset(rows), or read NaN as missing: mask=True"
        else:
            bad = missing.flatten(1).all(1)
            if not bool(bad.any()):
                return self.grid.unmasked.masked(~missing)
            what, remedy = "NaN at all points", "leave it out: data.subset(rows)"
        name = self.parts[0].variable.name
        row = int(places[int(bad.nonzero()[0, 0]), 0])
        raise DataError(expected=f"values of {name}", got=f"{what} in function {row}", remedy=remedy)

    def __repr__(self) -> str:
        """A short description."""
        return f"StoredFields({len(self)} x {self.channels} on {self.grid!r}, {self.dtype})"


def _converted(
    values: NDArray[np.generic], part: Part, places: NDArray[np.int64], dtype: torch.dtype, *, takes_nan: bool = False
) -> Tensor:
    """Values as a tensor, or a DataError that names the sample whose values are not finite."""
    name = part.variable.name
    try:
        return to_tensor(values, name, dtype=dtype, takes_nan=takes_nan)
    except DataError as error:
        with np.errstate(over="ignore"):
            finite = np.isfinite(values.astype(np.float32 if dtype == torch.float32 else np.float64))
        bad = np.flatnonzero(~finite.reshape(len(values), -1).all(1))
        if not len(bad):
            raise
        function, step = places[bad[0]].tolist()
        when = f", window at step {step}" if part.variable.leading != (FUNCTION,) and len(part.variable.leading) else ""
        raise DataError(
            expected=f"finite {name} in {dtype}",
            got=f"values that are NaN or infinite in function {function}{when}",
            remedy="repair it, or leave it out: data.subset(rows); where NaN means missing, pass mask=True",
        ) from error


def stored(
    parts: Sequence[Part], places: Int64[Tensor, "n 2"], *, grid: Grid, dtype: torch.dtype | None = None
) -> StoredFields:
    """Fields of some parts, in `dtype`; by default float64 if a part is float64, otherwise float32."""
    native = dtype or common_dtype(part.variable for part in parts)
    device = torch.device("cpu")
    return StoredFields(parts=tuple(parts), places=places, grid=grid, native_dtype=native, dtype=native, device=device)


LAND = "land"
"""The mask of points that are NaN in all samples."""


def with_mask(side: StoredFields, mask: Mask | str, *, partner: StoredFields | None = None) -> StoredFields:
    """Samples with a mask.

    Args:
        side: The samples.
        mask: True: NaN means missing, sample by sample. "land": points that are NaN in the first sample are missing in all.
            A bool array `(*grid,)` in the order of the array's axes: True at points that are missing in all samples. None:
            no mask.
        partner: The other side of pairs, whose array defines the order of axes if this side has no space axis.

    Raises:
        ShapeError: If an array has another shape or is not boolean.
        ArgumentError: If `mask` is another string, or not an array.
    """
    if mask is None or mask is False or not len(side):
        return side
    if mask is True:
        return side.with_missing()
    if isinstance(mask, str):
        if mask != LAND:
            raise ArgumentError(
                expected='mask=True, mask="land" or an array of truth values', got=repr(mask), remedy='write mask="land"'
            )
        return side.with_grid(side.with_missing()[0].grid.observed[0])
    labels = [part.variable.labels for part in (*side.parts, *(partner.parts if partner else ()))]
    turn = next((label.turned for label in labels if label.turned is not None), None)
    turned = mask if turn is None else turn(mask)
    try:
        missing = torch.as_tensor(turned)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            expected=f"truth values as mask, of shape {side.grid.shape}", got=str(error), remedy="pass a boolean tensor"
        ) from error
    if missing.dtype != torch.bool or tuple(missing.shape) != side.grid.shape:
        expected, got = f"truth values as mask, of shape {side.grid.shape}", f"{missing.dtype} of shape {tuple(missing.shape)}"
        raise ShapeError(expected=expected, got=got, remedy="pass mask=True where NaN means missing, sample by sample")
    return side.with_grid(~missing)


def with_one_mask(states: Sequence[Field]) -> Field:
    """The first of several states, with the common mask of all samples of all states.

    Raises:
        UnsupportedError: If masks differ.
    """
    start = states[0]
    if not start.grid.is_batch or not len(start):
        return start
    observed = start.grid.observed[0]
    if not all(bool((state.grid.observed == observed).all()) for state in states):
        raise UnsupportedError(
            expected="trajectories in memory with one mask at all times",
            got="masks that differ between times or trajectories",
            remedy='keep the trajectories as they are stored and take pairs, data.windows(); or pass mask="land" where the '
            "points that are missing in the first sample are missing in all",
        )
    return Field(start.values, start.grid.unmasked.masked(observed), names=start.names, units=start.units)
