"""Variable-speed advection against ODEs of its characteristics, limits and round trips."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from scipy.integrate import solve_ivp

from probneural.errors import DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems import GaussianRandomField, VariableSpeedAdvection


def series(nodal: numpy.ndarray, points: numpy.ndarray) -> numpy.ndarray:
    """The trigonometric interpolant of an odd number of nodal values, by its real cosines and sines."""
    spectrum = numpy.fft.rfft(nodal) / len(nodal)
    phases = 2j * math.pi * numpy.multiply.outer(points, numpy.arange(1, len(spectrum)))
    return spectrum[0].real + 2.0 * (numpy.exp(phases) @ spectrum[1:]).real


@pytest.mark.parametrize(("seed", "sigma"), [(0, 8.0), (1, 8.0), (2, 16.0)])
def test_against_an_ode_solver_on_characteristics(seed: int, sigma: float) -> None:
    problem = VariableSpeedAdvection(
        0.7, random_field=GaussianRandomField(1, 9), slowness_field=GaussianRandomField(1, 6, sigma=sigma)
    )
    pairs = problem.sample(1, resolution=25, seed=seed, dtype=torch.float64)
    slowness, state = pairs.inputs.values[0].numpy()
    solution = solve_ivp(
        lambda _, y: -1.0 / series(slowness, y),
        (0.0, problem.time),
        pairs.inputs.grid.points[:, 0].numpy(),
        method="DOP853",
        rtol=1e-13,
        atol=1e-13,
    )
    expected = torch.from_numpy(series(state, solution.y[:, -1]))
    # The integrator's tolerance, times slopes of the state up to 10.
    torch.testing.assert_close(pairs.outputs.values[0, 0], expected, atol=2e-11, rtol=0)


def test_after_one_round_trip_the_state_is_back() -> None:
    grid = Grid.uniform((65,))
    x = grid.points[:, 0]
    slowness = 1.25 + 0.7 * torch.cos(2 * math.pi * x) - 0.3 * torch.sin(6 * math.pi * x)
    state = torch.exp(torch.sin(2 * math.pi * x))
    inputs = Field(torch.stack([slowness, state])[None], grid)
    for turns in (1, 3):
        solved = VariableSpeedAdvection(1.25 * turns).solve(inputs).values[0, 0]
        torch.testing.assert_close(solved, state, atol=1e-13, rtol=0)


@pytest.mark.parametrize("size", [32, 33])
def test_constant_speed_is_a_translation(size: int) -> None:
    grid = Grid.uniform((size,))
    state = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inputs = Field(torch.stack([torch.full_like(state, 0.5), state])[None], grid)
    solved = VariableSpeedAdvection(5 / size / 2).solve(inputs).values[0, 0]  # at speed 2: five nodes
    torch.testing.assert_close(solved, state.roll(5), atol=1e-13, rtol=0)


def test_newton_copes_with_large_contrast() -> None:
    problem = VariableSpeedAdvection(
        slowness_field=GaussianRandomField(1, 15, sigma=60.0)
    )  # g of standard deviation 1.4: speeds up to 10
    pairs = problem.sample(50, resolution=64, seed=0, dtype=torch.float64)
    assert pairs.inputs.values[:, 0].min() < 0.11
    assert pairs.outputs.values.abs().max() < 1.05 * pairs.inputs.values[:, 1].abs().max()
    longer = problem.solve(pairs.inputs.resample(pairs.inputs.grid.resized(129))).values[..., 0]
    torch.testing.assert_close(longer, pairs.outputs.values[..., 0], atol=1e-11, rtol=0)


def test_gradients_are_exact_to_second_order() -> None:
    problem = VariableSpeedAdvection(0.3)
    x = torch.arange(5, dtype=torch.float64) / 5
    values = torch.stack([1.0 + 0.3 * torch.cos(2 * math.pi * x), torch.sin(4 * math.pi * x) + x])[None]
    values.requires_grad_()
    grid = Grid.uniform((5,))
    solve = lambda at: problem.solve(Field(at, grid)).values  # noqa: E731
    assert torch.autograd.gradcheck(solve, values, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(solve, values)


def test_distribution_of_the_slowness() -> None:
    problem = VariableSpeedAdvection(
        random_field=GaussianRandomField(1, 6), slowness_field=GaussianRandomField(1, 3, sigma=8.0)
    )
    slowness = problem.sample(4000, resolution=13, seed=0, dtype=torch.float64).inputs.values[:, 0]
    field = problem.input_distribution.parts[0]
    variance = field.mean_variance
    # b = .1 + .9 (1 + g)²: mean .1 + .9 (1 + v), variance .81 (4 v + 2 v²)
    assert slowness.mean().item() == pytest.approx(0.1 + 0.9 * (1 + variance), rel=0.01)
    assert slowness.var(0).mean().item() == pytest.approx(0.81 * (4 * variance + 2 * variance**2), rel=0.05)
    assert slowness.min() > 0.1
    assert problem.minimum_resolution == (13,)
    assert VariableSpeedAdvection(
        random_field=GaussianRandomField(1, 5), slowness_field=GaussianRandomField(1, 20, sigma=8.0)
    ).minimum_resolution == (81,)


@pytest.mark.bad_input
def test_slowness_must_be_positive() -> None:
    grid = Grid.uniform((4,))
    inputs = torch.ones(1, 2, 4, dtype=torch.float64)
    inputs[0, 0, 1] = -0.01
    with pytest.raises(DataError, match="slowness"):
        VariableSpeedAdvection().solve(Field(inputs, grid))
    between = torch.ones(1, 2, 4, dtype=torch.float64)
    between[0, 0] = torch.tensor([0.02, 0.02, 1.0, 1.0])  # positive at the nodes, negative between the first two
    with pytest.raises(DataError, match="positive interpolant"):
        VariableSpeedAdvection().solve(Field(between, grid))
