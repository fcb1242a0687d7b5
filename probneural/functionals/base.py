"""Base class of linear functionals, and their linear combinations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_instance, check_integer, check_least, check_real, check_sequence, check_shape, real_tensor
from probneural.contexts import Undisturbed
from probneural.displays import html_table
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.grids import Grid, check_on_grid
from probneural.grids.axes import transfer
from probneural.grids.grid import check_same_grid

_NORM_ROWS = 256
"""Number of rows of a functional's matrix per chunk."""

_NAMES = 6
"""Maximum number of names in a table."""

_ROUNDING = 1e-12
"""Entries of a functional, relative to its largest, that count as none."""


class Functional(Undisturbed, ABC):
    """A linear map from the values of a field to `size` numbers per channel.

    Functionals add, subtract, and scale by numbers; [`stack`][probneural.functionals.stack] puts several side by side.

    Attributes:
        grid: Grid of the fields.
        labels: Names of the m numbers, for figures and tables; None if they have none, as sums and multiples.
    """

    grid: Grid
    labels: tuple[str, ...] | None = None

    @property
    @abstractmethod
    def size(self) -> int:
        """Number m of values per channel."""

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
            DataError: If they are not real numbers.
            ShapeError: If the values do not end in the grid's shape.
        """
        numbers = real_tensor(values, "values")
        check_on_grid(numbers, self.grid)
        return self._forward(numbers)

    def adjoint(self, numbers: Float[Tensor, "... m"]) -> Float[Tensor, "..."]:
        """Apply the transposed map, `(..., m) -> (..., *grid.shape)`: sum(f(u) * y) == sum(u * f.adjoint(y)).

        The inner product on fields is the plain sum over grid points, without quadrature weights.

        Raises:
            DataError: If they are not real numbers.
            ShapeError: If the last axis does not have length m.
        """
        tensor = real_tensor(numbers, "numbers")
        check_shape(tensor, "numbers", "...", self.size, remedy="pass a result of calls")
        return self._adjoint(tensor)

    def row_norms(self, *, order: int = 2) -> Float64[Tensor, " m"]:
        """Norms of the rows of the functional's matrix, Euclidean by default.

        They bound the rounding of the functional's values: that of the field, and for rows of order 1 that of the sums.
        """
        order = check_integer(order, "order")
        numbers = torch.arange(self.size, device="cpu")
        parts = ((indices[:, None] == numbers).to(torch.float64) for indices in numbers.split(_NORM_ROWS))
        return torch.cat([self._adjoint(rows).flatten(1).norm(order, dim=1) for rows in parts])

    def select(self, rows: slice | Tensor) -> Functional:
        """The functional of some samples of a batch of meshes; on one grid, itself."""
        return self

    def named(self, labels: str | Sequence[str]) -> Functional:
        """The same functional with other names, one for each of its numbers.

        Raises:
            ArgumentError: If the names are not strings, or their number differs.

        Examples:
            >>> from probneural.functionals import integral
            >>> integral(Grid.uniform((4,))).named("mass").labels
            ('mass',)
        """
        return Stack((self,), names=check_labels(labels, self.size))

    def _repr_html_(self) -> str:
        """A table of names, size and grid."""
        names = "none" if self.labels is None else ", ".join(self.labels[:_NAMES]) + (", …" if self.size > _NAMES else "")
        return html_table(type(self).__name__, [("names", names), ("size", self.size), ("grid", repr(self.grid))])

    def __add__(self, second: Functional) -> Functional:
        """The sum of two functionals of equal size on one grid."""
        return Combination(parts=(self, second), factors=(1.0, 1.0))

    def __sub__(self, second: Functional) -> Functional:
        """The difference of two functionals of equal size on one grid."""
        return Combination(parts=(self, second), factors=(1.0, -1.0))

    def __mul__(self, factor: float) -> Functional:
        """The functional times a number."""
        return Combination(parts=(self,), factors=(check_real(factor, "factor"),))

    __rmul__ = __mul__

    def __neg__(self) -> Functional:
        """The functional with its sign changed."""
        return self * -1.0


@dataclass(frozen=True, eq=False)
class MatrixFunctional(Functional):
    """A functional given by its matrix, `(m, p)`, float64, over the grid's p points, and names of its numbers, if any.

    On a batch of n grids the matrix is `(n, m, p)`, and values are `(..., n, c, p)`.
    """

    grid: Grid
    matrix: Float64[Tensor, "*n m p"]
    _: KW_ONLY
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check the matrix against the grid."""
        samples = (len(self.grid.weights),) if self.grid.has_points_per_sample else ()
        check_shape(self.matrix, "a matrix", *samples, "m", self.grid.size, remedy="one column per grid point")
        if samples:
            return
        check_unbatched(self.grid)
        if self.grid.is_masked:
            size = self.matrix.abs()
            missing = size.masked_fill(self.grid.observed.flatten().to(size.device), 0.0)
            if bool((missing.amax(1) > _ROUNDING * size.amax(1)).any()):
                raise GridError(
                    expected="a functional of observed values alone",
                    got="one that reads masked points of the grid",
                    remedy="use points that are not masked; or predict with query=grid.unmasked",
                )

    @property
    def size(self) -> int:
        """Rows of the matrix."""
        return self.matrix.shape[-2]

    def row_norms(self, *, order: int = 2) -> Float64[Tensor, "*n m"]:
        """Norms of the rows of the matrix, or of each sample's matrix on a batch of grids; see the base class."""
        return self.matrix.norm(check_integer(order, "order"), dim=-1)

    def select(self, rows: slice | Tensor) -> MatrixFunctional:
        """The functional of some samples of a batch of meshes; on one grid, itself."""
        if not self.grid.has_points_per_sample:
            return self
        return replace(self, grid=self.grid.select(rows), matrix=self.matrix[rows])

    def _forward(self, values: Tensor) -> Tensor:
        return values.flatten(values.ndim - len(self.grid.shape)) @ self.matrix.to(values).mT

    def _adjoint(self, numbers: Tensor) -> Tensor:
        return (numbers @ self.matrix.to(numbers)).unflatten(-1, self.grid.shape)


