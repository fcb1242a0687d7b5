"""The inviscid Burgers equation against characteristics, closed forms, its viscous limit, and conservation distributions."""

from __future__ import annotations

import math

import pytest
import torch

from probneural.errors import UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems import Burgers, GaussianRandomField, InviscidBurgers


def test_before_the_first_shock_states_travel_along_characteristics() -> None:
    # u(y + t u₀(y), t) = u₀(y): choose y so that y + t u₀(y) is a node, by bisection.
    x = Grid.uniform((128,)).points[:, 0]
    time = 0.08

    def initial(y: torch.Tensor) -> torch.Tensor:
        return 0.4 + torch.sin(2 * math.pi * y) + 0.3 * torch.cos(4 * math.pi * y)

    low, high = x - 1.0, x + 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        ahead = middle + time * initial(middle) > x
        low, high = torch.where(ahead, low, middle), torch.where(ahead, middle, high)
    solved = InviscidBurgers(time).solve(Field(initial(x)[None, None], Grid.uniform((128,)))).values[0, 0]
    torch.testing.assert_close(solved, initial(low), atol=1e-13, rtol=0)
    assert (solved - initial(x - time * solved)).abs().max() < 1e-13


def test_implicit_equation_and_slopes_after_shocks() -> None:
    problem = InviscidBurgers()
    pairs = problem.sample(50, resolution=128, seed=0, dtype=torch.float64)
    coefficients = problem.input_distribution.draw(50, 0)
    x, u = pairs.outputs.grid.points[:, 0], pairs.outputs.values[:, 0]
    for row in range(50):
        at_foot = problem.input_distribution.evaluate_on_axes(coefficients[row : row + 1], [x - problem.time * u[row]])[0]
        torch.testing.assert_close(u[row], at_foot, atol=1e-11, rtol=0)
    # Oleinik's condition, exact on any grid: u(x + h) - u(x) <= h/t. Jumps only go down.
    rises = u.roll(-1, dims=-1) - u
    assert rises.max() <= 1 / 128 / problem.time + 1e-12
    assert rises.min() < -0.5


def test_minimum_is_global_by_brute_force() -> None:
    problem = InviscidBurgers(random_field=GaussianRandomField(1, 12))
    pairs = problem.sample(20, resolution=40, seed=1, dtype=torch.float64)
    coefficients = problem.input_distribution.draw(20, 1)
    fine = torch.arange(-20_000, 30_000, dtype=torch.float64) / 10_000
    cosines, sines = coefficients.unflatten(1, (12, 2)).unbind(2)
    angular = 2 * math.pi * torch.arange(1, 13, dtype=torch.float64)
    phases = fine[:, None] * angular
    potential = math.sqrt(2) * ((cosines / angular) @ phases.sin().T - (sines / angular) @ phases.cos().T)
    x = pairs.outputs.grid.points[:, 0]
    for row in range(20):
        costs = potential[row] + (x[:, None] - fine).square() / 2
        u = x - fine[costs.argmin(1)]
        # Nodes do not lie within 1e-4 of a shock in these draws, so both pick the same valley, to the spacing.
        assert (u - pairs.outputs.values[row, 0]).abs().max() < 2e-4


@pytest.mark.parametrize("height", [0.7, 0.0, -1.3])
def test_sine_wave_shock_stands_in_the_moving_frame(height: float) -> None:
    # u₀ = m + sin 2πx: the shock sits at 1/2 + mt; at late times u = m + (x - mt)/t between shocks, nearly.
    grid = Grid.uniform((200,))
    x = grid.points[:, 0]
    time = 4.0
    solved = InviscidBurgers(time).solve(Field((height + torch.sin(2 * math.pi * x))[None, None], grid)).values[0, 0]
    position = torch.remainder(x - height * time + 0.5, 1.0) - 0.5
    interior = position.abs() < 0.49
    # w = sin 2π(x - tw), so w (1 + 2πt) = 2πx up to third order
    wave = solved - height
    torch.testing.assert_close(wave[interior], torch.sin(2 * math.pi * (position - time * wave))[interior], atol=1e-13, rtol=0)
    assert bool((wave[interior] * position[interior] >= -1e-14).all())


