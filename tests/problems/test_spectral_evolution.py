"""Chaotic equations on the torus: against an independent solver, and what their inputs, parameters and errors are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from probneural.errors import DataError, ResolutionError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems import GaussianRandomField, KuramotoSivashinsky, SpectralEvolution
from probneural.problems.spectral import PeriodicTransform
from probneural.problems.spectral_evolution import Parameter

Array = NDArray[np.float64]
QUICK = {"time": 0.2, "spin_up": 0.0}


@dataclass(frozen=True)
class Reaction(SpectralEvolution):
    """The model of Gray and Scott: two substances in the plane, with two parameters."""

    out_channels: ClassVar[int] = 2
    lengths: ClassVar[float] = 0.4
    states: ClassVar[GaussianRandomField] = GaussianRandomField(2, 4)

    feed: Parameter = 0.026
    kill: Parameter = 0.055
    _: KW_ONLY
    step: float = 1.0

    @property
    def name(self) -> str:
        return "Reaction"

    def _parameters(self) -> dict[str, Parameter]:
        return {"feed": self.feed, "kill": self.kill}

    def _coarse_points(self) -> int:
        return 47

    def _fine_points(self) -> int:
        return 96

    def _random_states(self) -> GaussianRandomField:
        return self.states

    def _start(self, coefficients: torch.Tensor, grid: Grid) -> torch.Tensor:
        field = self.states.evaluate_on_axes(coefficients, [axis.coordinates / axis.length for axis in grid.axes])
        patches = torch.sigmoid(4.0 * (field / math.sqrt(self.states.mean_variance) - 0.5))
        return torch.stack([1.0 - 0.5 * patches, 0.25 * patches], dim=1)

    def _symbol(self, transform: PeriodicTransform, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        feed, kill = parameters
        diffusivities = transform.squares.new_tensor([2e-5, 1e-5])[:, None, None]
        return -diffusivities * transform.squares - torch.cat([feed, feed + kill], dim=1)

    def _rate(
        self, spectrum: torch.Tensor, *, transform: PeriodicTransform, parameters: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        u, v = transform.inverse(spectrum).unbind(1)
        feed = parameters[0]
        eaten = u * v**2
        rates = transform.forward(torch.stack([feed[:, 0] - eaten, eaten], dim=1))
        return torch.where(transform.dealiased, rates, 0.0)


def sivashinsky(problem: KuramotoSivashinsky, u: Array, viscosity: float) -> Array:
    """The right-hand side, with complex transforms and products that are not filtered."""
    k = 2.0 * math.pi / problem.length * np.fft.fftfreq(u.shape[-1], 1.0 / u.shape[-1])
    linear = (k**2 - viscosity * k**4) * np.fft.fft(u)
    return np.fft.ifft(linear - 0.5j * k * np.fft.fft(u * u)).real


def reaction(problem: Reaction, state: Array, feed: float, kill: float) -> Array:
    u, v = state[0]
    angular = 2.0 * math.pi / problem.lengths * np.fft.fftfreq(u.shape[-1], 1.0 / u.shape[-1])
    squares = angular[:, None] ** 2 + angular**2
    diffused = [rate * np.fft.ifft2(-squares * np.fft.fft2(part)).real for rate, part in ((2e-5, u), (1e-5, v))]
    return np.stack([diffused[0] - u * v * v + feed * (1.0 - u), diffused[1] + u * v * v - (feed + kill) * v])[None]


def independently(problem: Any, state: Array, right_hand_side: Callable[..., Array], *parameters: float, method: str) -> Array:
    """The state at the end by SciPy's adaptive steps."""

    def slope(time: float, flat: Array) -> Array:
        return right_hand_side(problem, flat.reshape(state.shape), *parameters).ravel()

    path = solve_ivp(slope, (0.0, problem.time), state.ravel(), method=method, t_eval=[problem.time], rtol=1e-9, atol=1e-11)
    return path.y[:, -1].reshape(state.shape)


CASES = [
    (KuramotoSivashinsky(22.0, viscosity=(0.8, 1.2), time=1.0, spin_up=20.0), sivashinsky, 96, "LSODA", 1e-7),
    (Reaction((0.02, 0.03), kill=(0.05, 0.06), time=4.0, spin_up=0.0), reaction, 80, "DOP853", 3e-6),
]


