"""Linear functionals of fields: integrals, sensors, derivatives, and their linear combinations.

A functional maps the values of a field, channel by channel, to m numbers: `(..., c, *grid) -> (..., c, m)`. It knows its
grid and its adjoint, so a Gaussian field pushed through it stays an exact Gaussian.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_instance, check_integer, check_real, check_sequence, real_tensor
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.grids import Grid, along_axis, check_grid, check_on_grid, interpolation_matrix
from probneural.interpolation import POLYNOMIAL_DEGREE

_NORM_ROWS = 256
"""Rows of a functional's matrix formed at once."""


class Functional(ABC):
    """A linear map from the values of a field to `size` numbers per channel.

    Functionals add, subtract, and scale by numbers; [`stack`][probneural.functionals.stack] puts several side by side.
    """

    grid: Grid

    @property
    @abstractmethod
    def size(self) -> int:
        """How many numbers m per channel it returns."""

    @abstractmethod
    def _forward(self, values: Tensor) -> Tensor:
        """Map values `(..., *grid.shape)`, to `(..., size)`, linearly, in their dtype and on their device."""

    @abstractmethod
    def _adjoint(self, numbers: Tensor) -> Tensor:
        """Map numbers `(..., size)` to `(..., *grid.shape)` by the transpose of `_forward`, without quadrature weights."""

    def __call__(self, values: Float[Tensor, "..."]) -> Float[Tensor, "... m"]:
        """Apply to values `(..., *grid.shape)`, in their dtype and on their device; lists and arrays of numbers will do.

        Distributions are pushed forward by their `apply`.

        Raises:
            DataError: If they are no real numbers.
            ShapeError: If the values do not end in the grid's shape.
        """
        numbers = real_tensor(values, "values")
        check_on_grid(numbers, self.grid)
        return self._forward(numbers)

    def adjoint(self, numbers: Float[Tensor, "... m"]) -> Float[Tensor, "..."]:
        """Apply the transposed map, `(..., m) -> (..., *grid.shape)`: sum(f(u) * y) == sum(u * f.adjoint(y)).

        The inner product on fields is the plain sum over grid points, without quadrature weights.

        Raises:
            DataError: If they are no real numbers.
            ShapeError: If the last axis does not have length m.
        """
        given = real_tensor(numbers, "numbers")
        if given.ndim == 0 or given.shape[-1] != self.size:
            raise ShapeError(
                expected=f"numbers of shape (..., {self.size})",
                got=str(tuple(given.shape)),
                remedy="pass what the call returns",
            )
        return self._adjoint(given)

    def row_norms(self) -> Float64[Tensor, " m"]:
        """Euclidean norms of the rows of the functional's matrix: how much of the values' rounding its numbers inherit."""
        identity = torch.eye(self.size, dtype=torch.float64, device="cpu")
        return torch.cat([self._adjoint(rows).flatten(1).norm(dim=1) for rows in identity.split(_NORM_ROWS)])

    def __add__(self, other: Functional) -> Functional:
        """The sum of two functionals of equal size on one grid."""
        return Combination(parts=(self, other), factors=(1.0, 1.0))

    def __sub__(self, other: Functional) -> Functional:
        """The difference of two functionals of equal size on one grid."""
        return Combination(parts=(self, other), factors=(1.0, -1.0))

    def __mul__(self, factor: float) -> Functional:
        """The functional times a number."""
        return Combination(parts=(self,), factors=(check_real(factor, "factor"),))

    __rmul__ = __mul__

    def __neg__(self) -> Functional:
        """The functional with its sign changed."""
        return self * -1.0


