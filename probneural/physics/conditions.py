"""Boundary and initial conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import assign, check_choice, check_finite, check_instance, check_integer, check_real, check_sequence
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.grids.mesh import boundary_distances
from probneural.physics.derivatives import gradient, space_axes, time_axis
from probneural.registry import stored

Side: TypeAlias = tuple[int, str]
"""Index of an axis of a uniform grid, and "start" or "end"."""
Values: TypeAlias = float | Callable[[Field], Tensor]
"""One number, or a function of the inputs that returns `(n, c, *grid)` on the inputs' grid."""


@stored()
@dataclass(frozen=True)
class Channel:
    """One channel of the inputs, as data of an equation or a condition.

    Args:
        index: Index of the channel.

    Raises:
        ArgumentError: If it is not an integer from 0.

    Examples:
        >>> Channel(1)(Field(torch.arange(2.0)[None, :, None].expand(1, 2, 4), Grid.uniform(4))).tolist()
        [[[1.0, 1.0, 1.0, 1.0]]]
    """

    index: int = 0

    def __post_init__(self) -> None:
        """Validate."""
        check_integer(self.index, "index", least=0)

    def __call__(self, inputs: Field) -> Float[Tensor, "n 1 *grid"]:
        """The channel's values.

        Raises:
            DataError: If the inputs have fewer channels.
        """
        if inputs.channels <= self.index:
            raise DataError(
                expected=f"inputs with channel {self.index}", got=f"{inputs.channels} channels", remedy="name another channel"
            )
        return inputs.values[:, self.index : self.index + 1]


def evaluate_values(values: Values, inputs: Field | None, grid: Grid, like: Tensor, *, name: str) -> Tensor:
    """Data of an equation or a condition on a grid: a number, or values that broadcast to `(n, c, *grid)`.

    Raises:
        ArgumentError: If they depend on inputs, and there are none.
        ShapeError: If the function returns another shape.
        DataError: If it returns NaN or infinity.
    """
    if not callable(values):
        return torch.as_tensor(values, dtype=like.dtype, device=like.device).expand(1, 1, *grid.shape)
    if inputs is None:
        raise ArgumentError(expected=f"inputs=, which {name} depends on", got="None", remedy="give the predictor's inputs")
    result = check_instance(values(inputs), Tensor, name, remedy="return a tensor (n, c, *grid) on the inputs' grid")
    if result.ndim != like.ndim or result.shape[0] not in (1, len(inputs)) or tuple(result.shape[2:]) != inputs.grid.shape:
        raise ShapeError(
            expected=f"{name} of shape ({len(inputs)}, c, {', '.join(map(str, inputs.grid.shape))})",
            got=str(tuple(result.shape)),
            remedy="return values on the inputs' grid",
        )
    check_finite(result.detach(), name)
    result = result.to(like)
    if inputs.grid.unmasked == grid.unmasked:
        return result
    return Field(result.expand(len(inputs), *result.shape[1:]), inputs.grid).resample(grid).values


@stored()
@dataclass(frozen=True)
class Dirichlet:
    """u = g on some sides of the domain.

    Args:
        values: g: a number, or a function of the inputs such as `Channel(0)`, whose values inside the domain continue g
            smoothly for `ByConstruction`; in the units of u.
        sides: Ends of axes of a uniform grid, `((0, "start"), (1, "end"))`; by default all ends of axes of space with walls,
            or the whole boundary of a mesh.

    Raises:
        ArgumentError: If a side is of another form.
    """

    values: Values = 0.0
    _: KW_ONLY
    sides: tuple[Side, ...] | None = None

    def __post_init__(self) -> None:
        """Validate."""
        assign(self, values=_check_values(self.values), sides=_check_sides(self.sides))

    def sides_of(self, grid: Grid) -> tuple[Side, ...]:
        """The sides of a uniform grid on which the condition holds."""
        return _sides_of(self.sides, grid)

    def misfit(self, u: Field, inputs: Field | None) -> Float[Tensor, "n c m"]:
        """U - g at the m boundary points, in the units of u."""
        g = evaluate_values(self.values, inputs, u.grid, u.values, name="values of the condition")
        difference = u.values - g
        if not u.grid.is_uniform:
            return difference * _boundary_mask(u.grid).to(difference)
        return torch.cat([_face(difference, side) for side in self.sides_of(u.grid)], -1)

    def distance(self, grid: Grid) -> Float64[Tensor, "..."]:
        """d(x), from 0 on the sides to 1 inside, smooth on a uniform grid: `(*grid,)`, or `(n, p)` of a batch of meshes."""
        if not grid.is_uniform:
            parts = [_mesh_distance(single) for single in grid.singles()]
            return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True) if grid.has_points_per_sample else parts[0]
        distance = torch.ones(grid.shape, dtype=torch.float64)
        sides = self.sides_of(grid)
        for number, axis in enumerate(grid.axes):
            ends = [end for index, end in sides if index == number]
            s = (axis.coordinates - axis.origin) / axis.length
            # s at one end; 1 - (2 s - 1)^8 at both: with 4 s (1 - s) in all of the domain, training by residuals stalls
            factor = 1.0 - (2.0 * s - 1.0) ** 8 if len(ends) == 2 else s if "start" in ends else 1.0 - s if ends else None
            if factor is not None:
                distance = distance * factor.reshape(-1, *(1,) * (grid.dimension - number - 1))
        return distance


