"""A cheap simulator, recipe and head, so that tests of the loop are about the loop."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probneural.active import ActiveLearner, LearningPlan, OperatorTraining, Selector, SimulationOptions, StochasticSelection
from probneural.active.selectors import Request
from probneural.active.simulation.result_files import function_key
from probneural.active.simulation.store_files import RESULTS, SUFFIX
from probneural.distributions import DenseRoot, GaussianField, Predictor, PredictorTraits
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.training.callbacks import History
from tests.helpers import PerSetPredictor

GRID = Grid.uniform(8)


def functions(count: int, *, seed: int, grid: Grid = GRID) -> Field:
    """Random functions of two modes."""
    generator = torch.Generator().manual_seed(seed)
    angle = 2 * torch.pi * grid.points[:, 0]
    waves = torch.stack([torch.ones_like(angle), angle.sin(), angle.cos()])
    return Field((torch.randn(count, 3, generator=generator, dtype=torch.float64) @ waves)[:, None], grid)


def square(inputs: Field) -> Field:
    return Field(inputs.values.square(), inputs.grid)


@dataclass(frozen=True)
class Counted:
    """The square, with a line in a file for each call; sleeps, fails or returns NaN where the mean says so."""

    path: Path
    seconds: float = 0.0
    fails_above: float = float("inf")
    nan_below: float = float("-inf")

    def __call__(self, inputs: Field) -> Field:
        line = f"{float(inputs.values.sum())!r}\n".encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, line)
        os.close(descriptor)
        time.sleep(self.seconds)
        mean = float(inputs.values.mean())
        if mean > self.fails_above:
            raise RuntimeError(f"no convergence at {mean:.2f}")
        return Field(torch.full_like(inputs.values, torch.nan), inputs.grid) if mean < self.nan_below else square(inputs)

    @property
    def calls(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


def kneaded(operator: nn.Module, pairs: FieldPairs, *, seed: int, show_progress: bool = True) -> History:
    """A recipe that depends on old weights, data, seed and the global generator."""
    assert not show_progress
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in operator.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) + torch.rand_like(parameter)
            parameter.mul_(0.5).add_(0.1 * noise + pairs.outputs.values.mean())
        loss = float(sum(parameter.abs().sum() for parameter in operator.parameters()))
    return History(train=(1.0, loss), validation=(), seconds=(0.0, 0.0))


@dataclass(frozen=True)
class NearestHead:
    """Predicts the nearest labelled function's output; its standard deviation is the distance."""

    weight: float = 0.01

    def fit(self, operator: nn.Module | None, pairs: FieldPairs) -> Predictor:
        return _Nearest(operator, pairs, self.weight)


class _Nearest(PerSetPredictor):
    def __init__(self, operator: nn.Module | None, pairs: FieldPairs, weight: float) -> None:
        self.pairs, self.operator, self.weight = pairs, operator, weight
        noise = torch.full((1,), 1e-4, dtype=torch.float64)
        super().__init__(PredictorTraits(in_channels=1, noise=noise, domain=pairs.inputs.grid, like=noise))

    @torch.no_grad()
    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        where = query or inputs.grid
        distance = (inputs.values[:, None] - self.pairs.inputs.values[None]).square().mean((2, 3)).sqrt()
        nearest, position = distance.min(1)
        mean = self.pairs.outputs[position].resample(where).values
        if self.operator is not None:
            mean = mean + self.weight * Field(self.operator(inputs.values), inputs.grid).resample(where).values
        root = (0.1 + nearest)[:, None, None, None].expand(-1, 1, where.size, 1).contiguous()
        return GaussianField(mean, DenseRoot(root), latent="nearest", grid=where)


def convolution() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular", dtype=torch.float64)


