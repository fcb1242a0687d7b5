"""Functionals against closed forms, and their adjoints against the definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from probneural.errors import ArgumentError, GridError, ShapeError
from probneural.functionals import Functional, MatrixFunctional, derivative, integral, sensors, stack
from probneural.grids import Grid, resample
from tests.helpers import normal, uniform

DTYPE = torch.float64


def matrix_of(functional: Functional) -> Tensor:
    """The functional's matrix `(m, p)`, column by column."""
    identity = torch.eye(functional.grid.size, dtype=DTYPE)
    return functional(identity.unflatten(-1, functional.grid.shape)).mT


# On each grid a function of product form, with an exact integral and exact derivatives of its factors.
def wave(x: Tensor, order: int = 0) -> Tensor:
    """1 + sin(2 pi x / 2 + 0.3), of period 2."""
    rate = math.pi
    return (1.0 if order == 0 else 0.0) + rate**order * torch.sin(rate * x + 0.3 + order * math.pi / 2)


def power(x: Tensor, order: int = 0) -> Tensor:
    """x^5 + x."""
    fifth = math.perm(5, order) * x ** max(5 - order, 0)
    return fifth + (x if order == 0 else torch.full_like(x, float(order == 1)))


Factor = Callable[..., Tensor]
PRODUCTS = [
    pytest.param(Grid.uniform(7, lengths=2.0, origin=-0.5), (wave,), id="1-D"),
    pytest.param(Grid.uniform(8, lengths=2.0), (wave,), id="1-D-even"),
    pytest.param(Grid.uniform(11, lengths=1.5, periodic=False, origin=0.25), (power,), id="1-D-ends"),
    pytest.param(Grid.uniform((5, 6), lengths=2.0), (wave, wave), id="2-D"),
    pytest.param(Grid.uniform((5, 9), lengths=(2.0, 1.0), periodic=(True, False)), (wave, power), id="2-D-mixed"),
    pytest.param(Grid.uniform((4, 3, 5), lengths=2.0, origin=(0.0, 0.5, 0.0)), (wave, wave, wave), id="3-D"),
    pytest.param(
        Grid.uniform((3, 7, 6), lengths=(2.0, 1.0, 1.0), periodic=(True, False, False), endpoint=(False, True, False)),
        (wave, power, power),
        id="3-D-mixed",
    ),
]


def product_form(factors: tuple[Factor, ...], points: Tensor, orders: tuple[int, ...]) -> Tensor:
    columns = [factor(points[:, axis], order) for axis, (factor, order) in enumerate(zip(factors, orders, strict=True))]
    return torch.stack(columns).prod(0)


def locations(grid: Grid, count: int = 6) -> Tensor:
    start = torch.tensor([axis.origin for axis in grid.axes], dtype=DTYPE)
    return start + torch.tensor(grid.lengths, dtype=DTYPE) * uniform(count, grid.dimension)


