"""The Helmholtz equation against finite differences, single modes, and its resonances."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems import GaussianRandomField, Helmholtz


def difference_solution(problem: Helmholtz, coefficients: torch.Tensor, cells: int) -> torch.Tensor:
    """The five-point scheme of one source, `(cells + 1, cells + 1)`, by dense algebra along one axis."""
    source = problem._field.evaluate(coefficients, Grid.uniform((cells + 1, cells + 1), periodic=False))[0, 1:-1, 1:-1].numpy()
    count = cells - 1
    second = cells**2 * (2.0 * numpy.eye(count) - numpy.eye(count, k=1) - numpy.eye(count, k=-1))
    levels, vectors = numpy.linalg.eigh(second)
    spectrum = vectors.T @ source @ vectors / (levels[:, None] + levels - problem.wavenumber**2)
    return torch.from_numpy(numpy.pad(vectors @ spectrum @ vectors.T, 1))


@pytest.mark.parametrize(("wavenumber", "seed"), [(8.0, 0), (6.0, 1), (0.5, 2)])
def test_against_finite_differences_extrapolated(wavenumber: float, seed: int) -> None:
    problem = Helmholtz(wavenumber, random_field=GaussianRandomField(2, 4, boundary="dirichlet"), design_dim=1)
    exact = problem.sample(1, resolution=9, seed=seed, dtype=torch.float64).outputs.values[0, 0]
    coefficients = problem.input_distribution.draw(1, seed)
    coarse, middle, fine = (
        difference_solution(problem, coefficients, cells)[:: cells // 8, :: cells // 8] for cells in (64, 128, 256)
    )
    first, second, third = ((approximation - exact).abs().max().item() for approximation in (coarse, middle, fine))
    assert math.log2(first / second) == pytest.approx(2.0, abs=0.05)
    assert math.log2(second / third) == pytest.approx(2.0, abs=0.02)
    extrapolated = (64 * fine - 20 * middle + coarse) / 45  # errors in h² and h⁴ cancel
    assert (extrapolated - exact).abs().max() < 1e-6 * exact.abs().max()


def test_modes_on_both_sides_of_the_wavenumber_respond_with_opposite_signs() -> None:
    problem, grid = Helmholtz(8.0), Grid.uniform((12, 17), periodic=False)
    x, y = (math.pi * grid.points).T
    for i, j in [(1, 1), (1, 2), (2, 2), (10, 3), (7, 15)]:
        wave = (torch.sin(i * x) * torch.sin(j * y)).reshape(1, 1, 12, 17)
        expected = wave / (math.pi**2 * (i**2 + j**2) - 64.0)
        torch.testing.assert_close(problem.solve(Field(wave, grid)).values, expected, atol=1e-15, rtol=0)


@pytest.mark.parametrize("share", [0.1, -0.3])
def test_the_response_near_a_resonance_is_one_mode(share: float) -> None:
    problem = Helmholtz(
        math.sqrt(5 * math.pi**2 + share * 1e-4), random_field=GaussianRandomField(2, 4, boundary="dirichlet"), design_dim=1
    )
    assert problem.resonance_distance == pytest.approx(abs(share) * 1e-4, rel=1e-6)
    output = problem.sample(1, resolution=17, seed=0, dtype=torch.float64).outputs.values[0, 0]
    x = math.pi * torch.arange(17, dtype=torch.float64) / 16
    pair = torch.stack([torch.outer(torch.sin(a * x), torch.sin(b * x)).flatten() for a, b in [(1, 2), (2, 1)]], dim=1)
    pair = pair / pair.norm(dim=0)
    left = output.flatten() - pair @ (pair.T @ output.flatten())
    assert left.norm() < 1e-5 * output.norm()
    assert output.abs().max() > 1e3


def test_the_shift_moves_towards_the_resonance() -> None:
    problem = Helmholtz(8.0)
    assert problem.resonance_distance == pytest.approx(64 - 5 * math.pi**2)
    closer = problem.shifts()["resonance"]
    assert isinstance(closer, Helmholtz)
    assert closer.resonance_distance == pytest.approx(problem.resonance_distance / 8)
