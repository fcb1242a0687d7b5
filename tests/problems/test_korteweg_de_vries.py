"""Solitons against the equation, each other, conservation distributions and a pseudo-spectral solver."""

from __future__ import annotations

import math

import pytest
import torch

from probneural.fields import Field
from probneural.problems import KortewegDeVries

DRAWN = KortewegDeVries().input_distribution.draw(4, 0)


def test_the_equation_holds() -> None:
    parameters, problem = DRAWN, KortewegDeVries()
    x = torch.linspace(-12.0, 15.0, 41, dtype=torch.float64)

    def height(where: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        return problem.evaluate(parameters, where[None], time=when)[:, 0]

    def in_space(function: object) -> object:
        return torch.func.jacfwd(function, argnums=0)

    first = in_space(height)
    third = in_space(in_space(first))
    for when in (0.0, 2.5):
        time = torch.tensor(when, dtype=torch.float64)
        rate = torch.func.jacfwd(height, argnums=1)
        u, slope, bend, change = (torch.func.vmap(part, (0, None))(x, time) for part in (height, first, third, rate))
        torch.testing.assert_close(change + 6.0 * u * slope + bend, torch.zeros_like(u), atol=1e-11, rtol=0)
        assert change.abs().max() > 1.0


def soliton(wavenumber: float, centre: float, x: torch.Tensor, *, time: float) -> torch.Tensor:
    """A soliton on its own: a squared secant."""
    return 2.0 * wavenumber**2 / torch.cosh(wavenumber * (x - centre - 4.0 * wavenumber**2 * time)).square()


@pytest.mark.parametrize("time", [-30.0, 30.0])
def test_far_apart_two_solitons_are_two(time: float) -> None:
    # Long before and after they meet, each is alone, displaced by the logarithm of the interaction.
    slow, fast, left, right = 0.7, 1.2, -1.0, -3.0
    x = torch.linspace(-250.0, 250.0, 2001, dtype=torch.float64)
    lag = math.log((fast + slow) / (fast - slow))
    late = time > 0.0
    # The one behind is where its phase says, and the one in front is ahead of that.
    moved = [(slow, left + (0.0 if late else lag / slow)), (fast, right + (lag / fast if late else 0.0))]
    both = KortewegDeVries().evaluate(torch.tensor([[slow, fast, left, right]], dtype=torch.float64), x, time=time)
    alone = [soliton(wavenumber, centre, x, time=time) for wavenumber, centre in moved]
    torch.testing.assert_close(both[0], alone[0] + alone[1], atol=1e-9, rtol=0)


def test_mass_momentum_and_the_ends_of_the_window() -> None:
    # One soliton has mass 4κ and momentum ∫u² = 16κ³/3; both add up, also while they collide.
    problem = KortewegDeVries(3.0)
    pairs = problem.sample(40, resolution=256, seed=0, dtype=torch.float64)
    wavenumbers = problem.input_distribution.draw(40, 0)[:, :2]
    for field in (pairs.inputs, pairs.outputs):
        # Tails fall as exp(-2κd); wavenumbers .11 apart move a soliton of κ = .89 by 3.2, to d = 15 from the right end.
        assert field.values[..., [0, -1]].abs().max() < (1e-12 if field is pairs.inputs else 1e-11)
        mass = field.values[:, 0] @ field.grid.weights
        torch.testing.assert_close(mass, 4.0 * wavenumbers.sum(1), atol=1e-8, rtol=0)
        momentum = field.values[:, 0].square() @ field.grid.weights
        torch.testing.assert_close(momentum, 16.0 / 3.0 * wavenumbers.pow(3).sum(1), atol=1e-8, rtol=0)


def test_solve_integrates_what_sample_evaluates() -> None:
    errors = []
    for resolution in (96, 192):
        pairs = KortewegDeVries(0.1).sample(2, resolution=resolution, seed=0, dtype=torch.float64)
        solved = KortewegDeVries(0.1).solve(pairs.inputs).values
        errors.append(float((solved - pairs.outputs.values).abs().max() / pairs.outputs.values.abs().max()))
    assert errors[0] < 0.1
    assert errors[1] < 1e-3


def test_derivative_is_that_of_the_closed_form() -> None:
    problem = KortewegDeVries(0.1)
    x = problem.grid(192).axes[0].coordinates
    change = torch.tensor([[0.3, -0.2, 0.5, 1.0]], dtype=torch.float64)

    def states(time: float) -> tuple[Field, Field]:
        values, moved = torch.func.jvp(lambda at: problem.evaluate(at, x, time=time), (DRAWN[:1],), (change,))
        return tuple(Field(part[:, None], problem.grid(192)) for part in (values, moved))

    (inputs, direction), (_, expected) = states(0.0), states(0.1)
    error = problem.derivative(inputs, direction).values - expected.values
    assert error.abs().max() < 1e-3 * expected.values.abs().max()


@pytest.mark.slow
def test_a_collision() -> None:
    problem = KortewegDeVries(3.0)
    pairs = problem.sample(2, resolution=384, seed=1, dtype=torch.float64)
    error = problem.solve(pairs.inputs).values - pairs.outputs.values
    assert error.abs().max() < 1e-6
