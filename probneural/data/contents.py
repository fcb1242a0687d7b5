"""Contents of a file, or of several: named variables, grids and times, and the data set that they make."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from probneural.arrays.layouts import Layout, layouts_of
from probneural.arrays.reading import stated_dimension
from probneural.checks import check_flag, check_positive, nearest, real_tensor, validated
from probneural.data.fields import FUNCTION, TIME, Part, StoredFields, Variable
from probneural.data.pairs import StoredPairs, stored_pairs
from probneural.data.readers import joined, stacked
from probneural.data.trajectories import Trajectories, trajectories_of
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.grids import Grid, per_axis


@validated
@dataclass(frozen=True, kw_only=True)
class FileLayout:
    """Names and roles of the axes of a file's variables, for files without them.

    Args:
        axes: Roles of the axes in the file's order, separated by spaces: n samples, t times, c channels, - an axis of
            length 1, any other name an axis of space. `"n x y c"`, or `"n c -> n x y"` where outputs differ. Variables
            without an axis of space are parameters: constant channels.
        sample: Name of the dimension of samples or trajectories.
        time: Name of the dimension or array of times; or the times, one per step.
        channel: Name of the dimension of channels.
        group: Group of the file that holds the variables.
        grid: Grid of the inputs, and of the outputs without `out_grid`.
        out_grid: Grid of the outputs; for inputs only, the grid of those without a space axis, which are constant.
        lengths: Extent of each axis of space; by default from coordinates, and 1 without them.

    Raises:
        ArgumentError: If an argument is of another kind, or roles or times are invalid.
    """

    axes: str | None = None
    sample: str | None = None
    time: Any = None
    channel: str | None = None
    group: str | None = None
    grid: Grid | None = None
    out_grid: Grid | None = None
    lengths: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        """Check the roles and the times."""
        layouts_of(self.axes)
        if self.time is not None and not isinstance(self.time, str):
            times = real_tensor(self.time, "time", error=ArgumentError)
            if times.ndim != 1 or not bool(times.isfinite().all()):
                raise ArgumentError(
                    expected="finite times in one sequence", got=repr(self.time)[:100], remedy="give one per state"
                )


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for variables of a file, with the user's description of their axes.

    Args:
        inputs: Names of the variables that are inputs; None for the format's own choice.
        outputs: Likewise.
        periodic: Whether axes of space are periodic, if stated.
        layout: Names and roles of axes, grids, times and group, as far as they are stated.
        layouts: Roles of the axes of inputs and of outputs, if stated.
    """

    inputs: tuple[str, ...] | None
    outputs: tuple[str, ...] | None
    periodic: bool | Sequence[bool] | None
    layout: FileLayout
    layouts: tuple[Layout | None, Layout | None] = (None, None)

    def for_side(self, side: int, *, grid: Grid | None, out_grid: Grid | None = None) -> Request:
        """The request for a file of the inputs (0) or the outputs (1) alone."""
        names = (self.inputs, self.outputs)[side]
        layout, layouts = replace(self.layout, grid=grid, out_grid=out_grid), (self.layouts[side],) * 2
        return replace(self, inputs=names, outputs=names, layout=layout, layouts=layouts)

    def dimension(self, *, is_input: bool) -> int | None:
        """Number of axes of space of a side, as far as the grid or a sequence among the options states it."""
        grid = self.layout.grid if is_input else (self.layout.out_grid or self.layout.grid)
        return len(grid.shape) if grid is not None else stated_dimension(self.layout.lengths, self.periodic)

    def rounds(self, count: int) -> tuple[bool, ...]:
        """Whether each of `count` axes is periodic; `periodic` must be stated."""
        return per_axis(self.periodic, count, "periodic", check_flag)

    def spans(self, count: int) -> tuple[float | None, ...]:
        """Extent of each of `count` axes, None where it is not stated."""
        return (
            (None,) * count if self.layout.lengths is None else per_axis(self.layout.lengths, count, "lengths", check_positive)
        )

    def names(
        self, available: Mapping[str, object], path: Path, inputs: Sequence[str] = (), outputs: Sequence[str] = ()
    ) -> Names:
        """The requested variables, or the format's defaults, if the file has them.

        Args:
            available: Variables of the file, by name, with their dimensions or shape for messages.
            path: Path of the file.
            inputs: The format's defaults.
            outputs: Likewise.

        Raises:
            DataError: If one is missing, or none is requested and the format has no defaults.
        """
        chosen = Names(tuple(self.inputs or inputs), tuple(self.outputs or outputs))
        listing = "; ".join(f"{name} {axes}" for name, axes in available.items()) or "no variables"
        if not (chosen.inputs and chosen.outputs):
            missing = " and ".join(f"{side}=" for side in ("inputs", "outputs") if not getattr(chosen, side))
            got, remedy = f"none, and it holds {listing}", f"choose among {', '.join(available) or 'those of another file'}"
            raise DataError(expected=f"{missing}, a list of variables of {path}", got=got, remedy=remedy)
        for name in (*chosen.inputs, *chosen.outputs):
            if name not in available:
                raise DataError(expected=f"a variable {name!r} of {path}", got=listing, remedy=nearest(name, available))
        return chosen