@dataclass(frozen=True, eq=False)
class MatrixFunctional(Functional):
    """A functional given by its matrix, `(m, p)`, float64, over the grid's p points."""

    grid: Grid
    matrix: Float64[Tensor, "m p"]

    def __post_init__(self) -> None:
        """Check the matrix against the grid."""
        if self.matrix.ndim != 2 or self.matrix.shape[1] != self.grid.size:
            raise ShapeError(
                expected=f"a matrix of shape (m, {self.grid.size})",
                got=str(tuple(self.matrix.shape)),
                remedy="one column per grid point",
            )

    @property
    def size(self) -> int:
        """Rows of the matrix."""
        return self.matrix.shape[0]

    def _forward(self, values: Tensor) -> Tensor:
        return values.flatten(values.ndim - len(self.grid.shape)) @ self.matrix.to(values).mT

    def _adjoint(self, numbers: Tensor) -> Tensor:
        return (numbers @ self.matrix.to(numbers)).unflatten(-1, self.grid.shape)


@dataclass(frozen=True, eq=False)
class AlongAxis(Functional):
    """A square matrix `(size, size)`, float64, applied along one axis of a uniform grid; m is the number of grid points."""

    grid: Grid
    matrix: Float64[Tensor, "size size"]
    axis: int

    @property
    def size(self) -> int:
        """Number of grid points."""
        return self.grid.size

    def _forward(self, values: Tensor) -> Tensor:
        moved = along_axis(values, self.matrix, self.axis - self.grid.dimension)
        return moved.flatten(values.ndim - len(self.grid.shape))

    def _adjoint(self, numbers: Tensor) -> Tensor:
        return along_axis(numbers.unflatten(-1, self.grid.shape), self.matrix.mT, self.axis - self.grid.dimension)


@dataclass(frozen=True, eq=False)
class Combination(Functional):
    """A linear combination of functionals of equal size on one grid."""

    parts: tuple[Functional, ...]
    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        _check_one_grid(self.parts)
        if len({part.size for part in self.parts}) > 1:
            raise ShapeError(
                expected="functionals of equal size",
                got=str([part.size for part in self.parts]),
                remedy="use pn.functionals.stack to put them side by side",
            )

    @property
    def grid(self) -> Grid:  # type: ignore[override]
        """The parts' grid."""
        return self.parts[0].grid

    @property
    def size(self) -> int:
        """The parts' size."""
        return self.parts[0].size

    def _forward(self, values: Tensor) -> Tensor:
        terms = [factor * part(values) for part, factor in zip(self.parts, self.factors, strict=True)]
        return torch.stack(terms).sum(0)

    def _adjoint(self, numbers: Tensor) -> Tensor:
        terms = [factor * part.adjoint(numbers) for part, factor in zip(self.parts, self.factors, strict=True)]
        return torch.stack(terms).sum(0)


@dataclass(frozen=True, eq=False)
class Stack(Functional):
    """Functionals on one grid, side by side; see [`stack`][probneural.functionals.stack]."""

    parts: tuple[Functional, ...]

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        _check_one_grid(self.parts)

    @property
    def grid(self) -> Grid:  # type: ignore[override]
        """The parts' grid."""
        return self.parts[0].grid

    @property
    def size(self) -> int:
        """The sum of the parts' sizes."""
        return sum(part.size for part in self.parts)

    def _forward(self, values: Tensor) -> Tensor:
        return torch.cat([part(values) for part in self.parts], dim=-1)

    def _adjoint(self, numbers: Tensor) -> Tensor:
        pieces = numbers.split([part.size for part in self.parts], dim=-1)
        return torch.stack([part.adjoint(piece) for part, piece in zip(self.parts, pieces, strict=True)]).sum(0)


def check_functional(functional: object, name: str = "functional", *, grid: Grid | None = None) -> Functional:
    """Return a functional.

    Raises:
        DataError: If it is none.
        GridError: If it lives on another grid than a given one.
    """
    checked = check_instance(functional, Functional, name, remedy="build one: pn.functionals.sensors(grid, [[0.5]])")
    if grid is not None and checked.grid != grid:
        raise GridError(
            expected=f"a functional on the distribution's grid {grid!r}",
            got=f"one on {checked.grid!r}",
            remedy="build the functional from the distribution's grid",
        )
    return checked


