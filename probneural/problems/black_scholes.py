"""European options by the formula of Black and Scholes: payoffs to prices."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from probneural.checks import assign, check_integer, check_interval, check_positive, check_real
from probneural.grids import Grid
from probneural.problems.base import Problem
from probneural.problems.input_distributions import UniformParameters


@dataclass(frozen=True)
class BlackScholes(Problem):
    """Payoff at maturity to the option's value a time T before, as functions of the asset's price S on [0.5, 1.5].

    The payoff Σ wᵢ (S − Kᵢ)⁺ of a portfolio of calls has the value Σ wᵢ C(S, Kᵢ), with

        C(S, K) = S N(d₁) − K e^(−rT) N(d₂),   d₁ = [log(S/K) + (r + σ²/2) T] / σ√T,   d₂ = d₁ − σ√T,

    and N the standard normal distribution function: the solution of ∂V/∂T = σ²S²/2 ∂²V/∂S² + rS ∂V/∂S − rV on S > 0. Prices and
    payoffs are in units of one currency, T in years.

    `sample` evaluates the sum and is exact on every grid. `solve` takes payoffs given at the nodes for piecewise linear between
    them, and extends them linearly beyond both ends; such a payoff is cash, a forward and calls struck at the nodes, which is
    priced exactly. Payoffs with other kinks carry the error of that interpolant, of second order in the spacing.

    Good values: weights of both signs give spreads and butterflies. The kinks are smoothed over a width of σ√T, 0.2 by default;
    the map is linear, so a linear regression learns it from enough pairs.

    Failure modes: what happens beyond the window matters by the extension alone. No dividends, no early exercise, no jumps in
    the payoff (digital options). Prices are not defined at S ≤ 0, which the window does not reach.

    Args:
        volatility: σ, per square root of a year.
        maturity: T, in years.
        rate: r, continuously compounded, per year; of either sign.
        strikes: Number of calls m.
        strike_range: Least and largest strike of the distribution.
        weight: Largest number of calls of one strike, bought or sold.
        design_dim: Coordinates of the design space, at most 2m: first the weights, then the strikes.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Black and Scholes (1973), The pricing of options and corporate liabilities, equation (13).

    Examples:
        >>> from probneural.fields import Field
        >>> problem = BlackScholes(0.2)
        >>> grid = problem.grid(101)
        >>> call = Field((grid.points[:, 0] - 1.0).clamp(min=0.0)[None, None], grid)
        >>> round(problem.solve(call).values[0, 0, 50].item(), 6)  # at the money: 2 N(σ/2) - 1
        0.079656
    """

    origin: ClassVar[float] = 0.5
    periodic: ClassVar[bool] = False
    is_linear: ClassVar[bool] = True

    volatility: float = 0.2
    _: KW_ONLY
    maturity: float = 1.0
    rate: float = 0.0
    strikes: int = 4
    strike_range: tuple[float, float] = (0.6, 1.4)
    weight: float = 1.0
    design_dim: int = 8

    def __post_init__(self) -> None:
        """Validate the arguments."""
        for name in ("volatility", "maturity", "weight"):
            check_positive(getattr(self, name), name)
        check_real(self.rate, "rate")
        check_integer(self.strikes, "strikes")
        check_integer(self.design_dim, "design_dim", most=2 * self.strikes)
        assign(self, strike_range=check_interval(self.strike_range, "strike_range"))

    @property
    def name(self) -> str:
        """Name with volatility and maturity."""
        return f"Black-Scholes, volatility {self.volatility:g}, maturity {self.maturity:g}"

    @property
    def input_distribution(self) -> UniformParameters:
        """Independent uniform weights, then strikes."""
        lower = (-self.weight,) * self.strikes + self.strike_range[:1] * self.strikes
        upper = (self.weight,) * self.strikes + self.strike_range[1:] * self.strikes
        return UniformParameters(lower, upper, minimum_resolution=9)

    def shifts(self) -> dict[str, Problem]:
        """`"amplitude"`: weights twice as large; `"volatility"`: twice the volatility, so another operator."""
        return {
            "amplitude": replace(self, weight=2.0 * self.weight),
            "volatility": replace(self, volatility=2.0 * self.volatility),
        }

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        weights, strikes = coefficients.split(self.strikes, dim=1)
        prices = grid.axes[0].coordinates.to(coefficients)
        payoffs = (prices - strikes[..., None]).clamp(min=0.0)
        return weights[:, None, :] @ payoffs

    def _solve_coefficients(self, coefficients: Tensor, grid: Grid) -> Tensor:
        weights, strikes = coefficients.split(self.strikes, dim=1)
        prices = grid.axes[0].coordinates.to(coefficients)
        return weights[:, None, :] @ self._call(prices, strikes[..., None])

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        """Value the cash, the forwards and the calls that replicate the piecewise linear payoff."""
        prices = grid.axes[0].coordinates.to(values)
        slopes = values.diff(dim=-1) / prices.diff()
        cash = values[..., :1] - slopes[..., :1] * prices[0]
        calls = self._call(prices, prices[1:-1, None])
        return cash * math.exp(-self.rate * self.maturity) + slopes[..., :1] * prices + slopes.diff(dim=-1) @ calls

    def _call(self, prices: Tensor, strikes: Tensor) -> Tensor:
        """The value of calls, broadcast over prices and strikes."""
        spread = self.volatility * math.sqrt(self.maturity)
        upper = (torch.log(prices / strikes) + (self.rate + 0.5 * self.volatility**2) * self.maturity) / spread
        owed = strikes * math.exp(-self.rate * self.maturity) * torch.special.ndtr(upper - spread)
        return prices * torch.special.ndtr(upper) - owed
