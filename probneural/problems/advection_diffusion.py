"""Advection and diffusion on the torus in one to three dimensions, solved mode by mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from probneural.checks import check_real
from probneural.grids import Grid, per_axis
from probneural.problems.base import Dimension, Evolution, GaussianInputProblem, Problem
from probneural.problems.random_fields import GaussianRandomField
from probneural.settings import Positive


@dataclass(frozen=True)
class AdvectionDiffusion(Evolution, GaussianInputProblem):
    """Initial state to state at time t of ∂u/∂t + c · ∇u = ν Δu, periodic on the unit cube [0, 1)^d.

    Modes decouple: û(κ, t) = û(κ, 0) e^((−ν|κ|² − i c·κ) t) with angular wavenumbers κ = 2πk. The factor is a product over
    the axes, so this is one real transform per axis, exact for every input that the grid resolves.

    Good values: the Péclet number |c|/ν says how far the state travels before it decays; at 100 and more an operator has to
    get phases right. With c = 0 it is [`Heat`][probneural.problems.Heat], with ν tiny a translation by c t,
    which is a permutation of the grid points where that is a multiple of the spacing: avoid that in a benchmark.

    Failure modes: the map is linear, so a linear regression learns it to rounding from enough pairs. A frequency beyond the
    grid's is not there; at the Nyquist frequency of an even size the sine half of the moved wave is invisible at the nodes.

    Args:
        velocity: c, one number per axis or one for all, in length per time.
        diffusivity: ν, in length squared per time.
        time: Time t of the output.
        dimension: Number of space dimensions d, from 1 to 3.
        random_field: Distribution of initial states, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 31 modes per axis.
        design_dim: Coordinates of the design space, at most the number of the distribution's coefficients.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Evans (2010), Partial Differential Equations, section 4.3.1 (Fourier transform of linear equations).

    Examples:
        >>> from probneural.fields import Field
        >>> problem = AdvectionDiffusion(0.25, diffusivity=1e-9)
        >>> wave = Field(torch.cos(2 * math.pi * problem.grid(64).points.T)[None], problem.grid(64))
        >>> moved = problem.solve(wave).values  # a quarter of a turn
        >>> torch.allclose(moved, torch.sin(2 * math.pi * problem.grid(64).points.T)[None], atol=1e-6)
        True
    """

    is_linear: ClassVar[bool] = True

    velocity: float | tuple[float, ...] = 1.0
    _: KW_ONLY
    diffusivity: Positive = 0.01
    time: Positive = 1.0
    dimension: Dimension = 1

    def __post_init__(self) -> None:
        """Validate the arguments."""
        super().__post_init__()
        per_axis(self.velocity, self.dimension, "velocity", check_real)

    @property
    def name(self) -> str:
        """Name with dimension, velocity and diffusivity."""
        speeds = ", ".join(f"{c:g}" for c in self._velocities())
        speed = speeds if len({*self._velocities()}) > 1 else f"{self._velocities()[0]:g}"
        return f"Advection-diffusion {self.dimension}-D, velocity {speed}, diffusivity {self.diffusivity:g}"

    @property
    def _default_field(self) -> GaussianRandomField:  # type: ignore[override]
        return GaussianRandomField(self.dimension, 31)

    def shifts(self) -> dict[str, Problem]:
        """Other distributions of inputs, and a faster flow.

        Returns:
            `"amplitude"`: initial states twice as large; `"roughness"`: α reduced by a quarter at equal mean variance;
            `"peclet"`: a quarter of the diffusivity, so another operator.
        """
        return super().shifts() | {"peclet": replace(self, diffusivity=self.diffusivity / 4.0)}

    def _velocities(self) -> tuple[float, ...]:
        return tuple(self.velocity) if isinstance(self.velocity, Sequence) else (self.velocity,) * self.dimension

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        for number, (axis, speed) in enumerate(zip(grid.axes, self._velocities(), strict=True)):
            dim = number - grid.dimension
            angular = 2.0 * math.pi * torch.arange(axis.size // 2 + 1, dtype=torch.float64, device=values.device)
            rates = torch.complex(-self.diffusivity * angular**2, -speed * angular)
            factor = torch.exp(self.time * rates).reshape(-1, *(1,) * (-1 - dim))
            # The inverse transform drops the imaginary part at the Nyquist frequency, a sine that vanishes at all nodes.
            values = torch.fft.irfft(torch.fft.rfft(values, dim=dim) * factor, n=axis.size, dim=dim)
        return values