@dataclass(frozen=True, eq=False)
class AlongAxis(Functional):
    """The derivative of some order along one axis of a uniform grid, at all grid points."""

    grid: Grid
    _: KW_ONLY
    axis: int
    order: int

    @property
    def size(self) -> int:
        """Number of grid points."""
        return self.grid.size

    def _forward(self, values: Tensor) -> Tensor:
        return self._transferred(values).flatten(values.ndim - len(self.grid.shape))

    def _adjoint(self, numbers: Tensor) -> Tensor:
        return self._transferred(numbers.unflatten(-1, self.grid.shape), transposed=True)

    def _transferred(self, values: Tensor, *, transposed: bool = False) -> Tensor:
        line = self.grid.axes[self.axis]
        return transfer(values, line, line, dim=self.axis - self.grid.dimension, order=self.order, transposed=transposed)


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

    def select(self, rows: slice | Tensor) -> Combination:
        """The combination of some samples of a batch of meshes."""
        return replace(self, parts=tuple(part.select(rows) for part in self.parts))

    def _forward(self, values: Tensor) -> Tensor:
        terms = [factor * part(values) for part, factor in zip(self.parts, self.factors, strict=True)]
        return torch.stack(terms).sum(0)

    def _adjoint(self, numbers: Tensor) -> Tensor:
        terms = [factor * part.adjoint(numbers) for part, factor in zip(self.parts, self.factors, strict=True)]
        return torch.stack(terms).sum(0)


