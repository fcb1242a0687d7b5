"""Arrays of NumPy and xarray as values on a grid, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probneural.arrays.layouts import CHANNEL, SAMPLE, SINGLE, TIME, Layout, ambiguity_remedy, named_role, positional_layout
from probneural.checks import as_array, described, optional
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.grids import Grid, check_grid
from probneural.grids.coordinates import grid_from_coordinates, recorded_grid, turned_points

if TYPE_CHECKING:
    import xarray

Mask: TypeAlias = "bool | NDArray[Any] | Tensor | None"
"""Which values are missing: True for those that are NaN, or an array that is True at missing points."""
_FEW, _MANY = 8, 4
"""Largest number of points of inputs that may be parameters, and least ratio of the number of output points to it."""
_NAN_REMEDY = "drop or repair those samples; where NaN means missing, pass mask=True, or an array that is True there"


def to_tensor(array: object, name: str, *, dtype: torch.dtype, takes_nan: bool = False) -> Tensor:
    """Copy an array of real numbers into a tensor on the CPU; the array's byte order, strides and flags do not matter.

    Args:
        array: Booleans, integers, or floating point numbers of at most 64 bits.
        name: Name of the array, for the message.
        dtype: float32 or float64.
        takes_nan: Whether NaN and masked values are missing ones, NaN in the tensor, and no error.

    Raises:
        DataError: If the numbers are complex, wider than 64 bits or no numbers, if a value is masked, NaN or infinite (in
            `dtype`, too), or if an integer is not representable in `dtype`.
        ArgumentError: If `dtype` is another one.

    Examples:
        >>> to_tensor(np.array([0, 1], dtype=">i2"), "inputs", dtype=torch.float32)
        tensor([0., 1.])
    """
    check_dtype(dtype)
    hidden = np.ma.getmaskarray(array) if np.ma.isMaskedArray(array) else None
    if hidden is not None and bool(hidden.any()) and not takes_nan:
        raise DataError(expected=f"{name} without masked values", got="a masked array", remedy=_NAN_REMEDY)
    numbers = _numbers(array)
    if numbers.dtype.kind not in "biuf" or numbers.dtype.itemsize > 8:
        remedy = (
            "stack real and imaginary parts as two channels" if numbers.dtype.kind == "c" else "convert with .astype(float)"
        )
        raise DataError(expected=f"real {name} of at most 64 bits", got=f"dtype {numbers.dtype}", remedy=remedy)
    target = np.float32 if dtype == torch.float32 else np.float64
    with np.errstate(over="ignore"):
        values = np.array(numbers, dtype=target, order="C", copy=True)
    if hidden is not None:
        values[hidden] = np.nan
    bad = np.isinf(values) if takes_nan else ~np.isfinite(values)
    if bool(bad.any()):
        first = tuple(int(position) for position in np.argwhere(bad)[0])
        got = f"{int(bad.sum())} values that are NaN or infinite, the first at index {first}"
        raise DataError(expected=f"finite {name} in {dtype}", got=got, remedy=_NAN_REMEDY)
    if numbers.dtype.kind in "iu" and bool((np.abs(values) > 2.0 ** (24 if dtype == torch.float32 else 53)).any()):
        raise DataError(
            expected=f"integers that {dtype} represents", got=f"{name} beyond them", remedy="rescale, or use torch.float64"
        )
    return torch.from_numpy(values)


def check_dtype(dtype: torch.dtype | None) -> None:
    """Raise an ArgumentError unless a dtype is float32, float64, or None for an array's own."""
    if dtype not in (None, torch.float32, torch.float64):
        raise ArgumentError(expected="dtype float32 or float64", got=str(dtype), remedy="leave it out to keep the array's own")


def _numbers(array: object) -> NDArray[Any]:
    """A NumPy array of an array, a tensor or nested lists, or a DataError."""
    try:
        return np.asarray(array)
    except (ValueError, TypeError) as error:
        remedy = "give rows of equal length, or field.values"
        raise DataError(expected="an array of numbers", got=f"{described(array)}: {error}", remedy=remedy) from error


