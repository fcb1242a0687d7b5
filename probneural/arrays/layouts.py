"""Layouts: the role of each axis of an array."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from probneural.checks import check_count
from probneural.errors import ArgumentError, ShapeError

SAMPLE, TIME, CHANNEL, SINGLE = "n", "t", "c", "-"
"""Roles that are not space: samples, times, channels, and an axis of length 1 that is dropped."""
_EXAMPLE = 'write axes="n x y c": n samples, t times, c channels, - an axis of length 1, any other name an axis of space'
_ROLES = {
    SAMPLE: frozenset({"sample", "samples", "trajectory", "trajectories", "batch", "n"}),
    TIME: frozenset({"time", "times", "t", "valid_time", "date", "datetime"}),
    CHANNEL: frozenset({"channel", "channels", "c", "parameter", "parameters", "output_channel"}),
}
"""Names of dimensions with a conventional role."""
_SPACE = re.compile(
    r"n?[xyz]|(output_)?[xyz](\d|[cnefuv]|_\w+)|(n|r|grid_)?(lats?|lons?|latitudes?|longitudes?)"
    r"|[xyz][-_]?coord(inate)?s?|west_east|south_north|easting|northing"
)
_SPACE_STANDARD_NAMES = frozenset(
    {"latitude", "longitude", "grid_latitude", "grid_longitude", "projection_x_coordinate", "projection_y_coordinate"}
)
_DEGREES = re.compile(r"degrees?_?(north|east|n|e)", re.IGNORECASE)


@dataclass(frozen=True)
class Layout:
    """The role of each axis of an array, in the array's order.

    Args:
        roles: "n" (samples), "t" (times), "c" (channels), "-" (an axis of length 1), or the name of an axis of space.
        order: Order in which axes of space are read, that of another array with the same ones; by default the array's.

    Examples:
        >>> Layout(("n", "x", "y", "c")).space, str(Layout(("n", "x", "y", "c")))
        (('x', 'y'), 'n x y c')
    """

    roles: tuple[str, ...]
    order: tuple[str, ...] = ()

    @property
    def space(self) -> tuple[str, ...]:
        """Names of the axes of space, in the order in which they are read."""
        names = tuple(role for role in self.roles if role not in (SAMPLE, TIME, CHANNEL, SINGLE))
        return self.order if sorted(names) == sorted(self.order) else names

    def axes(self, role: str) -> tuple[int, ...]:
        """Numbers of the axes of a role."""
        return tuple(number for number, name in enumerate(self.roles) if name == role)

    @property
    def space_axes(self) -> tuple[int, ...]:
        """Numbers of the axes of space, in the order in which they are read."""
        return tuple(self.roles.index(name) for name in self.space)

    def check(self, shape: Sequence[int], name: str) -> None:
        """Raise a ShapeError unless an array of this shape can have this layout."""
        remedy = 'name one role per axis; of inputs and outputs that differ, both: axes="n c -> n x y"'
        check_count(len(shape), len(self.roles), f'axes of {name} {tuple(shape)}, as in axes="{self}"', remedy=remedy)
        for axis in self.axes(SINGLE):
            things = f"as length of axis {axis} of {name} {tuple(shape)}, which axes= calls '-'"
            check_count(shape[axis], 1, things, remedy="name its role: n, t, c, or an axis of space")

    def __str__(self) -> str:
        """The roles in order."""
        return " ".join(self.roles)


def layouts_of(axes: str | None) -> tuple[Layout | None, Layout | None]:
    """Layouts of the inputs and of the outputs from a description such as "n x y c" or "n c -> n x y".

    Args:
        axes: Roles of the axes in the arrays' order, separated by spaces; inputs and outputs that differ are separated by "->".
            None where no layout is stated.

    Raises:
        ArgumentError: If it is no such description, or a role occurs twice; only "c" and "-" may.

    Examples:
        >>> [str(layout) for layout in layouts_of("n c -> n x y")]
        ['n c', 'n x y']
    """
    if axes is None:
        return None, None
    if not isinstance(axes, str) or not axes.strip():
        raise ArgumentError(expected="the roles of axes as a text", got=repr(axes), remedy=_EXAMPLE)
    sides = [_layout(side, axes) for side in axes.split("->")]
    if len(sides) > 2:
        raise ArgumentError(expected='at most one "->" in axes', got=repr(axes), remedy=_EXAMPLE)
    return sides[0], replace(sides[-1], order=sides[0].space)


def _layout(text: str, axes: str) -> Layout:
    roles = tuple(text.replace(",", " ").split())
    repeated = [role for role in roles if roles.count(role) > 1 and role not in (CHANNEL, SINGLE)]
    words = {word: role for role, names in _ROLES.items() for word in names if word != role}
    said = next((word for word in roles if word.lower() in words), None)
    if said is not None:
        remedy = f'write "{words[said.lower()]}" for it; a name of its own is an axis of space'
        raise ArgumentError(expected="letters for samples, times and channels in axes", got=repr(said), remedy=remedy)
    if not roles or repeated or not all(role == SINGLE or role.isidentifier() for role in roles):
        raise ArgumentError(expected="one role per axis, each name once", got=repr(axes), remedy=_EXAMPLE)
    return Layout(roles)


def named_role(dim: str, attributes: Mapping[str, Any]) -> str:
    """The role of a dimension by its name or the CF attributes of its coordinate.

    Args:
        dim: The name.
        attributes: Attributes of the coordinate.

    Returns:
        "n", "t", "c", or the name itself for an axis of space; "" if the role is unknown.

    Examples:
        >>> named_role("lat", {}), named_role("hour", {"axis": "T"}), named_role("level", {})
        ('lat', 't', '')
    """
    axis, standard = str(attributes.get("axis", "")), str(attributes.get("standard_name", ""))
    if axis == "T" or standard == "time":
        return TIME
    if axis in ("X", "Y") or standard in _SPACE_STANDARD_NAMES or _DEGREES.fullmatch(str(attributes.get("units", ""))):
        return dim
    roles = [role for role, names in _ROLES.items() if dim.lower() in names]
    return roles[0] if roles else dim if _SPACE.fullmatch(dim.lower()) else ""


def positional_layout(shape: Sequence[int], name: str, *, dimension: int | None, has_time: bool = False) -> Layout:
    """The layout of an array whose axes have no names: samples, then times, channels and space, as far as it is unambiguous.

    Args:
        shape: Lengths of the axes.
        name: The array's name in messages.
        dimension: Number of axes of space, if it is stated; otherwise only (n, points) and (n, 1, *grid) are unambiguous.
        has_time: Whether the axis after the samples is time.

    Raises:
        ShapeError: If the number of axes of space is ambiguous or differs from the dimension.

    Examples:
        >>> (
        ...     str(positional_layout((10, 3, 8, 8), "inputs", dimension=2)),
        ...     str(positional_layout((10, 1, 8), "inputs", dimension=None)),
        ... )
        ('n c x0 x1', 'n c x0')
    """
    leading = (SAMPLE, *(TIME,) * has_time)
    remaining = tuple(shape[len(leading) :])
    if dimension is None:
        if len(remaining) > 1 and remaining[0] != 1:
            raise ShapeError(
                expected=f"axes of {name} whose roles are stated",
                got=f"{tuple(shape)}, which may be channels on a line or a grid of several axes",
                remedy=ambiguity_remedy(shape, leading),
            )
        dimension = max(1, len(remaining) - 1)
    extra = len(remaining) - dimension
    if extra not in (0, 1):
        words = ", ".join({SAMPLE: "n", TIME: "times"}[role] for role in leading)
        expected = f"{name} of shape ({words}, *grid) or ({words}, c, *grid) with {dimension} grid axes"
        raise ShapeError(expected=expected, got=str(tuple(shape)), remedy=ambiguity_remedy(shape, leading))
    return Layout((*leading, *(CHANNEL,) * extra, *space_names(dimension)))


def ambiguity_remedy(shape: Sequence[int], leading: Sequence[str] = (SAMPLE,)) -> str:
    """The calls to write for an array whose axes are ambiguous."""
    count = len(shape) - len(leading)
    start = " ".join(leading)
    if count < 1:
        return 'state the roles of the axes: axes="n x" for values on a line, axes="n c -> n x" for numbers that are parameters'
    plain = ("x", "y", "z")[:count] if count <= 3 else space_names(count)
    choices = [f'axes="{start} {" ".join(plain)}" for a grid of {count} {"axis" if count == 1 else "axes"}']
    if count == 1:
        choices.append(f'axes="{start} c -> {start} x" for inputs that are parameters')
    else:
        choices += [
            f'axes="{start} c {" ".join(plain[: count - 1])}" for channels first',
            f'axes="{start} {" ".join(plain[: count - 1])} c" for channels last',
        ]
    return f"state the roles of the axes: {', '.join(choices)}"


def space_names(dimension: int) -> tuple[str, ...]:
    """Names of axes of space that have none: x0, x1, ..."""
    return tuple(f"x{number}" for number in range(dimension))
