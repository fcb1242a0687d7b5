"""Linear waves of a thin layer of fluid on a rotating plane, solved mode by mode."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from probneural.grids import Grid
from probneural.problems.base import Evolution, GaussianInputProblem, Problem
from probneural.problems.input_distributions import IndependentDistributions
from probneural.problems.random_fields import GaussianRandomField
from probneural.settings import Positive


@dataclass(frozen=True)
class ShallowWater(Evolution, GaussianInputProblem):
    """Initial state to state at time t of the linear rotating shallow water equations, periodic on [0, 1)².

    Surface height h (about a mean depth H) and velocities u and v obey

        ∂h/∂t = −H (∂u/∂x + ∂v/∂y),   ∂u/∂t = f v − g ∂h/∂x,   ∂v/∂t = −f u − g ∂h/∂y.

    For each angular wave vector k that is a 3 x 3 system with eigenvalues 0 and ±iω, ω² = f² + gH|k|², so its matrix A
    obeys A³ = −ω²A, and

        exp(At) = I + sin(ωt)/ω A + (1 − cos ωt)/ω² A²,

    which takes six Fourier transforms and is exact at any time. Energy, the mean of (g h² + H(u² + v²))/2, and potential
    vorticity, H(∂v/∂x − ∂u/∂y) − f h at every point, are conserved. Inputs and outputs have three channels: h, u and v, each an
    independent draw of one Gaussian random field.

    Good values: at the defaults waves cross half the box and turn by up to 35 radians; the geostrophic third of every wave
    vector stands still meanwhile, so a model has to tell them apart. The deformation radius √(gH)/f is the length of the box;
    at `rotation` of 10 and more, dispersion is strong.

    Failure modes: the map is linear, and a linear regression learns it from enough pairs (864 coefficients at K = 8). At
    frequencies that the grid does not resolve it is as good as the trigonometric interpolant of the inputs.

    Args:
        time: Time t of the output.
        rotation: f, the Coriolis frequency, in radians per time.
        gravity: g, in length per time squared.
        depth: H, in units of length.
        random_field: Distribution of h, of u and of v, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 8 modes per axis.
        design_dim: Number of coordinates of the design space, assigned alternately to h, u and v.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Vallis (2017), Atmospheric and Oceanic Fluid Dynamics, section 3.8 (Poincaré waves and geostrophic adjustment).

    Examples:
        >>> from probneural.fields import Field
        >>> problem = ShallowWater(2 * math.pi)  # uniform flow turns once in a time 2π/f
        >>> flow = Field(torch.tensor([0.0, 1.0, 0.0])[None, :, None, None].expand(1, 3, 17, 17), problem.grid(17))
        >>> bool((problem.solve(flow).values - flow.values).abs().max() < 1e-6)
        True
    """

    title: ClassVar[str] = "Shallow water, time {problem.time:g}, rotation {problem.rotation:g}"
    _default_field: ClassVar[GaussianRandomField] = GaussianRandomField(2, 8)
    in_channels: ClassVar[int] = 3
    out_channels: ClassVar[int] = 3
    is_linear: ClassVar[bool] = True

    time: Positive = 0.5
    _: KW_ONLY
    rotation: Positive = 1.0
    gravity: Positive = 1.0
    depth: Positive = 1.0
    design_dim: int = 9

    @property
    def input_distribution(self) -> IndependentDistributions:
        """The same periodic Gaussian random field for h, u and v, independently; zero means."""
        return IndependentDistributions((self._field,) * 3)

    def shifts(self) -> dict[str, Problem]:
        """`"amplitude"`: states twice as large; `"roughness"`: α reduced by a quarter; `"rotation"`: 4 f; `"time"`: 2 t.

        The roughness shift leaves the mean variance as it was. The last two change the operator, not the distribution.
        """
        return super().shifts() | {
            "rotation": replace(self, rotation=4.0 * self.rotation),
            "time": replace(self, time=2.0 * self.time),
        }

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        f, g, depth = self.rotation, self.gravity, self.depth
        h, u, v = torch.fft.rfft2(values).unbind(1)
        (kx, x_slope), (ky, y_slope) = _wavenumbers(grid, values.device)
        omega = (f**2 + g * depth * (kx**2 + ky**2)).sqrt()
        first = torch.sin(omega * self.time) / omega
        second = 2.0 * (torch.sin(0.5 * omega * self.time) / omega).square()  # (1 - cos ωt)/ω² without cancellation
        # A² by hand and not as A twice: slopes of a Nyquist wave vanish on the grid, curvatures do not.
        cross = g * depth * x_slope * y_slope
        height = first * -depth * (x_slope * u + y_slope * v) + second * (
            depth * (f * (y_slope * u - x_slope * v)) - g * depth * (kx**2 + ky**2) * h
        )
        along = first * (f * v - g * x_slope * h) + second * (-f * g * y_slope * h - (f**2 + g * depth * kx**2) * u + cross * v)
        across = first * (-f * u - g * y_slope * h) + second * (
            f * g * x_slope * h + cross * u - (f**2 + g * depth * ky**2) * v
        )
        spectrum = torch.stack([h + height, u + along, v + across], dim=1)
        return torch.fft.irfft2(spectrum, s=grid.shape)


def _wavenumbers(grid: Grid, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """For each axis the angular wavenumbers of `rfft2`, and the factors ik of a derivative: 0 for a Nyquist wave."""
    pairs = []
    for number, size in enumerate(grid.shape):
        counts = (torch.fft.rfftfreq if number else torch.fft.fftfreq)(size, 1.0 / size)
        angular = 2.0 * math.pi * counts.double().to(device)
        slope = 1j * torch.where(counts.abs().to(device) * 2 == size, 0.0, angular)
        pairs.append((angular, slope) if number else (angular[:, None], slope[:, None]))
    return pairs
