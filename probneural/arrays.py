"""Arrays of one's own, from NumPy and xarray, as values on a grid; and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probneural.checks import described
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.extras import optional
from probneural.grids import Grid

if TYPE_CHECKING:
    import xarray

_SPACING_TOLERANCE = 1e-4
"""Largest deviation of a coordinate from equal spacing, as a fraction of the spacing, beside the coordinate's own rounding."""
_GRID_ATTRIBUTES = ("lengths", "periodic", "endpoint", "origin")


def to_tensor(array: object, name: str, *, dtype: torch.dtype) -> Tensor:
    """Copy an array of real numbers into a tensor on the CPU; the array's byte order, strides and flags do not matter.

    Args:
        array: Booleans, integers, or floating point numbers of at most 64 bits.
        name: What the array is, for the message.
        dtype: float32 or float64.

    Raises:
        DataError: If the numbers are complex, wider than 64 bits or no numbers, if a value is masked, NaN or infinite (in
            `dtype`, too), or if an integer is not representable in `dtype`.
        ArgumentError: If `dtype` is another one.

    Examples:
        >>> to_tensor(np.array([0, 1], dtype=">i2"), "inputs", dtype=torch.float32)
        tensor([0., 1.])
    """
    if dtype not in (torch.float32, torch.float64):
        raise ArgumentError(expected="dtype float32 or float64", got=str(dtype), remedy="leave it out to keep the array's own")
    if np.ma.isMaskedArray(array) and bool(np.ma.getmaskarray(array).any()):
        raise DataError(expected=f"{name} without masked values", got="a masked array", remedy="fill or drop those functions")
    given = _numbers(array)
    if given.dtype.kind not in "biuf" or given.dtype.itemsize > 8:
        remedy = "stack real and imaginary parts as two channels" if given.dtype.kind == "c" else "convert with .astype(float)"
        raise DataError(expected=f"real {name} of at most 64 bits", got=f"dtype {given.dtype}", remedy=remedy)
    target = np.float32 if dtype == torch.float32 else np.float64
    with np.errstate(over="ignore"):
        values = np.array(given, dtype=target, order="C", copy=True)
    bad = ~np.isfinite(values)
    if bool(bad.any()):
        first = tuple(int(position) for position in np.argwhere(bad)[0])
        raise DataError(
            expected=f"finite {name} in {dtype}",
            got=f"{int(bad.sum())} values that are NaN or infinite, the first at index {first}",
            remedy="drop or repair those functions",
        )
    if given.dtype.kind in "iu" and bool((np.abs(values) > 2.0 ** (24 if dtype == torch.float32 else 53)).any()):
        raise DataError(
            expected=f"integers that {dtype} represents",
            got=f"{name} beyond them",
            remedy="rescale, or use dtype=torch.float64",
        )
    return torch.from_numpy(values)


def _numbers(array: object) -> NDArray[Any]:
    """What NumPy makes of an array, a tensor or nested lists; a DataError where that is none."""
    try:
        return np.asarray(array)
    except (ValueError, TypeError) as error:
        raise DataError(
            expected="an array of numbers",
            got=f"{described(array)}: {error}",
            remedy="give rows of equal length; a Field's are field.values",
        ) from error


def common_dtype(*arrays: object) -> torch.dtype:
    """float64 if an array is of it, else float32 (integers and shorter floating point numbers follow the others)."""
    kinds = [_numbers(array).dtype for array in arrays]
    return torch.float64 if any(kind.kind == "f" and kind.itemsize == 8 for kind in kinds) else torch.float32


def with_channels(values: Tensor, dimension: int, name: str) -> Tensor:
    """Give values `(n, *grid)` or `(n, c, *grid)`, on a grid of `dimension` axes, the shape `(n, c, *grid)`.

    Raises:
        ShapeError: If they have another number of axes.
    """
    if values.ndim == dimension + 1:
        return values[:, None]
    if values.ndim != dimension + 2:
        raise ShapeError(
            expected=f"{name} of shape (n, *grid) or (n, c, *grid) with {dimension} grid axes",
            got=str(tuple(values.shape)),
            remedy="functions come first, channels second, space last",
        )
    return values


