"""Advection at constant speed: the plainest hyperbolic problem, from smooth states to ones with jumps."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from probneural.checks import assign, check_choice, check_flag, check_interval, check_positive
from probneural.errors import ArgumentError, UnsupportedError
from probneural.grids import Grid
from probneural.problems.base import Problem
from probneural.problems.evolution import Evolution
from probneural.problems.gaussian_input import GaussianInputProblem
from probneural.problems.input_distributions import InputDistribution, UniformParameters

_AT_A_JUMP = 1e-12
"""Largest distance of a point from a jump that is treated as zero, so that rounding does not select a side."""

_OFF_GRID = 1.0371
"""Factor of the speed shift: no usual grid has the resulting displacement as a multiple of its spacing."""

_PUBLISHED_WIDTHS = {"square": (0.3, 0.6), "square_and_bump": (0.1, 0.2)}


@dataclass(frozen=True)
class Advection(Evolution, GaussianInputProblem):
    """Initial state to state at time t of ∂u/∂t + c ∂u/∂x = 0, periodic on [0, 1): u(x, t) = u₀(x − ct).

    The distribution of u₀ is one of four:

    * `"smooth"`: a Gaussian random field g.
    * `"sign"`: −1 + 2·1{g ≥ 0}; after de Hoop et al. (2022) with time 0.5, τ = 3 and α = 2, where g is cut at `modes` here.
    * `"square"`: h·1{|x − c| < w/2}, h ~ U[1, 2], w ~ U[0.3, 0.6], c ~ U[0.3, 0.7]; case I of Lu et al. (2022).
    * `"square_and_bump"`: h₁·1{|x − c₁| < w/2} + √max(h₂² − a²(x − c₂)², 0), h₁, h₂ ~ U[0.5, 2], c₁ ~ U[0.2, 0.3],
      w ~ U[0.1, 0.2], c₂ ~ U[0.7, 0.8], a ~ U[5, 10], after their cases II and III; the bump wraps around the circle.

    A square is closed on its left and open on its right: at a jump u₀ takes the value to the right of it, and a node closer
    than 1e-12 to a jump counts as on it. The sign of a field that vanishes is +1.

    `sample` evaluates u₀ at x − ct, so jumps sit where they belong on any grid. `solve` knows nodal values only and
    translates their trigonometric interpolant: exact for smooth states, and for any state where ct is a multiple of the
    spacing (a linear regression learns that to rounding: weak evidence for a method); otherwise jumps get Gibbs oscillations,
    some 10 % of their height.

    With `space_time`, inputs and outputs live on [0, 1) x [0, t]: the input is u₀ at every time, of which `solve` reads the
    values at time 0 only, and the output is u(x, s) for all times s up to t. At c = t = 1 on 40 x 40 points, with `"square"`,
    that is the published setting of Lu et al. (2022), who include the right end point of the circle.

    The map is linear, so its derivative is the map itself, jumps or not; it is the design that a jump depends on without a
    derivative.

    Args:
        speed: c, in lengths per time.
        time: Time t of the output.
        initial: Name of the distribution of u₀.
        space_time: Whether the grid has a second axis, time, from 0 to t.
        widths: Least and largest width of a square, in (0, 1); those above by default.
        random_field: Distribution of g, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 31 modes.
        design_dim: Coordinates of the design space, at most 2K for g, 3 for a square (h, w, c), 6 with a bump
            (h₁, w, c₁, h₂, c₂, a).

    Raises:
        ArgumentError: If an argument is out of range, widths are given without a square, or a random field without g.

    Reference:
        Lu et al. (2022), A comprehensive and fair comparison of two neural operators, the advection problem. De Hoop, Huang,
        Qian and Stuart (2022), The cost-accuracy trade-off in operator learning with neural networks, the advection problem;
        used again by Batlle et al. (2024), Kernel methods are competitive for operator learning.

    Examples:
        >>> pairs = Advection(time=0.25, initial="sign").sample(3, resolution=64, seed=0)
        >>> torch.equal(pairs.outputs.values, pairs.inputs.values.roll(16, dims=-1))
        True
    """

    is_linear: ClassVar[bool] = True

    speed: float = 1.0
    _: KW_ONLY
    time: float = 0.5
    initial: Literal["smooth", "sign", "square", "square_and_bump"] = "smooth"
    space_time: bool = False
    widths: tuple[float, float] | None = None
    design_dim: int = 3

    def __post_init__(self) -> None:
        """Validate the arguments."""
        check_positive(self.speed, "speed")
        check_positive(self.time, "time")
        check_choice(self.initial, ("smooth", "sign", *_PUBLISHED_WIDTHS), "initial")
        check_flag(self.space_time, "space_time")
        unused = "random_field" if self.initial in _PUBLISHED_WIDTHS else "widths"
        if getattr(self, unused) is not None:
            raise ArgumentError(
                expected=f"no {unused} for initial states {self.initial!r}", got=repr(getattr(self, unused)), remedy="drop it"
            )
        if self.widths is not None:
            assign(self, widths=check_interval(self.widths, "widths", below=1.0))
        super().__post_init__()

    @property
    def name(self) -> str:
        """Name with the distribution of the initial states, the speed, and non-default widths."""
        where = ", space-time" if self.space_time else ""
        widths = f", widths {self.widths[0]:g} to {self.widths[1]:g}" if self.widths else ""
        return f"Advection, {self.initial.replace('_', ' ')}{widths}, speed {self.speed:g}{where}"

    @property
    def input_distribution(self) -> InputDistribution:
        """A Gaussian random field, or the parameters of the shapes."""
        if self.initial not in _PUBLISHED_WIDTHS:
            return self._field
        least, largest = self.widths or _PUBLISHED_WIDTHS[self.initial]
        if self.initial == "square":
            return UniformParameters((1.0, least, 0.3), (2.0, largest, 0.7))
        return UniformParameters((0.5, least, 0.2, 0.5, 0.7, 5.0), (2.0, largest, 0.3, 2.0, 0.8, 10.0))

    @property
    def periodic(self) -> bool | tuple[bool, ...]:  # type: ignore[override]
        """True along space, False along time."""
        return (True, False) if self.space_time else True

    @property
    def dimension(self) -> int:
        """1, or 2 with a time axis."""
        return 2 if self.space_time else 1

    @property
    def minimum_resolution(self) -> tuple[int, ...]:
        """Minimum resolution: that of the distribution along space, 3 along time."""
        return (self.input_distribution.minimum_resolution, 3)[: self.dimension]

    def shifts(self) -> dict[str, Problem]:
        """Every distribution has `"speed"`, a displacement that is no multiple of the usual spacings.

        Beside it, smooth states have `"amplitude"` and `"roughness"`, signs have `"roughness"`, and squares are `"narrow"`:
        of widths from 0.05 to 0.1.
        """
        shifts: dict[str, Problem] = {"speed": replace(self, speed=_OFF_GRID * self.speed)}
        if self.initial in _PUBLISHED_WIDTHS:
            return shifts | {"narrow": replace(self, widths=(0.05, 0.1))}
        shifts |= super().shifts()
        if self.initial == "sign":
            del shifts["amplitude"]  # a sign has none
        return shifts

    def _check_evolves(self) -> None:
        if self.space_time:
            raise UnsupportedError(
                expected="an output that is the state at one time",
                got="space_time=True, whose output already has a time axis",
                remedy="drop space_time",
            )

    def _uniform(self, sizes: tuple[int, ...]) -> Grid:
        return Grid.uniform(sizes, lengths=(1.0, self.time)[: self.dimension], periodic=self.periodic)

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        state = self._state(coefficients, grid.axes[0].coordinates)[:, None]
        return state[..., None].repeat(1, 1, 1, grid.shape[1]) if self.space_time else state

    def _solve_coefficients(self, coefficients: Tensor, grid: Grid) -> Tensor:
        feet = grid.axes[0].coordinates[:, None] - self._displacements(grid)
        return self._state(coefficients, feet.flatten()).reshape(-1, 1, *grid.shape)

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        start = values[..., 0] if self.space_time else values
        size = grid.shape[0]
        spectrum = torch.fft.rfft(start, norm="forward")
        wavenumbers = torch.arange(spectrum.shape[-1], dtype=torch.float64)
        angle = -2.0 * math.pi * torch.remainder(wavenumbers[:, None] * self._displacements(grid), 1.0)
        sines = angle.sin()
        if size % 2 == 0:
            sines[-1] = 0.0  # the Nyquist term is a cosine, and what it becomes has no sine part at the nodes
        factors = torch.complex(angle.cos(), sines)
        moved = torch.fft.irfft(spectrum[..., None] * factors.to(spectrum.device), n=size, dim=-2, norm="forward")
        return moved if self.space_time else moved[..., 0]

    def _displacements(self, grid: Grid) -> Tensor:
        """The speed c times the output times."""
        times = grid.axes[1].coordinates if self.space_time else torch.tensor([self.time], dtype=torch.float64)
        return self.speed * times

    def _state(self, coefficients: Tensor, points: Tensor) -> Tensor:
        """u₀ at coordinates, `(n, len(points))`, in the coefficients' dtype; where jumps are is decided in double."""
        if self.initial not in _PUBLISHED_WIDTHS:
            field = self._field.evaluate_on_axes(coefficients, [points])
            if self.initial == "smooth":
                return field
            return 2.0 * (field >= -_AT_A_JUMP * math.sqrt(self._field.mean_variance)).to(field) - 1.0
        places = points.to(coefficients.device)
        height, width, centre, *bump = coefficients.double()[..., None].unbind(1)
        behind_edge = torch.remainder(places - (centre - 0.5 * width) + _AT_A_JUMP, 1.0)
        state = height * (behind_edge < width)
        if bump:
            top, middle, slope = bump
            distance = places - middle
            square = top.square() - (slope * (distance - distance.round())).square()
            inside = square > 0.0
            # The root's derivative is infinite at the ends of the bump; infinity times zero in the backward pass is NaN.
            state = state + torch.where(inside, square, 1.0).sqrt() * inside
        return state.to(coefficients.dtype)