@pytest.mark.parametrize(("grid", "factors"), PRODUCTS)
class TestClosedForms:
    def test_sensors_are_exact(self, grid: Grid, factors: tuple[Factor, ...]) -> None:
        zeros, places = (0,) * len(factors), locations(grid)
        values = product_form(factors, grid.points, zeros).reshape(grid.shape)
        expected = product_form(factors, places, zeros)
        assert (sensors(grid, places)(values) - expected).abs().max() <= 1e-11

    @pytest.mark.parametrize("order", [1, 2, 3])
    def test_derivatives_are_exact(self, grid: Grid, factors: tuple[Factor, ...], order: int) -> None:
        places = locations(grid)
        values = product_form(factors, grid.points, (0,) * len(factors)).reshape(grid.shape)
        for axis in range(grid.dimension):
            orders = tuple(order if number == axis else 0 for number in range(grid.dimension))
            everywhere = derivative(grid, axis=axis, order=order)(values)
            somewhere = derivative(grid, axis=axis, order=order, at=places)(values)
            assert (everywhere - product_form(factors, grid.points, orders)).abs().max() <= 1e-8
            assert (somewhere - product_form(factors, places, orders)).abs().max() <= 1e-8

    def test_derivatives_at_the_grid_points_agree(self, grid: Grid, factors: tuple[Factor, ...]) -> None:
        values = normal(2, 1, *grid.shape)
        for axis in range(grid.dimension):
            there = derivative(grid, axis=axis, at=grid.points)
            assert torch.allclose(derivative(grid, axis=axis)(values), there(values), rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_integrals_of_periodic_fields_are_exact(dimension: int) -> None:
    grid = Grid.uniform((5, 6, 3)[:dimension], lengths=(2.0, 4.0, 2.0)[:dimension])  # one or two periods of mean 1
    values = product_form((wave,) * dimension, grid.points, (0,) * dimension)
    assert integral(grid)(values.reshape(grid.shape)).item() == pytest.approx(math.prod(grid.lengths), rel=1e-13)


@pytest.mark.parametrize("endpoint", [True, False])
def test_integrals_of_bilinear_fields_are_exact(endpoint: bool) -> None:
    grid = Grid.uniform((4, 6), lengths=(1.0, 2.0), periodic=False, endpoint=endpoint, origin=(0.0, 1.0))
    values = ((1 + grid.points[:, 0]) * grid.points[:, 1]).reshape(grid.shape)
    assert integral(grid)(values).item() == pytest.approx(1.5 * 4.0, rel=1e-14)


def test_integrals_of_scattered_fields_are_weighted_sums() -> None:
    grid = Grid.scattered([[0.0, 0.0], [1.0, 0.0]], [0.25, 2.0])
    assert integral(grid)(torch.tensor([[4.0, 1.0]])).tolist() == [[3.0]]


def test_spectral_sensors_read_what_resampling_gives() -> None:
    grid = Grid.uniform((6, 7), lengths=(1.0, 2.0))
    values, points = normal(2, 3, 6, 7), Grid.scattered(uniform(9, 2) * torch.tensor([1.0, 2.0]), torch.ones(9))
    assert torch.allclose(sensors(grid, points.points)(values), resample(values, grid, points), rtol=0, atol=1e-13)


def test_the_two_ends_of_a_period_are_one_point() -> None:
    grid, values = Grid.uniform(6, lengths=0.7, origin=0.1), normal(2, 6)
    ends = sensors(grid, [[0.1], [0.8]])(values)
    assert torch.allclose(ends, values[:, :1].expand(2, 2), rtol=0, atol=1e-14)


def test_the_slope_of_the_nyquist_term_is_zero_at_the_grid_points() -> None:
    grid = Grid.uniform(8)
    alternating = torch.tensor([1.0, -1.0] * 4, dtype=DTYPE)
    assert derivative(grid)(alternating).abs().max() <= 1e-12
    curvature = -((8 * math.pi) ** 2)
    assert torch.allclose(derivative(grid, order=2)(alternating), curvature * alternating, rtol=1e-12)


@pytest.mark.parametrize(("order", "rate"), [(1, 5), (2, 4)])
def test_slopes_between_ends_converge_at_their_order(order: int, rate: int) -> None:
    errors = []
    for size in (81, 161):
        grid = Grid.uniform(size, periodic=False)
        x = grid.points[:, 0]
        errors.append((derivative(grid, order=order)(torch.exp(2 * x)) - 2**order * torch.exp(2 * x)).abs().max())
    assert math.log2(errors[0] / errors[1]) == pytest.approx(rate, abs=0.3)


@dataclass(frozen=True)
class Recipe:
    """What a functional is made of; built in the test, because the run-time checks draw random numbers of their own."""

    axes: list[tuple[int, bool]]
    is_scattered: bool
    kind: int
    seed: int

    def build(self) -> Functional:
        dimension = len(self.axes)
        if self.is_scattered:
            count = self.axes[0][0]
            grid = Grid.scattered(uniform(count, dimension, seed=self.seed), uniform(count, seed=self.seed))
            return self.pick(grid, [integral(grid)])
        grid = Grid.uniform([size for size, _ in self.axes], periodic=[flag for _, flag in self.axes], lengths=2.0)
        axis, places = self.seed % dimension, locations(grid, 1 + self.seed % 4)
        everywhere = derivative(grid, axis=axis)
        local = [sensors(grid, places), derivative(grid, axis=axis, at=places)]
        return self.pick(grid, [integral(grid), everywhere, *local, 0.5 * everywhere - derivative(grid) + everywhere])

    def pick(self, grid: Grid, simple: list[Functional]) -> Functional:
        observations = MatrixFunctional(grid, normal(3, grid.size, seed=self.seed))
        composed = [
            observations,
            observations - 2.5 * observations,
            stack([*simple, observations]),
            -stack([observations, simple[-1]]),
        ]
        choices = simple + composed
        return choices[self.kind % len(choices)]


RECIPES = st.builds(
    Recipe,
    axes=st.lists(st.tuples(st.integers(2, 7), st.booleans()), min_size=1, max_size=3),
    is_scattered=st.booleans(),
    kind=st.integers(0, 99),
    seed=st.integers(0, 99),
)


class TestAlgebra:
    @settings(max_examples=60)
    @given(recipe=RECIPES, lead=st.lists(st.integers(1, 3), max_size=3), seed=st.integers(0, 99))
    def test_the_adjoint_identity_holds(self, recipe: Recipe, lead: list[int], seed: int) -> None:
        functional = recipe.build()
        values = normal(*lead, *functional.grid.shape, seed=seed)
        numbers = normal(*lead, functional.size, seed=seed + 1)
        images, pulled = functional(values), functional.adjoint(numbers)
        assert (images.shape, pulled.shape) == ((*lead, functional.size), values.shape)
        left, right = (images * numbers).sum(), (values * pulled).sum()
        assert abs(left - right) <= 1e-11 * (1 + images.norm() * numbers.norm())

    @given(recipe=RECIPES, seed=st.integers(0, 99))
    def test_functionals_act_channel_by_channel(self, recipe: Recipe, seed: int) -> None:
        functional = recipe.build()
        values = normal(2, 3, *functional.grid.shape, seed=seed)
        expected = values.flatten(2) @ matrix_of(functional).mT
        assert torch.allclose(functional(values), expected, rtol=1e-11, atol=1e-10)

    @given(recipe=RECIPES)
    def test_row_norms_are_those_of_the_matrix(self, recipe: Recipe) -> None:
        functional = recipe.build()
        assert torch.allclose(functional.row_norms(), matrix_of(functional).norm(dim=1), rtol=1e-12, atol=1e-10)

    def test_row_norms_come_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        functional = derivative(Grid.uniform((5, 4)))
        whole = functional.row_norms()
        monkeypatch.setattr("probneural.functionals.base._NORM_ROWS", 3)
        assert torch.equal(functional.row_norms(), whole)

    def test_sums_differences_and_multiples(self) -> None:
        grid = Grid.uniform((4, 3))
        first, second = MatrixFunctional(grid, normal(2, 12)), MatrixFunctional(grid, normal(2, 12, seed=1))
        A, B = matrix_of(first), matrix_of(second)
        for combination, expected in [
            (first + second, A + B),
            (first - second, A - B),
            (2.0 * first, 2 * A),
            (first * 2.0, 2 * A),
            (-first, -A),
            (-(first + 3.0 * second) * 0.5 - first, -1.5 * A - 1.5 * B),
        ]:
            assert (combination.size, combination.grid) == (2, grid)
            assert torch.allclose(matrix_of(combination), expected, rtol=0, atol=1e-14)

    def test_a_stack_keeps_the_order(self) -> None:
        grid = Grid.uniform(4)
        parts = [integral(grid), derivative(grid), 2.0 * sensors(grid, [[0.0], [0.5]])]
        together = stack(parts)
        assert (together.size, together.grid) == (7, grid)
        assert torch.equal(matrix_of(together), torch.cat([matrix_of(part) for part in parts]))
        assert stack([together, integral(grid)]).size == 8

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_numbers_have_the_dtype_of_the_values(self, dtype: torch.dtype) -> None:
        grid = Grid.uniform((4, 3))
        for functional in (integral(grid), derivative(grid), stack([integral(grid), 2.0 * derivative(grid)])):
            assert functional(torch.ones(2, 1, 4, 3, dtype=dtype)).dtype == dtype
            assert functional.adjoint(torch.ones(2, functional.size, dtype=dtype)).dtype == dtype

    def test_functionals_keep_nothing_of_their_arguments(self) -> None:
        grid = Grid.uniform(4)
        places = torch.tensor([[0.25]], dtype=DTYPE)
        total, probe = integral(grid), sensors(grid, places)
        assert total.matrix.data_ptr() != grid.weights.data_ptr()
        places.zero_()
        assert probe(torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=DTYPE)).item() == pytest.approx(1.0)