@dataclass(frozen=True)
class Names:
    """Names of the variables of both sides."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def both(self) -> tuple[str, ...]:
        """Each once."""
        return tuple(dict.fromkeys((*self.inputs, *self.outputs)))


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Named variables with their grids, and their times if some vary in time."""

    names: Names
    variables: Mapping[str, Variable]
    grids: Mapping[str, Grid] = field(default_factory=dict)
    times: Any = None
    time_units: str = ""
    """Units of the times, their origin included, "" if unknown."""

    def paired_with(self, outputs: Contents) -> Contents:
        """These inputs with the outputs of other files.

        Raises:
            DataError: If both have coordinates of their samples, or times, and they differ.
        """
        if self.times is not None and outputs.times is not None and np.shape(self.times) == np.shape(outputs.times):
            _check_same_unit("times", (self.time_units, outputs.time_units), ("the inputs", "the outputs"))
            _check_equal(np.asarray(self.times), np.asarray(outputs.times), "times")
        sides = (self, self.names.inputs), (outputs, outputs.names.outputs)
        for labels in itertools.product(*([part.variables[name].labels for name in names] for part, names in sides)):
            first, second = (label.coordinates.get(label.sample) for label in labels)
            if first is not None and second is not None and first.shape == second.shape:
                _check_equal(first, second, "samples")
        keys = {name: name if name not in self.variables else f"{name} of the outputs" for name in outputs.names.outputs}
        return Contents(
            names=Names(self.names.inputs, tuple(keys.values())),
            variables={**self.variables, **{key: outputs.variables[name] for name, key in keys.items()}},
            grids={**self.grids, **{key: outputs.grids[name] for name, key in keys.items()}},
            times=self.times if outputs.times is None else outputs.times,
            time_units=self.time_units or outputs.time_units,
        )

    def data(self, dtype: torch.dtype | None) -> StoredPairs | Trajectories:
        """Trajectories if a variable varies in time, else pairs.

        Raises:
            GridError: If the variables of one side have different grids, or trajectories two.
            ShapeError: If the variables have different numbers of samples.
        """
        inputs, outputs = ([self.variables[name] for name in side] for side in (self.names.inputs, self.names.outputs))
        grid, out_grid = self._grid(self.names.inputs), self._grid(self.names.outputs)
        counts = {name: self.variables[name].count(FUNCTION) for name in self.names.both}
        sizes = {count for count in counts.values() if count is not None}
        if len(sizes) > 1:
            remedy = 'choose variables of the same samples, or state the axes: axes="n x -> n x"'
            raise ShapeError(expected="as many samples of each variable", got=str(counts), remedy=remedy)
        if any(variable.count(TIME) is not None for variable in (*inputs, *outputs)):
            self._grid(self.names.both)
            return trajectories_of(inputs, outputs, times=self.times, grid=grid, dtype=dtype)
        if not sizes:
            raise ShapeError(
                expected="variables with an axis of samples, or of time",
                got=f"{', '.join(self.names.both)} without one",
                remedy='state the roles of the axes: axes="n x", or name the dimension: sample= or time=',
            )
        parts = [Part(variable=variable) for variable in inputs], [Part(variable=variable) for variable in outputs]
        return stored_pairs(*parts, sizes.pop(), grid=grid, out_grid=out_grid, dtype=dtype)

    def fields(self, dtype: torch.dtype | None, *, history: int) -> StoredFields:
        """The inputs alone; of trajectories, all windows of `history` steps.

        Raises:
            ArgumentError: If there are fewer times than that, or `history` is given for variables without times.
            GridError: If the variables have different grids.
            ShapeError: If they have different numbers of samples.
        """
        same = replace(self, names=Names(self.names.inputs, self.names.inputs))
        if all(self.variables[name].count(TIME) is None for name in self.names.inputs):
            if history != 1:
                raise ArgumentError(expected="history=1 without times", got=str(history), remedy="name the axis of time: time=")
            pairs = same.data(dtype)
            assert isinstance(pairs, StoredPairs)
            return pairs.inputs
        moving = tuple(name for name in self.names.inputs if self.variables[name].count(TIME) is not None)
        trajectories = replace(same, names=Names(self.names.inputs, moving)).data(dtype)
        assert isinstance(trajectories, Trajectories)
        return trajectories.histories(history)

    def _grid(self, names: Sequence[str]) -> Grid:
        grids = [self.grids[name] for name in names]
        if any(grid != grids[0] for grid in grids):
            raise GridError(
                expected=f"{', '.join(names)} on one grid", got=", ".join(map(repr, grids)), remedy="take variables of one grid"
            )
        return grids[0]


