"""What every problem on meshes or scattered points promises: add an instance to CASES and the suite runs on it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from probneural.problems import JoukowskiAirfoil, PoissonOnShapes, SphereHeat

CASES = [
    PoissonOnShapes(),
    PoissonOnShapes(degree=1, terms=2, distortion=0.4, boundary_data=True),
    JoukowskiAirfoil(),
    JoukowskiAirfoil(largest_angle=0.05, thickness=0.3, camber=0.2),
    SphereHeat(),
    SphereHeat(diffusivity=0.0, time=2.0, degree=3),
]
MeshProblem = PoissonOnShapes | JoukowskiAirfoil | SphereHeat
cases = pytest.mark.parametrize("problem", CASES, ids=repr)


@cases
def test_samples_are_pairs_on_meshes(problem: MeshProblem) -> None:
    pairs = problem.sample(3, resolution=120, seed=0)
    grid = pairs.inputs.grid
    assert pairs.inputs.values.shape == (3, problem.in_channels, grid.size)
    assert pairs.outputs.values.shape == (3, problem.out_channels, grid.size)
    assert 100 <= grid.size <= 120
    assert not grid.is_uniform
    assert pairs.outputs.grid == grid
    assert bool((grid.weights > 0).all())
    assert bool(pairs.inputs.values.isfinite().all() and pairs.outputs.values.isfinite().all())
    assert problem.name


@cases
def test_a_seed_is_a_draw(problem: MeshProblem) -> None:
    first, same, other = (problem.sample(3, resolution=120, seed=seed, dtype=torch.float64) for seed in (5, 5, 6))
    assert torch.equal(first.inputs.values, same.inputs.values)
    assert torch.equal(first.outputs.values, same.outputs.values)
    assert first.inputs.grid == same.inputs.grid
    assert not torch.allclose(first.outputs.values, other.outputs.values)
    assert float((first.outputs.values[0] - first.outputs.values[1]).abs().max()) > 1e-3


@cases
def test_values_are_rounded_to_the_dtype(problem: MeshProblem) -> None:
    single, double = (problem.sample(2, resolution=60, seed=0, dtype=dtype) for dtype in (torch.float32, torch.float64))
    assert single.inputs.dtype == torch.float32
    assert torch.equal(single.inputs.values, double.inputs.values.float())
    assert torch.equal(single.outputs.values, double.outputs.values.float())
    assert single.inputs.grid == double.inputs.grid


@cases
def test_a_seed_is_the_same_functions_on_every_mesh(problem: MeshProblem) -> None:
    """Averages of outputs and of their squares converge with the mesh."""
    averages = []
    for resolution in (300, 1200, 4800):
        outputs = problem.sample(4, resolution=resolution, seed=3, dtype=torch.float64).outputs
        averages.append(torch.stack([outputs.grid.mean(outputs.values), outputs.grid.mean(outputs.values.square())]))
    coarse, middle, fine = averages
    scale = fine[1].sqrt().amax()
    assert float((middle - fine).abs().max()) < 0.5 * float((coarse - fine).abs().max())
    assert float((middle - fine).abs().max()) < 0.02 * float(scale)


@cases
def test_problems_are_values(problem: MeshProblem) -> None:
    assert copy.deepcopy(problem) == problem
    assert pickle.loads(pickle.dumps(problem)) == problem  # noqa: S301  (our own bytes, of this line)
    assert hash(copy.copy(problem)) == hash(problem)
    assert len({*CASES}) == len(CASES)
