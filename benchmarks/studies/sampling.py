"""Fields whose distribution is known exactly: operators that answer with draws, and covariances from a second read-out.

Random-speed advection has many outputs for one input, and exact draws of them. Sparse sensors have a Gaussian posterior in
closed form, and with it the floor that no diagonal covariance can pass.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks import environment, kept_units, sections, studies
from benchmarks.studies.sampling_units import EXACT, LINEARISED, METHODS, POINTWISE, RANKS, SCRATCH, SIZES, Unit

SEEDS = 5

Row = dict[str, Any]


def main(*, mode: str, output: Path, workers: int, seeds: int | None = None) -> dict[str, Any]:
    """Run all units, and write two tables and what they show."""
    commit = environment.commit()
    todo = units(mode, seeds=seeds or (1 if mode == "small" else SEEDS), commit=commit)

    def run() -> dict[Unit, Row]:
        return kept_units.spread(todo, output / "sampling", workers=workers)

    return sections.write(
        "sampling",
        sections.made_of(run, {"random-speed advection": advection, "sparse sensors": sensors, "shown": shown}),
        mode=mode,
        output=output,
        commit=commit,
        seeds=seeds,
        notes=[
            "Energy distance: 2 E|X - Y| - E|X - X'| - E|Y - Y'| of stated and exact draws in the root-mean-square norm, "
            "a mean over test functions. Coverage: exact probability of stated central 90 % intervals, nothing calibrated but "
            "the last layer. sd ratio: root of the mean ratio of variances. Means over seeds; in brackets, least and largest.",
            "Sparse sensors: nats per point lost beside the exact posterior, and what every diagonal covariance loses at "
            "least. Each seed has its own sensors.",
        ],
    )


def units(mode: str, *, seeds: int, commit: str) -> list[Unit]:
    """All units, seed by seed; the pointwise score, which is there for comparison only, comes last."""
    first: list[str | int] = [*RANKS, *(method for method in METHODS if method != POINTWISE)]
    both = [(seed, method) for methods in (first, [POINTWISE]) for seed in range(seeds) for method in methods]
    return [Unit(method, SIZES[mode], seed, commit) for seed, method in both]


def advection(results: dict[Unit, Row]) -> list[Row]:
    """One row per method."""
    rows = []
    for method in METHODS:
        own = [found for unit, found in results.items() if unit.method == method]
        row: Row = {"method": method, "epochs": own[0].get("epochs"), "seeds": len(own)}
        for name in ("energy_distance", "coverage", "sd_ratio"):
            values = [found[name] for found in own]
            row[name] = statistics.fmean(values)
            row[f"{name}, range"] = f"[{min(values):.4g}, {max(values):.4g}]"
        row["processor_seconds"] = statistics.fmean(found["processor_seconds"] for found in own)
        rows.append(row)
    return rows


def sensors(results: dict[Unit, Row]) -> list[Row]:
    """One row per rank."""
    rows = []
    for rank in RANKS:
        own = [found for unit, found in results.items() if unit.method == rank]
        regrets = [found["regret"] for found in own]
        rows.append(
            {
                "rank": rank,
                "seeds": len(own),
                "regret": statistics.fmean(regrets),
                "regret, range": f"[{min(regrets):.4g}, {max(regrets):.4g}]",
                "floor of diagonals": statistics.fmean(found["floor"] for found in own),
                "entropy": statistics.fmean(found["entropy"] for found in own),
            }
        )
    return rows


def shown(results: dict[Unit, Row]) -> list[Row]:
    """What is claimed, seed by seed: distances beside the linearised head's, coverage, and the floor."""
    rows = []
    for seed in sorted({unit.seed for unit in results}):
        own = {unit.method: found for unit, found in results.items() if unit.seed == seed}
        linearised, exact = own[LINEARISED]["energy_distance"], own[EXACT]["energy_distance"]
        row: Row = {"seed": seed}
        for method in (name for name in METHODS if "score" in name):
            row[f"{method}: of the linearised"] = own[method]["energy_distance"] / linearised
        row["of the exact Gaussian"] = own[SCRATCH]["energy_distance"] / exact
        row["coverage"] = own[SCRATCH]["coverage"]
        row["diagonal over its floor"] = own[0]["regret"] - own[0]["floor"]
        row["rank 4 below the floor"] = own[0]["floor"] - own[4]["regret"]
        rows.append(row)
    return rows


if __name__ == "__main__":
    studies.run(main)
