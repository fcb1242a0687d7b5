"""Settings that papers report, on data generated here, beside the figures they are remembered for.

Every operator is trained once on 1000 pairs and tested on 200 or 1000 others. The published figures are quoted from
secondary sources and belong to other data sets of the same law, other sizes and other optimisers; where a setting differs in a
way that matters, the notes say so.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import probneural as pn
from benchmarks import recipes, sections
from benchmarks.recipes import Recipe

SEEDS = {"train": 8100, "test": 8101}
KERNEL = "kernel operator"
REGRESSION = "linear regression"


@dataclass(frozen=True)
class Setting:
    """A problem as papers pose it.

    Attributes:
        title: What the table calls it.
        problem: The problem.
        resolution: Points per axis.
        tests: Test functions.
        operators: What is trained.
        published: Relative L2 errors by operator, as quoted.
        pairs: Training pairs.
        has_floor: Whether inputs are ±1 and say too little about where jumps arrive, see `_floor`.
    """

    title: str
    problem: pn.problems.Problem
    resolution: tuple[int, ...]
    tests: int
    operators: tuple[Recipe, ...]
    published: dict[str, float] = field(default_factory=dict)
    pairs: int = 1000
    has_floor: bool = False


def settings() -> list[Setting]:
    """All settings."""
    problems = pn.problems
    return [
        Setting(
            "Burgers, viscosity 0.1, 128 points",
            problems.Burgers(viscosity=0.1),
            (128,),
            200,
            (
                recipes.fno(16, epochs=100),
                recipes.deeponet(epochs=200, learning_rate=3e-4),
                recipes.pod_deeponet(epochs=200, learning_rate=3e-4),
            ),
            {"FNO": 0.0193, "DeepONet": 0.0215, "POD-DeepONet": 0.0194},
        ),
        Setting(
            "advection of square waves, 39 x 40 in space and time",
            problems.Advection(initial="square", space_time=True, time=1.0),
            (39, 40),
            1000,
            (
                recipes.fno(20, 20, epochs=60, width=16, projection=48, embeds_position=True),  # or it could not tell the time
                recipes.deeponet(epochs=60, basis=128, frequencies=19),
                recipes.pod_deeponet(epochs=500, basis=48),
            ),
            {"FNO": 0.0066, "DeepONet": 0.0022, "POD-DeepONet": 0.0004, KERNEL: 2.8e-5},
        ),
        Setting(
            "advection of the sign of a random field, 199 points",
            problems.Advection(initial="sign", time=0.5, tau=3.0, modes=99),
            (199,),
            1000,
            (recipes.fno(100, epochs=60, width=16), recipes.deeponet(epochs=100, basis=128, frequencies=16)),
            {"FNO": 0.135, "DeepONet": 0.153, KERNEL: 0.116},
            has_floor=True,
        ),
    ]


def main(*, mode: str, output: Path, workers: int) -> dict[str, Any]:
    """Run all settings."""
    return sections.write(
        "published",
        {"settings": lambda: _all(small=mode == "small", workers=workers)},
        mode=mode,
        output=output,
        notes=[
            "relative L2 error of the mean on test functions of the training grid; published: figures as other papers quote "
            "them, on their own samples of the same law (Lu et al. 2022, Batlle et al. 2024)",
            "advection of square waves: papers use 40 x 40 points with both ends, of which 39 in space differ; shifts are then "
            "whole numbers of cells, and linear regression is exact",
            "advection of signs: papers use 200 points with both ends, of which 199 differ; a shift by half the circle is then "
            "99.5 cells, so inputs do not say on which side of a node a jump arrives. floor: the error of a predictor that "
            "is right everywhere else and says 0 there",
            "seeds name the functions; nothing was chosen on the test functions",
        ],
    )


def _all(*, small: bool, workers: int) -> list[dict[str, Any]]:
    """One model per single-threaded process, the longest first."""
    os.environ["OMP_NUM_THREADS"] = "1"
    chosen = [replace(one, pairs=80, tests=20) for one in settings()] if small else settings()
    todo = [
        (number, recipe) for number, one in enumerate(chosen) for recipe in (*one.operators, Recipe(KERNEL), Recipe(REGRESSION))
    ]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(run, chosen[number], recipe, small=small) for number, recipe in todo]
        return [future.result() for future in futures]


def run(setting: Setting, recipe: Recipe, *, small: bool = False) -> dict[str, Any]:
    """Train one model in one setting, and test it."""
    torch.set_num_threads(1)
    train, test = (
        setting.problem.sample(count, resolution=setting.resolution, seed=SEEDS[purpose])
        for purpose, count in (("train", setting.pairs), ("test", setting.tests))
    )
    start = time.perf_counter()
    facts: dict[str, Any] = {}
    if recipe.kind == KERNEL:
        mean = pn.heads.KernelOperator().fit(None, train)(test.inputs).mean
    else:
        if small and recipe.epochs:
            recipe = replace(recipe, epochs=1, options={**recipe.options, "width": 8})
        operator, facts, _ = recipe.train(train, seed=0, tick=lambda: None)
        mean = _evaluated(operator, test.inputs)
    error = pn.metrics.relative_l2(pn.Field(mean, test.outputs.grid), test.outputs)
    return {
        "setting": setting.title,
        "operator": recipe.kind,
        "pairs": len(train),
        "epochs": recipe.epochs or None,
        "parameters": facts.get("parameters"),
        "rel. L2": float(error.mean()),
        "floor": _floor(test.inputs.values) if setting.has_floor else None,
        "published": setting.published.get(recipe.kind),
        "seconds": time.perf_counter() - start,
    }


def _floor(signs: torch.Tensor) -> float:
    """Mean relative L2 error that is left when every jump of a ±1 function falls on a node with a fair coin's sign."""
    jumps = (signs != signs.roll(1, dims=-1)).double().mean(dim=-1)
    return float(jumps.sqrt().mean())


@torch.no_grad()
def _evaluated(operator: torch.nn.Module, inputs: pn.Field) -> torch.Tensor:
    operator.eval()
    return torch.cat([pn.fields.evaluate(operator, inputs[start : start + 50]) for start in range(0, len(inputs), 50)])
