"""Two-dimensional Darcy flow against finite differences, the equation itself, and the family's promises."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from probneural.errors import DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems import Darcy2D, GaussianRandomField


def difference_solution(problem: Darcy2D, coefficients: torch.Tensor, cells: int) -> torch.Tensor:
    """The five-point scheme with exact permeabilities half-way between nodes, `(cells + 1, cells + 1)`."""
    finer = Grid.uniform((2 * cells + 1,) * 2, periodic=False)
    root, source = problem._inputs(coefficients, finer)[0].numpy()
    permeability, source = root**2, source[2:-1:2, 2:-1:2]
    west, east = permeability[1:-2:2, 2:-1:2], permeability[3::2, 2:-1:2]
    south, north = permeability[2:-1:2, 1:-2:2], permeability[2:-1:2, 3::2]
    count = cells - 1
    beside, along = east.copy(), north.copy()
    beside[-1], along[:, -1] = 0.0, 0.0
    beside, along = beside.ravel()[:-count], along.ravel()[:-1]
    matrix = scipy.sparse.diags_array(
        [(west + east + south + north).ravel(), -beside, -beside, -along, -along],
        offsets=[0, count, -count, 1, -1],
        format="csc",
    )
    solution = scipy.sparse.linalg.spsolve(matrix * float(cells**2), source.ravel())
    return torch.from_numpy(numpy.pad(solution.reshape(count, count), 1))


@pytest.mark.parametrize(("seed", "spread"), [(0, 1.0), (1, 1.5)])
def test_against_finite_differences_extrapolated(seed: int, spread: float) -> None:
    problem = Darcy2D(degree=4, spread=spread, random_field=GaussianRandomField(2, 3, boundary="dirichlet"), design_dim=1)
    exact = problem.sample(1, resolution=9, seed=seed, dtype=torch.float64).outputs.values[0, 0]
    coefficients = problem.input_distribution.draw(1, seed)
    coarse, middle, fine = (
        difference_solution(problem, coefficients, cells)[:: cells // 8, :: cells // 8] for cells in (32, 64, 128)
    )
    first, second, third = ((approximation - exact).abs().max().item() for approximation in (coarse, middle, fine))
    assert math.log2(first / second) == pytest.approx(2.0, abs=0.05)
    assert math.log2(second / third) == pytest.approx(2.0, abs=0.02)
    extrapolated = (64 * fine - 20 * middle + coarse) / 45  # errors in h² and h⁴ cancel
    assert (extrapolated - exact).abs().max() < 2e-6 * exact.abs().max()


def test_the_equation_holds_for_a_root_written_by_hand() -> None:
    # φ = 2 + xy + x² - y² and v = sin πx sin 2πy: f by automatic differentiation of −∇·(φ²∇(v/φ)).
    problem, grid = (
        Darcy2D(degree=2, random_field=GaussianRandomField(2, 2, boundary="dirichlet"), design_dim=1),
        Grid.uniform((9, 12), periodic=False),
    )

    def root(point: torch.Tensor) -> torch.Tensor:
        x, y = point
        return 2.0 + x * y + x**2 - y**2

    def pressure(point: torch.Tensor) -> torch.Tensor:
        return torch.sin(math.pi * point[0]) * torch.sin(2 * math.pi * point[1]) / root(point)

    def flux(point: torch.Tensor) -> torch.Tensor:
        return -root(point).square() * torch.func.grad(pressure)(point)

    def divergence(point: torch.Tensor) -> torch.Tensor:
        return torch.func.jacrev(flux)(point).diagonal().sum()

    def on_grid(function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return torch.func.vmap(function)(grid.points).reshape(grid.shape)

    inputs = Field(torch.stack([on_grid(root), on_grid(divergence)])[None], grid)
    torch.testing.assert_close(problem.solve(inputs).values[0, 0], on_grid(pressure), atol=1e-14, rtol=0)


@given(degree=st.integers(1, 10), spread=st.floats(0.01, 4.0), seed=st.integers(0, 10**6))
def test_roots_are_averages_of_the_weights(degree: int, spread: float, seed: int) -> None:
    problem = Darcy2D(degree=degree, spread=spread, random_field=GaussianRandomField(2, 2, boundary="dirichlet"), design_dim=1)
    coefficients = problem.input_distribution.draw(3, seed)
    weights = problem.input_distribution.split(coefficients)[0].exp()
    root = problem._inputs(coefficients, problem.grid((21, 11)))[:, 0].flatten(1)
    assert bool((root.amin(1) >= weights.amin(1) * (1 - 1e-12)).all())
    assert bool((root.amax(1) <= weights.amax(1) * (1 + 1e-12)).all())
    equal = torch.zeros_like(coefficients)
    torch.testing.assert_close(problem._inputs(equal, problem.grid(5))[:, 0], torch.ones(3, 5, 5).double(), atol=1e-14, rtol=0)


def test_contrast_of_the_distribution_and_its_shift() -> None:
    contrasts = []
    for problem in (Darcy2D(), Darcy2D().shifts()["contrast"]):
        root = problem.sample(200, resolution=31, seed=0, dtype=torch.float64).inputs.values[:, 0]
        contrasts.append((root.amax((1, 2)) / root.amin((1, 2))).square().median().item())
    assert contrasts[0] == pytest.approx(5.0, rel=0.2)
    assert contrasts[1] > 1.8 * contrasts[0]


@pytest.mark.bad_input
def test_permeabilities_outside_the_family() -> None:
    problem = Darcy2D(degree=3, random_field=GaussianRandomField(2, 4, boundary="dirichlet"))
    inputs = problem.sample(2, resolution=12, seed=0, dtype=torch.float64).inputs
    x, y = inputs.grid.points.T.reshape(2, 12, 12)
    for bump in (x**2 + y**2, ((x + 1j * y) ** 4).real):
        values = inputs.values.clone()
        values[1, 0] += 1e-3 * bump
        with pytest.raises(DataError, match="root of a permeability, that is a harmonic"):
            problem.solve(Field(values, inputs.grid))
        with pytest.raises(DataError, match="direction that is a harmonic"):
            problem.derivative(inputs, Field(values, inputs.grid))
    assert (
        Darcy2D(degree=4, random_field=GaussianRandomField(2, 4, boundary="dirichlet"))
        .solve(Field(values, inputs.grid))
        .values.isfinite()
        .all()
    )
    values = inputs.values.clone()
    values[0, 0] -= 10.0
    with pytest.raises(DataError, match="positive first channel"):
        problem.solve(Field(values, inputs.grid))
