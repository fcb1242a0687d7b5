"""Forecasts of many leads: seconds and memory, lead by lead and into a store, as their number grows."""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import probneural as pn
from benchmarks import sections, studies
from benchmarks.memory import peak_memory, reset_peak_memory
from probneural.distributions.forecasts.trajectory import Trajectory

LEADS = (100, 300, 1000)
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the forecasts are.

    Attributes:
        functions: Starts, each of which has a forecast.
        members: Roll-outs of each.
        resolution: Points.
        epochs: Of the training of one step; the operator only has to stay finite.
    """

    functions: int = 32
    members: int = 32
    resolution: int = 128
    epochs: int = 4

    @property
    def kept(self) -> float:
        """What all states of a thousand leads would take, in MiB."""
        return self.functions * self.members * self.resolution * 4 * 1000 / 2**20


SMALL = Sizes(functions=2, members=3, resolution=32, epochs=1)
FIRST = 4
"""Leads of the forecast that does not count: what is made once in a process is made then."""


def main(*, mode: str, output: Path, workers: int) -> dict[str, Any]:
    """Measure every number of leads, kind of draws and way of reading in a process of its own, and write what was found."""
    sizes, leads = (SMALL, (4, 8)) if mode == "small" else (Sizes(), LEADS)
    cells = [Cell(way, draws, steps, sizes) for draws in DRAWS for way in WAYS for steps in leads]
    measured = functools.cache(lambda: _in_new_processes(cells, workers=workers))
    notes = (
        f"The last layer, calibrated: {sizes.functions} forecasts of {sizes.members} members on {sizes.resolution} points, "
        f"heat in one dimension. All states of 1,000 leads would take {sizes.kept:.0f} MiB; a forecast keeps 256 MiB of them.",
        "Memory is the peak of the forecast above what its process held before, after one of a few leads that does not count; "
        "every number has a process of its own.",
        "Seconds are those of the processor, of one thread.",
    )
    parts = {"memory": lambda: table(measured(), "MiB"), "seconds": lambda: table(measured(), "seconds")}
    return sections.write("long-forecast", parts, mode=mode, output=output, notes=notes)


@dataclass(frozen=True)
class Cell:
    """One forecast: how it is read, how it is drawn, how many leads it has."""

    way: str
    draws: str
    steps: int
    sizes: Sizes


def table(found: Mapping[Cell, Row], what: str) -> list[Row]:
    """One row per kind of draws and way of reading; one column per number of leads."""
    rows: dict[tuple[str, str], Row] = {}
    for cell, row in found.items():
        own = rows.setdefault((cell.draws, cell.way), {"draws": cell.draws, "read": cell.way})
        own[f"{cell.steps} leads"] = row[what]
    return list(rows.values())


DRAWS = ("trajectory", "step")


def _lead_by_lead(forecast: Trajectory) -> None:
    for _, u in forecast.leads():
        if not bool(u.variance.isfinite().all()):
            raise ArithmeticError("a forecast is not finite")


def _last_lead(forecast: Trajectory) -> None:
    forecast.at(forecast.steps)


def _store(forecast: Trajectory) -> None:
    with tempfile.TemporaryDirectory() as folder:
        forecast.to_zarr(Path(folder) / "forecast.zarr")


WAYS: dict[str, Callable[[Trajectory], None]] = {
    "lead by lead": _lead_by_lead,
    "the last lead": _last_lead,
    "into a store": _store,
}


def _in_new_processes(cells: Sequence[Cell], *, workers: int) -> dict[Cell, Row]:
    os.environ["OMP_NUM_THREADS"] = "1"  # before the workers import torch
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as processes:
        futures = {cell: processes.submit(measured, cell) for cell in cells}
        return {cell: future.result() for cell, future in futures.items()}


def measured(cell: Cell) -> Row:
    """Processor seconds and peak memory of a forecast."""
    heat, sizes = pn.problems.Heat(0.01, time=0.05, dimension=1), cell.sizes
    train, scaling, starts = (
        heat.sample(count, resolution=sizes.resolution, seed=seed) for seed, count in enumerate((200, 50, sizes.functions))
    )
    operator = pn.operators.FNO(1, 1, modes=(12,), width=16, depth=3, seed=0)
    pn.fit(operator, train, epochs=sizes.epochs, seed=0, show_progress=False)
    predictor = pn.calibration.VarianceScale().fit(pn.heads.LastLayerLaplace().fit(operator, train), scaling)
    options: dict[str, Any] = {"members": sizes.members, "draws": cell.draws, "show_progress": False}
    WAYS[cell.way](predictor.rollout(starts.inputs, steps=FIRST, seed=0, **options))
    forecast = predictor.rollout(starts.inputs, steps=cell.steps, seed=1, **options)
    before, start = reset_peak_memory(), time.process_time()
    WAYS[cell.way](forecast)
    return {"seconds": time.process_time() - start, "MiB": math.ceil((peak_memory() - before) / 2**20)}


if __name__ == "__main__":
    studies.run(main)
