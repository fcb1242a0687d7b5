"""European options by the formula of Black and Scholes: payoffs to prices."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_choice, check_integer, check_positive, check_real
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems.base import Problem
from probneural.problems.laws import UniformParameters

_GREEKS = ("delta", "gamma", "vega", "theta", "rho")


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
        lowest_strike: Least strike of the law.
        highest_strike: Largest strike of the law.
        weight: Largest number of calls of one strike, bought or sold.
        design_dim: Coordinates of the design space, at most 2m: first the weights, then the strikes.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Black and Scholes (1973), The pricing of options and corporate liabilities, equation (13).

    Examples:
        >>> problem = BlackScholes(0.2)
        >>> grid = problem.grid(101)
        >>> call = Field((grid.points[:, 0] - 1.0).clamp(min=0.0)[None, None], grid)
        >>> round(problem.solve(call).values[0, 0, 50].item(), 6)  # at the money: 2 N(σ/2) - 1
        0.079656
    """

    origin: ClassVar[float] = 0.5

    volatility: float = 0.2
    _: KW_ONLY
    maturity: float = 1.0
    rate: float = 0.0
    strikes: int = 4
    lowest_strike: float = 0.6
    highest_strike: float = 1.4
    weight: float = 1.0
    design_dim: int = 8

    def __post_init__(self) -> None:
        """Validate the arguments."""
        for name in ("volatility", "maturity", "lowest_strike", "weight"):
            check_positive(getattr(self, name), name)
        check_real(self.rate, "rate")
        check_integer(self.strikes, "strikes")
        check_integer(self.design_dim, "design_dim", most=2 * self.strikes)
        if not self.lowest_strike < self.highest_strike < math.inf:
            raise ArgumentError(
                expected="a highest_strike above the lowest_strike",
                got=f"{self.highest_strike} and {self.lowest_strike}",
                remedy="give the interval that strikes are drawn from",
            )

    @property
    def name(self) -> str:
        """Name with volatility and maturity."""
        return f"Black-Scholes, volatility {self.volatility:g}, maturity {self.maturity:g}"

    @property
    def law(self) -> UniformParameters:
        """Independent uniform weights, then strikes."""
        lower = (-self.weight,) * self.strikes + (self.lowest_strike,) * self.strikes
        upper = (self.weight,) * self.strikes + (self.highest_strike,) * self.strikes
        return UniformParameters(lower, upper, minimum_resolution=9)

    @property
    def periodic(self) -> bool:
        """False: grids include both ends of the window."""
        return False

    def shifts(self) -> dict[str, Problem]:
        """`"amplitude"`: weights twice as large; `"volatility"`: twice the volatility, so another operator."""
        return {
            "amplitude": replace(self, weight=2.0 * self.weight),
            "volatility": replace(self, volatility=2.0 * self.volatility),
        }

    def greek(self, inputs: Field, *, of: Literal["delta", "gamma", "vega", "theta", "rho"]) -> Field:
        """A derivative of the option's value, in closed form.

        Args:
            inputs: Payoffs, as in `solve`.
            of: `"delta"` ∂V/∂S, `"gamma"` ∂²V/∂S², `"vega"` ∂V/∂σ, `"theta"` −∂V/∂T, `"rho"` ∂V/∂r.

        Returns:
            `(n, 1, N)` on the inputs' grid, in their dtype.

        Raises:
            ArgumentError: If there is no derivative of that name.
            GridError: If the grid is not of the problem's kind.
            ShapeError: If there is not one channel.
            DataError: If a value is not finite.
        """
        self._check_field(inputs, "inputs")
        check_choice(of, _GREEKS, "of")
        values = self._price(inputs.values.double(), inputs.grid, of)
        return Field(values.to(inputs.dtype), inputs.grid)

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        weights, strikes = coefficients.split(self.strikes, dim=1)
        prices = grid.axes[0].coordinates.to(coefficients)
        payoffs = (prices - strikes[..., None]).clamp(min=0.0)
        return weights[:, None, :] @ payoffs

    def _solve_coefficients(self, coefficients: Tensor, grid: Grid) -> Tensor:
        weights, strikes = coefficients.split(self.strikes, dim=1)
        prices = grid.axes[0].coordinates.to(coefficients)
        return weights[:, None, :] @ self._call(prices, strikes[..., None], "value")

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        return self._price(values, grid, "value")

    def _differentiate(self, values: Tensor, direction: Tensor, grid: Grid) -> Tensor:
        return self._price(direction, grid, "value")  # linear: the derivative is the map itself, everywhere

    def _price(self, values: Tensor, grid: Grid, of: str) -> Tensor:
        """Cash, forwards and calls that replicate the piecewise linear payoff, each valued or differentiated."""
        prices = grid.axes[0].coordinates.to(values)
        slopes = values.diff(dim=-1) / prices.diff()
        cash = values[..., :1] - slopes[..., :1] * prices[0]
        calls = self._call(prices, prices[1:-1, None], of)
        bond, forward = self._bond(of), self._forward(prices, of)
        return cash * bond + slopes[..., :1] * forward + slopes.diff(dim=-1) @ calls

    def _bond(self, of: str) -> float:
        """The value of one unit of cash at maturity, or its derivative."""
        value = math.exp(-self.rate * self.maturity)
        return {"value": value, "theta": self.rate * value, "rho": -self.maturity * value}.get(of, 0.0)

    def _forward(self, prices: Float64[Tensor, " N"], of: str) -> Float64[Tensor, " N"]:
        """The value of the asset itself, or its derivative."""
        if of == "value":
            return prices
        return torch.ones_like(prices) if of == "delta" else torch.zeros_like(prices)

    def _call(self, prices: Tensor, strikes: Tensor, of: str) -> Tensor:
        """The value of calls, or its derivative, broadcast over prices and strikes."""
        root = math.sqrt(self.maturity)
        spread = self.volatility * root
        upper = (torch.log(prices / strikes) + (self.rate + 0.5 * self.volatility**2) * self.maturity) / spread
        lower = upper - spread
        density = torch.exp(-0.5 * upper.square()) / math.sqrt(2.0 * math.pi)
        owed = strikes * math.exp(-self.rate * self.maturity) * torch.special.ndtr(lower)
        if of == "value":
            return prices * torch.special.ndtr(upper) - owed
        if of == "delta":
            return torch.special.ndtr(upper)
        if of == "gamma":
            return density / (prices * spread)
        if of == "vega":
            return prices * density * root
        if of == "theta":
            return -prices * density * self.volatility / (2.0 * root) - self.rate * owed
        return self.maturity * owed
