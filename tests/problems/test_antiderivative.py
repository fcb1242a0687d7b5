"""Antiderivatives and their nonlinear twins against an ODE solver and polynomials."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from scipy.integrate import solve_ivp

from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.problems import Antiderivative, GaussianRandomField

EQUATIONS = {
    "linear": (numpy.ones_like, -0.4),
    "logistic": (lambda s: s * (1 - s), 0.3),
}


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("sigma", [25.0, 200.0])
def test_against_an_ode_solver(equation: str, sigma: float) -> None:
    rate, start = EQUATIONS[equation]
    problem = Antiderivative(equation, start=start, random_field=GaussianRandomField(1, 7, sigma=sigma), design_dim=1)
    pairs = problem.sample(1, resolution=33, seed=0, dtype=torch.float64)
    coefficients = problem.input_distribution.draw(1, 0)[0].numpy()
    k = 2 * math.pi * numpy.arange(1, 8)

    def right_hand_side(x: float, s: numpy.ndarray) -> numpy.ndarray:
        drive = math.sqrt(2) * (coefficients[::2] @ numpy.cos(k * x) + coefficients[1::2] @ numpy.sin(k * x))
        return drive * rate(s)

    x = pairs.outputs.grid.points[:, 0].numpy()
    solution = solve_ivp(right_hand_side, (0.0, 1.0), [start], method="DOP853", t_eval=x, rtol=1e-12, atol=1e-12)
    # Dense output of the integrator has order 7: its error, not ours, is what this tolerance allows.
    torch.testing.assert_close(pairs.outputs.values[0, 0], torch.from_numpy(solution.y[0]), atol=1e-9, rtol=1e-9)
    assert pairs.outputs.values[0, 0, -1].item() == pytest.approx(solution.y[0, -1], abs=1e-10)


@pytest.mark.parametrize("degree", range(6))
def test_polynomials_to_degree_five_are_integrated_exactly(degree: int) -> None:
    problem = Antiderivative(start=0.7)
    x = problem.grid(63).points[:, 0]
    solved = problem.solve(Field((x**degree)[None, None], problem.grid(63))).values[0, 0]
    torch.testing.assert_close(solved, 0.7 + x ** (degree + 1) / (degree + 1), atol=1e-14, rtol=0)


def test_the_map_is_causal() -> None:
    problem = Antiderivative("logistic")
    inputs = problem.sample(1, resolution=201, seed=0, dtype=torch.float64).inputs
    changed = inputs.values.clone()
    changed[..., 120:] += 1.0
    difference = problem.solve(Field(changed, inputs.grid)).values - problem.solve(inputs).values
    assert difference[..., :115].abs().max() < 1e-15  # the interpolant of degree 5 looks three nodes ahead
    assert difference[..., 125:].abs().min() > 1e-3


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("equation", "start"),
    [("logistic", 0.0), ("logistic", 1.0), ("logistic", 1.5), ("linear", math.inf), ("linear", math.nan)],
)
def test_starts_that_never_move(equation: str, start: float) -> None:
    with pytest.raises(ArgumentError, match="start"):
        Antiderivative(equation, start=start)
