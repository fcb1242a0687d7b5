"""Cost of curvature products in gradients, compared with curvlinops on the same network, weights and data."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

import probneural as pn
from benchmarks.timing import interleaved
from probneural.curvature import ParameterVector
from probneural.curvature.problem import CurvatureProblem, Minibatches, QuadratureGaussian
from probneural.randomness import stream

BLOCKS = (1, 4, 16)
ROUNDS = 9


@dataclass(frozen=True)
class Case:
    """A network with its data."""

    name: str
    shape: tuple[int, ...]
    modes: tuple[int, ...]
    width: int
    depth: int
    batch: int


CASES = (
    Case("FNO 1-D, 128 points, 32 functions", (128,), (16,), 32, 4, 32),
    Case("FNO 2-D, 64 x 64 points, 4 functions", (64, 64), (8, 8), 20, 3, 4),
)


def rows(*, small: bool = False) -> list[dict[str, Any]]:
    """Time every product on every network, interleaved in rounds, so that drift affects all alike."""
    found = []
    before = torch.get_num_threads()
    for threads in (1,) if small else (1, 2):
        torch.set_num_threads(threads)
        for case in CASES[:1] if small else CASES:
            found += _case(case, rounds=2 if small else ROUNDS)
    torch.set_num_threads(before)
    return found


def _case(case: Case, *, rounds: int) -> list[dict[str, Any]]:
    from probneural.curvature.products import linear_operators

    operator, generator = _untrained(case), stream(0, "timed inputs")
    grid = pn.Grid.uniform(case.shape)
    inputs = pn.Field(torch.randn(case.batch, 1, *case.shape, generator=generator), grid)
    targets = pn.Field(torch.randn(case.batch, 1, *case.shape, generator=generator), grid)
    layout = ParameterVector.of(operator)
    problem = CurvatureProblem(
        operator,
        inputs,
        layout=layout,
        likelihood=QuadratureGaussian.of(grid, torch.ones(1)),
        targets=targets,
        batches=Minibatches(size=case.batch),
    )
    vectors = {count: torch.randn(count, layout.size, generator=generator) for count in BLOCKS}
    parameters = problem.parameters
    matrices = {
        "GGN": linear_operators.GaussNewton(parameters, problem),
        "Hessian": linear_operators.Hessian(parameters, problem),
    }
    tasks: dict[str, Callable[[], Any]] = {"gradient": lambda: _gradient(problem, parameters)}
    for name, matrix in matrices.items():
        for count in BLOCKS:
            tasks[f"{name}, {count}"] = lambda matrix=matrix, count=count: matrix.linearisation.product(vectors[count])
    tasks |= _peers(operator, inputs, targets, vectors)
    times = {name: median(seconds) for name, seconds in interleaved(tasks, rounds).items()}
    unit = times["gradient"]
    agreement = _agreement(matrices, tasks, vectors)
    found = []
    for name in matrices:
        for count in BLOCKS:
            mine, peer = times[f"{name}, {count}"], times.get(f"curvlinops {name}, {count}")
            found.append(
                {
                    "network": case.name,
                    "parameters": layout.size,
                    "threads": torch.get_num_threads(),
                    "product": name,
                    "vectors": count,
                    "gradients each": mine / unit / count,
                    "curvlinops": None if peer is None else peer / unit / count,
                    "curvlinops / ours": None if peer is None else peer / mine,
                    "difference": agreement.get(name),
                }
            )
    return found


def _untrained(case: Case) -> pn.operators.FNO:
    return pn.operators.FNO(1, 1, modes=case.modes, width=case.width, depth=case.depth, seed=0).eval()


def _gradient(problem: CurvatureProblem, parameters: torch.Tensor) -> torch.Tensor:
    """One evaluation of the loss and its gradient in plain PyTorch."""
    leaf = parameters.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(problem.loss(leaf), leaf)
    return gradient


def _peers(
    operator: torch.nn.Module, inputs: pn.Field, targets: pn.Field, vectors: dict[int, torch.Tensor]
) -> dict[str, Callable[[], Any]]:
    """The same products by curvlinops, if installed; a mean over points and a sum over samples is half our loss."""
    try:
        import curvlinops
    except ImportError:
        return {}
    parameters = list(operator.parameters())
    data = [(inputs.values, targets.values)]
    settings = {"check_deterministic": False}
    loss = torch.nn.MSELoss(reduction="mean")
    kinds = {"GGN": curvlinops.GGNLinearOperator, "Hessian": curvlinops.HessianLinearOperator}
    tasks: dict[str, Callable[[], Any]] = {}
    for name, kind in kinds.items():
        peer = kind(operator, loss, parameters, data, **settings)
        for count, block in vectors.items():
            tasks[f"curvlinops {name}, {count}"] = lambda peer=peer, block=block: peer @ block.mT
    return tasks


def _agreement(
    matrices: dict[str, Any], tasks: dict[str, Callable[[], Any]], vectors: dict[int, torch.Tensor]
) -> dict[str, float]:
    """Relative difference of both libraries' products, after the factor between the losses."""
    found = {}
    for name, matrix in matrices.items():
        if f"curvlinops {name}, 4" in tasks:
            mine = matrix.linearisation.product(vectors[4])
            peer = tasks[f"curvlinops {name}, 4"]().mT
            factor = (mine * peer).sum() / peer.square().sum()
            found[name] = float((mine - factor * peer).norm() / mine.norm())
    return found


def memory(*, small: bool = False) -> list[dict[str, Any]]:
    """Peak memory of a Gauss-Newton product beyond the vectors, by number of vectors, each in a separate process."""
    from benchmarks.workers import spawned

    os.environ["OMP_NUM_THREADS"] = "2"
    rows = []
    for count in (16, 64) if small else (16, 64, 256):
        with spawned(1) as pool:
            rows.append({"vectors": count, "peak_mb": pool.submit(_peak_of_product, count).result()})
    return rows


def _peak_of_product(count: int) -> float:
    from benchmarks.memory import peak_memory, reset_peak_memory
    from probneural.curvature.products import linear_operators

    case = CASES[1]
    operator, generator = _untrained(case), stream(0, "timed inputs")
    grid = pn.Grid.uniform(case.shape)
    inputs = pn.Field(torch.randn(case.batch, 1, *case.shape, generator=generator), grid)
    layout = ParameterVector.of(operator)
    problem = CurvatureProblem(
        operator,
        inputs,
        layout=layout,
        likelihood=QuadratureGaussian.of(grid, torch.ones(1)),
        batches=Minibatches(size=case.batch),
    )
    matrix = linear_operators.GaussNewton(problem.parameters, problem)
    vectors = torch.randn(count, layout.size, generator=generator)
    before = reset_peak_memory()
    result = matrix.linearisation.product(vectors)
    return (peak_memory() - before - result.nbytes) / 2**20
