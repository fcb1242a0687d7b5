"""How fast weights should decay: validation errors of the main benchmark's FNOs, by problem."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import exact, kept_units, sections, studies
from benchmarks.over_seeds import Row, grouped, ratio
from benchmarks.problem_units import ProblemUnit
from probneural.randomness import stream_seed

DECAYS = (0.0, 0.03, 0.1, 0.3, 0.6, 1.0)
"""Shares of a weight that a step removes, over the learning rate."""
SEEDS = {"default": 3, "small": 1}


class Unit(ProblemUnit):
    """Trainings on one problem under one seed, with every decay."""

    def run(self, folder: Path) -> dict[str, Any]:
        """Train with every decay, from the same weights and on the same functions."""
        del folder
        seed, source = stream_seed(self.seed, "weight decay functions"), self.source
        train = source.problem.sample(source.pairs, resolution=source.resolution, seed=seed)
        rows: list[Row] = []
        for decay in DECAYS:
            recipe = replace(self.case.recipe("FNO"), weight_decay=decay)
            _, _, history = recipe.train(train, seed=self.seed, tick=lambda: None)
            assert history is not None
            last = {"training": history.train[-1], "validation": history.validation[-1]}
            rows.append({"problem": self.problem, "seed": self.seed, "decay": decay} | last)
        return {"rows": rows}


def main(*, mode: str, output: Path, workers: int, seeds: int | None = None) -> dict[str, Any]:
    """Run all problems and seeds, those that are done already excepted, and compare."""
    todo = Unit.planned(mode, None, seeds=seeds or SEEDS[mode])
    notes = [
        "FNOs, sizes, rates and epochs as in `exact`; functions and weights are drawn anew for each seed.",
        "training, validation: mean relative L2 error of the functions that are trained on, and of the tenth that is not, in "
        "the last epoch without decay, medians over seeds. Test functions play no part.",
        "decay: validation error beside that without, from the same weights and on the same functions; geometric means over "
        "seeds with 90 % intervals. recipe: what the benchmarks' FNOs have, which was chosen on other functions.",
    ]

    def table() -> list[Row]:
        found = kept_units.spread(todo, output / "decay", workers=workers, notes=notes)
        return compared([row for unit in todo for row in found[unit]["rows"]])

    return sections.write("decay", {"decays": table}, mode=mode, output=output, notes=notes, commit=todo[0].commit, seeds=seeds)


def compared(rows: Sequence[Row]) -> list[Row]:
    """One row per problem: errors without decay, and how validation errors change with each."""
    table = []
    for (problem,), own in grouped(rows, ("problem",)).items():
        errors = {(row["decay"], row["seed"]): row["validation"] for row in own}
        without = [row for row in own if row["decay"] == 0.0]
        seeds = [row["seed"] for row in without]
        row: Row = {"problem": problem, "seeds": len(seeds)}
        row |= {name: statistics.median(one[name] for one in without) for name in ("training", "validation")}
        for decay in dict.fromkeys(one["decay"] for one in own if one["decay"]):
            row[f"decay {decay:g}"] = ratio([errors[decay, seed] / errors[0.0, seed] for seed in seeds])
        (case,) = exact.chosen("full", problem=problem)
        table.append(row | {"recipe": case.recipe("FNO").weight_decay})
    return table


if __name__ == "__main__":
    studies.run(main)
