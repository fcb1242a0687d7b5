"""Option prices against the lognormal expectation, the equation, parity and a published price."""

from __future__ import annotations

import itertools
import math

import numpy
import pytest
import torch

from probneural.fields import Field
from probneural.problems import BlackScholes


def expectation(problem: BlackScholes, prices: torch.Tensor, strike: float) -> torch.Tensor:
    """The discounted mean of a call's payoff, by Gauss-Legendre quadrature above the price that reaches the strike."""
    spread = problem.volatility * math.sqrt(problem.maturity)
    drift = (problem.rate - 0.5 * problem.volatility**2) * problem.maturity
    nodes, weights = (torch.from_numpy(part) for part in numpy.polynomial.legendre.leggauss(200))
    start = ((math.log(strike) - prices.log() - drift) / spread).clamp(min=-12.0)[:, None]
    normals = start + 6.0 * (nodes + 1.0)
    payoff = (prices[:, None] * torch.exp(drift + spread * normals) - strike).clamp(min=0.0)
    density = torch.exp(-0.5 * normals.square()) / math.sqrt(2.0 * math.pi)
    return math.exp(-problem.rate * problem.maturity) * (payoff * density) @ (6.0 * weights)


def on_nodes(problem: BlackScholes, values: torch.Tensor) -> Field:
    return Field(values[None, None], problem.grid(len(values)))


@pytest.mark.parametrize("problem", [BlackScholes(), BlackScholes(0.5, maturity=0.3, rate=0.07, strikes=2, design_dim=1)])
def test_sample_is_the_lognormal_expectation(problem: BlackScholes) -> None:
    pairs = problem.sample(4, resolution=33, seed=0, dtype=torch.float64)
    prices = pairs.inputs.grid.points[:, 0]
    for row, coefficients in enumerate(problem.input_distribution.draw(4, 0)):
        weights, strikes = coefficients.split(problem.strikes)
        assert bool((weights.abs() <= 1.0).all() and (strikes >= 0.6).all() and (strikes <= 1.4).all())
        expected = sum(w * expectation(problem, prices, float(K)) for w, K in zip(weights, strikes, strict=True))
        payoff = sum(w * (prices - K).clamp(min=0.0) for w, K in zip(weights, strikes, strict=True))
        torch.testing.assert_close(pairs.outputs.values[row, 0], expected, atol=1e-12, rtol=0)
        torch.testing.assert_close(pairs.inputs.values[row, 0], payoff, atol=1e-14, rtol=0)


def test_a_published_price() -> None:
    # Hull, Options, Futures, and Other Derivatives, example 15.6: S = 42, K = 40, r = .1, sigma = .2, T = .5 give 4.76 and .81.
    problem = BlackScholes(0.2, maturity=0.5, rate=0.1)
    calls = problem._call(torch.tensor([1.05], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64))
    assert 40.0 * calls.item() == pytest.approx(4.76, abs=5e-3)
    prices = problem.grid(201).points[:, 0]
    put = problem.solve(on_nodes(problem, (1.0 - prices).clamp(min=0.0))).values[0, 0, 110]
    assert prices[110].item() == pytest.approx(1.05)
    assert 40.0 * put.item() == pytest.approx(0.81, abs=5e-3)


def test_payoffs_with_kinks_at_nodes_are_exact() -> None:
    problem = BlackScholes(0.3, rate=0.04)
    prices = problem.grid(41).points[:, 0]
    spread = 2.0 * (prices - prices[8]).clamp(min=0.0) - 3.0 * (prices - prices[23]).clamp(min=0.0)
    solved = problem.solve(on_nodes(problem, spread)).values[0, 0]
    expected = 2.0 * expectation(problem, prices, prices[8].item()) - 3.0 * expectation(problem, prices, prices[23].item())
    torch.testing.assert_close(solved, expected, atol=1e-12, rtol=0)


def test_cash_forward_and_parity() -> None:
    problem = BlackScholes(0.3, maturity=2.0, rate=0.04)
    prices = problem.grid(41).points[:, 0]
    cash = problem.solve(on_nodes(problem, torch.ones_like(prices))).values[0, 0]
    torch.testing.assert_close(cash, torch.full_like(cash, math.exp(-0.08)), atol=1e-13, rtol=0)
    torch.testing.assert_close(problem.solve(on_nodes(problem, prices)).values[0, 0], prices, atol=1e-13, rtol=0)
    call, put = (problem.solve(on_nodes(problem, (sign * (prices - 1.0)).clamp(min=0.0))).values[0, 0] for sign in (1, -1))
    torch.testing.assert_close(call - put, prices - math.exp(-0.08), atol=1e-13, rtol=0)


def test_other_kinks_cost_second_order() -> None:
    problem = BlackScholes(0.2)
    errors = []
    for cells in (50, 100, 200):
        prices = problem.grid(cells + 1).points[:, 0]
        strike = 1.0 + 0.5 / cells  # halfway between two nodes on every grid
        solved = problem.solve(on_nodes(problem, (prices - strike).clamp(min=0.0))).values[0, 0]
        errors.append((solved - expectation(problem, prices, strike)).abs().max().item())
    orders = [math.log2(coarse / fine) for coarse, fine in itertools.pairwise(errors)]
    assert all(1.9 < order < 2.1 for order in orders)
