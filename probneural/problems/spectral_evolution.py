"""Chaotic and pattern-forming equations on the torus: solved by exponential time stepping, started on their attractor."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import assign, check_floating, check_integer, check_interval, check_positive, check_real
from probneural.errors import DataError
from probneural.grids import Grid, resample
from probneural.problems.base import Problem
from probneural.problems.evolution import Evolution
from probneural.problems.input_distributions import IndependentDistributions, InputDistribution, UniformParameters
from probneural.problems.spectral import PeriodicTransform

_CHUNK_ELEMENTS = 2**18
"""Values of the state that are advanced at once: few enough for a processor's cache."""

_ROUNDING = 1e-5
"""Relative variation over space of a parameter's channel that is forgiven: rounding of float32 values."""

_TERMS = 18
"""Terms of a Taylor series that reach rounding at |z| = 1."""

Parameter = float | tuple[float, float]
"""A number, or an interval from which every function has its own, as a further channel of the input."""


@dataclass(frozen=True, kw_only=True)
class SpectralEvolution(Evolution):
    """∂u/∂t = L u + F(u) on a periodic box with L diagonal in Fourier space, from states that have been evolved; abstract.

    Space is discretised by Fourier modes on an internal grid of `points` per axis (or the input's own, where that is finer),
    with products freed of aliasing by the two-thirds rule; time by
    `ExponentialRungeKutta` in steps of `step` or a little less. Inputs and outputs
    live on any grid: inputs are their trigonometric interpolants there. A seed is the same functions on every grid, and the
    same outputs as long as the grid is no finer than the internal one.

    Inputs are states on the attractor: smooth random states that have evolved for `spin_up`. A draw is stored as nodal
    values on the coarsest grid, which bounds the resolution from below. Designs, by contrast, choose the smooth random state
    itself: through chaos there is no derivative worth having. With another `step` or `points` a seed is other functions of the
    same distribution, since chaos makes much of rounding; to compare two of them, `solve` from the inputs of one.

    A parameter that is given as an interval is drawn anew for every function, uniformly, and is a further channel of the input,
    constant in space, behind the state's; a trajectory keeps it.

    Args:
        time: t, at which the output is read.
        spin_up: Time that smooth random states evolve before they are inputs; 0 for those states themselves.
        step: Longest step in time.
        points: Points per axis of the internal grid; by default what resolves the attractor.
        design_dim: Coordinates of the design space.
    """

    time: float = 1.0
    spin_up: float = 0.0
    step: float = 0.1
    points: int | None = None
    design_dim: int = 8

    def __post_init__(self) -> None:
        """Validate the arguments."""
        for name in ("time", "step"):
            check_positive(getattr(self, name), name)
        check_real(self.spin_up, "spin_up", least=0.0)
        for name, value in self._parameters().items():
            is_number = not isinstance(value, Sequence)
            assign(self, **{name: check_positive(value, name) if is_number else check_interval(value, name)})
        if self.points is not None:
            check_integer(self.points, "points", least=self._coarse_points())
        check_integer(self.design_dim, "design_dim", most=self._starts().size)

    @abstractmethod
    def _parameters(self) -> dict[str, Parameter]:
        """The parameters of the equation by the names of the fields, in the order of their channels."""

    @abstractmethod
    def _coarse_points(self) -> int:
        """Points per axis on which a state of the distribution is stored: an odd number."""

    @abstractmethod
    def _fine_points(self) -> int:
        """Points per axis that resolve the attractor."""

    @abstractmethod
    def _random_states(self) -> InputDistribution:
        """The distribution of the coefficients of smooth random states."""

    @abstractmethod
    def _start(self, coefficients: Tensor, grid: Grid) -> Tensor:
        """Smooth random states `(n, out_channels, *grid)` of coefficients."""

    @abstractmethod
    def _symbol(self, transform: PeriodicTransform, parameters: Sequence[Tensor]) -> Tensor:
        """λ, `(n or 1, out_channels or 1, *spectrum)`, of parameters that broadcast against it."""

    @abstractmethod
    def _rate(self, spectrum: Tensor, *, transform: PeriodicTransform, parameters: Sequence[Tensor]) -> Tensor:
        """F of coefficients `(n, out_channels, *spectrum)`, in coefficients."""

    @property
    def in_channels(self) -> int:  # type: ignore[override]
        """Channels of the state, and one for each parameter that is drawn."""
        return self.out_channels + len(self._intervals())

    @property
    def input_distribution(self) -> EvolvedStates:
        """States on the attractor, and parameters."""
        return EvolvedStates(replace(self, time=1.0, design_dim=1))  # on neither of which it depends

    @property
    def periodic(self) -> bool:  # type: ignore[override]
        """True."""
        return True

    @property
    def dimension(self) -> int:
        """Number of axes."""
        return self._random_states().dimension

    @property
    def minimum_resolution(self) -> tuple[int, ...]:
        """Points per axis of the coarse grid."""
        return (self._coarse_points(),) * self.dimension

    def shifts(self) -> dict[str, Problem]:
        """`"time"`: twice the time; `"start"`: smooth random states, off the attractor."""
        return {"time": self._at(2.0 * self.time), "start": replace(self, spin_up=0.0)}

    def _intervals(self) -> list[tuple[float, float]]:
        return [value for value in self._parameters().values() if isinstance(value, tuple)]

    def _starts(self) -> InputDistribution:
        """Coefficients of smooth random states, then parameters."""
        states, intervals = self._random_states(), self._intervals()
        if not intervals:
            return states
        lower, upper = zip(*intervals, strict=True)
        return IndependentDistributions((states, UniformParameters(lower, upper, dimension=states.dimension)))

    def _coarse_grid(self) -> Grid:
        return self._uniform(self.minimum_resolution)

    def _nodal(self, coefficients: Tensor) -> Tensor:
        """Values of smooth random states on the coarse grid, and the parameters."""
        count = self._random_states().size
        states = self._start(coefficients[:, :count], self._coarse_grid())
        return torch.cat([states.flatten(1), coefficients[:, count:]], dim=1)

    @torch.no_grad()
    def _spun_up(self, starts: Tensor) -> Tensor:
        """Nodal values on the coarse grid after the time `spin_up`, and the parameters."""
        coefficients, grid = self._nodal(starts), self._coarse_grid()
        if self.spin_up == 0.0:
            return coefficients
        evolved = []
        for part in self._chunks(coefficients, grid):
            (states,) = self._path(self._inputs(part, grid), grid, (self.spin_up,))
            evolved.append(torch.cat([states.flatten(1), part[:, states[0].numel() :]], dim=1))
        return torch.cat(evolved)

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        count = coefficients.shape[1] - len(self._intervals())
        coarse = self._coarse_grid()
        states = resample(coefficients[:, :count].unflatten(1, (self.out_channels, *coarse.shape)), coarse, grid)
        numbers = coefficients[(..., *(None,) * grid.dimension)][:, count:]
        return torch.cat([states, numbers.expand(-1, -1, *grid.shape)], dim=1)

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        (end,) = self._path(values, grid, (self.time,))
        return end

    def _solve_coefficients_at(self, coefficients: Tensor, grid: Grid, times: Tensor) -> Iterator[Tensor]:
        yield from self._path(self._inputs(coefficients, grid), grid, times.tolist())

    def _path(self, values: Tensor, grid: Grid, times: Sequence[float]) -> Iterator[Tensor]:
        """States at ascending times of inputs `(n, in_channels, *grid)`."""
        fine = grid.resized(tuple(max(self.points or self._fine_points(), size) for size in grid.shape))
        rows = max(1, _CHUNK_ELEMENTS // (self.out_channels * fine.size))
        paths = [self._advance(part, grid, fine, times) for part in values.split(rows)]
        for parts in zip(*paths, strict=True):
            yield torch.cat(parts)

    def _advance(self, values: Tensor, grid: Grid, fine: Grid, times: Sequence[float]) -> Iterator[Tensor]:
        """States at ascending times of few inputs, which are advanced on a fine grid."""
        transform = PeriodicTransform(fine, values.device)
        parameters = self._numbers(values[:, self.out_channels :])
        symbol = self._symbol(transform, parameters)
        rate: Callable[[Tensor], Tensor] = partial(self._rate, transform=transform, parameters=parameters)
        spectrum = transform.forward(resample(values[:, : self.out_channels], grid, fine))
        method, length = None, math.nan
        for begin, end in zip((0.0, *times), times, strict=False):
            # A quotient of rounded times may exceed a whole number by rounding, which is no reason for another step.
            steps = max(1, math.ceil((end - begin) / self.step - 1e-6))
            if method is None or not math.isclose((end - begin) / steps, length, rel_tol=1e-12):
                length = (end - begin) / steps
                method = ExponentialRungeKutta(symbol, length)
            for _ in range(steps):
                spectrum = method.advance(spectrum, rate)
            states = transform.inverse(spectrum)
            if not bool(torch.isfinite(states.detach()).all()):
                raise DataError(
                    expected=f"a solution of {self.name!r} that steps of {length:.3g} follow until time {end:g}",
                    got="values that are not finite",
                    remedy="lower step, or scale the inputs down",
                )
            yield resample(states, fine, grid)

    def _numbers(self, channels: Tensor) -> list[Tensor]:
        """All parameters in order, `(n or 1, 1, 1, ...)`, from the channels of an input."""
        means = channels.flatten(2).mean(2).reshape(*channels.shape[:2], *(1,) * (channels.ndim - 2))
        off = (channels - means).detach().abs().amax() if channels.numel() else torch.zeros(())
        if channels.numel() and not bool(((channels - means).detach().abs() <= _ROUNDING * means.detach().abs()).all()):
            raise DataError(
                expected="parameters that are constant in space",
                got=f"a channel that varies by {float(off):.3g}",
                remedy="give each function one number per parameter, as channels behind the state",
            )
        if not bool((means.detach() > 0).all()):
            raise DataError(
                expected="positive parameters",
                got=f"{float(means.detach().min()):.3g}",
                remedy="they follow the state's channels",
            )
        parameter_means = iter(means.split(1, dim=1))
        fixed = (1,) * means.ndim
        return [
            next(parameter_means) if isinstance(value, tuple) else means.new_full(fixed, value)
            for value in self._parameters().values()
        ]


@dataclass(frozen=True)
class EvolvedStates(InputDistribution):
    """Smooth random states that have evolved for some time, as nodal values on a coarse grid, with the equation's parameters.

    Args:
        problem: What they evolve by, for its `spin_up`.
    """

    problem: SpectralEvolution

    @property
    def dimension(self) -> int:
        """Number of axes."""
        return self.problem.dimension

    @property
    def minimum_resolution(self) -> int:
        """Points per axis of the coarse grid."""
        return self.problem.minimum_resolution[0]

    @property
    def size(self) -> int:
        """Number of nodal values on the coarse grid, and of parameters."""
        channels = self.problem.out_channels
        return channels * self.minimum_resolution**self.dimension + self.problem.in_channels - channels

    def quantiles(self, probabilities: Float[Tensor, "n d"]) -> Float[Tensor, "n size"]:
        """Smooth random states of which the leading coefficients lie at given quantiles, without evolution; see the base class.

        Quantiles are dealt to states and parameters in turn.
        """
        return self.problem._nodal(self.problem._starts().quantiles(probabilities))

    def _coefficients(self, n: int, generator: torch.Generator) -> Float64[Tensor, "n size"]:
        return self.problem._spun_up(self.problem._starts()._coefficients(n, generator))


class ExponentialRungeKutta:
    """The fourth-order method ETDRK4 for dv/dt = λ v + F(v), with λ diagonal and real, and steps of one length.

    The linear part may be stiff: it does not limit the step, and its error does not grow with |λ|. It is differentiable in v,
    in λ and in what F holds.

    Args:
        symbol: λ, which broadcasts against v.
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
    small, large = torch.where(is_small, z, 0.0), torch.where(is_small, 1.0, z)  # what is not chosen stays finite
    values = []
    recurrence = torch.expm1(large) / large
    for order in (1, 2, 3):
        series = torch.zeros_like(z)
        for power in reversed(range(_TERMS)):
            series = series * small + 1.0 / math.factorial(power + order)
        values.append(torch.where(is_small, series, recurrence))
        recurrence = (recurrence - 1.0 / math.factorial(order)) / large
    return values[0], values[1], values[2]
