"""Design problems with exact simulators: minimise a loss of the output field over designs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import probneural as pn
from probneural.randomness import stream

SPACE, TIME = (0.0, 1.0, 2.5), (15.0, 30.0, 45.0, 60.0)
"""Places and times of observations in the environmental model."""
LOWER, UPPER = (7.0, 0.02, 0.01, 30.01), (13.0, 0.12, 3.0, 30.295)
"""Ranges of mass M, diffusivity D, and place L and time tau of the second spill."""
TRUE = (10.0, 0.07, 1.505, 30.1525)
"""Parameters used in papers. They are the centre of the range, which may favour some optimisers."""
_PENALTY, _MARGIN = 100.0, 1e-3
"""Penalty of a constraint's excess over minus the margin, in the search of a reference."""


@dataclass(frozen=True)
class DesignProblem:
    """Minimise loss(observations of solve(encode(design))) over the unit cube.

    Attributes:
        name: Name in tables.
        dimension: Number d of coordinates of a design.
        initial: Number of random initial designs.
        evaluations: Number of further designs, selected sequentially.
        encode: Differentiable map from designs `(N, d)` to N input functions.
        solve: The simulator, from input to output functions.
        functional: Map from an output function to the m observations of the loss.
        loss: Known map from observations `(..., m)` to losses `(...)`.
        shape: Shape of the m observations, for models that factorise over axes.
        target: Loss that counts as reached; None if the least loss is unknown, see `reference`.
        constraint: Known map from observations `(..., m)` to numbers `(...)` that are at most 0 at feasible designs; None
            without constraint.
        infeasible: Loss of infeasible designs.
    """

    name: str
    dimension: int
    initial: int
    evaluations: int
    encode: Callable[[Tensor], pn.Field]
    solve: Callable[[pn.Field], pn.Field]
    functional: pn.functionals.Functional
    loss: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    target: float | None = None
    constraint: Callable[[Tensor], Tensor] | None = None
    infeasible: float = 0.0

    def simulate(self, designs: Tensor) -> pn.FieldPairs:
        """Input and output functions of designs `(N, d)`."""
        inputs = self.encode(designs)
        return pn.FieldPairs(inputs, self.solve(inputs))

    def read(self, outputs: pn.Field) -> Tensor:
        """Observations of output functions, `(N, m)`."""
        return self.functional(outputs.values).flatten(1)

    def violation(self, observations: Tensor) -> Tensor:
        """Values of the constraint; 0 without one."""
        return torch.zeros_like(observations[..., 0]) if self.constraint is None else self.constraint(observations)


def names() -> tuple[str, ...]:
    """All problems, in the order of the tables."""
    return tuple(_MAKERS)


def make(name: str, *, seed: int) -> DesignProblem:
    """Return a problem; a hidden target depends on the seed."""
    return _MAKERS[name](seed)


def concentration(parameters: Tensor) -> Tensor:
    """Concentrations after two spills of a pollutant into a long channel, at twelve places and times.

    c(s, t) = M / sqrt(4 pi D t) exp(-s^2 / (4 D t)) + [t > tau] M / sqrt(4 pi D (t - tau)) exp(-(s - L)^2 / (4 D (t - tau)))

    Args:
        parameters: M, D, L, tau, `(..., 4)`.

    Returns:
        `(..., 3, 4)`: places by times. Some authors multiply by sqrt(4 pi), and their sums of squares by 4 pi.

    Reference:
        Bliznyuk et al. (2008), Bayesian calibration and uncertainty analysis for computationally expensive models using
        optimization and radial basis function approximation; Astudillo & Frazier (2019), Bayesian optimization of composite
        functions, section 5.3.
    """
    mass, diffusivity, place, moment = (part[..., None, None] for part in parameters.unbind(-1))
    times = torch.tensor(TIME).to(parameters)
    spaces = torch.tensor(SPACE).to(parameters)[:, None]

    def spill(distance: Tensor, age: Tensor) -> Tensor:
        return mass / (4.0 * math.pi * diffusivity * age).sqrt() * torch.exp(-distance.square() / (4.0 * diffusivity * age))

    age = times - moment
    second = spill(spaces - place, torch.where(age > 0, age, torch.ones_like(age)))  # no root of a negative age
    return spill(spaces, times) + torch.where(age > 0, second, torch.zeros_like(second))


def _environmental(design: Tensor | None, name: str, *, limit: float | None = None) -> DesignProblem:
    """The environmental model; with a limit, concentrations may not exceed that fraction of the target's largest."""
    lower, upper = (torch.tensor(limit, dtype=torch.double) for limit in (LOWER, UPPER))
    true = torch.tensor(TRUE, dtype=torch.double) if design is None else lower + design * (upper - lower)
    target = concentration(true).flatten()
    points = torch.cartesian_prod(torch.tensor(SPACE, dtype=torch.double), torch.tensor(TIME, dtype=torch.double))
    grid = pn.Grid.scattered(points, torch.full((12,), 1.0 / 12.0, dtype=torch.double))

    def encode(designs: Tensor) -> pn.Field:
        """The four parameters as constant channels."""
        parameters = lower.to(designs) + designs * (upper - lower).to(designs)
        return pn.Field(parameters[:, :, None].expand(-1, -1, 12), grid)

    def solve(inputs: pn.Field) -> pn.Field:
        return pn.Field(concentration(inputs.values[:, :, 0]).flatten(1)[:, None], grid)

    return DesignProblem(
        name=name,
        dimension=4,
        initial=5,
        evaluations=30,
        encode=encode,
        solve=solve,
        functional=_values(grid),
        loss=lambda observations: _misfit(observations, target).sum(-1),
        shape=(3, 4),
        target=6e-6 if limit is None else None,
        constraint=None if limit is None else lambda observations: observations.amax(-1) - limit * target.max(),
        infeasible=float(target.square().sum()),
    )


