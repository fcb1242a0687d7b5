"""Active learning compared with random choice: number of exact solutions that an operator needs.

The protocol is that of AL4PDE (Musekamp et al. 2025, Active learning for neural PDE solvers): from a pool of 4,000 input
functions, 16 random ones are labelled, then batches are selected up to 32, 64, 128 and 256; after each batch operators
are trained from new weights, with equal numbers of gradient steps, and tested on 500 other functions of the distribution.
Labels are exact solutions. Per seed, all selectors share the pool, the test functions, the 16 initial labels, and the initial
weights and seeds of batches of every round.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

import probneural as pn
from benchmarks import active_figures, active_sources, active_summary, environment, report
from benchmarks.active_runs import (
    ENSEMBLE,
    LAST_LAYER,
    MEMBERS,
    FNOTraining,
    Protocol,
    Unit,
    run,
    seed_of_pool,
    seed_of_tests,
)
from benchmarks.active_sources import VariedSource
from benchmarks.fingerprint import fingerprint
from benchmarks.names import named
from benchmarks.workers import spawned

SEEDS = range(10)
LINE = FNOTraining((12,))
PLANE = FNOTraining((9, 9), depth=3, projection=32, steps=640, batch_size=8, learning_rate=1e-2)

NOTES = (
    "RMSE: over all test samples, channels and points, in units of the standard deviation of the test outputs; q50, q95, "
    "q99: quantiles of the RMSE of single samples. Means over seeds are geometric.",
    "area: area under (log labels, log error), as a mean ratio to random choice on the same seed; from, to: its 95 % t "
    "interval over seeds; likewise for the 95 % and 99 % quantiles.",
    "labels: number after which the RMSE stays at or below random choice's final one, relative to random choice's own number "
    "(so its ratio to itself is 1). Per seed, interpolated on doubly logarithmic axes; inf: not reached. Median over seeds, "
    "and order statistics that contain it with 90 % or more (of ten seeds the second from either end, 97.9 %).",
    f"claim: the interval of the area is below 1 on at least {active_summary.CLAIM_LEAST} of six problems, for the arm fixed "
    f"in the code before the run: {active_summary.CLAIM_ARM[1]} selection with the {active_summary.CLAIM_ARM[0]}. For "
    f"information: whether its median of labels is at most {active_summary.GOAL}, and the best of all arms.",
    "The benchmark calls selectors directly, with new weights in every round and without calibration (all labels are training "
    "data). It does not use ActiveLearner, whose rounds may start from earlier weights and may calibrate.",
    "ranks: Spearman's correlation between the integrated variance of test samples, which selectors use, and their squared "
    "error, averaged over rounds.",
    f"ensemble: mean of {MEMBERS} operators; last layer: the first of them. select s: seconds per choice on one thread, with "
    "samples compared on a coarser grid, while other processes ran.",
    "Relative errors of single samples are not reported: for large viscosity, functions decay to 1e-17.",
    "Settings of training were chosen by errors of random choice on seeds 900 and 950; distributions were fixed before any "
    "selector ran on them.",
)


@dataclass(frozen=True)
class Case:
    """A distribution and the training of operators on it.

    Attributes:
        source: The distribution.
        recipe: Architecture and training of the operators.
    """

    source: VariedSource
    recipe: FNOTraining


def cases() -> list[Case]:
    """All distributions."""
    return [Case(source, LINE if source.grid.dimension == 1 else PLANE) for source in active_sources.sources()]


def chosen(mode: str, *, problem: str | None = None) -> list[Case]:
    """Distributions of a run: all, or those whose names start with a text.

    Raises:
        ValueError: If no name starts with the text.
    """
    by_name = {case.source.name: case for case in cases()}
    found = [by_name[name] for name in named(list(by_name), problem)]
    if mode == "small":
        found = [replace(case, recipe=replace(case.recipe, width=4, depth=1, projection=4, steps=16)) for case in found[:1]]
    return found


def units(mode: str, todo: Sequence[Case], *, folder: Path) -> list[Unit]:
    """All work items, random choice first: it stores the operators of the first round for the others."""
    protocol = Protocol(rounds=(4, 8, 16), pool=60, tests=20) if mode == "small" else Protocol()
    seeds = list(SEEDS)[: 2 if mode == "small" else None]
    commit = environment.commit()  # once: it may change during a long run
    arms: list[tuple[str | None, pn.active.Selector]] = [(None, pn.active.RandomSelection())]
    arms += [(head, pn.active.StochasticSelection()) for head in (LAST_LAYER, ENSEMBLE)]
    made = [
        Unit(case.source, case.recipe, head, selector, seed, protocol, commit, folder)
        for case in todo
        for seed in seeds
        for head, selector in arms
    ]
    return sorted(made, key=lambda unit: unit.head is not None)


def main(*, mode: str, output: Path, workers: int, problem: str | None = None) -> dict[str, Any]:
    """Run, print tables, and write active.json, figures and report."""
    start = time.perf_counter()
    todo = chosen(mode, problem=problem)
    planned = units(mode, todo, folder=output / "active")
    done = _run_all(planned, workers=workers)
    flags = ("" if mode == "default" else f" --{mode}") + (f' --problem "{problem}"' if problem else "")
    name = "active" if problem is None else f"active-{problem.lower().replace(' ', '-')}"
    failed = [f"{one['problem']}, {one['selector']}, seed {one['seed']}: {one['failed']}" for one in done if "failed" in one]
    resumed = [one["seconds"] for one in done if one.get("resumed")]
    compared = active_summary.ratios(done)
    counted = active_summary.claim(compared)
    results: dict[str, Any] = {
        "benchmark": "active",
        "command": f"python -m benchmarks active{flags}",
        "mode": mode,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": environment.machine(),
        "versions": environment.versions(),
        "commit": planned[0].commit,
        "code": fingerprint("benchmarks.active"),
        "seeds": {"pools": [seed_of_pool(seed) for seed in SEEDS], "tests": [seed_of_tests(seed) for seed in SEEDS]},
        "wall_seconds": round(time.perf_counter() - start, 1),
        "notes": [*NOTES, *(f"failed: {reason}" for reason in failed)],
        "sections": {
            **({"claim": counted} if counted else {}),
            "ratios": compared,
            "curves": active_summary.curves(done),
        },
        "units": [{**one, "rows": [_without_choice(row) for row in one["rows"]]} for one in done],
    }
    if resumed:
        results["notes"].append(
            f"{len(resumed)} of {len(done)} units were finished by an earlier run that was cut off: {sum(resumed):.0f} s of "
            "one thread that are not in those of the run."
        )
    figures = active_figures.figures(results["sections"]["curves"])
    environment.write_json(results, output / f"{name}.json")
    for caption, image in figures.items():
        environment.write_bytes(image, output / "figures" / f"active-{caption.lower().replace(' ', '-')}.png")
    report.write_tables(results, title="probneural benchmark: active learning", figures=figures, path=output / f"{name}.html")
    print(report.terminal_table(compared))
    print("\n" + report.terminal_table(counted))
    print("\n".join(["", *(f"failed: {reason}" for reason in failed), str(output / f"{name}.json")]))
    print(f"{output / f'{name}.html'}\n{results['wall_seconds']:.0f} s")
    return results


def _without_choice(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the results, without the selected functions, which are in the file of the work item."""
    return {key: value for key, value in row.items() if key != "chosen"}


def _run_all(planned: Sequence[Unit], *, workers: int) -> list[dict[str, Any]]:
    """Run each work item in a single-threaded process; finished items are stored, and an interrupted run continues."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before the workers import torch
    with (
        spawned(workers) as pool,
        tqdm(total=sum(unit.trainings for unit in planned), desc="active learning", unit="training", smoothing=0.05) as bar,
    ):
        futures = {pool.submit(run, unit): number for number, unit in enumerate(planned)}
        found: dict[int, dict[str, Any]] = {}
        try:
            for future in as_completed(futures):
                number = futures[future]
                found[number] = future.result()
                bar.update(planned[number].trainings)
                bar.set_postfix_str(f"{planned[number].source.name}, {planned[number].name}: done")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [found[number] for number in range(len(planned))]
