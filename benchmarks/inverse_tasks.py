"""Inverse problems whose posteriors are exact: parameters of an input function from noisy sensors of the output.

The data are observe(theta) + N(0, noise I), where observe reads sensors of the exact solution. Sources and initial states
have whitened Karhunen-Loeve coefficients theta ~ N(0, I), u = sum_k sqrt(lambda_k) theta_k e_k. All quantities are
dimensionless.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

import probneural as pn
from benchmarks.inverse_posteriors import GaussianPosterior, Posterior, QuadraturePosterior, gauss_newton
from probneural.functionals import Functional
from probneural.problems import Burgers, Darcy1D, GaussianRandomField, Heat, Problem
from probneural.problems.spectral import divide, eigenvalues
from probneural.randomness import stream

STARTS = 200
"""Draws from the prior among which the search for the mode starts."""


class Task(ABC):
    """An inverse problem with an exact posterior; abstract.

    Attributes:
        name: Name in tables.
        noise: Variance of the noise of each sensor.
        grid: Grid of inputs and outputs.
        functional: The sensors.
        prior: Distribution of the parameters, of event shape `(d,)`.
    """

    name: str
    noise: float
    grid: pn.Grid
    functional: Functional
    prior: Distribution

    @abstractmethod
    def encode(self, theta: Float[Tensor, "*batch d"]) -> pn.Field:
        """Input functions `(n, c, *grid)` of parameters, n the product of the leading axes, in their dtype."""

    @abstractmethod
    def solve(self, inputs: pn.Field) -> pn.Field:
        """The exact solution operator."""

    @abstractmethod
    def posterior(self, data: Float64[Tensor, " m"]) -> Posterior:
        """The exact posterior."""

    def observe(self, theta: Float64[Tensor, "*batch d"]) -> Float64[Tensor, "*batch m"]:
        """Sensors of the solution, without noise."""
        return self.functional(self.solve(self.encode(theta)).values)[:, 0].reshape(*theta.shape[:-1], -1)

    def log_joint(self, theta: Float64[Tensor, "*batch d"], data: Float64[Tensor, " m"]) -> Float64[Tensor, "*batch"]:
        """Logarithm of the joint density of parameters and data."""
        squares = (self.observe(theta) - data).square().sum(-1) / self.noise
        return self.prior.log_prob(theta) - 0.5 * (squares + len(data) * math.log(2.0 * math.pi * self.noise))

    def draw(self, n: int, seed: int) -> Float64[Tensor, "n d"]:
        """Independent draws from the prior; `prior.sample` would take torch's global generator."""
        assert isinstance(self.prior, Independent)
        return self.prior.base_dist.icdf(prior_levels(n, *self.prior.event_shape, seed=seed))

    def simulate(self, seed: int) -> tuple[Float64[Tensor, " d"], Float64[Tensor, " m"]]:
        """Parameters from the prior, and noisy data."""
        theta = self.draw(1, seed)[0]
        return theta, noisy(self.observe(theta), self.noise, seed=seed)

    def pairs(self, n: int, seed: int, *, dtype: torch.dtype = torch.float32) -> pn.FieldPairs:
        """Inputs from the prior with their solutions, to train a surrogate on."""
        inputs = self.encode(self.draw(n, seed))
        return pn.FieldPairs(inputs.to(dtype), self.solve(inputs).to(dtype))


def prior_levels(n: int, d: int, *, seed: int) -> Float64[Tensor, "n d"]:
    """The uniform numbers behind draws from priors."""
    return torch.rand(n, d, generator=stream(seed, "inverse parameters"), dtype=torch.float64)


def noisy(exact: Float64[Tensor, " m"], noise: float, *, seed: int) -> Float64[Tensor, " m"]:
    """Data with noise of some variance."""
    normal = torch.randn(len(exact), generator=stream(seed, "inverse noise"), dtype=torch.float64)
    return exact + math.sqrt(noise) * normal


def standard_normal(d: int) -> Independent:
    """The prior of whitened coefficients."""
    return Independent(Normal(torch.zeros(d, dtype=torch.float64), torch.ones(d, dtype=torch.float64)), 1)


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearTask(Task):
    """A Gaussian random field seen through a linear operator, so the posterior is Gaussian; abstract in `solve`."""

    name: str
    noise: float
    grid: pn.Grid
    functional: Functional
    random_field: GaussianRandomField

    @property
    def prior(self) -> Distribution:  # type: ignore[override]
        return standard_normal(self.random_field.size)

    def encode(self, theta: Float[Tensor, "*batch d"]) -> pn.Field:
        scale = self.random_field.eigenvalues.sqrt().to(theta)
        return pn.Field(self.random_field.evaluate(theta.reshape(-1, theta.shape[-1]) * scale, self.grid)[:, None], self.grid)

    @cached_property
    def matrix(self) -> Float64[Tensor, "m d"]:
        """H, with observe(theta) = H theta."""
        return self.observe(torch.eye(self.random_field.size, dtype=torch.float64)).mT

    def posterior(self, data: Float64[Tensor, " m"]) -> GaussianPosterior:
        return GaussianPosterior.of(self.matrix, data, self.noise)


