"""Advection: of smooth states and of jumps at constant speed, with diffusion, and at a speed that varies in space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from probneural.checks import check_real
from probneural.errors import ArgumentError
from probneural.grids import Grid, per_axis
from probneural.problems import spectral
from probneural.problems.base import Dimension, Evolution, GaussianInputProblem, Problem, check_random_field, shifted_fields
from probneural.problems.input_distributions import IndependentDistributions, InputDistribution, UniformParameters
from probneural.problems.random_fields import GaussianRandomField
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


_FLOOR = 0.1
"""Least slowness of the distribution, so speeds stay below 10."""

_MOST_STEPS = 80
"""Newton steps with a bisection where Newton leaves its bracket; 54 bisections alone reach rounding."""

_SLOWNESS_FIELD = GaussianRandomField(1, 15, sigma=8.0)

_CHECKS = 4
"""Number of points per nodal value in the check that the interpolated slowness is positive."""


@dataclass(frozen=True)
class VariableSpeedAdvection(Evolution, GaussianInputProblem):
    """Slowness b and initial state u₀ to the state at time t of ∂u/∂t + a(x) ∂u/∂x = 0 with a = 1/b, periodic on [0, 1).

    A characteristic takes the time X(x) = ∫₀ˣ b from 0 to x, and X(x + 1) = X(x) + X(1), so

        u(x, t) = u₀(y),   X(y) = X(x) − t.

    The equation for y is solved by Newton's method in a bracket, on the exact Fourier series of X. The map is linear in u₀
    and nonlinear in b, hyperbolic, and smooth.

    Inputs have two channels: the slowness b and the state u₀. It is the slowness, not the speed, because b is a trigonometric
    polynomial under the distribution, which its nodal values determine exactly; 1/b is not. The distribution is b = 0.1 + 0.9
    (1 + g)² with g a Gaussian random field: positive whatever g is, with twice its modes. u₀ is another, independent, field.
    In a `trajectory` the state is u alone and the slowness a parameter, which follows it in the start: (u₀, b).

    Good values: the default g has a standard deviation of 0.19, so speeds mostly lie between 0.5 and 2; states travel half
    the circle. At time X(1), one round trip, the solution is u₀ again.

    Failure modes: slownesses that you give must be positive between the nodes as well, which is checked at four points per
    node. Newton's method costs grid points times frequencies, and is slow on more than 2,000 points. Gradients are exact to
    second order; the root is treated by the implicit function theorem, not by unrolling.

    Args:
        time: Time t of the output.
        slowness_field: Distribution of g; b has twice its modes.
        random_field: Distribution of initial states, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 31 modes.
        design_dim: Number of coordinates of the design space, assigned alternately to g and u₀.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Evans (2010), Partial Differential Equations, section 3.2 (characteristics).

    Examples:
        >>> from probneural.fields import Field
        >>> problem = VariableSpeedAdvection(time=0.5)
        >>> wave = torch.sin(2 * torch.pi * problem.grid(64).points[:, 0])
        >>> twice_as_slow = Field(torch.stack([torch.full_like(wave, 2.0), wave])[None], problem.grid(64))
        >>> moved = problem.solve(twice_as_slow).values[0, 0]  # by a quarter of the circle
        >>> bool((moved - wave.roll(16)).abs().max() < 1e-14)
        True
    """

    title: ClassVar[str] = "Variable-speed advection, time {problem.time:g}"
    in_channels: ClassVar[int] = 2
    state_first: ClassVar[bool] = False

    time: Positive = 0.5
    _: KW_ONLY
    slowness_field: GaussianRandomField = _SLOWNESS_FIELD

    def __post_init__(self) -> None:
        """Validate the arguments."""
        check_random_field(self.slowness_field, "slowness_field", like=_SLOWNESS_FIELD)
        super().__post_init__()

    @property
    def input_distribution(self) -> IndependentDistributions:
        """The random field g behind the slowness, then that of the initial state."""
        return IndependentDistributions((self.slowness_field, self._field))

    @property
    def minimum_resolution(self) -> tuple[int, ...]:
        """Points that hold both channels: 2 max(K, 2 K_g) + 1."""
        return (2 * max(self._field.modes, 2 * self.slowness_field.modes) + 1,)

    def shifts(self) -> dict[str, Problem]:
        """`"amplitude"`: states twice as large; `"roughness"`: α reduced by a quarter; `"contrast"`: g 1.5 times as large.

        The roughness shift concerns both random fields and leaves their mean variances as they were.
        """
        fields = shifted_fields(self.slowness_field, amplitude=1.5)
        rough = shifted_fields(self._field, amplitude=self.shifted_amplitude)["roughness"]
        return super().shifts() | {
            "roughness": replace(self, random_field=rough, slowness_field=fields["roughness"]),
            "contrast": replace(self, slowness_field=fields["amplitude"]),
        }

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        parts = self.input_distribution.split(coefficients)
        field, state = self.slowness_field.evaluate(parts[0], grid), self._field.evaluate(parts[1], grid)
        return torch.stack([_FLOOR + (1.0 - _FLOOR) * (1.0 + field).square(), state], dim=1)

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        return self._transport(spectral.spectrum(values), grid)

    def _solve_coefficients(self, coefficients: Tensor, grid: Grid) -> Tensor:
        # The coarsest grid already determines both channels exactly, and then the work grows with the output's points only.
        return self._transport(spectral.spectrum(self._inputs(coefficients, self.grid(self.minimum_resolution))), grid)

    def _transport(self, coefficients: Tensor, grid: Grid) -> Tensor:
        slowness, state = coefficients.unbind(1)
        read = spectral.read(slowness, 2 * _CHECKS * slowness.shape[1])
        remedy = "make it positive, and use a grid that resolves it"
        self._check_positive(read, "interpolant of the slowness, the first channel", remedy=remedy)
        delay = spectral.integrate(slowness)  # X without its linear part
        points = grid.axes[0].coordinates.to(slowness.device).expand(len(slowness), -1)
        mean = slowness[:, :1].real
        arrival = mean * points + spectral.evaluate(delay, points) - self.time
        foot = _find_foot(slowness.detach(), delay.detach(), arrival.detach())
        # Newton steps from the root change nothing but carry the derivatives: k steps those up to order 2^k - 1.
        for _ in range(2):
            excess = mean * foot + spectral.evaluate(delay, foot) - arrival
            foot = foot - excess / spectral.evaluate(slowness, foot)
        return spectral.evaluate(state, foot)[:, None]


def _find_foot(slowness: Tensor, delay: Tensor, arrival: Tensor) -> Tensor:
    """Solve X(y) = arrival, `(n, N)`, for each y; X increases, so a bracket always halves or better."""
    mean = slowness[:, :1].real
    reach = 2.0 * delay.abs().sum(-1, keepdim=True)  # |X(y) - mean y| is at most this
    low, high = (arrival - reach) / mean, (arrival + reach) / mean
    foot = arrival / mean
    for _ in range(_MOST_STEPS):
        excess = mean * foot + spectral.evaluate(delay, foot) - arrival
        low, high = torch.where(excess <= 0, foot, low), torch.where(excess >= 0, foot, high)
        proposal = foot - excess / spectral.evaluate(slowness, foot)
        proposal = torch.where((proposal >= low) & (proposal <= high), proposal, 0.5 * (low + high))
        moved = float((proposal - foot).abs().max())
        foot = proposal
        if moved <= 1e-10:  # the next step, which the caller takes, is of the order of the square
            break
    return foot