def grid_of(
    shape: Sequence[int],
    name: str,
    *,
    lengths: float | Sequence[float] | None,
    periodic: bool | Sequence[bool] | None,
    endpoint: bool | Sequence[bool] | None,
) -> Grid:
    """The grid of an array `(n, *grid)` or `(n, c, *grid)`, whose number of axes the options' sequences tell.

    Raises:
        ArgumentError: If `periodic` is missing, or the options name different numbers of axes.
        ShapeError: If the number of grid axes is ambiguous: no option is a sequence and the array has more than two axes.
    """
    if periodic is None:
        raise ArgumentError(
            expected="grid=, or periodic= to build one", got="neither", remedy="say whether the axes are periodic"
        )
    counts = {len(option) for option in (lengths, periodic, endpoint) if isinstance(option, Sequence)}
    if len(counts) > 1:
        raise ArgumentError(
            expected="options for one number of axes", got=str(sorted(counts)), remedy="give one entry per grid axis"
        )
    if not counts and len(shape) > 2:
        raise ShapeError(
            expected=f"{name} of shape (n, points)",
            got=f"{tuple(shape)}, where the second axis may be channels or space",
            remedy="give grid=, or one entry of periodic= per grid axis: periodic=(True, True)",
        )
    dimension = counts.pop() if counts else 1
    if not 0 < dimension <= len(shape) - 1:
        raise ShapeError(expected=f"{name} with {dimension} grid axes", got=str(tuple(shape)), remedy="space comes last")
    spans = 1.0 if lengths is None else lengths
    return Grid.uniform(tuple(shape)[-dimension:], lengths=spans, periodic=periodic, endpoint=endpoint)


def read_numpy(
    array: object,
    name: str,
    *,
    grid: Grid | None,
    option: str,
    lengths: float | Sequence[float] | None,
    periodic: bool | Sequence[bool] | None,
    endpoint: bool | Sequence[bool] | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Grid]:
    """Values `(n, c, *grid)` and grid of an array `(n, *grid)` or `(n, c, *grid)`.

    Args:
        array: Real, finite numbers.
        name: What it is, for messages.
        grid: Where the values live; by default what the three options after it say.
        option: What the argument is called that states the grid.
        lengths: See [`grid_of`][probneural.arrays.grid_of].
        periodic: The same.
        endpoint: The same.
        dtype: float32 or float64.

    Raises:
        DataError: If values are no real, finite numbers.
        ShapeError: If the shape does not fit, or is ambiguous.
        ArgumentError: If nothing says what the grid is.
    """
    tensor = to_tensor(array, name, dtype=dtype)
    where = grid
    if where is None:
        where = grid_of(tuple(tensor.shape), name, lengths=lengths, periodic=periodic, endpoint=endpoint)
    tensor = with_channels(tensor, len(where.shape), name)
    check_fits(tensor, where, name, option)
    return tensor, where


def check_grid_alone(
    grid: Grid | None,
    *,
    lengths: float | Sequence[float] | None,
    periodic: bool | Sequence[bool] | None,
    endpoint: bool | Sequence[bool] | None,
) -> None:
    """Raise an ArgumentError if a grid is given beside options that describe one."""
    options = {"lengths": lengths, "periodic": periodic, "endpoint": endpoint}
    given = [name for name, value in options.items() if value is not None]
    if grid is not None and given:
        raise ArgumentError(expected="grid= alone", got=f"grid with {', '.join(given)}", remedy="the grid tells them")


def check_fits(values: Tensor, grid: Grid, name: str, option: str) -> None:
    """Raise a ShapeError unless values `(n, c, *grid)` end in the grid's shape."""
    if tuple(values.shape[2:]) != grid.shape:
        raise ShapeError(
            expected=f"{name} on the grid axes {grid.shape}",
            got=f"{tuple(values.shape[2:])}",
            remedy=f"state where they live: {option}=",
        )


def read_xarray(
    source: xarray.DataArray | xarray.Dataset,
    name: str,
    *,
    sample: str,
    channel: str | None,
    periodic: bool | Sequence[bool] | None,
    lengths: float | Sequence[float] | None,
) -> tuple[NDArray[Any], Grid]:
    """Values `(n, c, *grid)` and grid of a DataArray, or of a Dataset whose variables are the channels.

    Raises:
        DataError: If it is neither, or a Dataset without variables.
        ShapeError: If there is no dimension `sample`, or none for space, or the variables have different dimensions.
        GridError: If coordinates are missing, descending, not equispaced, or contradict the lengths or a recorded grid.
        ArgumentError: If `periodic` is missing.
    """
    optional("xarray", "from_xarray", extra="xarray")
    import xarray

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
        source = _stacked(parts, channel)
    if not isinstance(source, xarray.DataArray):
        raise DataError(expected=f"{name} as a DataArray or Dataset", got=str(type(source)), remedy="see from_numpy for arrays")
    if channel is None:
        channel = str(source.attrs.get("channel_dimension", "channel"))
    dims = [str(dim) for dim in source.dims]
    space = [dim for dim in dims if dim not in (sample, channel)]
    if sample not in dims or not space:
        raise ShapeError(
            expected=f"{name} with a dimension {sample!r} and one or more of space",
            got=str(tuple(dims)),
            remedy="name it: sample=",
        )
    leading = [sample, channel] if channel in dims else [sample]
    values = source.transpose(*leading, *space).to_numpy()
    values = values if channel in dims else values[:, None]
    return values, grid_from_xarray(source, space, periodic=periodic, lengths=lengths)


