"""Advection-diffusion against the heat equation, moving frames and the method of lines."""

from __future__ import annotations

import pytest
import torch

from probneural.fields import Field
from probneural.problems import AdvectionDiffusion, GaussianRandomField, Heat, MethodOfLines, Problem, spectral_derivative


def noise(problem: Problem, *shape: int) -> Field:
    """Fields with a mean and all frequencies, the Nyquist frequency among them."""
    generator = torch.Generator().manual_seed(0)
    return Field(torch.randn(2, 1, *shape, generator=generator, dtype=torch.float64) + 0.5, problem._uniform(shape))


@pytest.mark.parametrize("shape", [(9,), (8,), (8, 9), (5, 6, 4)])
def test_without_flow_and_decay_it_is_heat(shape: tuple[int, ...]) -> None:
    settings = {"dimension": len(shape), "random_field": GaussianRandomField(len(shape), 2), "time": 0.3, "design_dim": 1}
    inputs = noise(Heat(**settings), *shape)
    expected = Heat(0.02, **settings).solve(inputs).values
    solved = AdvectionDiffusion(0.0, diffusivity=0.02, **settings).solve(inputs).values
    torch.testing.assert_close(solved, expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize("size", [8, 9])
def test_flow_moves_the_heat(size: int) -> None:
    heat = Heat(0.01, dimension=2, random_field=GaussianRandomField(2, 2))
    inputs = noise(heat, size, size)
    problem = AdvectionDiffusion((0.25, -0.5), diffusivity=0.01, dimension=2, random_field=GaussianRandomField(2, 2), time=1.0)
    finer = Field(inputs.values, inputs.grid).resample(inputs.grid.resized(4 * size))
    moved = torch.roll(heat.solve(finer).values, (size, -2 * size), dims=(-2, -1))[..., ::4, ::4]
    torch.testing.assert_close(problem.solve(inputs).values, moved, atol=1e-13, rtol=0)


def test_against_the_method_of_lines() -> None:
    problem = AdvectionDiffusion(
        (0.6, -1.1), diffusivity=0.02, time=0.3, dimension=2, random_field=GaussianRandomField(2, 2), design_dim=1
    )

    def rate(time: torch.Tensor, u: torch.Tensor, grid: object) -> torch.Tensor:
        slopes = [spectral_derivative(u, grid, axis=axis) for axis in (0, 1)]
        curvature = sum(spectral_derivative(u, grid, order=2, axis=axis) for axis in (0, 1))
        return -0.6 * slopes[0] + 1.1 * slopes[1] + 0.02 * curvature

    pairs = problem.sample(2, resolution=(7, 8), seed=0, dtype=torch.float64)
    stepped = MethodOfLines(rate, input_distribution=problem.input_distribution, time=0.3).solve(pairs.inputs).values
    torch.testing.assert_close(stepped, pairs.outputs.values, atol=1e-8, rtol=0)
