"""How operators are trained: precisions, optimisers and schedules, by validation error in equal epochs."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import probneural as pn
from benchmarks import recipes, sections
from benchmarks.recipes import Recipe
from benchmarks.sources import ProblemSource
from probneural.training import Optimization

Row = dict[str, Any]
RATES = (3e-3, 1e-2)
"""Peaks of the schedules; the better one counts, for each candidate and problem."""


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon for weights that are matrices, AdamW for the others, under one schedule.

    Args:
        parameters: All of them.
        lr: Of both: Muon's updates are scaled to the size of AdamW's.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        found = list(parameters)
        super().__init__(found, {"lr": lr})
        matrices = [one for one in found if one.ndim == 2 and min(one.shape) > 1]
        others = [one for one in found if not (one.ndim == 2 and min(one.shape) > 1)]
        self.parts: list[torch.optim.Optimizer] = [torch.optim.AdamW(others, lr=lr, weight_decay=0.0)]
        if matrices:
            self.parts.append(torch.optim.Muon(matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"))
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()


def candidates() -> dict[str, Optimization]:
    """Optimisers and schedules by the names that the table gives them."""
    found = {
        "AdamW, one cycle (the default)": Optimization(),
        "AdamW, cosine": Optimization(schedule="cosine"),
        "AdamW, constant, averaged": Optimization(schedule=None, averaging=0.99),
        "AdamW fused, one cycle": Optimization(optimizer=functools.partial(torch.optim.AdamW, fused=True, weight_decay=0.0)),
        "AdamW, decay 0.01, one cycle": Optimization(weight_decay=0.01),
    }
    if hasattr(torch.optim, "Muon"):
        found["Muon and AdamW, one cycle"] = Optimization(optimizer=MuonAndAdamW)
        found["Muon and AdamW, cosine"] = Optimization(optimizer=MuonAndAdamW, schedule="cosine")
    return found


def cases(*, small: bool) -> list[tuple[ProblemSource, Recipe]]:
    """Problems and operators of the main benchmark, at a third of its epochs."""
    burgers, darcy = pn.problems.Burgers(viscosity=0.01), pn.problems.Darcy1D()
    epochs = 2 if small else 20
    pairs = 30 if small else 1000
    return [
        (ProblemSource(burgers, (64,), None, pairs=pairs), recipes.fno(16, epochs=epochs)),
        (ProblemSource(darcy, (65,), None, pairs=pairs), recipes.fno(16, epochs=epochs, embeds_position=True)),
    ]


def main(*, mode: str, output: Path, workers: int = 2) -> dict[str, Any]:
    """Train every candidate on both problems, each seed by itself."""
    small = mode == "small"
    seeds = 1 if small else 3
    return sections.write(
        "training",
        {
            "precisions": lambda: _precisions(seeds, small=small, workers=workers),
            "optimisers": lambda: _optimisers(seeds, small=small, workers=workers),
        },
        mode=mode,
        output=output,
        notes=[
            "validation error: mean relative L2 error of 100 pairs (10 % of the training pairs) that are not trained on, after "
            "the last epoch; medians over seeds, the least and the largest in brackets. Test functions play no part",
            "20 epochs in steps of 20 functions, on one thread. Of the learning rates "
            f"{' and '.join(f'{rate:g}' for rate in RATES)}, the one of the smaller median counts, and is named",
            "precisions: autocast of the operator on the CPU, losses and weights in float32; at a learning rate of 0.003",
        ],
    )


def _precisions(seeds: int, *, small: bool, workers: int) -> list[Row]:
    kinds: dict[str, Optimization] = {"float32": Optimization(), "bfloat16": Optimization(precision="bfloat16")}
    tasks = [(number, name) for number in range(len(cases(small=small))) for name in kinds]
    work = [[(number, kinds[name], RATES[0], seed, small) for seed in range(seeds)] for number, name in tasks]
    found = dict(zip(tasks, sections.repeated(_validation_error, work, workers=workers), strict=True))
    rows = []
    for number, (source, _) in enumerate(cases(small=small)):
        single, half = found[number, "float32"], found[number, "bfloat16"]
        ratios = [after / before for after, before in zip(half, single, strict=True)]
        rows.append(
            {"problem": source.name, "float32": _said(single), "bfloat16": _said(half), "bfloat16 / float32": _said(ratios)}
        )
    return rows


def _optimisers(seeds: int, *, small: bool, workers: int) -> list[Row]:
    numbers = range(len(cases(small=small)))
    tasks = [(number, name, rate) for number in numbers for name in candidates() for rate in RATES]
    work = [[(number, name, rate, seed, small) for seed in range(seeds)] for number, name, rate in tasks]
    found = dict(zip(tasks, sections.repeated(_named_error, work, workers=workers), strict=True))
    rows: list[Row] = []
    for name in candidates():
        row: Row = {"optimiser": name}
        for number, (source, _) in enumerate(cases(small=small)):
            best = min(RATES, key=lambda rate: statistics.median(found[number, name, rate]))
            row[source.name] = _said(found[number, name, best])
            row[f"rate, {source.name}"] = f"{best:g}"
        rows.append(row)
    return rows


def _named_error(number: int, name: str, rate: float, seed: int, small: bool) -> float:
    return _validation_error(number, candidates()[name], rate, seed, small)


def _validation_error(number: int, optimization: Optimization, rate: float, seed: int, small: bool) -> float:
    """The last validation loss of one training."""
    torch.set_num_threads(1)
    source, recipe = cases(small=small)[number]
    train = source.train
    operator = recipe.build(train, seed=seed)
    history = pn.fit(
        operator,
        train,
        epochs=recipe.epochs,
        seed=seed,
        learning_rate=rate,
        optimization=optimization,
        show_progress=False,
    )
    return history.validation[-1]


def _said(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} [{min(values):.3g}, {max(values):.3g}]"
