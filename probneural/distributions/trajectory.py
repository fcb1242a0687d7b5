"""Trajectories: distributions over fields with an axis of time, computed when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_integer
from probneural.contexts import undisturbed
from probneural.distributions.base import FieldDistribution
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.members import Members
from probneural.fields import Field
from probneural.grids import Grid

_BUDGET = 2**28
"""Bytes of states that a trajectory keeps (256 MiB)."""


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
        """Leads 1 to `steps` in order, each with its distribution; in a memory that does not grow with the leads."""

    def __len__(self) -> int:
        """Number of functions n."""


class Trajectory:
    """An ensemble of roll-outs: member m at all leads is one trajectory of all n functions.

    It is made by [`rollout`][probneural.distributions.Predictor.rollout]. States are computed when they are asked for, in
    order, without gradients, and kept up to a budget of memory; beyond it, a few leads are kept, from which others are computed
    again, with the same numbers.

    Args:
        ensemble: What is rolled out.
        steps: The largest lead.
    """

    def __init__(self, ensemble: Members, *, steps: int) -> None:
        self.ensemble = ensemble
        self.steps = check_integer(steps, "steps")
        self._kept: dict[int, Tensor] = {}

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
    def noise(self) -> Float64[Tensor, " c"]:
        """Variance of the measurement noise, `(c,)`, in physical units squared: beside the states, not in them."""
        return self.ensemble.noise

    def at(self, lead: int) -> EmpiricalField:
        """The members' states after so many steps.

        Args:
            lead: From 0, the start, to `steps`.

        Returns:
            Samples `(s, n, c, *grid)`: the members, in the same order at all leads.

        Raises:
            ArgumentError: If there is no such lead.
        """
        lead = check_integer(lead, "lead", least=0, most=self.steps)
        return EmpiricalField(self._state(lead), grid=self.grid)

    def leads(self) -> Iterator[tuple[int, EmpiricalField]]:
        """Leads 1 to `steps` in order, each with the members' states."""
        for lead in range(1, self.steps + 1):
            yield lead, self.at(lead)

    @undisturbed()
    @torch.no_grad()
    def _state(self, lead: int) -> Float[Tensor, "s n c *grid"]:
        history, channels = self.ensemble.history, self.channels
        if not self._kept:
            window = self.ensemble.starts()
            for number in range(history):
                self._kept[number + 1 - history] = window[:, :, number * channels : (number + 1) * channels]
        for following in range(max(self._kept) + 1, lead + 1):
            window = torch.cat([self._kept[following - history + number] for number in range(history)], dim=2)
            self._kept[following] = self.ensemble.step(window, following)
        return self._kept[lead]

    def __len__(self) -> int:
        """Number of functions n."""
        return len(self.start)

    def __repr__(self) -> str:
        """A short description."""
        kind = f"{self.members} members, draws={self.ensemble.draws!r}"
        return f"Trajectory({len(self)} x {self.channels} on {self.grid!r}, {self.steps} steps, {kind})"