def grid_with_mask(values: Tensor, grid: Grid, mask: Mask, name: str) -> Grid:
    """Mask the points of a grid where values `(n, c, *grid)` are missing.

    Args:
        values: NaN where they are missing.
        grid: Grid of the values.
        mask: True for points where a channel is NaN: one mask if it is the same in several samples, else one mask per sample.
            Or truth values `(*grid,)` or `(n, *grid)`, True at missing points. None for none.
        name: Name of the values, for messages.

    Raises:
        DataError: If values elsewhere are NaN, no point of a sample is left, or the mask holds no truth values.
        ShapeError: If the mask has another shape.
    """
    if mask is None or mask is False:
        return grid
    if mask is True:
        missing = values.isnan().any(1)
        if len(missing) > 1 and bool((missing == missing[:1]).all()):
            missing = missing[0]
    else:
        is_missing = mask if isinstance(mask, Tensor) else as_array(mask)
        if is_missing.dtype not in (torch.bool, np.dtype(bool)):
            got, remedy = str(is_missing.dtype), "write mask=numpy.isnan(values), or mask=True where NaN means missing"
            raise DataError(expected="truth values as mask, True where values are missing", got=got, remedy=remedy)
        missing = torch.as_tensor(is_missing)
    masked = grid.masked(~missing)
    if bool(masked.fill(values).isnan().any()):
        raise DataError(
            expected=f"finite {name} at unmasked points", got="NaN among them", remedy="mask=True masks all that are NaN"
        )
    return masked


def turned_mask(
    mask: Any,
    dims: Sequence[Any],
    *,
    sample: Any,
    space: Sequence[Any],
    descending: Sequence[Any] = (),
    shifts: Sequence[int] = (),
) -> Any:
    """A mask of an array in the order of the grid, as the array's values are.

    Args:
        mask: Truth values with the array's axes of space, in the array's order, or with those and the samples; a DataArray by
            the names of its dimensions. Others, or of another number of axes, are returned as they are.
        dims: Names or numbers of the array's axes.
        sample: That of the samples.
        space: Those of space, in the order of the grid.
        descending: Those that are read from the last entry to the first.
        shifts: Per axis of space, the entry that comes first, counted after that turn; none by default.
    """
    if mask is None or isinstance(mask, bool | str):
        return mask
    try:
        values = np.asarray(mask)
    except (TypeError, ValueError, RuntimeError):
        return mask
    has_samples = values.ndim == len(space) + 1
    order = [sample] * has_samples + list(space)
    names = list(getattr(mask, "dims", ()))
    names = names if {*names} == {*order} else [dim for dim in dims if dim in order]
    if len(names) != values.ndim:
        return mask
    values = values.transpose([names.index(dim) for dim in order])
    values = np.flip(values, tuple(order.index(dim) for dim in descending if dim in space))
    return np.roll(values, [-shift for shift in shifts], range(values.ndim - len(shifts), values.ndim))


def common_dtype(*arrays: object) -> torch.dtype:
    """float64 if an array is of it, else float32 (integers and shorter floating point numbers follow the others)."""
    kinds = [_numbers(array).dtype for array in arrays]
    return torch.float64 if any(kind.kind == "f" and kind.itemsize == 8 for kind in kinds) else torch.float32


def stated_dimension(*options: object) -> int | None:
    """Number of axes of space that sequences among the options state, one entry per axis; None if none is a sequence.

    Raises:
        ArgumentError: If they state different numbers.
    """
    counts = {len(option) for option in options if isinstance(option, Sequence) and not isinstance(option, str)}
    if len(counts) > 1:
        raise ArgumentError(
            expected="options for one number of axes", got=str(sorted(counts)), remedy="give one entry per grid axis"
        )
    return counts.pop() if counts else None


