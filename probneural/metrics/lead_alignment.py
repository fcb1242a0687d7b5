"""Alignment of a forecast and the true trajectories by time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_instance
from probneural.distributions.trajectory import Forecast
from probneural.errors import ArgumentError, ShapeError
from probneural.pairs import FieldSource
from probneural.pairs.clocks import rounding_of

_ROUNDING = 1e-2
"""Rounding of times, in steps of the forecast."""
_COMPARED = 8
"""Samples by which the start of a forecast is found among the true states."""


@runtime_checkable
class TrueTrajectories(Protocol):
    """States of n functions at leads 0, the start, 1, 2, ...: `pn.FieldTrajectories`, or `pn.data.Trajectories`."""

    def at(self, lead: int, /) -> FieldSource:
        """The states at one lead, `(n, c, *grid)`."""

    def __len__(self) -> int:
        """Number of functions n."""


@dataclass(frozen=True, eq=False)
class _Aligned:
    """True trajectories whose states are numbered by the leads of a forecast."""

    truth: TrueTrajectories
    steps: tuple[int, ...]

    def at(self, lead: int) -> FieldSource:
        return self.truth.at(self.steps[lead])

    def __len__(self) -> int:
        return len(self.truth)


def aligned(forecast: Forecast, truth: TrueTrajectories) -> TrueTrajectories:
    """The true trajectories with lead k at the time of the forecast's lead k, where both have times; else by number.

    By number, lead k is l k states after the start, for a predictor of windows of lead l: the truth has the steps of the
    training data.

    Where the forecast starts from the last of several input states, and the truth begins with the first of them, the truth's
    time is counted from the forecast's start.

    Args:
        forecast: With times since its start, `(steps,)`, or without.
        truth: With the time of each lead since its start, `lead_times`, or without.

    Raises:
        DataError: If the forecast is none, or the truth has no states by lead.
        ShapeError: If the two have different numbers of functions.
        ArgumentError: If the truth has no states at a time of the forecast.
    """
    check_instance(forecast, Forecast, "forecast", remedy="roll a predictor out: predictor.rollout(start, steps=20, seed=0)")
    check_instance(truth, TrueTrajectories, "truth", remedy="give trajectories: problem.trajectory(...)")
    if len(forecast) != len(truth):
        raise ShapeError(
            expected=f"the true trajectories of {len(forecast)} functions",
            got=str(len(truth)),
            remedy="roll out from truth.start",
        )
    times: Tensor | None = getattr(forecast, "times", None)
    clock: Tensor | None = getattr(truth, "lead_times", None)
    origin = _origin(forecast, truth)
    if times is None or clock is None:
        lead = max(1, getattr(getattr(forecast, "trained_on", None), "lead", 1))
        if origin == 0 and lead == 1:
            return truth
        return _Aligned(truth, tuple(origin + lead * step for step in range(forecast.steps + 1)))
    elapsed = clock - clock[origin]
    distance, steps = (elapsed - times[:, None]).abs().min(1)
    missing = distance > _ROUNDING * times[0] + 2.0 * rounding_of(clock)
    if bool(missing.any()):
        raise ArgumentError(
            expected=f"true states at the forecast's times, {_shown(times)}",
            got=f"states at {_shown(elapsed)} after its start, none at {_shown(times[missing])}",
            remedy="roll out fewer steps, or give longer trajectories, whose states include those times",
        )
    return _Aligned(truth, (origin, *steps.tolist()))


def check_same_times(forecast: Forecast, times: Float64[Tensor, " steps"] | None, *, name: str) -> None:
    """Raise an ArgumentError if a forecast's leads have other times than those that something was fitted at."""
    given: Tensor | None = getattr(forecast, "times", None)
    if times is None or given is None:
        return
    count = min(len(times), len(given))
    if bool(((times[:count] - given[:count]).abs() > _ROUNDING * times[0]).any()):
        raise ArgumentError(
            expected=f"a forecast whose leads are at {_shown(times)}, where {name} were fitted",
            got=_shown(given),
            remedy="fit on forecasts of the same predictor",
        )


def _origin(forecast: Any, truth: TrueTrajectories) -> int:
    """The step of the truth that is the forecast's start: of its input states the nearest one, by the first samples.

    Without states to compare it is the last input state.
    """
    history = getattr(forecast, "history", 1)
    if history == 1 or not len(truth):
        return 0
    start = forecast.at(0).mean[:_COMPARED]
    distances = []
    for step in range(history):
        try:
            state = truth.at(step)[: len(start)].values
        except ArgumentError:  # the truth is shorter
            return 0
        if state.shape != start.shape:
            return int(history) - 1
        distances.append(float((state.to(start) - start).square().nansum()))
    return distances.index(min(distances))


def _shown(times: Tensor) -> str:
    numbers = [f"{float(time):g}" for time in times[:4]]
    return ", ".join(numbers) + (", ..." if len(times) > 4 else "")
