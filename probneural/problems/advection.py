"""Advection at constant speed: the plainest hyperbolic problem, from smooth states to ones with jumps."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from probneural.errors import ArgumentError
from probneural.grids import Grid
from probneural.problems.base import Evolution, GaussianInputProblem, Problem
from probneural.problems.input_distributions import InputDistribution, UniformParameters
from probneural.settings import Positive

_AT_A_JUMP = 1e-12
"""Largest distance of a point from a jump that is treated as zero, so that rounding does not select a side."""

_OFF_GRID = 1.0371
"""Factor of the speed shift: no usual grid has the resulting displacement as a multiple of its spacing."""


@dataclass(frozen=True)
class Advection(Evolution, GaussianInputProblem):
    """Initial state to state at time t of ∂u/∂t + c ∂u/∂x = 0, periodic on [0, 1): u(x, t) = u₀(x − ct).

    The distribution of u₀ is one of three:

    * `"smooth"`: a Gaussian random field g.
    * `"sign"`: −1 + 2·1{g ≥ 0}; after de Hoop et al. (2022) with time 0.5, τ = 3 and α = 2, where g is cut at `modes` here.
    * `"square"`: h·1{|x − c| < w/2}, h ~ U[1, 2], w ~ U[0.3, 0.6], c ~ U[0.3, 0.7]; case I of Lu et al. (2022).

    A square is closed on its left and open on its right: at a jump u₀ takes the value to the right of it, and a node closer
    than 1e-12 to a jump counts as on it. The sign of a field that vanishes is +1.

    `sample` evaluates u₀ at x − ct, so jumps sit where they belong on any grid. `solve` knows nodal values only and
    translates their trigonometric interpolant: exact for smooth states, and for any state where ct is a multiple of the
    spacing (a linear regression learns that to rounding: weak evidence for a method); otherwise jumps get Gibbs oscillations,
    some 10 % of their height.

    The map is linear, so its derivative is the map itself, jumps or not; it is the design that a jump depends on without a
    derivative.

    Args:
        speed: c, in lengths per time.
        time: Time t of the output.
        initial: Name of the distribution of u₀.
        random_field: Distribution of g, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 31 modes.
        design_dim: Coordinates of the design space, at most 2K for g, 3 for a square (h, w, c).

    Raises:
        ArgumentError: If an argument is out of range, or a random field is given for a square.

    Reference:
        Lu et al. (2022), A comprehensive and fair comparison of two neural operators, the advection problem. De Hoop, Huang,
        Qian and Stuart (2022), The cost-accuracy trade-off in operator learning with neural networks, the advection problem;
        used again by Batlle et al. (2024), Kernel methods are competitive for operator learning.

    Examples:
        >>> pairs = Advection(time=0.25, initial="sign").sample(3, resolution=64, seed=0)
        >>> torch.equal(pairs.outputs.values, pairs.inputs.values.roll(16, dims=-1))
        True
    """

    title: ClassVar[str] = "Advection, {problem.initial}, speed {problem.speed:g}"
    is_linear: ClassVar[bool] = True

    speed: Positive = 1.0
    _: KW_ONLY
    time: Positive = 0.5
    initial: Literal["smooth", "sign", "square"] = "smooth"
    design_dim: int = 3

    def __post_init__(self) -> None:
        """Check that squares have no random field."""
        if self.initial == "square" and self.random_field is not None:
            raise ArgumentError(
                expected="no random_field for initial states 'square'", got=repr(self.random_field), remedy="drop it"
            )
        super().__post_init__()

    @property
    def input_distribution(self) -> InputDistribution:
        """A Gaussian random field, or height, width and centre of a square."""
        return UniformParameters((1.0, 0.3, 0.3), (2.0, 0.6, 0.7)) if self.initial == "square" else self._field

    def shifts(self) -> dict[str, Problem]:
        """`"speed"`, no multiple of usual spacings; of fields and signs `"roughness"`; of smooth states `"amplitude"`."""
        speed: dict[str, Problem] = {"speed": replace(self, speed=_OFF_GRID * self.speed)}
        if self.initial == "square":
            return speed
        shifts = super().shifts() | speed
        if self.initial == "sign":
            del shifts["amplitude"]  # a sign has none
        return shifts

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        return self._state(coefficients, grid.axes[0].coordinates)[:, None]

    def _solve_coefficients(self, coefficients: Tensor, grid: Grid) -> Tensor:
        return self._state(coefficients, grid.axes[0].coordinates - self.speed * self.time)[:, None]

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        spectrum = torch.fft.rfft(values, norm="forward")
        wavenumbers = torch.arange(spectrum.shape[-1], dtype=torch.float64)
        angle = -2.0 * math.pi * torch.remainder(wavenumbers * (self.speed * self.time), 1.0)
        sines = angle.sin()
        if grid.size % 2 == 0:
            sines[-1] = 0.0  # the Nyquist term is a cosine, and what it becomes has no sine part at the nodes
        factors = torch.complex(angle.cos(), sines)
        return torch.fft.irfft(spectrum * factors.to(spectrum.device), n=grid.size, norm="forward")

    def _state(self, coefficients: Tensor, points: Tensor) -> Tensor:
        """u₀ at coordinates, `(n, len(points))`, in the coefficients' dtype; positions of jumps are compared in double."""
        if self.initial == "square":
            height, width, centre = coefficients.double()[..., None].unbind(1)
            behind_edge = torch.remainder(points.to(coefficients.device) - (centre - 0.5 * width) + _AT_A_JUMP, 1.0)
            return (height * (behind_edge < width)).to(coefficients.dtype)
        field = self._field.evaluate_on_axes(coefficients, [points])
        if self.initial == "smooth":
            return field
        return 2.0 * (field >= -_AT_A_JUMP * math.sqrt(self._field.mean_variance)).to(field) - 1.0
