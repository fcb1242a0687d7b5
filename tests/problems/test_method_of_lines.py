"""Equations of one's own against exact solutions, orders of convergence, and what goes wrong."""

from __future__ import annotations

import math

import pytest
import torch

from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.functionals import derivative
from probneural.grids import Grid
from probneural.problems import (
    Burgers,
    GaussianRandomField,
    Heat,
    IndependentDistributions,
    MethodOfLines,
    StateDistribution,
    TimeIntegrator,
    UniformParameters,
    dealias,
    spectral_derivative,
)
from probneural.problems import time_integration as module

INPUTS = GaussianRandomField(1, 3)


def steepening(time: torch.Tensor, u: torch.Tensor, grid: Grid) -> torch.Tensor:
    return -0.5 * spectral_derivative(u.square(), grid)


def burgers(time: torch.Tensor, u: torch.Tensor, grid: Grid) -> torch.Tensor:
    return 0.05 * spectral_derivative(u, grid, order=2) + steepening(time, u, grid)


def viscosity(wavenumber: torch.Tensor) -> torch.Tensor:
    return -0.05 * wavenumber**2


def growth(time: torch.Tensor, u: torch.Tensor, grid: Grid) -> torch.Tensor:
    return u.square()


def decay(time: torch.Tensor, u: torch.Tensor, grid: Grid) -> torch.Tensor:
    return -u


def nothing(time: torch.Tensor, u: torch.Tensor, grid: Grid) -> torch.Tensor:
    return torch.zeros_like(u)


EXACT = Burgers(0.05, random_field=GaussianRandomField(1, 3), time=0.2, design_dim=1)
PAIRS = EXACT.sample(2, resolution=40, seed=0, dtype=torch.float64)
DIRECTION = Field(EXACT.sample(2, resolution=40, seed=1, dtype=torch.float64).inputs.values + 0.3, PAIRS.inputs.grid)


def solver(rtol: float = 1e-8, atol: float = 1e-10, **settings: object) -> MethodOfLines:
    return MethodOfLines(
        steepening,
        linear_symbol=viscosity,
        input_distribution=EXACT.input_distribution,
        time=0.2,
        integrator=TimeIntegrator(rtol=rtol, atol=atol),
        design_dim=1,
        **settings,
    )


@pytest.mark.parametrize("method", ["dopri5", "dopri8", "bosh3"])
def test_every_method_solves_burgers(method: str) -> None:
    problem = MethodOfLines(
        burgers,
        input_distribution=EXACT.input_distribution,
        time=0.2,
        integrator=TimeIntegrator(method=method, rtol=1e-5, atol=1e-7),
        design_dim=1,
    )
    error = problem.solve(PAIRS.inputs[:1]).values - PAIRS.outputs.values[:1]
    assert error.abs().max() < 1e-4
    if method != "dopri5":  # tangents are dear
        return
    change = problem.derivative(PAIRS.inputs[:1], DIRECTION[:1]).values - EXACT.derivative(PAIRS.inputs, DIRECTION).values[:1]
    assert change.abs().max() < 1e-3


def test_errors_follow_the_tolerance() -> None:
    errors = []
    for rtol in (1e-4, 1e-6, 1e-8, 1e-10):
        solved = solver(rtol=rtol, atol=0.01 * rtol).solve(PAIRS.inputs).values
        errors.append(float((solved - PAIRS.outputs.values).abs().max()))
    assert all(error < 20.0 * rtol for error, rtol in zip(errors, (1e-4, 1e-6, 1e-8, 1e-10), strict=True))
    assert errors[-1] < 1e-3 * errors[0]


def test_sampling_draws_the_same_functions_as_the_exact_problem() -> None:
    pairs = solver().sample(2, resolution=40, seed=0, dtype=torch.float64)
    assert torch.equal(pairs.inputs.values, PAIRS.inputs.values)
    torch.testing.assert_close(pairs.outputs.values, PAIRS.outputs.values, atol=1e-8, rtol=0)


