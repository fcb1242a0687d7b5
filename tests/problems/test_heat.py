"""The heat equation against its kernel, images, and the equation itself."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from probneural.fields import Field
from probneural.grids import Grid, along_axis
from probneural.problems import GaussianRandomField, Heat


def gaussian(distance: torch.Tensor, spread: float) -> torch.Tensor:
    """The heat kernel of the line, e^(-d²/4νt) / √(4πνt), with spread νt."""
    return torch.exp(-distance.square() / (4 * spread)) / math.sqrt(4 * math.pi * spread)


def wrapped_kernel(x: torch.Tensor, y: torch.Tensor, spread: float) -> torch.Tensor:
    """The kernel of the circle: a sum over periodic images."""
    distance = x[:, None] - y
    return torch.stack([gaussian(distance + image, spread) for image in range(-12, 13)]).sum(0)


def reflected_kernel(x: torch.Tensor, y: torch.Tensor, spread: float) -> torch.Tensor:
    """The kernel between cold walls: images of alternating sign."""
    images = torch.arange(-8, 9)
    straight = torch.stack([gaussian(x[:, None] - y + 2.0 * image, spread) for image in images]).sum(0)
    return straight - torch.stack([gaussian(x[:, None] + y + 2.0 * image, spread) for image in images]).sum(0)


def gauss_legendre(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    nodes, weights = numpy.polynomial.legendre.leggauss(count)
    return (torch.from_numpy(nodes) + 1) / 2, torch.from_numpy(weights) / 2


@pytest.mark.parametrize(("dimension", "modes"), [(1, 20), (2, 6), (3, 3)])
@pytest.mark.parametrize("boundary", ["periodic", "dirichlet"])
def test_against_kernel_quadrature(dimension: int, modes: int, boundary: str) -> None:
    problem = Heat(
        0.02,
        time=0.3,
        dimension=dimension,
        boundary=boundary,
        random_field=GaussianRandomField(dimension, modes, boundary=boundary),
        design_dim=1,
    )
    pairs = problem.sample(2, resolution=2 * modes + 3, seed=0, dtype=torch.float64)
    x = pairs.outputs.grid.axes[0].coordinates
    if boundary == "periodic":  # the trapezoidal rule is spectrally accurate: width √(2νt) = .11, 100 points suffice
        y, weights = torch.arange(100, dtype=torch.float64) / 100, torch.full((100,), 0.01, dtype=torch.float64)
        kernel = wrapped_kernel(x, y, problem.diffusivity * problem.time) * weights
    else:
        y, weights = gauss_legendre(90)
        kernel = reflected_kernel(x, y, problem.diffusivity * problem.time) * weights
    expected = problem.input_distribution.evaluate_on_axes(problem.input_distribution.draw(2, 0), [y] * dimension)
    for axis in range(dimension):
        expected = along_axis(expected, kernel, axis - dimension)
    # Rounding of values of order 1, in as many products as there are axes.
    torch.testing.assert_close(pairs.outputs.values[:, 0], expected, atol=2e-13, rtol=0)
    assert pairs.outputs.values.abs().max() > 1e-3


def test_every_sine_between_walls_decays_at_its_rate() -> None:
    problem = Heat(
        0.01, dimension=1, boundary="dirichlet", random_field=GaussianRandomField(1, 2, boundary="dirichlet"), design_dim=1
    )
    grid = problem.grid(12)
    wavenumbers = torch.arange(1, 11, dtype=torch.float64)
    waves = torch.sin(math.pi * wavenumbers[:, None] * grid.points[:, 0])
    decayed = problem.solve(Field(waves[:, None], grid)).values[:, 0]
    factor = torch.exp(-0.01 * (math.pi * wavenumbers) ** 2)
    torch.testing.assert_close(decayed, factor[:, None] * waves, atol=1e-14, rtol=0)


def test_values_on_the_walls_are_not_read() -> None:
    problem = Heat(dimension=1, boundary="dirichlet")
    inputs = problem.sample(2, resolution=20, seed=0, dtype=torch.float64).inputs
    raised = inputs.values.clone()
    raised[..., 0], raised[..., -1] = 5.0, -3.0
    assert torch.equal(problem.solve(Field(raised, inputs.grid)).values, problem.solve(inputs).values)
    assert bool((problem.solve(inputs).values[..., [0, -1]] == 0).all())


def test_axes_of_unequal_resolution() -> None:
    problem = Heat(random_field=GaussianRandomField(2, 3))
    wide = problem.sample(2, resolution=(7, 21), seed=0, dtype=torch.float64)
    square = problem.sample(2, resolution=7, seed=0, dtype=torch.float64)
    assert wide.outputs.values.shape == (2, 1, 7, 21)
    torch.testing.assert_close(wide.outputs.values[..., ::3], square.outputs.values, atol=1e-14, rtol=0)


@pytest.mark.bad_input
def test_fields_of_another_dimension() -> None:
    problem = Heat(random_field=GaussianRandomField(2, 4))
    with pytest.raises(ValueError, match="uniform grid"):
        problem.solve(Field(torch.zeros(1, 1, 9), Grid.uniform((9,))))
