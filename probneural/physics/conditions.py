"""Boundary and initial conditions, and operators that meet them by construction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from probneural.checks import assign, check_choice, check_finite, check_instance, check_integer, check_real, check_sequence
from probneural.contexts import is_transformed
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid, check_grid
from probneural.grids.mesh import boundary_distances
from probneural.operators.base import Operator
from probneural.operators.checks import check_input
from probneural.pairs import Dataset
from probneural.physics.derivatives import boundary_points, gradient, space_axes, time_axis
from probneural.registry import stored
from probneural.settings import Index, Settings

Side: TypeAlias = tuple[int, str]
"""Index of an axis of a uniform grid, and "start" or "end"."""
_ROUNDING = 1e-12
"""Distance from an end, relative to the length of the axis, that counts as zero."""


@stored()
@dataclass(frozen=True)
class Channel(Settings):
    """One channel of the inputs, as data of an equation or a condition.

    Args:
        index: Index of the channel.

    Raises:
        ArgumentError: If it is not an integer from 0.

    Examples:
        >>> Channel(1)(Field(torch.arange(2.0)[None, :, None].expand(1, 2, 4), Grid.uniform(4))).tolist()
        [[[1.0, 1.0, 1.0, 1.0]]]
    """

    index: Index = 0

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


Values: TypeAlias = float | Channel | Callable[[Field], Tensor]
"""One number, or a function of the inputs that returns `(n, c, *grid)` on the inputs' grid."""


def evaluate_values(values: Values, inputs: Field | None, grid: Grid, like: Tensor, *, name: str) -> Tensor:
    """Data of an equation or a condition on a grid: a number, or values that broadcast to `(n, c, *grid)`.

    Raises:
        ArgumentError: If they depend on inputs, and there are none.
        ShapeError: If the function returns another shape.
        DataError: If it returns NaN or infinity.
        GridError: If they cannot be interpolated from the inputs' grid.
    """
    if not callable(values):
        return torch.as_tensor(values, dtype=like.dtype, device=like.device).expand(1, 1, *grid.shape)
    if inputs is None:
        raise ArgumentError(expected=f"inputs=, which {name} depends on", got="None", remedy="give the predictor's inputs")
    result = check_instance(values(inputs), Tensor, name, remedy="return a tensor (n, c, *grid) on the inputs' grid")
    if result.ndim < 2 or result.shape[0] not in (1, len(inputs)) or tuple(result.shape[2:]) != inputs.grid.shape:
        raise ShapeError(
            expected=f"{name} of shape ({len(inputs)}, c, {', '.join(map(str, inputs.grid.shape))})",
            got=str(tuple(result.shape)),
            remedy="return values on the inputs' grid",
        )
    if not (is_transformed() or torch.compiler.is_compiling()):
        check_finite(result.detach(), name)
    result = result.to(like)
    if inputs.grid.unmasked == grid.unmasked:
        return result
    return Field(result.expand(len(inputs), *result.shape[1:]), inputs.grid).resample(grid).values


@dataclass(frozen=True)
class _OnSides:
    """Values on some sides of the domain."""

    values: Values = 0.0
    _: KW_ONLY
    sides: tuple[Side, ...] | None = None

    def __post_init__(self) -> None:
        """Validate."""
        values = self.values if callable(self.values) else check_real(self.values, "values")
        assign(self, values=values, sides=_check_sides(self.sides))

    def sides_of(self, grid: Grid) -> tuple[Side, ...]:
        """The sides of a uniform grid on which the condition holds; none of a mesh, on whose whole boundary it does.

        Raises:
            GridError: If a side does not exist.
        """
        if grid.is_uniform:
            return _sides_of(self.sides, grid)
        if self.sides is not None:
            raise GridError(expected="a uniform grid", got=repr(grid), remedy="a mesh has one boundary: leave out sides=")
        return ()


