"""Fields and pairs of fields: the nouns that data is made of."""

from __future__ import annotations

import inspect
import operator as python_operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.grids import Grid, resample


def check_finite(values: Tensor, name: str) -> None:
    """Raise a DataError, with the count and the first place, if any value is NaN or infinite."""
    bad = ~torch.isfinite(values.detach())
    if bool(bad.any()):
        first = tuple(bad.nonzero()[0].tolist())
        raise DataError(
            expected=f"finite {name}",
            got=f"{int(bad.sum())} values that are NaN or infinite, the first at index {first}",
            remedy="drop or repair those fields",
        )


@dataclass(frozen=True, eq=False, repr=False)
class Field:
    """Functions on a grid: n of them, each with c channels.

    Args:
        values: `(n, c, *grid.shape)`, float32 or float64, in physical units.
        grid: Where the values live.

    Raises:
        ShapeError: If the shapes do not fit together.
        DataError: If the values are not real floating point numbers.

    Examples:
        >>> grid = Grid.uniform((8,))
        >>> field = Field(torch.ones(3, 1, 8), grid)
        >>> len(field), len(field[:2]), field.norm().tolist()
        (3, 2, [[1.0], [1.0], [1.0]])
    """

    values: Float[Tensor, "..."]
    grid: Grid

    def __post_init__(self) -> None:
        """Validate once, here, so that everything downstream may rely on it."""
        if not isinstance(self.values, Tensor) or self.values.dtype not in (torch.float32, torch.float64):
            kind = self.values.dtype if isinstance(self.values, Tensor) else type(self.values)
            raise DataError(
                expected="values as a float32 or float64 tensor",
                got=str(kind),
                remedy="convert with torch.as_tensor(values, dtype=torch.float32); complex fields are two channels",
            )
        if not isinstance(self.grid, Grid):
            raise GridError(expected="a Grid", got=str(type(self.grid)), remedy="make one with pn.Grid.uniform(shape)")
        if self.values.ndim != 2 + len(self.grid.shape) or tuple(self.values.shape[2:]) != self.grid.shape:
            raise ShapeError(
                expected=f"values of shape (n, c, {', '.join(map(str, self.grid.shape))})",
                got=str(tuple(self.values.shape)),
                remedy="channels come second, grid axes last; one field of one channel is values[None, None]",
            )

    @property
    def channels(self) -> int:
        """Number of channels c."""
        return self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The values' dtype."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """The values' device."""
        return self.values.device

    def norm(self) -> Float[Tensor, "n c"]:
        """L2 norm over the domain by quadrature, in the values' units times the square root of the volume."""
        return self.mean_square().mul(self.grid.volume).sqrt()

    def mean_square(self) -> Float[Tensor, "n c"]:
        """Mean square over the domain by quadrature, in the values' units squared."""
        share = (self.grid.weights / self.grid.volume).to(self.values)
        return self.values.flatten(2).square() @ share

    def resample(self, grid: Grid) -> Field:
        """Evaluate the interpolant on another grid: see [`resample`][probneural.grids.resample]."""
        return Field(resample(self.values, self.grid, grid), grid)

    def to(self, target: torch.device | torch.dtype | str) -> Field:
        """Return the field with its values on another device or of another dtype."""
        return Field(self.values.to(target), self.grid)

    def __len__(self) -> int:
        """Number of fields n."""
        return self.values.shape[0]

    def __getitem__(self, index: int | slice | Tensor | Sequence[int]) -> Field:
        """Select fields; one integer selects one field and keeps its batch axis."""
        return Field(self.values[select_rows(index, len(self))], self.grid)

    def __repr__(self) -> str:
        """A short description."""
        return f"Field({len(self)} x {self.channels} on {self.grid!r}, {self.dtype})"


def select_rows(index: int | slice | Tensor | Sequence[int], count: int) -> slice | Tensor:
    """Turn an index over `count` things into one that keeps their axis, as a slice or a tensor.

    Raises:
        IndexError: If a number lies outside `-count` to `count - 1`; iteration relies on it.
    """
    if isinstance(index, slice):
        return index
    rows = index if isinstance(index, Tensor) else torch.as_tensor(index, device="cpu")
    if rows.ndim == 0 and rows.dtype != torch.bool:
        number = python_operator.index(rows)
        if not -count <= number < count:
            raise IndexError(f"index {number} of {count} functions")
        return slice(number % count, number % count + 1)
    return rows if rows.numel() else rows.long()


