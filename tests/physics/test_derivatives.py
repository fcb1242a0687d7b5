"""Derivatives against exact fields: to rounding on periodic axes, of the stated order on walls, and weak ones on meshes."""

from __future__ import annotations

import math
import warnings
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from probneural.errors import ArgumentError, DataWarning, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.physics import curl, divergence, gradient, laplacian, partial, time_derivative
from tests.helpers import normal
from tests.physics.meshes import irregular, square


def plane_wave(grid: Grid, *, turns: tuple[float, ...] = (2.0, 1.0, 3.0), growth: float = 0.0) -> tuple[Tensor, Tensor]:
    """The complex exponential exp(z . x + 0.3 i), `(1, 1, *grid)`, and its exponents z, of whose powers are derivatives."""
    parts = [complex(growth, 2 * math.pi * turn / axis.length) for turn, axis in zip(turns, grid.axes, strict=False)]
    rates = torch.tensor(parts, dtype=torch.complex128)
    return torch.exp(grid.points.to(rates) @ rates + 0.3j).reshape(1, 1, *grid.shape), rates


def fields(values: Tensor, grid: Grid, dtype: torch.dtype = torch.float64) -> Field:
    """Real and imaginary part, two channels."""
    return Field(torch.cat([values.real, values.imag], 1).to(dtype), grid)


def error(values: Tensor, exact: Tensor) -> float:
    return float((values - fields(exact, Grid.uniform(tuple(exact.shape[2:]))).values).abs().max() / exact.abs().max())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("shape", [(16,), (17,), (300,), (12, 15), (7, 6, 9)])
