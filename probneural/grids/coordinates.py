"""Uniform grids from the coordinates of their axes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probneural.checks import check_count, check_flag
from probneural.errors import ArgumentError, GridError
from probneural.grids.axes import CIRCLE, POLE, Axis
from probneural.grids.grid import Grid

_SPACING_TOLERANCE = 1e-4
"""Largest deviation of a coordinate from equal spacing, as a fraction of the spacing, in addition to its rounding."""
_TURNED = 1e-3
"""Deviation, in spacings, of the first longitudes of two grids whose points are the same."""
_ROUNDED = 0.4
"""Largest error of rounding to decimals, as a fraction of the spacing: beyond it, points count as unequal."""
GRID_ATTRIBUTES = ("lengths", "periodic", "endpoint", "origin")
"""Attributes of an array that record its grid."""


def grid_from_coordinates(
    coordinates: Mapping[str, NDArray[Any] | None],
    shape: Sequence[int],
    *,
    recorded: Grid | None,
    periodic: bool | Sequence[bool] | None,
    lengths: float | Sequence[float] | None,
    units: Sequence[str] = (),
) -> Grid:
    """The grid of axes of space from their coordinates, or from the grid that `to_array` recorded.

    Args:
        coordinates: Points per axis, None where an axis has none; then it goes from 0 to its length, 1 by default.
        shape: Points per axis.
        recorded: The recorded grid, if there is one.
        periodic: Whether each axis is periodic.
        lengths: Extent of each axis.
        units: Units of the coordinates, one per axis.

    Raises:
        GridError: If coordinates are descending, not equispaced, or contradict the lengths or the recorded grid.
        ArgumentError: If `periodic` is missing or does not fit.
    """
    names, count = list(coordinates), len(coordinates)
    checked = {dim: None if points is None else _checked_coordinate(points, dim) for dim, points in coordinates.items()}
    for dim, unit in zip(names, [*units, *("",) * count], strict=False):
        points = checked[dim]
        if points is not None and _is_named(dim, unit, "lon", "e(ast)?"):
            checked[dim] = _unwrapped(points)
    if recorded is not None:
        for axis, (dim, positions) in zip(recorded.axes, checked.items(), strict=True):
            slack = _SPACING_TOLERANCE * axis.length / axis.size + (0.0 if positions is None else _rounding(positions))
            recorded_positions = axis.coordinates.numpy()
            if positions is not None and bool((np.abs(positions.astype(np.float64) - recorded_positions) > slack).any()):
                raise GridError(
                    expected=f"coordinates {dim!r} of the grid in the attributes, {recorded!r}",
                    got="others",
                    remedy="state periodic=, which makes the grid from the coordinates: a part of a grid is another grid",
                )
        return recorded.named(names, units=[axis_unit(unit) for unit in units])
    if periodic is None:
        raise ArgumentError(
            expected="periodic=, one entry per axis or one for all",
            got="None",
            remedy=f"state whether {', '.join(names)} {'is' if count == 1 else 'are'} periodic; coordinates cannot tell",
        )
    rounds = tuple(periodic) if isinstance(periodic, Sequence) else (check_flag(periodic, "periodic"),) * count
    spans = tuple(lengths) if isinstance(lengths, Sequence) else (lengths,) * count
    for name, entries in (("periodic", rounds), ("lengths", spans)):
        remedy = f"give one entry per space dimension, {', '.join(names)}, in the order of the array's"
        check_count(len(entries), count, f"entries of {name}=", remedy=remedy, error=ArgumentError)
    positions_by_axis = {
        dim: Axis(size, 1.0 if span is None else span, flag, not flag).coordinates.numpy() if positions is None else positions
        for (dim, positions), size, span, flag in zip(checked.items(), shape, spans, rounds, strict=True)
    }
    grid = grid_of_coordinates(positions_by_axis, periodic=rounds, lengths=spans)
    return _on_earth(grid.named(names, units=[axis_unit(unit) for unit in units]), units)


def _on_earth(grid: Grid, units: Sequence[str]) -> Grid:
    """A grid of latitudes and longitudes in degrees, weighted by areas of the sphere; longitudes around it begin at 0 or after.

    Args:
        grid: With names of its axes.
        units: Units of the coordinates as they are, which may name the direction: degrees_north.

    Raises:
        GridError: If longitudes go around more than once.
    """
    raw = [*units, *("",) * len(grid.axes)]
    latitudes, longitudes = (
        [n for n, axis in enumerate(grid.axes) if is_degrees(axis, raw[n], word, direction)]
        for word, direction in (("lat", "n(orth)?"), ("lon", "e(ast)?"))
    )
    axes = list(grid.axes)
    if any(axes[number].periodic for number in latitudes) and longitudes:
        flags = tuple(number in longitudes for number in range(len(axes)))
        raise GridError(
            expected="latitudes that are not periodic", got="periodic latitudes", remedy=f"state each axis: periodic={flags}"
        )
    for number in longitudes:
        axis = axes[number]
        step = axis.length / axis.size
        if axis.periodic and axis.length > CIRCLE + 0.5 * step:
            raise GridError(
                expected=f"longitudes {axis.name!r} that go around once, without their repeated last point",
                got=f"{axis.length:g} degrees",
                remedy=f"drop the last point: array.isel({axis.name}=slice(0, -1))",
            )
        if axis.periodic and axis.length == CIRCLE:  # -180..180 and 0..360 are one domain
            axes[number] = replace(axis, origin=_first_longitude(axis.origin, step))
    turned = Grid.of_axes(axes)
    if len(latitudes) != 1 or len(longitudes) != 1:
        return turned
    south, north = axes[latitudes[0]].origin, axes[latitudes[0]].origin + axes[latitudes[0]].length
    is_angle = axes[latitudes[0]].unit == "degrees" or (south >= -POLE - 1e-6 and north <= POLE + 1e-6)
    around = axes[longitudes[0]]
    is_angle = is_angle and (around.unit == "degrees" or not around.periodic or around.length == CIRCLE)  # else radians
    return turned.on_sphere(latitude=latitudes[0]) if is_angle else turned


def _first_longitude(origin: float, step: float) -> float:
    """The smallest longitude from 0 on, of points that go around in equal steps."""
    first = origin - step * math.floor(origin / step + 1e-6)
    return 0.0 if abs(first) < 1e-6 * step else first


def _unwrapped(longitudes: NDArray[Any]) -> NDArray[Any]:
    """Unwrapped longitudes: 340, 350, 0, 10 becomes 340, 350, 360, 370."""
    starts = np.concatenate([[False], np.diff(longitudes.astype(np.float64)) < -0.5 * CIRCLE])
    return np.where(np.cumsum(starts) == 1, longitudes + CIRCLE, longitudes) if starts.sum() == 1 else longitudes


def is_degrees(axis: Axis, unit: str, word: str, direction: str) -> bool:
    """Whether an axis is of latitudes ("lat") or longitudes ("lon") in degrees, by its unit, or by its name without one."""
    return axis.size > 1 and axis.unit in ("", "degrees") and _is_named(axis.name, unit, word, direction)


def _is_named(name: str, unit: str, word: str, direction: str) -> bool:
    by_name = re.fullmatch(rf"(n|r|grid_)?{word}(s|itudes?|gitudes?)?", name.lower())
    return bool(by_name or re.fullmatch(rf"degrees?_?{direction}", unit.lower()))


def turned_points(grid: Grid, coordinates: Sequence[NDArray[Any] | None]) -> tuple[int, ...]:
    """Number of points by which values along each axis are rolled to begin where the grid does, 0 where they do already."""
    shifts = []
    for axis, points in zip(grid.axes, coordinates, strict=True):
        goes_around = points is not None and axis.periodic and axis.length == CIRCLE
        offset = (axis.origin - float(points[0])) * axis.size / axis.length if points is not None and goes_around else 0.0
        shifts.append(round(offset) % axis.size if abs(offset - round(offset)) < _TURNED else 0)
    return tuple(shifts)


def axis_unit(unit: str) -> str:
    """The unit of a coordinate, without the direction that CF gives degrees: degrees_north and degrees_east are degrees."""
    return "degrees" if unit.lower().startswith("degree") else unit


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


def recorded_grid(attributes: Mapping[str, Any], shape: Sequence[int]) -> Grid | None:
    """The grid that `to_array` wrote into the attributes of an array; None if it is not there."""
    if not all(key in attributes for key in GRID_ATTRIBUTES):
        return None
    spans, rounds, ends, starts = (np.atleast_1d(attributes[key]).tolist() for key in GRID_ATTRIBUTES)
    if {len(spans), len(rounds), len(ends), len(starts)} != {len(shape)}:
        return None
    grid = Grid.uniform(
        list(shape),
        lengths=spans,
        periodic=[bool(flag) for flag in rounds],
        endpoint=[bool(flag) for flag in ends],
        origin=starts,
    )
    if "latitude_axis" not in attributes:
        return grid
    axes, number = list(grid.axes), int(attributes["latitude_axis"])
    south, north = np.atleast_1d(attributes["latitude_ends"]).tolist()
    axes[number] = replace(axes[number], latitudes=(south, north))
    return Grid.of_axes(axes)


def _checked_coordinate(values: NDArray[Any], dim: str) -> NDArray[Any]:
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not bool(np.isfinite(values).all()):
        raise GridError(
            expected=f"finite numbers as coordinate {dim!r}", got=f"dtype {values.dtype}", remedy="state the grid: grid="
        )
    return np.asarray(values)


def _rounding(coordinate: NDArray[Any]) -> float:
    """Largest error of a point by rounding in the coordinate's dtype, or to 2 to 4 decimals if all points are so rounded."""
    unit = float(np.finfo(coordinate.dtype).eps) if coordinate.dtype.kind == "f" else 0.0
    points = coordinate.astype(np.float64)
    slack = 4.0 * max(unit, 2.0**-52) * float(np.abs(points).max())
    step = abs(float(points[-1] - points[0])) / max(len(points) - 1, 1)
    for decimals in (2, 3, 4):
        if bool((np.abs(points - np.round(points, decimals)) <= slack).all()):
            # a point and the line between rounded ends are each off by half a unit of the last decimal
            return slack + min(10.0**-decimals, _ROUNDED * step)
    return slack


