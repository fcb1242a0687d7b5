"""Work items of the main benchmark: training of one operator, evaluation of its heads, and their expected cost."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import probneural as pn
from benchmarks import environment, evaluation, recipes
from benchmarks.evaluation import FULL, Extent
from benchmarks.method_figures import Sketch
from benchmarks.recipes import Recipe
from benchmarks.sources import ProblemSource, Source
from probneural.errors import ProbneuralError
from probneural.heads.last_layer.laplace import LastLayerPredictor

MEMBERS = 4
ENSEMBLE = f"ensemble of {MEMBERS}"
KERNEL = "kernel operator"
REGRESSION = Recipe("linear regression")
POINT = {"FNO": 6.5e-6, "DeepONet": 4.5e-6, "POD-DeepONet": 4.5e-6}
"""Seconds of one core per point of a pair and epoch, at width 32; only ratios matter."""
WHOLE_VALUE = 1.5e-4
"""Seconds of one core per value for field-wise scores."""
RANKS = {"linear regression": 2.0}
"""Factor of that cost for operators with more features than a network."""
ASKED = 0.03
"""Seconds of one core per point of the training grid for calibration, bands and intervals."""


@dataclass(frozen=True)
class Training:
    """One training run in a worker process."""

    case: int
    source: Source
    recipe: Recipe
    member: int
    path: Path
    is_longer: bool = False
    """Whether it only measures training twice as long."""

    @property
    def name(self) -> str:
        """Name in progress messages."""
        what = "trained for twice as long" if self.is_longer else f"number {self.member + 1} trained"
        return f"{self.source.name}: {self.recipe.kind} {what}"

    @property
    def epoch_cost(self) -> float:
        """Expected seconds of one core for an epoch: pairs x points x cost of a point, see `POINT`."""
        pairs = self.source.pairs if isinstance(self.source, ProblemSource) else len(self.source.train)
        width = self.recipe.options.get("width", 32) / 32
        return POINT[self.recipe.kind] * width**2 * (pairs or 0) * self.source.points

    @property
    def cost(self) -> float:
        """Expected seconds of one core."""
        return self.recipe.epochs * self.epoch_cost


@dataclass(frozen=True)
class Evaluation:
    """All heads of one operator on one case in a worker process."""

    case: int
    source: Source
    kind: str
    members: tuple[Path, ...] = ()
    extent: Extent = FULL

    @property
    def name(self) -> str:
        """Name in progress messages."""
        return f"{self.source.name}: {self.kind} evaluated"

    @property
    def heads(self) -> int:
        """Number of heads of the operator."""
        return 2 if len(self.members) > 1 else 1

    @property
    def cost(self) -> float:
        """Expected seconds of one core: fits, the first test set, and scores per test set and head."""
        if isinstance(self.source, ProblemSource):
            shifts = len(self.source.problem.shifts())
            shifts = shifts if self.extent.shifts is None else min(shifts, self.extent.shifts)
            finer = [] if self.source.finer is None else [math.prod(self.source.finer)]
            points = [*[self.source.points] * (1 + shifts), *finer]
        else:
            points = [self.source.points] * len(self.source.places())
        return self.heads * (self.fit_cost + sum(map(self.place_cost, points)))

    @property
    def fit_cost(self) -> float:
        """Expected seconds of one core per head for the fit, the calibration and the first test set."""
        return (20.0 if self.kind == KERNEL else 0.0) + 1.0 + ASKED * self.source.points

    def place_cost(self, points: int) -> float:
        """Expected seconds of one core for the scores on one test set."""
        return 0.2 + RANKS.get(self.kind, 1.0) * WHOLE_VALUE * points * self.extent.whole[self.source.dimension]


def train(task: Training, ticks: Any) -> dict[str, Any]:
    """Train one member and store it, or read a stored one; return facts."""
    torch.set_num_threads(1)
    beside = task.path.with_suffix(".json")
    if beside.exists() and not environment.commit().endswith(("-modified", "unknown")):
        ticks.put(task.cost)
        known: dict[str, Any] = json.loads(beside.read_text())
        return known | {"resumed": True}
    operator, facts, _ = task.recipe.train(task.source.train, seed=task.member, tick=lambda: ticks.put(task.epoch_cost))
    facts["calibration_error"] = _error(operator, task.source.calibration)
    task.path.parent.mkdir(parents=True, exist_ok=True)
    pn.save(operator, task.path)
    environment.write_json(facts, beside)
    return facts


@torch.no_grad()
def _error(operator: torch.nn.Module, pairs: pn.FieldPairs) -> float:
    """Mean relative L2 error of an operator."""
    where = None if pairs.outputs.grid == pairs.inputs.grid else pairs.outputs.grid
    predicted = operator.eval()(pairs.inputs.values, grid=pairs.inputs.grid, query=where)
    return float(pn.metrics.relative_l2(pn.Field(predicted, pairs.outputs.grid), pairs.outputs).mean())


def evaluate(task: Evaluation, ticks: Any) -> tuple[list[dict[str, Any]], list[Sketch]]:
    """Fit every head of one operator, calibrate and score each; return runs and data of figures."""
    torch.set_num_threads(1)
    source, meter = task.source, _Meter(ticks, task.cost)
    places = _chosen_places(task)
    members = [pn.load(path) for path in task.members]
    training, makers = _heads(task, members)
    runs: list[dict[str, Any]] = []
    sketches: list[Sketch] = []
    for head, make in makers.items():
        start = time.process_time()
        run = {"problem": source.name, "operator": task.kind, "head": head, "seed": 0, "train": training}
        try:
            raw = make()
            fitted: dict[str, Any] = {"seconds": time.process_time() - start}
            if isinstance(raw, LastLayerPredictor):
                fitted |= {"effective_observations": raw.effective_observations.tolist(), "log_evidence": raw.log_evidence}
            meter.add(task.fit_cost)
            more, evaluations, sketch = evaluation.evaluate(
                raw,
                source,
                places,
                name=f"{task.kind}, {head}",
                extent=task.extent,
                compares_scales=task.extent.compares_scales and task.kind == "FNO" and not runs,
                tick=lambda pairs: meter.add(task.place_cost(pairs.outputs.grid.size)),
            )
        except (ProbneuralError, RuntimeError) as error:  # stored as a failed row, so that others continue
            traceback.print_exc()
            runs.append(run | {"head_fit": {"seconds": time.process_time() - start, "failed": str(error)}, "evaluations": []})
            continue
        if head == ENSEMBLE:
            for one in evaluations:
                one["member_errors"] = [_error(member, places[one["on"]]) for member in members]
        sketches.append(sketch)
        runs.append(run | {"head_fit": fitted | more, "evaluations": evaluations})
    meter.finish()
    return runs, sketches


def _heads(
    task: Evaluation, members: list[torch.nn.Module]
) -> tuple[dict[str, Any], dict[str, Callable[[], pn.distributions.Predictor]]]:
    """Facts of a training within the evaluation, and the fit of each head."""
    pairs = task.source.train
    facts: dict[str, Any] = {"pairs": len(pairs), "resolution": list(pairs.inputs.grid.shape)}
    if task.kind == KERNEL:
        return facts, {"Gaussian process": lambda: pn.heads.KernelOperator().fit(None, pairs)}
    operator = members[0] if members else None
    if task.kind == REGRESSION.kind:
        operator, facts, _ = REGRESSION.train(pairs, seed=0, tick=lambda: None)
    makers: dict[str, Callable[[], pn.distributions.Predictor]] = {
        "last-layer Laplace": lambda: pn.heads.LastLayerLaplace().fit(operator, pairs)
    }
    if len(members) > 1:
        makers[ENSEMBLE] = lambda: recipes.ensemble(members, pairs)
    return facts, makers


def _chosen_places(task: Evaluation) -> Mapping[str, pn.FieldPairs]:
    """Test sets: on the training grid, on the finer grid, and on the shifts of the extent."""
    places = task.source.places()
    if task.extent.shifts is None or not isinstance(task.source, ProblemSource):
        return places
    shifts = list(task.source.problem.shifts())[task.extent.shifts :]
    return {name: pairs for name, pairs in places.items() if name not in shifts}


class _Meter:
    """Reports the cost of a job so far to the progress, and finally its expected cost."""

    def __init__(self, ticks: Any, total: float) -> None:
        self._ticks, self._left = ticks, total

    def add(self, cost: float) -> None:
        spent = min(cost, self._left)
        self._left -= spent
        self._ticks.put(spent)

    def finish(self) -> None:
        self.add(self._left)