def initial(values: Values | None = None) -> Dirichlet:
    """U = u_0 at the start of the first axis, which is time.

    Args:
        values: u_0, as in `Dirichlet`: by default the first channel of the inputs.

    Returns:
        The condition.
    """
    return Dirichlet(Channel(0) if values is None else values, sides=((0, "start"),))


@stored()
@dataclass(frozen=True)
class Neumann:
    """The outward normal derivative of u equals g on some sides of a uniform grid.

    Args:
        values: g, as in `Dirichlet`, in the units of u per length.
        sides: As in `Dirichlet`.

    Raises:
        ArgumentError: If a side is of another form.
    """

    values: Values = 0.0
    _: KW_ONLY
    sides: tuple[Side, ...] | None = None

    def __post_init__(self) -> None:
        """Validate."""
        assign(self, values=_check_values(self.values), sides=_check_sides(self.sides))

    def sides_of(self, grid: Grid) -> tuple[Side, ...]:
        """The sides of a uniform grid on which the condition holds."""
        return _sides_of(self.sides, grid)

    def misfit(self, u: Field, inputs: Field | None) -> Float[Tensor, "n c m"]:
        """du/dn - g at the m boundary points, in the units of u per length.

        Raises:
            GridError: If the grid is not uniform.
        """
        if not u.grid.is_uniform:
            raise GridError(
                expected="a uniform grid",
                got=repr(u.grid),
                remedy="on a mesh, a zero normal derivative is the natural condition",
            )
        g = evaluate_values(self.values, inputs, u.grid, u.values, name="values of the condition")
        parts = []
        for number, end in self.sides_of(u.grid):
            slope = gradient(u, axes=(number,)).values
            parts.append(_face((slope if end == "end" else -slope) - g, (number, end)))
        return torch.cat(parts, -1)


Condition: TypeAlias = Dirichlet | Neumann


def check_conditions(conditions: object) -> tuple[Condition, ...]:
    """Return conditions as a tuple, or raise an ArgumentError."""
    if isinstance(conditions, Dirichlet | Neumann):
        return (conditions,)
    remedy = "give [initial(), Dirichlet(0.0)] for example"
    listed = check_sequence(conditions, "boundary", remedy=remedy)
    if not all(isinstance(condition, Dirichlet | Neumann) for condition in listed):
        raise ArgumentError(expected="conditions Dirichlet or Neumann as boundary", got=repr(conditions), remedy=remedy)
    return tuple(listed)


def check_complete(conditions: Sequence[Condition], grid: Grid, *, order_in_time: int = 1) -> None:
    """Raise a GridError unless each wall, and the start of time, has a condition."""
    if not grid.is_uniform:
        if not conditions:
            raise _incomplete("the boundary of the mesh")
        return
    has = {side for condition in conditions for side in condition.sides_of(grid)}
    for number, axis in enumerate(grid.axes):
        ends = ("start",) if number == time_axis(grid) else ("start", "end")
        for end in () if axis.periodic else ends:
            if (number, end) not in has:
                raise _incomplete(f"the {end} of axis {axis.name or number}")


def _incomplete(where: str) -> GridError:
    return GridError(
        expected="a condition on each wall, and initial values",
        got=f"none on {where}",
        remedy="give Residual(equation, boundary=[initial(), Dirichlet(0.0)]) for example",
    )


def _check_values(values: object) -> Values:
    if callable(values):
        return values
    return check_real(values, "values")


def _check_sides(sides: object) -> tuple[Side, ...] | None:
    if sides is None:
        return None
    remedy = 'give pairs of an axis and an end: ((0, "start"), (1, "end"))'
    checked = []
    for side in check_sequence(sides, "sides", remedy=remedy):
        number, end = check_sequence(side, "a side", remedy=remedy) if isinstance(side, list | tuple) else (side, None)
        checked.append((check_integer(number, "axis", least=0), check_choice(end, ("start", "end"), "end")))
    return tuple(checked)


def _sides_of(sides: tuple[Side, ...] | None, grid: Grid) -> tuple[Side, ...]:
    if sides is None:
        walls = [number for number in space_axes(grid) if not grid.periodic[number]]
        sides = tuple((number, end) for number in walls for end in ("start", "end"))
        if not sides:
            raise GridError(expected="an axis with walls", got=repr(grid), remedy="a periodic domain has no boundary")
    for number, end in sides:
        if number >= grid.dimension or grid.periodic[number] or (end == "end" and not grid.endpoint[number]):
            raise GridError(
                expected=f"an axis {number} with walls and points at its {end}",
                got=repr(grid),
                remedy="say periodic=False, endpoint=True for it",
            )
    return sides


def _face(values: Tensor, side: Side) -> Float[Tensor, "n c m"]:
    """Values at one end of an axis."""
    number, end = side
    return values.select(2 + number, 0 if end == "start" else -1).reshape(*values.shape[:2], -1)


def _boundary_mask(grid: Grid) -> Tensor:
    """1 at boundary points of a mesh, 0 elsewhere: `(p,)`, or `(n, 1, p)` of a batch."""
    rows = []
    for single in grid.singles():
        row = torch.zeros(grid.size, dtype=torch.float64)
        row[single.boundary.unique()] = 1.0
        rows.append(row)
    return torch.stack(rows)[:, None] if grid.has_points_per_sample else rows[0]


def _mesh_distance(grid: Grid) -> Float64[Tensor, " p"]:
    """Distance to the boundary of one mesh, relative to the largest."""
    distances = boundary_distances(grid.points, grid.boundary)
    return distances / distances.max()
