"""Smoke test of the benchmark of inverse problems, and its ranks against a closed form."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from scipy.stats import kstest

from benchmarks.inverse import Accuracy, Calibration, Delayed, distance, weighted_ranks
from benchmarks.inverse_tasks import HeatTask
from probneural.inverse import InverseProblem


def test_rows_are_complete(tmp_path: Path) -> None:
    units = (Accuracy("heat", 25, "none", small=True), Calibration("Burgers", "mean", "none", small=True))
    for unit in (*units, Delayed("Burgers", "none", small=True)):
        for row in unit.run(tmp_path)["rows"]:
            assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))


@pytest.mark.filterwarnings("ignore:no parameters explain")
def test_ranks_of_the_exact_posterior_are_uniform() -> None:
    """With the solver in place of a surrogate; ranks against half the noise are not."""
    task, ranks = HeatTask.default(), {1.0: [], 0.25: []}
    for seed in range(60):
        theta, data = task.simulate(seed)
        for factor, levels in ranks.items():
            problem = InverseProblem(
                task.solve,
                prior=task.prior,
                encode=task.encode,
                functional=task.functional,
                data=data,
                noise=factor * task.noise,
                likelihood="mean",
            )
            levels.append(weighted_ranks(problem, theta, seed=seed)[0][:4])
    p_values = {factor: kstest(torch.stack(levels).flatten().numpy(), "uniform").pvalue for factor, levels in ranks.items()}
    assert p_values[1.0] > 0.01
    assert p_values[0.25] < 1e-3


def test_distances_of_equal_and_shifted_draws() -> None:
    draws = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert distance(draws, draws) == 0.0
    assert abs(distance(draws + draws.std(0), draws) - 1.0) < 1e-6
