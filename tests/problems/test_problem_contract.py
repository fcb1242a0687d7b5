"""What every problem promises, checked on every problem: add an instance to CASES and the suite runs on it."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from probneural.errors import ArgumentError, DataError, GridError, ResolutionError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems import (
    Advection,
    AdvectionDiffusion,
    Antiderivative,
    Burgers,
    Darcy1D,
    Darcy2D,
    GaussianRandomField,
    Heat,
    Helmholtz,
    IndependentDistributions,
    KortewegDeVries,
    KuramotoSivashinsky,
    MethodOfLines,
    NavierStokesShell,
    Problem,
    ShallowWater,
    TimeIntegrator,
    VariableSpeedAdvection,
    Wave,
    dealias,
    spectral_derivative,
)
from tests.helpers import accelerator, one_of_each


@dataclass(frozen=True)
class Case:
    """A problem, a resolution at which `solve` is compared with `sample`, and the relative error documented for it.

    Attributes:
        problem: The problem.
        resolution: Points per axis, or one number for all.
        solve_error: Relative error of `solve` on nodal values; infinite where nodal values say too little (jumps).
        difference_error: How well differences approach the derivative.
        differentiable: Whether the solution operator has a derivative.
        rounding: Absolute tolerance between grids that share points.
        smooth_design: Whether inputs depend on the design with a derivative, and vanish where all coefficients do.
        resizable: Whether there are grids finer than the coarsest.
        stepping: Relative error within which adaptive steps differ between batches, or between tangents and autograd.
    """

    problem: Problem
    resolution: int | tuple[int, ...]
    solve_error: float
    difference_error: float = 1e-8
    differentiable: bool = True
    rounding: float = 1e-13
    smooth_design: bool = True
    resizable: bool = True
    stepping: float = 0.0

    @property
    def id(self) -> str:
        return f"{self.problem.name}-{self.resolution}"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.problem.grid(self.resolution).shape

    @property
    def is_gaussian(self) -> bool:
        """Whether the input is one Gaussian random field, coefficient by coefficient."""
        distribution = self.problem.input_distribution
        return isinstance(distribution, GaussianRandomField) and self.problem.in_channels == 1 and self.smooth_design

    def grid(self) -> Grid:
        return self.problem.grid(self.resolution)

    def inputs(self, seed: int = 3, n: int = 3) -> Field:
        return self.problem.sample(n, resolution=self.resolution, seed=seed, dtype=torch.float64).inputs


def reaction(time: torch.Tensor, u: torch.Tensor, grid: Grid) -> torch.Tensor:
    """A predator and its prey, which diffuse: stiff enough for the linear part to be worth naming."""
    prey, predator = u.unbind(1)
    meetings = dealias(prey * predator, grid)
    return torch.stack([prey - meetings, meetings - predator], dim=1)


def diffusion(wavenumber: torch.Tensor) -> torch.Tensor:
    return torch.stack([-0.01 * wavenumber**2, -0.05 * wavenumber**2])


def rotation(time: torch.Tensor, u: torch.Tensor, grid: Grid) -> torch.Tensor:
    """A linear equation with coefficients that depend on time; nothing aliases."""
    return time.cos() * spectral_derivative(u, grid, axis=0) - 0.3 * spectral_derivative(u, grid, axis=1) - 0.5 * u


CASES = [
    Case(Burgers(0.1), 63, 1e-12),
    Case(Burgers(0.01, time=0.5, random_field=GaussianRandomField(1, 12)), 40, 1e-12),
    Case(Burgers(0.001, design_dim=3), 96, 1e-11, 1e-6),
    Case(Darcy1D(), 513, 3e-8),
    Case(Darcy1D(random_field=GaussianRandomField(1, 6), design_dim=2).shifts()["amplitude"], 129, 1e-7),
    Case(Heat(0.1, dimension=1, random_field=GaussianRandomField(1, 15)), 31, 1e-12),
    Case(Heat(0.05, dimension=1, boundary="dirichlet"), 24, 1e-12),
    Case(Heat(), 18, 1e-12),
    Case(
        Heat(0.02, dimension=2, boundary="dirichlet", random_field=GaussianRandomField(2, 4, boundary="dirichlet")), 12, 1e-12
    ),
    Case(Heat(0.02, dimension=3, random_field=GaussianRandomField(3, 3), design_dim=12), 8, 1e-12),
    Case(Advection(1.3), 64, 1e-12),
    Case(Advection(initial="sign", random_field=GaussianRandomField(1, 31, tau=3.0)), 64, 1e-12, smooth_design=False),
    Case(
        Advection(1.3, initial="sign", random_field=GaussianRandomField(1, 31, tau=3.0)), 63, float("inf"), smooth_design=False
    ),
    Case(Advection(initial="square"), 42, 1e-12),
    Case(Antiderivative(), 513, 3e-8),
    Case(Antiderivative("logistic", start=0.2, random_field=GaussianRandomField(1, 12, sigma=100.0)), 257, 1e-8),
    Case(VariableSpeedAdvection(), 63, 1e-12),
    Case(
        VariableSpeedAdvection(
            1.5, random_field=GaussianRandomField(1, 6), slowness_field=GaussianRandomField(1, 4, sigma=15.0), design_dim=5
        ),
        40,
        1e-12,
    ),
    Case(ShallowWater(), 18, 1e-12),
    Case(ShallowWater(2.0, rotation=10.0, depth=0.5, random_field=GaussianRandomField(2, 3), design_dim=4), (7, 8), 1e-12),
    Case(Helmholtz(), 32, 1e-12),
    Case(
        Helmholtz(5.0, random_field=GaussianRandomField(2, 4, boundary="dirichlet"), design_dim=4),
        (9, 12),
        1e-12,
    ),
    Case(Darcy2D(), 32, 1e-12),
    Case(
        Darcy2D(degree=3, spread=2.0, random_field=GaussianRandomField(2, 4, boundary="dirichlet"), design_dim=3),
        (9, 12),
        1e-12,
    ),
    Case(AdvectionDiffusion(), 63, 1e-12),
    Case(
        AdvectionDiffusion((0.3, -0.7), diffusivity=0.003, dimension=2, random_field=GaussianRandomField(2, 5), design_dim=5),
        (11, 16),
        1e-12,
    ),
    Case(
        AdvectionDiffusion((0.3, -0.7, 1.1), dimension=3, random_field=GaussianRandomField(3, 2), design_dim=3),
        (5, 6, 7),
        1e-12,
    ),
    Case(Wave(), 32, 1e-12, 1e-7),
    Case(Wave(2.0, boundary="dirichlet", random_field=GaussianRandomField(1, 6, boundary="dirichlet")), 17, 1e-12),
    Case(Wave(0.5, time=1.3, dimension=2, random_field=GaussianRandomField(2, 3), design_dim=5), (7, 8), 1e-12),
    Case(Wave(dimension=2, boundary="dirichlet", random_field=GaussianRandomField(2, 3, boundary="dirichlet")), (9, 7), 1e-12),
    Case(KortewegDeVries(0.02, integrator=TimeIntegrator(rtol=1e-11, atol=1e-13)), 90, 1e-1, 1e-6, stepping=1e-8),
    Case(
        MethodOfLines(
            rotation,
            input_distribution=GaussianRandomField(2, 2),
            time=0.1,
            integrator=TimeIntegrator(method="dopri8", rtol=1e-10, atol=1e-12),
        ),
        (5, 6),
        1e-12,
        1e-6,
        rounding=1e-9,
        stepping=1e-8,
    ),
    Case(
        MethodOfLines(
            reaction,
            input_distribution=IndependentDistributions((GaussianRandomField(1, 3), GaussianRandomField(1, 3, sigma=10.0))),
            name="Prey and predator",
            time=0.2,
            linear_symbol=diffusion,
            domain=Grid.uniform(8, lengths=2.0, origin=-1.0),
            integrator=TimeIntegrator(rtol=1e-10, atol=1e-12),
        ),
        32,
        1e-12,
        1e-6,
        rounding=1.0,
        stepping=1e-7,
    ),
    Case(NavierStokesShell(), 12, 1e-12),
    Case(KuramotoSivashinsky(22.0, time=0.2, viscosity=0.8, spin_up=1.0, step=0.1), 40, 1e-12, rounding=1e-12),
    Case(NavierStokesShell(65, drift=(0.4, -0.2), sigma=5.0, design_dim=3), (17, 18), 1e-12),
]


def each(is_included: Callable[[Case], bool] = lambda case: True) -> pytest.MarkDecorator:
    """The cases for which the predicate holds, as parameters; the first of each problem is fast."""
    chosen = one_of_each(filter(is_included, CASES), lambda case: type(case.problem))
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.id)


cases = each()
differentiable = each(lambda case: case.differentiable)
rough = each(lambda case: not case.differentiable)
gaussian = each(lambda case: case.is_gaussian)
exact_on_nodes = each(lambda case: case.solve_error < float("inf"))


def refined(sizes: tuple[int, ...], periodic: tuple[bool, ...]) -> tuple[int, ...]:
    """The shape with one more point between any two."""
    return tuple(2 * size - (not flag) for size, flag in zip(sizes, periodic, strict=True))


def relative(error: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest error over the largest value."""
    return (error.abs().max() / reference.abs().max()).item()


