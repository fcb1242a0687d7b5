"""User-defined evolution equations: your discretisation in space, adaptive integration in time."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from probneural.checks import check_callable, check_count, check_integer, check_text
from probneural.contexts import jvp
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.grids import Grid, check_grid
from probneural.problems.base import Evolution, Problem, shifted_fields
from probneural.problems.input_distributions import (
    IndependentDistributions,
    InputDistribution,
    StateDistribution,
    describe_tensor,
)
from probneural.problems.random_fields import GaussianRandomField
from probneural.problems.time_integration import IntegrationError, TimeIntegrator
from probneural.settings import Positive

_CHUNK_ELEMENTS = 2**20
"""Number of state values per integration (8 MiB, and about 15 times that in stages of a Runge-Kutta step)."""

_DEFAULT_INPUTS = GaussianRandomField(1, 31)
_DEFAULT_INTEGRATOR = TimeIntegrator()
_SEE = "see MethodOfLines for its arguments"


@dataclass(frozen=True)
class MethodOfLines(Evolution):
    """Initial state to state at time t of a user-defined equation, ∂u/∂t = L u + F(t, u), on a grid.

    You define F on any grid; distribution, sampling, derivative and design space are those of every problem. torchdiffeq
    integrates in time with adaptive steps. All quantities are dimensionless.

        >>> def allen_cahn(t, u, grid):
        ...     return 0.01 * spectral_derivative(u, grid, order=2) + u - u**3
        >>> problem = MethodOfLines(allen_cahn, name="Allen-Cahn")

    **Stiff equations.** On N points an explicit method takes steps of order N^−m for a spatial derivative of order m.
    Remedy: a `linear_symbol` for the part L that is diagonal in Fourier space, which is then solved exactly by an integrating
    factor. The equation of Kuramoto and Sivashinsky, for example, is `linear_symbol=lambda k: k**2 - k**4` with
    F = −u ∂u/∂x.

    **Accuracy.** The error in time follows the integrator's tolerances (each step's root-mean-square error of every field
    stays below atol + rtol |u|; errors accumulate). The error in space is that of your F on the grid and is not
    estimated: solve at two resolutions. Unlike in the exact problems, one seed gives the same outputs at two resolutions
    only as far as both resolve the solution. Fields solved together share their steps, so a field's solution depends on the
    other fields within the tolerance.

    **Derivatives.** Autograd differentiates the steps and stores them all (an adjoint equation would need the state backwards
    in time, which diffusion makes ill-posed). With a stiff equation, these steps may be too large for
    perturbations rougher than the state. `derivative` and forward mode integrate the tangent equation to the same
    tolerances; they are linear in the direction within the tolerance. F must be differentiable by PyTorch.

    **Equality.** Two problems are equal if their functions are the same objects. A function defined in a module survives
    pickling; a lambda does not.

    Failure modes: a DataError if the solution diverges, steps vanish, or their number exceeds the integrator's `max_steps`.
    `torch.func` transforms other than `jvp` are not supported.

    Args:
        right_hand_side: F, called as `F(t, u, grid)` with a scalar tensor t and float64 states `(n, c, *grid.shape)` on any
            device, for any n; returns their rate of change in the same shape and on the same device, without changing u.
        input_distribution: Distribution of the initial states: a
            [`GaussianRandomField`][probneural.problems.GaussianRandomField], stretched from the unit cube to the domain; an
            [`IndependentDistributions`][probneural.problems.IndependentDistributions] of one per channel; or any other one in
            a [`StateDistribution`][probneural.problems.StateDistribution].
        time: Time t of the output; the input is the state at time 0.
        name: Name of the problem in tables.
        linear_symbol: The symbol of L, called with one tensor of angular wavenumbers per axis (they broadcast against each
            other, in units of 1/length) and returning the rates λ, real or complex, that multiply e^(ikx); a leading axis of
            length c if channels differ. λ(−k) has to be the conjugate of λ(k). Needs a periodic domain.
        domain: A uniform grid of any size on the domain; by default the periodic unit cube. On non-periodic axes F imposes
            the boundary conditions.
        integrator: Method and tolerances of the time integration.
        design_dim: Number of coordinates of the design space, at most the number of the distribution's coefficients.

    Raises:
        ArgumentError: If an argument is out of range, or two of them contradict each other.

    Reference:
        Schiesser (1991), The Numerical Method of Lines. Explicit pairs: Dormand and Prince (1980), A family of embedded
        Runge-Kutta formulae; implementation: Chen (2018), torchdiffeq. Integrating factor: Lawson (1967), Generalized
        Runge-Kutta processes for stable systems with large Lipschitz constants.

    Examples:
        >>> def decay(t, u, grid):
        ...     return -u
        >>> problem = MethodOfLines(decay)
        >>> pairs = problem.sample(2, resolution=64, seed=0)
        >>> bool((pairs.outputs.values - math.exp(-1) * pairs.inputs.values).abs().max() < 1e-6)
        True
    """

    right_hand_side: Callable[[Tensor, Tensor, Grid], Tensor]
    _: KW_ONLY
    input_distribution: InputDistribution = _DEFAULT_INPUTS
    time: Positive = 1.0
    name: Annotated[str, check_text] = "Method of lines"
    linear_symbol: Callable[..., Tensor] | None = None
    domain: Grid | None = None
    integrator: TimeIntegrator = _DEFAULT_INTEGRATOR
    design_dim: int = 8

    def __post_init__(self) -> None:
        """Validate the arguments."""
        super().__post_init__()
        check_callable(self.right_hand_side, "right_hand_side", remedy=_SEE)
        check_integer(self.design_dim, "design_dim", most=self.input_distribution.size)
        if not isinstance(self.input_distribution, StateDistribution) and not self._fields():
            raise ArgumentError(
                expected="a distribution of Gaussian random fields, one per channel, or a StateDistribution",
                got=repr(self.input_distribution),
                remedy="map coefficients to states by StateDistribution(distribution, function)",
            )
        if self.domain is not None:
            check_grid(self.domain, "domain", uniform=True)
            things = "axes of domain, as the distribution has"
            check_count(self.domain.dimension, self.dimension, things, remedy=_SEE, error=ArgumentError)
        if self.linear_symbol is not None:
            check_callable(self.linear_symbol, "linear_symbol", remedy=_SEE)
            if self.domain is not None and not all(self.domain.periodic):
                raise ArgumentError(
                    expected="a linear_symbol with a periodic domain", got=repr(self.domain), remedy="use right_hand_side alone"
                )

    @property
    def in_channels(self) -> int:  # type: ignore[override]
        """Channels of the initial state."""
        states = self.input_distribution
        return states.channels if isinstance(states, StateDistribution) else len(self._fields())

    @property
    def out_channels(self) -> int:  # type: ignore[override]
        """Channels of the final state, equal to those of the initial state."""
        return self.in_channels

    def shifts(self) -> dict[str, Problem]:
        """Distribution shifts: of the Gaussian random fields, otherwise of the time.

        Returns:
            `"amplitude"`: every channel twice as large, and `"roughness"`: α reduced by a quarter at equal mean variance, if
            the distribution is made of Gaussian random fields; otherwise `"time"`: twice the time.
        """
        fields = self._fields()
        if not fields:
            return {"time": replace(self, time=2.0 * self.time, name=f"{self.name}, time {2.0 * self.time:g}")}
        versions: dict[str, Problem] = {}
        by_kind = [shifted_fields(field, amplitude=2.0) for field in fields]
        for kind in by_kind[0]:
            parts = tuple(shifted[kind] for shifted in by_kind)
            versions[kind] = replace(
                self, input_distribution=parts[0] if self.input_distribution is fields[0] else IndependentDistributions(parts)
            )
        return versions

    def _fields(self) -> tuple[GaussianRandomField, ...]:
        """The distribution's Gaussian random fields; empty if a component is of another kind."""
        parts = (
            self.input_distribution.parts
            if isinstance(self.input_distribution, IndependentDistributions)
            else (self.input_distribution,)
        )
        fields = tuple(part for part in parts if isinstance(part, GaussianRandomField))
        return fields if len(fields) == len(parts) else ()

    @property
    def periodic(self) -> bool | tuple[bool, ...]:  # type: ignore[override]
        """Whether each axis of the domain is periodic."""
        return True if self.domain is None else self.domain.periodic

    def _uniform(self, sizes: tuple[int, ...]) -> Grid:
        return super()._uniform(sizes) if self.domain is None else self.domain.resized(sizes)

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        if isinstance(self.input_distribution, StateDistribution):
            return self.input_distribution.evaluate(coefficients, grid)
        places = [(axis.coordinates - axis.origin) / axis.length for axis in grid.axes]
        parts = coefficients.split([field.size for field in self._fields()], dim=1)
        pairs = zip(self._fields(), parts, strict=True)
        return torch.stack([field.evaluate_on_axes(part, places) for field, part in pairs], dim=1)

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        rows = self._rows(grid)
        # torchdiffeq does not support forward mode; a custom autograd function with a jvp does.
        moves = forward_ad.unpack_dual(values).tangent is not None
        advance = functools.partial(self._advance, grid=grid)
        push = functools.partial(self._push, grid=grid)
        return torch.cat([_Flow.apply(part, advance, push) if moves else advance(part) for part in values.split(rows)])

    def _differentiate(self, values: Tensor, direction: Tensor, grid: Grid) -> Tensor:
        rows = self._rows(grid)
        pairs = zip(values.split(rows), direction.split(rows), strict=True)
        return torch.cat([self._push(start, change, grid) for start, change in pairs])

    def _rows(self, grid: Grid) -> int:
        """Number of fields per integration."""
        return max(1, _CHUNK_ELEMENTS // (self.in_channels * grid.size))

    def _push(self, values: Tensor, direction: Tensor, grid: Grid) -> Tensor:
        """The derivative along a direction, which is scaled to one because the tolerances apply to it too.

        Steps adapt to state and direction: stiff modes of the direction may be absent from the state.
        """
        size = direction.detach().flatten(1).abs().amax(1).reshape(-1, *(1,) * (direction.ndim - 1))
        size = torch.where(size > 0, size, torch.ones_like(size))
        return size * self._advance(values, grid, direction=direction / size)

    def _advance(self, values: Tensor, grid: Grid, *, direction: Tensor | None = None) -> Tensor:
        """The state at the final time, or its derivative along a direction, of fields with common steps."""
        states = values[None] if direction is None else torch.stack([values, direction])
        (end,) = self._path(states, grid, (self.time,))
        return end[-1]

    def _path(self, states: Tensor, grid: Grid, times: Sequence[float]) -> Iterator[Tensor]:
        """States `(1, n, c, *grid)`, or states and directions `(2, n, c, *grid)`, at each of ascending times."""
        symbol = None if self.linear_symbol is None else self._symbol(self.linear_symbol, grid).to(states.device)
        try:
            yield from self.integrator.advance(states, functools.partial(self._rate, grid=grid), times=times, symbol=symbol)
        except IntegrationError as error:
            raise DataError(
                expected=f"a solution of {self.name!r} that exists until time {times[-1]:g}",
                got=f"{self.integrator.method}: {str(error).splitlines()[0]:.200}",
                remedy="check the sign of each term and the size of the inputs; if the equation is stiff give its "
                "linear_symbol, and if it only takes many steps raise max_steps",
            ) from error

    def _solve_coefficients_at(self, coefficients: Tensor, grid: Grid, times: Tensor) -> Iterator[Tensor]:
        paths = [
            (states[0] for states in self._path(part[None], grid, times.tolist()))
            for part in self._inputs(coefficients, grid).split(self._rows(grid))
        ]
        for parts in zip(*paths, strict=True):
            yield torch.cat(parts)

    def _rate(self, time: Tensor, states: Tensor, *, grid: Grid) -> Tensor:
        """F of states `(1, n, c, *grid)`, or F and its derivative of states and directions `(2, n, c, *grid)`."""
        if len(states) == 1:
            return self._checked_rate(time, states[0], grid)[None]
        moved = jvp(lambda state: self._checked_rate(time, state, grid), (states[0],), (states[1],))
        return torch.stack(moved)

    def _checked_rate(self, time: Tensor, state: Tensor, grid: Grid) -> Tensor:
        rate = self.right_hand_side(time, state, grid)
        if not isinstance(rate, Tensor) or rate.shape != state.shape or rate.dtype != state.dtype:
            raise ShapeError(
                expected=f"a float64 rate of change of shape {tuple(state.shape)} from right_hand_side",
                got=describe_tensor(rate),
                remedy="return the shape and dtype of u, channels second",
            )
        return rate

    def _symbol(self, linear_symbol: Callable[..., Tensor], grid: Grid) -> Tensor:
        """λ on the half spectrum of the grid, `(c or 1, *spectrum)`.

        The Nyquist frequency of an even axis is both +N/2 and −N/2; the mean over the two keeps real fields real.
        """
        wavenumbers, signs = [], []
        for number, axis in enumerate(grid.axes):
            shape = [1] * grid.dimension
            shape[number] = -1
            last = number == grid.dimension - 1
            frequencies = torch.fft.rfftfreq if last else torch.fft.fftfreq
            counts = frequencies(axis.size, 1.0 / axis.size, dtype=torch.float64).round()
            wavenumbers.append((2.0 * math.pi / axis.length * counts).reshape(shape))
            nyquist = 2 * counts.abs() == axis.size
            signs.append([torch.ones_like(counts).reshape(shape), torch.where(nyquist, -1.0, 1.0).double().reshape(shape)])
        spectrum = torch.broadcast_shapes(*(along.shape for along in wavenumbers))
        values = []
        for choice in itertools.product(*signs):
            symbol = linear_symbol(*(sign * along for sign, along in zip(choice, wavenumbers, strict=True)))
            leading = tuple(symbol.shape[: -len(spectrum)]) if isinstance(symbol, Tensor) else ()
            fits = leading in ((), (1,), (self.in_channels,)) and _broadcasts(symbol, (*leading, *spectrum))
            if not fits or not bool(torch.isfinite(symbol).all()):
                raise ShapeError(
                    expected=f"finite rates of shape {tuple(spectrum)} from linear_symbol, or with a leading axis of "
                    f"{self.in_channels} channels",
                    got=describe_tensor(symbol),
                    remedy="combine the tensors of wavenumbers that are its arguments",
                )
            values.append(symbol.to(torch.complex128).expand(*(leading or (1,)), *spectrum))
        return torch.stack(values).mean(0)


class _Flow(torch.autograd.Function):
    """The solution operator with its forward derivative, the tangent equation."""

    @staticmethod
    def forward(values: Tensor, advance: Callable[..., Tensor], push: Callable[..., Tensor]) -> Tensor:
        return advance(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Any, Any], output: Tensor) -> None:
        values, _, ctx.push = inputs
        ctx.save_for_forward(values)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        moved: Tensor = _Tangent.apply(*ctx.saved_tensors, tangents[0], ctx.push)
        return moved


class _Tangent(torch.autograd.Function):
    """The derivative along a direction; a separate function, so that torchdiffeq is called outside of `torch.func`."""

    @staticmethod
    def forward(values: Tensor, direction: Tensor, push: Callable[..., Tensor]) -> Tensor:
        return push(values, direction)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass


def _broadcasts(thing: Any, shape: tuple[int, ...]) -> bool:
    """Whether a tensor expands to a shape."""
    sizes = zip(reversed(thing.shape), reversed(shape), strict=False) if isinstance(thing, Tensor) else [(0, 1)]
    return all(size in (1, target) for size, target in sizes)
