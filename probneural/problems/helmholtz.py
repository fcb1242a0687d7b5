"""The Helmholtz equation on a square with reflecting boundaries, solved mode by mode."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from probneural.errors import ArgumentError
from probneural.grids import Grid
from probneural.problems.base import GaussianInputProblem, Problem
from probneural.problems.random_fields import GaussianRandomField
from probneural.problems.spectral import divide, eigenvalues
from probneural.settings import Positive

_CLOSEST = 1e-9
"""Relative distance of k² to an eigenvalue that is treated as a resonance."""


@dataclass(frozen=True)
class Helmholtz(GaussianInputProblem):
    """Source f to solution u of −Δu − k²u = f on the unit square, with u = 0 on its boundary.

    The product of sin πix and sin πjy is an eigenfunction of −Δ with eigenvalue λ = π²(i² + j²), and its coefficient is
    divided by λ − k². Near a *resonance*, k² = λ, the solution is dominated by that one mode, amplified by 1/|λ − k²|:
    `resonance_distance` is how far k² stays away from the nearest. On a grid, sine transforms are one matrix per axis, exact
    for every source that the grid resolves.

    Good values: the default k = 8, k² = 64, lies half-way between the eigenvalues 5π² = 49.3 and 8π² = 79.0, and modes on
    both sides of it respond with opposite signs. The first eigenvalues are 2, 5, 8, 10, 13, 17, 18 and 20 times π².

    Failure modes: the source's values on the boundary are not read; one that does not vanish there is treated as the sine
    interpolant of its interior values. Where k² is a resonance the equation has no unique solution: an error. Near one,
    relative errors of k² are amplified by k²/|λ − k²|.

    Args:
        wavenumber: k, in radians per length; its square must not be a resonance.
        random_field: Distribution of sources, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 15 sine modes per axis.
        design_dim: Coordinates of the design space.

    Raises:
        ArgumentError: If an argument is out of range, or the wavenumber is resonant.

    Reference:
        Evans (2010), Partial Differential Equations, section 6.5 (eigenvalues) and 6.2.3 (the Fredholm alternative).

    Examples:
        >>> import torch
        >>> from probneural.fields import Field
        >>> problem = Helmholtz(8.0)
        >>> x, y = problem.grid(33).points.T
        >>> source = torch.sin(math.pi * x) * torch.sin(2 * math.pi * y)
        >>> solution = problem.solve(Field(source.reshape(1, 1, 33, 33), problem.grid(33)))
        >>> math.isclose(solution.values[0, 0, 16, 8].item(), 1 / (5 * math.pi**2 - 64))
        True
    """

    title: ClassVar[str] = "Helmholtz, wavenumber {problem.wavenumber:.4g}"
    _default_field: ClassVar[GaussianRandomField] = GaussianRandomField(2, 15, boundary="dirichlet")
    periodic: ClassVar[bool] = False
    is_linear: ClassVar[bool] = True
    wavenumber: Positive = 8.0

    def __post_init__(self) -> None:
        """Validate the arguments."""
        super().__post_init__()
        if self.resonance_distance <= _CLOSEST * self.wavenumber**2:
            raise ArgumentError(
                expected="a wavenumber whose square is not a resonance, π²(i² + j²)",
                got=repr(self.wavenumber),
                remedy="move it away; see resonance_distance",
            )

    @property
    def resonance_distance(self) -> float:
        """Distance of the square of `wavenumber` to the nearest eigenvalue, per length squared."""
        return abs(self._nearest_resonance - self.wavenumber**2)

    @property
    def _nearest_resonance(self) -> float:
        squares = [count**2 for count in range(1, math.ceil(self.wavenumber / math.pi) + 2)]
        levels = [math.pi**2 * (first + second) for first in squares for second in squares]
        return min(levels, key=lambda level: abs(level - self.wavenumber**2))

    def shifts(self) -> dict[str, Problem]:
        """`"amplitude"`: sources twice as large; `"roughness"`: α reduced by a quarter; `"resonance"`: k² moved.

        The roughness shift leaves the mean variance as it was. The last one brings k² eight times closer to the nearest
        resonance.
        """
        closer = self._nearest_resonance + (self.wavenumber**2 - self._nearest_resonance) / 8.0
        return super().shifts() | {"resonance": replace(self, wavenumber=math.sqrt(closer))}

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        gap = eigenvalues(grid).to(values) - self.wavenumber**2
        return divide(values, grid, divisor=gap)
