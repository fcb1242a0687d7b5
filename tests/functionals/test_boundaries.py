"""Integrals over boundaries: closed forms on polygons and polyhedra, the divergence theorem, order of convergence."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from probneural.errors import DataError, GridError, ProbneuralError, ShapeError
from probneural.functionals import boundary_integral, integral
from probneural.grids import Grid
from probneural.problems.poisson_on_shapes import triangulated_disk
from tests.helpers import normal

SQUARE = Grid.mesh([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[0, 1, 2], [1, 2, 3]])
CUBE = Grid.mesh(
    torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3),
    [[0, 1, 3, 5], [0, 2, 3, 6], [0, 4, 5, 6], [3, 5, 6, 7], [0, 3, 5, 6]],
)
INTERVAL = Grid.mesh([[0.0], [0.5], [2.0]], [[0, 1], [1, 2]])
E_X, E_Y = [1.0, 0.0], [0.0, 1.0]


def disk(count: int) -> Grid:
    points, cells, _ = triangulated_disk(count)
    return Grid.mesh(points, cells)


def linear(grid: Grid, *, slope: Tensor) -> Tensor:
    return (grid.points @ slope + 2.0)[None]


@pytest.mark.parametrize(("grid", "measure"), [(INTERVAL, 2.0), (SQUARE, 4.0), (CUBE, 6.0)], ids=["line", "square", "cube"])
def test_is_exact_for_linear_fields(grid: Grid, measure: float) -> None:
    """On a box, the mean over the boundary of a linear function is its value at the centre."""
    slope = normal(grid.dimension, seed="slope")
    centre = 0.5 * (grid.points.amax(0) + grid.points.amin(0))
    expected = measure * (float(centre @ slope) + 2.0)
    assert boundary_integral(grid)(linear(grid, slope=slope)).item() == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("grid", [INTERVAL, SQUARE, CUBE, disk(150)], ids=["line", "square", "cube", "disk"])
def test_fluxes_of_linear_fields_are_integrals_of_the_divergence(grid: Grid) -> None:
    slope, direction = normal(grid.dimension, seed="slope"), normal(grid.dimension, seed="direction")
    flux = boundary_integral(grid, direction=direction)(linear(grid, slope=slope))
    assert flux.item() == pytest.approx(float(slope @ direction) * grid.volume, abs=1e-12)


def test_parts_are_chosen_by_their_points() -> None:
    right = boundary_integral(SQUARE, lambda x: x[:, 0] > 0.5)
    values = SQUARE.points[:, 1:].mT  # y
    assert right(values).item() == pytest.approx(0.5, abs=1e-15)
    assert boundary_integral(SQUARE, SQUARE.points[:, 0] > 0.5)(values).item() == pytest.approx(0.5, abs=1e-15)
    rest = boundary_integral(SQUARE, lambda x: x[:, 0] < 0.5)
    ends = [boundary_integral(SQUARE, lambda x, height=height: x[:, 1] == height) for height in (0.0, 1.0)]
    total = right + rest + ends[0] + ends[1]
    torch.testing.assert_close(total(values), boundary_integral(SQUARE)(values), rtol=0, atol=1e-15)


def test_perimeter_and_force_on_a_circle_converge_at_second_order() -> None:
    """The perimeter is 2 pi; a pressure x on the circle pushes with ∮ x n_x ds = pi."""
    errors: list[tuple[float, float]] = []
    for grid in map(disk, (200, 800)):
        perimeter = boundary_integral(grid)(torch.ones(1, grid.size, dtype=torch.float64)).item()
        force = boundary_integral(grid, direction=E_X)(grid.points[:, 0][None]).item()
        errors.append((abs(perimeter - 2.0 * math.pi), abs(force - math.pi)))
    for coarse, fine in zip(*errors, strict=True):
        assert 3.3 < coarse / fine < 4.7


def test_of_one_mesh_and_one_direction_per_sample() -> None:
    grids = [disk(60), SQUARE]
    batch, directions = Grid.batch(grids), torch.tensor([E_X, E_Y])
    values = normal(2, 1, 60, seed="boundaries")
    for given in (None, directions, directions[0]):
        functional = boundary_integral(batch, direction=given)
        for row, grid in enumerate(grids):
            own = given if given is None or given.ndim == 1 else given[row]
            expected = boundary_integral(grid, direction=own)(values[row, :, : grid.size])
            torch.testing.assert_close(functional(values)[row], expected, rtol=1e-13, atol=1e-13)


def test_boundary_and_domain_add_up() -> None:
    both = integral(SQUARE) + 0.5 * boundary_integral(SQUARE)
    assert both(torch.ones(1, 4, dtype=torch.float64)).item() == pytest.approx(3.0, abs=1e-14)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("grid", "options", "error", "message"),
    [
        (Grid.uniform((4, 4)), {}, GridError, "a mesh"),
        (Grid.scattered([[0.0], [1.0]], [0.5, 0.5]), {}, GridError, "a mesh"),
        (Grid.mesh(torch.eye(3), [[0, 1, 2]]), {}, GridError, "4 points of each cell"),
        (SQUARE, {"where": lambda x: x[:, 0] > 2.0}, GridError, "no facet inside"),
        (SQUARE, {"where": lambda x: x}, ShapeError, "result of the function"),
        (SQUARE, {"direction": [1.0, 0.0, 0.0]}, ShapeError, r"direction of shape \(2,\)"),
        (SQUARE, {"direction": [E_X, E_Y]}, ShapeError, r"direction of shape \(2,\)"),
        (Grid.batch([SQUARE] * 2), {"direction": [E_X] * 3}, ShapeError, r"\(2,\) or \(2, 2\)"),
        (SQUARE, {"direction": [math.nan, 0.0]}, DataError, "finite direction"),
    ],
)
def test_bad_arguments(grid: Grid, options: dict[str, object], error: type[ProbneuralError], message: str) -> None:
    with pytest.raises(error, match=message):
        boundary_integral(grid, **options)  # type: ignore[arg-type]
