"""Inverse problems: distance to exact posteriors, simulation-based calibration, calls of the solver per effective sample."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pyro.ops.stats import effective_sample_size
from scipy.stats import kstest
from torch import Tensor

import probneural as pn
from benchmarks import environment, inverse_active, kept_units, sections
from benchmarks.inverse_hierarchical import HierarchicalTask, tempered_ratio
from benchmarks.inverse_operator import UncertainOperator
from benchmarks.inverse_tasks import BurgersTask, DarcyTask, HeatTask, PoissonTask, Task
from probneural.distributions import Predictor
from probneural.errors import ConvergenceWarning, DataWarning
from probneural.inverse import InverseProblem
from probneural.inverse.model import Prior
from probneural.randomness import stream

TASKS: dict[str, type[HeatTask] | type[PoissonTask] | type[BurgersTask] | type[DarcyTask]] = {
    "heat": HeatTask,
    "Poisson": PoissonTask,
    "Burgers": BurgersTask,
    "Darcy": DarcyTask,
}
"""Tasks by name: an initial state, a source, two scalars, and a log-permeability."""
CALIBRATED = {"Burgers": 25, "Poisson": 50, "Darcy": 50}
"""Tasks of simulation-based calibration, and pairs of their surrogates."""
LIKELIHOODS = ("mean", "joint", "draws")
PAIRS = (25, 100, 400)
DATA_SETS, SIMULATIONS, PER_SURROGATE = 2, 200, 10
"""Data sets per surrogate; data sets of simulation-based calibration, and number of these per surrogate."""
DRAWS, OPERATORS = 400, 4
PLAIN_STEPS, WARM_UP = 8000, 1000
"""Steps of each chain of plain pCN with the solver, and number of these that adapt the step size."""


def surrogate(task: Task, pairs: int, *, seed: int) -> Predictor:
    """A kernel operator of draws from the prior: half of the pairs, at most 50, scale its variances, the others train it."""
    held_out = min(50, pairs // 2)
    every = task.pairs(pairs, seed=seed, dtype=torch.float64)
    predictor = pn.heads.KernelOperator().fit(None, every[held_out:])
    return pn.calibration.VarianceScale().fit(predictor, every[:held_out])


def inverse(task: Task, predictor: Predictor, data: Tensor, likelihood: str) -> InverseProblem:
    """The inverse problem of some data."""
    return InverseProblem(
        predictor,
        prior=task.prior,
        encode=task.encode,
        functional=task.functional,
        data=data,
        noise=task.noise,
        likelihood=likelihood,
        operator_draws=OPERATORS,
    )


def distance(draws: Tensor, exact: Tensor) -> float:
    """Wasserstein distance of the marginals, in exact standard deviations, mean over parameters."""
    levels = (torch.arange(200, dtype=torch.float64) + 0.5) / 200
    gap = (draws.quantile(levels, 0) - exact.quantile(levels, 0)).abs().mean(0)
    return float((gap / exact.std(0)).mean())


def without_warnings() -> warnings.catch_warnings[None]:
    """Suppress warnings of poor surrogates on fit and convergence, which the tables show."""
    context = warnings.catch_warnings()
    context.__enter__()
    warnings.simplefilter("ignore", DataWarning)
    warnings.simplefilter("ignore", ConvergenceWarning)
    return context


@dataclass(frozen=True)
class Accuracy(kept_units.Unit):
    """Distances of one surrogate's posteriors to the exact ones."""

    task: str
    pairs: int
    commit: str
    small: bool

    @property
    def name(self) -> str:
        return f"{self.task}, {self.pairs} pairs"

    def run(self, folder: Path) -> dict[str, Any]:
        del folder
        without_warnings()
        task, sets = TASKS[self.task].default(), 1 if self.small else DATA_SETS
        start = time.process_time()
        predictor = surrogate(task, 10 if self.small else self.pairs, seed=0)
        fitted, rows = time.process_time() - start, []
        data = [task.simulate(seed)[1] for seed in range(1, 1 + sets)]
        exact = [task.posterior(part).sample(4000, seed=0) for part in data]
        for likelihood in LIKELIHOODS:
            start, figures, evaluations = time.process_time(), [], 0
            for part, reference in zip(data, exact, strict=True):
                posterior = inverse(task, predictor, part, likelihood).sample(
                    "pcn", draws=64 if self.small else DRAWS, warm_up=60, show_progress=False
                )
                widths = (posterior.std / reference.std(0)).log().mean().exp()
                shift = ((posterior.mean - reference.mean(0)) / reference.std(0)).square().mean().sqrt()
                figures.append(torch.tensor([distance(posterior.theta, reference), float(shift), float(widths)]))
                evaluations += posterior.evaluations
            gap, shift, width = torch.stack(figures).mean(0).tolist()
            rows.append(
                {
                    "task": self.task,
                    "pairs": self.pairs,
                    "likelihood": likelihood,
                    "distance": gap,
                    "error of mean": shift,
                    "sd ratio": width,
                    "evaluations": evaluations // sets,
                    "fit cpu seconds": fitted,
                    "cpu seconds": (time.process_time() - start) / sets,
                }
            )
        return {"rows": rows}


