"""Stages from training to scores on the CPU and on another device of the same machine, in one run.

Both devices do the same work on the same exact pairs: one operator is trained on each from the same weights, then heads fit,
predict and draw. The last columns are differences between devices and errors against exact solutions.
"""

from __future__ import annotations

import copy
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import probneural as pn
from benchmarks import recipes, sections
from benchmarks.recipes import Recipe
from benchmarks.timing import wait
from probneural.randomness import stream_seed

ROUNDS = 3
"""Rounds of each stage but training, after a warm-up; results are medians."""
LONG = 3.0
"""Seconds after which only the first round is measured."""
TEST = 100
DRAWS = 100
WHOLE = 8
"""Number of samples for joint densities."""
EPOCHS = 5

Row = dict[str, Any]
Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A problem at one resolution, its operator, and the samples of a posterior over all weights.

    Attributes:
        problem: Problem with exact solutions.
        shape: Points per axis.
        pairs: Number of training pairs.
        recipe: Recipe of the operator.
        weights_of: Numbers of samples for the fit and the variances of a Kronecker posterior; None for no such
            posterior.
        has_process: Whether to fit a Gaussian process without a network.
    """

    problem: pn.problems.Problem
    shape: tuple[int, ...]
    pairs: int
    recipe: Recipe
    weights_of: tuple[int, int] | None = (50, 8)
    has_process: bool = True

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"{self.problem.name}, {' x '.join(map(str, self.shape))} points, {self.pairs} functions"


def cases(*, small: bool) -> list[Case]:
    """A line at two resolutions, and a plane."""
    problems = pn.problems
    burgers, shallow = problems.Burgers(viscosity=0.01), problems.ShallowWater()
    if small:
        tiny: dict[str, Any] = {"width": 4, "depth": 2, "projection": 4}
        return [Case(burgers, (64,), 20, recipes.fno(4, epochs=2, **tiny), (4, 2))]
    line = recipes.fno(16, epochs=EPOCHS)
    plane = recipes.fno(12, 12, epochs=EPOCHS, width=32)
    return [
        Case(burgers, (64,), 1000, line),
        Case(burgers, (512,), 500, line, None, has_process=False),
        Case(shallow, (32, 32), 200, plane, None, has_process=False),
    ]


def check(device: str) -> None:
    """Raise a ValueError unless a device exists."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("there is no CUDA here: --device cpu compares the CPU with itself")


def main(*, mode: str, output: Path, device: str = "cuda") -> dict[str, Any]:
    """Time all stages on both devices and compare results."""
    small = mode == "small"
    threads = torch.get_num_threads()

    @functools.cache
    def compared() -> list[tuple[list[Row], list[Row]]]:
        return [_compared(case, device, rounds=1 if small else ROUNDS) for case in cases(small=small)]

    return sections.write(
        "devices",
        {
            "stages": lambda: [row for stages, _ in compared() for row in stages],
            "answers": lambda: [row for _, answers in compared() for row in answers],
        },
        mode=mode,
        output=output,
        device=device,
        notes=[
            f"seconds on the clock on the CPU with {threads} threads, and on {device}, waiting until it is done. Of a "
            f"training: {EPOCHS} epochs in steps of 20 functions, once, after one epoch that does not count; of all else: "
            f"medians of {ROUNDS} rounds after one that does not count, which alone does where it takes {LONG:g} s",
            f"predictions, draws, calibrations and scores are of {TEST} functions each, with {DRAWS} draws; the posterior over "
            "all weights reads fewer: their number stands in the row",
            "answers: relative L2 error of the mean against exact solutions, and CRPS over the root mean square of the truth, "
            "of operators that were trained on each device from the same weights; difference: of standard deviations and of "
            "draws, of the head that was fitted on each device for the CPU's operator in double precision, relative to the "
            "largest",
        ],
    )