@dataclass(frozen=True, eq=False)
class Stack(Functional):
    """Functionals on one grid, side by side; see [`stack`][probneural.functionals.stack]. Their names can be replaced."""

    parts: tuple[Functional, ...]
    names: tuple[str, ...] | None = None

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

    @property
    def labels(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """The names given, or the parts' own; numbers stand for those that have none."""
        if self.names is not None or all(part.labels is None for part in self.parts):
            return self.names
        labels: tuple[str, ...] = ()
        for part in self.parts:
            labels += part.labels or tuple(str(len(labels) + number) for number in range(part.size))
        return labels

    def select(self, rows: slice | Tensor) -> Stack:
        """The functionals of some samples of a batch of meshes."""
        return replace(self, parts=tuple(part.select(rows) for part in self.parts))

    def _forward(self, values: Tensor) -> Tensor:
        return torch.cat([part(values) for part in self.parts], dim=-1)

    def _adjoint(self, numbers: Tensor) -> Tensor:
        pieces = numbers.split([part.size for part in self.parts], dim=-1)
        return torch.stack([part.adjoint(piece) for part, piece in zip(self.parts, pieces, strict=True)]).sum(0)


def on_each(grid: Grid, make: Callable[..., Functional], *arguments: Sequence[object] | Tensor) -> Functional:
    """One functional per sample, on a batch of grids.

    Args:
        grid: The batch.
        make: Makes the functional of one grid, from the grid and the sample's entry of each of the arguments.
        arguments: Sequences with an entry per sample.
    """
    rows = []
    for single, *entries in zip(grid.singles(), *arguments, strict=True):
        functional = make(single, *entries)
        matrix = functional.adjoint(torch.eye(functional.size, dtype=torch.float64, device="cpu"))
        rows.append(torch.nn.functional.pad(matrix, (0, grid.size - single.size)))
    return MatrixFunctional(grid, torch.stack(rows), labels=functional.labels)


def check_unbatched(grid: Grid, *, takes_meshes: bool = True) -> None:
    """Raise a GridError if masks differ between samples: a functional is the same for all."""
    if grid.is_batch and not (takes_meshes and grid.has_points_per_sample):
        raise GridError(
            expected="one grid for all samples of a functional",
            got=repr(grid),
            remedy="build it on grid.unmasked: predictions for inputs with masks of their own live there; or on one "
            "sample's mesh, grid.select(slice(0, 1)).first",
        )


def check_functional(functional: object, name: str = "functional", *, grid: Grid | None = None) -> Functional:
    """Return a functional.

    Raises:
        DataError: If it is not a functional.
        GridError: If its grid differs from the given one.
    """
    is_map = callable(functional) and not isinstance(functional, Functional | type)
    remedy = "build one: pn.functionals.sensors(grid, [[0.5]])"
    nonlinear = (
        "push a nonlinear one forward by draws: u.apply_by_draws(function); where draws are not taken, as in an OperatorModel, "
        "give a linear one that it is a function of, sensors(grid, points) for a maximum, and form the rest in the objective: "
        "GenericMCObjective(lambda samples, X=None: samples.amax(-1))"
    )
    checked = check_instance(functional, Functional, name, remedy=nonlinear if is_map else remedy)
    if grid is not None:
        check_same_grid(checked.grid, grid, "a functional", remedy="build the functional from the distribution's grid")
    return checked


def check_labels(labels: object, size: int, *, name: str = "labels") -> tuple[str, ...]:
    """Return names of m numbers; one text will do for one number.

    Raises:
        ArgumentError: If they are not strings, or their number differs.
    """
    texts = (labels,) if isinstance(labels, str) else check_sequence(labels, name, remedy="give a list of texts")
    if len(texts) != size or not all(isinstance(text, str) for text in texts):
        raise ArgumentError(expected=f"{size} texts as {name}", got=repr(labels), remedy="name every number")
    return texts


def _check_one_grid(parts: Sequence[Functional]) -> None:
    check_least(len(parts), 1, "functionals", remedy="give some on one grid", error=GridError)
    for part in parts:
        check_functional(part, "one of the functionals", grid=parts[0].grid if part is not parts[0] else None)


def stack(functionals: Sequence[Functional]) -> Functional:
    """Put functionals on one grid side by side: sizes add up.

    Raises:
        ArgumentError: If it is not a list, or an entry is not a functional.
        GridError: If the list is empty, or grids differ.
        DataError: If one is something else.

    Examples:
        >>> from probneural.functionals import integral, sensors
        >>> grid = Grid.uniform((8,))
        >>> stack([integral(grid), sensors(grid, [[0.0], [0.5]])]).size
        3
    """
    return Stack(check_sequence(functionals, "functionals", remedy="give a list of them", error=DataError))
