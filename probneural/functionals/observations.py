"""Functionals that read the interpolant of a field: its values and its derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from probneural.checks import check_integer, real_tensor
from probneural.errors import ArgumentError, GridError, ShapeError
from probneural.functionals.base import AlongAxis, Functional, MatrixFunctional
from probneural.grids import Grid, check_grid, interpolation_matrix
from probneural.linear_algebra.interpolation import POLYNOMIAL_DEGREE


def sensors(grid: Grid, locations: Tensor | Sequence[Sequence[float]]) -> Functional:
    """The values at m locations, of the field's interpolant: spectral on periodic axes, quintic on others.

    Args:
        grid: A uniform grid.
        locations: Coordinates, `(m, d)`, in the grid's units, within the domain; the two ends of a periodic axis are one point.

    Returns:
        A functional of size m.

    Raises:
        GridError: If the grid is scattered, or a location lies outside the domain.

    Examples:
        >>> grid = Grid.uniform((8,))
        >>> probe = sensors(grid, [[0.25], [0.3]])
        >>> probe(torch.sin(2 * torch.pi * grid.points[:, 0])[None])[0].tolist()[0]
        1.0
    """
    points = _locations(locations)
    return MatrixFunctional(grid, interpolation_matrix(grid, points), labels=_labels("at", points))


def derivative(
    grid: Grid, *, axis: int = 0, order: int = 1, at: Tensor | Sequence[Sequence[float]] | None = None
) -> Functional:
    """A partial derivative of the field's interpolant: spectral on periodic axes, finite differences on others.

    Args:
        grid: A uniform grid.
        axis: Which space dimension to differentiate along.
        order: Order of the derivative, at least 1.
        at: Coordinates, `(m, d)`; every grid point by default.

    Returns:
        A functional of size m, in the values' units over the length's units to the power `order`.

    Raises:
        GridError: If the grid is scattered or a location lies outside it.
        ArgumentError: If the axis or the order does not exist, or the order exceeds the degree of the local polynomials.

    Examples:
        >>> grid = Grid.uniform((9,))
        >>> slope = derivative(grid, at=[[0.0]])
        >>> round(slope(torch.sin(2 * torch.pi * grid.points[:, 0])[None]).item() / torch.pi, 9)
        2.0
    """
    axis = check_integer(axis, "axis", least=0, most=check_grid(grid).dimension - 1)
    order = check_integer(order, "order")
    if not grid.is_uniform:
        raise GridError(
            expected="a uniform grid", got=repr(grid), remedy="scattered values have no interpolant to differentiate"
        )
    if grid.is_masked:
        raise GridError(
            expected="a grid without a mask", got=repr(grid), remedy="differentiate what is predicted with query=grid.unmasked"
        )
    line = grid.axes[axis]
    highest = min(POLYNOMIAL_DEGREE, line.size - 1)
    if order > highest and not line.periodic:  # the interpolant's derivative is zero there, which is no one's derivative
        raise ArgumentError(
            expected=f"an order of at most {highest} along axis {axis}, the degree of its interpolant",
            got=str(order),
            remedy="use more points, or apply lower orders one after the other",
        )
    if at is not None:
        orders = [order if number == axis else 0 for number in range(grid.dimension)]
        points = _locations(at)
        name = f"derivative {order} along axis {axis} at" if order > 1 else f"derivative along axis {axis} at"
        return MatrixFunctional(grid, interpolation_matrix(grid, points, orders=orders), labels=_labels(name, points))
    return AlongAxis(grid, axis=axis, order=order)


@dataclass(frozen=True, eq=False)
class ValuesAt(Functional):
    """Values at some of the grid's points, `(m,)`, which their matrix of ones and zeros would take much memory for."""

    grid: Grid
    points: Int64[Tensor, " m"]

    @property
    def size(self) -> int:
        """Number of points."""
        return len(self.points)

    def _forward(self, values: Tensor) -> Tensor:
        return values.flatten(values.ndim - len(self.grid.shape))[..., self.points.to(values.device)]

    def _adjoint(self, numbers: Tensor) -> Tensor:
        spread = numbers.new_zeros(*numbers.shape[:-1], self.grid.size)
        return spread.index_copy(-1, self.points.to(numbers.device), numbers).unflatten(-1, self.grid.shape)


def _locations(locations: Tensor | Sequence[Sequence[float]]) -> Tensor:
    points = real_tensor(locations, "locations", dtype=torch.float64, device=torch.device("cpu"))
    if points.ndim != 2:
        raise ShapeError(
            expected="locations of shape (m, d)", got=str(tuple(points.shape)), remedy="write [[0.25], [0.75]] for two in 1-D"
        )
    return points


def _labels(name: str, points: Tensor) -> tuple[str, ...]:
    """Names that say where: "at (0.25, 0.5)"."""
    return tuple(f"{name} ({', '.join(f'{coordinate:.4g}' for coordinate in point)})" for point in points.tolist())
