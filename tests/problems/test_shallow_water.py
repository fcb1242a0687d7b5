"""Rotating shallow water against a Runge-Kutta integration, dense exponentials, and what the equations conserve."""

from __future__ import annotations

import math

import pytest
import torch

from probneural.fields import Field
from probneural.functionals import derivative
from probneural.grids import Grid
from probneural.problems import GaussianRandomField, ShallowWater


def slope(values: torch.Tensor, grid: Grid, axis: int) -> torch.Tensor:
    """The derivative of the trigonometric interpolant along an axis."""
    return derivative(grid, axis=axis)(values).unflatten(-1, grid.shape)


def test_against_runge_kutta() -> None:
    problem = ShallowWater(0.3, rotation=3.0, gravity=0.7, depth=1.4, random_field=GaussianRandomField(2, 3), design_dim=1)
    pairs = problem.sample(2, resolution=9, seed=0, dtype=torch.float64)
    matrix = derivative(Grid.uniform((9,)), axis=0)(torch.eye(9, dtype=torch.float64)).mT

    def tendency(state: torch.Tensor) -> torch.Tensor:
        (_, u, v), (hx, ux, _), (hy, _, vy) = (part.unbind(1) for part in (state, matrix @ state, state @ matrix.T))
        return torch.stack([-1.4 * (ux + vy), 3.0 * v - 0.7 * hx, -3.0 * u - 0.7 * hy], dim=1)

    state, steps = pairs.inputs.values, 800
    step = 0.3 / steps
    for _ in range(steps):
        first = tendency(state)
        second = tendency(state + 0.5 * step * first)
        third = tendency(state + 0.5 * step * second)
        state = state + step / 6 * (first + 2 * second + 2 * third + tendency(state + step * third))
    # Runge-Kutta's own error, t ω (ω step)⁴/120 with ω up to 27, is 7e-9 of the highest, small, waves.
    torch.testing.assert_close(pairs.outputs.values, state, atol=1e-9, rtol=0)


@pytest.mark.parametrize("size", [8, 9])
def test_every_wave_against_a_dense_exponential(size: int) -> None:
    problem = ShallowWater(1.7, rotation=2.0, gravity=0.5, depth=3.0, random_field=GaussianRandomField(2, 3), design_dim=1)
    grid = Grid.uniform((size, size))
    x, y = grid.points.T
    amplitudes = torch.randn(3, generator=torch.Generator().manual_seed(0), dtype=torch.complex128)
    for k, m in [(0, 0), (1, 0), (0, 2), (3, -2), (-1, -3), (2, 3)]:
        kx, ky = 2j * math.pi * k, 2j * math.pi * m
        matrix = torch.tensor([[0, -3.0 * kx, -3.0 * ky], [-0.5 * kx, 0, 2.0], [-0.5 * ky, -2.0, 0]], dtype=torch.complex128)
        wave = torch.exp(kx * x + ky * y).reshape(size, size)
        initial = (amplitudes[:, None, None] * wave).real
        expected = ((torch.linalg.matrix_exp(1.7 * matrix) @ amplitudes)[:, None, None] * wave).real
        torch.testing.assert_close(problem.solve(Field(initial[None], grid)).values[0], expected, atol=1e-12, rtol=0)


def test_energy_and_potential_vorticity_are_conserved_for_a_long_time() -> None:
    problem = ShallowWater(1000.0, rotation=4.0, gravity=2.0, depth=0.5, random_field=GaussianRandomField(2, 5))
    pairs = problem.sample(3, resolution=16, seed=0, dtype=torch.float64)
    grid = pairs.inputs.grid

    def energy(state: torch.Tensor) -> torch.Tensor:
        h, u, v = state.unbind(1)
        return (2.0 * h.square() + 0.5 * (u.square() + v.square())).mean((1, 2)) / 2.0

    def potential_vorticity(state: torch.Tensor) -> torch.Tensor:
        h, u, v = state.unbind(1)
        return 0.5 * (slope(v, grid, 0) - slope(u, grid, 1)) - 4.0 * h

    before, after = pairs.inputs.values, pairs.outputs.values
    torch.testing.assert_close(energy(after), energy(before), atol=0, rtol=1e-11)
    torch.testing.assert_close(potential_vorticity(after), potential_vorticity(before), atol=1e-10, rtol=0)
    assert (after - before).abs().max() > 0.5


def test_channels_are_independent_draws_of_one_distribution() -> None:
    problem = ShallowWater(random_field=GaussianRandomField(2, 3))
    inputs = problem.sample(2000, resolution=7, seed=0, dtype=torch.float64).inputs.values
    assert (problem.shifts()["rotation"].name, problem.name) == (
        "Shallow water, time 0.5, rotation 4",
        "Shallow water, time 0.5, rotation 1",
    )
    covariance = torch.cov(inputs[..., 2, 3].T) / problem._field.mean_variance
    torch.testing.assert_close(covariance, torch.eye(3, dtype=torch.float64), atol=0.12, rtol=0)