@stored()
@dataclass(frozen=True)
class Dirichlet(_OnSides):
    """u = g on some sides of the domain.

    Args:
        values: g: a number, or a function of the inputs such as `Channel(0)`, whose values inside the domain continue g
            smoothly for `ByConstruction`; in the units of u.
        sides: Ends of axes of a uniform grid, `((0, "start"), (1, "end"))`; by default all ends of axes of space with walls,
            or the whole boundary of a mesh.

    Raises:
        ArgumentError: If a side is of another form.
    """

    def misfit(self, u: Field, inputs: Field | None) -> Float[Tensor, "n c m"]:
        """The difference u - g at the m boundary points, in the units of u; of one mesh per sample, padded by zeros.

        Raises:
            GridError: If a side does not exist, or the grid has points without cells.
        """
        sides = self.sides_of(u.grid)
        g = evaluate_values(self.values, inputs, u.grid, u.values, name="values of the condition")
        difference = u.values - g
        if not u.grid.is_uniform:
            return _at_boundary(difference, u.grid)
        return torch.cat([_face(difference, side) for side in sides], -1)

    def distance(self, grid: Grid, *, domain: Grid | None = None) -> Float64[Tensor, "..."]:
        """d(x), from 0 on the sides to 1 inside, smooth on a uniform domain.

        On a mesh it is the distance to the nearest corner or centre of a boundary facet, relative to the largest one. It
        depends on the mesh, and has kinks.

        Args:
            grid: Points of evaluation.
            domain: Grid of the inputs, which tells the domain of scattered points; `grid` by default.

        Returns:
            `(*grid,)`, or `(n, p)` of a batch of meshes; dimensionless.

        Raises:
            GridError: If a side does not exist, or points have neither cells nor a uniform grid as domain.
        """
        if domain is None or (grid.is_uniform and domain.cells is None):
            domain = grid
        sides = self.sides_of(domain)
        if not domain.is_uniform:
            parts = [_mesh_distance(single) for single in grid.singles()]
            return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True) if grid.has_points_per_sample else parts[0]
        points = grid.points
        if points.shape[-1] != domain.dimension:
            raise GridError(expected=f"points of {domain.dimension} coordinates", got=repr(grid), remedy="give their domain")
        distance = torch.ones(points.shape[:-1], dtype=torch.float64)
        for number, axis in enumerate(domain.axes):
            s = (points[..., number] - axis.origin) / axis.length
            start, end = (torch.where(part.abs() < _ROUNDING, 0.0, part) for part in (s, 1.0 - s))
            ends = [side for index, side in sides if index == number]
            # s at one end; 1 - (1 - 4 s (1 - s))^4 at both: training by residuals stalls with 4 s (1 - s)
            if len(ends) == 2:
                distance = distance * (1.0 - (1.0 - 4.0 * start * end) ** 4)
            elif ends:
                distance = distance * (start if ends[0] == "start" else end)
        return distance if grid.has_points_per_sample else distance.reshape(grid.shape)


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
class Neumann(_OnSides):
    """The outward normal derivative of u equals g on some sides of a uniform grid.

    Args:
        values: g, as in `Dirichlet`, in the units of u per length.
        sides: As in `Dirichlet`.

    Raises:
        ArgumentError: If a side is of another form.
    """

    def misfit(self, u: Field, inputs: Field | None) -> Float[Tensor, "n c m"]:
        """du/dn - g at the m boundary points, in the units of u per length.

        Raises:
            GridError: If the grid is not uniform, or a side does not exist.
        """
        check_grid(u.grid, uniform=True, remedy="on a mesh, a zero normal derivative is the natural condition")
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


def missing_sides(conditions: Sequence[Condition], grid: Grid) -> tuple[Side, ...]:
    """Walls of a uniform grid, and the start of time, that have no condition."""
    present = {side for condition in conditions for side in condition.sides_of(grid)}
    required = [
        (number, end)
        for number, axis in enumerate(grid.axes)
        for end in (("start",) if number == time_axis(grid) else ("start", "end"))
        if not axis.periodic and (end == "start" or axis.endpoint)
    ]
    return tuple(side for side in required if side not in present)


def held_misfit(difference: Field, conditions: Sequence[Condition]) -> Float[Tensor, "n c m"] | None:
    """A difference of solutions at the boundary points that have no condition, so that they can be held; None without any."""
    if not difference.grid.is_uniform:
        return None if conditions else Dirichlet().misfit(difference, None)
    sides = missing_sides(conditions, difference.grid)
    return Dirichlet(sides=sides).misfit(difference, None) if sides else None


def _check_sides(sides: object) -> tuple[Side, ...] | None:
    if sides is None:
        return None
    remedy = 'give pairs of an axis and an end: ((0, "start"), (1, "end"))'
    checked = []
    for side in check_sequence(sides, "sides", remedy=remedy):
        if not isinstance(side, list | tuple) or len(side) != 2:
            raise ArgumentError(expected="an axis and an end as side", got=repr(side), remedy=remedy)
        checked.append((check_integer(side[0], "axis", least=0), check_choice(side[1], ("start", "end"), "end")))
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