@dataclass(frozen=True, eq=False, kw_only=True)
class HeatTask(LinearTask):
    """The initial state of the heat equation from sensors at a later time: d = 16, 10 sensors, 64 points."""

    problem: Problem

    @classmethod
    def default(cls) -> HeatTask:
        problem = Heat(0.01, dimension=1, time=0.5, random_field=GaussianRandomField(1, 8))
        grid = problem.grid(64)
        places = (torch.arange(10, dtype=torch.float64)[:, None] + 0.5) / 10.0
        sensors = pn.functionals.sensors(grid, places)
        return cls(
            name="heat",
            noise=0.02**2,
            grid=grid,
            functional=sensors,
            random_field=GaussianRandomField(1, 8),
            problem=problem,
        )

    def solve(self, inputs: pn.Field) -> pn.Field:
        return self.problem.solve(inputs)


@dataclass(frozen=True, eq=False, kw_only=True)
class PoissonTask(LinearTask):
    """The source of -Lap u = f on the unit square, u = 0 on its boundary, from sensors: d = 64, 24 sensors, 17 x 17 points."""

    @classmethod
    def default(cls) -> PoissonTask:
        grid = pn.Grid.uniform((17, 17), periodic=False)
        return cls(
            name="Poisson",
            noise=1e-3**2,
            grid=grid,
            functional=sensors_within(grid, 24),
            random_field=GaussianRandomField(2, 8, boundary="dirichlet"),
        )

    def solve(self, inputs: pn.Field) -> pn.Field:
        return poisson(inputs)


def poisson(sources: pn.Field) -> pn.Field:
    """Solve -Lap u = f with u = 0 on the boundary, mode by mode of the sine interpolant."""
    values = divide(sources.values.double(), sources.grid, divisor=eigenvalues(sources.grid))
    return pn.Field(values.to(sources.dtype), sources.grid)


def sensors_within(grid: pn.Grid, count: int) -> Functional:
    """Sensors at random points of a square grid that are not on its boundary."""
    inner = torch.tensor([0.0 < x < 1.0 and 0.0 < y < 1.0 for x, y in grid.points.tolist()]).nonzero()[:, 0]
    order = torch.randperm(len(inner), generator=stream(0, "inverse sensors", count))
    return pn.functionals.sensors(grid, grid.points[inner[order[:count]]])


@dataclass(frozen=True, eq=False, kw_only=True)
class SmallTask(Task):
    """A task of two or three Gaussian parameters, its posterior by quadrature; abstract.

    Attributes:
        location: Prior means, `(d,)`.
        scale: Prior standard deviations, `(d,)`.
        nodes: Quadrature nodes per parameter.
    """

    name: str
    noise: float
    grid: pn.Grid
    functional: Functional
    location: Float64[Tensor, " d"]
    scale: Float64[Tensor, " d"]
    nodes: int

    @property
    def prior(self) -> Distribution:  # type: ignore[override]
        return Independent(Normal(self.location, self.scale), 1)

    def posterior(self, data: Float64[Tensor, " m"]) -> QuadraturePosterior:
        starts = self.draw(STARTS, 0)
        start = starts[self.log_joint(starts, data).argmax()]
        options = {"noise": self.noise, "location": self.location, "scale": self.scale, "start": start}
        centre, covariance = gauss_newton(self.observe, data, **options)  # type: ignore[arg-type]
        return QuadraturePosterior.fitted(lambda theta: self.log_joint(theta, data), centre, covariance, nodes=self.nodes)


