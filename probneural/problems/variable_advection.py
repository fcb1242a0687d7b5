"""Advection at a speed that varies in space, solved along its characteristics."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from probneural.grids import Grid
from probneural.problems import spectral
from probneural.problems.base import Evolution, GaussianInputProblem, Problem, check_random_field, shifted_fields
from probneural.problems.input_distributions import IndependentDistributions
from probneural.problems.random_fields import GaussianRandomField
from probneural.settings import Positive

_FLOOR = 0.1
"""Least slowness of the distribution, so speeds stay below 10."""

_MOST_STEPS = 80
"""Newton steps with a bisection where Newton leaves its bracket; 54 bisections alone reach rounding."""

_SLOWNESS_FIELD = GaussianRandomField(1, 15, sigma=8.0)

_CHECKS = 4
"""Number of points per nodal value in the check that the interpolated slowness is positive."""


@dataclass(frozen=True)
class VariableSpeedAdvection(Evolution, GaussianInputProblem):
    """Slowness b and initial state u₀ to the state at time t of ∂u/∂t + a(x) ∂u/∂x = 0 with a = 1/b, periodic on [0, 1).

    A characteristic takes the time X(x) = ∫₀ˣ b from 0 to x, and X(x + 1) = X(x) + X(1), so

        u(x, t) = u₀(y),   X(y) = X(x) − t.

    The equation for y is solved by Newton's method in a bracket, on the exact Fourier series of X. The map is linear in u₀
    and nonlinear in b, hyperbolic, and smooth.

    Inputs have two channels: the slowness b and the state u₀. It is the slowness, not the speed, because b is a trigonometric
    polynomial under the distribution, which its nodal values determine exactly; 1/b is not. The distribution is b = 0.1 + 0.9
    (1 + g)² with g a Gaussian random field: positive whatever g is, with twice its modes. u₀ is another, independent, field.
    In a `trajectory` the state is u alone and the slowness a parameter, which follows it in the start: (u₀, b).

    Good values: the default g has a standard deviation of 0.19, so speeds mostly lie between 0.5 and 2; states travel half
    the circle. At time X(1), one round trip, the solution is u₀ again.

    Failure modes: slownesses that you give must be positive between the nodes as well, which is checked at four points per
    node. Newton's method costs grid points times frequencies, and is slow on more than 2,000 points. Gradients are exact to
    second order; the root is treated by the implicit function theorem, not by unrolling.

    Args:
        time: Time t of the output.
        slowness_field: Distribution of g; b has twice its modes.
        random_field: Distribution of initial states, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 31 modes.
        design_dim: Number of coordinates of the design space, assigned alternately to g and u₀.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Evans (2010), Partial Differential Equations, section 3.2 (characteristics).

    Examples:
        >>> from probneural.fields import Field
        >>> problem = VariableSpeedAdvection(time=0.5)
        >>> wave = torch.sin(2 * torch.pi * problem.grid(64).points[:, 0])
        >>> twice_as_slow = Field(torch.stack([torch.full_like(wave, 2.0), wave])[None], problem.grid(64))
        >>> moved = problem.solve(twice_as_slow).values[0, 0]  # by a quarter of the circle
        >>> bool((moved - wave.roll(16)).abs().max() < 1e-14)
        True
    """

    title: ClassVar[str] = "Variable-speed advection, time {problem.time:g}"
    in_channels: ClassVar[int] = 2
    state_first: ClassVar[bool] = False

    time: Positive = 0.5
    _: KW_ONLY
    slowness_field: GaussianRandomField = _SLOWNESS_FIELD

    def __post_init__(self) -> None:
        """Validate the arguments."""
        check_random_field(self.slowness_field, "slowness_field", like=_SLOWNESS_FIELD)
        super().__post_init__()

    @property
    def input_distribution(self) -> IndependentDistributions:
        """The random field g behind the slowness, then that of the initial state."""
        return IndependentDistributions((self.slowness_field, self._field))

    @property
    def minimum_resolution(self) -> tuple[int, ...]:
        """Points that hold both channels: 2 max(K, 2 K_g) + 1."""
        return (2 * max(self._field.modes, 2 * self.slowness_field.modes) + 1,)

    def shifts(self) -> dict[str, Problem]:
        """`"amplitude"`: states twice as large; `"roughness"`: α reduced by a quarter; `"contrast"`: g 1.5 times as large.

        The roughness shift concerns both random fields and leaves their mean variances as they were.
        """
        fields = shifted_fields(self.slowness_field, amplitude=1.5)
        rough = shifted_fields(self._field, amplitude=self.shifted_amplitude)["roughness"]
        return super().shifts() | {
            "roughness": replace(self, random_field=rough, slowness_field=fields["roughness"]),
            "contrast": replace(self, slowness_field=fields["amplitude"]),
        }

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        parts = self.input_distribution.split(coefficients)
        field, state = self.slowness_field.evaluate(parts[0], grid), self._field.evaluate(parts[1], grid)
        return torch.stack([_FLOOR + (1.0 - _FLOOR) * (1.0 + field).square(), state], dim=1)

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        return self._transport(spectral.spectrum(values), grid)

    def _solve_coefficients(self, coefficients: Tensor, grid: Grid) -> Tensor:
        # The coarsest grid already determines both channels exactly, and then the work grows with the output's points only.
        return self._transport(spectral.spectrum(self._inputs(coefficients, self.grid(self.minimum_resolution))), grid)

    def _transport(self, coefficients: Tensor, grid: Grid) -> Tensor:
        slowness, state = coefficients.unbind(1)
        read = spectral.read(slowness, 2 * _CHECKS * slowness.shape[1])
        remedy = "make it positive, and use a grid that resolves it"
        self._check_positive(read, "interpolant of the slowness, the first channel", remedy=remedy)
        delay = spectral.integrate(slowness)  # X without its linear part
        points = grid.axes[0].coordinates.to(slowness.device).expand(len(slowness), -1)
        mean = slowness[:, :1].real
        arrival = mean * points + spectral.evaluate(delay, points) - self.time
        foot = _find_foot(slowness.detach(), delay.detach(), arrival.detach())
        # Newton steps from the root change nothing but carry the derivatives: k steps those up to order 2^k - 1.
        for _ in range(2):
            excess = mean * foot + spectral.evaluate(delay, foot) - arrival
            foot = foot - excess / spectral.evaluate(slowness, foot)
        return spectral.evaluate(state, foot)[:, None]


def _find_foot(slowness: Tensor, delay: Tensor, arrival: Tensor) -> Tensor:
    """Solve X(y) = arrival, `(n, N)`, for each y; X increases, so a bracket always halves or better."""
    mean = slowness[:, :1].real
    reach = 2.0 * delay.abs().sum(-1, keepdim=True)  # |X(y) - mean y| is at most this
    low, high = (arrival - reach) / mean, (arrival + reach) / mean
    foot = arrival / mean
    for _ in range(_MOST_STEPS):
        excess = mean * foot + spectral.evaluate(delay, foot) - arrival
        low, high = torch.where(excess <= 0, foot, low), torch.where(excess >= 0, foot, high)
        proposal = foot - excess / spectral.evaluate(slowness, foot)
        proposal = torch.where((proposal >= low) & (proposal <= high), proposal, 0.5 * (low + high))
        moved = float((proposal - foot).abs().max())
        foot = proposal
        if moved <= 1e-10:  # the next step, which the caller takes, is of the order of the square
            break
    return foot
