"""Ensemble assimilation during a roll-out, and its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.checks import check_callable, check_finite, check_instance, check_integer
from probneural.distributions import EmpiricalField, EnsembleForecast, FieldDistribution
from probneural.distributions.base import check_values
from probneural.distributions.forecasts.members import Members, StepInputs
from probneural.errors import ArgumentError, GridError
from probneural.fields import Field, check_field
from probneural.grids import Grid
from probneural.randomness import check_seed, stream_seed

Step = Callable[[Tensor], Tensor]
"""Leads from states `(n, c, *grid)` to the next ones: an operator, a solver, or any other function."""


def check_function(step: object, inputs: StepInputs | None) -> Step:
    """Return a function of the last state only.

    Raises:
        ArgumentError: If the step cannot be called, or inputs are given.
    """
    if inputs is not None:
        raise ArgumentError(
            expected="inputs= with a predictor only", got="a function as step", remedy="let the function hold other channels"
        )
    return check_callable(step, "step", remedy="give a predictor, or a function of states (n, c, *grid)")


@dataclass(frozen=True, eq=False, kw_only=True)
class FunctionMembers:
    """Ensemble members with a user-defined step.

    Args:
        function: Map from states `(n, c, *grid)` to the next ones.
        start: States at lead 0.
        initial: Distribution of the states at lead 0.
        count: Number s of members.
        seed: Seed of the starts.
        history: One state makes the next.
    """

    function: Step
    start: Field
    initial: FieldDistribution
    count: int
    seed: int
    history: int = 1

    @classmethod
    def of(
        cls,
        step: object,
        start: Field,
        initial: FieldDistribution | None,
        *,
        members: int,
        seed: int,
        inputs: StepInputs | None,
    ) -> FunctionMembers:
        """Check the start of the members.

        Raises:
            ArgumentError: If the step cannot be called, there is no initial distribution, or something beside the states.
            ShapeError: If the initial distribution is of other states.
            DataError: If start or initial distribution is of another type.
        """
        function = check_function(step, inputs)
        check_field(start, "start")
        if initial is None:
            raise ArgumentError(
                expected="an initial distribution, where the step is a function",
                got="none, so that all members would be equal",
                remedy="give initial=, a distribution of the states at lead 0",
            )
        check_instance(initial, FieldDistribution, "initial", remedy="give a distribution over the states at lead 0")
        if initial.grid != start.grid:
            raise GridError(
                expected=f"an initial distribution on {start.grid!r}",
                got=repr(initial.grid),
                remedy="predict on the start's grid",
            )
        check_values(initial.mean, tuple(start.values.shape), "the mean of initial")
        return cls(function=function, start=start.detached(), initial=initial, count=members, seed=check_seed(seed))

    @property
    def channels(self) -> int:
        """Channels c of a state."""
        return self.start.channels

    def starts(self) -> Float[Tensor, "s n c *grid"]:
        """The states at lead 0."""
        initial = self.initial
        if isinstance(initial, EmpiricalField) and len(initial.weights) == self.count and initial.has_equal_weights:
            return initial.samples.to(self.start.values)
        seeds = [stream_seed(self.seed, "filter starts", member) for member in range(self.count)]
        return torch.stack([initial.rsample(seed=seed) for seed in seeds]).to(self.start.values)

    def step(self, window: Float[Tensor, "s n c *grid"], lead: int) -> Float[Tensor, "s n c *grid"]:
        """The states at a lead, from those before it."""
        moved = self.function(window.flatten(0, 1))
        check_values(moved, tuple(window.flatten(0, 1).shape), f"states at lead {lead}")
        check_finite(moved, f"states at lead {lead}", remedy="the step is not stable from there")
        return moved.unflatten(0, window.shape[:2])


Source = Members | FunctionMembers
"""Members of a roll-out: of a predictor, or of a function."""


class EnsembleAnalysis(EnsembleForecast):
    """An ensemble at all leads, before and after the observations of each: the result of filters and smoothers.

    It is a forecast: scores, calibrators and plots accept it. All leads are stored in memory. For methods on several
    leads, and files, are in [`EnsembleForecast`][probneural.distributions.EnsembleForecast]; they are of the analyses. Those of
    a filter know the observations up to their own lead, so what is asked of several leads of it (an average over time) is not
    the posterior given all observations: ask a smoother.

    Args:
        analyses: Members at leads 0 to `steps`, `(s, n, c, *grid)` each, given the observations.
        forecasts: The same before the observations of that lead.
        start: Start of the ensemble.
        chi2: Per lead with observations, the squared standardised residual per number of each function, `(n,)`: near 1 where
            the ensemble's covariance and the noise agree with the observations.

    Attributes:
        start: The same.
        chi2: The same.
    """

    def __init__(
        self, analyses: Sequence[Tensor], forecasts: Sequence[Tensor], *, start: Field, chi2: Mapping[int, Tensor]
    ) -> None:
        self._analyses, self._forecasts = tuple(analyses), tuple(forecasts)
        self.start = start
        self.chi2 = dict(chi2)

    @property
    def steps(self) -> int:
        """The largest lead."""
        return len(self._analyses) - 1

    @property
    def grid(self) -> Grid:
        """Grid of all states."""
        return self.start.grid

    @property
    def members(self) -> int:
        """Number of members s."""
        return len(self._analyses[0])

    @property
    def channels(self) -> int:
        """Channels c of a state."""
        return self._analyses[0].shape[2]

    def at(self, lead: int) -> EmpiricalField:
        """The members' states at a lead, given the observations: of a filter up to that lead, of a smoother all of them.

        Raises:
            ArgumentError: If the lead does not exist.
        """
        return EmpiricalField(self._analyses[check_integer(lead, "lead", least=0, most=self.steps)], grid=self.grid)

    def forecast_at(self, lead: int) -> EmpiricalField:
        """The members' states at a lead, given the observations of the leads before it.

        Raises:
            ArgumentError: If the lead does not exist.
        """
        return EmpiricalField(self._forecasts[check_integer(lead, "lead", least=0, most=self.steps)], grid=self.grid)

    def _until(self, last: int) -> Iterator[tuple[int, EmpiricalField]]:
        return ((lead, self.at(lead)) for lead in range(1, last + 1))

    def _attributes(self) -> dict[str, Any]:
        return {"observed_leads": sorted(self.chi2)}

    def __len__(self) -> int:
        """Number of samples n."""
        return self._analyses[0].shape[1]

    def __repr__(self) -> str:
        """A short description."""
        return f"EnsembleAnalysis({len(self)} on {self.grid!r}, {self.steps} steps, {self.members} members)"