def compare(problem: SpectralEvolution, right_hand_side: Any, resolution: int, method: str) -> float:
    """The largest relative L2 error of a state of two, beside the independent solver."""
    pairs = problem.sample(2, resolution=resolution, seed=0, dtype=torch.float64)
    fixed = [value for value in problem._parameters().values() if not isinstance(value, tuple)]
    errors = []
    for given, found in zip(pairs.inputs.values.numpy(), pairs.outputs.values.numpy(), strict=True):
        states, rest = given[None, : problem.out_channels], given[problem.out_channels :]
        own = [float(channel.mean()) for channel in rest] or fixed
        expected = independently(problem, states, right_hand_side, *own, method=method)
        errors.append(float(np.linalg.norm(found - expected[0]) / np.linalg.norm(expected)))
        assert np.linalg.norm(states[0] - expected[0]) > 0.02 * np.linalg.norm(expected)
    return max(errors)


@pytest.mark.parametrize(("problem", "right_hand_side", "resolution", "method", "error"), CASES, ids=["line", "reaction"])
def test_against_an_independent_solver(
    problem: SpectralEvolution, right_hand_side: Any, resolution: int, method: str, error: float
) -> None:
    """Functions have parameters of their own."""
    assert compare(problem, right_hand_side, resolution, method) < error


@pytest.mark.slow
def test_the_documented_accuracy() -> None:
    """On the attractor, one default time."""
    assert compare(KuramotoSivashinsky(), sivashinsky, 192, "LSODA") < 2e-7


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


def test_parameters_are_channels_behind_the_state() -> None:
    problem = Reaction((0.02, 0.03), kill=(0.05, 0.06), **QUICK)
    truth = problem.trajectory(40, times=[0.2], resolution=47, seed=0, dtype=torch.float64)
    assert (problem.in_channels, problem.out_channels, truth.start.channels) == (4, 2, 4)
    assert truth.parameters is not None
    numbers = truth.parameters.values.flatten(2)
    assert torch.equal(numbers.amin(2), numbers.amax(2))
    for channel, (low, high) in enumerate(((0.02, 0.03), (0.05, 0.06))):
        values = numbers[:, channel, 0]
        assert bool(((values > low) & (values < high)).all())
        assert values.std() > 0.2 * (high - low)
    fixed = Reaction(float(numbers[0, 0, 0]), kill=float(numbers[0, 1, 0]), **QUICK)
    assert torch.allclose(fixed.solve(truth.at(0)[0]).values, truth.at(1)[0].values, atol=1e-13)
    assert fixed.in_channels == 2
    one = Reaction(0.025, kill=(0.05, 0.06), **QUICK)
    assert (one.in_channels, one.input_distribution.size) == (3, 2 * 47**2 + 1)


def test_the_derivative_in_a_parameter() -> None:
    problem = Reaction((0.02, 0.03), kill=(0.05, 0.06), points=48, time=4.0)
    inputs = problem.sample_inputs(2, resolution=48, seed=0, dtype=torch.float64)
    zeros, ones = torch.zeros(2, 2, 48, 48), torch.ones(2, 2, 48, 48)
    direction = Field(torch.cat([zeros, ones], dim=1).double(), inputs.grid)
    slope = problem.derivative(inputs, direction).values
    ahead, behind = (problem.solve(Field(inputs.values + sign * 1e-5 * direction.values, inputs.grid)) for sign in (1, -1))
    torch.testing.assert_close(slope, (ahead.values - behind.values) / 2e-5, atol=1e-7, rtol=0)


def test_the_distribution_does_not_depend_on_when_the_output_is_read() -> None:
    problem = Reaction(points=47, spin_up=1.0)
    assert replace(problem, time=3.0, design_dim=2).input_distribution == problem.input_distribution
    assert replace(problem, spin_up=2.0).input_distribution != problem.input_distribution
    assert replace(problem, feed=0.02).input_distribution != problem.input_distribution


@pytest.mark.bad_input
def test_what_is_refused() -> None:
    problem = KuramotoSivashinsky(22.0, viscosity=(0.8, 1.2), **QUICK)
    inputs = problem.sample_inputs(2, resolution=96, seed=0)
    uneven = inputs.values.clone()
    uneven[0, 1, 3] += 0.01
    with pytest.raises(DataError, match="constant in space"):
        problem.solve(Field(uneven, inputs.grid))
    with pytest.raises(DataError, match="positive parameters"):
        problem.solve(Field(inputs.values - torch.tensor([0.0, 1.5])[:, None], inputs.grid))
    slow = Reaction(**QUICK).sample_inputs(1, resolution=48, seed=0)
    with pytest.raises(DataError, match="lower step"):
        Reaction(time=5.0).solve(Field(50.0 * slow.values, slow.grid))
    with pytest.raises(ResolutionError, match="at least 37"):
        problem.grid(36)
