"""The box around points of training: coordinates relative to it, and checks of grids against it."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from probneural.contexts import outside_of_transforms
from probneural.errors import GridError
from probneural.grids import Grid, check_grid, check_on_grid
from probneural.operators.checks import check_input, check_samples, check_where
from probneural.pairs import Dataset

_MARGIN = 0.25
"""Padding of the box beyond the training points on non-periodic axes, in units of their extent, in which functions become
periodic."""
_SLACK = 1e-6
"""Distance outside the box that counts as rounding, in units of its lengths."""


class Box(nn.Module):
    """A periodic box around all points of inputs and outputs.

    Args:
        dimension: Number of coordinates d of a point.

    Attributes:
        origin: Lower corner, `(d,)`, in the units of the coordinates.
        lengths: Lengths, `(d,)`: the extent of a periodic axis, elsewhere the range of the training points and a margin.
            Zero before `fit`: the box is then the unit cube, and points outside are not refused.
    """

    origin: Tensor
    lengths: Tensor

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.register_buffer("origin", torch.zeros(dimension, dtype=torch.float64))
        self.register_buffer("lengths", torch.zeros(dimension, dtype=torch.float64))

    @property
    def sides(self) -> Tensor:
        """Lengths, `(d,)`; 1 before `fit`."""
        return torch.where(self.lengths > 0, self.lengths, 1.0)

    def set(self, origin: Float64[Tensor, " d"], lengths: Float64[Tensor, " d"]) -> None:
        """Take another box."""
        self.origin.copy_(origin)
        self.lengths.copy_(lengths)

    def fit(self, *train: Dataset) -> None:
        """Take the smallest box, with its margin, around the points of inputs and outputs."""
        corners = [box_of(side.grid) for data in train for side in (data.inputs, data.outputs)]
        lower = torch.stack([origin for origin, _ in corners]).amin(0)
        upper = torch.stack([origin + lengths for origin, lengths in corners]).amax(0)
        self.set(lower, torch.where(upper > lower, upper - lower, 1.0))

    def locate(
        self, values: Tensor, grid: Grid | None, *, query: Grid | None, channels: int, dtype: torch.dtype
    ) -> tuple[Grid, Grid]:
        """Check input values and return the grids of inputs and outputs.

        Args:
            values: `(n, channels, *grid)`.
            grid: One grid for all samples or a batch; None is a uniform periodic grid of the box.
            query: One grid or a batch; None is the inputs' grid.
            channels: Number of input channels.
            dtype: Data type of the weights.

        Raises:
            ShapeError: If the values are not of that shape, or a batch has another number of grids.
            DataError: If they are of another dtype.
            GridError: If a grid has another number of dimensions, or points outside of the box.
        """
        check_where(grid, query)
        dimension = len(self.lengths) if grid is None else len(grid.shape)
        check_input(values, channels=channels, dimension=dimension, dtype=dtype)
        if grid is None:
            grid = Grid.uniform(tuple(values.shape[2:]), lengths=self.sides.tolist(), origin=self.origin.tolist())
        check_on_grid(values, grid)
        query = grid if query is None else query
        for where in (grid, query):
            check_samples(where, values)
            self._check_inside(where)
        return grid, query

    def turns(self, grid: Grid) -> Float64[Tensor, "b p d"]:
        """Coordinates of a grid's points from 0 to 1 on the box; b is 1 if samples share them."""
        points = grid.points if grid.has_points_per_sample else grid.points[None]
        return (points - self.origin.cpu()) / self.sides.cpu()

    def _check_inside(self, grid: Grid) -> None:
        """Raise a GridError unless points have as many coordinates as the box, and lie inside it."""
        check_grid(grid, dimension=len(self.lengths), remedy="build the operator for these coordinates")
        if torch.compiler.is_compiling():
            return  # values are not available while tracing
        with outside_of_transforms():
            turns = self.turns(grid)
            turns = turns[grid.weights > 0] if grid.has_points_per_sample else turns
            if bool((self.lengths > 0).any() and ((turns < -_SLACK) | (turns > 1.0 + _SLACK)).any()):
                ends = [f"[{low:g}, {low + length:g}]" for low, length in zip(self.origin, self.lengths, strict=True)]
                raise GridError(
                    expected=f"points in the domain of training, the box {' x '.join(ends)}",
                    got=repr(grid),
                    remedy="train on data that cover the domain: the operator repeats outside",
                )

    def extra_repr(self) -> str:
        """Number of coordinates, for printing."""
        return str(len(self.lengths))


def box_of(grid: Grid) -> tuple[Float64[Tensor, " d"], Float64[Tensor, " d"]]:
    """Lower corner and lengths of the box of a grid: periods of periodic axes, elsewhere the range of points and a margin."""
    points = grid.points[grid.weights > 0] if grid.has_points_per_sample else grid.points
    lower, upper = points.amin(0), points.amax(0)
    for number, axis in enumerate(grid.axes):
        if axis.periodic:
            lower[number], upper[number] = axis.origin, axis.origin + axis.length
    margins = torch.tensor([0.0 if flag else 0.5 * _MARGIN for flag in grid.periodic]) * (upper - lower)
    return lower - margins, upper - lower + 2.0 * margins