def _at_boundary(values: Float[Tensor, "n c p"], grid: Grid) -> Float[Tensor, "n c m"]:
    """Values at the boundary points of one mesh, or of a mesh per sample."""
    if not grid.has_points_per_sample:
        return values[..., boundary_points(grid).to(values.device)]
    rows = [sample[:, boundary_points(single)].mT for sample, single in zip(values, grid.singles(), strict=True)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).mT


def _mesh_distance(grid: Grid) -> Float64[Tensor, " p"]:
    """Distance to the boundary of one mesh, relative to the largest."""
    distances = boundary_distances(grid.points, grid.boundary)
    return distances / distances.max()


@stored(parts="configuration")
class ByConstruction(Operator):
    """u = g(a) + d(x) v(a): an operator v whose outputs satisfy Dirichlet and initial conditions exactly.

    d vanishes on the sides of all conditions, and g continues their values into the domain: of several conditions, by weights
    that are one on a condition's own sides. Where sides meet, the first condition counts. The read-out of v stays the last
    layer up to g and d, so last-layer posteriors and their draws satisfy the conditions, too. A later discrepancy, as of
    `VarianceScale`, does not.

    Args:
        operator: v, an operator of `pn.operators` or of a class derived from `Operator`.
        conditions: `Dirichlet` conditions, `initial` among them, on different sides.

    Raises:
        ArgumentError: If the operator is of another class, or there is no condition, or one of another class.

    Reference:
        Lagaris, Likas and Fotiadis (1998), Artificial neural networks for solving ordinary and partial differential equations.

    Examples:
        >>> from probneural.operators import FNO
        >>> operator = ByConstruction(FNO(1, 1, modes=(4,), periodic=False, seed=0), Dirichlet(1.0))
        >>> operator(torch.ones(1, 1, 9), grid=Grid.uniform((9,), periodic=False))[0, 0, [0, -1]].tolist()
        [1.0, 1.0]
    """

    def __init__(self, operator: nn.Module, conditions: Dirichlet | Sequence[Dirichlet]) -> None:
        super().__init__()
        self.operator = check_instance(operator, Operator, "operator", remedy="give an operator", error=ArgumentError)
        remedy = "give [initial(), Dirichlet(0.0)] for example; Neumann conditions become terms of Residual"
        listed = (conditions,) if isinstance(conditions, Dirichlet) else check_sequence(conditions, "conditions", remedy=remedy)
        if not listed or not all(isinstance(condition, Dirichlet) for condition in listed):
            raise ArgumentError(expected="Dirichlet conditions", got=repr(conditions), remedy=remedy)
        self.conditions = tuple(listed)
        self.in_channels, self.out_channels = self.operator.in_channels, self.operator.out_channels

    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate; see the base class. Without a grid, the axes have walls unless the operator is periodic along them.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`.
            GridError: If a condition's side does not exist on the grid.
            DataError: If the conditions' values are not finite.
        """
        if grid is None:
            check_input(values, channels=self.in_channels, dimension=max(1, values.ndim - 2), dtype=values.dtype)
            grid = Grid.uniform(tuple(values.shape[2:]), periodic=getattr(self.operator, "periodic", False))
        where = grid if query is None else query
        inner = self.operator(values, grid=grid, query=query)
        inputs = Field(values, grid)
        distances = torch.stack([condition.distance(where, domain=grid).to(inner) for condition in self.conditions])
        data = [
            evaluate_values(condition.values, inputs, where, inner, name="values of the condition")
            for condition in self.conditions
        ]
        weights = _weights(distances)
        if where.has_points_per_sample:
            distances, weights = distances[:, :, None], weights[:, :, None]
        return sum((weight * g for weight, g in zip(weights, data, strict=True)), start=distances.prod(0) * inner)

    def fit_normalizers(self, *train: Dataset) -> None:
        """Fit those of the inner operator."""
        self.operator.fit_normalizers(*train)


def _weights(distances: Float[Tensor, "k *grid"]) -> Float[Tensor, "k *grid"]:
    """w_i = prod_{j != i} d_j / sum_k prod_{j != k} d_j: 1 on the sides of condition i; where two d_j are 0, for the first."""
    rows = range(len(distances))
    products = torch.stack([distances[[other for other in rows if other != row]].prod(0) for row in rows])
    total = products.sum(0)
    is_zero = distances == 0
    first = is_zero & (is_zero.cumsum(0) == 1)
    return torch.where(total > 0, products / torch.where(total > 0, total, 1.0), first.to(products))