def _stacked(parts: Sequence[xarray.DataArray], channel: str) -> xarray.DataArray:
    """Variables side by side along a new dimension, with the coordinates they share."""
    import xarray

    dims = parts[0].dims
    arrays = np.stack([part.transpose(*dims).to_numpy() for part in parts], axis=0)
    coordinates = {dim: parts[0].coords[dim] for dim in dims if dim in parts[0].coords}
    return xarray.DataArray(arrays, dims=(channel, *dims), coords=coordinates)


def grid_from_xarray(
    source: xarray.DataArray,
    space: Sequence[str],
    *,
    periodic: bool | Sequence[bool] | None,
    lengths: float | Sequence[float] | None,
) -> Grid:
    """The grid of an array's dimensions of space, from its coordinates or from what `to_array` wrote.

    Raises:
        GridError: If coordinates are missing, descending, not equispaced, or contradict the lengths or a recorded grid.
        ArgumentError: If `periodic` is missing or does not fit.
    """
    count = len(space)
    recorded = _recorded(source, space) if periodic is None and lengths is None else None
    if recorded is not None:
        for axis, dim in zip(recorded.axes, space, strict=True):
            positions = _coordinate(source, dim)
            slack = _SPACING_TOLERANCE * axis.length / axis.size + _rounding(positions)
            if bool((np.abs(positions.astype(np.float64) - axis.coordinates.numpy()) > slack).any()):
                raise GridError(
                    expected=f"coordinates {dim!r} of the grid in the attributes, {recorded!r}",
                    got="others",
                    remedy="a part of the grid is another grid: state periodic=",
                )
        return recorded
    if periodic is None:
        raise ArgumentError(
            expected="periodic=, one entry per axis or one for all",
            got="None",
            remedy=f"say whether {', '.join(space)} are periodic; coordinates cannot tell",
        )
    rounds = tuple(periodic) if isinstance(periodic, Sequence) else (periodic,) * count
    spans = tuple(lengths) if isinstance(lengths, Sequence) else (lengths,) * count
    if len(rounds) != count or len(spans) != count:
        raise ArgumentError(
            expected=f"one entry per space dimension {tuple(space)}",
            got=f"periodic={periodic!r}, lengths={lengths!r}",
            remedy="in the order of the array's dimensions",
        )
    return grid_of_coordinates({dim: _coordinate(source, dim) for dim in space}, periodic=rounds, lengths=spans)


def grid_of_coordinates(
    coordinates: Mapping[str, NDArray[Any]], *, periodic: Sequence[bool], lengths: Sequence[float | None]
) -> Grid:
    """The uniform grid of some axes' points.

    Args:
        coordinates: Points per axis, ascending and equispaced.
        periodic: Whether each axis is periodic, and then goes one spacing beyond its last point.
        lengths: Extent of each axis; by default as far as the points go.

    Raises:
        GridError: If points are descending, not equispaced, or contradict the lengths.
    """
    axes = [
        _axis(points, dim, is_periodic=is_periodic, length=span)
        for (dim, points), is_periodic, span in zip(coordinates.items(), periodic, lengths, strict=True)
    ]
    sizes = [len(points) for points in coordinates.values()]
    found_lengths, ends, origins = (list(column) for column in zip(*axes, strict=True))
    return Grid.uniform(sizes, lengths=found_lengths, periodic=periodic, endpoint=ends, origin=origins)


