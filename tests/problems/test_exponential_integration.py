"""Exponential time differencing: its functions to rounding, its order, and the limits in which it is exact."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from probneural.problems.kuramoto_sivashinsky import ExponentialRungeKutta, phi_functions


def phi_by_series(order: int, z: float) -> float:
    """Σ z^j/(j + order)! in exact arithmetic."""
    argument, total, term = Fraction(z), Fraction(0), Fraction(1, math.factorial(order))
    for power in range(300):
        total += term
        term *= argument / (power + order + 1)
    return float(total)


@pytest.mark.parametrize("z", [-60.0, -7.3, -1.0, -0.999999, -0.3, -1e-9, 0.0, 1e-5, 0.5, 1.0, 1.7, 20.0])
def test_functions_to_rounding(z: float) -> None:
    for order, value in enumerate(phi_functions(torch.tensor(z, dtype=torch.float64)), 1):
        assert math.isclose(float(value), phi_by_series(order, z), rel_tol=2e-15 * (1.0 + (abs(z) >= 1.0) * 3.0))


def test_functions_differentiate() -> None:
    points = torch.tensor([-5.0, -0.2, 0.0, 0.7, 3.0], dtype=torch.float64, requires_grad=True)
    for order in range(3):
        assert torch.autograd.gradcheck(lambda z, order=order: phi_functions(z)[order], points)


def integrate(symbol: Tensor, state: Tensor, steps: int) -> Tensor:
    """Until time 1, of dv/dt = λ v + v²."""
    method = ExponentialRungeKutta(symbol, 1.0 / steps)
    for _ in range(steps):
        state = method.advance(state, lambda v: v.square())
    return state


def test_it_is_of_fourth_order() -> None:
    """Against v' = λ v + v², a logistic equation, for a stiff λ too, where the order is what it is for small steps."""
    symbol, start = torch.tensor([-1.0, 0.5, -3.0], dtype=torch.float64), torch.tensor([0.6, 0.2, 2.0], dtype=torch.float64)
    growth = symbol.exp()
    exact = symbol * growth * start / (symbol + start - growth * start)
    errors = [(integrate(symbol, start, steps) - exact).abs() for steps in (20, 40, 80)]
    for coarse, fine in itertools.pairwise(errors):
        assert bool(((coarse / fine).log2() > 3.8).all())
        assert bool(((coarse / fine).log2() < 4.2).all())


def test_a_linear_equation_is_exact_whatever_the_step() -> None:
    symbol = torch.tensor([-1e6, -3.0, 0.0, 2.0], dtype=torch.float64)
    moved = ExponentialRungeKutta(symbol, 0.7).advance(torch.ones_like(symbol), torch.zeros_like)
    torch.testing.assert_close(moved, (0.7 * symbol).exp(), atol=0, rtol=1e-14)
    forced = ExponentialRungeKutta(symbol, 0.7).advance(torch.zeros_like(symbol), torch.ones_like)
    expected = torch.where(symbol == 0, 0.7, torch.expm1(0.7 * symbol) / torch.where(symbol == 0, 1.0, symbol))
    torch.testing.assert_close(forced, expected, atol=0, rtol=1e-13)
