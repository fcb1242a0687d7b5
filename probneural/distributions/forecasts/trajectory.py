"""Trajectories: distributions over fields with an axis of time, computed on demand, and their variance shares."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from tqdm.auto import tqdm

from probneural.checks import check_flag, check_integer, check_least, check_shape_among, check_variances
from probneural.contexts import without_gradients
from probneural.distributions.base import FieldDistribution
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.forecasts.ensemble_forecast import EnsembleForecast
from probneural.distributions.forecasts.members import Members, step_duration
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs.provenance import Provenance, TrainingRecord

_BUDGET = 2**28
"""Maximum bytes of stored states of a trajectory (256 MiB)."""
_DELAY = 2.0
"""Seconds after which a progress bar appears."""


@runtime_checkable
class Forecast(Protocol):
    """Distributions over the states of n samples at leads 1 to `steps`: the interface of scores, calibrators and plots."""

    @property
    def steps(self) -> int:
        """The largest lead."""

    @property
    def grid(self) -> Grid:
        """Grid of all states."""

    def at(self, lead: int, /) -> FieldDistribution:
        """The distribution of the states `(n, c, *grid)` at a lead; lead 0 is the start."""

    def leads(self) -> Iterator[tuple[int, FieldDistribution]]:
        """Leads 1 to `steps` in order, each with its distribution; of roll-outs in bounded memory."""

    def __len__(self) -> int:
        """Number of samples n."""


class Trajectory(EnsembleForecast):
    """An ensemble of roll-outs: member m at all leads is one trajectory of all n samples.

    [`rollout`][probneural.distributions.Predictor.rollout] returns it. States are computed lazily, without gradients. All
    are stored if they fit into the budget; otherwise windows at evenly spaced leads are stored, and states between them
    are recomputed from the preceding window, with the same random numbers. For methods on its leads see
    [`EnsembleForecast`][probneural.distributions.EnsembleForecast].

    The states are without measurement noise: scores and intervals take its variance as `noise=predictor.noise`.

    Args:
        ensemble: The ensemble.
        steps: The largest lead.
        budget: Maximum bytes of stored states; 256 MiB by default.
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
        """Grid of all states."""
        return self.ensemble.grid

    @property
    def start(self) -> Field:
        """Start of the roll-out: states, then other channels."""
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
    def calibrated_on(self) -> Int64[Tensor, " m"]:
        """Row keys of the pairs that the predictor's variances were scaled on, `(m,)`."""
        return self.ensemble.predictor.calibrated_on

    @property
    def trained_on(self) -> TrainingRecord | None:
        """Record of the pairs that trained the predictor; None if unknown."""
        return self.ensemble.predictor.trained_on

    def at(self, lead: int) -> EmpiricalField:
        """The members' states at a lead.

        Args:
            lead: Lead from 0 (the start) to `steps`.

        Returns:
            Samples `(s, n, c, *grid)`: the members, in the same order at all leads.

        Raises:
            ArgumentError: If the lead is out of range.
            ForecastError: If a member is not finite there, or before.
        """
        return self._field(self._state(check_integer(lead, "lead", least=0, most=self.steps)))

    def _until(self, last: int) -> Iterator[tuple[int, EmpiricalField]]:
        for lead, state in self._states_from(0, last):
            yield lead, self._field(state)

    def _field(self, state: Float[Tensor, "s n c *grid"]) -> EmpiricalField:
        """The distribution of the members' states."""
        u = EmpiricalField(state, grid=self.grid)
        predictor = self.ensemble.predictor
        u.provenance = Provenance(is_calibrated=predictor.is_calibrated, trained_on=predictor.trained_on, inputs=None)
        return u

    def _attributes(self) -> dict[str, Any]:
        ensemble = self.ensemble
        return {
            "draws": ensemble.draws,
            "seed": str(ensemble.seed),  # may have any number of digits
            "history": ensemble.history,
            "has_initial_uncertainty": int(ensemble.initial is not None),
        }

    def variance_shares(self, *, noise: float | Float[Tensor, " c"] = 0.0) -> VarianceShares:
        """Take the members' variance apart at each lead: by initial states, by operators, by noise.

        Without `initial`, the whole variance of the states is due to the operators. With it, a second ensemble is rolled out
        that pairs each initial state with the operator of the next member; see `VarianceShares` for the unbiased estimators.

        Args:
            noise: Variance of the measurement noise, a number or `(c,)`, in physical units squared.

        Raises:
            ArgumentError: If there is one member only, or the noise is negative.
            ShapeError: If there is not one noise variance, or one per channel.
            ForecastError: If a member is not finite.
        """
        variance = check_variances(noise, "noise").detach().to("cpu", torch.float64)
        check_shape_among(variance, "noise", (), (self.channels,), remedy="pass predictor.noise, or one number")
        check_least(self.members, 2, "members", remedy="roll out more: members=32", error=ArgumentError)
        rows: dict[str, list[Tensor]] = {"initial": [], "operator": [], "interaction": []}
        if self.ensemble.initial is None:
            rows["operator"] = [_average(u.samples.var(0), self.grid) for _, u in self.leads()]
            rows["initial"] = rows["interaction"] = [torch.zeros_like(row) for row in rows["operator"]]
        else:
            partners = Trajectory(self.ensemble.shifted(), steps=self.steps, budget=0, show_progress=False)
            for (_, member), (_, partner) in zip(self.leads(), partners.leads(), strict=True):
                first, second, grid = member.samples, partner.samples, self.grid
                total = (_average(first.var(0), grid) + _average(second.var(0), grid)) / 2
                given_initial = _average((first - second).square().mean(0), grid) / 2  # E Var[u | I]
                given_operator = _average((second - first.roll(-1, 0)).square().mean(0), grid) / 2  # E Var[u | O]
                rows["initial"].append(total - given_initial)
                rows["operator"].append(total - given_operator)
                rows["interaction"].append(given_initial + given_operator - total)
        parts = {name: torch.stack(row) for name, row in rows.items()}
        return VarianceShares(**parts, noise=variance.expand(parts["operator"].shape).clone())

    @cached_property
    @without_gradients()
    def _kept(self) -> KeptStates:
        start = self.ensemble.starts().split(self.channels, dim=2)
        return KeptStates(list(start), steps=self.steps, budget=self.budget)

    def _state(self, lead: int) -> Float[Tensor, "s n c *grid"]:
        stored = self._kept.get(lead)
        if stored is not None:
            return stored
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

    @without_gradients()
    def _stepped(self, window: list[Tensor], lead: int) -> Tensor:
        return self.ensemble.step(window[0] if len(window) == 1 else torch.cat(window, dim=2), lead)

    def __len__(self) -> int:
        """Number of samples n."""
        return len(self.start)

    def __repr__(self) -> str:
        """A short description."""
        kind = f"{self.members} members, draws={self.ensemble.draws!r}"
        shown = f"Trajectory({len(self)} x {self.channels} on {self.grid!r}, {self.steps} steps, {kind})"
        return shown if self.ensemble.predictor.is_calibrated else f"{shown}, uncalibrated"


