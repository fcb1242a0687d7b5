"""Heads where data are few: Burgers with 25 training functions at 256 points, as LUNO sets it up, over five seeds.

The distribution is the house's own: inputs GRF(25, 5, 2) with 31 modes, viscosity .01, solved exactly to t = 1. Every head is
fitted on the same 25 pairs and calibrated in the same way on the same 25 validation functions; nothing is fitted on test
functions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import probneural as pn
from benchmarks import recipes, sections, studies
from probneural.randomness import stream_seed

TRAIN, VALIDATION, TEST, POINTS = 25, 25, 100, 256
SEEDS = range(5)
MEMBERS = 5
HEADS = ("last layer", "low rank", "kronecker", "ensemble of 5")


def main(*, mode: str, output: Path, workers: int) -> dict[str, Any]:
    """Run all seeds, and average."""
    rows: list[dict[str, Any]] = []

    def seeds() -> list[dict[str, Any]]:
        rows.extend(_all(small=mode == "small", workers=workers))
        return rows

    return sections.write(
        "low-data",
        {"seeds": seeds, "mean": lambda: _averaged(rows)},
        mode=mode,
        output=output,
        notes=[
            f"Burgers at viscosity .01, inputs GRF(25, 5, 2) with 31 modes, t = 1; {TRAIN} training, {VALIDATION} validation "
            f"and {TEST} test functions on {POINTS} points; all heads calibrated alike on the validation functions.",
        ],
    )


def _all(*, small: bool, workers: int) -> list[dict[str, Any]]:
    """One seed per single-threaded process."""
    chosen = list(SEEDS)[: 1 if small else None]
    (found,) = sections.repeated(partial(run, small=small), [[(seed,) for seed in chosen]], workers=workers)
    return [row for rows in found for row in rows]


def _averaged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean over seeds per head, with the standard error of the NLL."""
    table = []
    for head in HEADS:
        own = [row for row in rows if row["head"] == head]
        numbers = {key: statistics.fmean(row[key] for row in own) for key in own[0] if key not in ("seed", "head")}
        error = statistics.stdev(row["nll"] for row in own) / len(own) ** 0.5 if len(own) > 1 else None
        table.append({"head": head, "seeds": len(own), **numbers, "nll_error": error})
    return table


def run(seed: int, *, small: bool = False) -> list[dict[str, Any]]:
    """Train once (and four more networks for the ensemble), fit every head, calibrate, score."""
    torch.set_num_threads(1)
    problem = pn.problems.Burgers(viscosity=0.01)
    train, validation, test = (
        problem.sample(count, resolution=POINTS, seed=stream_seed(seed, "low-data functions", part))
        for part, count in enumerate((TRAIN, VALIDATION, 20 if small else TEST))
    )
    epochs, width, depth = (3, 8, 2) if small else (200, 16, 4)

    def trained(number: int) -> pn.operators.FNO:
        operator = pn.operators.FNO(
            1, 1, modes=(16,), width=width, depth=depth, seed=stream_seed(seed, "low-data recipe", number)
        )
        pn.fit(operator, train, epochs=epochs, seed=stream_seed(seed, "low-data recipe", number), show_progress=False)
        return operator

    operators = [trained(number) for number in range(MEMBERS)]
    operator = operators[0]
    makers: dict[str, Callable[[], pn.distributions.Predictor]] = {
        "last layer": lambda: pn.heads.LastLayerLaplace().fit(operator, train),
        "low rank": lambda: pn.heads.Laplace(pn.heads.LowRank(rank=100)).fit(operator, train),
        "kronecker": lambda: pn.heads.Laplace(pn.heads.Kronecker(probes=64)).fit(operator, train),
        "ensemble of 5": lambda: recipes.ensemble(operators, train),
    }
    rows = []
    for name in HEADS:
        start = time.process_time()
        raw = makers[name]()
        fitted = time.process_time()
        predictor = pn.calibration.VarianceScale().fit(raw, validation)
        comparison = pn.metrics.compare(predictor(test.inputs), test.outputs, noise=predictor.noise)
        mean = pn.Field(comparison.mean, comparison.grid)
        rows.append(
            {
                "seed": seed,
                "head": name,
                "relative_l2": float(pn.metrics.relative_l2(mean, test.outputs).mean()),
                "rmse": float(pn.metrics.rmse(mean, test.outputs).mean()),
                "nll": float(pn.metrics.nll(comparison).mean()),
                "chi2": float(pn.metrics.chi2(comparison).mean()),
                "crps": float(pn.metrics.crps(comparison).mean()),
                "coverage": float(pn.metrics.coverage(comparison, level=0.9).mean()),
                "fit_seconds": fitted - start,
                "score_seconds": time.process_time() - fitted,
            }
        )
    return rows


if __name__ == "__main__":
    studies.run(main)
