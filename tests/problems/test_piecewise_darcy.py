"""Piecewise Darcy flow against a sparse direct solver, an exact family, itself on finer meshes, and known values."""

from __future__ import annotations

import itertools
import math

import numpy
import pytest
import scipy.sparse
import torch

from probneural.errors import DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems import Darcy2D, GaussianRandomField, PiecewiseDarcy
from probneural.problems.piecewise_darcy import solve_darcy


def direct_solution(permeability: numpy.ndarray) -> numpy.ndarray:
    """The scheme face by face, written as a graph Laplacian, and solved by sparse elimination."""
    shape = permeability.shape
    numbers, rows, columns, weights = numpy.arange(permeability.size).reshape(shape), [], [], []
    for here, there in [
        ((slice(None, -1), slice(1, -1)), (slice(1, None), slice(1, -1))),
        ((slice(1, -1), slice(None, -1)), (slice(1, -1), slice(1, None))),
    ]:
        axis = 0 if here[0].start is None else 1
        face = 2.0 / (1.0 / permeability[here] + 1.0 / permeability[there]) * (shape[axis] - 1) ** 2
        rows.append(numbers[here].ravel())
        columns.append(numbers[there].ravel())
        weights.append(face.ravel())
    first, second, weight = (numpy.concatenate(part) for part in (rows, columns, weights))
    graph = scipy.sparse.coo_array((weight, (first, second)), shape=(permeability.size,) * 2)
    graph = graph + graph.T
    laplacian = scipy.sparse.diags_array(graph.sum(axis=1)) - graph
    inside = numbers[1:-1, 1:-1].ravel()
    pressure = numpy.zeros(permeability.size)
    pressure[inside] = scipy.sparse.linalg.spsolve(laplacian.tocsc()[inside][:, inside], numpy.ones(len(inside)))
    return pressure.reshape(shape)


@pytest.mark.parametrize(("high", "shape"), [(12.0, (33, 33)), (12.0, (41, 27)), (300.0, (33, 33)), (30000.0, (17, 17))])
def test_against_sparse_elimination(high: float, shape: tuple[int, int]) -> None:
    problem = PiecewiseDarcy(high, random_field=GaussianRandomField(2, 6, sigma=1.0, tau=3.0, boundary="neumann"))
    inputs = Field(problem._inputs(problem.input_distribution.draw(2, 0), problem.grid(shape)), problem.grid(shape))
    expected = numpy.stack([direct_solution(field[0]) for field in inputs.values.numpy()])
    solved = problem.solve(inputs).values[:, 0]
    assert (solved - torch.from_numpy(expected)).abs().max() < 1e-12 * solved.abs().max()