@cases
def test_sample_has_the_promised_form(case: Case) -> None:
    problem = case.problem
    pairs = problem.sample(5, resolution=case.resolution, seed=0)
    for field, channels in ((pairs.inputs, problem.in_channels), (pairs.outputs, problem.out_channels)):
        assert field.values.shape == (5, channels, *case.shape)
        assert field.dtype == torch.float32
        assert field.grid == case.grid()
        assert bool(torch.isfinite(field.values).all())
    assert pairs.outputs.values.std() > 1e-4
    assert problem.name
    assert problem.name.isprintable()


@cases
def test_dtypes_differ_by_rounding_only(case: Case) -> None:
    single = case.problem.sample(3, resolution=case.resolution, seed=0)
    double = case.problem.sample(3, resolution=case.resolution, seed=0, dtype=torch.float64)
    assert torch.equal(single.inputs.values, double.inputs.values.float())
    assert torch.equal(single.outputs.values, double.outputs.values.float())


@cases
def test_sampling_repeats_and_leaves_the_global_state_alone(case: Case) -> None:
    state = torch.get_rng_state()
    first, again, other = (case.problem.sample(3, resolution=case.resolution, seed=seed) for seed in (7, 7, 8))
    assert torch.equal(first.inputs.values, again.inputs.values)
    assert torch.equal(first.outputs.values, again.outputs.values)
    assert not torch.equal(first.inputs.values, other.inputs.values)
    assert torch.equal(state, torch.get_rng_state())