def test_derivatives_are_those_of_the_exact_problem() -> None:
    problem, expected = solver(), EXACT.derivative(PAIRS.inputs, DIRECTION).values
    torch.testing.assert_close(problem.derivative(PAIRS.inputs, DIRECTION).values, expected, atol=1e-7, rtol=0)
    small = Field(1e-9 * DIRECTION.values, DIRECTION.grid)  # the tolerance is relative to the direction
    torch.testing.assert_close(1e9 * problem.derivative(PAIRS.inputs, small).values, expected, atol=1e-7, rtol=0)
    still = Field(torch.zeros_like(DIRECTION.values), DIRECTION.grid)
    assert problem.derivative(PAIRS.inputs, still).values.abs().max() == 0.0
    at = PAIRS.inputs.values.clone().requires_grad_()
    weights = torch.randn(at.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (gradient,) = torch.autograd.grad(problem.solve(Field(at, PAIRS.inputs.grid)).values, at, weights)
    assert (gradient * DIRECTION.values).sum().item() == pytest.approx((weights * expected).sum().item(), rel=1e-6)


def test_rough_directions_are_under_control() -> None:
    # The state is smooth; the noise in the direction is what is stiff.
    grid = Heat(dimension=1).grid(33)
    noise = torch.randn(2, 1, 33, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    state = Field(torch.cos(2 * math.pi * grid.points[:, 0]).expand(2, 1, -1), grid)
    problem = MethodOfLines(
        burgers, input_distribution=INPUTS, time=0.05, integrator=TimeIntegrator(rtol=1e-6, atol=1e-8), design_dim=1
    )
    expected = Burgers(0.05, time=0.05).derivative(state, Field(noise, grid)).values
    # Products of noise alias on 33 points, so the equation is compared with itself in other arithmetic.
    reference = MethodOfLines(steepening, linear_symbol=viscosity, input_distribution=INPUTS, time=0.05, design_dim=1)
    exact = reference.derivative(state, Field(noise, grid)).values
    torch.testing.assert_close(problem.derivative(state, Field(noise, grid)).values, exact, atol=1e-4, rtol=0)
    assert (exact - expected).abs().max() < 0.1


@pytest.mark.parametrize("shape", [(8,), (9,), (8, 9), (6, 5, 4)])
def test_a_linear_symbol_alone_is_exact(shape: tuple[int, ...]) -> None:
    def symbol(*wavenumbers: torch.Tensor) -> torch.Tensor:
        return -0.02 * sum(along**2 for along in wavenumbers)

    dimension = len(shape)
    heat = Heat(0.02, dimension=dimension, random_field=GaussianRandomField(dimension, 1), time=5.0, design_dim=1)
    noise = torch.randn(2, 1, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inputs = Field(noise, Grid.uniform(shape))
    problem = MethodOfLines(nothing, input_distribution=heat.input_distribution, time=5.0, linear_symbol=symbol, design_dim=1)
    torch.testing.assert_close(problem.solve(inputs).values, heat.solve(inputs).values, atol=1e-13, rtol=0)


@pytest.mark.parametrize("size", [16, 98])
def test_a_symbol_of_odd_order_leaves_the_nyquist_frequency(size: int) -> None:
    """98 * (1 / 98) is not 1 in double precision, so frequencies have to be rounded."""
    problem = MethodOfLines(nothing, input_distribution=INPUTS, time=1e-6, linear_symbol=lambda k: -1j * k**3, design_dim=1)
    grid = problem.grid(size)
    wave = (1.0 - 2.0 * (torch.arange(size) % 2).double())[None, None]
    torch.testing.assert_close(problem.solve(Field(wave, grid)).values, wave, atol=1e-9, rtol=0)


def test_symbols_of_odd_order_move_waves() -> None:
    # u_t = u_xxx on [-1, 1): cos(kx) moves at speed k².
    problem = MethodOfLines(
        nothing,
        input_distribution=INPUTS,
        time=0.01,
        linear_symbol=lambda k: -1j * k**3,
        domain=Grid.uniform(8, lengths=2.0, origin=-1.0),
        design_dim=1,
    )
    grid = problem.grid(16)
    waves = torch.stack([torch.cos(math.pi * k * grid.points[:, 0]) for k in (1, 2, 5)])[:, None]
    moved = torch.stack([torch.cos(math.pi * k * grid.points[:, 0] - 0.01 * (math.pi * k) ** 3) for k in (1, 2, 5)])[:, None]
    torch.testing.assert_close(problem.solve(Field(waves, grid)).values, moved, atol=1e-12, rtol=0)


def test_stiff_symbols_span_by_span(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_GROWTH", 20.0)  # nine spans
    # Kuramoto-Sivashinsky at 32 points: rates to 500.
    settings = {
        "input_distribution": GaussianRandomField(1, 4, sigma=200.0),
        "domain": Grid.uniform(8, lengths=22.0),
        "time": 0.4,
        "integrator": TimeIntegrator(rtol=1e-6, atol=1e-8),
    }

    def symbol(k: torch.Tensor) -> torch.Tensor:
        return k**2 - k**4

    def whole(time: torch.Tensor, u: torch.Tensor, grid: Grid) -> torch.Tensor:
        smoothing = spectral_derivative(u, grid, order=2) + spectral_derivative(u, grid, order=4)
        return steepening(time, u, grid) - smoothing

    split = MethodOfLines(steepening, linear_symbol=symbol, **settings)
    inputs = split.sample(2, resolution=32, seed=0, dtype=torch.float64).inputs
    stiff = MethodOfLines(whole, **(settings | {"integrator": TimeIntegrator(atol=1e-9)}))
    torch.testing.assert_close(split.solve(inputs).values, stiff.solve(inputs).values, atol=1e-4, rtol=0)
    counted = []

    def counting(time: torch.Tensor, u: torch.Tensor, grid: Grid) -> torch.Tensor:
        counted.append(float(time))
        return steepening(time, u, grid)

    MethodOfLines(counting, linear_symbol=symbol, **settings).solve(inputs)
    assert len(counted) < 1000
    assert counted[-1] == pytest.approx(0.4)


def test_walls_are_the_business_of_the_right_hand_side() -> None:
    heat = Heat(
        0.05,
        dimension=1,
        boundary="dirichlet",
        random_field=GaussianRandomField(1, 2, boundary="dirichlet"),
        time=0.2,
        design_dim=1,
    )
    inputs = heat.sample(2, resolution=33, seed=0, dtype=torch.float64).inputs
    curvature = derivative(inputs.grid, axis=0, order=2)
    inside = torch.ones(33, dtype=torch.float64)
    inside[[0, -1]] = 0.0

    def rate(time: torch.Tensor, u: torch.Tensor, grid: Grid) -> torch.Tensor:
        return 0.05 * inside * curvature(u)

    problem = MethodOfLines(
        rate, input_distribution=heat.input_distribution, domain=Grid.uniform(8, periodic=False), time=0.2, design_dim=1
    )
    assert problem.sample(1, resolution=33, seed=0).inputs.grid == inputs.grid
    torch.testing.assert_close(problem.solve(inputs).values, heat.solve(inputs).values, atol=1e-4, rtol=0)


def test_time_is_passed_on() -> None:
    def rate(time: torch.Tensor, u: torch.Tensor, grid: Grid) -> torch.Tensor:
        return 2.0 * time * torch.ones_like(u)

    for settings in ({}, {"linear_symbol": lambda k: 0.0 * k}):
        problem = MethodOfLines(rate, input_distribution=INPUTS, time=1.5, **settings, design_dim=1)
        inputs = problem.sample(2, resolution=9, seed=0, dtype=torch.float64).inputs
        torch.testing.assert_close(problem.solve(inputs).values, inputs.values + 2.25, atol=1e-7, rtol=0)


def test_fields_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []

    def rate(time: torch.Tensor, u: torch.Tensor, grid: Grid) -> torch.Tensor:
        batches.append(len(u))
        return -u

    problem = MethodOfLines(rate, input_distribution=INPUTS, design_dim=1)
    inputs = problem.sample(5, resolution=9, seed=0, dtype=torch.float64).inputs
    whole = problem.solve(inputs).values
    assert set(batches) == {5}
    batches.clear()
    monkeypatch.setattr("probneural.problems.method_of_lines._CHUNK_ELEMENTS", 20)
    torch.testing.assert_close(problem.solve(inputs).values, whole, atol=1e-8, rtol=0)
    assert set(batches) == {1, 2}
    torch.testing.assert_close(problem.derivative(inputs, inputs).values, whole, atol=1e-8, rtol=0)


def test_states_from_coefficients() -> None:
    def state(coefficients: torch.Tensor, grid: Grid) -> torch.Tensor:
        height, width = coefficients[:, :1, None], coefficients[:, 1:, None]
        return height * torch.exp(-(((grid.points[:, 0] - 0.5) / width) ** 2)).to(coefficients)

    distribution = UniformParameters((1.0, 0.05), (2.0, 0.1), minimum_resolution=32)
    problem = MethodOfLines(decay, input_distribution=StateDistribution(distribution, state), design_dim=2, name="Bumps")
    pairs = problem.sample(3, resolution=33, seed=0, dtype=torch.float64)
    torch.testing.assert_close(pairs.outputs.values, math.exp(-1) * pairs.inputs.values, atol=1e-7, rtol=0)
    assert problem.encode(torch.ones(1, 2), grid=problem.grid(32)).values.max() == pytest.approx(2.0)
    longer = problem.shifts()["time"]
    assert (longer.time, longer.name) == (2.0, "Bumps, time 2")


def test_channels_are_fields_of_their_own() -> None:
    parts = (GaussianRandomField(1, 2), GaussianRandomField(1, 3, sigma=5.0))
    problem = MethodOfLines(
        decay, input_distribution=IndependentDistributions(parts), domain=Grid.uniform(8, lengths=3.0, origin=1.0)
    )
    inputs = problem.sample(2, resolution=9, seed=0, dtype=torch.float64).inputs
    places = torch.arange(9, dtype=torch.float64) / 9
    for channel, coefficients in enumerate(problem.input_distribution.split(problem.input_distribution.draw(2, 0))):
        expected = parts[channel].evaluate_on_axes(coefficients, [places])
        torch.testing.assert_close(inputs.values[:, channel], expected, atol=1e-14, rtol=0)
    rough = problem.shifts()["roughness"]
    assert [part.alpha for part in rough.input_distribution.parts] == [1.5, 1.5]


@pytest.mark.parametrize("shape", [(8, 9), (9, 8)])
def test_spectral_derivatives(shape: tuple[int, int]) -> None:
    grid = Grid.uniform(shape, lengths=(2.0, 3.0))
    values = torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for axis in (0, 1):
        for order in (1, 2, 3):
            expected = derivative(grid, axis=axis, order=order)(values).unflatten(-1, shape)
            computed = spectral_derivative(values, grid, order=order, axis=axis)
            torch.testing.assert_close(computed, expected, atol=1e-10, rtol=1e-11)
    assert spectral_derivative(values.float(), grid).dtype == torch.float32
    torch.testing.assert_close(spectral_derivative(values, grid, order=0), values, atol=1e-14, rtol=0)


@pytest.mark.parametrize("size", [12, 13, 15])
def test_dealiased_products_are_projections_of_products(size: int) -> None:
    grid, fine = Grid.uniform((size,)), Grid.uniform((4 * size,))
    noise = torch.randn(2, 1, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept = Field(dealias(noise, grid), grid)
    product = dealias(kept.values.square(), grid)
    spectrum = torch.fft.rfft(kept.resample(fine).values.square(), norm="forward")[..., : size // 2 + 1]
    spectrum[..., [3 * k >= size for k in range(size // 2 + 1)]] = 0.0
    expected = torch.fft.irfft(spectrum, n=size, norm="forward")
    torch.testing.assert_close(product, expected, atol=1e-13, rtol=0)
    torch.testing.assert_close(dealias(product, grid), product, atol=1e-14, rtol=0)


@pytest.mark.bad_input
def test_solutions_that_cease_to_exist() -> None:
    grid = Grid.uniform((9,))
    large = Field(torch.full((1, 1, 9), 3.0, dtype=torch.float64), grid)
    for settings in ({}, {"linear_symbol": lambda k: -(k**2)}):
        with pytest.raises(DataError, match="exists until time 1.*linear_symbol"):
            MethodOfLines(growth, input_distribution=INPUTS, **settings, design_dim=1).solve(large)
    with pytest.raises(DataError, match="max_num_steps.*raise max_steps"):
        MethodOfLines(decay, input_distribution=INPUTS, integrator=TimeIntegrator(max_steps=3), design_dim=1).solve(large)
    with pytest.raises(DataError, match="exists until time"):
        MethodOfLines(lambda t, u, grid: u / 0.0 * 0.0, input_distribution=INPUTS, design_dim=1).solve(large)


@pytest.mark.bad_input
def test_rates_of_a_wrong_shape() -> None:
    grid = Grid.uniform((9,))
    state = Field(torch.ones(2, 1, 9, dtype=torch.float64), grid)
    for rate in (lambda t, u, grid: u[:1], lambda t, u, grid: u.float(), lambda t, u, grid: 0.0):
        with pytest.raises(ShapeError, match=r"\(2, 1, 9\) from right_hand_side"):
            MethodOfLines(rate, input_distribution=INPUTS, design_dim=1).solve(state)
    for symbol in (lambda k: 1.0, lambda k: torch.ones(3), lambda k: torch.ones(2, 5), lambda k: k / 0.0):
        with pytest.raises(ShapeError, match=r"\(5,\) from linear_symbol"):
            MethodOfLines(decay, input_distribution=INPUTS, linear_symbol=symbol, design_dim=1).solve(state)
    states = StateDistribution(INPUTS, lambda coefficients, grid: coefficients)
    with pytest.raises(ShapeError, match="from build"):
        MethodOfLines(decay, input_distribution=states, design_dim=1).sample(2, resolution=63, seed=0)


@pytest.mark.bad_input
def test_derivatives_between_walls() -> None:
    walls = Grid.uniform((9,), periodic=False)
    for function in (spectral_derivative, dealias):
        with pytest.raises(GridError, match="periodic"):
            function(torch.zeros(1, 9), walls)
    grid = Grid.uniform((9,))
    with pytest.raises(ArgumentError, match="order"):
        spectral_derivative(torch.zeros(1, 9), grid, order=-1)
    with pytest.raises(ArgumentError, match="axis"):
        spectral_derivative(torch.zeros(1, 9), grid, axis=1)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"domain": Grid.uniform((8, 8))}, "1 axes"),
        ({"input_distribution": UniformParameters((0.0,), (1.0,)), "design_dim": 1}, "StateDistribution"),
        ({"linear_symbol": viscosity, "domain": Grid.uniform(8, periodic=False)}, "periodic domain"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"expected .*{message}"):
        MethodOfLines(**({"right_hand_side": decay} | arguments))


@pytest.mark.bad_input
@pytest.mark.parametrize("arguments", [{"coefficients": 3}, {"build": 3}, {"channels": 0}], ids=str)
def test_bad_state_distributions(arguments: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match=f"expected .*{next(iter(arguments))}"):
        StateDistribution(**({"coefficients": INPUTS, "build": decay} | arguments))
