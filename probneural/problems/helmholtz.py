"""The Helmholtz equation on a square with reflecting boundaries, solved mode by mode."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from probneural.checks import check_flag, check_positive
from probneural.errors import ArgumentError, DataError
from probneural.grids import Grid
from probneural.problems.base import GaussianInputProblem, Problem
from probneural.problems.input_distributions import IndependentDistributions, InputDistribution, UniformParameters
from probneural.problems.random_fields import GaussianRandomField
from probneural.problems.spectral import divide, eigenvalues

_CLOSEST = 1e-9
"""Relative distance of k² to an eigenvalue that is treated as a resonance."""


@dataclass(frozen=True)
class Helmholtz(GaussianInputProblem):
    """Source f to solution u of −Δu − k²u = f on the unit square, with u = 0 on its boundary.

    The product of sin πix and sin πjy is an eigenfunction of −Δ with eigenvalue λ = π²(i² + j²), and its coefficient is
    divided by λ − k². Near a *resonance*, k² = λ, the solution is dominated by that one mode, amplified by 1/|λ − k²|:
    `resonance_distance` is how far k² stays away from the nearest. On a grid, sine transforms are one matrix per axis, exact
    for every source that the grid resolves.

    With `vary_wavenumber` inputs have two channels: f, and k² as a constant, uniform on an interval around the square of
    `wavenumber` that leaves the nearest resonance out. The map is then nonlinear. `solve` and `derivative` use the mean of
    that channel, and refuse inputs in which it is not constant.

    Good values: the default k = 8, k² = 64, lies half-way between the eigenvalues 5π² = 49.3 and 8π² = 79.0, and modes on
    both sides of it respond with opposite signs. The first eigenvalues are 2, 5, 8, 10, 13, 17, 18 and 20 times π².

    Failure modes: the source's values on the boundary are not read; one that does not vanish there is treated as the sine
    interpolant of its interior values. Where k² is a resonance the equation has no unique solution: an error. Near one,
    relative errors of k² are amplified by k²/|λ − k²|.

    Args:
        wavenumber: k, in radians per length; its square must not be a resonance.
        vary_wavenumber: Whether k² is a second channel, drawn uniformly.
        spread: Half-width of that interval as a fraction of the distance to the nearest resonance, between 0 and 1.
        random_field: Distribution of sources, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 15 sine modes per axis.
        design_dim: Coordinates of the design space; with `vary_wavenumber`, the second is the quantile of k².

    Raises:
        ArgumentError: If an argument is out of range, or the wavenumber is resonant.

    Reference:
        Evans (2010), Partial Differential Equations, section 6.5 (eigenvalues) and 6.2.3 (the Fredholm alternative).

    Examples:
        >>> from probneural.fields import Field
        >>> problem = Helmholtz(8.0)
        >>> x, y = problem.grid(33).points.T
        >>> source = torch.sin(math.pi * x) * torch.sin(2 * math.pi * y)
        >>> solution = problem.solve(Field(source.reshape(1, 1, 33, 33), problem.grid(33)))
        >>> math.isclose(solution.values[0, 0, 16, 8].item(), 1 / (5 * math.pi**2 - 64))
        True
    """

    periodic: ClassVar[bool] = False

    wavenumber: float = 8.0
    _: KW_ONLY
    vary_wavenumber: bool = False
    spread: float = 0.7

    def __post_init__(self) -> None:
        """Validate the arguments."""
        check_positive(self.wavenumber, "wavenumber")
        check_positive(self.spread, "spread")
        check_flag(self.vary_wavenumber, "vary_wavenumber")
        if self.spread >= 1.0:
            raise ArgumentError(expected="a spread below 1", got=repr(self.spread), remedy="at 1, k² reaches the resonance")
        if self.resonance_distance <= _CLOSEST * self.wavenumber**2:
            raise ArgumentError(
                expected="a wavenumber whose square is not a resonance, π²(i² + j²)",
                got=repr(self.wavenumber),
                remedy="move it away; see resonance_distance",
            )
        super().__post_init__()

    @property
    def in_channels(self) -> int:  # type: ignore[override]
        """Channels of an input: the source, and k² if that varies."""
        return 2 if self.vary_wavenumber else 1

    @property
    def name(self) -> str:
        """Name with wavenumber."""
        return f"Helmholtz, wavenumber {self.wavenumber:.4g}" + (", varied" if self.vary_wavenumber else "")

    @property
    def resonance_distance(self) -> float:
        """Distance of the square of `wavenumber` to the nearest eigenvalue, per length squared."""
        return abs(self._nearest_resonance - self.wavenumber**2)

    @property
    def _nearest_resonance(self) -> float:
        squares = [count**2 for count in range(1, math.ceil(self.wavenumber / math.pi) + 2)]
        levels = [math.pi**2 * (first + second) for first in squares for second in squares]
        return min(levels, key=lambda level: abs(level - self.wavenumber**2))

    @property
    def input_distribution(self) -> InputDistribution:
        """The Gaussian random field of sources, which vanish on the boundary, and the distribution of k² if that varies."""
        if not self.vary_wavenumber:
            return self._field
        centre, reach = self.wavenumber**2, self.spread * self.resonance_distance
        least = self._field.minimum_resolution
        return IndependentDistributions(
            (self._field, UniformParameters((centre - reach,), (centre + reach,), dimension=2, minimum_resolution=least))
        )

    @property
    def _default_field(self) -> GaussianRandomField:
        return GaussianRandomField(2, 15, boundary="dirichlet")

    def shifts(self) -> dict[str, Problem]:
        """`"amplitude"`: sources twice as large; `"roughness"`: α reduced by a quarter; `"resonance"`: k² moved.

        The roughness shift leaves the mean variance as it was. The last one brings k², or its interval with
        `vary_wavenumber`, eight times closer to the nearest resonance.
        """
        closer = self._nearest_resonance + (self.wavenumber**2 - self._nearest_resonance) / 8.0
        return super().shifts() | {"resonance": replace(self, wavenumber=math.sqrt(closer))}

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        if not self.vary_wavenumber:
            return super()._inputs(coefficients, grid)
        source, squares = coefficients[:, :-1], coefficients[:, -1, None, None]
        return torch.stack([self._field.evaluate(source, grid), squares.expand(-1, *grid.shape)], dim=1)

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        squared = self._read_squared_wavenumber(values)
        gap = eigenvalues(grid).to(values) - squared
        _check_resonance(gap.detach(), squared.detach())
        return divide(values[:, :1], grid, divisor=gap)

    def _read_squared_wavenumber(self, values: Tensor) -> Tensor:
        """k² of each field, `(n, 1, 1, 1)`, or `(1, 1, 1, 1)` if it is fixed."""
        if not self.vary_wavenumber:
            return values.new_full((1, 1, 1, 1), self.wavenumber**2)
        channel = values[:, 1:]
        squared = channel.mean((2, 3), keepdim=True)
        _check_constant(channel.detach(), squared.detach())
        return squared


def _check_constant(channel: Tensor, mean: Tensor) -> None:
    worst = float((channel - mean).abs().max())
    if worst > 1e-6 * max(1.0, float(mean.abs().max())):
        raise DataError(
            expected="a second channel that is k², constant in space",
            got=f"one that departs from its mean by up to {worst:.3g}",
            remedy="the exact solution is for a homogeneous medium; expand one number over the grid",
        )


def _check_resonance(gap: Tensor, squared: Tensor) -> None:
    if bool((gap.abs() <= _CLOSEST * squared.abs()).any()):
        raise DataError(
            expected="a second channel k² that is not a resonance, π²(i² + j²)",
            got="one within rounding of a resonance",
            remedy="there the equation has no unique solution; move k² away",
        )
