"""Chaotic equations on the torus: against an independent solver, and what their inputs and errors are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from probneural.errors import DataError, ResolutionError
from probneural.fields import Field
from probneural.problems import KuramotoSivashinsky

Array = NDArray[np.float64]


def sivashinsky(problem: KuramotoSivashinsky, u: Array, viscosity: float) -> Array:
    """The right-hand side, with complex transforms and products that are not filtered."""
    k = 2.0 * math.pi / problem.length * np.fft.fftfreq(u.shape[-1], 1.0 / u.shape[-1])
    linear = (k**2 - viscosity * k**4) * np.fft.fft(u)
    return np.fft.ifft(linear - 0.5j * k * np.fft.fft(u * u)).real


def independently(problem: Any, state: Array, right_hand_side: Callable[..., Array], *parameters: float, method: str) -> Array:
    """The state at the end by SciPy's adaptive steps."""

    def slope(time: float, flat: Array) -> Array:
        return right_hand_side(problem, flat.reshape(state.shape), *parameters).ravel()

    path = solve_ivp(slope, (0.0, problem.time), state.ravel(), method=method, t_eval=[problem.time], rtol=1e-9, atol=1e-11)
    return path.y[:, -1].reshape(state.shape)


def compare(problem: KuramotoSivashinsky, resolution: int) -> float:
    """The largest relative L2 error of a state of two, beside the independent solver."""
    pairs = problem.sample(2, resolution=resolution, seed=0, dtype=torch.float64)
    errors = []
    for inputs, outputs in zip(pairs.inputs.values.numpy(), pairs.outputs.values.numpy(), strict=True):
        start = inputs[None, :1]
        expected = independently(problem, start, sivashinsky, problem.viscosity, method="LSODA")
        errors.append(float(np.linalg.norm(outputs - expected[0]) / np.linalg.norm(expected)))
        assert np.linalg.norm(start[0] - expected[0]) > 0.02 * np.linalg.norm(expected)
    return max(errors)


def test_against_an_independent_solver() -> None:
    assert compare(KuramotoSivashinsky(22.0, viscosity=0.8, time=1.0, spin_up=20.0), 96) < 1e-7


@pytest.mark.slow
def test_the_documented_accuracy() -> None:
    """On the attractor, one default time."""
    assert compare(KuramotoSivashinsky(), 192) < 2e-7


@pytest.mark.slow
def test_two_solvers_of_kuramoto_and_sivashinsky_agree_for_five_lyapunov_times() -> None:
    """They part like e^(0.084 t) from an error of 1e-8 or so."""
    problem = KuramotoSivashinsky(time=60.0)
    start = problem.sample_inputs(2, resolution=192, seed=0, dtype=torch.float64)
    end = problem.solve(start).values
    error = (replace(problem, step=0.01, points=256).solve(start).values - end).norm() / end.norm()
    assert error < 1e-3
    expected = independently(problem, start.values[:1].numpy(), sivashinsky, 1.0, method="LSODA")
    assert np.linalg.norm(expected[0] - end[0].numpy()) < 1e-3 * np.linalg.norm(expected)