def test_periodic_axes_are_differentiated_to_rounding(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    grid = Grid.uniform(shape, lengths=tuple(1.5 + number for number in range(len(shape))), origin=0.2)
    wave, rates = plane_wave(grid)
    u, rounding = fields(wave, grid, dtype), 10.0 * torch.finfo(dtype).eps
    for axis in range(grid.dimension):
        for order in (1, 2, 3):
            assert error(partial(u, axis, order=order).values, rates[axis] ** order * wave) < rounding * shape[axis] ** order
    slopes = gradient(u).values.unflatten(1, (2, -1))
    for axis in range(grid.dimension):
        torch.testing.assert_close(slopes[:, :, axis], partial(u, axis).values)
    assert error(laplacian(u).values, (rates**2).sum() * wave) < rounding * max(shape) ** 2


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("sizes", [(64, 128, 256), (65, 129, 257)], ids=["even", "odd"])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_walls_have_the_stated_order(order: int, sizes: tuple[int, ...], endpoint: bool) -> None:
    errors, steps = [], []
    for size in sizes:
        grid = Grid.uniform((3, size), lengths=1.5, periodic=(True, False), endpoint=(False, endpoint), origin=0.3)
        wave, rates = plane_wave(grid, turns=(0.0, 0.75), growth=1.0)
        errors.append(error(partial(fields(wave, grid), 1, order=order).values, rates[1] ** order * wave))
        steps.append(1.0 / (size - endpoint))
    measured = [math.log(a / b) / math.log(h / k) for (a, b), (h, k) in zip(pairwise(errors), pairwise(steps), strict=True)]
    assert all(abs(rate - (6 - order)) < 0.2 for rate in measured), measured


@pytest.mark.parametrize("power", [1, 2, 5])
def test_nothing_is_wrapped_around_at_walls(power: int) -> None:
    """physicsnemo #2001: x and x^2 between walls, whose derivatives at the walls were those of a jump."""
    walls, wrapped = (Grid.uniform((16,), lengths=2.0, periodic=periodic) for periodic in (False, True))
    x = walls.points.T[None]
    u = Field(x**power, walls)
    torch.testing.assert_close(partial(u, 0).values, power * x ** (power - 1))
    torch.testing.assert_close(laplacian(u).values, power * (power - 1) * x ** max(power - 2, 0), atol=1e-10, rtol=1e-9)
    with pytest.warns(DataWarning, match="jump from the last point of periodic axis x to the first"):
        wrong = partial(Field(u.values, wrapped.named(["x"])), 0).values
    assert float((wrong - power * x ** (power - 1)).abs().max()) > 1.0


def test_pairs_on_a_wrongly_periodic_grid_warn_once_by_name() -> None:
    grid = Grid.uniform((12, 16)).named(["x", "y"])
    y = grid.points[:, 1].reshape(1, 1, 12, 16) * normal(5, 1, 1, 1).abs()
    smooth = torch.sin(2 * math.pi * y / y.amax((1, 2, 3), keepdim=True).clamp_min(1e-9) * 15 / 16)
    with pytest.warns(DataWarning, match="most outputs jump from the last point of periodic axis y to the first"):
        FieldPairs(Field(smooth, grid), Field(y, grid))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FieldPairs(Field(smooth, grid), Field(y, grid))
        walls = Grid.uniform((12, 16), periodic=False)
        FieldPairs(Field(y, walls), Field(y, walls))


def test_time_derivatives_and_fields_of_several_channels() -> None:
    grid = Grid.uniform((9, 12, 10), lengths=(2.0, 1.0, 1.0), periodic=(False, True, True)).named(["t", "x", "y"])
    t, x, y = grid.points.T.reshape(3, 1, 1, *grid.shape)
    a, b = 2 * math.pi * x, 2 * math.pi * y
    stream = t**2 * a.sin() * b.cos()
    velocity = gradient(Field(stream, grid))  # of space alone
    assert velocity.values.shape == (1, 2, *grid.shape)
    along_x, along_y = velocity.values.split(1, 1)
    torch.testing.assert_close(along_x, 2 * math.pi * t**2 * a.cos() * b.cos())
    torch.testing.assert_close(divergence(velocity).values, laplacian(Field(stream, grid)).values)
    torch.testing.assert_close(laplacian(Field(stream, grid)).values, -8 * math.pi**2 * stream)
    torch.testing.assert_close(curl(velocity).values, torch.zeros_like(stream), atol=1e-11, rtol=0)
    rotated = Field(torch.cat([-along_y, along_x], 1), grid)
    torch.testing.assert_close(curl(rotated).values, laplacian(Field(stream, grid)).values)
    torch.testing.assert_close(time_derivative(Field(stream, grid)).values, 2 * t * a.sin() * b.cos())
    torch.testing.assert_close(time_derivative(Field(stream, grid), order=2).values, 2 * a.sin() * b.cos())
    both = Field(torch.cat([velocity.values, rotated.values], 1), grid)
    torch.testing.assert_close(divergence(both).values, torch.cat([divergence(velocity).values, divergence(rotated).values], 1))


def test_curl_in_three_dimensions() -> None:
    grid = Grid.uniform((7, 8, 9), periodic=False)
    x, y, z = grid.points.T.reshape(3, 1, 1, *grid.shape)
    u = Field(torch.cat([y * z**2, x**2 * z, x * y**3], 1), grid)
    torch.testing.assert_close(curl(u).values, torch.cat([3 * x * y**2 - x**2, 2 * y * z - y**3, 2 * x * z - z**2], 1))


@pytest.mark.parametrize("grid", [Grid.uniform((8, 7), periodic=(True, False)), square(4)], ids=["uniform", "mesh"])
@pytest.mark.parametrize("function", [gradient, laplacian, lambda u: divergence(gradient(u))])
def test_derivatives_are_differentiated_and_batched(function: object, grid: Grid) -> None:
    values = normal(1, 1, *grid.shape).requires_grad_()

    def derivative(values: Tensor) -> Tensor:
        result: Tensor = function(Field(values, grid)).values  # type: ignore[operator]
        return result

    torch.autograd.gradcheck(derivative, values, check_forward_ad=True, check_batched_grad=True)
    stack = normal(3, 2, 1, *grid.shape)
    torch.testing.assert_close(torch.func.vmap(derivative)(stack), derivative(stack.flatten(0, 1)).unflatten(0, (3, 2)))


def test_meshes() -> None:
    """Linear fields are exact; gradients have order 1.5 or more, and integrals of the Laplacian order 2."""
    linear = irregular(6)
    slopes = gradient(Field((linear.points @ torch.tensor([2.0, -3.0]).double() + 1.0)[None, None], linear)).values
    torch.testing.assert_close(slopes, torch.tensor([2.0, -3.0]).double()[None, :, None].expand_as(slopes))
    errors = []
    for size in (12, 24):
        mesh = irregular(size)
        x, y = mesh.points.T
        u = Field((x.sin() * (2 * y).cos())[None, None], mesh)
        exact = torch.stack([x.cos() * (2 * y).cos(), -2 * x.sin() * (2 * y).sin()])
        hat = x * (1 - x) * y * (1 - y)
        weak = float((mesh.weights * hat * laplacian(u).values[0, 0]).sum())
        fine = Grid.uniform((65, 65), periodic=False)
        s, t = fine.points.T
        integral = float((fine.weights * s * (1 - s) * t * (1 - t) * -5 * s.sin() * (2 * t).cos()).sum())
        errors.append(((gradient(u).values[0] - exact).square().mean().sqrt(), abs(weak - integral)))
        assert not laplacian(u).values[0, 0, mesh.boundary.unique()].any()
    assert errors[0][0] > 2.5 * errors[1][0]
    assert errors[0][1] > 3.0 * errors[1][1]


def test_one_mesh_per_sample() -> None:
    meshes = [square(5), irregular(4)]
    batch = Grid.batch(meshes)
    u = Field(torch.sin(3 * batch.points[..., 0] + batch.points[..., 1])[:, None], batch)
    for function in (gradient, laplacian):
        for row, mesh in enumerate(meshes):
            alone = function(Field(u.values[row : row + 1, :, : mesh.size], mesh)).values
            torch.testing.assert_close(function(u).values[row : row + 1, :, : mesh.size], alone)


FLAT = Grid.uniform((8, 8)).named(["x", "y"])


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda u: partial(u, 2), ArgumentError, "axis"),
        (lambda u: partial(u, 0, order=5), ArgumentError, "order"),
        (lambda u: gradient(u, axes=()), ArgumentError, "axis"),
        (lambda u: laplacian(u, axes=(0, 7)), ArgumentError, "axis"),
        (divergence, ShapeError, "multiple of 2 channels"),
        (lambda u: divergence(u, axes=()), ArgumentError, "axis"),
        (curl, ShapeError, "channel"),
        (time_derivative, GridError, 'named "t"'),
        (lambda u: time_derivative(Field(u.values, FLAT.named(["t", "x"]))), GridError, "not periodic"),
        (lambda u: partial(Field(u.values, FLAT.masked(torch.eye(8) > 0)), 0), GridError, "mask"),
        (lambda u: partial(Field(u.values[..., :1], Grid.uniform((8, 1), periodic=False)), 1), GridError, "points along axis"),
        (lambda u: gradient(Field(u.values.flatten(2), Grid.scattered(FLAT.points, torch.ones(64)))), GridError, "mesh"),
        (lambda u: partial(Field(normal(1, 1, 25), square(5)), 0, order=2), GridError, "laplacian"),
        (lambda u: laplacian(Field(normal(1, 1, 25), square(5)), axes=(0,)), GridError, "axes="),
        (
            lambda u: gradient(Field(normal(1, 1, 3, 4), Grid.latlon([0.0, 1.0, 2.0], [0.0, 1.0, 2.0, 3.0]))),
            GridError,
            "metric",
        ),
        (lambda u: gradient(u.values), Exception, "Field"),
    ],
)
@pytest.mark.bad_input
def test_refusals(call: object, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call(Field(normal(1, 1, 8, 8), FLAT))  # type: ignore[operator]