def array_layout(
    shape: Sequence[int],
    name: str,
    *,
    stated: Layout | None,
    grid: Grid | None,
    periodic: bool | Sequence[bool] | None,
    has_time: bool = False,
) -> tuple[Layout, Grid | None]:
    """The layout and the grid of an array whose axes have no names.

    Args:
        shape: Lengths of the axes.
        name: The array's name in messages.
        stated: The layout, if it is stated.
        grid: The grid, if it is stated.
        periodic: Whether each axis is periodic, for the unit cube where no grid is stated.
        has_time: Whether the axis after the samples is time.

    Returns:
        The layout, and the grid; None where no axis is space.

    Raises:
        ShapeError: If the shape does not fit, the number of axes of space is ambiguous, or the reading is implausible.
        ArgumentError: If `periodic` is missing, or the options name different numbers of axes.
    """
    if stated is not None:
        stated.check(shape, name)
        layout = stated
    else:
        check_stated(grid, periodic)
        dimension = len(grid.shape) if grid is not None else stated_dimension(periodic)
        layout = positional_layout(shape, name, dimension=dimension, has_time=has_time)
        if grid is None:
            check_channels(shape, layout, name)
    if grid is not None or not layout.space:
        return layout, grid
    names = layout.space if stated is not None else ("",) * len(layout.space)
    return layout, grid_of([shape[axis] for axis in layout.space_axes], name, names=names, periodic=periodic)


def check_channels(shape: Sequence[int], layout: Layout, name: str) -> None:
    """Raise a ShapeError if an inferred layout is implausible: an axis of one point, or as many channels as points."""
    points = [shape[axis] for axis in layout.space_axes]
    channels = math.prod(shape[axis] for axis in layout.axes(CHANNEL))
    if 1 in points or (channels > 1 and channels >= min(points)):
        raise ShapeError(
            expected=f"axes of {name} whose roles are stated",
            got=f"{tuple(shape)}, which would be {channels} channel{'s' * (channels != 1)} on a grid of {tuple(points)}",
            remedy=ambiguity_remedy(shape, [role for role in layout.roles if role in (SAMPLE, TIME)]),
        )


def grid_of(
    shape: Sequence[int],
    name: str,
    *,
    names: Sequence[str] = (),
    lengths: float | Sequence[float] | None = None,
    periodic: bool | Sequence[bool] | None,
) -> Grid:
    """The uniform grid with these numbers of points per axis.

    Args:
        shape: Points per axis.
        name: The array's name in messages.
        names: Names of the axes.
        lengths: Extent per axis, 1 by default.
        periodic: Whether each axis is periodic.

    Raises:
        ArgumentError: If `periodic` is missing, or the options name another number of axes.
        ShapeError: If an axis has one point.
    """
    check_stated(None, periodic)
    assert periodic is not None
    if 1 in shape:
        expected, got = f"axes of space of {name} of more than one point", f"{tuple(shape)} points"
        raise ShapeError(expected=expected, got=got, remedy='call an axis of length 1 "-" in axes=, or state the grid: grid=')
    spans = 1.0 if lengths is None else lengths
    grid = Grid.uniform(tuple(shape), lengths=spans, periodic=periodic)
    return grid.named(names) if any(names) else grid


def check_stated(grid: Grid | None, periodic: object) -> None:
    """Raise an ArgumentError if neither a grid nor `periodic` is given."""
    if grid is None and periodic is None:
        remedy = "state whether the axes of space are periodic: periodic=True, periodic=False, or one entry per axis"
        raise ArgumentError(expected="grid=, or periodic= to build one", got="neither", remedy=remedy)


def read_numpy(
    array: object,
    name: str,
    *,
    layout: Layout | None = None,
    grid: Grid | None,
    option: str,
    dtype: torch.dtype,
    periodic: bool | Sequence[bool] | None = None,
    mask: Mask = None,
) -> tuple[Tensor, Grid]:
    """Values `(n, c, *grid)` and grid of an array.

    Args:
        array: Real, finite numbers.
        name: The array's name in messages.
        layout: Roles of its axes, if they are stated; by default `(n, *grid)` or `(n, c, *grid)`.
        grid: Grid of the values; by default on the unit cube.
        option: Name of the argument that states the grid.
        dtype: float32 or float64.
        periodic: Whether each axis is periodic, if there is no grid.
        mask: See [`grid_with_mask`][probneural.arrays.reading.grid_with_mask].

    Raises:
        DataError: If values are not real numbers, finite where they are not masked.
        ShapeError: If the shape does not fit, or is ambiguous.
        ArgumentError: If the grid is unknown, or the layout has times or no samples.
    """
    tensor = to_tensor(array, name, dtype=dtype, takes_nan=mask is not None and mask is not False)
    shape = tuple(tensor.shape)
    roles, where = array_layout(shape, name, stated=layout, grid=grid, periodic=periodic)
    check_samples(roles, name)
    if where is None:
        remedy = "give parameters to pn.FieldPairs.from_parameters(parameters, outputs, ...)"
        raise ArgumentError(expected=f"an axis of space of {name}", got=f'axes="{roles}"', remedy=remedy)
    tensor = tensor.permute(*roles.axes(SAMPLE), *roles.axes(CHANNEL), *roles.space_axes, *roles.axes(SINGLE))
    points = tuple(tensor.shape[1 + len(roles.axes(CHANNEL)) :][: len(roles.space)])
    if points != where.shape:
        remedy = f"state where they live by {option}=, or {ambiguity_remedy(shape)}"
        raise ShapeError(expected=f"{name} on the grid axes {where.shape}", got=f"{points} of {tuple(shape)}", remedy=remedy)
    if 0 in shape[1:]:
        raise ShapeError(expected=f"{name} with channels and points", got=str(shape), remedy="check the slices of the array")
    values = tensor.reshape(len(tensor), -1, *points).contiguous()
    turned = turned_mask(mask, range(len(shape)), sample=roles.axes(SAMPLE)[0], space=roles.space_axes)
    return values, grid_with_mask(values, where, turned, name)