def _check_same_unit(name: str, units: Sequence[str], places: Sequence[object]) -> None:
    """Raise a DataError if two files give a variable in different units, or count times from different origins."""
    first, second = (unit.strip().removesuffix(" 00:00:00") for unit in units)
    if first and second and first != second:
        encoding = f'{{"time": {{"units": "{first}"}}}}'
        remedy = f"use one unit, and one origin of times: xarray.open_dataset(path).to_netcdf(new, encoding={encoding})"
        raise DataError(expected=f"{name} in {first!r}, as in {places[0]}", got=f"{second!r} in {places[1]}", remedy=remedy)


def _check_equal(first: NDArray[Any], second: NDArray[Any], name: str) -> None:
    """Raise a DataError unless inputs and outputs have the same coordinates."""
    differs = np.flatnonzero((first != second).reshape(-1))
    if len(differs):
        input_value, output_value = (values.reshape(-1)[differs[0]] for values in (first, second))
        raise DataError(
            expected=f"the same {name} of inputs and outputs in the same order",
            got=f"{input_value} and {output_value} as number {differs[0]}",
            remedy="bring the files into one order, by their coordinates: dataset.sortby(dimension), and write them again",
        )


def joined_contents(files: Sequence[Path], parts: Sequence[Contents]) -> Contents:
    """Samples of several files one after the other; or times, where files hold one series and each goes on after the last.

    Where no variable has an axis of samples, each file is one sample.

    Args:
        files: The files, for messages.
        parts: Contents of each file.

    Raises:
        GridError: If grids differ.
        DataError: If times of the files neither are the same nor follow each other, units differ, or values do of a variable
            that has no axis along which the files follow each other.
        ShapeError: If other lengths differ.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    for file, part in zip(files, parts, strict=True):
        has_other_names = any(_names(grid) != _names(first.grids[key]) for key, grid in part.grids.items())
        if part.grids != first.grids or has_other_names:
            raise GridError(
                expected=f"files on the grids of {files[0]}, {first.grids}",
                got=f"{part.grids} in {file}",
                remedy="open files of one grid together, and pn.fit(operator, [first, second]) takes several data sets",
            )
        units = {"times": (first.time_units, part.time_units)}
        units |= {name: (first.variables[name].unit, part.variables[name].unit) for name in first.names.both}
        for name, pair in units.items():
            _check_same_unit(name, pair, (files[0], file))
    times = [None if part.times is None else np.asarray(part.times, dtype=np.float64) for part in parts]
    column, moments = FUNCTION, first.times
    if times[0] is not None and not all(moments is not None and np.array_equal(moments, times[0]) for moments in times):
        together = np.concatenate([np.atleast_1d(moments) for moments in times if moments is not None])
        if any(variable.count(FUNCTION) is not None for variable in first.variables.values()) or (np.diff(together) <= 0).any():
            raise DataError(
                expected="files at the same times, or of one series whose times follow each other",
                got=f"times from {[float(moments.min()) for moments in times if moments is not None]}",
                remedy="list the files in the order of their times",
            )
        column, moments = TIME, together
    names = first.names.both
    if column == FUNCTION and all(variable.count(FUNCTION) is None for variable in first.variables.values()):
        variables = {name: _one_per_file([part.variables[name] for part in parts]) for name in names}
        return replace(first, variables=variables, times=moments)
    variables = {name: _joined_variable([part.variables[name] for part in parts], column, files) for name in names}
    return replace(first, variables=variables, times=moments)


def _values(variable: Variable) -> NDArray[Any]:
    return variable.reader.read(tuple(slice(0, length) for length in variable.reader.shape))


def _names(grid: Grid) -> list[str]:
    return [axis.name for axis in grid.axes]


def _one_per_file(parts: Sequence[Variable]) -> Variable:
    """A variable of files that hold one sample each."""
    first = parts[0]
    reader = stacked([part.reader for part in parts], first.name)
    labels = first.labels if TIME in first.leading else replace(first.labels, sample="sample")
    return replace(first, reader=reader, leading=(FUNCTION, *first.leading), labels=labels)


def _joined_variable(parts: Sequence[Variable], column: int, files: Sequence[Path]) -> Variable:
    """A variable of several files along its samples or its times."""
    first = parts[0]
    if column == FUNCTION and first.leading == (TIME,):
        return _one_per_file(parts)
    if column not in first.leading:  # the same in all files, coordinates for example
        values = _values(first)
        differs = [file for file, part in zip(files, parts, strict=True) if not np.array_equal(_values(part), values, True)]
        if differs:
            words = ("samples", "times")[column]
            raise DataError(
                expected=f"{first.name}, which has no axis of {words}, with the values of {files[0]} in all files",
                got=f"others in {differs[0]}",
                remedy=f"write it with an axis of {words}: dataset[name].expand_dims(...) in xarray; or open the files apart",
            )
        return first
    axis = first.leading.index(column)
    coordinates = dict(first.labels.coordinates)
    sample = first.labels.sample
    if column == FUNCTION and all(sample in part.labels.coordinates for part in parts):
        coordinates[sample] = np.concatenate([part.labels.coordinates[sample] for part in parts])
    reader = joined([part.reader for part in parts], axis, first.name)
    return replace(first, reader=reader, labels=replace(first.labels, coordinates=coordinates))