def test_the_iteration_stands_fields_of_unequal_contrast() -> None:
    problem, grid = (
        PiecewiseDarcy(random_field=GaussianRandomField(2, 4, sigma=1.0, tau=3.0, boundary="neumann")),
        Grid.uniform((17, 17), periodic=False),
    )
    noise = torch.rand(3, 1, 17, 17, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1e-3
    noise = torch.cat([noise, torch.ones_like(noise[:1]), 1e5 * noise[:1]])
    together = problem.solve(Field(noise, grid)).values
    alone = torch.cat([problem.solve(Field(field[None], grid)).values for field in noise])
    torch.testing.assert_close(together, alone, atol=0, rtol=1e-11)
    expected = torch.from_numpy(direct_solution(noise[1, 0].numpy()))
    assert (together[1, 0] - expected).abs().max() < 1e-12 * expected.abs().max()


@pytest.mark.parametrize("seed", [0, 1])
def test_second_order_where_the_permeability_is_smooth(seed: int) -> None:
    family = Darcy2D(degree=4, spread=1.5, random_field=GaussianRandomField(2, 3, boundary="dirichlet"), design_dim=1)
    errors = []
    for cells in (16, 32, 64):
        pairs = family.sample(2, resolution=cells + 1, seed=seed, dtype=torch.float64)
        root, source = pairs.inputs.values.split(1, dim=1)
        error = solve_darcy(root.square(), source, grid=pairs.inputs.grid) - pairs.outputs.values
        errors.append((error.norm() / pairs.outputs.values.norm()).item())
    orders = [math.log2(coarse / fine) for coarse, fine in itertools.pairwise(errors)]
    assert orders == pytest.approx([2.0, 2.0], abs=0.1)
    assert errors[-1] < 3e-3


@pytest.mark.slow
def test_errors_at_jumps_fall_with_the_number_of_cells() -> None:
    reference = (
        PiecewiseDarcy(cells=480, random_field=GaussianRandomField(2, 10, sigma=1.0, tau=3.0, boundary="neumann"))
        .sample(4, resolution=31, seed=0, dtype=torch.float64)
        .outputs.values
    )
    errors = []
    for cells in (30, 60, 120):
        solved = (
            PiecewiseDarcy(cells=cells, random_field=GaussianRandomField(2, 10, sigma=1.0, tau=3.0, boundary="neumann"))
            .sample(4, resolution=31, seed=0, dtype=torch.float64)
            .outputs.values
        )
        errors.append(((solved - reference).norm() / reference.norm()).item())
    assert math.log2(errors[0] / errors[-1]) / 2 == pytest.approx(1.0, abs=0.35), errors
    assert errors[-1] < 2e-2


def test_pressure_in_the_middle_of_a_uniform_square() -> None:
    # Timoshenko's series for the torsion of a square bar: 0.0736713533...
    problem, middles = PiecewiseDarcy(random_field=GaussianRandomField(2, 4, sigma=1.0, tau=3.0, boundary="neumann")), []
    for size in (33, 65, 129):
        values = problem.solve(Field(torch.full((1, 1, size, size), 2.0, dtype=torch.float64), problem.grid(size))).values
        middles.append(2.0 * values[0, 0, size // 2, size // 2].item())
    assert middles[2] == pytest.approx(0.0736713533, abs=2e-5)
    assert (64 * middles[2] - 20 * middles[1] + middles[0]) / 45 == pytest.approx(0.0736713533, abs=1e-8)


def test_both_materials_occur_and_the_field_has_the_published_distribution() -> None:
    problem = PiecewiseDarcy()
    permeability = problem._inputs(problem.input_distribution.draw(200, 0), problem.grid(43))
    assert set(permeability.unique().tolist()) == {3.0, 12.0}
    assert (permeability == 12.0).double().mean().item() == pytest.approx(0.5, abs=0.03)
    distribution = problem.input_distribution
    assert (distribution.boundary, distribution.tau, distribution.alpha, distribution.modes) == ("neumann", 3.0, 2.0, 20)


def test_pressures_are_positive_and_bounded_by_those_of_one_material() -> None:
    problem = PiecewiseDarcy(random_field=GaussianRandomField(2, 6, sigma=1.0, tau=3.0, boundary="neumann"), cells=24)
    pressure = problem.sample(8, resolution=25, seed=0, dtype=torch.float64).outputs.values
    least, most = (
        problem.solve(Field(torch.full((1, 1, 25, 25), level, dtype=torch.float64), problem.grid(25))).values
        for level in (12.0, 3.0)
    )
    total = pressure.sum((1, 2, 3))  # energies are ordered, pressures at a point are not
    assert bool((total >= least.sum()).all())
    assert bool((total <= most.sum()).all())
    assert bool((pressure[..., 1:-1, 1:-1] > 0).all())
    assert bool((pressure[..., 0, :] == 0).all())


def test_output_grids_that_do_not_divide_the_mesh_use_a_finer_one() -> None:
    problem = PiecewiseDarcy(random_field=GaussianRandomField(2, 6, sigma=1.0, tau=3.0, boundary="neumann"), cells=48)
    coarse = problem.sample(2, resolution=(15, 17), seed=0, dtype=torch.float64).outputs.values
    fine = (
        PiecewiseDarcy(random_field=GaussianRandomField(2, 6, sigma=1.0, tau=3.0, boundary="neumann"), cells=224)
        .sample(2, resolution=(15, 17), seed=0, dtype=torch.float64)
        .outputs.values
    )
    assert coarse.shape == (2, 1, 15, 17)
    assert 1e-6 < (coarse - fine).norm() / fine.norm() < 0.03


@pytest.mark.bad_input
@pytest.mark.parametrize("value", [0.0, -2.0, 1e-4])
def test_permeabilities_out_of_reach(value: float) -> None:
    problem = PiecewiseDarcy(random_field=GaussianRandomField(2, 4, sigma=1.0, tau=3.0, boundary="neumann"))
    values = torch.full((2, 1, 12, 12), 3.0)
    values[1, 0, 4, 4] = value
    with pytest.raises(DataError, match="positive permeabilities"):
        problem.solve(Field(values, problem.grid(12)))
