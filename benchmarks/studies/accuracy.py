"""Accuracy at equal time on problems with boundary values in two dimensions: how an FNO continues functions beyond them.

The operators train about as long as the kernel method takes to fit. What is best is chosen by the error on a tenth of
the training pairs that is only watched; test functions are looked at once, by the runs that are reported.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

import probneural as pn
from benchmarks import recipes, sections, studies
from benchmarks.recipes import Recipe

SEEDS = {"train": (8300, 8302, 8304), "test": (8301, 8303, 8305)}
"""Streams of functions, by repetition; the initial weights are drawn anew too."""
KERNEL = "kernel operator"
CONTINUATIONS = ("even", "odd", "alternating", "periodic")


@dataclass(frozen=True)
class Setting:
    """A problem, and how long its operators train.

    Attributes:
        problem: The problem.
        epochs: Passes over the training pairs.
        points: Points per axis.
        finer: Points per axis of the finer test grid.
        pairs: Training pairs, the watched tenth included.
        tests: Test functions.
    """

    problem: pn.problems.Problem
    epochs: int = 24
    points: int = 33
    finer: int = 65
    pairs: int = 500
    tests: int = 100

    def recipe(self, continuation: str) -> Recipe:
        """The FNO of the main benchmark with this continuation."""
        options = {"width": 16, "projection": 32, "embeds_position": True, "continuation": continuation}
        return recipes.fno(9, 9, epochs=self.epochs, **options)


SETTINGS = (Setting(pn.problems.Darcy2D()), Setting(pn.problems.Helmholtz()))


def main(*, mode: str, output: Path, workers: int) -> dict[str, Any]:
    """Run all settings."""
    return sections.write(
        "accuracy",
        {"continuations": lambda: _all(small=mode == "small", workers=workers)},
        mode=mode,
        output=output,
        notes=[
            "relative L2 errors; medians over repetitions with other training functions, test functions and initial weights, "
            "extremes in brackets; seconds: of one core, in training, or in fitting for the kernel operator, the median",
            "validation: on a tenth of the training pairs, of which the operators see nothing; chosen: least of its kind there",
        ],
    )


def _all(*, small: bool, workers: int) -> list[dict[str, Any]]:
    """One training per single-threaded process."""
    settings = [replace(one, epochs=1, pairs=40, tests=4) for one in SETTINGS] if small else SETTINGS
    todo = [(setting, kind) for setting in settings for kind in (*CONTINUATIONS, KERNEL)]
    repeats = range(1 if small else len(SEEDS["train"]))
    results = sections.repeated(run, [[(*task, repeat) for repeat in repeats] for task in todo], workers=workers)
    rows = [summary(*task, found) for task, found in zip(todo, results, strict=True)]
    for setting in settings:
        own = [row for row in rows if row["problem"] == setting.problem.name and row["validation"] is not None]
        for row in own:
            row["chosen"] = "yes" if row is min(own, key=lambda one: float(one["validation"].split()[0])) else ""
    return rows


def run(setting: Setting, kind: str, repeat: int) -> dict[str, Any]:
    """Train one operator, or fit the kernel method, and test it on both grids."""
    torch.set_num_threads(1)
    problem, seeds = setting.problem, {purpose: streams[repeat] for purpose, streams in SEEDS.items()}
    train = problem.sample(setting.pairs, resolution=setting.points, seed=seeds["train"])
    facts: dict[str, Any] = {"validation": None, "parameters": None}
    start = time.process_time()
    if kind == KERNEL:
        predictor = pn.heads.KernelOperator().fit(None, train)
    else:
        operator, found, history = setting.recipe(kind).train(train, seed=repeat, tick=lambda: None)
        assert history is not None  # it was trained
        facts |= {"validation": history.validation[-1], "parameters": found["parameters"]}
    facts["seconds"] = time.process_time() - start
    for where, points in (("test", setting.points), ("finer grid", setting.finer)):
        test = problem.sample(setting.tests, resolution=points, seed=seeds["test"])
        means = [
            predictor(batch.inputs).mean if kind == KERNEL else _evaluated(operator, batch.inputs)
            for batch in (test[begin : begin + 25] for begin in range(0, len(test), 25))
        ]
        mean = pn.Field(torch.cat(means), test.outputs.grid)
        facts[where] = float(pn.metrics.relative_l2(mean, test.outputs).mean())
    return facts


def summary(setting: Setting, kind: str, repeats: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A row of the table."""
    return {
        "problem": setting.problem.name,
        "continuation": kind if kind != KERNEL else "",
        "operator": KERNEL if kind == KERNEL else "FNO",
        "epochs": None if kind == KERNEL else setting.epochs,
        "parameters": repeats[0]["parameters"],
        "seconds": median(one["seconds"] for one in repeats),
        **{name: _spread([one[name] for one in repeats]) for name in ("validation", "test", "finer grid")},
        "chosen": "",
    }


def _spread(errors: Sequence[float | None]) -> str | None:
    known = [error for error in errors if error is not None]
    return f"{median(known):.2e} [{min(known):.2e}, {max(known):.2e}]" if known else None


@torch.no_grad()
def _evaluated(operator: torch.nn.Module, inputs: pn.Field) -> torch.Tensor:
    return pn.fields.evaluate(operator.eval(), inputs)


if __name__ == "__main__":
    studies.run(main)