class Here(Executor):
    """Runs everything at once, in the caller's thread: own processes take seconds to start."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*arguments, **options))
        return done


POOL = functions(60, seed=0)
TEST = FieldPairs(functions(20, seed=1), square(functions(20, seed=1)))
SELECTOR: Selector = StochasticSelection()


def learner(store: Path, simulator: Any = square, **changes: Any) -> ActiveLearner:
    """A loop of 6 random functions, 4 for calibration and batches of 4; changes go by the names of all its options."""
    settings: dict[str, Any] = {
        "head": NearestHead(),
        "acquisition": SELECTOR,
        "pool": POOL,
        "operator": convolution(),
        "train": kneaded,
        "initial": 6,
        "batch": 4,
        "calibration": 4,
        "test": TEST,
        "executor": Here(),
        "show_progress": False,
    } | changes
    made = {
        name: kind(**{option: settings.pop(option) for option in OPTIONS[kind] if option in settings})
        for name, kind in (("training", OperatorTraining), ("plan", LearningPlan), ("simulation", SimulationOptions))
    }
    return ActiveLearner(simulator, settings.pop("head"), store=store, **settings, **made)


OPTIONS = {kind: [field.name for field in fields(kind)] for kind in (OperatorTraining, LearningPlan, SimulationOptions)}


def same_pairs(first: FieldPairs, second: FieldPairs) -> bool:
    """Whether two data sets are equal bit for bit, in order."""
    sides: list[tuple[Tensor, Tensor]] = [
        (first.inputs.values, second.inputs.values),
        (first.outputs.values, second.outputs.values),
    ]
    return all(torch.equal(one, other) for one, other in sides)


def chosen(loop: ActiveLearner) -> list[tuple[int, ...]]:
    return [entry.chosen for entry in loop.history.rounds]


def same(first: ActiveLearner, second: ActiveLearner) -> bool:
    """Whether two loops ended with equal data, calibration data, history and weights."""
    weights = [
        [loop.store.load_tensors(f"weights-{number:04d}") for number in range(len(loop.history))] for loop in (first, second)
    ]
    return (
        first.history == second.history
        and same_pairs(first.pairs, second.pairs)
        and same_pairs(first.calibration_pairs, second.calibration_pairs)
        and all(torch.equal(one[key], other[key]) for one, other in zip(*weights, strict=True) for key in one)
    )


class Spy(Selector):
    """Takes the last ones, and writes down what it was asked."""

    def __init__(self) -> None:
        self.calls: list[Request] = []

    def __repr__(self) -> str:
        return "Spy()"

    def _choose(self, request: Request) -> torch.Tensor:
        self.calls.append(request)
        return torch.arange(len(request.pool) - 1, len(request.pool) - 1 - request.count, -1)


class Killed(BaseException):
    """As sudden as a signal."""


def interrupted(monkeypatch: pytest.MonkeyPatch, at: int, after: bool, start: Callable[[], object]) -> bool:
    """Run until the loop writes for the at-th time, and die before or after that; whether it died."""
    count, rename = itertools.count(), os.replace

    def replace_and_die(*arguments: Any, **options: Any) -> None:
        is_result = Path(arguments[1]).parent.name == RESULTS  # those are the store's, which has tests of its own
        doomed = not is_result and next(count) == at
        if doomed and not after:
            raise Killed
        rename(*arguments, **options)
        if doomed:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_and_die)
        try:
            start()
        except Killed:
            return True
    return False


@dataclass(frozen=True)
class Watched:
    """The square, slowly, with a line in a file for each call that the store could have answered."""

    store: Path
    repeats: Path

    def __call__(self, inputs: Field) -> Field:
        if (self.store / RESULTS / f"{function_key(inputs)}{SUFFIX}").exists():
            with self.repeats.open("a") as stream:
                stream.write("again\n")
        time.sleep(0.005)
        return square(inputs)


def work(store: Path, repeats: Path, started: Event) -> None:
    """What a process that is going to be killed does."""
    torch.set_num_threads(1)
    started.set()
    with ThreadPoolExecutor(2) as pool:
        learner(store, Watched(store, repeats), executor=pool).run(rounds=4)
