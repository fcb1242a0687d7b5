"""The heat equation in one to three dimensions, solved mode by mode."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_choice, check_integer, check_positive
from probneural.fields import Field
from probneural.grids import Axis, Grid, along_axis
from probneural.problems._modes import modes
from probneural.problems.base import Problem, shifted_laws
from probneural.problems.random_fields import GaussianRandomField


@dataclass(frozen=True)
class Heat(Problem):
    """Initial state to state at time t of the heat equation ∂u/∂t = ν Δu on the unit cube [0, 1]^d.

    Modes decouple and the solution operator is a product over the axes: a sine or cosine of angular wavenumber κ is
    multiplied by e^(−νκ²t), with κ = 2πk on a periodic axis and κ = πk between walls held at zero. On a grid this is one
    matrix per axis, exact for every input that the grid resolves.

    Good values: ν t = 0.01 damps the first periodic mode by a third and the eighth to nothing. The map is linear, so it is
    a floor for everything else: a linear regression learns it to rounding from enough pairs.

    Failure modes: with `"dirichlet"`, the input's values on the boundary are not read (the solution vanishes there at once);
    an input that does not vanish there is treated as the sine interpolant of its interior values, with Gibbs oscillations.
    The law's coefficients grow like (2K)^d: 4,912 in three dimensions at K = 8.

    Args:
        diffusivity: ν, in length squared per time.
        time: t, at which the output is read.
        dimension: Number of space dimensions d, from 1 to 3.
        boundary: `"periodic"`, or `"dirichlet"` for zero values on the boundary (grids then include both end points).
        modes: Highest wavenumber K per axis of the law of initial states.
        sigma: Amplitude of the law, see [`GaussianRandomField`][probneural.problems.GaussianRandomField].
        tau: Inverse length scale of the law.
        alpha: Smoothness of the law.
        design_dim: Coordinates of the design space, at most the number of the law's coefficients.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Evans (2010), Partial Differential Equations, section 2.3 (the equation), 4.1 (separation of variables).

    Examples:
        >>> import math
        >>> problem = Heat(0.1, dimension=1)
        >>> wave = Field(torch.cos(2 * math.pi * problem.grid(32).points.T)[None], problem.grid(32))
        >>> decayed = problem.solve(wave).values.amax().item()
        >>> math.isclose(decayed, math.exp(-0.1 * (2 * math.pi) ** 2))
        True
    """

    diffusivity: float = 0.01
    _: KW_ONLY
    time: float = 1.0
    dimension: int = 2
    boundary: Literal["periodic", "dirichlet"] = "periodic"
    modes: int = 8
    sigma: float = 25.0
    tau: float = 5.0
    alpha: float = 2.0
    design_dim: int = 8

    def __post_init__(self) -> None:
        """Validate the arguments."""
        check_positive(self.diffusivity, "diffusivity")
        check_positive(self.time, "time")
        check_integer(self.dimension, "dimension", most=3)
        check_choice(self.boundary, ("periodic", "dirichlet"), "boundary")
        check_integer(self.design_dim, "design_dim", most=self.law.size)

    @property
    def name(self) -> str:
        """Name with dimension and diffusivity."""
        return f"Heat {self.dimension}-D, diffusivity {self.diffusivity:g}"

    @property
    def law(self) -> GaussianRandomField:
        """The Gaussian random field of initial states, with the problem's boundary."""
        return GaussianRandomField(
            self.dimension, self.modes, sigma=self.sigma, tau=self.tau, alpha=self.alpha, boundary=self.boundary
        )

    def shifts(self) -> dict[str, Problem]:
        """`"amplitude"`: initial states twice as large; `"roughness"`: α reduced by a quarter at equal mean variance."""
        laws = shifted_laws(self.law, amplitude=2.0)
        return {name: replace(self, sigma=law.sigma, alpha=law.alpha) for name, law in laws.items()}

    def diffusivity_derivative(self, inputs: Field) -> Field:
        """The derivative ∂u/∂ν = t Δu of the solution with respect to the diffusivity.

        Args:
            inputs: Initial states, as in `solve`.

        Returns:
            `(n, 1, *grid)` on the inputs' grid, in their dtype; units of the state per unit of diffusivity.

        Raises:
            GridError: If the grid is not the problem's kind.
            ShapeError: If there is not one channel.
            DataError: If a value is not finite.
        """
        self._check_field(inputs, "inputs")
        values = inputs.values.double()
        terms = [self._apply(values, inputs.grid, differentiated=axis) for axis in range(self.dimension)]
        return Field(torch.stack(terms).sum(0).to(inputs.dtype), inputs.grid)

    @property
    def periodic(self) -> bool:
        """Whether the boundary is periodic; otherwise grids include both end points."""
        return self.boundary == "periodic"

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        return self.law.evaluate(coefficients, grid)[:, None]

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        return self._apply(values, grid)

    def _differentiate(self, values: Tensor, direction: Tensor, grid: Grid) -> Tensor:
        return self._apply(direction, grid)  # linear: the derivative is the map itself, everywhere

    def _apply(self, values: Tensor, grid: Grid, *, differentiated: int | None = None) -> Tensor:
        """Apply one factor per axis, that of one axis differentiated with respect to ν if asked."""
        for number, axis in enumerate(grid.axes):
            matrix = self._factor(axis, differentiated=number == differentiated)
            values = along_axis(values, matrix, number - grid.dimension)
        return values

    def _factor(self, axis: Axis, *, differentiated: bool) -> Float64[Tensor, "size size"]:
        """The matrix that damps each mode along one axis, or its derivative with respect to ν."""
        waves, angular, shares = modes(axis)
        rate = -self.time * angular**2
        damping = torch.exp(self.diffusivity * rate)
        if differentiated:
            damping = rate * damping
        return (waves * (damping * shares)) @ waves.T
