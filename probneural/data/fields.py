"""Lazily read fields, and masks of their samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from probneural.arrays.reading import Mask, to_tensor
from probneural.checks import check_device
from probneural.data.variables import FUNCTION, AxisLabels, Variable, common_dtype
from probneural.errors import ArgumentError, DataError, FileError, ProbneuralError, ShapeError, UnsupportedError
from probneural.fields import Field, select_rows
from probneural.grids import Grid
from probneural.pairs import Rows


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
                raise FileError(
                    expected=f"{part.variable.name} to be readable",
                    got=str(error),
                    remedy="check that the file is there, whole, and open it again if it was replaced",
                ) from error
            parts.append(_converted(values, part, places, self.native_dtype, takes_nan=grid.is_masked and not is_per_sample))
        channels = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        where = grid.select(rows) if is_per_sample else self._masked(channels, places) if grid.is_masked else grid
        field = Field(channels, where, names=self.names, units=self.units)
        field = field if self.dtype == field.dtype else field.to(self.dtype)
        return field if self.device == field.device else field.to(self.device)

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
        raise ShapeError(
            expected=f"truth values as mask, of shape {side.grid.shape}",
            got=f"{missing.dtype} of shape {tuple(missing.shape)}",
            remedy="pass mask=True where NaN means missing, sample by sample",
        )
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
