"""Alignment of a forecast and the true trajectories by time, and their batches lead by lead."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.checks import check_count, check_instance
from probneural.distributions.forecasts.trajectory import Forecast
from probneural.errors import ArgumentError
from probneural.fingerprints import row_fingerprints
from probneural.metrics.scores import Batch, batch_rows
from probneural.pairs import Dataset, FieldSource
from probneural.pairs.clocks import rounding_of
from probneural.pairs.provenance import row_keys

_ROUNDING = 1e-2
"""Tolerance of times, in steps of the forecast."""
_COMPARED = 8
"""Number of samples that locate the start of a forecast among the true states."""


@runtime_checkable
class TrueTrajectories(Protocol):
    """States of n samples at leads 0 (the start), 1, 2, ...: `pn.FieldTrajectories` or `pn.data.Trajectories`."""

    def at(self, lead: int, /) -> FieldSource:
        """The states at one lead, `(n, c, *grid)`."""

    def __len__(self) -> int:
        """Number of samples n."""


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
    """True trajectories numbered by the leads of a forecast, matched by time if both have times.

    Without times, lead k of a predictor trained on windows of lead l is l k states after the start: the truth has the time step
    of the training data. If the forecast starts from the last of several input states and the truth from the first, times of
    the truth count from the forecast's start.

    Args:
        forecast: Forecast, with or without times since its start, `(steps,)`.
        truth: Trajectories, with or without the time of each lead since their start, `lead_times`.

    Raises:
        DataError: If `forecast` is no forecast, or the truth has no states by lead.
        ShapeError: If the counts of samples differ.
        ArgumentError: If the truth has no states at a time of the forecast.
    """
    check_instance(forecast, Forecast, "forecast", remedy="roll a predictor out: predictor.rollout(start, steps=20, seed=0)")
    check_instance(truth, TrueTrajectories, "truth", remedy="give trajectories: problem.trajectory(...)")
    check_count(len(truth), len(forecast), "true trajectories", remedy="roll out from truth.start")
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
            remedy="roll out fewer steps, or pass longer trajectories with states at these times",
        )
    return _Aligned(truth, (origin, *steps.tolist()))


def lead_batches(forecast: Forecast, truth: TrueTrajectories) -> Iterator[Batch]:
    """Iterate over leads in order, and at each lead over batches of samples.

    Raises:
        DataError: If `forecast` is no forecast, or the truth has no states by lead.
        ShapeError: If the counts of samples differ.
        ArgumentError: If the truth ends before the forecast, or has no states at the forecast's times.
    """
    truth = aligned(forecast, truth)
    for lead, u in forecast.leads():
        try:
            source = truth.at(lead)
        except ArgumentError as error:
            got, remedy = f"none: {error}", "roll out fewer steps, or pass longer trajectories"
            raise ArgumentError(expected=f"true states at lead {lead}, as the forecast has", got=got, remedy=remedy) from error
        for rows in batch_rows(source):
            yield Batch(u=u[rows], truth=source[rows], rows=rows, lead=lead)


def step_keys(truth: TrueTrajectories, steps: int) -> Int64[Tensor, "n *w k"]:
    """Return the row keys of `truth.windows()`, or of pairs of successive states for trajectories without windows.

    Args:
        truth: n trajectories.
        steps: Number of steps from the start, for trajectories without windows.

    Returns:
        `(n, w, k)`, one row per trajectory with w windows; or `(n, k)`, one row per window, if trajectories have different
        numbers of windows.

    Raises:
        ArgumentError: If the trajectories are shorter.
    """
    windows: Callable[[], Dataset] | None = getattr(truth, "windows", None)
    if windows is not None:
        with contextlib.suppress(ArgumentError):  # trajectories with uneven times have no windows
            keys = row_keys(windows())
            return keys if len(keys) % len(truth) else keys.unflatten(0, (len(truth), -1))
    states = [truth.at(lead) for lead in range(steps + 1)]
    columns = [
        torch.cat([row_fingerprints(state[rows].values, following[rows].values) for rows in batch_rows(state)])
        for state, following in itertools.pairwise(states)
    ]
    window_keys = getattr(truth, "window_keys", None)
    return torch.stack([*columns, *([] if window_keys is None else window_keys.unbind(1))], 1)[..., None]


def check_leads(forecast: object, *, steps: int, times: Float64[Tensor, " steps"] | None, name: str) -> Forecast:
    """Return a forecast whose leads are among the fitted leads.

    Raises:
        DataError: If it is no forecast.
        ArgumentError: If it has more leads, or leads at other times.
    """
    forecast = check_instance(forecast, Forecast, "forecast", remedy="roll a predictor out: predictor.rollout(...)")
    if forecast.steps > steps:
        expected = f"a forecast of at most {steps} leads, which {name} were fitted at"
        raise ArgumentError(expected=expected, got=str(forecast.steps), remedy="fit on trajectories of this length")
    lead_times: Tensor | None = getattr(forecast, "times", None)
    if times is None or lead_times is None:
        return forecast
    count = min(len(times), len(lead_times))
    if bool(((times[:count] - lead_times[:count]).abs() > _ROUNDING * times[0]).any()):
        expected = f"a forecast whose leads are at {_shown(times)}, where {name} were fitted"
        raise ArgumentError(expected=expected, got=_shown(lead_times), remedy="fit on forecasts of the same predictor")
    return forecast


def _origin(forecast: Any, truth: TrueTrajectories) -> int:
    """Index of the true state that is the forecast's start: the nearest of its input states, by the first samples.

    Without comparable states it is the last input state.
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