def check_samples(roles: Layout, name: str) -> None:
    """Raise an ArgumentError unless a layout has samples and no times."""
    if roles.axes(TIME) or not roles.axes(SAMPLE):
        remedy = "take trajectories with pn.data.Trajectories.from_array(values, axes=..., times=...)"
        raise ArgumentError(expected=f"a layout of {name} with samples and without times", got=f'axes="{roles}"', remedy=remedy)


def check_not_parameters(inputs: Grid, outputs: Grid) -> None:
    """Raise a ShapeError if inputs on a line of a few points, which nobody stated, are rather a table of parameters.

    Raises:
        ShapeError: If they have few points, and the outputs many.
    """
    if len(inputs.shape) == len(outputs.shape) == 1 and inputs.size <= _FEW and outputs.size > _MANY * inputs.size:
        raise ShapeError(
            expected="inputs whose roles of axes are stated",
            got=f"{inputs.size} numbers per sample beside {outputs.size} points of the outputs: parameters, or a line",
            remedy='give parameters to pn.FieldPairs.from_parameters(inputs, outputs, ...), or state axes="n c -> n x"; '
            'if they are points of a line, axes="n x -> n x"',
        )


def check_grid_alone(grid: Grid | None, periodic: object) -> None:
    """Raise an ArgumentError if both a grid and `periodic` are given."""
    if grid is not None and periodic is not None:
        raise ArgumentError(expected="grid= alone", got="grid with periodic", remedy="the grid contains it")


