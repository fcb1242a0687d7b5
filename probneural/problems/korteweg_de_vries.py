"""Solitons of the Korteweg-de Vries equation, evaluated in closed form."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_integer
from probneural.errors import ArgumentError
from probneural.grids import Grid
from probneural.problems.base import Evolution, Problem
from probneural.problems.input_distributions import UniformParameters
from probneural.problems.method_of_lines import MethodOfLines
from probneural.problems.spectral import spectral_derivative
from probneural.problems.time_integration import TimeIntegrator
from probneural.settings import Numbers, Positive

_RESOLUTION = 64
"""Minimum number of points on the window; twice as many resolve the default solitons to four digits."""


_INTEGRATOR = TimeIntegrator()


@dataclass(frozen=True)
class KortewegDeVries(Evolution):
    """Two solitons at time 0 to the same at time t, for ∂u/∂t + 6 u ∂u/∂x + ∂³u/∂x³ = 0 on a window of the line.

    A soliton of wavenumber κ is a hump of height 2κ² that travels at 4κ². A tall one overtakes a short one, and both come out
    as they were except for a shift. With θᵢ = κᵢ (x − xᵢ) − 4 κᵢ³ t,

        u = 2 ∂²/∂x² log [1 + e^(2θ₁) + e^(2θ₂) + ((κ₁ − κ₂)/(κ₁ + κ₂))² e^(2θ₁ + 2θ₂)],

    which is twice the variance of the slopes 0, 2κ₁, 2κ₂, 2κ₁ + 2κ₂ under the softmax of the exponents: nothing overflows.
    Where they are far apart, the one behind is at xᵢ + 4κᵢ²t, and the one in front is ahead of that by
    log((κ₂ + κ₁)/(κ₂ − κ₁))/κᵢ.

    `sample` is exact on every grid. The window [−30, 30) counts as periodic; at its ends, solitons of the default distribution
    are below 1e-12 at time 0, and below 1e-10 at time 3: those of like wavenumbers throw each other far. `solve` and
    `derivative` take inputs of your own, which have no closed form: they integrate the equation on the periodic window by
    [`MethodOfLines`][probneural.problems.MethodOfLines] to tolerance, and the grid has to resolve the solution (a soliton's
    spectrum falls like e^(−πk/2κ): relative errors of 4e-3 at 128 points, 1e-5 at 192 and 1e-7 at 256 for the default
    distribution). They need torchdiffeq.

    Good values: default solitons are level at times from 0.5 to 18, about half of them within the default time.

    Failure modes: beyond time 3, fast solitons leave the window on the right, where `sample` cuts them off and `solve` has
    them come back on the left.

    Args:
        time: Time t of the output.
        lower: Least κ₁, κ₂, x₁, x₂ with all κ₁ below all κ₂.
        upper: Largest.
        integrator: Method and tolerances of the time integration in `solve`.
        design_dim: Coordinates of the design space, at most the number of parameters.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Hirota (1971), Exact solution of the Korteweg-de Vries equation for multiple collisions of solitons.

    Examples:
        >>> problem = KortewegDeVries(0.5)
        >>> pairs = problem.sample(2, resolution=256, seed=0, dtype=torch.float64)
        >>> masses = pairs.outputs.values @ pairs.outputs.grid.weights  # conserved
        >>> torch.allclose(masses, pairs.inputs.values @ pairs.inputs.grid.weights)
        True
    """

    title: ClassVar[str] = "Korteweg-de Vries, 2 solitons, time {problem.time:g}"
    lengths: ClassVar[float] = 60.0
    origin: ClassVar[float] = -30.0

    time: Positive = 3.0
    _: KW_ONLY
    lower: Numbers = (0.7, 1.0, -4.0, -12.0)
    upper: Numbers = (0.9, 1.2, 2.0, -6.0)
    integrator: TimeIntegrator = _INTEGRATOR
    design_dim: int = 4

    def __post_init__(self) -> None:
        """Validate the arguments."""
        super().__post_init__()
        check_integer(self.design_dim, "design_dim", most=4)
        if not len(self.lower) == len(self.upper) == 4 or not 0.0 < self.lower[0] <= self.upper[0] < self.lower[1]:
            raise ArgumentError(
                expected="lower and upper bounds of 4 parameters, wavenumbers positive and those of the first soliton "
                "below those of the second",
                got=f"{self.lower} and {self.upper}",
                remedy="list the wavenumbers first, then the positions",
            )
        self._input_distribution()

    @property
    def input_distribution(self) -> UniformParameters:
        """Independent uniform wavenumbers, then positions."""
        return self._input_distribution()

    def shifts(self) -> dict[str, Problem]:
        """`"tall"`: wavenumbers larger by a fifth, so solitons are 1.44 times as tall and as fast."""
        factors = (1.2, 1.2, 1.0, 1.0)
        lower = tuple(factor * bound for factor, bound in zip(factors, self.lower, strict=True))
        upper = tuple(factor * bound for factor, bound in zip(factors, self.upper, strict=True))
        return {"tall": replace(self, lower=lower, upper=upper)}

    def evaluate(
        self, parameters: Float[Tensor, "n 4"], positions: Float64[Tensor, " m"], *, time: float | Tensor
    ) -> Float[Tensor, "n m"]:
        """The solution with given solitons, anywhere on the line and at any time.

        Args:
            parameters: Wavenumbers and positions at time 0, `(n, 4)`.
            positions: Coordinates x, `(m,)`, not restricted to the window.
            time: t, of either sign.

        Returns:
            `(n, m)`, in the parameters' dtype.
        """
        places = positions.to(parameters)
        wavenumbers, centres = parameters[:, :2, None], parameters[:, 2:, None]
        phases = 2.0 * (wavenumbers * (places - centres) - 4.0 * wavenumbers**3 * time)
        slopes = 2.0 * wavenumbers
        first, second = wavenumbers.split(1, dim=1)
        interaction = 2.0 * torch.log((second - first) / (second + first))
        exponents = [torch.zeros_like(phases[:, :1]), phases, phases.sum(1, keepdim=True) + interaction]
        weights = torch.softmax(torch.cat(exponents, dim=1), dim=1)
        slopes = torch.cat([torch.zeros_like(slopes[:, :1]), slopes, slopes.sum(1, keepdim=True)], dim=1)
        mean = (weights * slopes).sum(1, keepdim=True)
        return 2.0 * (weights * (slopes - mean).square()).sum(1)

    def _input_distribution(self) -> UniformParameters:
        return UniformParameters(self.lower, self.upper, minimum_resolution=_RESOLUTION)

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        return self.evaluate(coefficients, grid.axes[0].coordinates, time=0.0)[:, None]

    def _solve_coefficients(self, coefficients: Tensor, grid: Grid) -> Tensor:
        return self.evaluate(coefficients, grid.axes[0].coordinates, time=self.time)[:, None]

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        return self._integrator()._solve(values, grid)

    def _differentiate(self, values: Tensor, direction: Tensor, grid: Grid) -> Tensor:
        return self._integrator()._differentiate(values, direction, grid)

    def _integrator(self) -> MethodOfLines:
        return MethodOfLines(
            lambda time, u, grid: -3.0 * spectral_derivative(u.square(), grid),
            time=self.time,
            name=self.name,
            linear_symbol=lambda wavenumber: 1j * wavenumber**3,
            domain=self.grid(_RESOLUTION),
            integrator=self.integrator,
        )
