"""Equations of the forecast benchmark: five exact semigroups and one chaotic equation, with their networks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import probneural as pn
from benchmarks.names import named
from probneural.pairs import evenly_spread_rows
from probneural.randomness import stream_seed

Truth = pn.FieldTrajectories
PARTS = ("train", "scaling", "bands", "test")
"""Disjoint sets of trajectories of a seed."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes.

    Attributes:
        train: Trajectories for training.
        scaling: Trajectories for scales and the ridge.
        residuals: Number of these that give residuals.
        bands: Trajectories for conformal bands; the coverage of a band has a standard deviation of about (.09 / bands)^1/2.
        test: Trajectories for scores.
        leads: Steps of a trajectory.
        epochs: Epochs of the recipe of one step; other recipes take equal time.
        members: Members of a forecast.
        networks: Networks of an ensemble.
        steps: Windows, evenly spread over the scaling trajectories, that scale a head's variance of one step.
        long: Leads of roll-outs in the test of stability.
        kernel: Windows for the kernel operator.
    """

    train: int = 200
    scaling: int = 300
    residuals: int = 200
    bands: int = 300
    test: int = 300
    leads: int = 20
    epochs: int = 12
    members: int = 16
    networks: int = 4
    steps: int = 600
    long: int = 200
    kernel: int = 300


SMALL = Sizes(
    train=6, scaling=10, residuals=8, bands=10, test=4, leads=4, epochs=1, members=3, networks=2, steps=12, long=6, kernel=12
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """An equation, its time step, and the network of one step.

    Attributes:
        name: Name in tables and for `--problem`.
        problem: The problem; its `time` is one step.
        resolution: Points per axis.
        network: Arguments of the FNO other than channels.
        sizes: Sizes.
    """

    name: str
    problem: Any
    resolution: int
    network: dict[str, Any] = field(hash=False)
    sizes: Sizes = Sizes()

    def truth(self, part: str, *, seed: int) -> Truth:
        """Exact trajectories of one part and seed, from the state after one step; a few are cached."""
        return _truth(self, part, seed)

    def build(self, truth: Truth, *, seed: int) -> pn.operators.FNO:
        """An untrained network of one step."""
        return pn.operators.FNO(truth.start.channels, truth.channels, **self.network, seed=seed)


@lru_cache(maxsize=len(PARTS))
def _truth(case: Case, part: str, seed: int) -> Truth:
    times = [case.problem.time * lead for lead in range(1, case.sizes.leads + 2)]
    own = stream_seed(seed, "forecast functions", PARTS.index(part))
    full: Truth = case.problem.trajectory(getattr(case.sizes, part), times=times, resolution=case.resolution, seed=own)
    return Truth(full.at(1), full.values[:, 1:], times=full.times[1:] - full.times[0])


def cases() -> list[Case]:
    """All cases."""
    problems = pn.problems
    line = {"modes": (16,), "width": 16, "depth": 3, "projection": 32}
    plane = {"modes": (9, 9), "width": 12, "depth": 3, "projection": 24}
    few = replace(Sizes(), train=80, scaling=60, bands=60, test=60, epochs=10)
    return [
        Case(name="heat", problem=problems.Heat(0.01, time=0.05, dimension=1), resolution=64, network=line),
        Case(
            name="advection-diffusion",
            problem=problems.AdvectionDiffusion(1.0, diffusivity=0.002, time=0.05),
            resolution=64,
            network=line,
        ),
        Case(name="shallow water", problem=problems.ShallowWater(time=0.02), resolution=24, network=plane, sizes=few),
        Case(name="burgers", problem=problems.Burgers(viscosity=0.01, time=0.05), resolution=64, network=line),
        Case(name="korteweg-de vries", problem=problems.KortewegDeVries(0.15), resolution=128, network=line),
        Case(
            name="kuramoto-sivashinsky",
            problem=problems.KuramotoSivashinsky(time=1.0),
            resolution=96,
            network=line | {"modes": (24,)},
        ),
    ]


def chosen(problem: str | None, *, small: bool) -> list[Case]:
    """Cases of a run: all, or those whose names start with a text; reduced to seconds if `small`.

    Raises:
        ValueError: If no name starts with the text.
    """
    by_name = {case.name: case for case in cases()}
    found = [by_name[name] for name in named(list(by_name), problem)]
    return [_smaller(case) for case in found] if small else found


def _smaller(case: Case) -> Case:
    network = {**case.network, "modes": tuple(4 for _ in case.network["modes"]), "width": 4, "depth": 1, "projection": 4}
    return replace(case, network=network, sizes=SMALL)


def evenly_spread(pairs: pn.FieldPairs, count: int) -> pn.FieldPairs:
    """`count` windows, evenly spread over all."""
    return pairs[evenly_spread_rows(len(pairs), count)]
