"""Constant-speed advection against shapes in closed form, an upwind scheme and the statistics of its inputs."""

from __future__ import annotations

import math

import pytest
import torch

from probneural.problems import Advection, GaussianRandomField

kinds = pytest.mark.parametrize("kind", ["smooth", "sign"])


@kinds
def test_outputs_are_inputs_displaced_by_whole_cells(kind: str) -> None:
    for speed, places in ((1.0, 32), (0.25, 8), (3.0, 96)):
        pairs = Advection(speed, initial=kind).sample(50, resolution=64, seed=0, dtype=torch.float64)
        expected = pairs.inputs.values.roll(places, dims=-1)
        torch.testing.assert_close(pairs.outputs.values, expected, atol=1e-13 if kind == "smooth" else 1e-7, rtol=0)
        if kind == "sign":
            assert torch.equal(pairs.outputs.values, expected)


def test_smooth_states_against_an_upwind_scheme() -> None:
    # First order: the error halves with the spacing, and Richardson's extrapolation is of second order.
    problem = Advection(1.1, time=0.3, random_field=GaussianRandomField(1, 3))

    def upwind(size: int) -> torch.Tensor:
        state = problem.sample(2, resolution=size, seed=0, dtype=torch.float64).inputs.values
        steps = math.ceil(1.1 * 0.3 * size / 0.8)
        courant = 1.1 * 0.3 * size / steps
        for _ in range(steps):
            state = state - courant * (state - state.roll(1, dims=-1))
        return state[..., :: size // 16]

    exact = problem.sample(2, resolution=16, seed=0, dtype=torch.float64).outputs.values
    coarse, fine = upwind(1600), upwind(3200)
    errors = [(approximate - exact).abs().max().item() for approximate in (coarse, fine, 2 * fine - coarse)]
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.05)
    assert errors[2] < 0.01 * errors[1]


def test_gibbs_oscillations_off_the_grid() -> None:
    problem = Advection(initial="sign", random_field=GaussianRandomField(1, 2)).shifts()["speed"]
    pairs = problem.sample(200, resolution=64, seed=0, dtype=torch.float64)
    overshoot = 0.5 * (problem.solve(pairs.inputs).values.amax() - 1.0)  # relative to the height of a jump, 2
    assert 0.05 < overshoot < 0.2
    assert pairs.outputs.values.amax() <= pairs.inputs.values.amax()  # sample has none


def test_nodes_on_jumps() -> None:
    sign = Advection(initial="sign", random_field=GaussianRandomField(1, 3))
    single_sine = torch.tensor([[0.0, 0.3, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)  # vanishes at 0 and .5: both count as +1
    assert sign._inputs(single_sine, sign.grid(8))[0, 0].tolist() == [1, 1, 1, 1, 1, -1, -1, -1]


def test_statistics_of_signs() -> None:
    problem = Advection(initial="sign", random_field=GaussianRandomField(1, 20, tau=3.0))
    inputs = problem.sample(20_000, resolution=41, seed=0, dtype=torch.float64).inputs.values[:, 0]
    assert set(inputs.unique().tolist()) == {-1.0, 1.0}
    assert inputs.mean(0).abs().max() < 0.03
    k = torch.arange(1, 21, dtype=torch.float64)
    weights = ((2 * math.pi * k) ** 2 + 9.0) ** -2
    for places in (1, 3, 10):  # the arcsine distribution of the signs of two Gaussian variables
        correlation = (weights * torch.cos(2 * math.pi * k * places / 41)).sum() / weights.sum()
        agreement = (inputs * inputs.roll(places, dims=-1)).mean().item()
        assert agreement == pytest.approx(2 / math.pi * math.asin(correlation), abs=0.02)