@dataclass(frozen=True, eq=False, kw_only=True)
class BurgersTask(SmallTask):
    """Viscosity and advection speed of Burgers' equation from 8 sensors at t = .5: theta = (log nu, c), 64 points.

    u_t + u u_x = nu u_xx on [0, 1) from u(x, 0) = c + sin 2 pi x. Inputs have two channels: u(x, 0), and log nu.
    """

    time: float = 0.5

    @classmethod
    def default(cls, *, nodes: int = 40) -> BurgersTask:
        grid = pn.Grid.uniform(64)
        return cls(
            name="Burgers",
            noise=0.02**2,
            grid=grid,
            functional=pn.functionals.sensors(grid, torch.arange(8, dtype=torch.float64)[:, None] / 8.0),
            location=torch.tensor([math.log(0.05), 0.5], dtype=torch.float64),
            scale=torch.tensor([0.4, 0.2], dtype=torch.float64),
            nodes=nodes,
        )

    def encode(self, theta: Float[Tensor, "*batch d"]) -> pn.Field:
        wave = torch.sin(2.0 * math.pi * self.grid.points[:, 0]).to(theta)
        log_viscosity, speed = theta.reshape(-1, 2, 1).unbind(1)
        return pn.Field(torch.stack([speed + wave, log_viscosity.expand(-1, len(wave))], dim=1), self.grid)

    def solve(self, inputs: pn.Field) -> pn.Field:
        states = pn.Field(inputs.values[:, :1].double(), self.grid)
        viscosities = inputs.values[:, 1].double().mean(-1).exp().tolist()
        solved = [
            Burgers(viscosity, time=self.time).solve(states[row : row + 1]).values for row, viscosity in enumerate(viscosities)
        ]
        return pn.Field(torch.cat(solved).to(inputs.dtype), self.grid)

    def observe(self, theta: Float64[Tensor, "*batch d"]) -> Float64[Tensor, "*batch m"]:
        """Sensors at grid points, for all viscosities at once: see `probneural.problems.Burgers`.

        u = c + sum_y p(y) sin 2 pi y, log p(y) = cos(2 pi y) / 4 pi nu + log sum_j exp(-(x - ct - y + j)^2 / 4 nu t).
        """
        flat = theta.reshape(-1, 2)
        return torch.cat([self._observe(part) for part in flat.split(128)]).reshape(*theta.shape[:-1], -1)

    def _observe(self, theta: Float64[Tensor, "n d"]) -> Float64[Tensor, "n m"]:
        viscosity, speed = theta[:, :1].exp(), theta[:, 1:]
        spread = 4.0 * self.time * viscosity[..., None]
        # Five points per standard deviation of the narrowest weight, 1 / sqrt(pi / nu + 1 / 2 nu t).
        width = float(viscosity.min().div(math.pi + 0.5 / self.time).sqrt())
        y = torch.arange(32 * math.ceil(max(64.0, 5.0 / width) / 32), dtype=torch.float64)
        y = y / len(y)
        places = self.functional(self.grid.points[:, 0]) - self.time * speed
        distance = places[..., None] - y
        distance = distance - distance.round()
        logs, images = -distance.square() / spread, math.ceil(1.0 + math.sqrt(40.0 * float(spread.max())))
        mass = torch.ones_like(logs)
        for shift in (*range(-images, 0), *range(1, images + 1)):
            mass = mass + torch.exp(-shift * (2.0 * distance + shift) / spread)
        logs = logs + mass.log() + torch.cos(2.0 * math.pi * y) / (4.0 * math.pi * viscosity[..., None])
        return speed + torch.softmax(logs, dim=-1) @ torch.sin(2.0 * math.pi * y)


@dataclass(frozen=True, eq=False, kw_only=True)
class DarcyTask(SmallTask):
    """Three coefficients of the log-permeability of -(e^g u')' = 1, u(0) = u(1) = 0, from 15 sensors of u: 65 points."""

    problem: Darcy1D = field(default_factory=lambda: Darcy1D(random_field=GaussianRandomField(1, 2, sigma=35.0), design_dim=3))

    @classmethod
    def default(cls, *, nodes: int = 28) -> DarcyTask:
        grid = pn.Grid.uniform(65, periodic=False)
        return cls(
            name="Darcy",
            noise=0.001**2,
            grid=grid,
            functional=pn.functionals.sensors(grid, torch.arange(1, 16, dtype=torch.float64)[:, None] / 16.0),
            location=torch.zeros(3, dtype=torch.float64),
            scale=torch.ones(3, dtype=torch.float64),
            nodes=nodes,
        )

    def encode(self, theta: Float[Tensor, "*batch d"]) -> pn.Field:
        distribution = self.problem.random_field
        assert distribution is not None
        flat = theta.reshape(-1, 3) * distribution.eigenvalues[:3].sqrt().to(theta)
        padded = torch.cat([flat, flat.new_zeros(len(flat), distribution.size - 3)], dim=1)
        return pn.Field(distribution.evaluate(padded, self.grid)[:, None], self.grid)

    def solve(self, inputs: pn.Field) -> pn.Field:
        return pn.Field(torch.cat([self.problem.solve(part).values for part in _parts(inputs)]), self.grid)


def _parts(inputs: pn.Field) -> list[pn.Field]:
    return [inputs[first : first + 256] for first in range(0, len(inputs), 256)]
