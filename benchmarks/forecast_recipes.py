"""How networks of one step are trained for forecasts, in equal time, and the forecasts without a network."""

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
"""Processor time of a batch itself, of each evaluation with its gradient and of each one without, in units of a batch of one
step: what trainings of six equations took, in the median."""
RECIPES = {
    "one step": Unroll(),
    "several steps": Unroll(steps=4),
    "pushed forward": Unroll(steps=4, pushforward=True),
}
RIDGES = tuple(10.0**power for power in range(-12, 1))
"""Ridges that the regression of the step chooses among, relative to the largest squared singular value."""


def duration(unroll: Unroll) -> float:
    """Processor time of an epoch, in epochs of one step over as many pairs.

    Examples:
        >>> [round(duration(RECIPES[name]), 2) for name in ("one step", "several steps", "pushed forward")]
        [1.0, 2.92, 2.2]
    """
    judged = 2 if unroll.pushforward else unroll.steps
    return BATCH + JUDGED * judged + FREE * (unroll.steps - judged)


def epochs_for(unroll: Unroll, *, budget: float, windows: int) -> int:
    """The number of epochs over so many windows whose duration comes nearest to a budget; at least one."""
    return max(1, round(budget / (windows * duration(unroll))))


def trained(case: Case, recipe: str, *, seed: int, number: int, folder: Path, commit: str) -> tuple[Any, dict[str, Any]]:
    """A trained network and what is known of its training, from a file if this very one was trained before.

    Args:
        case: The equation.
        recipe: A name of `RECIPES`.
        seed: Of the functions, the weights and the batches.
        number: Which network of an ensemble.
        folder: Where networks are kept.
        commit: Of the code; networks of a checkout that differs from it are not kept.
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
    """The least-squares affine map of a state to the next, with a ridge: dynamic mode decomposition.

    Attributes:
        matrix: `(c p, c p)`, float64, acting from the right on states about `centre`.
        centre: Mean state before a step, `(c p,)`.
        offset: Mean state after it, `(c p,)`.
        ridge: Relative to the largest squared singular value.

    Reference:
        Schmid (2010), Dynamic mode decomposition of numerical and experimental data.
    """

    matrix: Tensor
    centre: Tensor
    offset: Tensor
    ridge: float

    @classmethod
    def fitted(cls, train: Truth, scaling: Truth) -> StepRegression:
        """Fit every ridge on the training trajectories, and keep the one whose roll-outs are best on the others."""
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
        """States `(n, leads, c, *grid)` from the starts of some trajectories."""
        start = truth.at(0).values
        state, found = start.double().flatten(1), []
        for _ in range(steps or truth.steps):
            state = (state - self.centre) @ self.matrix + self.offset
            found.append(state.reshape(start.shape))
        return torch.stack(found, dim=1)


@torch.no_grad()
def rolled_out(operator: torch.nn.Module, truth: Truth, *, steps: int | None = None) -> Tensor:
    """States `(n, leads, c, *grid)` that an operator of one step leads to, from the starts of some trajectories."""
    state, found = truth.at(0), []
    for _ in range(steps or truth.steps):
        state = pn.Field(operator(state.values, grid=state.grid), state.grid)
        found.append(state.values)
    return torch.stack(found, dim=1)


class DressedForecast:
    """One state per lead and the errors that it had on other trajectories: a forecast whose spread is the same for all.

    Args:
        states: `(n, leads, c, *grid)`.
        errors: Truth less such states on other trajectories, `(s, leads, c, *grid)`.
        grid: Where all live.
    """

    def __init__(self, states: Tensor, errors: Tensor, *, grid: pn.Grid) -> None:
        self.states, self.errors, self.grid = states, errors, grid

    @property
    def steps(self) -> int:
        """The largest lead."""
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
    """Nothing at every lead: its errors are the states themselves."""
    return torch.zeros_like(truth.values)
