"""Work items of the active-learning benchmark: one distribution, head, selector and seed, through all rounds.

All items of a seed share pool, test functions, initial labels, and the initial weights and batches of every round. Random
choice does not depend on the head, so one item serves both: it trains the ensemble, whose first member is the single operator.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

import probneural as pn
from benchmarks import environment
from benchmarks.active_sources import VariedInputs, VariedSource
from probneural.active.selectors import integrated_variances
from probneural.errors import ProbneuralError
from probneural.randomness import stream, stream_seed

LAST_LAYER, ENSEMBLE = "last layer", "ensemble"
MEMBERS = 3
RANDOM = "random"
NAMES: dict[type[pn.active.Selector], str] = {
    pn.active.RandomSelection: RANDOM,
    pn.active.StochasticSelection: "stochastic",
}


def seed_of_pool(seed: int) -> int:
    """Seed of the pool."""
    return stream_seed(seed, "benchmark pool")


def seed_of_tests(seed: int) -> int:
    """Seed of the test functions."""
    return stream_seed(seed, "benchmark test")


@dataclass(frozen=True)
class FNOTraining:
    """An FNO and its training, with a number of gradient steps that does not depend on the number of labels.

    Attributes:
        modes: Frequencies per axis.
        width: Channels of hidden states.
        depth: Number of blocks.
        projection: Features of the last layer.
        steps: Gradient steps.
        batch_size: Pairs per step.
        learning_rate: Peak of the schedule.
    """

    modes: tuple[int, ...]
    _: KW_ONLY
    width: int = 16
    depth: int = 4
    projection: int = 64
    steps: int = 800
    batch_size: int = 16
    learning_rate: float = 5e-3

    def train(self, pairs: pn.FieldPairs, *, seed: int) -> pn.operators.FNO:
        """Train from new weights on all pairs.

        The loss is the average root mean squared error of functions, in units of the outputs' standard deviation. Unlike
        a relative error, it gives functions that have decayed a small weight, as the scores do.
        """
        periodic = pairs.inputs.grid.periodic
        operator = pn.operators.FNO(
            pairs.inputs.channels,
            pairs.outputs.channels,
            modes=self.modes,
            width=self.width,
            depth=self.depth,
            projection=self.projection,
            periodic=periodic,
            embeds_position=not all(periodic),
            seed=seed,
        )
        scales = channel_scales(pairs.outputs)

        def loss(predicted: Tensor, target: Tensor, grid: pn.Grid) -> Tensor:
            squares = pn.Field((predicted - target) / scales.to(target), grid).mean_square().mean(1)
            return squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt().mean()

        # Pairs are repeated so that an epoch has at least 16 steps: epochs have a fixed cost.
        per_epoch = max(16, math.ceil(len(pairs) / self.batch_size))
        tiled = pairs[torch.arange(per_epoch * self.batch_size) % len(pairs)]
        pn.fit(
            operator,
            tiled,
            epochs=max(1, round(self.steps / per_epoch)),
            seed=seed,
            data=pn.training.DataOptions(batch_size=self.batch_size, validation=0.0),
            learning_rate=self.learning_rate,
            loss=loss,
            show_progress=False,
        )
        return operator


@dataclass(frozen=True)
class Protocol:
    """Sizes shared by all work items.

    Attributes:
        rounds: Numbers of labels at which operators are trained.
        pool: Number of candidate input functions.
        tests: Number of test functions.
    """

    rounds: tuple[int, ...] = (16, 32, 64, 128, 256)
    pool: int = 4000
    tests: int = 500


@dataclass(frozen=True)
class Unit:
    """One work item.

    Attributes:
        source: The distribution.
        recipe: Training of the operators.
        head: LAST_LAYER or ENSEMBLE; None for random choice, for both heads.
        selector: Selection rule.
        seed: Seed of pool, tests, initial labels and initial weights.
        protocol: Sizes.
        commit: Commit of the code.
        folder: Folder of finished items.
    """

    source: VariedSource
    recipe: FNOTraining
    head: str | None
    selector: pn.active.Selector
    seed: int
    protocol: Protocol
    commit: str
    folder: Path

    @property
    def name(self) -> str:
        """Name of the selector in tables."""
        return NAMES[type(self.selector)]

    @property
    def query(self) -> pn.Grid:
        """Coarser grid on which the selector compares functions."""
        return coarser(self.source.grid, 2 * self.source.grid.dimension)

    @property
    def trainings(self) -> int:
        """Number of trained operators, with those of the first round."""
        return len(self.protocol.rounds) * (1 if self.head == LAST_LAYER else MEMBERS)

    @property
    def path(self) -> Path:
        """Path of the result; its name has all settings."""
        label = f"{self.source.name} {self.head or 'all'} {self.name} {self.seed}"
        return self.folder / f"{_slug(label)}-{self._digest(self.head, self.selector)}.json"

    def start_path(self, member: int) -> Path:
        """Path of an operator of the first round, which does not depend on the selector."""
        return self.folder / "start" / f"{_slug(self.source.name)}-{self.seed}-{member}-{self._digest(member)}.safetensors"

    @property
    def is_kept(self) -> bool:
        """Whether results are stored, which requires an unmodified commit."""
        return not self.commit.endswith(("-modified", "unknown"))

    def _digest(self, *more: object) -> str:
        said = (self.commit, self.source, self.recipe, self.seed, self.protocol, MEMBERS, _versions(), *more)
        return hashlib.sha256(repr(said).encode()).hexdigest()[:12]


def run(unit: Unit) -> dict[str, Any]:
    """Run all rounds, or read a stored result; return facts and one row per round and head."""
    torch.set_num_threads(1)
    if unit.is_kept and unit.path.exists():
        return environment.kept(unit.path) | {"resumed": True}
    start = time.perf_counter()
    facts: dict[str, Any] = {"problem": unit.source.name, "head": unit.head, "selector": unit.name, "seed": unit.seed}
    try:
        rows = _rounds(unit)
    except (ProbneuralError, RuntimeError) as error:  # stored as a failure, so that other items continue
        return facts | {"rows": [], "failed": f"{type(error).__name__}: {error}", "seconds": time.perf_counter() - start}
    facts |= {"rows": rows, "seconds": time.perf_counter() - start}
    environment.keep(facts, unit.path)
    return facts


def _rounds(unit: Unit) -> list[dict[str, Any]]:
    protocol, heads = unit.protocol, (LAST_LAYER, ENSEMBLE) if unit.head is None else (unit.head,)
    pool = unit.source.draw(protocol.pool, seed=seed_of_pool(unit.seed))
    inputs, test = pool.inputs, _tests(unit.source, protocol.tests, seed_of_tests(unit.seed))
    labelled = torch.randperm(protocol.pool, generator=stream(unit.seed, "benchmark start"))[: protocol.rounds[0]].tolist()
    pairs = pool.label(labelled)
    rows = []
    for number, size in enumerate(protocol.rounds):
        start = time.perf_counter()
        operators = _trained(unit, pairs, number)
        trained = time.perf_counter() - start
        for head in heads:
            predictor = fitted(head, operators, pairs)
            row = {"head": head, "labels": size, "train_seconds": trained} | scores(predictor, test)
            rows.append(row)
        if size == protocol.rounds[-1]:
            break
        start = time.perf_counter()
        chosen = unit.selector.select(
            predictor,
            inputs,
            count=protocol.rounds[number + 1] - size,
            seed=stream_seed(unit.seed, "benchmark choice", number),
            labelled=inputs[labelled],
            query=unit.query,
        ).tolist()
        row["select_seconds"] = time.perf_counter() - start
        row["chosen"] = chosen
        pairs, labelled = pn.FieldPairs.cat([pairs, pool.label(chosen)]), labelled + chosen
    return rows


def _trained(unit: Unit, pairs: pn.FieldPairs, number: int) -> list[pn.operators.FNO]:
    """Operators of a round; those of the first round are stored for other selectors."""
    operators = []
    for member in range(1 if unit.head == LAST_LAYER else MEMBERS):
        path = unit.start_path(member)
        if number == 0 and unit.is_kept and path.exists():
            operators.append(pn.load(path))
            continue
        seed = stream_seed(unit.seed, "benchmark recipe", number, member)
        operators.append(unit.recipe.train(pairs, seed=seed))
        if number == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            pn.save(operators[-1], path)
    return operators


def fitted(head: str, operators: Sequence[pn.operators.FNO], pairs: pn.FieldPairs) -> pn.distributions.Predictor:
    """Uncalibrated posterior of trained operators: all labels were used in training."""
    if head == LAST_LAYER:
        return pn.heads.LastLayerLaplace().fit(operators[0], pairs)
    rest = iter(operators[1:])

    def recall(operator: torch.nn.Module, data: pn.FieldPairs, *, seed: int) -> None:
        operator.load_state_dict(next(rest).state_dict())

    ensemble = pn.heads.DeepEnsemble(len(operators), train=recall, keeps_operator=True, show_progress=False)
    return ensemble.fit(operators[0], pairs)


def scores(predictor: pn.distributions.Predictor, test: pn.FieldPairs) -> dict[str, float]:
    """Errors on test functions, and their rank correlation with the posterior's variances.

    Returns:
        `rmse` over all functions, channels and points, and quantiles `q50`, `q95` and `q99` of the RMSE of single functions,
        all in units of the standard deviation of the test outputs per channel; `ranks`, Spearman's correlation over functions
        between the integrated variance, on the grid of the data, and the squared error.
    """
    scales = channel_scales(test.outputs).double()
    means = [predictor(test.inputs[start : start + 100]).mean for start in range(0, len(test), 100)]
    differences = (torch.cat(means).double() - test.outputs.values.double()) / scales
    squares = pn.Field(differences, test.outputs.grid).mean_square().mean(1)
    variances = integrated_variances(predictor, test.inputs)
    middle, high, highest = squares.sqrt().quantile(torch.tensor([0.5, 0.95, 0.99], dtype=torch.float64)).tolist()
    return {
        "rmse": float(squares.mean().sqrt()),
        "q50": middle,
        "q95": high,
        "q99": highest,
        "ranks": float(spearmanr(variances.numpy(), squares.numpy()).statistic),
    }


def channel_scales(outputs: pn.Field) -> Tensor:
    """Standard deviation of each channel over functions and points, with the axes of values."""
    values = outputs.values
    return values.std(dim=(0, *range(2, values.ndim)), keepdim=True)


def coarser(grid: pn.Grid, part: int) -> pn.Grid:
    """A grid with one `part`-th of the points, or cells between walls, per axis."""
    axes = zip(grid.shape, grid.periodic, strict=True)
    return grid.resized(tuple(size // part if periodic else (size - 1) // part + 1 for size, periodic in axes))


@cache
def _versions() -> dict[str, str]:
    return environment.versions()


@lru_cache(maxsize=2)
def _tests(source: VariedSource, count: int, seed: int) -> pn.FieldPairs:
    """Test functions, cached for the successive items of a seed."""
    drawn: VariedInputs = source.draw(count, seed=seed)
    return drawn.label(range(count))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
