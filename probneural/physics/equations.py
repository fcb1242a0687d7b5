"""Equations: functions of a solution and its inputs that return the residual, which is zero at a solution.

Equations of evolution act on fields on grids of space and time, with an axis named "t": see `FieldTrajectories.space_time`.
Data of an equation, such as sources, are numbers or functions of the inputs such as `Channel(0)`. Your own equation is a
function of the solution and the inputs, two fields, that returns a tensor `(n, k, *grid)`.

On a mesh the residuals of Poisson, Helmholtz and Darcy are those of linear finite elements with lumped masses, divided by the
weights, and zero on the boundary: they vanish at the finite element solution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.checks import check_real
from probneural.errors import GridError
from probneural.fields import Field
from probneural.grids import Grid, per_axis
from probneural.physics.conditions import Channel, Values, evaluate_values
from probneural.physics.derivatives import (
    divergence,
    gradient,
    interior,
    laplacian,
    partial,
    space_axes,
    time_derivative,
    weak_laplacian,
)
from probneural.registry import stored
from probneural.settings import NotNegative, Positive, Settings

__all__ = ["AdvectionDiffusion", "AllenCahn", "Burgers", "Darcy", "Heat", "Helmholtz", "NavierStokes", "Poisson", "Wave"]

__dir__ = __all__.copy

_FIRST = Channel(0)
Equation = Callable[[Field, Field | None], Tensor]
"""Residual `(n, k, *grid)` of a solution `(n, c, *grid)` and its inputs."""


@stored()
@dataclass(frozen=True)
class Burgers(Settings):
    """∂u/∂t + u ∂u/∂x = ν ∂²u/∂x².

    Args:
        viscosity: ν, in length squared per time.

    Raises:
        ArgumentError: If it is not positive.
    """

    viscosity: Positive

    def __call__(self, u: Field, inputs: Field | None = None) -> Float[Tensor, "n c *grid"]:
        """∂u/∂t + u ∂u/∂x − ν ∂²u/∂x²."""
        (axis,) = _space(u, 1)
        steepening = u.values * partial(u, axis).values
        return time_derivative(u).values + steepening - self.viscosity * laplacian(u).values


@stored()
@dataclass(frozen=True)
class Heat(Settings):
    """∂u/∂t = κ Δu + f.

    Args:
        diffusivity: κ, in length squared per time.
        source: f, in the units of u per time.

    Raises:
        ArgumentError: If the diffusivity is not positive.
    """

    diffusivity: Positive
    _: KW_ONLY
    source: Values = 0.0

    def __call__(self, u: Field, inputs: Field | None = None) -> Float[Tensor, "n c *grid"]:
        """∂u/∂t − κ Δu − f."""
        return time_derivative(u).values - self.diffusivity * laplacian(u).values - _data(self.source, u, inputs, "source")


@stored()
@dataclass(frozen=True)
class AdvectionDiffusion(Settings):
    """∂u/∂t + c · ∇u = κ Δu.

    Args:
        velocity: c, one number per axis of space or one for all, in length per time.
        diffusivity: κ, in length squared per time; not negative.

    Raises:
        ArgumentError: If a number is out of range.
    """

    velocity: float | tuple[float, ...]
    _: KW_ONLY
    diffusivity: NotNegative

    def __call__(self, u: Field, inputs: Field | None = None) -> Float[Tensor, "n c *grid"]:
        """∂u/∂t + c · ∇u − κ Δu."""
        axes = _space(u)
        speeds = per_axis(self.velocity, len(axes), "velocity", check_real)
        transport = torch.stack([c * partial(u, axis).values for c, axis in zip(speeds, axes, strict=True)]).sum(0)
        return time_derivative(u).values + transport - self.diffusivity * laplacian(u).values


@stored()
@dataclass(frozen=True)
class Wave(Settings):
    """∂²u/∂t² = c² Δu.

    Args:
        speed: c, in length per time.

    Raises:
        ArgumentError: If it is not positive.
    """

    speed: Positive

    def __call__(self, u: Field, inputs: Field | None = None) -> Float[Tensor, "n c *grid"]:
        """∂²u/∂t² − c² Δu."""
        return time_derivative(u, order=2).values - self.speed**2 * laplacian(u).values


@stored()
@dataclass(frozen=True)
class AllenCahn(Settings):
    """∂u/∂t = κ Δu + u − u³, u dimensionless.

    Args:
        diffusivity: κ, in length squared per time.

    Raises:
        ArgumentError: If it is not positive.
    """

    diffusivity: Positive

    def __call__(self, u: Field, inputs: Field | None = None) -> Float[Tensor, "n c *grid"]:
        """∂u/∂t − κ Δu − u + u³."""
        return time_derivative(u).values - self.diffusivity * laplacian(u).values - u.values + u.values**3


@stored()
@dataclass(frozen=True)
class NavierStokes(Settings):
    """∂ω/∂t + v · ∇ω = ν Δω + f for the vorticity ω on two periodic axes, with v = (∂ψ/∂y, −∂ψ/∂x), −Δψ = ω, of zero mean.

    Args:
        viscosity: ν, in length squared per time.
        forcing: f, in 1/time squared.
        drift: Mean velocity added to v, one number per axis of space or one for both, in length per time.

    Raises:
        ArgumentError: If the viscosity is not positive.
    """

    viscosity: Positive
    _: KW_ONLY
    forcing: Values = 0.0
    drift: float | tuple[float, float] = 0.0

    def __call__(self, u: Field, inputs: Field | None = None) -> Float[Tensor, "n c *grid"]:
        """∂ω/∂t + v · ∇ω − ν Δω − f.

        Raises:
            GridError: If an axis of space is not periodic.
        """
        axes = _space(u, 2)
        drift = per_axis(self.drift, 2, "drift", check_real)
        stream = stream_function(u, axes)
        along_y, along_x = (partial(stream, axis).values for axis in reversed(axes))
        velocity = along_y + drift[0], -along_x + drift[1]
        transport = sum(
            (v * partial(u, axis).values for v, axis in zip(velocity, axes, strict=True)), start=torch.zeros_like(u.values)
        )
        rest = self.viscosity * laplacian(u).values + _data(self.forcing, u, inputs, "forcing")
        return time_derivative(u).values + transport - rest


@stored()
@dataclass(frozen=True)
class Poisson:
    """−Δu = f.

    Args:
        source: f, in the units of u per length squared; by default the first channel of the inputs.
    """

    source: Values = _FIRST

    def __call__(self, u: Field, inputs: Field | None = None) -> Float[Tensor, "n c *grid"]:
        """−Δu − f."""
        return _inside(-laplacian(u).values - _data(self.source, u, inputs, "source"), u.grid)


@stored()
@dataclass(frozen=True)
class Helmholtz(Settings):
    """−Δu − k² u = f.

    Args:
        wavenumber: k, in radians per length.
        source: f, in the units of u per length squared; by default the first channel of the inputs.

    Raises:
        ArgumentError: If the wavenumber is not positive.
    """

    wavenumber: Positive
    _: KW_ONLY
    source: Values = _FIRST

    def __call__(self, u: Field, inputs: Field | None = None) -> Float[Tensor, "n c *grid"]:
        """−Δu − k² u − f."""
        residual = -laplacian(u).values - self.wavenumber**2 * u.values - _data(self.source, u, inputs, "source")
        return _inside(residual, u.grid)


@stored()
@dataclass(frozen=True)
class Darcy:
    """−∇ · (a ∇u) = f.

    Args:
        coefficient: a, positive; by default the first channel of the inputs.
        source: f, in the units of a u per length squared.
    """

    coefficient: Values = _FIRST
    _: KW_ONLY
    source: Values = 1.0

    def __call__(self, u: Field, inputs: Field | None = None) -> Float[Tensor, "n c *grid"]:
        """−∇ · (a ∇u) − f."""
        a = _data(self.coefficient, u, inputs, "coefficient")
        is_mesh = not u.grid.is_uniform
        fluxes = weak_laplacian(u, a) if is_mesh else divergence(Field(a * gradient(u).values, u.grid)).values
        return _inside(-fluxes - _data(self.source, u, inputs, "source"), u.grid)


def stream_function(vorticity: Field, axes: Sequence[int]) -> Field:
    """Solve −Δψ = ω of zero mean by Fourier modes along two periodic axes.

    Raises:
        GridError: If one of them is not periodic.
    """
    grid: Grid = vorticity.grid
    if not all(grid.periodic[axis] for axis in axes):
        raise GridError(expected="periodic axes of space", got=repr(grid), remedy="walls need the velocity as unknown")
    square = torch.zeros(())
    for axis in axes:
        where = grid.axes[axis]
        frequencies = 2.0 * math.pi * torch.fft.fftfreq(where.size, where.length / where.size, dtype=torch.float64)
        square = square + frequencies.reshape(-1, *(1,) * (grid.dimension - axis - 1)) ** 2
    inverse = torch.where(square > 0, 1.0 / square, 0.0).to(vorticity.values)
    dims = [2 + axis for axis in axes]
    return Field(torch.fft.ifftn(torch.fft.fftn(vorticity.values, dim=dims) * inverse, dim=dims).real, grid)


def _inside(residual: Tensor, grid: Grid) -> Tensor:
    """The residual, zero on the boundary of a mesh."""
    return residual if grid.is_uniform else residual * interior(grid).to(residual)


def _data(values: Values, u: Field, inputs: Field | None, name: str) -> Tensor:
    return evaluate_values(values, inputs, u.grid, u.values, name=name)


def _space(u: Field, count: int | None = None) -> tuple[int, ...]:
    """The axes of space of a uniform grid, of a stated number."""
    axes = space_axes(u.grid)
    if not u.grid.is_uniform or (count is not None and len(axes) != count):
        raise GridError(
            expected=f"a uniform grid of time and {count or 'some'} axes of space",
            got=repr(u.grid),
            remedy='make pairs by trajectories.space_time(); the axis of time is named "t"',
        )
    return axes