def _hidden(dimension: int, seed: int) -> Tensor:
    """Hidden design, uniform in the middle nine tenths of the cube."""
    return 0.05 + 0.9 * torch.rand(dimension, generator=stream(seed, "hidden design"), dtype=torch.double)


def _inverse(name: str, problem: pn.problems.Problem, points: int, *, seed: int, evaluations: int = 20) -> DesignProblem:
    """Find the input function of a target output, by the mean squared error relative to the target's mean square."""
    grid = problem.grid(points)

    def encode(designs: Tensor) -> pn.Field:
        return problem.encode(designs, grid=grid)

    functional = _values(grid) if problem.periodic else _values(grid, slice(1, -1))  # walls have one value
    hidden = problem.solve(encode(_hidden(problem.design_dim, seed)[None]))
    target = functional(hidden.values).flatten()
    return DesignProblem(
        name=name,
        dimension=problem.design_dim,
        initial=10,
        evaluations=evaluations,
        encode=encode,
        solve=problem.solve,
        functional=functional,
        loss=lambda observations: _misfit(observations, target).sum(-1) / target.square().sum(),
        shape=(functional.size,),
        target=1e-4,
    )


def _burgers() -> pn.problems.Burgers:
    return pn.problems.Burgers(viscosity=0.05, random_field=pn.problems.GaussianRandomField(1, 6), design_dim=6)


def _darcy() -> pn.problems.Darcy1D:
    return pn.problems.Darcy1D(random_field=pn.problems.GaussianRandomField(1, 6), design_dim=6)


def _dissipation(seed: int) -> DesignProblem:
    """Drag-like: the initial state whose flow dissipates most at t = 1, as the integral of u_x squared; losses are negative."""
    problem = _burgers()
    grid = problem.grid(32)
    return DesignProblem(
        name="burgers dissipation",
        dimension=problem.design_dim,
        initial=10,
        evaluations=20,
        encode=lambda designs: problem.encode(designs, grid=grid),
        solve=problem.solve,
        functional=pn.functionals.derivative(grid),
        loss=lambda observations: -(observations.square() @ grid.weights.to(observations)),
        shape=(32,),
    )


def _peak(seed: int) -> DesignProblem:
    """Drag-like: the log-permeability, of mean zero, under which the highest pressure is least."""
    problem = _darcy()
    grid = problem.grid(33)
    return DesignProblem(
        name="darcy peak pressure",
        dimension=problem.design_dim,
        initial=10,
        evaluations=20,
        encode=lambda designs: problem.encode(designs, grid=grid),
        solve=problem.solve,
        functional=_values(grid, slice(1, -1)),
        loss=lambda observations: observations.amax(-1),
        shape=(31,),
    )


def reference(problem: DesignProblem, *, starts: int = 12, steps: int = 300) -> tuple[float, float]:
    """Least loss found by gradient descent on the simulator, and the largest difference that counts as reached.

    It is used for scoring only. The difference is a hundredth of the gain over the mean of random designs.
    """
    if problem.target is not None:
        return 0.0, problem.target
    random = torch.rand(256, problem.dimension, generator=stream(0, "reference designs"), dtype=torch.double)
    losses = scored(problem, problem.read(problem.simulate(random).outputs))
    place = random[losses.argsort()[:starts]].clone().requires_grad_()
    optimiser = torch.optim.Adam([place], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    best = float(losses.min())
    for _ in range(steps):
        optimiser.zero_grad()
        observations = problem.read(problem.simulate(place).outputs)
        best = min(best, float(scored(problem, observations.detach()).min()))
        excess = (problem.violation(observations) + _MARGIN).clamp_min(0.0) if problem.constraint else 0.0
        (problem.loss(observations) + _PENALTY * excess).sum().backward()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            place.clamp_(0.0, 1.0)
    return best, 0.01 * (float(losses.mean()) - best)


def scored(problem: DesignProblem, observations: Tensor) -> Tensor:
    """Losses, in which infeasible designs have the loss of infeasible designs."""
    return torch.where(problem.violation(observations) <= 0, problem.loss(observations), problem.infeasible)


def _values(grid: pn.Grid, which: slice = slice(None)) -> pn.functionals.Functional:
    """Values at grid points."""
    return pn.functionals.MatrixFunctional(grid, torch.eye(grid.size, dtype=torch.double)[which])


def _misfit(observations: Tensor, target: Tensor) -> Tensor:
    """Squared errors of observations `(..., m)` against a target `(m,)`, without broadcasting of other shapes."""
    if target.ndim != 1 or observations.shape[-1] != len(target):
        raise ValueError(f"observations {tuple(observations.shape)} against a target {tuple(target.shape)}")
    return (observations - target.to(observations)).square()


_MAKERS: dict[str, Callable[[int], DesignProblem]] = {
    "environmental model": lambda seed: _environmental(None, "environmental model"),
    "environmental hidden target": lambda seed: _environmental(_hidden(4, seed), "environmental hidden target"),
    "environmental batches": lambda seed: _environmental(None, "environmental batches"),
    "environmental constrained": lambda seed: _environmental(None, "environmental constrained", limit=0.8),
    "burgers target field": lambda seed: _inverse("burgers target field", _burgers(), 32, seed=seed),
    "darcy target field": lambda seed: _inverse("darcy target field", _darcy(), 33, seed=seed),
    "burgers dissipation": _dissipation,
    "darcy peak pressure": _peak,
}
