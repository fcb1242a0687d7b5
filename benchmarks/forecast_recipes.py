"""Training recipes of networks of one step, in equal time, and forecasts without a network."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import probneural as pn
from benchmarks import environment
from benchmarks.forecast_cases import Case, Truth
from probneural.randomness import stream_seed
from probneural.training import Unroll

BATCH, JUDGED, FREE = 0.36, 0.64, 0.28
"""Processor time of a batch, of each evaluation with gradient and of each one without, in units of a batch of one
step: medians over trainings on six equations."""
RECIPES = {
    "one step": Unroll(),
    "several steps": Unroll(steps=4),
    "pushed forward": Unroll(steps=4, pushforward=True),
}
RIDGES = tuple(10.0**power for power in range(-12, 1))
"""Candidate ridges of the step regression, relative to the largest squared singular value."""


def duration(unroll: Unroll) -> float:
    """Processor time of an epoch, in epochs of one step over the same number of pairs.

    Examples:
        >>> [round(duration(RECIPES[name]), 2) for name in ("one step", "several steps", "pushed forward")]
        [1.0, 2.92, 2.2]
    """
    judged = 2 if unroll.pushforward else unroll.steps
    return BATCH + JUDGED * judged + FREE * (unroll.steps - judged)


def epochs_for(unroll: Unroll, *, budget: float, windows: int) -> int:
    """Number of epochs with the duration nearest to a budget; at least one."""
    return max(1, round(budget / (windows * duration(unroll))))


def trained(case: Case, recipe: str, *, seed: int, number: int, folder: Path, commit: str) -> tuple[Any, dict[str, Any]]:
    """A trained network with facts of its training, from a file if it was trained before.

    Args:
        case: The equation.
        recipe: A name of `RECIPES`.
        seed: Seed of functions, weights and batches.
        number: Index of the network in an ensemble.
        folder: Folder of trained networks.
        commit: Commit of the code; networks of a modified checkout are not stored.
    """
    path = folder / environment.file_name(
        f"{case.name} {recipe} {seed} {number}", case, RECIPES[recipe], commit, suffix=".safetensors"
    )
    beside = path.with_suffix(".json")
    if beside.exists():
        return pn.load(path), environment.kept(beside)
    truth, unroll, own = (
        case.truth("train", seed=seed),
        RECIPES[recipe],
        stream_seed(seed, "forecast network", number),
    )
    operator = case.build(truth, seed=own)
    one, several = truth.windows(), truth.windows(steps=unroll.steps)
    budget = len(one) * duration(Unroll()) * case.sizes.epochs
    epochs = epochs_for(unroll, budget=budget, windows=len(several))
    start = time.process_time()
    history = pn.fit(
        operator,
        several,
        epochs=epochs,
        seed=own,
        loss=unroll,
        data=pn.training.DataOptions(validation=0.0),
        show_progress=False,
    )
    facts = {
        "epochs": epochs,
        "seconds": time.process_time() - start,
        "loss": history.train[-1],
    }
    if environment.is_clean(commit):
        path.parent.mkdir(parents=True, exist_ok=True)
        pn.save(operator, path)
        environment.keep(facts, beside)
    return operator, facts


@dataclass(frozen=True, eq=False)
class StepRegression:
    """Least-squares affine map from a state to the next, with a ridge: dynamic mode decomposition.

    Attributes:
        matrix: `(c p, c p)`, float64, acting from the right on states about `centre`.
        centre: Mean state before a step, `(c p,)`.
        offset: Mean state after a step, `(c p,)`.
        ridge: Ridge relative to the largest squared singular value.

    Reference:
        Schmid (2010), Dynamic mode decomposition of numerical and experimental data.
    """

    matrix: Tensor
    centre: Tensor
    offset: Tensor
    ridge: float

    @classmethod
    def fitted(cls, train: Truth, scaling: Truth) -> StepRegression:
        """Fit every ridge to the training trajectories and select the one with the best roll-outs on others."""
        step = train.windows()
        before, after = (side.values.double().flatten(1) for side in (step.inputs, step.outputs))
        centre, offset = before.mean(0), after.mean(0)
        left, sizes, right = torch.linalg.svd(before - centre, full_matrices=False)
        image = left.mT @ (after - offset)
        best: tuple[float, StepRegression] | None = None
        for ridge in RIDGES:
            damped = sizes / (sizes.square() + ridge * sizes[0].square())
            found = cls((right.mT * damped) @ image, centre, offset, ridge)
            error = float((found.rolled_out(scaling) - scaling.values.double()).square().mean())
            if best is None or error < best[0]:
                best = error, found
        assert best is not None
        return best[1]

    def rolled_out(self, truth: Truth, *, steps: int | None = None) -> Tensor:
        """States `(n, leads, c, *grid)` of the roll-outs from the starts of trajectories."""
        start = truth.at(0).values
        state, found = start.double().flatten(1), []
        for _ in range(steps or truth.steps):
            state = (state - self.centre) @ self.matrix + self.offset
            found.append(state.reshape(start.shape))
        return torch.stack(found, dim=1)


@torch.no_grad()
def rolled_out(operator: torch.nn.Module, truth: Truth, *, steps: int | None = None) -> Tensor:
    """States `(n, leads, c, *grid)` of the roll-outs of an operator of one step from the starts of trajectories."""
    state, found = truth.at(0), []
    for _ in range(steps or truth.steps):
        state = pn.Field(operator(state.values, grid=state.grid), state.grid)
        found.append(state.values)
    return torch.stack(found, dim=1)


class DressedForecast:
    """Forecast of one state per lead plus its errors on other trajectories, with the same spread for all samples.

    Args:
        states: States, `(n, leads, c, *grid)`.
        errors: Truth minus such states on other trajectories, `(s, leads, c, *grid)`.
        grid: Grid of all states.
    """

    def __init__(self, states: Tensor, errors: Tensor, *, grid: pn.Grid) -> None:
        self.states, self.errors, self.grid = states, errors, grid

    @property
    def steps(self) -> int:
        """Number of leads."""
        return self.states.shape[1]

    def at(self, lead: int) -> pn.distributions.EmpiricalField:
        """The distribution at a lead, from 1."""
        samples = self.states[None, :, lead - 1] + self.errors[:, None, lead - 1]
        return pn.distributions.EmpiricalField(samples, grid=self.grid)

    def leads(self) -> Iterator[tuple[int, pn.distributions.EmpiricalField]]:
        """All leads in order."""
        for lead in range(1, self.steps + 1):
            yield lead, self.at(lead)

    def __len__(self) -> int:
        return len(self.states)


def persistence(truth: Truth) -> Tensor:
    """The start at every lead."""
    start = truth.at(0).values
    return start[:, None].expand_as(truth.values)


def climatology(truth: Truth) -> Tensor:
    """Zero at every lead: its errors are the states."""
    return torch.zeros_like(truth.values)