def _check_one_grid(parts: Sequence[Functional]) -> None:
    for part in parts:
        check_functional(part, "one of the functionals")
    if not parts or any(part.grid != parts[0].grid for part in parts):
        raise GridError(
            expected="functionals on one grid",
            got=", ".join(repr(part.grid) for part in parts) or "none",
            remedy="build them all from the same Grid",
        )


def integral(grid: Grid) -> Functional:
    """The integral over the domain by the grid's quadrature; one number per channel, in the values' units times volume.

    Examples:
        >>> total = integral(Grid.uniform((4,), lengths=2.0))
        >>> total(torch.ones(1, 1, 4)).item()
        2.0
    """
    return MatrixFunctional(grid, check_grid(grid).weights[None, :].clone())


def average(grid: Grid, *, lower: Sequence[float] | None = None, upper: Sequence[float] | None = None) -> Functional:
    """The average over a box, or the domain, by the grid's quadrature; one number per channel, in the values' units.

    A box counts the grid points inside it, ends included, so a coarse grid has a coarse box.

    Args:
        grid: Any grid.
        lower: Lower corner, `(d,)`, in the grid's units; that of the domain by default.
        upper: Upper corner, `(d,)`, in the grid's units; that of the domain by default.

    Raises:
        ArgumentError: If a corner does not have one finite number per dimension.
        GridError: If no point of positive weight lies in the box.

    Examples:
        >>> half = average(Grid.uniform((4,)), upper=[0.3])
        >>> half(torch.tensor([[1.0, 2.0, 9.0, 9.0]])).item()
        1.5
    """
    inside = grid.weights > 0
    for corner, sign in ((lower, 1.0), (upper, -1.0)):
        if corner is None:
            continue
        bound = torch.as_tensor(corner, dtype=torch.float64)
        if bound.shape != (grid.dimension,) or not bool(torch.isfinite(bound).all()):
            raise ArgumentError(
                expected=f"a corner of {grid.dimension} finite numbers", got=repr(corner), remedy="one per dimension"
            )
        inside = inside & (sign * (grid.points - bound) >= 0).all(1)
    if not bool(inside.any()):
        raise GridError(
            expected=f"a box with points of {grid!r}", got=f"{lower} to {upper}", remedy="widen the box, or refine the grid"
        )
    weights = torch.where(inside, grid.weights, torch.zeros_like(grid.weights))
    return MatrixFunctional(grid, (weights / weights.sum())[None])


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
    return MatrixFunctional(grid, interpolation_matrix(grid, _locations(locations)))


def derivative(
    grid: Grid, *, axis: int = 0, order: int = 1, at: Tensor | Sequence[Sequence[float]] | None = None
) -> Functional:
    """A partial derivative of the field's interpolant: spectral on periodic axes, finite differences on others.

    Args:
        grid: A uniform grid.
        axis: Which space dimension to differentiate along.
        order: Order of the derivative, at least 1.
        at: Coordinates, `(m, d)`; every grid point by default (then the work is one small matrix along one axis).

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
        return MatrixFunctional(grid, interpolation_matrix(grid, _locations(at), orders=orders))
    return AlongAxis(grid, line.matrix(line.coordinates, order=order), axis)


def stack(functionals: Sequence[Functional]) -> Functional:
    """Put functionals on one grid side by side: sizes add up.

    Raises:
        ArgumentError: If it is no list, or one entry is no functional.
        GridError: If there are none, or their grids differ.
        DataError: If one is something else.

    Examples:
        >>> grid = Grid.uniform((8,))
        >>> stack([integral(grid), sensors(grid, [[0.0], [0.5]])]).size
        3
    """
    return Stack(check_sequence(functionals, "functionals", remedy="give a list of them", error=DataError))


def _locations(locations: Tensor | Sequence[Sequence[float]]) -> Tensor:
    points = real_tensor(locations, "locations", dtype=torch.float64, device=torch.device("cpu"))
    if points.ndim != 2:
        raise ShapeError(
            expected="locations of shape (m, d)", got=str(tuple(points.shape)), remedy="write [[0.25], [0.75]] for two in 1-D"
        )
    return points
