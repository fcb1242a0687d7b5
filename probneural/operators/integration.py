"""Time integration of the latent state of a neural ordinary differential equation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import assign, check_choice, check_flag, check_integer, check_positive, missing
from probneural.contexts import is_transformed
from probneural.errors import SolverError, UnsupportedError
from probneural.registry import stored

Rate = Callable[[Tensor], Tensor]
"""From a state to its change per unit of time."""

_ADAPTIVE = ("dopri5", "bosh3", "dopri8", "adaptive_heun")


@stored()
@dataclass(frozen=True, kw_only=True)
class ODESolver:
    """Time integrator of a `NeuralODEOperator`.

    Args:
        time: The lead that a plain call returns, and the unit of the latent dynamics, in the unit of the data's times.
        steps: Steps per `time` of `"rk4"`. They do not depend on the requested times: between steps, the cubic through states
            and slopes has the order of the method, so a state does not depend on the other requested times.
        method: `"rk4"`, equal steps of fourth order; or, with steps that adapt to the tolerances, `"dopri5"`, `"bosh3"`,
            `"dopri8"` or `"adaptive_heun"`.
        rtol: Relative tolerance of the adaptive methods.
        atol: Absolute tolerance, in units of the latent state, which are of order one.
        adjoint: Whether gradients integrate the adjoint equation backwards, in memory that does not grow with the steps. They
            then differ from the derivative of the numerical solution by the method's error.

    Raises:
        ArgumentError: If a number is not positive, or the method is another one.

    Reference:
        Chen, Rubanova, Bettencourt & Duvenaud (2018), Neural ordinary differential equations; implementation: Chen (2018),
        torchdiffeq.
    """

    time: float = 1.0
    steps: int = 8
    method: str = "rk4"
    rtol: float = 1e-5
    atol: float = 1e-6
    adjoint: bool = False

    def __post_init__(self) -> None:
        """Validate the arguments."""
        assign(
            self,
            time=check_positive(self.time, "time"),
            steps=check_integer(self.steps, "steps"),
            method=check_choice(self.method, ("rk4", *_ADAPTIVE), "method"),
            rtol=check_positive(self.rtol, "rtol"),
            atol=check_positive(self.atol, "atol"),
            adjoint=check_flag(self.adjoint, "adjoint"),
        )

    def states(
        self, rate: Rate, start: Float[Tensor, "n w *grid"], *, times: Float64[Tensor, " t"], parameters: tuple[Tensor, ...]
    ) -> list[Float[Tensor, "n w *grid"]]:
        """Return the states at times.

        Args:
            rate: Map from a state to its rate of change per `time`.
            start: State at time 0.
            times: Ascending, each once, not negative.
            parameters: Parameters of the rate, for the adjoint's gradients.

        Returns:
            One state per time.

        Raises:
            SolverError: If no step of an adaptive method meets the tolerances, as for stiff dynamics. In gradients by the
                adjoint equation the error is torchdiffeq's own.
            UnsupportedError: If steps adapt under transforms of PyTorch.
            ImportError: If torchdiffeq is needed and not installed.
        """
        turns = (times / self.time).tolist()
        has_tangents = is_transformed() or forward_ad._current_level >= 0
        if self.method != "rk4" and has_tangents:
            raise UnsupportedError(
                expected='the method "rk4" under torch.func transforms, as in posteriors over all weights',
                got=f"{self.method!r}, whose steps depend on the state",
                remedy='build the operator with solver=ODESolver(method="rk4", steps=...)',
            )
        if self.method == "rk4" and (has_tangents or not self.adjoint):
            return self._in_equal_steps(rate, start, turns)
        return self._by_torchdiffeq(rate, start, turns, parameters)

    def _in_equal_steps(self, rate: Rate, start: Tensor, turns: list[float]) -> list[Tensor]:
        """Runge-Kutta steps with torchdiffeq's formula, without its in-place writes, which transforms do not support."""
        states: list[Tensor] = []
        number, before = 0, start
        after, slopes = start, (start, start)  # of the step from `number` - 1 to `number`, once there is one
        for turn in turns:
            position = self._position(turn)
            while number < position:
                before, slope = after, slopes[1] if number else rate(start)
                after = _stepped(rate, before, slope, 1.0 / self.steps)
                slopes = (slope, rate(after))
                number += 1
            is_between = position < number
            states.append(_cubic(before, after, slopes, position - number + 1.0, 1.0 / self.steps) if is_between else after)
        return states

    def _by_torchdiffeq(self, rate: Rate, start: Tensor, turns: list[float], parameters: tuple[Tensor, ...]) -> list[Tensor]:
        odeint, odeint_adjoint = _torchdiffeq()
        ends = [0.0, *(turn for turn in turns if turn > 0.0)]
        options: dict[str, Any] = {}
        if self.method == "rk4":
            options = {"step_size": 1.0 / self.steps, "interp": "cubic"}
            ends.append(max(1, math.ceil(self._position(ends[-1]))) / self.steps)
        elif len(ends) == 1:
            return [start]
        moments = torch.tensor(list(dict.fromkeys(ends)), dtype=torch.float64, device="cpu").to(start)
        settings = {"method": self.method, "rtol": self.rtol, "atol": self.atol, "options": options or None}

        def slope(time: Tensor, state: Tensor) -> Tensor:
            return rate(state)

        try:
            if self.adjoint:
                path = odeint_adjoint(slope, start, moments, adjoint_params=parameters, **settings)
            else:
                path = odeint(slope, start, moments, **settings)
        except AssertionError as error:  # torchdiffeq raises it for vanishing steps and overflow
            raise SolverError(
                expected=f"latent dynamics that {self.method} integrates with rtol={self.rtol:g} and atol={self.atol:g}",
                got=f"{str(error).splitlines()[0] if str(error) else 'a step of size zero':.200}",
                remedy='raise rtol, take ODESolver(method="rk4", steps=...), or train with Optimization(weight_decay=...), '
                "since the dynamics are stiff",
            ) from error
        first = 0 if turns[0] == 0.0 else 1
        return list(path[first : first + len(turns)])

    def _position(self, turn: float) -> float:
        """Time in steps; a step up to rounding is a step."""
        position = turn * self.steps
        return float(round(position)) if abs(position - round(position)) < 1e-9 * max(1.0, position) else position


def _stepped(rate: Rate, state: Tensor, slope: Tensor, step: float) -> Tensor:
    """One step of Kutta's 3/8 rule, from the slope at its beginning."""
    second = rate(state + (step / 3.0) * slope)
    third = rate(state + step * (second - slope / 3.0))
    fourth = rate(state + step * (slope - second + third))
    return state + (step / 8.0) * (slope + 3.0 * (second + third) + fourth)


def _cubic(before: Tensor, after: Tensor, slopes: tuple[Tensor, Tensor], fraction: float, step: float) -> Tensor:
    """The cubic with two states and slopes, at a fraction of the step between them."""
    complement = 1.0 - fraction
    bend = fraction * complement * step * (complement * slopes[0] - fraction * slopes[1])
    return (1.0 + 2.0 * fraction) * complement**2 * before + fraction**2 * (3.0 - 2.0 * fraction) * after + bend


def _torchdiffeq() -> tuple[Any, Any]:
    try:
        from torchdiffeq import odeint, odeint_adjoint
    except ModuleNotFoundError as error:
        raise missing("NeuralODEOperator", error, "ode") from error
    return odeint, odeint_adjoint
