from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from benchmarks.inverse_active import AdvectionDiffusionTask, Inversion, Unit, ratios
from probneural.distributions import Predictor
from probneural.inverse import InverseProblem

TASK = AdvectionDiffusionTask.default(nodes=20)


def test_advection_diffusion_convolves_with_a_gaussian() -> None:
    """u(x, t) is the initial state convolved with a Gaussian of variance 2 kappa t about c t, for all images."""
    theta = torch.tensor([[math.log(0.01), 0.3]], dtype=torch.float64)
    y = torch.arange(512, dtype=torch.float64) / 512
    start = torch.exp(6.0 * torch.cos(2.0 * math.pi * y) - 6.0)
    distance = TASK.grid.points - y - 0.3 * TASK.time
    variance = 2.0 * 0.01 * TASK.time
    kernel = torch.stack([torch.exp(-(distance + image).square() / (2.0 * variance)) for image in range(-3, 4)]).sum(0)
    expected = kernel @ start / (512 * math.sqrt(2.0 * math.pi * variance))
    assert torch.allclose(TASK.solve(TASK.encode(theta)).values[0, 0], expected, atol=1e-10)


class Exact(Inversion):
    """With the exact solver in place of every surrogate."""

    def problem(self, predictor: Predictor) -> InverseProblem:
        task = self.task
        shared = {"prior": task.prior, "encode": task.encode, "functional": task.functional}
        return InverseProblem(task.solve, **shared, data=self.data, noise=task.noise, likelihood="mean")  # type: ignore[arg-type]


def test_the_exact_solver_scores_nothing() -> None:
    row = Exact(TASK, 0).scored(None, 12)  # type: ignore[arg-type]
    assert row["error"] < 1e-2
    assert row["divergence"] < 1e-3


def test_both_designs_begin_alike(tmp_path: Path) -> None:
    # At seed 0 the evidence of eight pairs has two optima, and the order of the pairs selects one.
    prior, posterior = (
        Unit("advection-diffusion", design, 1, is_small=True).run(tmp_path)["rows"] for design in ("prior", "posterior")
    )
    assert [row["simulations"] for row in posterior] == [8, 12]
    assert posterior[0]["error"] == pytest.approx(prior[0]["error"], rel=1e-2)
    assert posterior[1]["error"] < posterior[0]["error"]


def test_ratio_of_known_curves() -> None:
    """Errors 1 / n² and 1 / n⁴: the prior design needs n² simulations."""
    sizes = {"prior": (2, 4, 16, 64), "posterior": (2, 4, 8, 16)}
    power = {"prior": 2, "posterior": 4}
    results = {
        Unit("Burgers", design, seed, is_small=False): {
            "rows": [{"simulations": n, "error": n ** -power[design], "divergence": 0.0} for n in sizes[design]]
        }
        for design in sizes
        for seed in range(3)
    }
    rows = ratios(results)
    assert [row["prior design"] for row in rows] == pytest.approx([4.0, 16.0, 64.0, 64.0])
    assert [row["is at least"] for row in rows] == [False, False, False, True]
    assert [row.get("shown") for row in rows] == [None, None, None, True]
