"""Trajectories of every problem that evolves: their starts, the semigroup, `solve`, and what they refuse."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import probneural.problems as problems
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems import (
    Advection,
    AdvectionDiffusion,
    Burgers,
    Evolution,
    GaussianRandomField,
    Heat,
    IndependentDistributions,
    KortewegDeVries,
    KuramotoSivashinsky,
    MethodOfLines,
    NavierStokesShell,
    ShallowWater,
    TimeIntegrator,
    VariableSpeedAdvection,
    Wave,
)
from tests.problems.test_problem_contract import diffusion, reaction


@dataclass(frozen=True)
class Case:
    """A problem, a resolution that holds its states, two times, and how well two steps make one.

    Attributes:
        problem: The problem.
        resolution: Points per axis.
        times: s and s + t.
        error: Relative error of S(t) S(s) beside S(s + t), in the state's largest value.
    """

    problem: Evolution
    resolution: int
    times: tuple[float, float] = (0.2, 0.5)
    error: float = 1e-12

    @property
    def id(self) -> str:
        return self.problem.name


SOLITONS = KortewegDeVries()
PREY = MethodOfLines(
    reaction,
    input_distribution=IndependentDistributions((GaussianRandomField(1, 3), GaussianRandomField(1, 3, sigma=10.0))),
    name="Prey and predator",
    linear_symbol=diffusion,
    domain=Grid.uniform(8, lengths=2.0, origin=-1.0),
    integrator=TimeIntegrator(rtol=1e-10, atol=1e-12),
)
CASES = [
    Case(Heat(0.02), 18),
    Case(Heat(0.05, dimension=1, boundary="dirichlet"), 24),
    Case(AdvectionDiffusion(), 63),
    Case(Advection(1.3), 63),
    Case(Wave(), 33),
    Case(Wave(2.0, boundary="dirichlet"), 26),
    Case(ShallowWater(), 19),
    Case(NavierStokesShell(drift=(0.3, 0.1)), 13),
    Case(VariableSpeedAdvection(random_field=GaussianRandomField(1, 4)), 255, error=1e-8),
    Case(Burgers(0.05), 192, error=1e-10),
    Case(SOLITONS, 192, (0.02, 0.05), 1e-5),
    Case(PREY, 64, (0.1, 0.2), 1e-8),
    Case(KuramotoSivashinsky(22.0, spin_up=10.0, step=0.1), 80, (1.0, 2.0), 1e-9),
]
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


def as_input(problem: Evolution, state: Field, parameters: Field | None) -> Field:
    """An input of the problem, whose parameters are where the problem has them."""
    parts = [state.values] if parameters is None else [state.values, parameters.values]
    return Field(torch.cat(parts if problem.state_first else parts[::-1], dim=1), state.grid)


@cases
def test_two_steps_make_one(case: Case) -> None:
    """And one step makes a sample, from the same starts."""
    first, both = case.times
    truth = case.problem.trajectory(3, times=case.times, resolution=case.resolution, seed=2, dtype=torch.float64)
    pairs = replace(case.problem, time=both).sample(3, resolution=case.resolution, seed=2, dtype=torch.float64)
    assert torch.equal(as_input(case.problem, truth.at(0), truth.parameters).values, pairs.inputs.values)
    size = truth.at(2).values.abs().max()
    assert (truth.at(2).values - pairs.outputs.values).abs().max() <= max(case.error, 1e-13) * size
    rest = replace(case.problem, time=both - first)
    moved = rest.solve(as_input(case.problem, truth.at(1), truth.parameters))
    assert (moved.values - truth.at(2).values).abs().max() <= case.error * size
    assert (moved.values - truth.at(1).values).abs().max() > 1e3 * case.error * size


@cases
def test_trajectories_repeat_and_are_rounded_last(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    state = torch.get_rng_state()
    whole = case.problem.trajectory(3, times=case.times, resolution=case.resolution, seed=7)
    assert torch.equal(state, torch.get_rng_state())
    assert (whole.dtype, len(whole), whole.steps, whole.channels) == (torch.float32, 3, 2, case.problem.out_channels)
    assert whole.start.channels == case.problem.in_channels
    assert whole.times.tolist() == list(case.times)
    inputs = case.problem.sample_inputs(3, resolution=case.resolution, seed=7)
    assert torch.equal(as_input(case.problem, whole.at(0), whole.parameters).values, inputs.values)
    monkeypatch.setattr("probneural.problems.base._CHUNK_ELEMENTS", 2 * whole.grid.size)
    parts = case.problem.trajectory(3, times=np.array(case.times), resolution=case.resolution, seed=7, dtype=torch.float64)
    torch.testing.assert_close(parts.values.float(), whole.values, atol=1e-5, rtol=1e-5)
    assert not torch.equal(parts.at(1).values, parts.at(2).values)


def test_every_problem_with_a_time_evolves_and_is_a_case() -> None:
    kinds = {kind for kind in vars(problems).values() if isinstance(kind, type) and issubclass(kind, problems.Problem)}
    final = {kind for kind in kinds if not getattr(kind, "__abstractmethods__", None)}
    evolving = {kind for kind in final if issubclass(kind, Evolution)}
    assert evolving == {kind for kind in final if "time" in getattr(kind, "__dataclass_fields__", {})}
    assert evolving == {type(case.problem) for case in CASES}


def test_an_equation_that_depends_on_time_goes_on_with_it() -> None:
    """Between outputs as well: du/dt = cos(t) is a sine."""
    problem = MethodOfLines(
        lambda t, u, grid: t.cos().expand_as(u),
        input_distribution=GaussianRandomField(1, 4),
        integrator=TimeIntegrator(rtol=1e-10, atol=1e-12),
    )
    truth = problem.trajectory(2, times=[0.5, 1.7, 3.0], resolution=9, seed=0, dtype=torch.float64)
    for lead, time in enumerate(truth.times.tolist(), 1):
        expected = truth.at(0).values + math.sin(time)
        torch.testing.assert_close(truth.at(lead).values, expected, atol=1e-8, rtol=0)


@pytest.mark.bad_input
def test_what_has_no_trajectory() -> None:
    with pytest.raises(ArgumentError, match="dtype"):
        Heat().trajectory(1, times=[0.5], resolution=18, seed=0, dtype=torch.float16)
    assert not hasattr(problems.Darcy1D(), "trajectory")
