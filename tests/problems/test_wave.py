"""The wave equation against d'Alembert, its own rate of change, and reversal."""

from __future__ import annotations

import numpy
import pytest
import torch

from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems import GaussianRandomField, Wave


def d_alembert(problem: Wave, seed: int, grid: Grid) -> torch.Tensor:
    """Half the sum of two travelling displacements, and half the integral of the velocity between them."""
    displacement, velocity = problem.input_distribution.split(problem.input_distribution.draw(3, seed))
    distribution, scale = problem._field, problem.input_distribution.parts[1]
    x, reach = grid.points[:, 0], problem.speed * problem.time
    ahead, behind = (distribution.evaluate_on_axes(displacement, [x + sign * reach]) for sign in (1.0, -1.0))
    nodes, weights = (torch.from_numpy(part) for part in numpy.polynomial.legendre.leggauss(80))
    places = x[:, None] + reach * nodes
    between = scale.evaluate_on_axes(velocity, [places.flatten()]).unflatten(-1, places.shape) @ weights
    return 0.5 * (ahead + behind) + 0.5 * problem.time * between


@pytest.mark.parametrize("boundary", ["periodic", "dirichlet"])
@pytest.mark.parametrize("time", [0.37, 1.9])
def test_against_d_alembert(boundary: str, time: float) -> None:
    # Sine modes are odd about both walls, so their continuation beyond [0, 1] is the one d'Alembert's formula needs.
    problem = Wave(0.8, time=time, boundary=boundary, random_field=GaussianRandomField(1, 6, boundary=boundary))
    pairs = problem.sample(3, resolution=17, seed=0, dtype=torch.float64)
    expected = d_alembert(problem, 0, pairs.outputs.grid)
    torch.testing.assert_close(pairs.outputs.values[:, 0], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("boundary", ["periodic", "dirichlet"])
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_velocity_is_the_rate_of_change(dimension: int, boundary: str) -> None:
    def wave(time: float) -> Wave:
        return Wave(
            0.7,
            time=time,
            boundary=boundary,
            dimension=dimension,
            random_field=GaussianRandomField(dimension, 3, boundary=boundary),
            design_dim=1,
        )

    inputs = wave(1.0).sample(2, resolution=9, seed=0, dtype=torch.float64).inputs
    early, now, late = (wave(0.5 + step).solve(inputs).values for step in (-1e-4, 0.0, 1e-4))
    torch.testing.assert_close((late - early)[:, 0] / 2e-4, now[:, 1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("boundary", ["periodic", "dirichlet"])
@pytest.mark.parametrize("shape", [(16,), (9, 10), (7, 6, 5)])
def test_time_is_reversible(boundary: str, shape: tuple[int, ...]) -> None:
    problem = Wave(
        1.3,
        time=2.7,
        boundary=boundary,
        dimension=len(shape),
        random_field=GaussianRandomField(len(shape), 1 if boundary == "periodic" else 2, boundary=boundary),
        design_dim=1,
    )
    pairs = problem.sample(3, resolution=shape, seed=0, dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0]).reshape(2, *(1,) * len(shape))
    back = problem.solve(Field(pairs.outputs.values * signs, pairs.outputs.grid)).values * signs
    torch.testing.assert_close(back, pairs.inputs.values, atol=1e-12, rtol=0)


def test_a_mean_velocity_moves_the_mean() -> None:
    problem = Wave(time=1.5)
    inputs = torch.stack([torch.full((32,), 2.0), torch.full((32,), -3.0)])[None].double()
    moved = problem.solve(Field(inputs, problem.grid(32))).values
    torch.testing.assert_close(moved[:, 0], torch.full((1, 32), 2.0 - 4.5).double(), atol=1e-14, rtol=0)
    torch.testing.assert_close(moved[:, 1], inputs[:, 1], atol=1e-14, rtol=0)


def test_velocities_have_the_scale_asked_for() -> None:
    inputs = Wave(velocity_scale=3.0).sample(400, resolution=25, seed=0, dtype=torch.float64).inputs.values
    assert (inputs[:, 1].std() / inputs[:, 0].std()).item() == pytest.approx(3.0, rel=0.1)
    correlation = torch.corrcoef(inputs.transpose(0, 1).flatten(1))[0, 1]
    assert abs(correlation.item()) < 0.1
