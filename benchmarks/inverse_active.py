"""Simulations for one inversion: draws from the prior compared with draws from the surrogate's posterior.

Each seed has its own parameters and data. A kernel operator is fitted to the simulations of each design, and the posterior
of its `"joint"` likelihood is compared with the exact one. Both designs start from the same draws of the prior. The posterior
design uses `ActiveLearner`: it selects at random from 100 draws of ensemble Kalman inversion and 100 draws from the
prior, which correct a wrong posterior of the surrogate.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy
import torch
from jaxtyping import Float, Float64
from torch import Tensor

import probneural as pn
from benchmarks import environment, kept_units, sections
from benchmarks.inverse_posteriors import Posterior
from benchmarks.inverse_tasks import BurgersTask, DarcyTask, SmallTask
from probneural.distributions import Predictor
from probneural.inverse import InverseProblem
from probneural.inverse.gauss_newton import approximate
from probneural.randomness import stream_seed

Row = dict[str, Any]
Results = Mapping["Unit", Mapping[str, Any]]
DESIGNS = ("prior", "posterior")
SEEDS = 5
NODES = 8
"""Gauss-Hermite nodes per parameter of posterior moments."""
CLAIM = 3.0
"""Claimed ratio of simulations, prior over posterior design, at the final error of the posterior design."""

NOTES = (
    "Simulations near the posterior: error is the distance of the posterior's mean from the exact one, in exact posterior "
    "standard deviations (root mean square over directions); divergence: Kullback-Leibler divergence from the exact posterior "
    "to the surrogate's, of the Gaussians of their moments, in nats. Medians over seeds, each with other data.",
    "ratio: simulations of the prior design with the error of the posterior design's, over those of the latter; of medians, "
    "interpolated on doubly logarithmic axes; at least, where the prior design does not reach it.",
)


@dataclass(frozen=True, eq=False, kw_only=True)
class AdvectionDiffusionTask(SmallTask):
    """Logarithm of the diffusivity and speed from 8 sensors at t = .5: theta = (log kappa, c), 64 points.

    u_t + c u_x = kappa u_xx on [0, 1) from u(x, 0) = exp(6 cos(2 pi x) - 6). Inputs have two channels: log kappa, and c.
    """

    time: float = 0.5

    @classmethod
    def default(cls, *, nodes: int = 40) -> AdvectionDiffusionTask:
        grid = pn.Grid.uniform(64)
        return cls(
            name="advection-diffusion",
            noise=0.01**2,
            grid=grid,
            functional=pn.functionals.sensors(grid, torch.arange(8, dtype=torch.float64)[:, None] / 8.0),
            location=torch.tensor([math.log(0.005), 0.5], dtype=torch.float64),
            scale=torch.tensor([0.5, 0.25], dtype=torch.float64),
            nodes=nodes,
        )

    def encode(self, theta: Float[Tensor, "*batch d"]) -> pn.Field:
        return pn.Field(theta.reshape(-1, 2, 1).expand(-1, -1, self.grid.size), self.grid)

    def solve(self, inputs: pn.Field) -> pn.Field:
        log_diffusivity, speed = inputs.values.double().mean(-1).unbind(1)
        start = torch.exp(6.0 * torch.cos(2.0 * math.pi * self.grid.points[:, 0]) - 6.0)
        angle = 2.0 * math.pi * torch.arange(self.grid.size // 2 + 1, dtype=torch.float64)
        # each mode: exp(-(kappa k² + i c k) t)
        decay = log_diffusivity.exp()[:, None] * angle.square()
        factors = torch.exp(-self.time * torch.complex(decay, speed[:, None] * angle))
        values = torch.fft.irfft(torch.fft.rfft(start) * factors, n=self.grid.size)
        return pn.Field(values[:, None].to(inputs.dtype), self.grid)


@dataclass(frozen=True)
class Plan:
    """Simulations of one design.

    Attributes:
        start: Initial draws from the prior, in both designs.
        batch: Simulations per round of the posterior design.
        rounds: Rounds of the posterior design after the start.
        prior: Sizes of the prior design.
    """

    start: int
    batch: int
    rounds: int
    prior: tuple[int, ...]


TASKS: dict[str, tuple[Callable[[], SmallTask], Plan]] = {
    "Burgers": (BurgersTask.default, Plan(8, 4, 3, (8, 16, 24, 36, 48, 60, 90))),
    "advection-diffusion": (AdvectionDiffusionTask.default, Plan(8, 4, 3, (8, 16, 24, 36, 48, 60, 90))),
    "Darcy": (DarcyTask.default, Plan(16, 8, 2, (16, 24, 36, 48, 72, 96, 144))),
}


@dataclass(frozen=True)
class Unit(kept_units.Unit):
    """One design for the data of one seed.

    Attributes:
        task: Name of the task.
        design: `"prior"` or `"posterior"`.
        seed: Seed of parameters, data and draws.
        is_small: Whether the run is a test of the script, in seconds.
    """

    task: str
    design: str
    seed: int
    is_small: bool
    commit: str = field(default="unknown", kw_only=True)

    @property
    def name(self) -> str:
        return f"inverse, {self.task}, {self.design} design, seed {self.seed}"

    @property
    def settings(self) -> tuple[object, ...]:
        return (self.plan,)

    @property
    def plan(self) -> Plan:
        """Simulations of the design."""
        plan = TASKS[self.task][1]
        return Plan(plan.start, plan.batch, 1, plan.prior[:2]) if self.is_small else plan

    def run(self, folder: Path) -> dict[str, Any]:
        del folder
        inversion = Inversion(TASKS[self.task][0](), self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # early surrogates do not explain the data
            rows = inversion.prior_design(self.plan) if self.design == "prior" else inversion.posterior_design(self.plan)
        return {"rows": rows}


@dataclass(frozen=True)
class Inversion:
    """The data of one seed, their exact posterior, and surrogates for them."""

    task: SmallTask
    seed: int

    @cached_property
    def data(self) -> Float64[Tensor, " m"]:
        """Noisy data of parameters from the prior."""
        return self.task.simulate(self.seed)[1]

    @cached_property
    def exact(self) -> Posterior:
        """The exact posterior."""
        return self.task.posterior(self.data)

    def inputs(self, count: int) -> pn.Field:
        """The first draws of the prior design."""
        return self.task.encode(self.task.draw(count, stream_seed(self.seed, "inverse design")))

    def problem(self, predictor: Predictor) -> InverseProblem:
        """The inverse problem with a surrogate."""
        task = self.task
        return InverseProblem(
            predictor, prior=task.prior, encode=task.encode, functional=task.functional, data=self.data, noise=task.noise
        )

    def prior_design(self, plan: Plan) -> list[Row]:
        """Scores of kernel operators on the first draws from the prior."""
        inputs = self.inputs(max(plan.prior))
        pairs = pn.FieldPairs(inputs, self.task.solve(inputs))
        return [self.scored(pn.heads.KernelOperator().fit(None, pairs[:count]), count) for count in plan.prior]

    def posterior_design(self, plan: Plan) -> list[Row]:
        """Scores after each round of active learning."""

        def candidates(predictor: Predictor) -> pn.Field:
            seed = int(torch.randint(2**31, ()))  # from the loop's stream
            draws = self.problem(predictor).kalman(members=100, seed=seed).theta
            return self.task.encode(torch.cat([draws, self.task.draw(100, seed)]))

        with tempfile.TemporaryDirectory() as store, ThreadPoolExecutor(1) as executor:
            learner = pn.active.ActiveLearner(
                self.task.solve,
                pn.heads.KernelOperator(),
                acquisition=pn.active.RandomSelection(),
                pool=self.inputs(plan.start),
                store=store,
                plan=pn.active.LearningPlan(initial=plan.start, batch=plan.batch, candidates=candidates),
                simulation=pn.active.SimulationOptions(executor=executor, show_progress=False),
            )
            rows = []
            for number in range(plan.rounds + 1):
                labels = learner.run(rounds=number + 1).labels[-1]
                rows.append(self.scored(learner.predictor, labels))
            return rows

    def scored(self, predictor: Predictor, labels: int) -> Row:
        """Distance of the surrogate's posterior to the exact one."""
        mean, covariance = self.moments(predictor)
        exact, size = self.exact, len(mean)
        off = mean - exact.mean
        # KL(N(m, C) | N(m', C')) = (tr C'^-1 C - d - log det C'^-1 C + |m - m'|² in C'^-1) / 2
        change = torch.linalg.solve(covariance, exact.covariance)
        squares = off @ torch.linalg.solve(covariance, off)
        return {
            "simulations": labels,
            "error": float((off @ torch.linalg.solve(exact.covariance, off) / size).sqrt()),
            "divergence": float(0.5 * (change.trace() - size - torch.logdet(change) + squares)),
        }

    def moments(self, predictor: Predictor) -> tuple[Float64[Tensor, " d"], Float64[Tensor, "d d"]]:
        """Mean and covariance of the surrogate's posterior, by Gauss-Hermite quadrature about its Gauss-Newton approximation.

        The search for the mode starts at the prior's centre and at the exact mean.
        """
        problem, size = self.problem(predictor), len(self.exact.mean)
        start = (self.exact.mean - self.task.location) / self.task.scale
        reference = approximate(problem, torch.stack([0.0 * start, start])[None], iterations=30, tolerance=1e-3)
        points, weights = (torch.from_numpy(part) for part in numpy.polynomial.hermite_e.hermegauss(NODES))
        white = torch.cartesian_prod(*[points] * size)
        logs = torch.cartesian_prod(*[weights.log()] * size).sum(-1)
        z = reference.moved(white[None])
        with torch.no_grad():
            theta = problem.prior.from_normal(z)
            logs = logs + problem.log_densities(theta)[0] + 0.5 * (white.square().sum(-1) - z[0].square().sum(-1))
        mass = logs.softmax(0)
        mean = mass @ theta[0]
        off = theta[0] - mean
        return mean, off.mT @ (off * mass[:, None])


