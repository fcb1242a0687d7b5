"""The Kuramoto-Sivashinsky equation: exponential time stepping from states on its chaotic attractor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_floating, check_integer
from probneural.errors import DataError
from probneural.grids import Grid, resample
from probneural.problems.base import Evolution, Problem
from probneural.problems.input_distributions import InputDistribution
from probneural.problems.random_fields import GaussianRandomField
from probneural.settings import NotNegative, Positive

_CHUNK_ELEMENTS = 2**18
"""Number of state values per chunk of time stepping, which fits into a processor's cache."""


@dataclass(frozen=True)
class KuramotoSivashinsky(Evolution):
    """State at time 0 to state at time t of ∂u/∂t + u ∂u/∂x + ∂²u/∂x² + ν ∂⁴u/∂x⁴ = 0, periodic on [0, L), on its attractor.

    Long waves are unstable (those of angular wavenumber below 1/√ν), short ones are damped, and the nonlinear term carries
    energy from long to short waves: cells of length about 9 merge and split indefinitely. The mean is conserved; that of
    the inputs is 0.

    The equation is chaotic. At the defaults the largest Lyapunov exponent is 0.084 ± 0.002 (8 states followed for 500), so a
    small error grows by a factor of e in a Lyapunov time of 12, six default times. No forecast is good for much longer than
    that times the logarithm of its accuracy; what can be forecast beyond is statistics.

    **Inputs.** Gaussian random fields of unit variance, whose shortest wave is 4.2 √ν long, evolved for `spin_up`; then their
    standard deviation is 1.27 and has forgotten the start's. With `spin_up=0` they are those fields. A draw is stored as nodal
    values on the coarsest grid, which bounds the resolution from below. Designs choose the Gaussian random field: the chaotic
    map from field to state has no useful derivative.

    **Method.** Fourier modes on an internal grid of `points` (or the input's own, where that is finer), products freed of
    aliasing by the two-thirds rule, and `ExponentialRungeKutta` in steps of `step` or a little less. Inputs and outputs live on
    any grid: inputs are their trigonometric interpolants there. With another `step` or `points` a seed is other functions of
    the same distribution, since chaos makes much of rounding; to compare two of them, `solve` from the inputs of one.

    **Accuracy.** One default time at the default step and points: relative error 1e-7 (L2, against 256 points and steps ten
    times shorter). Two solvers that start alike part company like e^(λt): to within 1e-3 they agree for a time of 60 at least.
    Tested against an independent solver.

    Failure modes: below L = 13 √ν or so states are periodic or steady, not chaotic.

    Args:
        length: L; at 22 chaos has few degrees of freedom, and their number grows with L.
        time: Time t of the output.
        viscosity: ν.
        spin_up: Time that Gaussian random fields evolve before they are inputs.
        step: Longest step in time.
        points: Points of the internal grid, by default 3 L/√ν or a few more.
        design_dim: Coordinates of the design space.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Kuramoto (1978), Diffusion-induced chaos in reaction systems; Sivashinsky (1977), Nonlinear analysis of hydrodynamic
        instability in laminar flames; this form and its exponents: Edson, Bunder, Mattner and Roberts (2019), Lyapunov
        exponents of the Kuramoto-Sivashinsky PDE.

    Examples:
        >>> problem = KuramotoSivashinsky(spin_up=0.0)
        >>> pairs = problem.sample(2, resolution=128, seed=0, dtype=torch.float64)
        >>> bool(pairs.outputs.values.mean(-1).abs().max() < 1e-14)
        True
    """

    length: Positive = 64.0
    _: KW_ONLY
    time: Positive = 2.0
    viscosity: Positive = 1.0
    spin_up: NotNegative = 100.0
    step: Positive = 0.025
    points: int | None = None
    design_dim: int = 8

    def __post_init__(self) -> None:
        """Validate the arguments."""
        super().__post_init__()
        if self.points is not None:
            check_integer(self.points, "points", least=self._coarse_points)
        check_integer(self.design_dim, "design_dim", most=self._random_states().size)

    @property
    def lengths(self) -> float:  # type: ignore[override]
        """L."""
        return self.length

    @property
    def name(self) -> str:
        """Name with length, time and viscosity."""
        text = "" if self.viscosity == 1.0 else f", viscosity {self.viscosity:g}"
        return f"Kuramoto-Sivashinsky, length {self.length:g}, time {self.time:g}{text}"

    @property
    def input_distribution(self) -> EvolvedStates:
        """States on the attractor."""
        return EvolvedStates(replace(self, time=1.0, design_dim=1))  # independent of both

    def shifts(self) -> dict[str, Problem]:
        """`"time"`: twice the time; `"start"`: smooth random states, off the attractor."""
        return {"time": self._at(2.0 * self.time), "start": replace(self, spin_up=0.0)}

    @property
    def _size(self) -> float:
        """The length in units of unit viscosity."""
        return self.length / math.sqrt(self.viscosity)

    @property
    def _coarse_points(self) -> int:
        """Number of points of a stored state of the distribution, odd."""
        return 2 * math.ceil(0.73 * self._size) + 1

    def _random_states(self) -> GaussianRandomField:
        """The distribution of smooth random states, in units of the length."""
        field = GaussianRandomField(1, max(4, round(self._size / 4.2)), tau=self._size / 1.3)
        return replace(field, sigma=field.sigma / math.sqrt(field.mean_variance))

    def _nodal(self, coefficients: Float[Tensor, "n d"]) -> Float[Tensor, "n size"]:
        """Values of smooth random states on the coarse grid."""
        points = self._uniform((self._coarse_points,)).axes[0].coordinates / self.length
        return self._random_states().evaluate_on_axes(coefficients, [points])

    @torch.no_grad()
    def _spun_up(self, coefficients: Float64[Tensor, "n size"]) -> Float64[Tensor, "n size"]:
        """Nodal values after the time `spin_up`."""
        if self.spin_up == 0.0:
            return coefficients
        grid, evolved = self._uniform((self._coarse_points,)), []
        for part in self._chunks(coefficients, grid):
            (states,) = self._path(self._inputs(part, grid), grid, (self.spin_up,))
            evolved.append(states[:, 0])
        return torch.cat(evolved)

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        return resample(coefficients[:, None], self._uniform((self._coarse_points,)), grid)

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        (end,) = self._path(values, grid, (self.time,))
        return end

    def _solve_coefficients_at(self, coefficients: Tensor, grid: Grid, times: Tensor) -> Iterator[Tensor]:
        yield from self._path(self._inputs(coefficients, grid), grid, times.tolist())

    def _path(self, values: Tensor, grid: Grid, times: Sequence[float]) -> Iterator[Tensor]:
        """States at ascending times of inputs `(n, 1, *grid)`."""
        resolved = 16 * math.ceil(3.0 * self._size / 16 - 1e-9)  # Fourier transforms of such sizes are fast
        fine = grid.resized(max(self.points or resolved, grid.size))
        paths = [self._advance(part, grid, fine, times) for part in values.split(max(1, _CHUNK_ELEMENTS // fine.size))]
        for parts in zip(*paths, strict=True):
            yield torch.cat(parts)

    def _advance(self, values: Tensor, grid: Grid, fine: Grid, times: Sequence[float]) -> Iterator[Tensor]:
        """States of a chunk of inputs at ascending times, integrated on a fine grid."""
        # Linear part k² − ν k⁴, nonlinear part −(ik/2) (u²)^ without the frequencies |k| ≥ N/3.
        counts = torch.fft.rfftfreq(fine.size, 1.0 / fine.size, dtype=torch.float64).round().to(values.device)
        squares = (2.0 * math.pi / self.length * counts) ** 2
        slopes = 1j * torch.where(2 * counts == fine.size, 0.0, 2.0 * math.pi / self.length * counts)
        symbol = squares - self.viscosity * squares**2

        def rate(spectrum: Tensor) -> Tensor:
            square = torch.fft.rfft(torch.fft.irfft(spectrum, n=fine.size, norm="forward").square(), norm="forward")
            return torch.where(3 * counts < fine.size, -0.5 * slopes * square, 0.0)

        spectrum = torch.fft.rfft(resample(values, grid, fine), norm="forward")
        method, length = None, math.nan
        for begin, end in zip((0.0, *times), times, strict=False):
            # A quotient of rounded times may exceed an integer by rounding, which must not add a step.
            steps = max(1, math.ceil((end - begin) / self.step - 1e-6))
            if method is None or not math.isclose((end - begin) / steps, length, rel_tol=1e-12):
                length = (end - begin) / steps
                method = ExponentialRungeKutta(symbol, length)
            for _ in range(steps):
                spectrum = method.advance(spectrum, rate)
            states = torch.fft.irfft(spectrum, n=fine.size, norm="forward")
            if not bool(torch.isfinite(states.detach()).all()):
                raise DataError(
                    expected=f"a solution of {self.name!r} that steps of {length:.3g} follow until time {end:g}",
                    got="values that are not finite",
                    remedy="lower step, or scale the inputs down",
                )
            yield resample(states, fine, grid)


@dataclass(frozen=True)
class EvolvedStates(InputDistribution):
    """Smooth random states that have evolved for some time, as nodal values on a coarse grid.

    Args:
        problem: The problem, which defines evolution and `spin_up`.
    """

    problem: KuramotoSivashinsky

    @property
    def dimension(self) -> int:
        """One."""
        return 1

    @property
    def minimum_resolution(self) -> int:
        """Points of the coarse grid."""
        return self.problem._coarse_points

    @property
    def size(self) -> int:
        """Number of nodal values on the coarse grid."""
        return self.minimum_resolution

    def quantiles(self, probabilities: Float[Tensor, "n d"]) -> Float[Tensor, "n size"]:
        """Smooth random states with leading coefficients at given quantiles, without evolution; see the base class."""
        return self.problem._nodal(self.problem._random_states().quantiles(probabilities))

    def _coefficients(self, n: int, generator: torch.Generator) -> Float64[Tensor, "n size"]:
        return self.problem._spun_up(self.problem._nodal(self.problem._random_states()._coefficients(n, generator)))


_TERMS = 18
"""Terms of a Taylor series that reach rounding at |z| = 1."""


class ExponentialRungeKutta:
    """The fourth-order method ETDRK4 for dv/dt = λ v + F(v), with λ diagonal and real, and steps of one length.

    The linear part may be stiff: it does not limit the step, and its error does not grow with |λ|. It is differentiable in v,
    in λ and in what F holds.

    Args:
        symbol: The symbol λ, broadcastable to v.
        step: Length of a step h.

    Reference:
        Cox and Matthews (2002), Exponential time differencing for stiff systems, equations 26 to 29. The coefficients are
        written with the functions φ of Hochbruck and Ostermann (2010), Exponential integrators, section 2.1, in place of the
        contour integrals of Kassam and Trefethen (2005).
    """

    def __init__(self, symbol: Tensor, step: float) -> None:
        whole, half = step * symbol, 0.5 * step * symbol
        first, second, third = phi_functions(whole)
        self._whole, self._half = whole.exp(), half.exp()
        self._stage = 0.5 * step * phi_functions(half)[0]
        self._start = step * (first - 3.0 * second + 4.0 * third)
        self._middle = step * (2.0 * second - 4.0 * third)
        self._end = step * (4.0 * third - second)

    def advance(self, state: Tensor, rate: Callable[[Tensor], Tensor]) -> Tensor:
        """The state one step later; `rate` is F, which is evaluated four times."""
        start = rate(state)
        coasting = self._half * state
        middle = coasting + self._stage * start
        first = rate(middle)
        second = rate(coasting + self._stage * first)
        end = rate(self._half * middle + self._stage * (2.0 * second - start))
        return self._whole * state + self._start * start + self._middle * (first + second) + self._end * end


def phi_functions(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """φ₁(z) = (e^z − 1)/z, φ₂(z) = (φ₁ − 1)/z and φ₃(z) = (φ₂ − 1/2)/z of real numbers, to rounding and differentiably.

    Examples:
        >>> [round(float(value), 12) for value in phi_functions(torch.zeros((), dtype=torch.float64))]
        [1.0, 0.5, 0.166666666667]
    """
    is_small = check_floating(z, "z").abs() < 1.0
    small, large = torch.where(is_small, z, 0.0), torch.where(is_small, 1.0, z)  # the unselected branch remains finite
    values = []
    recurrence = torch.expm1(large) / large
    for order in (1, 2, 3):
        series = torch.zeros_like(z)
        for power in reversed(range(_TERMS)):
            series = series * small + 1.0 / math.factorial(power + order)
        values.append(torch.where(is_small, series, recurrence))
        recurrence = (recurrence - 1.0 / math.factorial(order)) / large
    return values[0], values[1], values[2]
