"""How time and memory grow with the number of functions: training, heads, calibration and scores, at 250 to 16,000 of them."""

from __future__ import annotations

import copy
import functools
import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import probneural as pn
from benchmarks import sections, studies
from benchmarks.memory import peak_memory, reset_peak_memory

SIZES = (250, 500, 1000, 2000, 4000, 8000, 16_000)
"""Functions of each stage; the upper half of them gives the exponents."""
_RESOLUTION = 64
_WARM_UP = 64
"""Functions of a round that does not count, in which libraries are loaded."""

Row = dict[str, Any]


def main(*, mode: str, output: Path) -> dict[str, Any]:
    """Measure every size in a process of its own, and write what was found."""
    sizes = SIZES if mode == "default" else (64, 128, 256, 512)
    measured = functools.cache(lambda: [_in_new_process(size) for size in sizes])
    notes = (
        "Seconds are those of the processor, of one thread: they tell the same whatever else the machine does.",
        "Memory is the peak of the stage above what the process held before it, data included.",
        "Exponents are slopes of log seconds over log n, by least squares over the upper half of the sizes.",
    )
    parts = {
        "growth": lambda: growth(sizes, measured()),
        "seconds": lambda: _table(sizes, [{name: one["seconds"] for name, one in found.items()} for found in measured()]),
        "memory": lambda: _table(sizes, [{name: one["MiB"] for name, one in found.items()} for found in measured()]),
    }
    return sections.write("growth", parts, mode=mode, output=output, notes=notes)


def growth(sizes: Sequence[int], found: Sequence[dict[str, Row]]) -> list[Row]:
    """One row per stage: exponent in time, and peak memory at the smallest and the largest size."""
    upper = slice(len(sizes) // 2, None)
    rows = []
    for name in found[0]:
        seconds = [one[name]["seconds"] for one in found]
        rows.append(
            {
                "stage": name,
                "exponent": exponent(sizes[upper], seconds[upper]),
                "ms per function": 1e3 * seconds[-1] / sizes[-1],
                f"MiB at {sizes[len(sizes) // 2]}": found[len(sizes) // 2][name]["MiB"],
                f"MiB at {sizes[-1]}": found[-1][name]["MiB"],
            }
        )
    return rows


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Slope of log seconds over log n, by least squares.

    Examples:
        >>> round(exponent([1, 2, 4], [3.0, 12.0, 48.0]), 12)
        2.0
    """
    return float(np.polyfit([math.log(size) for size in sizes], [math.log(value) for value in seconds], 1)[0])


def _table(sizes: Sequence[int], rows: Sequence[Row]) -> list[Row]:
    return [{"n": size} | row for size, row in zip(sizes, rows, strict=True)]


def _in_new_process(size: int) -> dict[str, Row]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as processes:
        return processes.submit(stages, size).result()


def stages(size: int) -> dict[str, Row]:
    """Processor seconds and peak memory of every stage with so many functions, after a round with a few."""
    _measured(_WARM_UP)
    return _measured(size)


def _measured(size: int) -> dict[str, Row]:
    burgers = pn.problems.Burgers(viscosity=0.1)
    train, scaling, test = (burgers.sample(size, resolution=_RESOLUTION, seed=seed) for seed in range(3))
    operator = pn.operators.FNO(in_channels=1, out_channels=1, modes=(12,), width=16, depth=3, seed=0)
    pn.fit(operator, burgers.sample(250, resolution=_RESOLUTION, seed=3), epochs=10, seed=0, show_progress=False)
    found: dict[str, Row] = {}

    def stage(name: str, work: Callable[[], Any]) -> Any:
        before = reset_peak_memory()
        start = time.process_time()
        result = work()
        found[name] = {"seconds": time.process_time() - start, "MiB": (peak_memory() - before) / 2**20}
        return result

    trained = copy.deepcopy(operator)
    stage("training, one epoch", lambda: pn.fit(trained, train, epochs=1, seed=0, show_progress=False))
    predictor = stage("last layer", lambda: pn.heads.LastLayerLaplace().fit(operator, train))
    structure = pn.heads.Kronecker(probes=4)
    stage("Kronecker", lambda: pn.heads.Laplace(structure, show_progress=False).fit(operator, train))
    predictor = stage("variance scale", lambda: pn.calibration.VarianceScale().fit(predictor, scaling))
    stage("band", lambda: pn.calibration.SimultaneousBand().fit(predictor, test))
    stage("scores", lambda: pn.metrics.score_pairs(predictor, test))
    return found


if __name__ == "__main__":
    studies.run(main)
