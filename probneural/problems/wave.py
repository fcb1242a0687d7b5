"""The wave equation in one to three dimensions, solved mode by mode."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from probneural.grids import Axis, Grid, along_axis
from probneural.problems.base import Dimension, Evolution, GaussianInputProblem
from probneural.problems.input_distributions import IndependentDistributions
from probneural.problems.random_fields import GaussianRandomField
from probneural.problems.spectral import modes
from probneural.settings import Positive


@dataclass(frozen=True)
class Wave(Evolution, GaussianInputProblem):
    """Displacement and velocity at time 0 to both at time t, for ∂²u/∂t² = c² Δu on the unit cube [0, 1]^d.

    Two channels, u and v = ∂u/∂t. Each mode of angular wavenumber κ is an oscillator of frequency ω = c|κ|,

        u(t) = cos(ωt) u₀ + sin(ωt)/ω v₀,   v(t) = −ω sin(ωt) u₀ + cos(ωt) v₀,

    with κ = 2πk on periodic axes and κ = πk between boundaries held at zero. The energy ∫ (v² + c²|∇u|²)/2 is conserved, and
    the map of time −t is the inverse.

    Good values: the default distribution draws u₀ from the problem's Gaussian random field and v₀ from the same field scaled by
    `velocity_scale`. Nothing decays, so errors in phase never fade: the longer the time, the harder. In one dimension all is
    periodic in time, with period 1/c (periodic) or 2/c (boundaries): other times are more telling.

    Failure modes: the map is linear, so a linear regression learns it to rounding from enough pairs. Between boundaries, values
    on the boundary are not read. The velocity amplifies high frequencies of u by ω.

    Args:
        speed: c, in length per time.
        time: Time t of the output.
        dimension: Number of space dimensions d, from 1 to 3.
        boundary: `"periodic"`, or `"dirichlet"` for zero values on the boundary (grids then include both end points).
        velocity_scale: Initial velocities over initial displacements, in 1/time.
        random_field: Distribution of displacements, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 12 modes per axis.
        design_dim: Coordinates of the design space, at most the number of the distribution's coefficients; they are dealt out
            to displacements and velocities in turn.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Evans (2010), Partial Differential Equations, section 2.4 (the equation), 4.1 (separation of variables).

    Examples:
        >>> problem = Wave(1.0, time=1.0, boundary="dirichlet")
        >>> pairs = problem.sample(1, resolution=65, seed=0)  # half a period: everything is reflected
        >>> torch.allclose(pairs.outputs.values, -pairs.inputs.values.flip(-1), atol=1e-5)
        True
    """

    in_channels: ClassVar[int] = 2
    out_channels: ClassVar[int] = 2
    is_linear: ClassVar[bool] = True

    speed: Positive = 1.0
    _: KW_ONLY
    time: Positive = 0.6
    dimension: Dimension = 1
    boundary: Literal["periodic", "dirichlet"] = "periodic"
    velocity_scale: Positive = 5.0

    @property
    def name(self) -> str:
        """Name with dimension and speed, and the boundary if there is one."""
        ends = ", fixed ends" if self.boundary == "dirichlet" else ""
        return f"Wave {self.dimension}-D, speed {self.speed:g}{ends}"

    @property
    def input_distribution(self) -> IndependentDistributions:
        """The Gaussian random fields of displacements and of velocities, independent of each other."""
        return IndependentDistributions((self._field, self._field.amplified(self.velocity_scale)))

    @property
    def _default_field(self) -> GaussianRandomField:  # type: ignore[override]
        return GaussianRandomField(self.dimension, 12, boundary=self.boundary)

    @property
    def periodic(self) -> bool:  # type: ignore[override]
        """Whether the boundary is periodic; otherwise grids include both end points."""
        return self.boundary == "periodic"

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        coefficients, frequencies = self._analyse(values, grid)
        phase = frequencies * self.time
        displacement, velocity = coefficients[:, 0], coefficients[:, 1]
        # sin(ωt)/ω is t at ω = 0: a mean velocity moves the mean.
        lift = self.time * torch.sinc(phase / math.pi)
        moved = torch.stack(
            [phase.cos() * displacement + lift * velocity, phase.cos() * velocity - frequencies * phase.sin() * displacement],
            dim=1,
        )
        return self._synthesise(moved, grid)

    def _analyse(self, values: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        """Orthonormal coefficients of the modes, and the modes' angular frequencies ω."""
        axes = tuple(range(-grid.dimension, 0))
        squares = torch.zeros((), dtype=torch.float64, device=values.device)
        for axis in grid.axes:
            if self.periodic:
                counts = torch.fft.fftfreq(axis.size, 1.0 / axis.size, dtype=torch.float64, device=values.device)
                angular = 2.0 * math.pi * counts
            else:
                angular = modes(axis)[1].to(values.device)
            squares = squares[..., None] + angular**2
        frequencies = self.speed * squares.sqrt()
        if self.periodic:
            return torch.fft.fftn(values, dim=axes, norm="forward"), frequencies
        for number, axis in enumerate(grid.axes):
            values = along_axis(values, _sines(axis).mT / (axis.size - 1), number - grid.dimension)
        return values, frequencies

    def _synthesise(self, coefficients: Tensor, grid: Grid) -> Tensor:
        """Values at the grid points of coefficients."""
        if self.periodic:
            values: Tensor = torch.fft.ifftn(coefficients, dim=tuple(range(-grid.dimension, 0)), norm="forward").real
            return values
        for number, axis in enumerate(grid.axes):
            coefficients = along_axis(coefficients, _sines(axis), number - grid.dimension)
        return coefficients


def _sines(axis: Axis) -> Tensor:
    """The modes √2 sin πkx at the points of an axis with both ends, `(size, size - 2)`."""
    return math.sqrt(2.0) * modes(axis)[0]
