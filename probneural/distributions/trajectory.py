"""Trajectories: distributions over fields with an axis of time, computed when they are asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from tqdm.auto import tqdm

from probneural.checks import check_flag, check_integer
from probneural.contexts import undisturbed
from probneural.distributions.base import FieldDistribution
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.ensemble_forecast import EnsembleForecast
from probneural.distributions.members import Members, step_duration
from probneural.distributions.trajectory_states import KeptStates
from probneural.distributions.variance_shares import VarianceShares, paired_shares, plain_shares
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs.provenance import TrainingRecord

_BUDGET = 2**28
"""Bytes of states that a trajectory keeps (256 MiB)."""
_DELAY = 2.0
"""Seconds after which a progress bar appears."""


@runtime_checkable
class Forecast(Protocol):
    """Distributions over the states of n functions at leads 1 to `steps`: what scores, calibrators and figures rely on."""

    @property
    def steps(self) -> int:
        """The largest lead."""

    @property
    def grid(self) -> Grid:
        """Where all states live."""

    def at(self, lead: int, /) -> FieldDistribution:
        """The distribution of the states `(n, c, *grid)` after so many steps; lead 0 is the start."""

    def leads(self) -> Iterator[tuple[int, FieldDistribution]]:
        """Leads 1 to `steps` in order, each with its distribution; of roll-outs in bounded memory."""

    def __len__(self) -> int:
        """Number of functions n."""


class Trajectory(EnsembleForecast):
    """An ensemble of roll-outs: member m at all leads is one trajectory of all n functions.

    It is made by [`rollout`][probneural.distributions.Predictor.rollout]. States are computed when they are asked for, without
    gradients. All are kept where they fit into the budget; otherwise windows of them are, evenly spread over the leads, and a
    lead between two is computed again from the one before it, with the same numbers. What can be asked of its leads is in
    [`EnsembleForecast`][probneural.distributions.EnsembleForecast].

    Measurement noise is beside the states, not in them: scores and intervals take it as `noise=forecast.noise`.

    Args:
        ensemble: What is rolled out.
        steps: The largest lead.
        budget: Bytes of states that are kept; 256 MiB by default.
        show_progress: Whether long computations show a progress bar.
    """

    def __init__(self, ensemble: Members, *, steps: int, budget: int = _BUDGET, show_progress: bool = True) -> None:
        self.ensemble = ensemble
        self._steps = check_integer(steps, "steps")
        self.budget = check_integer(budget, "budget", least=0)
        self.show_progress = check_flag(show_progress, "show_progress")

    @property
    def steps(self) -> int:
        """The largest lead."""
        return self._steps

    @property
    def grid(self) -> Grid:
        """Where all states live."""
        return self.ensemble.grid

    @property
    def start(self) -> Field:
        """What the roll-out started from: states, then other channels."""
        return self.ensemble.start

    @property
    def members(self) -> int:
        """Number of members s."""
        return self.ensemble.count

    @property
    def channels(self) -> int:
        """Channels c of a state."""
        return self.ensemble.channels

    @property
    def history(self) -> int:
        """Number of states in an input."""
        return self.ensemble.history

    @property
    def times(self) -> Float64[Tensor, " steps"] | None:
        """Time of each lead since the start, `(steps,)`, in the training data's units; None if they had no times."""
        duration = step_duration(self.ensemble.predictor)
        return None if duration is None else duration * torch.arange(1, self.steps + 1, dtype=torch.float64, device="cpu")

    @property
    def noise(self) -> Float64[Tensor, " c"]:
        """Variance of the measurement noise, `(c,)`, in physical units squared."""
        return self.ensemble.noise

    @property
    def calibrated_on(self) -> Int64[Tensor, " m"]:
        """Row keys of the pairs that the predictor's variances were scaled on, `(m,)`."""
        return self.ensemble.predictor.calibrated_on

    @property
    def trained_on(self) -> TrainingRecord | None:
        """Record of the pairs that trained the predictor; None if unknown."""
        return self.ensemble.predictor.trained_on

    def at(self, lead: int) -> EmpiricalField:
        """The members' states after so many steps.

        Args:
            lead: From 0, the start, to `steps`.

        Returns:
            Samples `(s, n, c, *grid)`: the members, in the same order at all leads.

        Raises:
            ArgumentError: If there is no such lead.
            ForecastError: If a member is not finite there, or before.
        """
        return self._field(self._state(check_integer(lead, "lead", least=0, most=self.steps)))

    def _until(self, last: int) -> Iterator[tuple[int, EmpiricalField]]:
        for lead, state in self._states_from(0, last):
            yield lead, self._field(state)

    def _field(self, state: Float[Tensor, "s n c *grid"]) -> EmpiricalField:
        """The distribution of the members' states."""
        u = EmpiricalField(state, grid=self.grid)
        u.provenance = self.ensemble.predictor._provenance()
        return u

    def _attributes(self) -> dict[str, Any]:
        ensemble = self.ensemble
        return {
            "draws": ensemble.draws,
            "seed": str(ensemble.seed),  # may have any number of digits
            "history": ensemble.history,
            "noise_variance": self.noise.tolist(),
            "has_initial_uncertainty": int(ensemble.initial is not None),
        }

    def variance_shares(self) -> VarianceShares:
        """Take the members' variance apart at each lead: by initial states, by operators, by noise.

        Without `initial`, all of the states' variance is the operators'. With it, a second ensemble is rolled out in which each
        initial state meets the operators of the next member; see `VarianceShares` for the estimators, which are unbiased.

        Raises:
            ArgumentError: If there is one member only.
            ForecastError: If a member is not finite.
        """
        if self.ensemble.initial is None:
            return plain_shares(self)
        return paired_shares(self, Trajectory(self.ensemble.shifted(), steps=self.steps, budget=0, show_progress=False))

    @cached_property
    @undisturbed()
    @torch.no_grad()
    def _kept(self) -> KeptStates:
        start = self.ensemble.starts().split(self.channels, dim=2)
        return KeptStates(list(start), steps=self.steps, budget=self.budget)

    def _state(self, lead: int) -> Float[Tensor, "s n c *grid"]:
        kept = self._kept.get(lead)
        if kept is not None:
            return kept
        last, _ = self._kept.before(lead)
        for _, state in self._states_from(last, lead):  # noqa: B007
            pass
        return state

    def _states_from(self, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        """States at leads `first` + 1 to `last`, from a window that is kept up to `first`."""
        _, states = self._kept.before(first)
        window = deque(states, maxlen=len(states))
        silent = not self.show_progress or last - first < 2
        with tqdm(total=last - first, desc="roll-out", unit="step", delay=_DELAY, disable=silent) as bar:
            for lead in range(first + 1, last + 1):
                state = self._kept.get(lead)
                if state is None:
                    state = self._stepped(list(window), lead)
                    self._kept.put(lead, state)
                window.append(state)
                bar.update()
                yield lead, state

    @undisturbed()
    @torch.no_grad()
    def _stepped(self, window: list[Tensor], lead: int) -> Tensor:
        return self.ensemble.step(window[0] if len(window) == 1 else torch.cat(window, dim=2), lead)

    def __len__(self) -> int:
        """Number of functions n."""
        return len(self.start)

    def __repr__(self) -> str:
        """A short description."""
        kind = f"{self.members} members, draws={self.ensemble.draws!r}"
        shown = f"Trajectory({len(self)} x {self.channels} on {self.grid!r}, {self.steps} steps, {kind})"
        return shown if self.ensemble.predictor.is_calibrated else f"{shown}, uncalibrated"