def _recorded(source: xarray.DataArray, space: Sequence[str]) -> Grid | None:
    """The grid that `to_array` wrote into the attributes, if it is there."""
    if not all(key in source.attrs for key in _GRID_ATTRIBUTES):
        return None
    spans, rounds, ends, starts = (np.atleast_1d(source.attrs[key]).tolist() for key in _GRID_ATTRIBUTES)
    if {len(spans), len(rounds), len(ends), len(starts)} != {len(space)}:
        return None
    return Grid.uniform(
        [source.sizes[dim] for dim in space],
        lengths=spans,
        periodic=[bool(flag) for flag in rounds],
        endpoint=[bool(flag) for flag in ends],
        origin=starts,
    )


def _coordinate(source: xarray.DataArray, dim: str) -> NDArray[Any]:
    if dim not in source.coords:
        raise GridError(
            expected=f"a coordinate for dimension {dim!r}", got="none", remedy="assign_coords, or name it sample= or channel="
        )
    values = source.coords[dim].to_numpy()
    if values.dtype.kind not in "iuf" or not bool(np.isfinite(values).all()):
        raise GridError(
            expected=f"finite numbers as coordinate {dim!r}", got=f"dtype {values.dtype}", remedy="convert times to seconds"
        )
    return np.asarray(values)


def _rounding(coordinate: NDArray[Any]) -> float:
    """What rounding in the coordinate's own dtype may have moved a point by."""
    unit = float(np.finfo(coordinate.dtype).eps) if coordinate.dtype.kind == "f" else 0.0
    return 4.0 * max(unit, 2.0**-52) * float(np.abs(coordinate.astype(np.float64)).max())


def _axis(coordinate: NDArray[Any], dim: str, *, is_periodic: bool, length: float | None) -> tuple[float, bool, float]:
    """Length, end point and origin of an axis."""
    points, size = coordinate.astype(np.float64), len(coordinate)
    if size == 1:
        if length is None:
            raise GridError(expected=f"lengths= for the one point along {dim!r}", got="None", remedy="give the extent")
        return float(length), False, float(points[0])
    step = float(points[-1] - points[0]) / (size - 1)
    if step <= 0:
        raise GridError(expected=f"ascending coordinates {dim!r}", got="descending ones", remedy=f"array.sortby({dim!r})")
    slack = _SPACING_TOLERANCE * step + _rounding(coordinate)
    if float(np.abs(points - (points[0] + step * np.arange(size))).max()) > slack:
        raise GridError(
            expected=f"equispaced coordinates {dim!r}, within {_SPACING_TOLERANCE:g} of the spacing",
            got=f"spacings from {np.diff(points).min():g} to {np.diff(points).max():g}",
            remedy=f"interpolate first: array.interp({dim}=...), or use pn.Grid.scattered",
        )
    full, open_span = step * (size - 1), step * size
    if length is None:
        return (open_span, False, float(points[0])) if is_periodic else (full, True, float(points[0]))
    near = slack * size
    if abs(length - open_span) <= near and abs(length - open_span) < abs(length - full):
        return float(length), False, float(points[0])
    if abs(length - full) <= near and not is_periodic:
        return float(length), True, float(points[0])
    raise GridError(
        expected=f"lengths={open_span:g} along {dim!r}" + ("" if is_periodic else f", or {full:g} with both ends"),
        got=f"{length:g}",
        remedy="drop the repeated last point of a periodic axis" if is_periodic else "check the coordinate's units",
    )


def grid_attributes(grid: Grid) -> dict[str, list[float]]:
    """What `read_xarray` needs to know of a uniform grid beside its coordinates, as attributes of an array."""
    return {
        "lengths": list(grid.lengths),
        "periodic": [int(flag) for flag in grid.periodic],
        "endpoint": [int(flag) for flag in grid.endpoint],
        "origin": [axis.origin for axis in grid.axes],
    }


def to_array(values: Tensor, grid: Grid, *, sample: str, channel: str, space: Sequence[str]) -> xarray.DataArray:
    """Values `(n, c, *grid)` as a DataArray with coordinates, the grid in its attributes.

    Raises:
        GridError: If the grid is scattered.
    """
    optional("xarray", "to_xarray", extra="xarray")
    import xarray

    if not grid.is_uniform:
        raise GridError(expected="a uniform grid", got=repr(grid), remedy="save scattered fields with pn.save")
    attributes = grid_attributes(grid) | {"channel_dimension": channel}
    coordinates = {dim: axis.coordinates.numpy() for dim, axis in zip(space, grid.axes, strict=True)}
    array = values.detach().cpu().numpy().copy()
    return xarray.DataArray(array, dims=(sample, channel, *space), coords=coordinates, attrs=attributes)
