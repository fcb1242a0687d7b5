"""Copies under known symmetries where functions are few: kernel operators and ensembles with and without them.

Functions, networks, noise and scales are those of `heads --functions 25`, so rows of both can be compared. A network on
periodic axes that embeds no position commutes with shifts as it is, and gets no copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import environment, exact, head_units, heads, kept_units, sections, studies
from benchmarks.head_makers import DEFAULT, ENSEMBLE, FEWER, KERNEL, MORE
from benchmarks.head_units import FEW, Unit
from benchmarks.over_seeds import Row, grouped, mean, mean_of

SHIFTED = ("Burgers, viscosity 0.1", "Burgers, viscosity 0.01", "Shallow water", "Heat 2-D")
"""Problems on periodic axes, whose operators commute with shifts."""
MIRRORED = ("Darcy 1-D", "Darcy 2-D")
"""Problems with boundaries, whose operators commute with the mirrors and turns of a line or a square."""
SEEDS = 5
COPIED = f"{KERNEL}, {FEWER} copies"
SCORES = ("relative_l2", "crps", "joint_nll", "coverage", "simultaneous_coverage", "raw_chi2", "scale")


def main(*, mode: str, output: Path, workers: int, seeds: int | None = None) -> dict[str, Any]:
    """Run all units, and compare every head with the ensemble."""
    is_small = mode == "small"
    commit = environment.commit()
    todo = [
        Unit(named(problem), "FNO", FEW, seed, commit, head_units.SMALL if is_small else head_units.Sizes(), chosen, 0)
        for seed in range(seeds or (1 if is_small else SEEDS))
        for problem, chosen in cases()[: 1 if is_small else None]
    ]

    def run() -> list[Row]:
        found = kept_units.spread(todo, output / "copies", workers=workers, notes=notes)
        rows = [row for unit in todo for row in found[unit]["rows"]]
        notes.extend(heads.failures(rows))
        return rows

    notes = [
        f"{FEW} training functions. {FEWER} and {MORE} copies: images of each function under random shifts; on problems with "
        "boundaries under all mirrors and turns, of which there is one in one dimension and seven in two. Networks with copies "
        "are trained on as many evaluations of functions as those without, and their heads are fitted to the functions alone; "
        "kernel operators are fitted to the copies too",
        *heads.NOTES[:4],
        heads.NOTES[6],
        "seconds: of a processor, for all trainings and the head itself",
    ]
    return sections.write(
        "copies",
        sections.made_of(run, {"scores": averaged, "beside the ensemble": heads.compared}),
        mode=mode,
        output=output,
        notes=notes,
        commit=commit,
        seeds=seeds,
    )


def cases() -> list[tuple[str, tuple[str, ...]]]:
    """Problems, and the heads that are compared on each."""
    shifted = (DEFAULT, KERNEL, COPIED, f"{KERNEL}, {MORE} copies", ENSEMBLE)
    mirrored = (DEFAULT, KERNEL, COPIED, ENSEMBLE, f"{ENSEMBLE}, {FEWER} copies")
    return [(name, shifted) for name in SHIFTED] + [(name, mirrored) for name in MIRRORED]


def named(beginning: str) -> str:
    """The whole name of a problem."""
    (case,) = exact.chosen("full", problem=beginning)
    return case.source.name


def averaged(rows: Sequence[Row]) -> list[Row]:
    """Means over seeds, by problem and head."""
    return [
        {"problem": problem, "head": head, "seeds": len(own)}
        | {name: mean_of(own, name) for name in SCORES}
        | {"seconds": mean(None if "failed" in row else row["training_seconds"] + row["fit_seconds"] for row in own)}
        for (problem, head), own in grouped(rows, ("problem", "head")).items()
    ]


if __name__ == "__main__":
    studies.run(main)
