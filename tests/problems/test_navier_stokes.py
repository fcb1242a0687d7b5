"""Shell solutions of the Navier-Stokes equations against a pseudo-spectral solver, and the reasons why they exist."""

from __future__ import annotations

import math

import pytest
import torch

from probneural.errors import DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems import NavierStokesShell
from probneural.problems.navier_stokes import GaussianShell


def advection(vorticity: torch.Tensor, drift: tuple[float, float]) -> torch.Tensor:
    """(U + u)·∇ω of `(..., N, N)` by Fourier transforms; products are not filtered."""
    size = vorticity.shape[-1]
    counts = 2.0 * math.pi * torch.fft.fftfreq(size, 1.0 / size).double()
    kx, ky = counts[:, None], counts
    spectrum = torch.fft.fft2(vorticity)
    squares = kx**2 + ky**2
    stream = torch.where(squares > 0, spectrum / squares.clamp(min=1.0), 0.0)

    def read(coefficients: torch.Tensor) -> torch.Tensor:
        return torch.fft.ifft2(coefficients).real

    along, across = read(1j * ky * stream) + drift[0], read(-1j * kx * stream) + drift[1]
    return along * read(1j * kx * spectrum) + across * read(1j * ky * spectrum)


def integrate(vorticity: torch.Tensor, problem: NavierStokesShell, steps: int) -> torch.Tensor:
    """The full equation by the fourth-order Runge-Kutta method with an integrating factor for viscosity."""
    size, step = vorticity.shape[-1], problem.time / steps
    squares = (2.0 * math.pi * torch.fft.fftfreq(size, 1.0 / size).double()).square()
    half_decay = torch.exp(-0.5 * step * problem.viscosity * (squares[:, None] + squares))

    def decay(values: torch.Tensor) -> torch.Tensor:
        return torch.fft.ifft2(half_decay * torch.fft.fft2(values)).real

    for _ in range(steps):
        first = -advection(vorticity, problem.drift)
        middle = decay(vorticity)
        second = -advection(middle + 0.5 * step * decay(first), problem.drift)
        third = -advection(middle + 0.5 * step * second, problem.drift)
        fourth = -advection(decay(middle) + step * decay(third), problem.drift)
        vorticity = decay(middle + step / 6 * decay(first) + step / 3 * (second + third)) + step / 6 * fourth
    return vorticity


@pytest.mark.parametrize("drift", [(0.0, 0.0), (0.4, -0.7)])
@pytest.mark.parametrize("shell", [5, 25])
def test_against_a_pseudo_spectral_solver(shell: int, drift: tuple[float, float]) -> None:
    problem = NavierStokesShell(shell, viscosity=5e-3, time=0.5, drift=drift, sigma=20.0)
    pairs = problem.sample(2, resolution=24, seed=0, dtype=torch.float64)
    expected = integrate(pairs.inputs.values, problem, 250)
    # Runge-Kutta's error for the drift, t (2πk·U)^5 step⁴/120, is 3e-6 for amplitudes of 20; without drift none is left.
    tolerance = 1e-10 if drift == (0.0, 0.0) else 1e-5
    assert (pairs.outputs.values - expected).abs().max() < tolerance * pairs.outputs.values.abs().max()
    assert pairs.outputs.values.abs().max() > 1e-2


@pytest.mark.parametrize("shell", [1, 2, 25, 65])
def test_vorticity_does_not_advect_itself(shell: int) -> None:
    vorticity = NavierStokesShell(shell, design_dim=4).sample(3, resolution=36, seed=0, dtype=torch.float64).inputs.values
    scale = vorticity.abs().max() ** 2  # |u| |∇ω| is about |ω|²
    assert advection(vorticity, (0.0, 0.0)).abs().max() < 1e-14 * scale
    other = NavierStokesShell(5, design_dim=4).sample(3, resolution=36, seed=1, dtype=torch.float64).inputs.values
    if shell != 5:
        assert advection(vorticity + other, (0.0, 0.0)).abs().max() > 1e-2 * scale


@pytest.mark.parametrize(("shell", "count"), [(1, 4), (2, 4), (5, 8), (25, 12), (65, 16), (325, 24)])
def test_vectors_on_a_shell(shell: int, count: int) -> None:
    distribution = GaussianShell(shell, 1.0)
    both = torch.cat([distribution.vectors, -distribution.vectors])
    assert distribution.size == count == len({tuple(vector) for vector in both.tolist()})
    assert bool((both.square().sum(1) == shell).all())


def test_the_distribution_is_stationary_with_the_stated_deviation() -> None:
    values = GaussianShell(25, 3.0).evaluate(GaussianShell(25, 3.0).draw(4000, 0), Grid.uniform((11, 11)))
    # Standard error of a standard deviation from 4000 draws: 3/√8000 = .034.
    torch.testing.assert_close(values.std(0), torch.full((11, 11), 3.0).double(), atol=0.15, rtol=0)
    assert values.mean((1, 2)).abs().max() < 1e-13


def test_a_constant_is_carried_along() -> None:
    problem = NavierStokesShell(25, drift=(0.2, 0.1))
    pairs = problem.sample(2, resolution=12, seed=0, dtype=torch.float64)
    turning = problem.solve(Field(pairs.inputs.values + 5.0, pairs.inputs.grid)).values
    torch.testing.assert_close(turning, pairs.outputs.values + 5.0, atol=1e-13, rtol=0)


@pytest.mark.bad_input
def test_vorticities_off_the_shell() -> None:
    problem = NavierStokesShell(25)
    inputs = problem.sample(2, resolution=12, seed=0, dtype=torch.float64).inputs
    values = inputs.values.clone()
    values[1, 0] += 1e-3 * torch.cos(2 * math.pi * inputs.grid.points[:, 0]).reshape(12, 12)
    off = Field(values, inputs.grid)
    for bad in (lambda: problem.solve(off), lambda: problem.derivative(inputs, off), lambda: problem.derivative(off, inputs)):
        with pytest.raises(DataError, match="modes all have"):
            bad()
    grid = Grid.uniform((10, 10))
    alternating = torch.cos(10 * math.pi * grid.points[:, 0]).reshape(1, 1, 10, 10)
    with pytest.raises(DataError, match="resolved vorticities"):
        problem.solve(Field(alternating, grid))
