"""A linear Gaussian forecast whose exact distribution at every lead is known, and truth to go with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from probneural.distributions import DenseRoot, EmpiricalField, FieldDistribution, GaussianField
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.grids import Grid
from tests.helpers import normal

GRID = Grid.uniform((8,))
DECAY = 0.8


def waves() -> Tensor:
    """What the noise is made of, `(4, points)`."""
    x = 2 * math.pi * GRID.points[:, 0]
    return torch.stack([torch.ones_like(x), x.cos(), x.sin(), (2 * x).cos()])


def paths(start: Tensor, steps: int, *, members: int, seed: int | str) -> Tensor:
    """u_k = DECAY u_{k-1} + white noise in time, smooth in space: `(steps, members, n, c, *grid)`."""
    n, c = start.shape[:2]
    kicks = normal(steps, members, n, c, 4, seed=seed) @ waves()
    state, states = start.expand(members, *start.shape), []
    for kick in kicks:
        state = DECAY * state + kick
        states.append(state)
    return torch.stack(states)


@dataclass(frozen=True, eq=False)
class Members:
    """Members by lead, as `Forecast` wants them; deviations from their mean times `factors`, one per lead."""

    states: Tensor
    start: Tensor
    factors: Tensor | None = None
    grid: Grid = GRID

    @property
    def steps(self) -> int:
        return len(self.states)

    def at(self, lead: int) -> FieldDistribution:
        if lead == 0:
            return EmpiricalField(self.start.expand(self.states.shape[1], *self.start.shape), grid=self.grid)
        u = EmpiricalField(self.states[lead - 1], grid=self.grid)
        return u if self.factors is None else u.scale(self.factors[lead - 1].expand(self.states.shape[3]))

    def leads(self) -> Iterator[tuple[int, FieldDistribution]]:
        for lead in range(1, self.steps + 1):
            yield lead, self.at(lead)

    def __len__(self) -> int:
        return self.states.shape[2]

    def scaled(self, factors: Tensor) -> Members:
        return replace(self, factors=factors)

    def spread(self, factors: Tensor) -> Members:
        """Members of distributions whose deviations are times `factors`, one per lead: their mean strays as much more."""
        leads = torch.arange(1, self.steps + 1, dtype=torch.float64)
        exact = (DECAY**leads).reshape(-1, 1, 1, 1, 1) * self.start
        return replace(self, states=exact + factors.reshape(-1, 1, 1, 1, 1) * (self.states - exact))


@dataclass(frozen=True, eq=False)
class Exact:
    """The exact Gaussian distribution at every lead, all leads driven by one latent: the kicks."""

    start: Tensor
    steps: int
    grid: Grid = GRID

    def at(self, lead: int) -> GaussianField:
        n, c = self.start.shape[:2]
        gains = [DECAY ** (lead - kick) if kick <= lead else 0.0 for kick in range(1, self.steps + 1)]
        columns = torch.einsum("k,wp->pkw", torch.tensor(gains, dtype=torch.float64), waves()).reshape(8, -1)
        # Each channel has kicks of its own.
        root = torch.block_diag(*[columns] * c).reshape(c, 8, -1).expand(n, c, 8, -1)
        return GaussianField(DECAY**lead * self.start, DenseRoot(root), latent="kicks", grid=self.grid)

    def leads(self) -> Iterator[tuple[int, GaussianField]]:
        for lead in range(1, self.steps + 1):
            yield lead, self.at(lead)

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, eq=False)
class Truth:
    """True states by lead."""

    states: Tensor
    start: Field

    def at(self, lead: int) -> Field:
        if lead > len(self.states):
            raise ArgumentError(expected=f"a lead up to {len(self.states)}", got=str(lead), remedy="make longer trajectories")
        return self.start if lead == 0 else Field(self.states[lead - 1], self.start.grid)

    def __len__(self) -> int:
        return len(self.start)


def forecast_and_truth(
    n: int, *, steps: int = 5, members: int = 8, channels: int = 1, seed: int | str = 0, dtype: torch.dtype = torch.float64
) -> tuple[Members, Truth]:
    """Members that are exchangeable with the truth."""
    start = normal(n, channels, 8, seed=f"start {seed}")
    states = paths(start, steps, members=members + 1, seed=f"kicks {seed}").to(dtype)
    return Members(states[:, 1:], start.to(dtype)), Truth(states[:, 0], Field(start.to(dtype), GRID))