@pytest.mark.slow
def test_lyapunov_exponent_of_kuramoto_and_sivashinsky() -> None:
    """0.084 as documented, and 0.048 at length 22, as Cvitanović, Davidchack and Siminos (2010) have it."""
    for length, expected in ((64.0, 0.084), (22.0, 0.048)):
        problem = KuramotoSivashinsky(length, time=5.0, step=0.1)
        states = problem.sample_inputs(16, resolution=128, seed=0, dtype=torch.float64)
        noise = torch.randn(states.values.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        tangent, growth = Field(noise, states.grid), []
        for _ in range(60):
            moved = problem.derivative(states, tangent)
            size = moved.norm()[..., None]
            states, tangent = problem.solve(states), Field(moved.values / size, states.grid)
            growth.append(size.log() / problem.time)
        exponents = torch.stack(growth[12:]).mean(0)
        assert abs(float(exponents.mean()) - expected) < 3.0 * float(exponents.std()) / math.sqrt(16) + 0.002


@pytest.mark.slow
def test_inputs_are_on_the_attractor() -> None:
    """Their variance, and the fraction of it in waves that smooth random states do not have, are those much later."""
    problem = KuramotoSivashinsky()
    truth = problem.trajectory(16, times=[2.0 * problem.spin_up], resolution=96, seed=0, dtype=torch.float64)
    for statistic in (variance, short_waves):
        start, end = statistic(truth.at(0)), statistic(truth.at(1))
        error = ((start.var() + end.var()) / len(truth)) ** 0.5
        assert (start.mean() - end.mean()).abs() < 4.0 * error
    off = problem.shifts()["start"].sample_inputs(16, resolution=96, seed=0, dtype=torch.float64)
    assert short_waves(off).mean() < 1e-20 < 1e-6 < end.mean()


def variance(states: Field) -> torch.Tensor:
    return states.values.flatten(1).var(1)


def short_waves(states: Field) -> torch.Tensor:
    """The fraction of the variance in frequencies above 16."""
    spectrum = torch.fft.rfft(states.values).abs().square()
    return spectrum[..., 17:].flatten(1).sum(1) / spectrum[..., 1:].flatten(1).sum(1)


def test_the_internal_grid_is_refined_with_the_input() -> None:
    """So an input of your own is never cut, and the error falls with `points` like the spectrum."""
    problem = KuramotoSivashinsky(22.0, time=0.5, step=0.05, spin_up=20.0, points=96)
    start = problem.sample_inputs(2, resolution=96, seed=0, dtype=torch.float64)
    fine = start.resample(start.grid.resized(192))
    moved, exact = problem.solve(start), problem.solve(fine)
    assert torch.equal(exact.values, replace(problem, points=192).solve(fine).values)
    assert 0.0 < (moved.values - exact.values[..., ::2]).abs().max() < 1e-9
    coarse = start.resample(start.grid.resized(40))  # as few points as you like
    assert (problem.solve(coarse).values - exact.values[..., ::2].mean()).isfinite().all()


def test_steps_divide_every_interval() -> None:
    """Times that the step does not divide, and one shorter than a step: fourth order all the same."""
    problem = KuramotoSivashinsky(22.0, time=1.0, spin_up=0.0, step=0.1, points=96)
    times = [0.03, 0.4, 0.45, 1.0]
    found = problem.trajectory(2, times=times, resolution=96, seed=0, dtype=torch.float64)
    exact = replace(problem, step=0.01).trajectory(2, times=times, resolution=96, seed=0, dtype=torch.float64)
    assert 0.0 < (found.values - exact.values).abs().max() < 1e-4
    halved = replace(problem, step=0.05).trajectory(2, times=times, resolution=96, seed=0, dtype=torch.float64)
    assert (halved.values - exact.values).abs().max() < 0.15 * (found.values - exact.values).abs().max()


def test_the_distribution_does_not_depend_on_when_the_output_is_read() -> None:
    problem = KuramotoSivashinsky(points=128, spin_up=1.0)
    assert replace(problem, time=3.0, design_dim=2).input_distribution == problem.input_distribution
    assert replace(problem, spin_up=2.0).input_distribution != problem.input_distribution
    assert replace(problem, viscosity=0.9).input_distribution != problem.input_distribution


@pytest.mark.bad_input
def test_what_is_refused() -> None:
    problem = KuramotoSivashinsky(22.0, time=0.2, spin_up=0.0)
    inputs = problem.sample_inputs(2, resolution=96, seed=0)
    with pytest.raises(DataError, match="lower step"):
        KuramotoSivashinsky(22.0, step=1.0, time=50.0).solve(Field(1e3 * inputs.values, inputs.grid))
    with pytest.raises(ResolutionError, match="35 or more"):
        problem.grid(34)
