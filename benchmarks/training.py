"""Precisions, optimisers and schedules of training, compared by validation error at equal epochs."""

from __future__ import annotations

import functools
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import probneural as pn
from benchmarks import recipes, sections
from benchmarks.recipes import Recipe
from benchmarks.sources import ProblemSource
from probneural.training import Optimization

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A problem, an operator, and the learning rates of all candidates, of which the better one counts."""

    source: ProblemSource
    recipe: Recipe
    rates: tuple[float, float] = (3e-3, 1e-2)

    @property
    def name(self) -> str:
        return f"{self.source.name}, {self.recipe.kind}"


def candidates() -> dict[str, Optimization]:
    """Optimisers and schedules by name in tables."""
    adamw = functools.partial(Optimization, optimizer="adamw")
    return {
        "Muon, cosine (the default)": Optimization(),
        "Muon for matrices of any size, cosine": Optimization(optimizer=functools.partial(pn.training.Muon, largest=None)),
        "AdamW, cosine": adamw(),
        "AdamW, decay 0.01, cosine": adamw(weight_decay=0.01),
    }


def cases(*, small: bool) -> list[Case]:
    """Problems and operators of the main benchmark, in one dimension at a third of its epochs."""
    problems, few = pn.problems, (2 if small else None)
    burgers, pairs = problems.Burgers(viscosity=0.01), 30 if small else 1000
    plane: dict[str, Any] = {"width": 16, "projection": 32, "continuation": "alternating", "embeds_position": True}
    square = ProblemSource(problems.Darcy2D(), (33, 33), None, pairs=30 if small else 500)
    return [
        Case(ProblemSource(burgers, (64,), None, pairs=pairs), recipes.fno(16, epochs=few or 20)),
        Case(
            ProblemSource(problems.Darcy1D(), (65,), None, pairs=pairs),
            recipes.fno(16, epochs=few or 20, embeds_position=True),
        ),
        Case(square, recipes.fno(9, 9, epochs=few or 16, **plane)),
        Case(ProblemSource(burgers, (64,), None, pairs=pairs), recipes.deeponet(epochs=few or 20), rates=(1e-3, 3e-3)),
    ]


def main(*, mode: str, output: Path, workers: int = 2, device: str = "cpu") -> dict[str, Any]:
    """Train every candidate on all problems and seeds."""
    small = mode == "small"
    seeds = 1 if small else 3
    on_cpu = device == "cpu"
    place, threads, clock = ("the CPU", "one thread", "processor time") if on_cpu else (device, device, "time by the clock")
    return sections.write(
        "training",
        {
            "precisions": lambda: _precisions(seeds, small=small, workers=workers, device=device),
            "optimisers": lambda: _optimisers(seeds, small=small, workers=workers, device=device),
        },
        mode=mode,
        output=output,
        device=device,
        notes=[
            "validation error: mean relative L2 error of the tenth of the training pairs that is not trained on, after the "
            "last epoch; medians over seeds, the least and the largest in brackets. Test functions play no part",
            f"equal epochs, in steps of 20 functions, on {threads}. Of two learning rates, the one of the smaller median "
            "counts, and is named",
            f"time: {clock} of a training over that of AdamW under a cosine on the same functions, medians",
            f"precisions: autocast of the operator on {place}, losses and weights in float32; at the first learning rate. "
            "At the end: the last tenth of the epochs without autocast",
        ],
    )


def _precisions(seeds: int, *, small: bool, workers: int, device: str) -> list[Row]:
    kinds: dict[str, Optimization] = {
        "float32": Optimization(),
        "bfloat16": Optimization(precision="bfloat16"),
        "float32 at the end": Optimization(precision="bfloat16", full_precision_tail=0.1),
    }
    chosen = cases(small=small)[:2]
    tasks = [(number, name) for number in range(len(chosen)) for name in kinds]
    work = [
        [(number, kinds[name], chosen[number].rates[0], seed, small, device) for seed in range(seeds)] for number, name in tasks
    ]
    found = dict(zip(tasks, sections.repeated(_trained, work, workers=workers), strict=True))
    rows = []
    for number, case in enumerate(chosen):
        errors = {name: [error for error, _ in found[number, name]] for name in kinds}
        row = {"problem": case.source.name} | {name: _said(some) for name, some in errors.items()}
        for name in list(kinds)[1:]:
            pairs = zip(errors[name], errors["float32"], strict=True)
            row[f"{name} / float32"] = _said([after / before for after, before in pairs])
        rows.append(row)
    return rows


def _optimisers(seeds: int, *, small: bool, workers: int, device: str) -> list[Row]:
    numbered = list(enumerate(cases(small=small)))
    tasks = [(number, name, rate) for number, case in numbered for name in candidates() for rate in case.rates]
    work = [[(number, name, rate, seed, small, device) for seed in range(seeds)] for number, name, rate in tasks]
    found = dict(zip(tasks, sections.repeated(_named, work, workers=workers), strict=True))

    def seconds(number: int, name: str) -> float:
        return statistics.median(taken for rate in numbered[number][1].rates for _, taken in found[number, name, rate])

    rows: list[Row] = []
    for number, case in numbered:
        for name in candidates():
            errors = {rate: [error for error, _ in found[number, name, rate]] for rate in case.rates}
            best = min(errors, key=lambda rate: statistics.median(errors[rate]))
            rows.append(
                {
                    "problem, operator": case.name,
                    "optimiser": name,
                    "validation error": _said(errors[best]),
                    "rate": f"{best:g}",
                    "time": f"{seconds(number, name) / seconds(number, 'AdamW, cosine'):.2f}",
                }
            )
    return rows


def _named(number: int, name: str, rate: float, seed: int, small: bool, device: str) -> tuple[float, float]:
    return _trained(number, candidates()[name], rate, seed, small, device)


def _trained(number: int, optimization: Optimization, rate: float, seed: int, small: bool, device: str) -> tuple[float, float]:
    """Final validation loss and seconds of one training: processor time on the CPU, wall time on other devices."""
    torch.set_num_threads(1)
    case = cases(small=small)[number]
    train = case.source.train
    operator = case.recipe.build(train, seed=seed)
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    history = pn.fit(
        operator,
        train,
        epochs=case.recipe.epochs,
        seed=seed,
        learning_rate=rate,
        optimization=optimization,
        run=pn.training.RunOptions(device=device),
        show_progress=False,
    )
    return history.validation[-1], clock() - start


def _said(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} [{min(values):.3g}, {max(values):.3g}]"
