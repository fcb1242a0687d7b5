"""Burgers' equation against a pseudo-spectral solver, closed forms, limits and invariances."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from scipy.integrate import solve_ivp

from probneural.errors import DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems import Burgers


def pseudo_spectral(initial: torch.Tensor, *, viscosity: float, time: float) -> torch.Tensor:
    """Integrate one initial state `(N,)` with Fourier modes, dealiased by the 2/3 rule, and an explicit order 8 method."""
    size = len(initial)
    wavenumbers = numpy.arange(size // 2 + 1)
    slope, diffusion = 2j * math.pi * wavenumbers, -viscosity * (2 * math.pi * wavenumbers) ** 2
    kept = wavenumbers < size / 3

    def right_hand_side(_: float, packed: numpy.ndarray) -> numpy.ndarray:
        spectrum = packed.view(numpy.complex128)
        square = numpy.fft.rfft(numpy.fft.irfft(spectrum, size) ** 2)
        return (diffusion * spectrum - 0.5 * slope * kept * square).view(numpy.float64)

    start = numpy.fft.rfft(initial.numpy()).view(numpy.float64)
    solution = solve_ivp(right_hand_side, (0.0, time), start, method="DOP853", rtol=1e-11, atol=1e-11 * size)
    assert solution.success
    return torch.from_numpy(numpy.fft.irfft(numpy.ascontiguousarray(solution.y[:, -1]).view(numpy.complex128), size))


@pytest.mark.parametrize(
    ("viscosity", "time", "size", "mean"),
    [
        (0.1, 1.0, 128, 0.0),
        (0.01, 1.0, 256, 0.0),
        (0.01, 1.0, 256, 0.7),
        (0.002, 0.6, 1280, 0.0),
        pytest.param(0.002, 1.0, 1280, -0.3, marks=pytest.mark.slow),
        pytest.param(0.001, 1.0, 2048, 0.0, marks=pytest.mark.slow),
    ],
)
def test_against_a_pseudo_spectral_solver(viscosity: float, time: float, size: int, mean: float) -> None:
    problem = Burgers(viscosity, time=time)
    inputs = problem.sample(1, resolution=size, seed=0, dtype=torch.float64).inputs
    initial = inputs.values + mean
    expected = pseudo_spectral(initial[0, 0], viscosity=viscosity, time=time)
    solved = problem.solve(Field(initial, inputs.grid)).values[0, 0]
    # The integrator's tolerance is 1e-11 a step, and the sizes above resolve the front, of width 4ν, to 1e-10 (the error at
    # ν = .002 and time .6 falls from 1e-9 to 4e-11 for 1024 and 1280 points: it is the reference's).
    assert (solved - expected).abs().max() < 1e-9


@pytest.mark.parametrize("viscosity", [0.5, 0.02])
@pytest.mark.parametrize("size", [96, 97])
def test_a_solution_in_closed_form(viscosity: float, size: int) -> None:
    # Cole-Hopf of φ = 1 + a e^(-νκ²t) cos κx, κ = 2π: u = -2ν φ'/φ.
    def state(time: float) -> torch.Tensor:
        wave = 2 * math.pi
        height = 0.4 * math.exp(-viscosity * wave**2 * time)
        x = Grid.uniform((size,)).points[:, 0]
        return 2 * viscosity * wave * height * torch.sin(wave * x) / (1 + height * torch.cos(wave * x))

    initial = Field(state(0.0)[None, None], Grid.uniform((size,)))
    for time in (0.01, 0.3, 2.0):
        solved = Burgers(viscosity, time=time).solve(initial).values[0, 0]
        # The initial state's coefficients decay like .21^k, below rounding at k = 24.
        torch.testing.assert_close(solved, state(time), atol=1e-13, rtol=0)


def test_characteristics_are_the_limit_of_no_viscosity() -> None:
    # Before the first shock u(x, t) = u₀(x - u t); the error of a viscous solution is ν t times smooth terms: order 1.
    x, time = Grid.uniform((128,)).points[:, 0], 0.08

    def initial(y: torch.Tensor) -> torch.Tensor:
        return torch.sin(2 * math.pi * y) + 0.3 * torch.cos(4 * math.pi * y)

    inviscid = initial(x)
    for _ in range(60):  # Newton on u - u₀(x - u t) = 0
        foot = x - inviscid * time
        slope = 2 * math.pi * torch.cos(2 * math.pi * foot) - 1.2 * math.pi * torch.sin(4 * math.pi * foot)
        inviscid = inviscid - (inviscid - initial(foot)) / (1 + time * slope)
    assert (inviscid - initial(x - inviscid * time)).abs().max() < 1e-14
    errors = []
    for viscosity in (4e-5, 2e-5, 1e-5):
        solved = Burgers(viscosity, time=time).solve(Field(initial(x)[None, None], Grid.uniform((128,)))).values[0, 0]
        errors.append((solved - inviscid).abs().max().item())
    assert errors[-1] < 2e-3
    orders = [math.log2(errors[0] / errors[1]), math.log2(errors[1] / errors[2])]
    assert orders == pytest.approx([1.0, 1.0], abs=0.1)


@pytest.mark.parametrize("name", [None, "amplitude", "roughness"])
@pytest.mark.parametrize(
    ("viscosity", "time"), [(0.1, 10.0), (0.1, 0.01), (0.01, 1.0), (0.001, 1.0), (0.001, 0.05), (0.001, 1e-4)]
)
def test_quadrature_has_converged(viscosity: float, time: float, name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Burgers(viscosity, time=time)
    problem = problem.shifts()[name] if name else problem
    usual = problem.sample(32, resolution=64, seed=0, dtype=torch.float64).outputs.values
    monkeypatch.setattr("probneural.problems.burgers._POINTS_PER_WIDTH", 6.3)
    monkeypatch.setattr("probneural.problems.burgers._LEAST_POINTS", 700)
    finer = problem.sample(32, resolution=64, seed=0, dtype=torch.float64).outputs.values
    assert (usual - finer).abs().max() < 5e-13  # rounding, amplified by slopes up to 100


@pytest.mark.bad_input
def test_states_too_steep_to_resolve() -> None:
    with pytest.raises(DataError, match="65536 quadrature points"):
        Burgers(0.001, time=1e-9).sample(1, resolution=64, seed=0)
    steep = Field(torch.tensor([1e7, -1e7, 0.0])[None, None], Grid.uniform((3,)))
    with pytest.raises(DataError, match="raise the viscosity"):
        Burgers(0.001).solve(steep)