def weighted_ranks(problem: InverseProblem, theta: Tensor, *, seed: int, draws: int = 256) -> tuple[Tensor, float]:
    """Posterior probability below the truth for each parameter, by draws of the Gauss-Newton approximation with weights.

    Proposals have 1.2 times its standard deviations in few dimensions. Weights are those of each target; targets count equally.
    """
    approximation = problem.approximation(seed=seed)
    shape = problem.targets, draws, problem.size
    inflation = 1.2 if problem.size < 5 else 1.0
    white = torch.randn(shape, generator=stream(seed, "inverse ranks"), dtype=torch.float64) * inflation
    z = approximation.moved(white)
    with torch.no_grad():
        values = problem.prior.from_normal(z)
        logs = problem.log_densities(values) - 0.5 * z.square().sum(-1) + 0.5 * (white / inflation).square().sum(-1)
    weights = logs.softmax(1)
    sizes = 1.0 / weights.square().sum(1)
    below = (weights[..., None] * (values < theta)).sum(1).mean(0)
    return below, float(sizes.min()) / draws


@dataclass(frozen=True)
class Calibration(kept_units.Unit):
    """Ranks of the true parameters in the posteriors of many data sets: uniform if the posterior is calibrated."""

    task: str
    likelihood: str
    commit: str
    small: bool

    @property
    def name(self) -> str:
        return f"calibration, {self.task}, {self.likelihood}"

    def run(self, folder: Path) -> dict[str, Any]:
        del folder
        without_warnings()
        task = TASKS[self.task].default()
        count = 4 if self.small else SIMULATIONS if self.task != "Darcy" else SIMULATIONS // 4
        levels, sizes = [], []
        for number in range(count):
            if number % PER_SURROGATE == 0:
                predictor = surrogate(task, CALIBRATED[self.task], seed=1000 + number)
            theta, data = task.simulate(2000 + number)
            below, size = weighted_ranks(inverse(task, predictor, data, self.likelihood), theta, seed=number)
            levels.append(below)
            sizes.append(size)
        ranks = torch.stack(levels)
        least = min(kstest(column.numpy(), "uniform").pvalue for column in ranks.unbind(1)) * ranks.shape[1]
        covered = ((ranks > 0.05) & (ranks < 0.95)).double().mean()
        row = {
            "task": self.task,
            "pairs": CALIBRATED[self.task],
            "likelihood": self.likelihood,
            "p": min(1.0, float(least)),
            "coverage 90": float(covered),
            "outside 99": float(((ranks < 0.005) | (ranks > 0.995)).double().mean()),
            "effective fraction": float(torch.tensor(sizes).median()),
        }
        return {"rows": [row]}


@dataclass(frozen=True)
class Delayed(kept_units.Unit):
    """Calls of the solver per effective sample: plain pCN with the solver, and delayed acceptance."""

    task: str
    commit: str
    small: bool

    @property
    def name(self) -> str:
        return f"delayed acceptance, {self.task}"

    def run(self, folder: Path) -> dict[str, Any]:
        del folder
        without_warnings()
        task = TASKS[self.task].default()
        _, data = task.simulate(1)
        exact = task.posterior(data).sample(4000, seed=0)
        steps, warm_up = (40, 20) if self.small else (PLAIN_STEPS, WARM_UP)
        plain = plain_pcn(task, data, steps=steps, warm_up=warm_up)
        sizes = effective_sample_size(plain)
        rows = [self._row("pCN, solver", plain.shape[0] * steps, float(sizes.min()), distance(plain.flatten(0, 1), exact), "-")]
        for pairs in (25, 100):
            problem = inverse(task, surrogate(task, 10 if self.small else pairs, seed=0), data, "joint")
            draws = 40 if self.small else 600
            posterior = problem.sample("pcn", draws=draws, warm_up=100, exact=task.solve, show_progress=False)
            least, gap = float(posterior.effective_samples.min()), distance(posterior.theta, exact)
            rows.append(self._row("delayed acceptance", posterior.solver_calls, least, gap, pairs))
        for row in rows:
            row["calls relative"] = row["calls per sample"] / rows[0]["calls per sample"]
        return {"rows": rows}

    def _row(self, method: str, calls: int, size: float, gap: float, pairs: int | str) -> dict[str, Any]:
        return {
            "task": self.task,
            "method": method,
            "pairs": pairs,
            "calls": calls,
            "effective samples": size,
            "calls per sample": calls / size,
            "distance": gap,
        }