@pytest.mark.parametrize("size", [64, 100, 128, 250])
@pytest.mark.parametrize("height", [0.6, 0.7, 1.0, 1.3])
def test_value_on_a_shock_is_the_left_one(size: int, height: float) -> None:
    grid = Grid.uniform((size,))
    for places in (0, 7, -33):  # the shock moves by a number of cells with the mean
        wave = height * torch.sin(2 * math.pi * grid.points[:, 0])[None, None]
        solved = InviscidBurgers().solve(Field(wave + places / size, grid)).values[0, 0] - places / size
        solved = solved.roll(-places)
        assert solved[size // 2] > 0.3
        assert solved[size // 2 + 1] < -0.2
        torch.testing.assert_close(solved[size // 2], solved[size // 2 - 1] + 1 / size, atol=0.4 / size, rtol=0)


def test_viscous_solutions_converge_to_it_in_proportion_to_viscosity() -> None:
    time = 0.6
    exact = InviscidBurgers(time).sample(6, resolution=1024, seed=0, dtype=torch.float64)
    errors = []
    for viscosity in (4e-3, 1e-3, 2.5e-4):
        viscous = Burgers(viscosity, time=time).sample(6, resolution=1024, seed=0, dtype=torch.float64)
        assert torch.equal(viscous.inputs.values, exact.inputs.values)
        errors.append((viscous.outputs.values - exact.outputs.values).abs().mean().item())
    assert errors[0] > 2.5 * errors[1] > 6.25 * errors[2]
    assert errors[1] / errors[2] == pytest.approx(4.0, rel=0.3)


def test_mean_is_conserved_and_energy_falls() -> None:
    problem = InviscidBurgers()
    errors = []
    for size in (256, 1024):
        pairs = problem.sample(6, resolution=size, seed=0, dtype=torch.float64)
        errors.append(pairs.outputs.values.mean(-1).abs().max().item())
        assert bool((pairs.outputs.mean_square() < pairs.inputs.mean_square()).all())
        assert bool((pairs.outputs.values.amax(-1) <= pairs.inputs.values.amax(-1) + 1e-3).all())
    assert errors[0] < 2 / 256  # the quadrature misplaces every jump by half a cell at most
    assert errors[1] < 2 / 1024


def test_times_add_up_before_the_shock() -> None:
    initial = (
        InviscidBurgers(random_field=GaussianRandomField(1, 3), design_dim=1)
        .sample(2, resolution=256, seed=0, dtype=torch.float64)
        .inputs
    )
    small = Field(0.1 * initial.values + 0.3, initial.grid)
    twice = InviscidBurgers(0.15).solve(InviscidBurgers(0.1).solve(small)).values
    torch.testing.assert_close(twice, InviscidBurgers(0.25).solve(small).values, atol=1e-11, rtol=0)


@pytest.mark.parametrize("shift", [None, "amplitude", "roughness"])
def test_comparing_in_more_places_changes_nothing(shift: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = InviscidBurgers().shifts()[shift] if shift else InviscidBurgers()
    usual = problem.sample(10, resolution=64, seed=0, dtype=torch.float64).outputs.values
    monkeypatch.setattr("probneural.problems.inviscid_burgers._LEAST_POINTS", 3000)
    monkeypatch.setattr("probneural.problems.inviscid_burgers._CANDIDATES", 8)
    finer = problem.sample(10, resolution=64, seed=0, dtype=torch.float64).outputs.values
    torch.testing.assert_close(usual, finer, atol=1e-10, rtol=0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_constant_states(size: int) -> None:
    constant = Field(torch.full((1, 1, size), 0.25, dtype=torch.float64), Grid.uniform((size,)))
    torch.testing.assert_close(InviscidBurgers().solve(constant).values, constant.values, atol=1e-15, rtol=0)


@pytest.mark.bad_input
def test_no_gradients() -> None:
    problem = InviscidBurgers()
    values = torch.zeros(1, 1, 8, requires_grad=True)
    with pytest.raises(UnsupportedError, match="require gradients"):
        problem.solve(Field(values, Grid.uniform((8,))))
    with pytest.raises(UnsupportedError, match="small viscosity"):
        problem.derivative(Field(values.detach(), Grid.uniform((8,))), Field(values.detach(), Grid.uniform((8,))))
