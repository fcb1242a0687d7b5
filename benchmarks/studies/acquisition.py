"""Cost of observing whole fields: information gains with gradients, and choices from a pool; each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import probneural as pn
from benchmarks import sections, studies
from probneural.randomness import stream

CANDIDATES = 4
OUTPUTS = 4096
ROUNDS = 5


@dataclass(frozen=True)
class Case:
    """A posterior, and whether candidates are chosen together (q) or are alternatives (b)."""

    head: str
    together: bool
    points: int = OUTPUTS


CASES = (
    *(Case(head, together) for head in ("last layer", "ensemble") for together in (True, False)),
    Case("low rank, two layers", together=True, points=128),
    Case("low rank, all weights", together=True, points=64),
    Case("low rank, two layers", together=True),
    Case("low rank, all weights", together=True),
)
"""Latents of a dimension for each weight, 1,409 and 41,109 here: on coarse grids rows are formed, on fine ones products do."""
POOL = 4000
BATCH = 16
SELECTORS: dict[str, pn.active.Selector] = {
    "stochastic": pn.active.StochasticSelection(),
    "integrated variance": pn.active.IntegratedVarianceSelection(),
    "BAIT": pn.active.BAITSelection(),
}


def main(*, mode: str, output: Path) -> dict[str, Any]:
    """Measure every case."""
    return sections.write(
        "acquisition",
        {
            "information gain": lambda: rows(small=mode == "small"),
            "choices": lambda: choices(small=mode == "small"),
        },
        mode=mode,
        output=output,
        notes=[
            f"value and gradient of the expected information gain of {CANDIDATES} input functions, by their coefficients; "
            f"median of {ROUNDS}, one thread; peak memory beyond that of the fitted model",
            "the operator is a Fourier neural operator of 41,000 weights that was not trained: that costs the same",
            f"choices: {BATCH} functions of a pool of {POOL:,} on 128 points, last-layer posterior, one thread; medians of "
            f"{ROUNDS} rounds in which each rule chooses once; CPU seconds are of the process, and so is the ratio",
        ],
    )


def rows(*, small: bool = False) -> list[dict[str, Any]]:
    """Every case, one after the other."""
    return [measure_information_gain(case, rounds=1 if small else ROUNDS) for case in (CASES[:1] if small else CASES)]


def measure_information_gain(case: Case = CASES[0], *, rounds: int = ROUNDS) -> dict[str, Any]:
    """Median seconds of a value with its gradient, and peak memory beyond that of the fitted model, in MiB."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        facts = pool.submit(_measure, case, rounds).result()
    return {"head": case.head, "candidates": "together" if case.together else "one by one", "outputs": case.points, **facts}


def choices(*, small: bool = False) -> list[dict[str, Any]]:
    """What a batch costs, rule by rule."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_chosen, 40 if small else POOL, 4 if small else BATCH, 1 if small else ROUNDS).result()


def _chosen(size: int, batch: int, rounds: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    problem = pn.problems.Burgers(viscosity=0.1)
    predictor = _fitted("last layer", problem.sample(16, resolution=128, seed=0))
    pool = problem.sample_inputs(size, resolution=128, seed=5)
    wall: dict[str, list[float]] = {name: [] for name in SELECTORS}
    cpu: dict[str, list[float]] = {name: [] for name in SELECTORS}
    for number in range(rounds + 1):  # the first does not count
        for name, selector in SELECTORS.items():
            start, spent = time.perf_counter(), time.process_time()
            selector.select(predictor, pool, count=batch, seed=0)
            if number:
                wall[name].append(time.perf_counter() - start)
                cpu[name].append(time.process_time() - spent)
    middle = {name: statistics.median(times) for name, times in cpu.items()}
    return [
        {
            "rule": name,
            "seconds": statistics.median(wall[name]),
            "CPU s": middle[name],
            "ratio to stochastic": middle[name] / middle["stochastic"],
        }
        for name in SELECTORS
    ]


def _measure(case: Case, rounds: int) -> dict[str, Any]:
    from benchmarks.memory import peak_memory, reset_peak_memory

    torch.set_num_threads(1)
    problem = pn.problems.Burgers(viscosity=0.1)
    train = problem.sample(16, resolution=128, seed=0)
    predictor = _fitted(case.head, train)
    grid = train.inputs.grid.resized((OUTPUTS,))
    model = pn.active.OperatorModel(
        predictor,
        encode=lambda designs: problem.encode(designs, grid=grid.resized((max(case.points, 128),))),
        functional=pn.functionals.integral(grid.resized((case.points,))),
    )
    score = pn.active.FieldInformationGain(model)
    generator = stream(0, "acquisition candidates")
    shape = (1, CANDIDATES) if case.together else (CANDIDATES, 1)
    X = torch.rand(*shape, problem.design_dim, generator=generator, dtype=torch.double).requires_grad_()
    torch.autograd.grad(score(X[:1, :1]).sum(), X)  # code is loaded, and tables that depend on the grid are made
    before = reset_peak_memory()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        value = score(X).sum()
        torch.autograd.grad(value, X)
        times.append(time.perf_counter() - start)
    return {
        "seconds": statistics.median(times),
        "peak_mb": (peak_memory() - before) / 2**20,
        "latent": score._rank,
        "nats": float(value.detach()),
    }


def _fitted(head: str, train: pn.FieldPairs) -> Any:
    """A posterior over a Fourier neural operator of 41,000 weights, which need not be trained to cost what it costs."""
    operator = pn.operators.FNO(1, 1, modes=(16,), width=20, depth=3, projection=64, seed=0)
    operator.fit_normalizers(train)
    if head == "last layer":
        return pn.heads.LastLayerLaplace(noise=1e-3, prior_precision=1.0).fit(operator, train)
    if head == "ensemble":
        return pn.heads.DeepEnsemble(members=5, train=_trained).fit(operator, train)
    chosen = None if head.endswith("all weights") else ["projection", "readout"]
    return pn.heads.Laplace(pn.heads.LowRank(rank=20), parameters=chosen, noise=1e-3, prior_precision=10.0).fit(operator, train)


def _trained(operator: torch.nn.Module, data: pn.FieldPairs, *, seed: int) -> None:
    """The recipe of an ensemble that is only timed: it has to move the weights, no matter where."""
    with torch.no_grad():
        for weights in operator.parameters():
            weights.mul_(1.01)


if __name__ == "__main__":
    studies.run(main)