def _compared(case: Case, device: str, *, rounds: int) -> tuple[list[Row], list[Row]]:
    """Rows of times and of results."""
    print(f"{case.name} ...", flush=True)
    train, calibration, test = (
        case.problem.sample(count, resolution=case.shape, seed=stream_seed(0, "device functions", part))
        for part, count in enumerate((case.pairs, TEST, TEST))
    )
    operators, seconds, answers = {}, {}, []
    for where in ("cpu", device):
        data = [pairs.to(where) for pairs in (train, calibration, test)]
        operators[where], training = _trained(case, data[0], where)
        stages, head = _stages(case, operators[where], data, where)
        seconds[where] = {"training": training}
        for name, stage in stages.items():
            seconds[where][name] = _median(stage, where, rounds)
            print(f"  {where}, {name}: {seconds[where][name]:.3g} s", flush=True)
        scaled = pn.calibration.VarianceScale().fit(head(), data[1])
        scores = pn.metrics.score(scaled(data[2].inputs), data[2].outputs, noise=scaled.noise, whole=WHOLE)
        size = float(test.outputs.values.square().mean().sqrt())
        answers.append({"case": case.name, "device": where, "error": scores.relative_l2, "CRPS": scores.crps / size})
    answers[-1] |= _differences(operators["cpu"], train[:50], test[:8], device)
    rows = [
        {"case": case.name, "stage": name, "cpu (s)": there, f"{device} (s)": seconds[device][name]}
        | {f"cpu / {device}": there / seconds[device][name]}
        for name, there in seconds["cpu"].items()
    ]
    return rows, answers


def _trained(case: Case, train: pn.FieldPairs, where: str) -> tuple[torch.nn.Module, float]:
    """The operator and the seconds of its training."""
    for epochs in (1, case.recipe.epochs):
        operator = case.recipe.build(train, seed=0).to(where)
        wait(where)
        start = time.perf_counter()
        pn.fit(operator, train, epochs=epochs, seed=0, learning_rate=case.recipe.learning_rate, show_progress=False)
        wait(where)
    return operator, time.perf_counter() - start


def _stages(
    case: Case, operator: torch.nn.Module, data: list[pn.FieldPairs], where: str
) -> tuple[dict[str, Work], Callable[[], pn.distributions.Predictor]]:
    """Timed functions by name, and the scored head."""
    train, calibration, test = data
    last_layer = pn.heads.LastLayerLaplace().fit(operator, train)
    scaled = pn.calibration.VarianceScale().fit(last_layer, calibration)
    stages: dict[str, Work] = {
        "last layer: fit": lambda: pn.heads.LastLayerLaplace().fit(operator, train),
        "last layer: mean and variance": lambda: last_layer(test.inputs).variance,
        "last layer: draws": lambda: last_layer(test.inputs).rsample((DRAWS,), seed=0),
        "last layer: variances calibrated": lambda: pn.calibration.VarianceScale().fit(last_layer, calibration),
        "last layer: scores": lambda: pn.metrics.score(
            scaled(test.inputs), test.outputs, noise=scaled.noise, whole=WHOLE
        ).to_dict(),
    }
    if case.weights_of is not None:
        fitted, asked = case.weights_of
        settings: dict[str, Any] = {"noise": 1e-4, "prior_precision": 1.0, "effective_observations": 50.0}
        head = pn.heads.Laplace("kronecker", show_progress=False, **settings)
        whole = head.fit(operator, train[:fitted])
        stages[f"all weights, Kronecker: fit to {fitted} functions"] = lambda: head.fit(operator, train[:fitted])
        stages[f"all weights, Kronecker: variance of {asked} functions"] = lambda: whole(test.inputs[:asked]).variance
    if case.has_process:
        process = pn.heads.KernelOperator().fit(None, train)
        stages["Gaussian process: fit"] = lambda: pn.heads.KernelOperator().fit(None, train)
        stages["Gaussian process: mean and variance"] = lambda: process(test.inputs).variance
    return stages, lambda: last_layer


def _median(stage: Work, where: str, rounds: int) -> float:
    found: list[float] = []
    while len(found) <= rounds and not (found and found[0] > LONG):
        wait(where)
        start = time.perf_counter()
        stage()
        wait(where)
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:] or found)


def _differences(operator: torch.nn.Module, train: pn.FieldPairs, test: pn.FieldPairs, device: str) -> Row:
    """Differences of the last layer's deviations and draws between devices, in double precision."""
    found = []
    for where in ("cpu", device):
        exact = copy.deepcopy(operator).double().to(where)
        u = pn.heads.LastLayerLaplace().fit(exact, train.to(torch.float64).to(where))(test.inputs.to(torch.float64).to(where))
        found.append((u.variance.sqrt().cpu(), u.rsample((4,), seed=1).cpu()))
    pairs = zip(("difference of deviations", "difference of draws"), *found, strict=True)
    return {name: float((there - here).abs().max() / here.abs().max()) for name, here, there in pairs}
