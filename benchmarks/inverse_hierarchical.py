"""A Poisson source with unknown smoothness and length scale, after the Poisson task of PosteriorBench.

Given the two hyperparameters, source and data are jointly Gaussian; quadrature integrates over them. The published
reference posterior is *tempered*: its weight is exp(-MAE^2 / 2 s^2), with MAE the mean absolute residual of m sensors
and s the standard deviation of their noise, instead of the likelihood exp(-m MSE / 2 s^2). Its repository has the sources'
standard deviation, not the ranges of the hyperparameters, which are our choice.

Reference: Yao et al. (2026), PosteriorBench, arXiv 2609.20794, equations 16 and 17. Murray, Adams and MacKay (2010), Elliptical
slice sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.distributions import Distribution

import probneural as pn
from benchmarks.inverse_posteriors import Posterior, QuadraturePosterior, gaussian_log_density, normal_draws
from benchmarks.inverse_tasks import Task, poisson, prior_levels, sensors_within, standard_normal
from probneural.functionals import Functional
from probneural.problems import GaussianRandomField
from probneural.randomness import stream

SMOOTHNESS, INVERSE_LENGTH = (2.0, 4.0), (3.0, 15.0)
"""Ranges of alpha and tau, uniform: sources are N(0, sigma^2 (-Lap + tau^2)^-alpha)."""
SOURCE_STD = 0.272
"""Root mean square of the sources for all alpha and tau."""
INFLATION = 5.0
"""Factor on the noise of the Gaussian reference of the tempered posterior; it changes the speed of chains, not their law."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HierarchicalTask(Task):
    """The source of -Lap u = f on the unit square and its hyperparameters: theta = (z_alpha, z_tau, xi), all N(0, 1).

    alpha and tau are at the quantiles of z_alpha and z_tau in their ranges, and f = sum_k sqrt(lambda_k) xi_k e_k with cosine
    modes e_k, without the constant, and lambda_k proportional to (|pi k|^2 + tau^2)^-alpha. The solution operator is that of
    the sine interpolant on the grid.
    """

    name: str
    noise: float
    grid: pn.Grid
    functional: Functional
    random_field: GaussianRandomField
    nodes: int

    @classmethod
    def default(cls, *, points: int = 64, modes: int = 31, sensors: int = 128, nodes: int = 24) -> HierarchicalTask:
        """The size of the published task; noise of standard deviation 1e-4."""
        grid = pn.Grid.uniform((points, points), periodic=False)
        return cls(
            name="Poisson, hierarchical",
            noise=1e-4**2,
            grid=grid,
            functional=sensors_within(grid, sensors),
            random_field=GaussianRandomField(2, modes, sigma=1.0, tau=1.0, alpha=1.0, boundary="neumann"),
            nodes=nodes,
        )

    @property
    def prior(self) -> Distribution:  # type: ignore[override]
        return standard_normal(2 + self.random_field.size)

    def eigenvalues(self, z: Float[Tensor, "*batch two"]) -> Float[Tensor, "*batch k"]:
        """Variances of the modes, of sum SOURCE_STD^2."""
        levels = torch.special.ndtr(z)
        alpha, tau = (low + (high - low) * levels[..., i, None] for i, (low, high) in enumerate((SMOOTHNESS, INVERSE_LENGTH)))
        laplacian = (self.random_field.eigenvalues.reciprocal() - 1.0).to(z)  # with sigma = tau = alpha = 1
        return SOURCE_STD**2 * torch.softmax(-alpha * torch.log(laplacian + tau.square()), dim=-1)

    def coefficients(self, theta: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch k"]:
        """Coefficients of the source."""
        return self.eigenvalues(theta[..., :2]).sqrt() * theta[..., 2:]

    def encode(self, theta: Float[Tensor, "*batch d"]) -> pn.Field:
        return self._source(self.coefficients(theta).reshape(-1, self.random_field.size))

    def _source(self, coefficients: Tensor) -> pn.Field:
        return pn.Field(self.random_field.evaluate(coefficients, self.grid)[:, None], self.grid)

    def solve(self, inputs: pn.Field) -> pn.Field:
        return poisson(inputs)

    @cached_property
    def matrix(self) -> Float64[Tensor, "m k"]:
        """Sensors of the solution for each mode."""
        modes = torch.eye(self.random_field.size, dtype=torch.float64)
        parts = [self.functional(self.solve(self._source(part)).values)[:, 0] for part in modes.split(128)]
        return torch.cat(parts).mT

    def observe(self, theta: Float64[Tensor, "*batch d"]) -> Float64[Tensor, "*batch m"]:
        return self.coefficients(theta) @ self.matrix.mT

    def posterior(self, data: Float64[Tensor, " m"]) -> HierarchicalPosterior:
        def log_density(levels: Tensor) -> Tensor:
            covariances = (self.data_covariance(self.eigenvalues(z)) for z in torch.special.ndtri(levels))
            return torch.stack([gaussian_log_density(data, covariance) for covariance in covariances])

        centre = torch.full((2,), 0.5, dtype=torch.float64)
        levels = QuadraturePosterior.of(log_density, centre, centre.diag(), nodes=self.nodes)
        return HierarchicalPosterior.of(self, data, levels)

    def data_covariance(self, eigenvalues: Float64[Tensor, " k"]) -> Float64[Tensor, "m m"]:
        """S = A Lambda A^T + s^2 I."""
        return (self.matrix * eigenvalues) @ self.matrix.mT + self.noise * torch.eye(len(self.matrix), dtype=torch.float64)

    def tempered_log_likelihood(self, theta: Float64[Tensor, "n d"], data: Float64[Tensor, " m"]) -> Float64[Tensor, " n"]:
        """-MAE^2 / 2 s^2, the logarithm of the published weight."""
        return -(self.observe(theta) - data).abs().mean(-1).square() / (2.0 * self.noise)

    def tempered(self, data: Float64[Tensor, " m"], *, steps: int, chains: int = 32, seed: int = 0) -> Float64[Tensor, "s c d"]:
        """Draws of the tempered posterior, `(steps / 2, chains, d)`, with R-hat still about 1.2 after 600 steps.

        Chains move on ellipses of a Gaussian reference, xi given data H xi + N(0, v I), with v = (INFLATION s)^2 and H at the
        medians of alpha and tau, and correct for it by the weight exp(|data - H xi|^2 / 2 v). By Matheron's rule it is the
        law of xi = x + G (data - H x - sqrt(v) e) with standard normal x and e.
        """
        half = self.matrix * self.eigenvalues(torch.zeros(2, dtype=torch.float64)).sqrt()
        variance, k = INFLATION**2 * self.noise, self.random_field.size
        total = half @ half.mT + variance * torch.eye(len(data), dtype=torch.float64)
        gain = torch.cholesky_solve(half, torch.linalg.cholesky(total)).mT

        def moved(normal: Tensor) -> Tensor:
            z, x, e = normal.split([2, k, len(data)], dim=-1)
            return torch.cat([z, x + (data - x @ half.mT - math.sqrt(variance) * e) @ gain.mT], dim=-1)

        def log_weight(normal: Tensor) -> Tensor:
            theta = moved(normal)
            correction = (data - theta[:, 2:] @ half.mT).square().sum(-1) / (2.0 * variance)
            return self.tempered_log_likelihood(theta, data) + correction

        start = torch.special.ndtri(prior_levels(chains, 2 + k + len(data), seed=seed))
        return moved(slice_draws(log_weight, start, steps=steps, seed=seed))


@dataclass(frozen=True, eq=False)
class HierarchicalPosterior(Posterior):
    """Mixture of Gaussian distributions of xi over quadrature nodes of the two hyperparameters.

    Attributes:
        levels: The posterior of the quantiles of (alpha, tau) in their ranges, uniform on the unit square in the prior. The
            moments of z, which diverges logarithmically at its border, converge like 1 / nodes^2, all others exponentially.
        weights: Weights of the nodes with positive mass, `(k,)`.
        places: (z_alpha, z_tau) at those nodes, `(k, 2)`.
        means: Means of xi at the nodes, `(k, modes)`.
        variances: Variances of xi at the nodes, `(k, modes)`.
    """

    task: HierarchicalTask
    data: Float64[Tensor, " m"]
    levels: QuadraturePosterior
    weights: Float64[Tensor, " k"]
    places: Float64[Tensor, "k two"]
    means: Float64[Tensor, "k modes"]
    variances: Float64[Tensor, "k modes"]

    @classmethod
    def of(cls, task: HierarchicalTask, data: Tensor, levels: QuadraturePosterior) -> HierarchicalPosterior:
        """Condition xi at each node: xi | z ~ N(G data, I - G A Lambda^1/2), G = Lambda^1/2 A^T S^-1."""
        mass = levels.mass.flatten()
        chosen = mass > 1e-15
        places, means, variances = torch.special.ndtri(levels.places[chosen]), [], []
        for z in places:
            half, gain = cls._gain(task, z)
            means.append(gain @ data)
            variances.append(1.0 - (gain * half.mT).sum(1))
        parts = torch.stack(means), torch.stack(variances)
        return cls(task, data, levels, mass[chosen] / mass[chosen].sum(), places, *parts)

    @staticmethod
    def _gain(task: HierarchicalTask, z: Tensor) -> tuple[Tensor, Tensor]:
        """A Lambda^1/2, and the gain G."""
        eigenvalues = task.eigenvalues(z)
        half = task.matrix * eigenvalues.sqrt()
        return half, torch.cholesky_solve(half, torch.linalg.cholesky(task.data_covariance(eigenvalues))).mT

    @property
    def log_evidence(self) -> float:  # type: ignore[override]
        return self.levels.log_evidence

    @property
    def mean(self) -> Float64[Tensor, " d"]:  # type: ignore[override]
        return self.weights @ torch.cat([self.places, self.means], dim=1)

    @property
    def variance(self) -> Float64[Tensor, " d"]:
        """The diagonal of the covariance, by the law of total variance."""
        within = torch.cat([torch.zeros_like(self.places), self.variances], dim=1)
        return self.weights @ (within + (torch.cat([self.places, self.means], dim=1) - self.mean).square())

    @cached_property
    def covariance(self) -> Float64[Tensor, "d d"]:  # type: ignore[override]
        off = torch.cat([self.places, self.means], dim=1) - self.mean
        total = off.mT @ (off * self.weights[:, None])
        total[2:, 2:] += torch.eye(self.means.shape[1], dtype=torch.float64)
        for weight, z in zip(self.weights, self.places, strict=True):
            half, gain = self._gain(self.task, z)
            total[2:, 2:] -= weight * (gain @ half)
        return total

    def sample(self, n: int, seed: int) -> Float64[Tensor, "n d"]:
        """Hyperparameters first; then xi + G (data - A Lambda^1/2 xi - noise), by Matheron's rule."""
        z = torch.special.ndtri(self.levels.sample(n, seed))
        xi = normal_draws(n, self.means.shape[1], seed=seed, index=1)
        noise = math.sqrt(self.task.noise) * normal_draws(n, len(self.data), seed=seed, index=2)
        rows = []
        for row in range(n):
            half, gain = self._gain(self.task, z[row])
            rows.append(torch.cat([z[row], xi[row] + gain @ (self.data - half @ xi[row] - noise[row])]))
        return torch.stack(rows)

    def cdf(self, theta: Float64[Tensor, " d"]) -> Float64[Tensor, " d"]:
        coefficients = self.weights @ torch.special.ndtr((theta[2:] - self.means) / self.variances.sqrt())
        return torch.cat([self.levels.cdf(torch.special.ndtr(theta[:2])), coefficients])


def slice_draws(
    log_likelihood: Callable[[Tensor], Tensor], start: Float64[Tensor, "c d"], *, steps: int, seed: int
) -> Float64[Tensor, "s c d"]:
    """Elliptical slice sampling of a likelihood under N(0, I) in several chains; returns the second half of all steps."""
    generator, kept, theta = stream(seed, "inverse chains"), [], start
    logs = log_likelihood(theta)
    for step in range(steps):
        direction = torch.randn(theta.shape, generator=generator, dtype=torch.float64)
        uniform = torch.rand(2, len(theta), generator=generator, dtype=torch.float64)
        level, angle = logs + uniform[0].log(), 2.0 * math.pi * uniform[1]
        low, high, moved = angle - 2.0 * math.pi, angle.clone(), torch.zeros(len(theta), dtype=torch.bool)
        while not bool(moved.all()):
            trial = theta * angle.cos()[:, None] + direction * angle.sin()[:, None]
            trial_logs = log_likelihood(trial)
            accepted = ~moved & (trial_logs > level)
            theta = torch.where(accepted[:, None], trial, theta)
            logs, moved = torch.where(accepted, trial_logs, logs), moved | accepted
            low, high = torch.where(~moved & (angle < 0), angle, low), torch.where(~moved & (angle >= 0), angle, high)
            fresh = low + (high - low) * torch.rand(len(theta), generator=generator, dtype=torch.float64)
            angle = torch.where(moved, angle, fresh)
        if step >= steps // 2:
            kept.append(theta)
    return torch.stack(kept)


def tempered_ratio(sensitivity: Float64[Tensor, " m"]) -> float:
    """Standard deviation of one unknown under the tempered posterior over that under the exact one, a flat prior.

    Data y_i = g_i x + N(0, s^2): the exact deviation is s / |g|. MAE is at its mean over the noise, for x off by d
    s mean_i [sqrt(2 / pi) e^(-z_i^2 / 2) + z_i erf(z_i / sqrt 2)] with z_i = g_i d / s; units in which s = 1 = max |g_i|.
    """
    scaled = sensitivity / sensitivity.abs().max()
    d = torch.linspace(-40.0, 40.0, 8001, dtype=torch.float64)
    z = d[:, None] * scaled
    mae = (math.sqrt(2.0 / math.pi) * torch.exp(-z.square() / 2.0) + z * torch.erf(z / math.sqrt(2.0))).mean(1)
    weights = torch.softmax(-mae.square() / 2.0, dim=0)
    return float((weights @ d.square()).sqrt() * scaled.norm())