def parts(*, mode: str, folder: Path, workers: int, notes: list[str] | None = None) -> dict[str, Callable[[], Sequence[Row]]]:
    """Tables of the inverse benchmark; the first runs all work items or reads stored results."""
    todo = units(mode=mode)
    return sections.made_of(
        lambda: kept_units.spread(todo, folder, workers=workers, notes=notes),
        {"simulations near the posterior": ratios, "simulations near the posterior, medians": curves},
    )


def units(*, mode: str) -> list[Unit]:
    """All runs, seed by seed."""
    commit, small = environment.commit(), mode == "small"
    return [
        Unit(task, design, seed, small, commit=commit)
        for seed in range(1 if small else SEEDS)
        for task in (list(TASKS)[:1] if small else TASKS)
        for design in DESIGNS
    ]


def curves(results: Results) -> list[Row]:
    """Medians over seeds for each number of simulations."""
    rows = []
    for task, design in dict.fromkeys((unit.task, unit.design) for unit in results):
        runs = [result["rows"] for unit, result in results.items() if (unit.task, unit.design) == (task, design)]
        for points in zip(*runs, strict=True):
            middle = {name: median(point[name] for point in points) for name in ("error", "divergence")}
            rows.append(
                {"task": task, "design": design, "simulations": points[0]["simulations"], "seeds": len(points), **middle}
            )
    return rows