@dataclass(frozen=True, eq=False, repr=False)
class FieldPairs:
    """A data set: n input functions and the n output functions they map to.

    Args:
        inputs: Input functions.
        outputs: Output functions; their grid may differ from the inputs'.

    Raises:
        ShapeError: If the numbers of fields differ.
        DataError: If a side is not a `Field`.

    Examples:
        >>> field = Field(torch.zeros(10, 1, 8), Grid.uniform((8,)))
        >>> first, second = FieldPairs(field, field).split(7, seed=0)
        >>> len(first), len(second)
        (7, 3)
    """

    inputs: Field
    outputs: Field

    def __post_init__(self) -> None:
        """Check that the two sides are fields, equally many."""
        for side in (self.inputs, self.outputs):
            if not isinstance(side, Field):
                raise DataError(expected="two Fields", got=str(type(side)), remedy="wrap tensors: pn.Field(values, grid)")
        if len(self.inputs) != len(self.outputs):
            raise ShapeError(
                expected="as many output fields as input fields",
                got=f"{len(self.inputs)} inputs and {len(self.outputs)} outputs",
                remedy="pair them one to one",
            )

    def split(self, count: int, *, seed: int) -> tuple[FieldPairs, FieldPairs]:
        """Split at random into `count` pairs and the rest.

        Raises:
            ArgumentError: If either part would be empty.
        """
        if not 0 < count < len(self):
            raise ArgumentError(
                expected=f"a count between 1 and {len(self) - 1}", got=str(count), remedy="leave pairs on both sides"
            )
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed), device="cpu")
        return self[order[:count]], self[order[count:]]

    def to(self, target: torch.device | torch.dtype | str) -> FieldPairs:
        """Return the pairs on another device or in another dtype."""
        return FieldPairs(self.inputs.to(target), self.outputs.to(target))

    def __len__(self) -> int:
        """Number of pairs n."""
        return len(self.inputs)

    def __getitem__(self, index: int | slice | Tensor | Sequence[int]) -> FieldPairs:
        """Select pairs, as in `Field`."""
        return FieldPairs(self.inputs[index], self.outputs[index])

    def __repr__(self) -> str:
        """A short description."""
        return f"FieldPairs({self.inputs!r} -> {self.outputs!r})"


def evaluate(operator: nn.Module, inputs: Field, query: Grid | None = None) -> Float[Tensor, "n c *grid"]:
    """Call any operator on fields and return its values on the inputs' grid, or on `query`.

    Operators whose `forward` takes `grid=` and `query=` (ours do) are told where their input lives and evaluate anywhere
    themselves; any other module sees plain tensors, and its output is interpolated.

    Args:
        operator: A module from `(n, c, *grid)` to `(n, c', *grid)`.
        inputs: Input functions.
        query: Where to evaluate; the inputs' grid by default.

    Returns:
        Values, `(n, c', *query.shape)`.

    Raises:
        ShapeError: If the module returns something that is not a field on the expected grid.
    """
    where = inputs.grid if query is None else query
    if takes_grid(operator):
        values = operator(inputs.values, grid=inputs.grid, query=query)
    else:
        values = operator(inputs.values)
        if isinstance(values, Tensor) and tuple(values.shape[2:]) == inputs.grid.shape:
            values = resample(values, inputs.grid, where)
    if not isinstance(values, Tensor) or values.ndim < 2 or tuple(values.shape) != (len(inputs), values.shape[1], *where.shape):
        got = str(tuple(values.shape)) if isinstance(values, Tensor) else str(type(values))
        raise ShapeError(
            expected=f"an operator that returns ({len(inputs)}, channels, {', '.join(map(str, where.shape))})",
            got=got,
            remedy="wrap the module so that it maps (n, c, *grid) to (n, c', *grid)",
        )
    return values


def takes_grid(operator: nn.Module) -> bool:
    """Whether the operator's `forward` accepts `grid` and `query`."""
    names = inspect.signature(operator.forward).parameters
    return "grid" in names and "query" in names