@pytest.mark.bad_input
class TestBadFunctionals:
    GRID = Grid.uniform((4, 3))
    SCATTERED = Grid.scattered(uniform(5, 2), uniform(5))

    @pytest.mark.parametrize("shape", [(12,), (2, 11), (2, 3, 4)])
    def test_matrix(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ShapeError, match=r"a matrix of shape \(m, 12\)"):
            MatrixFunctional(self.GRID, torch.ones(shape, dtype=DTYPE))

    def test_parts_of_different_sizes(self) -> None:
        with pytest.raises(ShapeError, match="functionals of equal size"):
            integral(self.GRID) + derivative(self.GRID)

    def test_parts_on_different_grids(self) -> None:
        with pytest.raises(GridError, match="a functional on Grid"):
            integral(self.GRID) - integral(Grid.uniform((4, 4)))
        with pytest.raises(GridError, match="a functional on Grid"):
            stack([integral(self.GRID), integral(self.SCATTERED)])

    def test_locations_of_another_dimension_or_outside(self) -> None:
        with pytest.raises(GridError, match=r"points of shape \(m, 2\)"):
            sensors(self.GRID, [[0.5]])
        with pytest.raises(GridError, match=r"points in \[0, 1\]"):
            sensors(Grid.uniform(4, periodic=False), [[1.5]])

    @pytest.mark.parametrize("place", [-0.51, 1.51, 3.0, math.nan, math.inf])
    def test_locations_beyond_a_periodic_domain(self, place: float) -> None:
        grid = Grid.uniform(8, lengths=2.0, origin=-0.5)
        for make in (lambda: sensors(grid, [[0.25], [place]]), lambda: derivative(grid, at=[[place]])):
            with pytest.raises(
                GridError, match=r"points in \[-0.5, 1.5\] along axis 0; got .*; take coordinates modulo the period"
            ):
                make()

    def test_scattered_values_have_no_interpolant(self) -> None:
        with pytest.raises(GridError, match="a uniform grid"):
            sensors(self.SCATTERED, [[0.5, 0.5]])
        for places in (None, [[0.5, 0.5]]):
            with pytest.raises(GridError, match="a uniform grid"):
                derivative(self.SCATTERED, at=places)

    @pytest.mark.parametrize(("size", "order", "highest"), [(20, 6, 5), (3, 3, 2), (1, 1, 0)])
    @pytest.mark.parametrize("places", [None, [[0.5]]])
    def test_order_beyond_the_polynomials(self, size: int, order: int, highest: int, places: list[list[float]] | None) -> None:
        with pytest.raises(ArgumentError, match=f"an integer from 1 to {highest} as order along axis 0"):
            derivative(Grid.uniform(size, periodic=False), order=order, at=places)