def ratios(results: Results) -> list[Row]:
    """Simulations of the prior design for the error of the posterior design, over those of the latter."""
    rows, every = [], curves(results)
    for task in dict.fromkeys(unit.task for unit in results):
        prior, posterior = ([row for row in every if (row["task"], row["design"]) == (task, design)] for design in DESIGNS)
        for row in posterior:
            needed, is_reached = _needed(prior, row["error"])
            ratio = needed / row["simulations"]
            rows.append(
                {
                    "task": task,
                    "simulations": row["simulations"],
                    "error": row["error"],
                    "prior design": needed,
                    "ratio": ratio,
                    "is at least": not is_reached,
                }
            )
        rows[-1]["shown"] = rows[-1]["ratio"] >= CLAIM
    return rows


def _needed(curve: Sequence[Row], error: float) -> tuple[float, bool]:
    """Number of simulations after which a curve stays at or below an error, and whether it reaches it."""
    last = max((index for index, row in enumerate(curve) if row["error"] > error), default=None)
    if last is None:
        return float(curve[0]["simulations"]), True
    if last == len(curve) - 1:
        return float(curve[-1]["simulations"]), False
    low, high = curve[last], curve[last + 1]
    share = math.log(low["error"] / error) / math.log(low["error"] / high["error"])
    return low["simulations"] * (high["simulations"] / low["simulations"]) ** share, True