def read_xarray(
    source: xarray.DataArray | xarray.Dataset,
    name: str,
    *,
    sample: str,
    channel: str | None,
    periodic: bool | Sequence[bool] | None,
    lengths: float | Sequence[float] | None,
    order: Sequence[str] = (),
    mask: Mask = None,
) -> tuple[NDArray[Any], Grid, dict[str, tuple[str, ...]], Mask]:
    """Values `(n, c, *grid)`, grid, names and units of the channels, and mask of a DataArray, or of a Dataset of channels.

    Raises:
        DataError: If it is neither, or a Dataset without variables.
        ShapeError: If there is no dimension `sample`, or none for space, or the variables have different dimensions.
        GridError: If coordinates are missing, descending, not equispaced, or contradict the lengths or a recorded grid.
        ArgumentError: If `periodic` is missing.
    """
    optional("xarray", "from_xarray", extra="xarray")
    import xarray

    parts = [source] if isinstance(source, xarray.DataArray) else []
    if isinstance(source, xarray.Dataset):
        parts = list(source.data_vars.values())
        if not parts or any(set(part.dims) != set(parts[0].dims) for part in parts):
            raise ShapeError(
                expected=f"{name} as variables of the same dimensions",
                got=f"{ {key: part.dims for key, part in source.data_vars.items()} }",
                remedy="select the channels: dataset[['u', 'v']]",
            )
        channel = "channel" if channel is None else channel
        if channel in parts[0].dims:
            raise ShapeError(
                expected=f"{name} as scalar variables", got=f"a dimension {channel!r}", remedy="pass one DataArray of them"
            )
        source = source.to_dataarray(channel)
    if not isinstance(source, xarray.DataArray):
        raise DataError(expected=f"{name} as a DataArray or Dataset", got=str(type(source)), remedy="see from_numpy for arrays")
    if channel is None:
        channel = str(source.attrs.get("channel_dimension", "channel"))
    dims = [str(dim) for dim in source.dims]
    space = [dim for dim in dims if dim not in (sample, channel)]
    space = list(order) if sorted(space) == sorted(order) else space
    if sample not in dims or not space:
        got, remedy = str(tuple(dims)), f'name the dimension of samples: sample="{dims[0] if dims else "sample"}"'
        raise ShapeError(expected=f"{name} with a dimension {sample!r} and one or more of space", got=got, remedy=remedy)
    for dim in space:
        if named_role(dim, source.coords[dim].attrs if dim in source.coords else {}) != dim:
            raise ArgumentError(
                expected=f"the role of dimension {dim!r} of {name} {dict(source.sizes)}",
                got="a name that does not identify an axis of space",
                remedy=f'name it channel="{dim}", or, if it is an axis of space, rename it: array.rename({dim}="x")',
            )
    leading = [sample, channel] if channel in dims else [sample]
    values = source.transpose(*leading, *space).to_numpy()
    values = values if channel in dims else values[:, None]
    shape = [source.sizes[dim] for dim in space]
    coordinates = {dim: source.coords[dim].to_numpy() if dim in source.coords else None for dim in space}
    grid = grid_from_coordinates(
        coordinates,
        shape,
        recorded=recorded_grid(source.attrs, shape) if periodic is None and lengths is None else None,
        periodic=periodic,
        lengths=lengths,
        units=[str(source.coords[dim].attrs.get("units", "")) if dim in source.coords else "" for dim in space],
    )
    shifts = turned_points(grid, list(coordinates.values()))
    if any(shifts):
        values = np.roll(values, [-shift for shift in shifts], axis=tuple(range(2, values.ndim)))
    turned = turned_mask(mask, dims, sample=sample, space=space, shifts=shifts)
    return values, grid, _labels(parts, values.shape[1]), turned


def _labels(variables: Sequence[xarray.DataArray], channels: int) -> dict[str, tuple[str, ...]]:
    """Names and units of channels, from one variable per channel or one variable for all."""
    names = [str(variable.name) if variable.name is not None else "" for variable in variables]
    units = [str(variable.attrs.get("units", "")) for variable in variables]
    if len(variables) != channels:
        names, units = [""] * channels, units * channels
    return {"names": tuple(names) if any(names) else (), "units": tuple(units) if any(units) else ()}


def grid_attributes(grid: Grid) -> dict[str, Any]:
    """Attributes of an array that record its uniform grid, for `read_xarray`."""
    attributes: dict[str, Any] = {
        "lengths": list(grid.lengths),
        "periodic": [int(flag) for flag in grid.periodic],
        "endpoint": [int(flag) for flag in grid.endpoint],
        "origin": [axis.origin for axis in grid.axes],
    }
    latitudes = {number: list(axis.latitudes) for number, axis in enumerate(grid.axes) if axis.latitudes is not None}
    for number, ends in latitudes.items():
        attributes |= {"latitude_axis": number, "latitude_ends": ends}
    return attributes


def to_array(values: Tensor, grid: Grid, *, sample: str, channel: str, space: Sequence[str]) -> xarray.DataArray:
    """Values `(n, c, *grid)` as a DataArray with coordinates, the grid in its attributes; NaN at masked points.

    Raises:
        GridError: If the grid is scattered.
    """
    optional("xarray", "to_xarray", extra="xarray")
    import xarray

    check_grid(grid, uniform=True, remedy="save scattered fields with pn.save")
    attributes = grid_attributes(grid) | {"channel_dimension": channel}
    coordinates = {dim: axis.coordinates.numpy() for dim, axis in zip(space, grid.axes, strict=True)}
    array = grid.fill(values.detach().cpu(), float("nan")).numpy().copy()
    return xarray.DataArray(array, dims=(sample, channel, *space), coords=coordinates, attrs=attributes)