def _axis(coordinate: NDArray[Any], dim: str, *, is_periodic: bool, length: float | None) -> tuple[float, bool, float]:
    """Length, end point and origin of an axis."""
    points, size = coordinate.astype(np.float64), len(coordinate)
    if size == 1:
        if length is None:
            raise GridError(
                expected=f"more than one point along {dim!r}, an axis of space",
                got="one",
                remedy=f'drop it: array.squeeze("{dim}"), or "-" in axes=; or give its extent: lengths=',
            )
        return float(length), False, float(points[0])
    step = float(points[-1] - points[0]) / (size - 1)
    if step <= 0:
        raise GridError(expected=f"ascending coordinates {dim!r}", got="descending ones", remedy=f"array.sortby({dim!r})")
    slack = _SPACING_TOLERANCE * step + _rounding(coordinate)
    if float(np.abs(points - (points[0] + step * np.arange(size))).max()) > slack:
        raise GridError(
            expected=f"equispaced coordinates {dim!r}, within {_SPACING_TOLERANCE:g} of the spacing",
            got=f"spacings from {np.diff(points).min():g} to {np.diff(points).max():g}",
            remedy=f"interpolate first: array.interp({dim}=...)",
        )
    full, open_span, near = step * (size - 1), step * size, slack * size
    if is_periodic and abs(open_span - CIRCLE) <= near:
        open_span = CIRCLE
    if length is None:
        return (open_span, False, float(points[0])) if is_periodic else (full, True, float(points[0]))
    if abs(length - open_span) <= near and abs(length - open_span) < abs(length - full):
        return float(length), False, float(points[0])
    if abs(length - full) <= near and not is_periodic:
        return float(length), True, float(points[0])
    raise GridError(
        expected=f"lengths={open_span:g} along {dim!r}" + ("" if is_periodic else f", or {full:g} with both ends"),
        got=f"{length:g}",
        remedy="drop the repeated last point of a periodic axis" if is_periodic else "check the coordinate's units",
    )
