"""Integrals over the boundary of a mesh: fluxes, forces, means over a wall."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from probneural.checks import check_finite, real_tensor
from probneural.contexts import undisturbed
from probneural.errors import GridError, ShapeError
from probneural.functionals.base import Functional, MatrixFunctional, on_each
from probneural.functionals.regions import Indicator, fractions
from probneural.grids import Grid, check_grid
from probneural.grids.mesh import boundary_areas


@undisturbed()
def boundary_integral(
    grid: Grid,
    where: Indicator | ArrayLike | Tensor | None = None,
    *,
    direction: Tensor | Sequence[float] | Sequence[Sequence[float]] | None = None,
) -> Functional:
    """The integral over the boundary of a mesh of values that are linear in each facet; one number per channel.

        ∫_S u ds,   or with a direction e and the outward unit normal n   ∫_S u n·e ds

    It is exact for linear fields on the polygon or polyhedron of the mesh. On a curved boundary the error is of second order in
    the length of the facets.

    Args:
        grid: A mesh of full dimension, or a batch of meshes.
        where: The part S of the boundary: facets whose points are all inside. A function of points `(q, d)`, float64, that
            returns truth values `(q,)`, or of one mesh a mask `(p,)`; the whole boundary by default.
        direction: Vector e, `(d,)`, or `(n, d)` with one per mesh of a batch; dimensionless.

    Returns:
        A functional of size 1, in the values' units times area.

    Raises:
        GridError: If the grid has no cells, they are not of full dimension, or no facet is inside.
        ShapeError: If the direction does not have the shape above, or the mask or the function's values not theirs.
        DataError: If the direction is not finite, or the mask holds no truth values.

    Examples:
        >>> square = Grid.mesh([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[0, 1, 2], [1, 2, 3]])
        >>> x = square.points[:, 0]
        >>> boundary_integral(square)(x[None]).item()
        2.0
        >>> boundary_integral(square, direction=[1.0, 0.0])(x[None]).item()  # the divergence of (x, 0) is 1
        1.0
    """
    cells = check_grid(grid).cells
    if cells is None:
        raise GridError(expected="a mesh", got=repr(grid), remedy="make it by Grid.mesh(points, cells)")
    vector = None if direction is None else _checked_direction(direction, grid)
    if grid.has_points_per_sample:
        vectors = [None] * len(grid.weights) if vector is None else vector.expand(len(grid.weights), -1)
        return on_each(grid, lambda single, vector: boundary_integral(single, where, direction=vector), vectors)
    facets, areas = boundary_areas(grid.points, cells)
    if where is not None:
        inside = (fractions(grid, where)[facets] > 0).all(1)
        facets, areas = facets[inside], areas[inside]
    if not len(facets):
        raise GridError(
            expected="a part of the boundary", got="no facet inside", remedy="widen the part: where holds for points"
        )
    # each of the d points of a facet has 1/d of its area, or of the area's component along e
    weights = areas.norm(dim=1) if vector is None else areas @ vector
    per_point = (weights / grid.dimension).repeat_interleave(grid.dimension)
    row = torch.zeros(grid.size, dtype=torch.float64).index_add_(0, facets.flatten(), per_point)
    return MatrixFunctional(grid, row[None], labels=("boundary integral",))


def _checked_direction(direction: object, grid: Grid) -> Tensor:
    vector = real_tensor(direction, "direction", dtype=torch.float64, device=torch.device("cpu")).detach()
    shapes = [(grid.dimension,), (len(grid.weights), grid.dimension)][: 1 + grid.has_points_per_sample]
    if tuple(vector.shape) not in shapes:
        raise ShapeError(
            expected=f"a direction of shape {' or '.join(map(str, shapes))}",
            got=str(tuple(vector.shape)),
            remedy="one number per coordinate; one vector per mesh of a batch",
        )
    check_finite(vector, "direction", remedy="give a finite vector")
    return vector