@torch.no_grad()
def plain_pcn(task: Task, data: Tensor, *, steps: int, warm_up: int, chains: int = 4) -> Tensor:
    """Draws `(chains, steps - warm_up, d)` of z' = sqrt(1 - b²) z + b xi, for Gaussian priors, with b at 30 % acceptance.

    Reference: Cotter, Roberts, Stuart and White (2013), MCMC methods for functions. Chains start at exact draws.
    """
    prior = Prior(task.prior)
    centre, unit = (prior.from_normal(torch.full((1, prior.size), value, dtype=torch.float64)) for value in (0.0, 1.0))
    scale = unit - centre
    generator = stream(0, "inverse plain chains")

    def log_likelihood(z: Tensor) -> Tensor:
        return -0.5 * (task.observe(centre + scale * z) - data).square().sum(-1) / task.noise

    z = (task.posterior(data).sample(chains, seed=5) - centre) / scale
    logs, log_step, kept = log_likelihood(z), torch.tensor(-2.0), []
    for number in range(steps):
        step = float(log_step.exp())
        proposal = math.sqrt(1 - step**2) * z + step * torch.randn(z.shape, generator=generator, dtype=torch.float64)
        proposed = log_likelihood(proposal)
        change = proposed - logs
        accepts = torch.rand(chains, generator=generator, dtype=torch.float64).log() < change
        z, logs = torch.where(accepts[:, None], proposal, z), torch.where(accepts, proposed, logs)
        if number < warm_up:
            rate = float(change.exp().clamp_max(1.0).mean())
            log_step = (log_step + (rate - 0.3) / math.sqrt(1 + number / 10)).clamp(-8.0, 0.0)
        else:
            kept.append(centre + scale * z)
    return torch.stack(kept, dim=1)


def gap_rows(*, small: bool) -> Iterator[dict[str, Any]]:
    """The two expected posteriors of an uncertain linear operator, in closed form."""
    for spread in (0.1, 0.3, 0.6):
        operator = UncertainOperator.default(spread=spread)
        distances, widths = [], []
        for seed in range(2 if small else 20):
            _, data = operator.simulate(seed)
            joint, draws = operator.joint(data), operator.draws(data)
            distances.append(operator.total_variation(data))
            widths.append(float((joint.covariance[0, 0] / draws.covariance[0, 0]).sqrt()))
        yield {
            "operator sd": spread,
            "total variation": sum(distances) / len(distances),
            "sd joint over draws": math.exp(sum(map(math.log, widths)) / len(widths)),
            "least": min(widths),
            "largest": max(widths),
        }


def tempered_rows(*, small: bool) -> Iterator[dict[str, Any]]:
    """Exact and tempered posteriors of the Poisson source with two hyperparameters."""
    task = HierarchicalTask.default(points=16, modes=5, sensors=20, nodes=8) if small else HierarchicalTask.default()
    _, data = task.simulate(0)
    exact = task.posterior(data)
    tempered = task.tempered(data, steps=20 if small else 300, chains=8)
    std, wide = exact.variance.sqrt(), tempered.flatten(0, 1).std(0)
    for name, part in (
        ("alpha", slice(0, 1)),
        ("tau", slice(1, 2)),
        ("10 leading modes", slice(2, 12)),
        ("all modes", slice(2, None)),
    ):
        yield {
            "parameter": name,
            "exact sd": float(std[part].mean()),
            "tempered sd": float(wide[part].mean()),
            "ratio": float((wide[part] / std[part]).mean()),
        }
    column = task.matrix[:, :1] * task.eigenvalues(torch.zeros(2, dtype=torch.float64)).sqrt()[0]
    yield {"parameter": "one unknown, flat prior", "ratio": tempered_ratio(column[:, 0])}


def main(*, mode: str, output: Path, workers: int) -> dict[str, Any]:
    """Run all work items without stored results."""
    small, commit = mode == "small", environment.commit()
    accuracy = [Accuracy(task, pairs, commit, small) for task in TASKS for pairs in PAIRS[: 1 if small else None]]
    calibration = [Calibration(task, likelihood, commit, small) for task in CALIBRATED for likelihood in ("mean", "joint")]
    delayed = [Delayed(task, commit, small) for task in ("Burgers", "Darcy")]
    todo: list[kept_units.Unit] = [*calibration, *delayed, *reversed(accuracy)]
    results: dict[str, list[dict[str, Any]]] = {}

    def run() -> list[dict[str, Any]]:
        units = kept_units.spread(todo, output / "inverse", workers=workers)
        results.update({unit.name: kept["rows"] for unit, kept in units.items()})
        return [row for unit in accuracy for row in results[unit.name]]

    return sections.write(
        "inverse",
        {
            "distance": run,
            "calibration": lambda: [row for unit in calibration for row in results[unit.name]],
            "solver calls": lambda: [row for unit in delayed for row in results[unit.name]],
            "gap": lambda: list(gap_rows(small=small)),
            "tempered": lambda: list(tempered_rows(small=small)),
            **inverse_active.parts(mode=mode, folder=output / "inverse", workers=workers),
        },
        mode=mode,
        output=output,
        commit=commit,
        notes=[
            "Surrogates are kernel operators on draws from the prior; half of the pairs, at most 50, scale their variances. "
            "distance: Wasserstein distance of marginals to the exact posterior in exact standard deviations, mean over "
            f"parameters and {DATA_SETS} data sets; {DRAWS} independent exact draws have about .04. error of mean: in exact "
            f"standard deviations, root mean square. calibration: {SIMULATIONS} data sets (Darcy: a quarter), a new surrogate "
            f"every {PER_SURROGATE}; p: Kolmogorov-Smirnov test of ranks, Bonferroni over parameters.",
            *inverse_active.NOTES,
        ],
    )