class KeptStates:
    """States by lead: all of them if they fit into a budget, else checkpoints for recomputation.

    To go on from lead l, the `history` states up to l are needed. So whole windows are kept, evenly spread over the leads,
    and the latest window, from which the next lead follows.

    Args:
        start: States at leads 1 - history to 0.
        steps: The largest lead.
        budget: Maximum bytes of stored states other than the start and the latest window.

    Attributes:
        every: Number of leads between stored windows; 1 if all are stored.
    """

    def __init__(self, start: list[Float[Tensor, "s n c *grid"]], *, steps: int, budget: int) -> None:
        self.history = len(start)
        self._kept = dict(enumerate(start, 1 - len(start)))
        self._latest: deque[tuple[int, Tensor]] = deque(maxlen=self.history)
        room = max(0, budget // max(1, start[0].numel() * start[0].element_size()))
        windows = room // self.history
        self.every = 1 if steps <= room else steps + self.history if windows == 0 else -(-steps // windows)

    def put(self, lead: int, state: Float[Tensor, "s n c *grid"]) -> None:
        """Add a state; whether it is kept follows from its lead."""
        self._latest.append((lead, state))
        if (-lead) % self.every < self.history:
            self._kept[lead] = state

    def get(self, lead: int) -> Float[Tensor, "s n c *grid"] | None:
        """The state at a lead, or None if it is not kept."""
        return dict(self._latest).get(lead, self._kept.get(lead))

    def before(self, lead: int) -> tuple[int, list[Float[Tensor, "s n c *grid"]]]:
        """The largest stored lead up to this one, and its window of states."""
        for last in range(lead, -1, -1):
            window = [self.get(number) for number in range(last + 1 - self.history, last + 1)]
            states = [state for state in window if state is not None]
            if len(states) == self.history:
                return last, states
        raise AssertionError("the start is always kept")

    @property
    def bytes(self) -> int:
        """Bytes of all stored states, including the start."""
        held = {
            id(state): state.numel() * state.element_size() for state in (*self._kept.values(), *dict(self._latest).values())
        }
        return sum(held.values())


@dataclass(frozen=True, eq=False, kw_only=True)
class VarianceShares:
    """The variance of a forecast by its source, at leads 1 to `steps`, averaged over the domain by quadrature.

    A state is a function u(I, O) of the initial state I and the operators O, which are independent. The total variance is
    Var u = Var E[u | I] + E Var[u | I], and likewise for O, so that

        Var u = Var E[u | I] + Var E[u | O] + interaction.

    Members (I_m, O_m) have partners (I_m, O_{m+1}). Half the mean squared difference of two states that share I, or O, is an
    unbiased estimate of E Var[u | I], or E Var[u | O]; the members' own variance, with s - 1, is one of Var u. The shares are
    differences of the three: each is unbiased, and a small one may come out negative.

    Attributes:
        initial: Var E[u | I], `(steps, n, c)`, in physical units squared, float64; zeros where the start is known.
        operator: Var E[u | O], likewise.
        interaction: Remaining variance of the states, in the same shape and units.
        noise: Variance of the measurement noise, likewise.

    Reference:
        Jansen (1999), Analysis of variance designs for model output; Saltelli et al. (2010), Variance based sensitivity
        analysis of model output, table 2.
    """

    initial: Float64[Tensor, "steps n c"]
    operator: Float64[Tensor, "steps n c"]
    interaction: Float64[Tensor, "steps n c"]
    noise: Float64[Tensor, "steps n c"]

    @property
    def total(self) -> Float64[Tensor, "steps n c"]:
        """Variance of a measurement, `(steps, n, c)`, in physical units squared."""
        return self.initial + self.operator + self.interaction + self.noise

    def __repr__(self) -> str:
        """Fractions of the total at the last lead, averaged over functions."""
        last = self.total[-1].sum()
        parts = {name: float(getattr(self, name)[-1].sum() / last) for name in ("initial", "operator", "interaction", "noise")}
        return f"VarianceShares({', '.join(f'{name} {part:.0%}' for name, part in parts.items())} at lead {len(self.total)})"


def _average(squares: Tensor, grid: Grid) -> Float64[Tensor, "n c"]:
    return grid.mean(squares.flatten(2).to(torch.float64)).cpu()
