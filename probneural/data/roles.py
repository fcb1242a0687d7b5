"""Roles of the axes of variables, stated or named, and the variables, grids, times and data sets that follow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from probneural.arrays import reading
from probneural.arrays.layouts import CHANNEL, SAMPLE, SINGLE, TIME, Layout, layouts_of, positional_layout
from probneural.data.contents import Contents, FileLayout, Names, Request
from probneural.data.fields import AxisLabels, Variable, variable_of
from probneural.data.pairs import StoredPairs, masked_pairs
from probneural.data.readers import reader_of
from probneural.data.sources import Source
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.grids import Grid, check_grid
from probneural.grids.coordinates import grid_from_coordinates, recorded_grid, turned_points


def contents_of(path: Path, sources: Mapping[str, Source], request: Request) -> Contents:
    """The requested variables, with their grids and times.

    Raises:
        DataError: If variables are not named or missing, or times are neither.
        ArgumentError: If the role of an axis is not stated, or `periodic` is missing.
        ShapeError: If an array does not fit.
        GridError: If coordinates are not equispaced, or contradict `lengths`.
    """
    names = request.names({name: source.axes for name, source in sources.items()}, path)
    stated = _stated_roles(sources, names, request)
    layouts = {name: _layout(sources[name], request, stated, is_input=name in names.inputs) for name in names.both}
    reference = next((layout.space for layout in layouts.values() if layout.space), ())
    layouts = {name: replace(layout, order=reference) for name, layout in layouts.items()}
    spaces = {name: _grid(sources[name], layouts[name], request, is_input=name in names.inputs) for name in names.both}
    grids = _with_parameter_grids(spaces, layouts, names, request)
    if (
        request.layouts == (None, None)
        and request.layout.grid is None
        and not any(sources[name].has_names for name in names.both)
    ):
        reading.check_not_parameters(grids[names.inputs[0]], grids[names.outputs[0]])
    variables = {name: _variable(sources[name], layouts[name], grids[name]) for name in names.both}
    times, units = _times(path, sources, layouts, names, request)
    return Contents(names=names, variables=variables, grids=grids, times=times, time_units=units)


def _stated_roles(sources: Mapping[str, Source], names: Names, request: Request) -> dict[str, str]:
    """Roles by dimension: of stated names, and of stated layouts of variables with the same number of axes."""
    roles: dict[str, str] = {}
    for layout, side in zip(request.layouts, (names.inputs, names.outputs), strict=True):
        for source in (sources[name] for name in side):
            if layout is not None and len(source.dims) == len(layout.roles):
                roles |= {dim: role for dim, role in zip(source.dims, layout.roles, strict=True) if dim}
    dims = {dim for name in names.both for dim in sources[name].dims if dim}
    for argument, name, role in (
        ("channel", request.layout.channel, CHANNEL),
        ("time", request.layout.time, TIME),
        ("sample", request.layout.sample, SAMPLE),
    ):
        if isinstance(name, str) and dims and name not in dims:
            raise ShapeError(
                expected=f"{argument}=, a dimension of {', '.join(f'{one} {sources[one].axes}' for one in names.both)}",
                got=repr(name),
                remedy=f"name one of {', '.join(sorted(dims))}, or leave {argument}= out",
            )
        roles |= {name: role} if isinstance(name, str) else {}
    return roles


def _layout(source: Source, request: Request, roles: Mapping[str, str], *, is_input: bool) -> Layout:
    """The role of each axis of a variable."""
    stated = request.layouts[0 if is_input else 1]
    if stated is not None and len(stated.roles) == len(source.reader.shape):
        stated.check(source.reader.shape, source.name)
        _check_names(stated, source)
        return stated
    if source.has_names:
        return _named_layout(source, roles)
    if stated is not None:
        stated.check(source.reader.shape, source.name)  # which raises
    reading.check_stated(request.layout.grid, request.periodic)
    has_time = request.layout.time is not None
    if is_input and source.reader.shape[1:] in ((), (1,)) and not has_time:  # one parameter per sample
        return Layout((SAMPLE, SINGLE)[: len(source.reader.shape)])
    return positional_layout(
        source.reader.shape, source.name, dimension=request.dimension(is_input=is_input), has_time=has_time
    )


def _named_layout(source: Source, stated: Mapping[str, str]) -> Layout:
    """Roles by statement, names and attributes; an axis without one is an error."""
    roles = [stated.get(dim, source.named_role(dim)) if dim else "" for dim in source.dims]
    for role in (SAMPLE, TIME):  # of several that could be it, the stated one is
        if roles.count(role) > 1:
            roles = [
                "" if known_role == role and dim not in stated else known_role
                for known_role, dim in zip(roles, source.dims, strict=True)
            ]
    unknown = [number for number, role in enumerate(roles) if not role]
    if unknown:
        raise _unknown_role(source, roles, unknown)
    return Layout(tuple(roles))


def _unknown_role(source: Source, roles: Sequence[str], unknown: Sequence[int]) -> ArgumentError:
    """An error for unknown roles of axes, with the calls to write."""
    first, *others = unknown
    names = [re.sub(r"\W", "_", dim) or f"x{number}" for number, dim in enumerate(source.dims)]
    meanings = {SAMPLE: "samples"} if SAMPLE not in roles else {}
    meanings |= {CHANNEL: "channels"}
    meanings |= {SINGLE: "nothing"} if source.reader.shape[first] == 1 else {names[first]: "an axis of space"}
    choices = []
    for role, meaning in meanings.items():
        fillers = {first: role} | {number: names[number] for number in others}
        layout = [fillers.get(number, known_role) for number, known_role in enumerate(roles)]
        if {SAMPLE, TIME} & {*layout}:
            choices.append(f'axes="{" ".join(layout)}" if it is {meaning}')
    words = [repr(source.dims[number]) if source.dims[number] else f"number {number}" for number in unknown]
    return ArgumentError(
        expected=f"the role of axis {', '.join(words)} of {source.name} {source.axes}",
        got="a name that does not tell it",
        remedy=f"state it: {', '.join(choices)}",
    )


def _check_names(stated: Layout, source: Source) -> None:
    """Raise an ArgumentError if a stated axis of space has the name of another dimension of the variable."""
    for number, (role, dim) in enumerate(zip(stated.roles, source.dims, strict=False)):
        if role in source.dims and role != dim and role in stated.space:
            raise ArgumentError(
                expected=f"axes= in the order of {source.name} {source.axes}",
                got=f"{role!r} as axis {number}, which is {dim!r}",
                remedy=f"name the roles in the file's order: {', '.join(map(repr, source.dims))}",
            )


def _grid(source: Source, layout: Layout, request: Request, *, is_input: bool) -> Grid | None:
    """The grid of a variable; None if it has no axis of space."""
    stated = request.layout.grid if is_input else (request.layout.out_grid or request.layout.grid)
    if not layout.space:
        return None
    if stated is not None:
        return stated
    shape = tuple(source.reader.shape[axis] for axis in layout.space_axes)
    dims = [source.dims[axis] for axis in layout.space_axes]
    labels = [dim or role for dim, role in zip(dims, layout.space, strict=True)]
    recorded = recorded_grid(source.attributes, shape) if request.periodic is None and request.layout.lengths is None else None
    coordinates = {dim: _coordinate(source, dim) for dim in dims if dim in source.coordinates}
    if recorded is not None or coordinates:
        return grid_from_coordinates(
            {label: coordinates.get(dim) for label, dim in zip(labels, dims, strict=True)},
            shape,
            recorded=recorded,
            periodic=request.periodic,
            lengths=request.layout.lengths,
            units=[str(source.axis_attributes.get(dim, {}).get("units", "")) for dim in dims],
        )
    if not source.has_names and request.layouts == (None, None):
        reading.check_channels(source.reader.shape, layout, source.name)
    return reading.grid_of(shape, source.name, names=labels, lengths=request.layout.lengths, periodic=request.periodic)


def _coordinate(source: Source, dim: str) -> NDArray[Any]:
    points = source.coordinates[dim]
    return points[::-1] if source.descends(dim) else points


def _with_parameter_grids(
    grids: Mapping[str, Grid | None], layouts: Mapping[str, Layout], names: Names, request: Request
) -> dict[str, Grid]:
    """Parameters, which have no axis of space, are constant on the grid of the other inputs, or else of the outputs."""
    stated = [grids[name] for name in names.both if grids[name] is not None]
    where = request.layout.grid or next(iter(stated), request.layout.out_grid)
    if where is None:
        raise ArgumentError(
            expected=f"an axis of space of {', '.join(names.both)}",
            got=f"axes {', '.join(str(layouts[name]) for name in names.both)}",
            remedy="name one in axes=, or state where samples live: grid=",
        )
    return {name: grid or where for name, grid in grids.items()}


def _variable(source: Source, layout: Layout, grid: Grid) -> Variable:
    """A variable with its labels and its unit."""
    space = [source.dims[axis] for axis in layout.space_axes]
    descending = [axis for axis, dim in zip(layout.space_axes, space, strict=True) if dim and source.descends(dim)]
    samples = layout.axes(SAMPLE)
    sample = source.dims[samples[0]] if samples else ""
    labelled = [dim for dim in (sample, *space) if dim in source.coordinates]
    points = [_coordinate(source, dim) if dim in source.coordinates else None for dim in space]
    shifts = turned_points(grid, points) if space and len(space) == len(grid.axes) else (0,) * len(space)
    starts = [0] * len(layout.roles)
    for axis, shift in zip(layout.space_axes, shifts, strict=True):
        starts[axis] = shift
    along = {
        dim: np.roll(values, -shift) for dim, values, shift in zip(space, points, shifts, strict=True) if values is not None
    }
    labels = AxisLabels(
        sample=sample or ("sample" if samples else "trajectory"),
        space=tuple(dim or role for dim, role in zip(space, layout.space, strict=True)) if source.has_names else (),
        coordinates={dim: along[dim] if dim in along else source.coordinates[dim] for dim in labelled}
        | {name: values for name, (dim, values) in source.labels.items() if dim == sample},
        attributes={dim: source.axis_attributes.get(dim, {}) for dim in labelled},
    )
    variable = variable_of(source.reader, layout, grid, source.name, descending=descending, starts=starts, dims=source.dims)
    return replace(
        variable, labels=replace(labels, turned=variable.labels.turned), unit=str(source.attributes.get("units", ""))
    )


def _times(
    path: Path, sources: Mapping[str, Source], layouts: Mapping[str, Layout], names: Names, request: Request
) -> tuple[Any, str]:
    """Times of the steps and their units: stated, the array or coordinate that is named, or numbers of steps.

    The times are None without an axis of time, and the units "" if they are unknown.
    """
    moving = [name for name in names.both if TIME in layouts[name].roles]
    stated = request.layout.time
    if not moving:
        return None, ""
    if stated is not None and not isinstance(stated, str):
        return stated, ""
    source, layout = sources[moving[0]], layouts[moving[0]]
    axis = layout.axes(TIME)[0]
    dim = source.dims[axis]
    if dim in source.coordinates:
        return source.coordinates[dim], str(source.axis_attributes.get(dim, {}).get("units", ""))
    if isinstance(stated, str) and stated != dim:
        if stated not in sources or len(sources[stated].reader.shape) != 1:
            raise DataError(
                expected=f"the times, one axis, as {stated!r} in {path}",
                got=f"shape {sources[stated].reader.shape}" if stated in sources else "no such array",
                remedy="state them as numbers: time=[0.0, 0.1, ...]",
            )
        reader = sources[stated].reader
        return reader.read((slice(0, reader.shape[0]),)), str(sources[stated].attributes.get("units", ""))
    if dim and request.layouts == (None, None):
        raise DataError(
            expected=f"times as a coordinate {dim!r} in {path}",
            got="none",
            remedy=f'for pairs at each time, write sample="{dim}"; for steps from one time to the next, count them: '
            f'axes="{layout}"; or state their times, one number per step, in a Python program',
        )
    return np.arange(float(source.reader.shape[axis])), ""


def from_arrays(
    inputs: Any,
    outputs: Any,
    *,
    axes: str | None = None,
    grid: Grid | None = None,
    out_grid: Grid | None = None,
    periodic: bool | Sequence[bool] | None = None,
    dtype: torch.dtype | None = None,
    mask: reading.Mask | tuple[reading.Mask, reading.Mask] = None,
) -> StoredPairs:
    """Make a data set of arrays `(n, c, *grid)` of any kind that can be sliced, read a few samples at a time.

    A memory map of a file, `np.load(path, mmap_mode="r")`, is read by positions in the file, so that memory in use stays small.

    Args:
        inputs: A NumPy array or memory map, a tensor, a `h5py.Dataset`, a zarr array; real, in physical units.
        outputs: Outputs, likewise.
        axes: Roles of the axes, for example `"n x y c"`: see [`open`][probneural.data.open]. By default `(n, c, *grid)`, or
            `(n, *grid)` where `grid` or the entries of `periodic` state the number of axes of space.
        grid: Grid of the inputs, and of the outputs without `out_grid`; or `periodic` for the unit cube.
        out_grid: Grid of the outputs.
        periodic: Whether each axis is periodic, one entry per axis or one for all.
        dtype: float32 or float64; by default float64 if either array is of it, else float32.
        mask: Mask of missing values: True for those that are NaN, sample by sample; or bool `(*grid,)` in the
            array's order of axes, True at points that are missing in all samples, land for example. A tuple of two where inputs
            and outputs differ.

    Returns:
        The data set. Values are checked where they are read.

    Raises:
        DataError: If an argument is not an array of real numbers.
        ShapeError: If a shape does not fit or is ambiguous, the numbers of samples differ, or inputs look like parameters.
        ArgumentError: If neither `grid` nor `periodic` is given, or both, or `dtype` is another one.

    Examples:
        >>> import numpy as np
        >>> data = from_arrays(np.zeros((10, 1, 8)), np.zeros((10, 2, 8)), axes="n c x", periodic=True)
        >>> len(data), data.outputs.channels, data[2:4].outputs.values.shape
        (10, 2, torch.Size([2, 2, 8]))
    """
    reading.check_grid_alone(grid, periodic)
    reading.check_dtype(dtype)
    for where in (grid, out_grid):
        if where is not None:
            check_grid(where)
    layout, layouts = FileLayout(axes=axes, grid=grid, out_grid=out_grid), layouts_of(axes)
    request = Request(inputs=("inputs",), outputs=("outputs",), periodic=periodic, layout=layout, layouts=layouts)
    arrays = {"inputs": inputs, "outputs": outputs}
    for stated, name in zip(layouts, arrays, strict=True):
        if stated is not None:
            reading.check_samples(stated, name)
    sources = {name: Source(name=name, reader=reader_of(array, name)) for name, array in arrays.items()}
    pairs = contents_of(Path("the arrays"), sources, request).data(dtype)
    assert isinstance(pairs, StoredPairs)  # without an axis of time
    return masked_pairs(pairs, *(mask if isinstance(mask, tuple) else (mask, mask)))
