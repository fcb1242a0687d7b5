"""Laplace structures: accuracy against the dense posterior, time and memory against field size, heads where data are few."""

from __future__ import annotations

import multiprocessing
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import field_size, low_data, sections, structures

PEERS = ("laplace-torch",)


def main(*, mode: str, output: Path, workers: int) -> dict[str, Any]:
    """Run all parts, the timed ones with nothing beside them."""
    small = mode == "small"
    found: dict[str, Any] = {}

    def accuracy() -> list[dict[str, Any]]:
        found.update(structures.run(small=small))
        return list(found["rows"])

    rows: list[dict[str, Any]] = []

    def seeds() -> list[dict[str, Any]]:
        rows.extend(_low_data(small=small, workers=workers))
        return rows

    return sections.write(
        "laplace",
        {
            "structures": accuracy,
            "ranks": lambda: found["ranks"],
            "evidence": lambda: found["learned"],
            "size": lambda: field_size.run(small=small),
            "low data by seed": seeds,
            "low data": lambda: _averaged(rows),
        },
        mode=mode,
        output=output,
        peers=PEERS,
        notes=[
            "structures, ranks, evidence: an FNO of about a thousand parameters, float64, 50 Burgers functions on 64 points, "
            "all structures at the noise and prior that the dense evidence chose (evidence: each at its own).",
            "size: one predicted field in float32 with two threads; peak memory beyond model and root; last layer and rank 100 "
            "over all parameters with its stochastic complement.",
            "low data: Burgers at viscosity .01, inputs GRF(25, 5, 2) with 31 modes, t = 1; 25 training and 25 validation "
            "functions, 250 test functions, 256 points; every head calibrated alike on the validation functions.",
        ],
    )


def _low_data(*, small: bool, workers: int) -> list[dict[str, Any]]:
    """One seed per single-threaded process."""
    os.environ["OMP_NUM_THREADS"] = "1"
    seeds = list(low_data.SEEDS)[: 1 if small else None]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(low_data.run, seed, small=small) for seed in seeds]
        return [row for future in futures for row in future.result()]


def _averaged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean over seeds per head, with the standard error of the NLL."""
    table = []
    for head in low_data.HEADS:
        own = [row for row in rows if row["head"] == head]
        numbers = {key: statistics.fmean(row[key] for row in own) for key in own[0] if key not in ("seed", "head")}
        error = statistics.stdev(row["nll"] for row in own) / len(own) ** 0.5 if len(own) > 1 else None
        table.append({"head": head, "seeds": len(own), **numbers, "nll_error": error})
    return table
