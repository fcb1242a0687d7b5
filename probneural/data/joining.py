"""Contents of several files as those of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probneural.data.arranged import SingleReader, joined
from probneural.data.contents import Contents, check_same_time_units
from probneural.data.variables import FUNCTION, TIME, Variable
from probneural.errors import DataError, GridError
from probneural.grids import Grid


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
        _check_units(files[0], file, first, part)
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


def _check_units(first_file: Path, second_file: Path, first: Contents, part: Contents) -> None:
    """Raise a DataError if units of a variable, or of times, differ."""
    check_same_time_units(first, part, str(first_file), str(second_file))
    for name in first.names.both:
        units = first.variables[name].unit, part.variables[name].unit
        if all(units) and units[0] != units[1]:
            raise DataError(
                expected=f"{name} in {units[0]!r}, as in {first_file}",
                got=f"{units[1]!r} in {second_file}",
                remedy="convert the values of the files to one unit, and write it in their attribute units",
            )


def _one_per_file(parts: Sequence[Variable]) -> Variable:
    """A variable of files that hold one sample each."""
    first = parts[0]
    reader = joined([SingleReader(part.reader) for part in parts], 0, first.name)
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
