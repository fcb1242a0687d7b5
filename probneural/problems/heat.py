"""The heat equation in one to three dimensions, solved mode by mode."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.grids import Grid, along_axis
from probneural.grids.axes import Axis
from probneural.problems.base import Dimension, Evolution, GaussianInputProblem
from probneural.problems.random_fields import GaussianRandomField
from probneural.problems.spectral import modes
from probneural.settings import Positive


@dataclass(frozen=True)
class Heat(Evolution, GaussianInputProblem):
    """Initial state to state at time t of the heat equation ∂u/∂t = ν Δu on the unit cube [0, 1]^d.

    Modes decouple and the solution operator is a product over the axes: a sine or cosine of angular wavenumber κ is
    multiplied by e^(−νκ²t), with κ = 2πk on a periodic axis and κ = πk between boundaries held at zero. On a grid this is one
    matrix per axis, exact for every input that the grid resolves.

    Good values: ν t = 0.01 damps the first periodic mode by a third and the eighth to nothing. The map is linear, so it is
    a floor for everything else: a linear regression learns it to rounding from enough pairs.

    Failure modes: with `"dirichlet"`, the input's values on the boundary are not read (the solution vanishes there at once);
    an input that does not vanish there is treated as the sine interpolant of its interior values, with Gibbs oscillations.
    The distribution's coefficients grow like (2K)^d: 4,912 in three dimensions at K = 8.

    Args:
        diffusivity: ν, in length squared per time.
        time: Time t of the output.
        dimension: Number of space dimensions d, from 1 to 3.
        boundary: `"periodic"`, or `"dirichlet"` for zero values on the boundary (grids then include both end points).
        random_field: Distribution of initial states, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 8 modes per axis.
        design_dim: Coordinates of the design space, at most the number of the distribution's coefficients.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Evans (2010), Partial Differential Equations, section 2.3 (the equation), 4.1 (separation of variables).

    Examples:
        >>> import math
        >>> from probneural.fields import Field
        >>> problem = Heat(0.1, dimension=1)
        >>> wave = Field(torch.cos(2 * math.pi * problem.grid(32).points.T)[None], problem.grid(32))
        >>> decayed = problem.solve(wave).values.amax().item()
        >>> math.isclose(decayed, math.exp(-0.1 * (2 * math.pi) ** 2))
        True
    """

    title: ClassVar[str] = "Heat {problem.dimension}-D, diffusivity {problem.diffusivity:g}"
    is_linear: ClassVar[bool] = True

    diffusivity: Positive = 0.01
    _: KW_ONLY
    time: Positive = 1.0
    dimension: Dimension = 2
    boundary: Literal["periodic", "dirichlet"] = "periodic"

    @property
    def _default_field(self) -> GaussianRandomField:  # type: ignore[override]
        return GaussianRandomField(self.dimension, 8, boundary=self.boundary)

    @property
    def periodic(self) -> bool:  # type: ignore[override]
        """Whether the boundary is periodic; otherwise grids include both end points."""
        return self.boundary == "periodic"

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        for number, axis in enumerate(grid.axes):
            values = along_axis(values, self._factor(axis), number - grid.dimension)
        return values

    def _factor(self, axis: Axis) -> Float64[Tensor, "size size"]:
        """The matrix that damps each mode along one axis."""
        waves, angular, weights = modes(axis)
        damping = torch.exp(self.diffusivity * (-self.time * angular**2))
        return (waves * (damping * weights)) @ waves.T
