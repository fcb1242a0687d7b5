"""The Fourier operator on points: against `FNO`, and invariances of quadrature."""

from __future__ import annotations

import math

import pytest
import torch

from probneural.errors import DataError, GridError, ShapeError
from probneural.grids import Grid
from probneural.operators import FNO, PointFNO
from probneural.operators.layers.box import box_of
from probneural.operators.point_fno import FourierBasis
from probneural.problems.poisson_on_shapes import triangulated_disk
from tests.helpers import generator, normal


def operator(*modes: int, **options: object) -> PointFNO:
    return PointFNO(1, 1, modes=modes, width=6, depth=2, projection=4, seed=0, **options).double()  # type: ignore[arg-type]


def points_in_box(count: int) -> Grid:
    points = torch.rand(count, 2, generator=generator("points"), dtype=torch.float64)
    return Grid.scattered(points, torch.rand(count, generator=generator("weights")) / count)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("shape", [(17,), (12, 9), (7, 8, 9)])
def test_equals_an_fno_on_uniform_periodic_grids(shape: tuple[int, ...], dtype: torch.dtype, tolerance: float) -> None:
    grid = Grid.uniform(shape, lengths=(2.0, 1.0, 3.0)[: len(shape)], origin=(0.3, -1.0, 0.0)[: len(shape)])
    fno = FNO(2, 3, modes=(3,) * len(shape), width=6, depth=3, projection=5, seed=0).to(dtype)
    values = normal(4, 2, *shape, seed="values", dtype=dtype)
    expected = fno(values, grid=grid)
    converted = PointFNO(2, 3, modes=(3,) * len(shape), width=6, depth=3, projection=5, embeds_position=False).to(dtype)
    converted.load_state_dict({**converted.state_dict(), **fno.state_dict()})
    converted.box.set(*box_of(grid))
    actual = converted(values, grid=grid)
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * float(expected.detach().abs().max()))


def test_permuting_splitting_and_padding_points_changes_nothing() -> None:
    network, grid = operator(3, 3), points_in_box(30)
    values = normal(2, 1, 30, seed="values")
    expected = network(values, grid=grid)
    order = torch.randperm(30, generator=generator("order"))
    permuted = network(values[..., order], grid=Grid.scattered(grid.points[order], grid.weights[order]))
    torch.testing.assert_close(permuted, expected[..., order], rtol=1e-12, atol=1e-13)
    weights = grid.weights
    weights[4] /= 2.0
    split = Grid.scattered(torch.cat([grid.points, grid.points[4:5]]), torch.cat([weights, weights[4:5]]))
    outputs = network(torch.cat([values, values[..., 4:5]], -1), grid=split)
    torch.testing.assert_close(outputs[..., :30], expected, rtol=1e-12, atol=1e-13)
    padded = Grid.batch([grid, points_in_box(40)])
    filled = torch.cat([torch.nn.functional.pad(values[:1], (0, 10), value=9.0), normal(1, 1, 40, seed="other")])
    torch.testing.assert_close(network(filled, grid=padded)[:1, :, :30], expected[:1], rtol=1e-12, atol=1e-13)


def test_coefficients_converge_at_second_order_on_graded_meshes() -> None:
    """Those of a smooth function on the unit disk, on meshes that are dense near its boundary."""
    corner, lengths = (torch.full((2,), number, dtype=torch.float64) for number in (-1.25, 2.5))
    basis = FourierBasis((4, 4), origin=corner, lengths=lengths)

    def coefficients(count: int) -> torch.Tensor:
        points, cells, _ = triangulated_disk(count, graded=True)
        grid = Grid.mesh(points, cells)
        values = (points[:, 0].cos() * points[:, 1].exp())[None, None]
        return (values @ basis.analysis(grid, values)).flatten()

    reference = coefficients(25600)
    errors = [float((coefficients(count) - reference).norm() / reference.norm()) for count in (100, 400, 1600)]
    assert errors[0] / errors[1] > 3.0
    assert errors[1] / errors[2] > 3.0
    assert errors[2] < 2e-3


def test_a_query_is_evaluated_anywhere() -> None:
    points, cells, _ = triangulated_disk(200)
    fine_points, fine_cells, _ = triangulated_disk(800)
    coarse, fine = Grid.mesh(points, cells), Grid.mesh(fine_points, fine_cells)
    network = operator(3, 3)
    network.box.set(torch.full((2,), -1.25), torch.full((2,), 2.5))
    of_coarse, of_fine = (grid.points.sum(1).sin()[None, None] for grid in (coarse, fine))
    with torch.no_grad():
        moved, direct = network(of_coarse, grid=coarse, query=fine), network(of_fine, grid=fine)
        assert torch.equal(network(of_coarse, grid=coarse, query=coarse), network(of_coarse, grid=coarse))
    assert float((moved - direct).norm() / direct.norm()) < 0.05
    assert math.isfinite(float(moved.sum()))


@pytest.mark.bad_input
def test_bad_inputs() -> None:
    network, grid = operator(3, 3), points_in_box(10)
    network.box.set(torch.zeros(2), torch.ones(2))
    with pytest.raises(GridError, match="a grid in 2 dimensions as grid"):
        network(torch.zeros(1, 1, 4).double(), grid=Grid.scattered([[0.0], [0.1], [0.2], [0.3]], torch.ones(4)))
    with pytest.raises(ShapeError):
        network(torch.zeros(1, 2, 10).double(), grid=grid)
    with pytest.raises(DataError, match="float64"):
        network(torch.zeros(1, 1, 10), grid=grid)
    with pytest.raises(ShapeError):
        network(torch.zeros(1, 1, 11).double(), grid=grid)
    with pytest.raises(GridError, match="domain of training"):
        network(torch.zeros(1, 1, 10).double(), grid=Grid.scattered(grid.points + 1.0, grid.weights))
