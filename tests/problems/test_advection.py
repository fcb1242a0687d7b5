"""Constant-speed advection against shapes in closed form, an upwind scheme and the statistics of its inputs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from probneural.errors import ArgumentError
from probneural.problems import Advection, GaussianRandomField

kinds = pytest.mark.parametrize("kind", ["smooth", "sign", "square"])


def square(parameters: list[float], x: float) -> float:
    """u₀(x) as the published formula writes it, one number at a time, with periodic images."""
    height, width, centre = parameters
    return sum(height * (centre - width / 2 <= x + image < centre + width / 2) for image in (-1, 0, 1))


def test_squares_are_the_published_formula() -> None:
    problem = Advection(0.8, time=0.45, initial="square")
    pairs = problem.sample(20, resolution=97, seed=0, dtype=torch.float64)
    for number, parameters in enumerate(problem.input_distribution.draw(20, 0).tolist()):
        inputs = [square(parameters, j / 97) for j in range(97)]
        outputs = [square(parameters, (j / 97 - 0.36) % 1.0) for j in range(97)]
        torch.testing.assert_close(pairs.inputs.values[number, 0], torch.tensor(inputs).double(), atol=1e-6, rtol=0)
        torch.testing.assert_close(pairs.outputs.values[number, 0], torch.tensor(outputs).double(), atol=1e-6, rtol=0)


@kinds
def test_outputs_are_inputs_displaced_by_whole_cells(kind: str) -> None:
    for speed, places in ((1.0, 32), (0.25, 8), (3.0, 96)):
        pairs = Advection(speed, initial=kind).sample(50, resolution=64, seed=0, dtype=torch.float64)
        expected = pairs.inputs.values.roll(places, dims=-1)
        torch.testing.assert_close(pairs.outputs.values, expected, atol=1e-13 if kind == "smooth" else 1e-7, rtol=0)
        if kind in ("sign", "square"):
            assert torch.equal(pairs.outputs.values, expected)


def test_smooth_states_against_an_upwind_scheme() -> None:
    # First order: the error halves with the spacing, and Richardson's extrapolation is of second order.
    problem = Advection(1.1, time=0.3, random_field=GaussianRandomField(1, 3))

    def upwind(size: int) -> torch.Tensor:
        state = problem.sample(2, resolution=size, seed=0, dtype=torch.float64).inputs.values
        steps = math.ceil(1.1 * 0.3 * size / 0.8)
        courant = 1.1 * 0.3 * size / steps
        for _ in range(steps):
            state = state - courant * (state - state.roll(1, dims=-1))
        return state[..., :: size // 16]

    exact = problem.sample(2, resolution=16, seed=0, dtype=torch.float64).outputs.values
    coarse, fine = upwind(1600), upwind(3200)
    errors = [(approximate - exact).abs().max().item() for approximate in (coarse, fine, 2 * fine - coarse)]
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.05)
    assert errors[2] < 0.01 * errors[1]


def test_gibbs_oscillations_off_the_grid() -> None:
    problem = Advection(initial="square").shifts()["speed"]
    pairs = problem.sample(200, resolution=64, seed=0, dtype=torch.float64)
    overshoot = (problem.solve(pairs.inputs).values.amax(-1) / pairs.inputs.values.amax(-1) - 1.0).amax()
    assert 0.05 < overshoot < 0.2
    assert pairs.outputs.values.amax() <= pairs.inputs.values.amax()  # sample has none


def test_nodes_on_jumps() -> None:
    problem = Advection(initial="square", time=0.3)
    # Height 1.5, from .275 to .725, both nodes of 40 points: the left one is inside, the right one is not.
    for size in (40, 80, 120, 200):
        encoded = problem.encode(torch.full((3,), 0.5, dtype=torch.float64), grid=problem.grid(size))
        inside = torch.arange(size) * 40 / size
        expected = 1.5 * ((inside >= 11) & (inside < 29))
        assert torch.equal(encoded.values[0, 0], expected.double())
        moved = problem._solve_coefficients(torch.tensor([[1.5, 0.45, 0.5]], dtype=torch.float64), problem.grid(size))
        assert torch.equal(moved[0, 0], expected.double().roll(size * 3 // 10))
    sign = Advection(initial="sign", random_field=GaussianRandomField(1, 3))
    single_sine = torch.tensor([[0.0, 0.3, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)  # vanishes at 0 and .5: both count as +1
    assert sign._inputs(single_sine, sign.grid(8))[0, 0].tolist() == [1, 1, 1, 1, 1, -1, -1, -1]


def test_statistics_of_the_squares() -> None:
    inputs = Advection(initial="square").sample(20_000, resolution=100, seed=0, dtype=torch.float64).inputs.values[:, 0]
    assert inputs.mean().item() == pytest.approx(1.5 * 0.45, rel=0.01)  # E h E w
    assert inputs.square().mean().item() == pytest.approx(7 / 3 * 0.45, rel=0.01)  # E h² E w
    # At the middle: P(|c - .5| < w/2) = E min(1, w/.4) = 1 - (1/.3) ∫ from .3 to .4 of (1 - w/.4) dw
    assert (inputs[:, 50] > 0).double().mean().item() == pytest.approx(1 - 0.0125 / 0.3, abs=0.01)


def test_statistics_of_signs() -> None:
    problem = Advection(initial="sign", random_field=GaussianRandomField(1, 20, tau=3.0))
    inputs = problem.sample(20_000, resolution=41, seed=0, dtype=torch.float64).inputs.values[:, 0]
    assert set(inputs.unique().tolist()) == {-1.0, 1.0}
    assert inputs.mean(0).abs().max() < 0.03
    k = torch.arange(1, 21, dtype=torch.float64)
    weights = ((2 * math.pi * k) ** 2 + 9.0) ** -2
    for places in (1, 3, 10):  # the arcsine distribution of the signs of two Gaussian variables
        correlation = (weights * torch.cos(2 * math.pi * k * places / 41)).sum() / weights.sum()
        agreement = (inputs * inputs.roll(places, dims=-1)).mean().item()
        assert agreement == pytest.approx(2 / math.pi * math.asin(correlation), abs=0.02)


def test_gradients_of_squares_are_finite_at_jumps() -> None:
    problem = Advection(initial="square")
    design = torch.full((problem.design_dim,), 0.5, dtype=torch.float64, requires_grad=True)
    problem.encode(design, grid=problem.grid(40)).values.sum().backward()
    assert bool(torch.isfinite(design.grad).all())
    assert design.grad[0].item() == pytest.approx(18.0)  # nodes inside


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"design_dim": 4}, "from 1 to 3 as design_dim"), ({"random_field": GaussianRandomField(1, 3)}, "no random_field")],
    ids=str,
)
def test_squares_with_a_random_field_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Advection(initial="square", **arguments)
