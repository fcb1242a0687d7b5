"""Optimisation in batches of four: `pn.active.Optimizer` with its defaults, and BoTorch's Gaussian processes on scalars."""

from __future__ import annotations

import contextlib
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement, qLogProbabilityOfFeasibility
from botorch.acquisition.objective import GenericMCObjective
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf
from botorch.sampling.normal import SobolQMCNormalSampler
from torch import Tensor

import probneural as pn
from benchmarks import bo_methods
from benchmarks.bo_problems import DesignProblem, scored
from probneural.randomness import seeded, stream_seed

BATCH = 4
"""Designs that are evaluated at once, the default of `Optimizer`."""
METHODS = ("Sobol, in batches", "GPs on scalars, in batches", "Optimizer, in batches")


def run(
    method: str, problem: DesignProblem, *, seed: int, budget: bo_methods.Budget, evaluations: int | None
) -> dict[str, Any]:
    """Optimise; return losses in order, in which infeasible designs have `problem.infeasible`, and processor seconds."""
    count = problem.initial + (problem.evaluations if evaluations is None else evaluations)
    start = time.process_time()
    with warnings.catch_warnings(), seeded(seed, "batch methods"), _optimizer(problem, seed) as optimizer:
        warnings.filterwarnings("ignore", message="Sparse invariant checks", category=UserWarning)
        if method == METHODS[0]:
            designs = torch.quasirandom.SobolEngine(problem.dimension, scramble=True, seed=seed).draw(count, dtype=torch.double)
        elif method == METHODS[1]:
            designs = _by_scalars(problem, optimizer.ask(), count=count, budget=budget, seed=seed)
        else:
            designs = optimizer.run(evaluations=count).designs
    seconds = time.process_time() - start
    observations = problem.read(problem.simulate(designs).outputs)
    return {
        "losses": scored(problem, observations).tolist(),
        "fit_seconds": 0.0,
        "choice_seconds": seconds / count,
        "seconds": seconds,
    }


@contextlib.contextmanager
def _optimizer(problem: DesignProblem, seed: int) -> Iterator[pn.active.Optimizer]:
    """The optimizer with a kernel operator, on the field and the known functions of it."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as executor:
        yield pn.active.Optimizer(
            problem.solve,
            pn.heads.KernelOperator(min_noise=bo_methods.MIN_NOISE),
            encode=problem.encode,
            dimension=problem.dimension,
            functional=problem.functional,
            objective=lambda numbers: -problem.loss(numbers),
            constraints={"violation": problem.violation} if problem.constraint else {},
            store=folder,
            plan=pn.active.LearningPlan(initial=problem.initial, batch=BATCH, seed=seed),
            simulation=pn.active.SimulationOptions(executor=executor, show_progress=False),
        )


def _by_scalars(problem: DesignProblem, initial: Tensor, *, count: int, budget: bo_methods.Budget, seed: int) -> Tensor:
    """Designs by BoTorch: one Gaussian process for the objective, one for the constraint, and the same acquisition function."""
    designs = initial
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).expand(2, problem.dimension)
    for number in range(len(initial), count, BATCH):
        observations = problem.read(problem.simulate(designs).outputs)
        scalars = [-problem.loss(observations)] + ([problem.violation(observations)] if problem.constraint else [])
        models = [
            SingleTaskGP(
                designs,
                values[:, None],
                likelihood=bo_methods.learned_noise(torch.Size(), has_prior=True),
                outcome_transform=Standardize(1),
            )
            for values in scalars
        ]
        model = ModelListGP(*[bo_methods.fitted(one, budget.fit_iterations) for one in models])
        constraints = [lambda samples: samples[..., 1]] if problem.constraint else None
        sampler = SobolQMCNormalSampler(torch.Size([budget.draws]), seed=stream_seed(seed, "batch draws", number))
        if not bool((problem.violation(observations) <= 0).any()):
            acquisition = qLogProbabilityOfFeasibility(model, constraints=constraints, sampler=sampler)
        else:
            acquisition = qLogNoisyExpectedImprovement(
                model,
                X_baseline=designs,
                objective=GenericMCObjective(lambda samples, X=None: samples[..., 0]),
                constraints=constraints,
                sampler=sampler,
                prune_baseline=True,
            )
        chosen, _ = optimize_acqf(
            acquisition,
            bounds,
            q=min(BATCH, count - number),
            num_restarts=budget.restarts,
            raw_samples=budget.raw,
            options={"maxiter": budget.iterations, "seed": stream_seed(seed, "batch starts", number)},
            sequential=True,
        )
        designs = torch.cat([designs, chosen.detach().clamp(0.0, 1.0)])
    return designs
