"""Ordinary differential equations in time, by the adaptive explicit steps of torchdiffeq."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from probneural.checks import optional
from probneural.settings import Count, Positive, Settings

_MOST_GROWTH = 300.0
"""Largest exponent of an integrating factor; e^709 would overflow."""

Rate = Callable[[Tensor, Tensor], Tensor]
"""Maps a time and states `(k, n, c, *grid)` to their rates of change."""


class IntegrationError(Exception):
    """Time integration failed: the solution does not exist up to the final time, or needs too many steps."""


@dataclass(frozen=True, kw_only=True)
class TimeIntegrator(Settings):
    """Time integrator of [`MethodOfLines`][probneural.problems.MethodOfLines].

    Args:
        method: Explicit Runge-Kutta pair of order 5, 8 or 3.
        rtol: Tolerance relative to the state.
        atol: Absolute tolerance, in units of the state.
        max_steps: Largest number of steps to an output, those that are tried again included.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    method: Literal["dopri5", "dopri8", "bosh3"] = "dopri5"
    rtol: Positive = 1e-8
    atol: Positive = 1e-10
    max_steps: Count = 100_000

    def advance(self, states: Tensor, rate: Rate, *, times: Sequence[float], symbol: Tensor | None) -> Iterator[Tensor]:
        """Integrate from time 0.

        Args:
            states: `(k, n, c, *grid)`: states, or states and their tangents; they share their steps.
            rate: Rate of change of the states.
            times: When to yield the states, positive and ascending; a step ends at each.
            symbol: Rates of a further linear part, `(c or 1, *spectrum)` on the half spectrum of the grid, or None.

        Yields:
            The states at each of the times.

        Raises:
            IntegrationError: If the solution does not exist up to the final time, or needs too many steps.
        """
        flow = _Plain(rate, rtol=self.rtol, atol=self.atol)
        if symbol is not None:
            flow = _Rotating(rate, symbol, states.shape[3:], rtol=self.rtol, atol=self.atol)
        # Step sizes carry no gradient: they are not part of the solution.
        with torch.no_grad():
            pace = rate(states.new_zeros(()), states[:1]).square().mean().sqrt()
            size = states[0].square().mean().sqrt()
            step = float(torch.nan_to_num(0.01 * (size + self.atol) / (pace + self.atol), nan=0.0).clamp(1e-9, 1e-2))
        step = min(step * max(1.0, times[0]), times[0])
        for begin, end in zip((0.0, *times), times, strict=False):
            states, step = self._advance_to(states, flow, begin=begin, end=end, step=step)
            if not bool(torch.isfinite(states).all()):
                raise IntegrationError(f"values that are not finite at time {end:g}")
            yield states

    def _advance_to(self, states: Tensor, flow: _Plain, *, begin: float, end: float, step: float) -> tuple[Tensor, float]:
        """Torchdiffeq's methods, from one time to another; returns the states and a step to go on with."""
        odeint = optional("torchdiffeq", "MethodOfLines", extra="ode").odeint
        spans = max(1, math.ceil((end - begin) * flow.stiffness / _MOST_GROWTH))
        for span in range(spans):
            ends = torch.tensor([span, span + 1], dtype=states.dtype, device=states.device) * ((end - begin) / spans) + begin
            flow.begin(float(ends[0]))
            options = {"first_step": step, "step_t": ends[1:], "max_num_steps": self.max_steps, "norm": flow.norm}
            try:
                path = odeint(
                    flow, flow.enter(states), ends, rtol=flow.rtol, atol=flow.atol, method=self.method, options=options
                )
            except AssertionError as error:  # torchdiffeq raises it for vanishing steps, overflow and too many steps
                raise IntegrationError(str(error)) from error
            states = flow.leave(path[-1], float(ends[1]))
            step = max(flow.longest_step, 1e-3 * step)
        return states, step


class _Plain:
    """The untransformed equation for torchdiffeq: coordinates equal states."""

    def __init__(self, rate: Callable[[Tensor, Tensor], Tensor], *, rtol: float, atol: float) -> None:
        self._rate, self.rtol, self.atol = rate, rtol, atol
        self.longest_step = self.stiffness = 0.0

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


class _Rotating(_Plain):
    """The equation for ŵ = e^(−λ(t − s)) û, in which the linear part is gone; s is the beginning of the span.

    Its coordinates grow by up to e^(|λ|(t − s)) where û does not, so tolerances are applied to the state they stand for:
    with the ones below, torchdiffeq gives errors themselves to `norm`.
    """

    def __init__(
        self, rate: Callable[[Tensor, Tensor], Tensor], symbol: Tensor, shape: Sequence[int], *, rtol: float, atol: float
    ) -> None:
        super().__init__(rate, rtol=0.0, atol=1.0)
        self._symbol, self._shape, self._tolerances = symbol, tuple(shape), (rtol, atol)
        self._axes = tuple(range(-len(self._shape), 0))
        self._start = 0.0
        self._factor = symbol
        self._scale = torch.ones(())
        self.stiffness = float(symbol.real.abs().max())

    def begin(self, time: float) -> None:
        """Start a span of time."""
        super().begin(time)
        self._start = time

    def enter(self, states: Tensor) -> Tensor:
        """Coordinates of the states at the beginning of the span."""
        return torch.fft.rfftn(states, dim=self._axes, norm="forward")

    def leave(self, coordinates: Tensor, time: float) -> Tensor:
        """States of coordinates at a time."""
        return self._read(coordinates * torch.exp(self._symbol * (time - self._start)))

    def norm(self, errors: Tensor) -> Tensor:
        """The largest root-mean-square of an error over its tolerance, at the time of the last evaluation."""
        ratios = self._read(errors.detach() * self._factor) / self._scale
        return super().norm(ratios)

    def __call__(self, time: Tensor, coordinates: Tensor) -> Tensor:
        factor = torch.exp(self._symbol * (time - self._start))
        states = self._read(coordinates * factor)
        rtol, atol = self._tolerances
        self._factor, self._scale = factor.detach(), atol + rtol * states.detach().abs()
        return torch.fft.rfftn(self._rate(time, states), dim=self._axes, norm="forward") / factor

    def _read(self, spectrum: Tensor) -> Tensor:
        values: Tensor = torch.fft.irfftn(spectrum, s=self._shape, dim=self._axes, norm="forward")
        return values
