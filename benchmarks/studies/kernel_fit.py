"""Cost of fitting a kernel operator and what it buys: exact posteriors, and inducing points beyond; each in its own process."""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import probneural as pn
from benchmarks import sections, studies
from benchmarks.memory import peak_memory, reset_peak_memory

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """So many training pairs, and inducing points if not all of them."""

    pairs: int
    inducing_points: int | None = None


EXACT = (Case(500), Case(1000), Case(2000))
INDUCING = (Case(2000), Case(2000, 1000), Case(2000, 500), Case(20_000, 2000), Case(20_000))
SMALL = (Case(24), Case(24, 12))
TEST = 200


def main(*, mode: str, output: Path) -> dict[str, Any]:
    """Run both parts."""
    small = mode == "small"
    return sections.write(
        "kernel-fit",
        {
            "exact": lambda: [measured(case) for case in (SMALL[:1] if small else EXACT)],
            "inducing points": lambda: [measured(case) for case in (SMALL[1:] if small else INDUCING)],
        },
        mode=mode,
        output=output,
        notes=[
            "fits of `KernelOperator()` to Burgers' equation at viscosity 0.1 on 128 points, one thread, once",
            "CPU s: of the process. Factorisations: in units of a Cholesky factorisation of pairs x pairs numbers, of "
            "2,000 x 2,000 at most, in double precision in the same process",
            "peak: growth of the resident set by the fit. Evaluations: of the evidence on all pairs that hyper-parameters are "
            "learned from, 2,048 at most",
            f"relative L2 and chi² over {TEST} other functions; evidence in nats per training value, a bound if sparse",
        ],
    )


def measured(case: Case) -> Row:
    """One fit, in a process of its own."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure, case).result()


def _measure(case: Case) -> Row:
    torch.set_num_threads(1)
    problem = pn.problems.Burgers(viscosity=0.1)
    train = problem.sample(case.pairs, resolution=128, seed=0)
    test = problem.sample(TEST, resolution=128, seed=1)
    pn.heads.KernelOperator(iterations=1, groups=1).fit(None, train[:16])  # code is loaded
    unit = _factorisation(min(case.pairs, 2000))
    before = reset_peak_memory()
    wall, cpu = time.perf_counter(), time.process_time()
    predictor = pn.heads.KernelOperator(inducing_points=case.inducing_points).fit(None, train)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = (peak_memory() - before) / 2**20
    field = predictor(test.inputs)
    errors = (field.mean - test.outputs.values).flatten(1)
    variance = (field.variance + predictor.noise.to(field.variance)[:, None]).flatten(1)
    first = predictor.processes[0]
    return {
        "pairs": case.pairs,
        "inducing points": len(first.basis) if len(first.basis) < case.pairs else None,
        "s": wall,
        "CPU s": cpu,
        "factorisations": cpu / unit,
        "peak (MB)": peak,
        "evaluations": predictor.report["evaluations"],
        "converged": predictor.converged,
        "evidence": predictor.log_evidence / (case.pairs * predictor.outputs.count),
        "relative L2": float((errors.norm(dim=1) / test.outputs.values.flatten(1).norm(dim=1)).mean()),
        "chi²": float((errors.square() / variance).mean()),
    }


def _factorisation(size: int) -> float:
    """CPU seconds of one Cholesky factorisation: the best of three."""
    matrix = torch.eye(size, dtype=torch.float64) + torch.full((size, size), 0.5 / size, dtype=torch.float64)
    times = []
    for _ in range(3):
        start = time.process_time()
        torch.linalg.cholesky(matrix)
        times.append(time.process_time() - start)
    return max(min(times), 1e-9)


if __name__ == "__main__":
    studies.run(main)