@each(lambda case: case.resizable)
def test_one_seed_is_the_same_pairs_at_every_resolution(case: Case) -> None:
    problem = case.problem
    least = problem.minimum_resolution
    twice = refined(least, problem.grid(least).periodic)
    coarse = problem.sample(3, resolution=least, seed=1, dtype=torch.float64)
    fine = problem.sample(3, resolution=twice, seed=1, dtype=torch.float64)
    nested = (slice(None), slice(None), *(slice(None, None, 2),) * problem.dimension)
    torch.testing.assert_close(coarse.inputs.values, fine.inputs.values[nested], atol=case.rounding, rtol=0)
    torch.testing.assert_close(coarse.outputs.values, fine.outputs.values[nested], atol=case.rounding, rtol=0)


@cases
def test_inputs_alone_are_those_of_the_sample(case: Case) -> None:
    pairs = case.problem.sample(3, resolution=case.resolution, seed=7)
    alone = case.problem.sample_inputs(3, resolution=case.resolution, seed=7)
    assert alone.grid == pairs.inputs.grid
    assert torch.equal(alone.values, pairs.inputs.values)


@exact_on_nodes
def test_sample_is_solve(case: Case) -> None:
    pairs = case.problem.sample(8, resolution=case.resolution, seed=2, dtype=torch.float64)
    solved = case.problem.solve(pairs.inputs)
    assert solved.grid == pairs.inputs.grid
    assert relative(solved.values - pairs.outputs.values, pairs.outputs.values) < case.solve_error


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize(
    "problem",
    [Advection(0.37), Burgers(0.05), Heat(0.005, dimension=1), Heat(0.005), ShallowWater(0.9, rotation=2.0)],
    ids=lambda problem: problem.name,
)
def test_periodic_values_stand_for_their_trigonometric_interpolant(problem: Problem, size: int) -> None:
    # Noise has all frequencies, the Nyquist frequency of an even size among them, and a mean.
    shape = (size,) * problem.input_distribution.dimension
    noise = torch.randn(2, problem.in_channels, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    inputs = Field(noise, Grid.uniform(shape))
    finer = problem.solve(inputs.resample(inputs.grid.resized(tuple(3 * side for side in shape)))).values
    nested = (slice(None), slice(None), *(slice(None, None, 3),) * problem.input_distribution.dimension)
    torch.testing.assert_close(problem.solve(inputs).values, finer[nested], atol=1e-13, rtol=0)


@cases
def test_chunks_do_not_show(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = case.problem.sample(5, resolution=case.resolution, seed=0, dtype=torch.float64)
    monkeypatch.setattr("probneural.problems.base._CHUNK_ELEMENTS", 2 * case.grid().size)
    parts = case.problem.sample(5, resolution=case.resolution, seed=0, dtype=torch.float64)
    # Matrix products of other sizes may round differently.
    torch.testing.assert_close(parts.inputs.values, whole.inputs.values, atol=1e-13, rtol=0)
    torch.testing.assert_close(parts.outputs.values, whole.outputs.values, atol=max(1e-13, case.stepping), rtol=0)


@cases
def test_solve_keeps_the_dtype_and_computes_in_double(case: Case) -> None:
    inputs = case.inputs().to(torch.float32)
    single, double = case.problem.solve(inputs), case.problem.solve(inputs.to(torch.float64))
    assert single.dtype == torch.float32
    assert torch.equal(single.values, double.values.float())


@cases
def test_solve_changes_nothing_of_its_input(case: Case) -> None:
    inputs = case.inputs()
    before = inputs.values.clone()
    case.problem.solve(inputs)
    assert torch.equal(before, inputs.values)


@differentiable
def test_derivative_is_the_limit_of_differences(case: Case) -> None:
    inputs, direction = case.inputs(), Field(case.inputs(seed=4).values + 0.3, case.grid())  # the direction has a mean

    def difference(step: float) -> torch.Tensor:
        ahead, behind = (Field(inputs.values + sign * step * direction.values, inputs.grid) for sign in (1, -1))
        return (case.problem.solve(ahead).values - case.problem.solve(behind).values) / (2 * step)

    exact = case.problem.derivative(inputs, direction).values
    # Two steps of a central difference extrapolated: error O(step^4), rounding O(1e-15 / step).
    limit = (4 * difference(5e-5) - difference(1e-4)) / 3
    assert relative(limit - exact, exact) < case.difference_error


@pytest.mark.bad_input
@rough
def test_no_derivative_is_made_up(case: Case) -> None:
    with pytest.raises(UnsupportedError):
        case.problem.derivative(case.inputs(), case.inputs(seed=4))


@differentiable
def test_derivative_is_that_of_autograd(case: Case) -> None:
    inputs, direction = case.inputs(), Field(case.inputs(seed=4).values - 0.2, case.grid())

    def values(at: torch.Tensor) -> torch.Tensor:
        return case.problem.solve(Field(at, inputs.grid)).values

    output, product = torch.autograd.functional.jvp(values, inputs.values, direction.values)
    exact = case.problem.derivative(inputs, direction)
    assert relative(product - exact.values, exact.values) < max(1e-10, case.stepping)
    forward_output, forward_product = torch.func.jvp(values, (inputs.values,), (direction.values,))
    assert relative(forward_product - exact.values, exact.values) < max(1e-10, case.stepping)
    torch.testing.assert_close(output, forward_output, atol=1e-14, rtol=0)


@differentiable
def test_derivative_is_linear_in_its_direction(case: Case) -> None:
    inputs, first, second = case.inputs(), case.inputs(seed=4), case.inputs(seed=5)
    combined = case.problem.derivative(inputs, Field(2.0 * first.values - second.values, inputs.grid)).values
    parts = [case.problem.derivative(inputs, direction).values for direction in (first, second)]
    assert relative(combined - (2.0 * parts[0] - parts[1]), combined) < max(1e-11, case.stepping)
    assert case.problem.derivative(inputs.to(torch.float32), first.to(torch.float32)).dtype == torch.float32


@cases
def test_encode_is_finite_at_the_corners_and_batched(case: Case) -> None:
    problem, grid, d = case.problem, case.grid(), case.problem.design_dim
    corners = torch.tensor(list(itertools.product([0.0, 1.0], repeat=min(d, 4))), dtype=torch.float64)
    corners = torch.cat([corners, torch.full((len(corners), d - corners.shape[1]), 1.0).double()], dim=1)
    encoded = problem.encode(corners, grid=grid)
    assert bool(torch.isfinite(encoded.values).all())
    assert bool(torch.isfinite(problem.solve(encoded).values).all())
    centre = torch.full((d,), 0.5)
    assert problem.encode(centre, grid=grid).values.shape == (1, problem.in_channels, *grid.shape)
    if case.is_gaussian:
        assert problem.encode(centre, grid=grid).values.abs().max() < 1e-6
    design = torch.rand(2, 3, d, dtype=torch.float64)
    batched = problem.encode(design, grid=grid)
    assert batched.values.shape == (6, problem.in_channels, *grid.shape)
    assert batched.dtype == torch.float64
    one_by_one = torch.cat([problem.encode(point, grid=grid).values for point in design.flatten(0, 1)])
    torch.testing.assert_close(batched.values, one_by_one, atol=1e-14, rtol=0)
    assert problem.encode(design.float(), grid=grid).dtype == torch.float32
    assert len(problem.encode(design[:0], grid=grid)) == 0
    problem.encode(torch.tensor([-5e-10, 1 + 5e-10] * d, dtype=torch.float64)[:d], grid=grid)  # rounding is forgiven


@gaussian
def test_encode_draws_leading_modes_of_the_distribution(case: Case) -> None:
    problem, d = case.problem, case.problem.design_dim
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)
    design = torch.rand(4, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    coefficients = torch.zeros(4, problem.input_distribution.size, dtype=torch.float64)
    coefficients[:, :d] = normal.icdf(1e-3 + 0.998 * design) * problem.input_distribution.eigenvalues[:d].sqrt()
    expected = problem._inputs(coefficients, case.grid())
    torch.testing.assert_close(problem.encode(design, grid=case.grid()).values, expected, atol=1e-13, rtol=0)


@each(lambda case: case.differentiable and case.smooth_design)
def test_encode_and_solve_differentiate(case: Case) -> None:
    problem, grid = case.problem, case.grid()

    def objective(design: torch.Tensor) -> torch.Tensor:
        return problem.solve(problem.encode(design, grid=grid)).values[..., 1::7].square().mean()

    design = torch.full((problem.design_dim,), 0.4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(objective(design), design)
    step = 1e-5 * torch.eye(problem.design_dim, dtype=torch.float64)
    differences = torch.stack([objective(design + row) - objective(design - row) for row in step]) / 2e-5
    assert relative(gradient - differences.detach(), differences.detach()) < 1e-6
    corner = torch.zeros(problem.design_dim, dtype=torch.float64, requires_grad=True)
    (at_corner,) = torch.autograd.grad(objective(corner), corner)
    assert bool(torch.isfinite(at_corner).all())
    assert at_corner.abs().max() > 0


@cases
def test_shifts_change_the_distribution_and_nothing_else(case: Case) -> None:
    problem, shifts = case.problem, case.problem.shifts()
    assert shifts
    inputs = case.inputs()
    for shifted in shifts.values():
        assert type(shifted) is type(problem)
        assert shifted != problem
        assert shifted.grid(case.resolution) == case.grid()
        if shifted.input_distribution == problem.input_distribution:  # the equation, or what coefficients make, is another
            assert shifted.name != problem.name
            here, there = (kind.sample(3, resolution=case.resolution, seed=3) for kind in (problem, shifted))
            sides = ((here.inputs.values, there.inputs.values), (here.outputs.values, there.outputs.values))
            assert max(relative(there - here, here) for here, there in sides) > 1e-4
            continue
        torch.testing.assert_close(shifted.solve(inputs).values, problem.solve(inputs).values, atol=1e-12, rtol=0)
        moved = shifted.sample(3, resolution=case.resolution, seed=3, dtype=torch.float64)
        channels = zip(moved.inputs.values.unbind(1), inputs.values.unbind(1), strict=True)
        assert max(relative(there - here, here) for there, here in channels) > 0.05
    if not case.is_gaussian:
        return
    assert {"amplitude", "roughness"} <= set(shifts)
    assert shifts["amplitude"].input_distribution.mean_variance >= 3.9 * problem.input_distribution.mean_variance
    assert shifts["roughness"].input_distribution.mean_variance == pytest.approx(
        problem.input_distribution.mean_variance, rel=1e-12
    )


@cases
def test_problems_are_values(case: Case) -> None:
    assert copy.deepcopy(case.problem) == case.problem
    assert pickle.loads(pickle.dumps(case.problem)) == case.problem  # noqa: S301  (our own bytes, of this line)
    assert hash(copy.copy(case.problem)) == hash(case.problem)


@pytest.mark.gpu
@cases
def test_cuda_agrees_with_the_cpu(case: Case) -> None:
    problem, inputs, direction = case.problem, case.inputs(), case.inputs(seed=4)
    on_device, direction_on_device = inputs.to(accelerator()), direction.to(accelerator())
    design = torch.full((2, problem.design_dim), 0.3, dtype=torch.float64)
    pairs = [
        (problem.solve(inputs), problem.solve(on_device)),
        (problem.encode(design, grid=case.grid()), problem.encode(design.to(accelerator()), grid=case.grid())),
    ]
    if case.differentiable:
        pairs.append((problem.derivative(inputs, direction), problem.derivative(on_device, direction_on_device)))
    options: dict[str, Any] = {"resolution": case.resolution, "seed": 3, "dtype": torch.float64}
    here, there = (problem.sample(2, **options, device=device) for device in ("cpu", accelerator()))
    pairs += [(here.inputs, there.inputs), (here.outputs, there.outputs)]
    pairs.append((here.inputs, problem.sample_inputs(2, **options, device=accelerator())))
    for one, other in pairs:
        assert other.device.type == accelerator()
        assert relative(other.values.cpu() - one.values, one.values) < 1e-11


@pytest.mark.bad_input
@cases
def test_resolutions_that_cannot_hold_the_modes(case: Case) -> None:
    problem, least = case.problem, case.problem.minimum_resolution
    if case.is_gaussian:
        assert min(least) == 2 * problem.input_distribution.modes + 1
    fewer = tuple(size - 1 for size in least)
    assert problem.grid(least).shape == least
    assert problem.grid(max(least)).shape == (max(least),) * problem.dimension
    with pytest.raises(ResolutionError, match="points per axis"):
        problem.grid(fewer)
    with pytest.raises(ResolutionError, match="points per axis"):
        problem.sample(2, resolution=fewer, seed=0)
    with pytest.raises(ShapeError, match="numbers as resolution"):
        problem.grid((*least, 64))
    with pytest.raises(ArgumentError, match="integer"):
        problem.grid(least[0] + 0.5)
    coarse = problem.grid(least).resized(fewer)
    with pytest.raises(ResolutionError, match="points per axis"):
        problem.encode(torch.full((problem.design_dim,), 0.5), grid=coarse)


@pytest.mark.bad_input
@cases
def test_bad_fields(case: Case) -> None:
    problem, inputs, grid = case.problem, case.inputs(), case.grid()
    dimension = problem.dimension
    lengths, origin = grid.lengths, tuple(axis.origin for axis in grid.axes)
    others = [
        Grid.uniform(grid.shape, lengths=lengths, origin=origin, periodic=tuple(not flag for flag in grid.periodic)),
        Grid.uniform(grid.shape, lengths=[2.0 * length for length in lengths], origin=origin, periodic=grid.periodic),
        Grid.uniform(grid.shape, lengths=lengths, origin=[start + 0.5 for start in origin], periodic=grid.periodic),
        Grid.uniform(grid.shape, lengths=lengths, origin=origin, periodic=False, endpoint=False),
    ]
    for other in others:
        with pytest.raises(GridError, match=f"uniform grid of .* in {dimension}"):
            problem.solve(Field(inputs.values, other))
        with pytest.raises(GridError, match="uniform grid of"):
            problem.encode(torch.full((problem.design_dim,), 0.5), grid=other)
    scattered = Grid.scattered([[0.5] * dimension], [1.0])
    with pytest.raises(GridError, match="uniform grid of"):
        problem.solve(Field(torch.zeros(1, problem.in_channels, 1), scattered))
    with pytest.raises(ShapeError, match=f"{problem.in_channels} channels"):
        problem.solve(Field(inputs.values.repeat_interleave(2, dim=1), grid))
    with pytest.raises(ShapeError, match="at least one field"):
        problem.solve(inputs[:0])
    broken = inputs.values.clone()
    broken.view(-1)[1] = float("nan")
    with pytest.raises(DataError, match="finite inputs"):
        problem.solve(Field(broken, grid))
    with pytest.raises(DataError, match="finite direction"):
        problem.derivative(inputs, Field(broken, grid))
    with pytest.raises(ShapeError, match="directions, one per input"):
        problem.derivative(inputs, inputs[:1])
    if case.resizable:
        bigger = problem.sample(3, resolution=[size + 2 for size in case.shape], seed=0).inputs
        with pytest.raises(GridError, match="as the inputs are"):
            problem.derivative(inputs, bigger)
    with pytest.raises(ArgumentError, match="integer of at least 1 as n"):
        problem.sample(0, resolution=case.resolution, seed=0)
    if not all(grid.periodic):
        two = Grid.uniform((2,) * dimension, lengths=lengths, origin=origin, periodic=problem.periodic)
        with pytest.raises(ResolutionError, match="3 or more points"):
            problem.solve(Field(torch.zeros(1, problem.in_channels, *two.shape), two))


@pytest.mark.bad_input
@cases
def test_bad_designs(case: Case) -> None:
    problem, grid, d = case.problem, case.grid(), case.problem.design_dim
    inside = torch.full((2, d), 0.5, dtype=torch.float64)
    with pytest.raises(ShapeError, match=rf"\(\.\.\., {d}\)"):
        problem.encode(inside[:, :-1], grid=grid)
    with pytest.raises(ShapeError, match="last axis"):
        problem.encode(torch.tensor(0.5), grid=grid)
    with pytest.raises(DataError, match="float32 or float64"):
        problem.encode(torch.ones(d, dtype=torch.int64), grid=grid)
    for bad in (-1e-6, 1 + 1e-6, float("nan"), float("inf")):
        outside = inside.clone()
        outside[1, 0] = bad
        with pytest.raises(DataError, match="closed unit cube"):
            problem.encode(outside, grid=grid)
