"""Poisson's equation on random shapes: the equation itself, boundary values, equal functions on all meshes."""

from __future__ import annotations

import math

import pytest
import torch

from probneural.problems import PoissonOnShapes
from probneural.problems.poisson_on_shapes import _harmonic, _mapped, _polynomial, _solution
from tests.helpers import generator, normal


def test_the_laplacian_of_the_solution_is_the_source() -> None:
    """With the chain rule of conformal maps: the Laplacian in z is |phi'|² times that in x; central differences."""
    problem, h = PoissonOnShapes(degree=3, terms=3), 1e-3
    shapes, sources = problem._shapes(4, generator("shapes")), problem._sources(4, generator("sources"))
    z = 0.7 * torch.view_as_complex(normal(4, 50, 2, seed="z") / 3.0)
    neighbours = sum(_solution(shapes, sources, z + step) for step in (h, -h, 1j * h, -1j * h))
    laplacian = (neighbours - 4.0 * _solution(shapes, sources, z)) / h**2
    slope = (_mapped(shapes, z + h) - _mapped(shapes, z - h)) / (2.0 * h)
    torch.testing.assert_close(-laplacian, slope.abs().square() * _polynomial(sources, z), rtol=1e-4, atol=1e-4)


def test_it_vanishes_on_the_boundary_or_has_the_boundary_data() -> None:
    rim = torch.exp(2j * math.pi * torch.arange(40).double() / 40).expand(3, -1)
    problem = PoissonOnShapes(boundary_data=True)
    shapes, sources = problem._shapes(3, generator("shapes")), problem._sources(3, generator("sources"))
    assert float(_solution(shapes, sources, rim).abs().max()) < 1e-14
    pairs = problem.sample(3, resolution=100, seed=0, dtype=torch.float64)
    given, values = pairs.inputs.values[:, 1], pairs.outputs.values[:, 0]
    on_boundary = given != 0.0
    torch.testing.assert_close(values[on_boundary], given[on_boundary], rtol=0, atol=1e-13)
    assert float(_harmonic(torch.zeros(3, 4, dtype=torch.complex128), rim).abs().max()) == 0.0


def test_energy_equals_work() -> None:
    """The integral of |grad u|² is that of f u, here by the cells of a fine mesh."""
    pairs = PoissonOnShapes().sample(2, resolution=3000, seed=1, dtype=torch.float64)
    for row, grid in enumerate(pairs.inputs.grid.singles()):
        values, source = pairs.outputs.values[row, 0], pairs.inputs.values[row, 0]
        assert grid.cells is not None
        corners, heights = grid.points[grid.cells], values[grid.cells]
        edges, rises = corners[:, 1:] - corners[:, :1], heights[:, 1:] - heights[:, :1]
        gradients = torch.linalg.solve(edges, rises[..., None])[..., 0]
        energy = (0.5 * torch.linalg.det(edges).abs() * gradients.square().sum(-1)).sum()
        assert float(energy) == pytest.approx(float((grid.weights * source * values).sum()), rel=2e-3)


def test_a_seed_is_the_same_functions_on_every_mesh() -> None:
    problem = PoissonOnShapes()
    coarse, fine = (problem.sample(4, resolution=size, seed=3, dtype=torch.float64) for size in (400, 1600))
    graded = problem.sample(4, resolution=1600, seed=3, graded=True, dtype=torch.float64)
    for other, tolerance in ((fine, 0.01), (graded, 0.05)):  # a graded mesh has few points at the centre
        moved = other.outputs.resample(coarse.outputs.grid).values
        assert float((moved - coarse.outputs.values).abs().max()) < tolerance * float(coarse.outputs.values.abs().max())
    grids = coarse.inputs.grid.singles()
    assert len({grid.points[0].tolist().__repr__() for grid in grids}) == 4  # each sample has a mesh of its own
