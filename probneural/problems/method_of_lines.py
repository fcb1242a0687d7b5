"""Your own evolution equation as a problem: discretised in space by you, integrated in time to a tolerance."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from probneural.checks import check_choice, check_flag, check_integer, check_positive
from probneural.errors import ArgumentError, DataError, GridError, ShapeError, UnsupportedError
from probneural.grids import Grid
from probneural.problems.base import Problem, shifted_laws
from probneural.problems.laws import IndependentLaws, Law
from probneural.problems.random_fields import GaussianRandomField
from probneural.threads import jvp

_CHUNK_ELEMENTS = 2**20
"""Values of the state integrated at once (8 MiB, and some 15 times that in stages of a Runge-Kutta step)."""

_MOST_GROWTH = 300.0
"""Largest exponent of an integrating factor; e^709 would overflow."""

_DEFAULT_LAW = GaussianRandomField(1, 31)

_EXPLICIT = ("dopri5", "dopri8", "bosh3")
_IMPLICIT = ("LSODA", "BDF", "Radau")


@dataclass(frozen=True)
class MethodOfLines(Problem):
    """Initial state to state at time t of an equation of your own, ∂u/∂t = L u + F(t, u), on a grid.

    You say what F is on any grid; the law, the sampling, the derivative and the design space are those of every problem.
    Time is integrated by torchdiffeq with steps that adapt to the tolerances. Everything is dimensionless.

        >>> def allen_cahn(t, u, grid):
        ...     return 0.01 * spectral_derivative(u, grid, order=2) + u - u**3
        >>> problem = MethodOfLines(allen_cahn, name="Allen-Cahn")

    **Stiff equations.** On N points an explicit method takes steps of order N^−m for a spatial derivative of order m. Three
    ways out, best first: a `linear_symbol` for the part L that is diagonal in Fourier space, which is then solved exactly by
    an integrating factor; `method="BDF"`, `"Radau"` or `"LSODA"`, implicit methods of SciPy, which treat the fields one by
    one on the CPU; patience. The equation of Kuramoto and Sivashinsky, for example, is
    `linear_symbol=lambda k: k**2 - k**4` with F = −u ∂u/∂x.

    **Accuracy.** The error in time follows `rtol` and `atol` (each step's root-mean-square error of every field stays below
    atol + rtol |u|; errors accumulate). The error in space is that of your F on the grid, and nothing here estimates it:
    solve at two resolutions. Unlike the exact problems, the same seed is thus the same outputs at two resolutions only as
    far as both resolve the solution. A step is shared by the fields that are solved together, so a field's solution depends
    on its company within the tolerance.

    **Derivatives.** Autograd goes through the steps and keeps them all (an adjoint equation would need the state backwards in
    time, which diffusion makes ill-posed): it is the derivative of the steps taken, and where an explicit method meets a
    stiff equation those need not suit perturbations rougher than the state. `derivative` and forward mode integrate the
    tangent equation, whose error is under control too; they are linear in the direction within the tolerance. F has to be
    differentiable by PyTorch. Implicit methods have forward derivatives only.

    **Equality.** Two problems are equal if their functions are the same objects. A function defined in a module survives
    pickling; a lambda does not.

    Failure modes: a DataError where the solution grows beyond all bounds, where steps vanish, or where there would be more
    than `max_steps`; it names remedies. `torch.func` transforms other than `jvp` are not supported.

    Args:
        right_hand_side: F, called as `F(t, u, grid)` with a scalar tensor t and float64 states `(n, c, *grid.shape)` on any
            device, for any n; returns their rate of change in the same shape and on the same device, without changing u.
        law: Law of the initial states.
        time: t, at which the output is read; the input is the state at time 0.
        name: What tables call the problem.
        channels: Number of channels c.
        initial_state: Maps coefficients `(n, law.size)` and a grid to initial states `(n, c, *grid.shape)`, differentiably. By
            default each channel is a [`GaussianRandomField`][probneural.problems.GaussianRandomField] of its own, stretched
            from the unit cube to the domain: `law` is one, or an
            [`IndependentLaws`][probneural.problems.IndependentLaws] of as many as there are channels.
        linear_symbol: The symbol of L, called with one tensor of angular wavenumbers per axis (they broadcast against each
            other, in units of 1/length) and returning the rates λ, real or complex, that multiply e^(ikx); a leading axis of
            length c if channels differ. λ(−k) has to be the conjugate of λ(k). Needs a periodic domain.
        periodic: Whether the domain is periodic on all axes; otherwise grids include the end points, and F sees to the
            boundary conditions.
        lengths: Extent of the domain on every axis.
        origin: Lower end of the domain on every axis.
        method: Explicit Runge-Kutta pairs of order 5, 8 or 3, or implicit methods of SciPy.
        rtol: Tolerance relative to the state.
        atol: Absolute tolerance, in units of the state.
        max_steps: Largest number of steps, those that are tried again included; implicit methods do not count.
        design_dim: Coordinates of the design space, at most the number of the law's coefficients.

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
    law: Law = _DEFAULT_LAW
    time: float = 1.0
    name: str = "Method of lines"
    channels: int = 1
    initial_state: Callable[[Tensor, Grid], Tensor] | None = None
    linear_symbol: Callable[..., Tensor] | None = None
    periodic: bool = True
    lengths: float = 1.0  # type: ignore[misc]
    origin: float = 0.0  # type: ignore[misc]
    method: Literal["dopri5", "dopri8", "bosh3", "LSODA", "BDF", "Radau"] = "dopri5"
    rtol: float = 1e-8
    atol: float = 1e-10
    max_steps: int = 100_000
    design_dim: int = 8

    def __post_init__(self) -> None:
        """Validate the arguments."""
        for name in ("right_hand_side", "initial_state", "linear_symbol"):
            given = getattr(self, name)
            if not callable(given) and (given is not None or name == "right_hand_side"):
                raise ArgumentError(
                    expected=f"a function as {name}", got=repr(given), remedy="see MethodOfLines for its arguments"
                )
        for name in ("time", "lengths", "rtol", "atol"):
            check_positive(getattr(self, name), name)
        check_integer(self.channels, "channels")
        check_integer(self.max_steps, "max_steps")
        check_integer(self.design_dim, "design_dim", most=self.law.size)
        check_flag(self.periodic, "periodic")
        check_choice(self.method, _EXPLICIT + _IMPLICIT, "method")
        if self.initial_state is None and len(self._fields()) != self.channels:
            raise ArgumentError(
                expected=f"a law of {self.channels} Gaussian random fields, one per channel, or initial_state",
                got=f"{type(self.law).__name__} and no initial_state",
                remedy="say by initial_state how coefficients become states, or use IndependentLaws((field, field, ...))",
            )
        if self.linear_symbol is not None and (not self.periodic or self.method in _IMPLICIT):
            raise ArgumentError(
                expected="a linear_symbol with a periodic domain and an explicit method",
                got=f"periodic={self.periodic}, method={self.method!r}",
                remedy="drop one, or move the linear part into right_hand_side",
            )

    @property
    def in_channels(self) -> int:  # type: ignore[override]
        """Channels of the initial state."""
        return self.channels

    @property
    def out_channels(self) -> int:  # type: ignore[override]
        """Channels of the final state, as many."""
        return self.channels

    def shifts(self) -> dict[str, Problem]:
        """Shifts of Gaussian random fields, or else a longer time.

        Returns:
            `"amplitude"`: every channel twice as large, and `"roughness"`: α reduced by a quarter at equal mean variance, if
            the law is made of Gaussian random fields; otherwise `"time"`: twice the time.
        """
        fields = self._fields()
        if not fields:
            return {"time": replace(self, time=2.0 * self.time, name=f"{self.name}, time {2.0 * self.time:g}")}
        versions: dict[str, Problem] = {}
        each = [shifted_laws(field, amplitude=2.0) for field in fields]
        for kind in each[0]:
            parts = tuple(laws[kind] for laws in each)
            versions[kind] = replace(self, law=parts[0] if self.law is fields[0] else IndependentLaws(parts))
        return versions

    def _fields(self) -> tuple[GaussianRandomField, ...]:
        """The law's Gaussian random fields, or none if it has other parts."""
        parts = self.law.parts if isinstance(self.law, IndependentLaws) else (self.law,)
        fields = tuple(part for part in parts if isinstance(part, GaussianRandomField))
        return fields if len(fields) == len(parts) else ()

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        if self.initial_state is None:
            places = [(axis.coordinates - self.origin) / self.lengths for axis in grid.axes]
            parts = coefficients.split([field.size for field in self._fields()], dim=1)
            pairs = zip(self._fields(), parts, strict=True)
            return torch.stack([field.evaluate_on_axes(part, places) for field, part in pairs], dim=1)
        states = self.initial_state(coefficients, grid)
        expected = (len(coefficients), self.channels, *grid.shape)
        if not isinstance(states, Tensor) or states.shape != expected:
            raise ShapeError(
                expected=f"states of shape {expected} from initial_state",
                got=_describe(states),
                remedy="channels are the second axis",
            )
        return states

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        rows = max(1, _CHUNK_ELEMENTS // (self.channels * grid.size))
        # Forward mode cannot see into torchdiffeq; a function with a derivative of its own can be seen from outside.
        moves = forward_ad.unpack_dual(values).tangent is not None
        return torch.cat([_Flow.apply(part, self, grid) if moves else self._advance(part, grid) for part in values.split(rows)])

    def _differentiate(self, values: Tensor, direction: Tensor, grid: Grid) -> Tensor:
        rows = max(1, _CHUNK_ELEMENTS // (self.channels * grid.size))
        pairs = zip(values.split(rows), direction.split(rows), strict=True)
        return torch.cat([self._push(start, change, grid) for start, change in pairs])

    def _push(self, values: Tensor, direction: Tensor, grid: Grid) -> Tensor:
        """The derivative along a direction, which is scaled to one because the tolerances apply to it too.

        Steps that suit the state alone are not enough: what is stiff in the direction may be absent from the state.
        """
        size = direction.detach().flatten(1).abs().amax(1).reshape(-1, *(1,) * (direction.ndim - 1))
        size = torch.where(size > 0, size, torch.ones_like(size))
        return size * self._advance(values, grid, direction=direction / size)

    def _advance(self, values: Tensor, grid: Grid, *, direction: Tensor | None = None) -> Tensor:
        """The state at the final time, or its derivative along a direction, of fields that share their steps."""
        states = values[None] if direction is None else torch.stack([values, direction])
        rate = functools.partial(self._rate, grid=grid)
        if self.method in _IMPLICIT:
            return self._advance_implicitly(states, rate)[-1]
        odeint = _torchdiffeq()
        if self.linear_symbol is None:
            flow: _Plain | _Rotating = _Plain(rate, rtol=self.rtol, atol=self.atol)
            spans = 1
        else:
            flow = _Rotating(rate, self._symbol(grid).to(values.device), grid.shape, rtol=self.rtol, atol=self.atol)
            spans = max(1, math.ceil(self.time * flow.stiffness / _MOST_GROWTH))
        # Steps are numbers without a gradient: their choice does not belong to the solution.
        with torch.no_grad():
            pace = rate(torch.zeros((), dtype=values.dtype, device=values.device), states[:1]).square().mean().sqrt()
            size = values.square().mean().sqrt()
            step = float(torch.nan_to_num(0.01 * (size + self.atol) / (pace + self.atol), nan=0.0).clamp(1e-9, 1e-2))
        step = min(step * max(1.0, self.time), self.time)
        for span in range(spans):
            ends = torch.tensor([span, span + 1], dtype=values.dtype, device=values.device) * (self.time / spans)
            flow.begin(float(ends[0]))
            options = {"first_step": step, "step_t": ends[1:], "max_num_steps": self.max_steps, "norm": flow.norm}
            try:
                path = odeint(
                    flow,
                    flow.enter(states),
                    ends,
                    rtol=flow.rtol,
                    atol=flow.atol,
                    method=self.method,
                    options=options,
                )
            except AssertionError as error:  # what torchdiffeq says of steps that vanish, states that overflow, and patience
                raise _lost(str(error), self) from error
            states = flow.leave(path[-1], float(ends[1]))
            step = max(flow.longest_step, 1e-3 * step)
        if not bool(torch.isfinite(states).all()):
            raise _lost("values that are not finite at the end", self)
        return states[-1]

    def _advance_implicitly(self, states: Tensor, rate: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """SciPy's methods, one field at a time: a Jacobian of all of them would be mostly zeros."""
        from scipy.integrate import solve_ivp

        if states.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError(
                expected="an explicit method where autograd is on",
                got=f"method={self.method!r}, which SciPy computes out of autograd's sight",
                remedy="use problem.derivative or forward mode, or linear_symbol with dopri5",
            )
        ends = []
        for start in states.detach().split(1, dim=1):

            def slope(time: float, flat: Any, like: Tensor = start) -> Any:
                state = torch.from_numpy(flat).to(like).reshape(like.shape)
                with torch.no_grad():
                    return rate(torch.tensor(time).to(like), state).cpu().flatten().numpy()

            path = solve_ivp(
                slope,
                (0.0, self.time),
                start.cpu().flatten().numpy(),
                method=self.method,
                t_eval=[self.time],
                rtol=max(self.rtol, 3e-14),
                atol=self.atol,
            )
            if not path.success:
                raise _lost(path.message, self)
            ends.append(torch.from_numpy(path.y[:, -1]).to(start).reshape(start.shape))
        return torch.cat(ends, dim=1)

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
                got=_describe(rate),
                remedy="return the shape and dtype of u, channels second",
            )
        return rate

    def _symbol(self, grid: Grid) -> Tensor:
        """λ on the half spectrum of the grid, `(c or 1, *spectrum)`.

        The Nyquist frequency of an even axis is both +N/2 and −N/2; the mean over the two keeps real fields real.
        """
        if self.linear_symbol is None:
            raise AssertionError("only called where there is one")
        wavenumbers, signs = [], []
        for number, axis in enumerate(grid.axes):
            shape = [1] * grid.dimension
            shape[number] = -1
            last = number == grid.dimension - 1
            counts = (torch.fft.rfftfreq if last else torch.fft.fftfreq)(axis.size, 1.0 / axis.size, dtype=torch.float64)
            wavenumbers.append((2.0 * math.pi / axis.length * counts).reshape(shape))
            nyquist = 2 * counts.abs() == axis.size
            signs.append([torch.ones_like(counts).reshape(shape), torch.where(nyquist, -1.0, 1.0).double().reshape(shape)])
        spectrum = torch.broadcast_shapes(*(along.shape for along in wavenumbers))
        values = []
        for choice in itertools.product(*signs):
            symbol = self.linear_symbol(*(sign * along for sign, along in zip(choice, wavenumbers, strict=True)))
            leading = tuple(symbol.shape[: -len(spectrum)]) if isinstance(symbol, Tensor) else ()
            fits = leading in ((), (1,), (self.channels,)) and _broadcasts(symbol, (*leading, *spectrum))
            if not fits or not bool(torch.isfinite(symbol).all()):
                raise ShapeError(
                    expected=f"finite rates of shape {tuple(spectrum)} from linear_symbol, or with a leading axis of "
                    f"{self.channels} channels",
                    got=_describe(symbol),
                    remedy="combine the tensors of wavenumbers that it is given",
                )
            values.append(symbol.to(torch.complex128).expand(*(leading or (1,)), *spectrum))
        return torch.stack(values).mean(0)


class _Plain:
    """The equation as it stands, for torchdiffeq: states are their own coordinates."""

    stiffness = 0.0

    def __init__(self, rate: Callable[[Tensor, Tensor], Tensor], *, rtol: float, atol: float) -> None:
        self._rate, self.rtol, self.atol = rate, rtol, atol
        self.longest_step = 0.0

    def begin(self, time: float) -> None:
        """Start a span of time."""
        self.longest_step = 0.0

    def enter(self, states: Tensor) -> Tensor:
        """Coordinates of the states at the beginning of the span."""
        return states

    def leave(self, coordinates: Tensor, time: float) -> Tensor:
        """States of coordinates at a time."""
        return coordinates

    def norm(self, ratios: Tensor) -> Tensor:
        """The largest root-mean-square of a field, or of its tangent."""
        return ratios.flatten(2).square().mean(2).sqrt().max()

    def callback_accept_step(self, time: Tensor, coordinates: Tensor, step: Tensor) -> None:
        """Note a step."""
        self.longest_step = max(self.longest_step, float(step))

    def __call__(self, time: Tensor, coordinates: Tensor) -> Tensor:
        return self._rate(time, coordinates)


class _Rotating:
    """The equation for ŵ = e^(−λ(t − s)) û, in which the linear part is gone; s is the beginning of the span.

    Its coordinates grow by up to e^(|λ|(t − s)) where û does not, so tolerances are applied to the state they stand for:
    with the ones below, torchdiffeq gives errors themselves to `norm`.
    """

    rtol, atol = 0.0, 1.0

    def __init__(
        self, rate: Callable[[Tensor, Tensor], Tensor], symbol: Tensor, shape: Sequence[int], *, rtol: float, atol: float
    ) -> None:
        self._rate, self._symbol, self._shape = rate, symbol, tuple(shape)
        self._tolerances = (rtol, atol)
        self._axes = tuple(range(-len(self._shape), 0))
        self._start = 0.0
        self._factor = symbol
        self._scale = torch.ones(())
        self.longest_step = 0.0
        self.stiffness = float(symbol.real.abs().max())

    def begin(self, time: float) -> None:
        """Start a span of time."""
        self._start = time
        self.longest_step = 0.0

    def enter(self, states: Tensor) -> Tensor:
        """Coordinates of the states at the beginning of the span."""
        return torch.fft.rfftn(states, dim=self._axes, norm="forward")

    def leave(self, coordinates: Tensor, time: float) -> Tensor:
        """States of coordinates at a time."""
        return self._read(coordinates * torch.exp(self._symbol * (time - self._start)))

    def norm(self, errors: Tensor) -> Tensor:
        """The largest root-mean-square of an error over its tolerance, at the time of the last evaluation."""
        ratios = self._read(errors.detach() * self._factor) / self._scale
        return ratios.flatten(2).square().mean(2).sqrt().max()

    def callback_accept_step(self, time: Tensor, coordinates: Tensor, step: Tensor) -> None:
        """Note a step."""
        self.longest_step = max(self.longest_step, float(step))

    def __call__(self, time: Tensor, coordinates: Tensor) -> Tensor:
        factor = torch.exp(self._symbol * (time - self._start))
        states = self._read(coordinates * factor)
        rtol, atol = self._tolerances
        self._factor, self._scale = factor.detach(), atol + rtol * states.detach().abs()
        return torch.fft.rfftn(self._rate(time, states), dim=self._axes, norm="forward") / factor

    def _read(self, spectrum: Tensor) -> Tensor:
        values: Tensor = torch.fft.irfftn(spectrum, s=self._shape, dim=self._axes, norm="forward")
        return values


class _Flow(torch.autograd.Function):
    """The solution operator with its forward derivative, the tangent equation."""

    @staticmethod
    def forward(values: Tensor, problem: MethodOfLines, grid: Grid) -> Tensor:
        return problem._advance(values, grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, MethodOfLines, Grid], output: Tensor) -> None:
        values, ctx.problem, ctx.grid = inputs
        ctx.save_for_forward(values)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        moved: Tensor = _Tangent.apply(*ctx.saved_tensors, tangents[0], ctx.problem, ctx.grid)
        return moved


class _Tangent(torch.autograd.Function):
    """The derivative along a direction; a function of its own so that torchdiffeq is called outside of `torch.func`."""

    @staticmethod
    def forward(values: Tensor, direction: Tensor, problem: MethodOfLines, grid: Grid) -> Tensor:
        return problem._push(values, direction, grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass


def spectral_derivative(u: Tensor, grid: Grid, *, order: int = 1, axis: int = 0) -> Tensor:
    """Differentiate the trigonometric interpolant of periodic fields along one axis.

    Args:
        u: `(..., *grid.shape)`.
        grid: A uniform grid that is periodic along the axis.
        order: Order of the derivative; 0 is the field itself.
        axis: Number of the grid axis.

    Returns:
        The derivative at the grid points, in units of u per length to the power of `order`.

    Raises:
        GridError: If the axis is not periodic.
        ArgumentError: If the order is negative or there is no such axis.

    Reference:
        Trefethen (2000), Spectral Methods in MATLAB, chapter 3. Between walls, differentiate with
        [`functionals.derivative`][probneural.functionals.derivative], which reads the local interpolant.

    Examples:
        >>> grid = Grid.uniform((8,), lengths=2 * math.pi)
        >>> x = grid.points[:, 0]
        >>> torch.allclose(spectral_derivative(x.sin()[None, None], grid), x.cos())
        True
    """
    check_integer(order, "order", least=0)
    check_integer(axis, "axis", least=0, most=grid.dimension - 1)
    _check_periodic(grid, grid.periodic[axis])
    spacing = grid.axes[axis]
    place = axis - grid.dimension
    counts = torch.arange(spacing.size // 2 + 1, dtype=u.dtype, device=u.device)
    factor = (2j * math.pi / spacing.length * counts) ** order if order else torch.ones_like(counts)
    factor = factor.reshape(-1, *(1,) * (-1 - place))
    # The inverse transform drops an imaginary Nyquist term: the sine of that frequency vanishes at every node.
    values: Tensor = torch.fft.irfft(torch.fft.rfft(u, dim=place) * factor, n=spacing.size, dim=place)
    return values


def dealias(u: Tensor, grid: Grid) -> Tensor:
    """Drop the highest third of the frequencies on every axis, so that products of two fields do not alias onto the rest.

    Args:
        u: `(..., *grid.shape)`.
        grid: A uniform periodic grid.

    Returns:
        The field without frequencies |k| ≥ N/3, in the units of u.

    Raises:
        GridError: If an axis is not periodic.

    Reference:
        Orszag (1971), On the elimination of aliasing in finite-difference schemes by filtering high-wavenumber components.

    Examples:
        >>> grid = Grid.uniform((12,))
        >>> waves = torch.cos(2 * math.pi * torch.tensor([[3.0], [4.0]], dtype=torch.float64) * grid.points[:, 0])
        >>> dealias(waves, grid).abs().amax(-1).round(decimals=6).tolist()
        [1.0, 0.0]
    """
    _check_periodic(grid, all(grid.periodic))
    for number, axis in enumerate(grid.axes):
        place = number - grid.dimension
        counts = torch.arange(axis.size // 2 + 1, device=u.device)
        kept = (3 * counts < axis.size).to(u.dtype).reshape(-1, *(1,) * (-1 - place))
        u = torch.fft.irfft(torch.fft.rfft(u, dim=place) * kept, n=axis.size, dim=place)
    return u


def _check_periodic(grid: Grid, flag: bool) -> None:
    if not flag:
        raise GridError(
            expected="a uniform grid that is periodic where it is differentiated",
            got=repr(grid),
            remedy="between walls use probneural.functionals.derivative",
        )


def _broadcasts(thing: Any, shape: tuple[int, ...]) -> bool:
    """Whether a tensor expands to a shape."""
    sizes = zip(reversed(thing.shape), reversed(shape), strict=False) if isinstance(thing, Tensor) else [(0, 1)]
    return all(size in (1, wanted) for size, wanted in sizes)


def _describe(thing: Any) -> str:
    return f"{tuple(thing.shape)} of {thing.dtype}" if isinstance(thing, Tensor) else str(type(thing))


def _lost(reason: str, problem: MethodOfLines) -> DataError:
    return DataError(
        expected=f"a solution of {problem.name!r} that exists until time {problem.time:g}",
        got=f"{problem.method}: {reason.splitlines()[0]:.200}",
        remedy="check the sign of each term and the size of the inputs; if the equation is stiff give its linear_symbol or use "
        "method='BDF', and if it only takes many steps raise max_steps",
    )


def _torchdiffeq() -> Any:
    try:
        from torchdiffeq import odeint
    except ModuleNotFoundError as error:
        raise ImportError(f"MethodOfLines needs {error.name}: pip install 'probneural[ode]'") from error
    return odeint
