"""Time and memory from training to scores, in units of a training epoch: where a user's time goes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.acquisition import qUpperConfidenceBound
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from tqdm.auto import tqdm

import probneural as pn
from benchmarks import sections
from benchmarks.memory import peak_memory, reset_peak_memory
from benchmarks.recipes import Recipe, fno
from benchmarks.workers import spawned
from probneural.randomness import stream, stream_seed

EPOCHS = 50
"""Epochs of a training, the default of `pn.fit`; two of them are run and measured."""
HELD_OUT = 64
"""Samples for calibration, and samples that are predicted and scored."""
DRAWS = 32
RESTARTS = 8
"""Designs whose acquisition values and gradients are computed in one step."""
SHARE = 0.25
"""Largest share of the training's time for head, calibration, prediction and scores together."""
STAGES = ("head", "calibrate", "predict", "score")
"""Stages that count in the share."""
HEADS: dict[str, Callable[[], Any]] = {
    "last layer": pn.heads.LastLayerLaplace,
    "kernel operator": pn.heads.KernelOperator,
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A problem, its operator and a head.

    Attributes:
        problem: Problem with exact solutions.
        shape: Points per axis.
        pairs: Number of training pairs.
        recipe: Recipe of the operator.
        head: Name in `HEADS`.
    """

    problem: pn.problems.Problem
    shape: tuple[int, ...]
    pairs: int
    recipe: Recipe
    head: str = "last layer"

    @property
    def name(self) -> str:
        """Name in tables."""
        points = " x ".join(map(str, self.shape))
        return f"{self.problem.name}, {points} points, {self.pairs} samples, {self.head}"


def cases(*, small: bool) -> list[Case]:
    """A line with two heads, and two planes."""
    problems = pn.problems
    burgers = partial(Case, problems.Burgers(viscosity=0.01, design_dim=4))
    if small:
        return [burgers((64,), 20, fno(4, epochs=2, width=4, depth=2, projection=4))]
    line, plane = fno(16, epochs=EPOCHS, width=32), fno(12, 12, epochs=EPOCHS, width=32)
    return [
        burgers((64,), 1000, line),
        burgers((64,), 1000, line, "kernel operator"),
        Case(problems.Darcy2D(), (64, 64), 200, plane),
        Case(problems.ShallowWater(), (64, 64), 200, plane),
    ]


def main(*, mode: str, output: Path) -> dict[str, Any]:
    """Run every case in a process of its own, with one thread."""
    small = mode == "small"

    def alone(work: Callable[..., list[Row]], sizes: Sequence[Any], name: str) -> list[Row]:
        """Rows of each size, each from a process of its own, for its peak memory."""
        found = []
        for size in tqdm(sizes, desc=name, unit="case"):
            with spawned(1) as pool:
                found += pool.submit(work, size).result()
        return found

    parts = sections.made_of(
        lambda: alone(measured, cases(small=small), "chain"), {"stages": lambda rows: rows, "shares": shares}
    )
    parts["inducing points"] = lambda: alone(
        with_inducing_points, (300, 600) if small else (2_500, 5_000, 10_000, 20_000), "kernel operator"
    )
    parts["large grids"] = lambda: alone(on_large_grids, (100, 200) if small else (25_000, 100_000), "large grids")
    return sections.write(
        "chain",
        parts,
        mode=mode,
        output=output,
        notes=[
            f"CPU seconds of one thread. Training: two epochs measured, {EPOCHS} counted. {HELD_OUT} samples calibrate and "
            f"{HELD_OUT} others are predicted with standard deviations, drawn {DRAWS} times and scored. Acquisition: value and "
            f"gradient of an upper confidence bound at {RESTARTS} designs. Memory: peak beyond what the process held before",
            f"share: {', '.join(STAGES)} over the training of {EPOCHS} epochs; aim {SHARE:g}",
        ],
    )


def measured(case: Case) -> list[Row]:
    """Stages of one case: seconds, epochs and peak memory."""
    torch.set_num_threads(1)
    train, held_out, test = (
        case.problem.sample(number, resolution=case.shape, seed=stream_seed(0, "chain functions", part))
        for part, number in enumerate((case.pairs, HELD_OUT, HELD_OUT))
    )
    operator = case.recipe.build(train, seed=0)
    rows: list[Row] = []

    def stage(name: str, work: Callable[[], Any], *, output: Callable[[Any], int] | None = None) -> Any:
        result, seconds, memory = _timed(work)
        epochs = EPOCHS if name == "train" else seconds / rows[0]["seconds"] * EPOCHS
        rows.append({"case": case.name, "stage": name, "seconds": seconds, "epochs": epochs, "peak MB": memory})
        rows[-1]["output MB"] = None if output is None else output(result) / 1e6
        return result

    epochs = min(2, case.recipe.epochs)
    stage("train", lambda: pn.fit(operator, train, epochs=epochs, seed=0, show_progress=False))
    rows[0]["seconds"] *= EPOCHS / epochs
    predictor = stage("head", lambda: HEADS[case.head]().fit(operator, train))
    calibrated = stage("calibrate", lambda: pn.calibration.calibrate(predictor, held_out, level=0.9, seed=0))
    u, _ = stage("predict", lambda: _predicted(calibrated, test), output=lambda result: 2 * _bytes(result[1]))
    stage("draw", lambda: u.rsample((DRAWS,), seed=0), output=_bytes)
    stage("score", lambda: pn.metrics.score(u, test.outputs, noise=calibrated.noise))
    stage("acquisition", _acquisition(case.problem, predictor, test))
    return rows


def _timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Result, CPU seconds, and peak memory in megabytes beyond what the process held."""
    before, start = reset_peak_memory(), time.process_time()
    result = work()
    return result, time.process_time() - start, max(0, peak_memory() - before) / 1e6


def with_inducing_points(pairs: int) -> list[Row]:
    """Fit of a kernel operator by inducing points: growth with the number of pairs."""
    torch.set_num_threads(1)
    problem = pn.problems.Burgers(viscosity=0.1)
    train, test = (
        problem.sample(count, resolution=128, seed=stream_seed(0, "inducing functions", part))
        for part, count in enumerate((pairs, 200))
    )
    head = pn.heads.KernelOperator(inducing_points=min(2000, pairs // 2))
    predictor, seconds, memory = _timed(lambda: head.fit(None, train))
    scores = pn.metrics.score(predictor(test.inputs), test.outputs, noise=predictor.noise)
    row = {"pairs": pairs, "seconds": seconds, "peak MB": memory}
    return [row | {"relative L2": scores.relative_l2, "coverage": scores.coverage}]


def on_large_grids(points: int) -> list[Row]:
    """Operators at many scattered points, and deviations of a last layer on a square grid of ten times as many."""
    torch.set_num_threads(1)
    generator = stream(0, "large grids")
    grid = pn.Grid.scattered(torch.rand(points, 2, generator=generator, dtype=torch.float64))
    values, rows = torch.randn(1, 1, points, generator=generator), []
    operators = {
        "PointFNO": pn.operators.PointFNO(1, 1, modes=(12, 12), seed=0),
        "AttentionOperator, 128 latents": pn.operators.AttentionOperator(1, 1, dimension=2, latents=128, seed=0),
    }
    for name, operator in operators.items():
        _, seconds, memory = _timed(lambda operator=operator: operator(values, grid=grid).square().mean().backward())
        rows.append({"work": f"{name}, one step", "points": points, "seconds": seconds, "peak MB": memory})
    side = math.isqrt(10 * points)
    train = pn.problems.ShallowWater().sample(20, resolution=64, seed=stream_seed(0, "large grids"))
    predictor = pn.heads.LastLayerLaplace().fit(fno(12, 12, epochs=1, width=32).build(train, seed=0), train)
    query = pn.Grid.uniform((side, side))
    _, seconds, memory = _timed(lambda: predictor(train.inputs[:1], query).standard_deviation)
    rows.append({"work": "deviations of a last layer, 3 channels", "points": side**2, "seconds": seconds, "peak MB": memory})
    return rows


def shares(rows: list[Row]) -> list[Row]:
    """Time after the training in epochs, its share of the training, and the largest stage."""
    table = []
    for name in dict.fromkeys(row["case"] for row in rows):
        epochs = {row["stage"]: row["epochs"] for row in rows if row["case"] == name}
        total = sum(epochs[stage] for stage in STAGES)
        largest = max(STAGES, key=lambda stage: epochs[stage])
        table.append(
            {"case": name, "epochs": total, "share": total / EPOCHS, "met": total <= SHARE * EPOCHS, "largest": largest}
        )
    return table


def _predicted(predictor: pn.distributions.Predictor, test: pn.FieldPairs) -> tuple[Any, torch.Tensor]:
    u = predictor(test.inputs)
    return u, u.standard_deviation


def _bytes(values: torch.Tensor) -> int:
    return values.numel() * values.element_size()


def _acquisition(problem: Any, predictor: pn.distributions.Predictor, test: pn.FieldPairs) -> Callable[[], object]:
    """Value and gradient of an acquisition function at some designs."""
    grid = test.inputs.grid
    probe = pn.functionals.average(test.outputs.grid)
    model = pn.active.OperatorModel(predictor, encode=lambda design: problem.encode(design, grid=grid), functional=probe)
    weights = ScalarizedPosteriorTransform(torch.ones(model.num_outputs, dtype=torch.float64))
    acquisition = qUpperConfidenceBound(model, beta=1.0, posterior_transform=weights)
    designs = torch.rand(RESTARTS, 1, problem.design_dim, generator=stream(0, "chain designs"), dtype=torch.float64)
    designs.requires_grad_()

    def step() -> object:
        return torch.autograd.grad(acquisition(designs).sum(), designs)

    return step
