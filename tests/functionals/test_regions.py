"""Regions, lines and maxima: against closed forms, at their order of convergence, and in the limits that they share."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from probneural.distributions import DenseRoot, GaussianField
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.functionals import average, integral, line_integral, maximum, region, sensors, stack
from probneural.grids import Grid
from tests.helpers import BandLimited, normal, scattered, uniform

DTYPE = torch.float64
PERIODIC = [Grid.uniform(9, lengths=2.0, origin=-0.5), Grid.uniform((8, 7), lengths=(1.0, 2.0)), Grid.uniform((5, 6, 7))]
BOUNDED = [
    Grid.uniform(11, lengths=1.5, periodic=False, origin=0.25),
    Grid.uniform(7, periodic=False, endpoint=False),
    Grid.uniform((4, 9), lengths=(1.0, 2.0), periodic=False),
    Grid.uniform((7, 4, 6), periodic=False, origin=(0.0, 1.0, -1.0)),
]


def corner(grid: Grid, fraction: float) -> Tensor:
    """A point at a fraction of every axis."""
    return torch.tensor([axis.origin + fraction * axis.length for axis in grid.axes], dtype=DTYPE)


def power_integral(grid: Grid, lower: Tensor, upper: Tensor, degree: int) -> float:
    """Of the product over the axes of x^degree, between two corners."""
    return float(((upper ** (degree + 1) - lower ** (degree + 1)) / (degree + 1)).prod())


def fine_mean(function: Callable[[Tensor], Tensor], lower: Tensor, upper: Tensor, count: int = 40) -> float:
    """The mean over a box by products of Gauss-Legendre nodes: for waves of a few periods, up to rounding."""
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(count))
    axes = [0.5 * (low + high) + 0.5 * (high - low) * nodes for low, high in zip(lower, upper, strict=True)]
    mass = torch.stack(torch.meshgrid(*[0.5 * weights] * len(axes), indexing="ij")).prod(0)
    points = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
    return float((function(points.flatten(0, -2)) * mass.flatten()).sum())


class TestBoxes:
    @pytest.mark.parametrize("grid", BOUNDED)
    @pytest.mark.parametrize("degree", [0, 1, 3])
    def test_polynomials_are_integrated_exactly(self, grid: Grid, degree: int) -> None:
        lower, upper = corner(grid, 0.13), corner(grid, 0.71)
        values = (grid.points**degree).prod(1).reshape(grid.shape)
        expected = power_integral(grid, lower, upper, degree)
        found = region(grid, lower=lower, upper=upper, reduction="integral")(values).item()
        assert found == pytest.approx(expected, rel=1e-12)
        mean = region(grid, lower=lower, upper=upper)(values).item()
        assert mean == pytest.approx(expected / float((upper - lower).prod()), rel=1e-12)

    @pytest.mark.parametrize("grid", PERIODIC)
    @pytest.mark.parametrize("ends", [(0.13, 0.71), (0.0, 1.0), (0.8, 1.4), (-2.3, -2.1)])
    def test_waves_are_integrated_exactly_across_the_ends_too(self, grid: Grid, ends: tuple[float, float]) -> None:
        wave = BandLimited(
            [(size - 1) // 2 for size in grid.shape], lengths=grid.lengths, origin=[axis.origin for axis in grid.axes]
        )
        lower, upper = corner(grid, ends[0]), corner(grid, ends[1])
        found = region(grid, lower=lower, upper=upper)(wave.on(grid)).item()
        assert found == pytest.approx(fine_mean(wave, lower, upper), abs=1e-12)

    def test_axes_of_both_kinds(self) -> None:
        grid = Grid.uniform((8, 7), periodic=(True, False))
        x, y = grid.points.T
        values = ((2 * math.pi * x).cos() * y**5).reshape(grid.shape)
        expected = math.sin(0.6 * math.pi) / (2 * math.pi) * (0.9**6 - 0.2**6) / 6
        found = region(grid, lower=[0.0, 0.2], upper=[0.3, 0.9], reduction="integral")(values).item()
        assert found == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("grid", [*PERIODIC, *BOUNDED, scattered(30, 2)])
    def test_without_corners_it_is_the_domain(self, grid: Grid) -> None:
        values = normal(2, 3, *grid.shape)
        torch.testing.assert_close(region(grid, reduction="integral")(values), integral(grid)(values))
        torch.testing.assert_close(average(grid)(values)[..., 0], grid.mean(values.flatten(2)))

    def test_smooth_fields_converge_at_the_interpolants_order(self) -> None:
        errors = []
        for size in (33, 65):
            grid = Grid.uniform(size, periodic=False)
            found = region(grid, lower=0.1, upper=0.45, reduction="integral")((3 * grid.points[:, 0]).exp()).item()
            errors.append(abs(found - (math.exp(1.35) - math.exp(0.3)) / 3))
        assert math.log2(errors[0] / errors[1]) >= 5.5

    @pytest.mark.parametrize("endpoint", [True, False])
    @pytest.mark.parametrize("size", [5, 6, 7, 19, 60, 900])
    def test_points_are_read_in_windows(self, size: int, endpoint: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        grid, values = Grid.uniform(size, periodic=False, endpoint=endpoint, origin=0.5), normal(size)
        for ends in ((0.5, 1.5), (0.51, 0.6), (1.2, 1.5), (0.83, 0.831)):
            monkeypatch.setattr("probneural.functionals.regions._WINDOW", 10**6)
            monkeypatch.setattr("probneural.functionals.regions._MARGIN", 10**6)
            whole = region(grid, lower=ends[0], upper=ends[1])(values)
            monkeypatch.undo()
            monkeypatch.setattr("probneural.functionals.regions._WINDOW", 7)
            torch.testing.assert_close(region(grid, lower=ends[0], upper=ends[1])(values), whole, rtol=1e-10, atol=1e-11)

    def test_of_scattered_points_those_inside_count(self) -> None:
        grid = Grid.scattered([[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]], [1.0, 2.0, 4.0])
        inside = region(grid, lower=[0.5, 0.0])
        assert inside(torch.tensor([100.0, 3.0, 6.0])).item() == pytest.approx(5.0)


class TestMasksAndFunctions:
    def test_masks_weigh_by_quadrature(self) -> None:
        for grid in (*BOUNDED, scattered(12, 3)):
            mask, values = uniform(*grid.shape, seed="mask") < 0.5, normal(*grid.shape)
            weights = grid.weights * mask.flatten()
            expected = (weights * values.flatten()).sum()
            for given in (mask, mask.numpy(), mask.tolist(), mask.float()):
                assert region(grid, given, reduction="integral")(values).item() == pytest.approx(expected.item(), rel=1e-12)
                assert region(grid, given)(values).item() == pytest.approx((expected / weights.sum()).item(), rel=1e-12)

    def test_fractions_of_cells_count_in_part(self) -> None:
        grid = Grid.uniform(4)
        assert region(grid, [1.0, 0.5, 0.0, 0.0])(torch.tensor([1.0, 4.0, 9.0, 9.0])).item() == pytest.approx(2.0)

    @pytest.mark.parametrize(
        ("grid", "size"),
        [(Grid.uniform((32, 32)), 0.002), (Grid.uniform((33, 33), periodic=False), 0.002), (Grid.uniform((16,) * 3), 0.01)],
    )
    def test_the_volume_of_a_ball(self, grid: Grid, size: float) -> None:
        def ball(points: Tensor) -> Tensor:
            return (points - 0.5).square().sum(1) <= 0.3**2

        volume = math.pi * 0.09 if grid.dimension == 2 else 4 / 3 * math.pi * 0.027
        found = region(grid, ball, reduction="integral")(torch.ones(grid.shape)).item()
        assert found == pytest.approx(volume, rel=size)
        coarse = region(grid, ball(grid.points).reshape(grid.shape), reduction="integral")(torch.ones(grid.shape)).item()
        assert abs(found - volume) < abs(coarse - volume)
        centre = region(grid, ball)(grid.points.T.reshape(-1, *grid.shape).to(DTYPE))  # a mean of coordinates
        if not any(grid.periodic):
            torch.testing.assert_close(centre.flatten(), torch.full((grid.dimension,), 0.5, dtype=DTYPE), rtol=0, atol=1e-10)

    @pytest.mark.parametrize("grid", [*PERIODIC, *BOUNDED, Grid.uniform((8, 7), periodic=(True, False))])
    def test_a_function_is_asked_between_points_where_the_interpolant_is_read(self, grid: Grid) -> None:
        """Against sensors at the middles of the parts."""

        def inside(points: Tensor) -> Tensor:
            asked.append(points)
            return (points.sum(1).sin() > 0.2) | (points[:, 0] < points[0, 0] + 0.1)

        asked: list[Tensor] = []
        found = region(grid, inside)
        (points,) = asked
        assert len(points) > grid.size
        chosen = points[inside(points)]
        chosen = chosen[:: max(1, len(chosen) // 500)] if grid.dimension > 1 else chosen
        values = normal(*grid.shape)
        if grid.dimension == 1:
            torch.testing.assert_close(found(values)[0], sensors(grid, chosen)(values).mean(), rtol=1e-10, atol=1e-12)
        else:
            assert abs(found(values)[0] - sensors(grid, chosen)(values).mean()) < 0.2 * values.std()

    def test_numpys_functions_will_do(self) -> None:
        grid = Grid.uniform(64)
        half = region(grid, lambda x: np.asarray(x)[:, 0] < 0.5)
        assert half(torch.ones(64)).item() == pytest.approx(1.0)

    def test_a_grid_too_fine_to_divide_decides_by_its_points(self, monkeypatch: pytest.MonkeyPatch) -> None:
        grid = Grid.uniform((6, 8), periodic=False)
        monkeypatch.setattr("probneural.functionals.regions._MOST_POINTS", 30)
        values = normal(*grid.shape)
        mask = (grid.points[:, 0] < 0.55).reshape(grid.shape)
        assert region(grid, lambda x: x[:, 0] < 0.55)(values).item() == pytest.approx(region(grid, mask)(values).item())


class TestLines:
    @pytest.mark.parametrize("grid", BOUNDED)
    def test_polynomials_are_exact(self, grid: Grid) -> None:
        """Of degree 3 per axis, along a straight line, where they are polynomials of the arc length."""
        start, end = corner(grid, 0.05), corner(grid, 0.85)
        end[-1] = corner(grid, 0.4)[-1]

        def function(points: Tensor) -> Tensor:
            return (points**3 - 2.0 * points).prod(-1)

        nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(20))
        along = function(start + (0.5 + 0.5 * nodes)[:, None] * (end - start))
        expected = 0.5 * float(weights @ along) * float((end - start).norm())
        found = line_integral(grid, torch.stack([start, end]))(function(grid.points).reshape(grid.shape)).item()
        assert found == pytest.approx(expected, rel=1e-11)

    @pytest.mark.parametrize("grid", PERIODIC)
    def test_waves_are_exact_across_the_ends_too(self, grid: Grid) -> None:
        wave = BandLimited(
            [(size - 1) // 2 for size in grid.shape], lengths=grid.lengths, origin=[axis.origin for axis in grid.axes]
        )
        start, end = corner(grid, 0.7), corner(grid, 1.3)
        end[0] = corner(grid, 0.1)[0]
        nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(80))
        expected = 0.5 * float(weights @ wave(start + (0.5 + 0.5 * nodes)[:, None] * (end - start)))
        found = line_integral(grid, torch.stack([start, end]))(wave.on(grid)).item()
        assert found == pytest.approx(expected * float((end - start).norm()), abs=1e-12)

    def test_a_polyline_is_the_sum_of_its_segments(self) -> None:
        grid, values = Grid.uniform((6, 7), periodic=False), normal(6, 7)
        path = [[0.1, 0.2], [0.9, 0.2], [0.9, 0.2], [0.4, 1.0]]
        parts = [line_integral(grid, path[:2])(values), line_integral(grid, path[2:])(values)]
        torch.testing.assert_close(line_integral(grid, path)(values), parts[0] + parts[1])
        backwards = line_integral(grid, path[::-1])(values)
        torch.testing.assert_close(backwards, parts[0] + parts[1])

    def test_pieces_of_rows_add_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        grid = Grid.uniform((5, 6, 7))
        whole = line_integral(grid, [[0.0, 0.0, 0.0], [0.9, 0.8, 0.7]])
        monkeypatch.setattr("probneural.functionals.integrals._CHUNK_ELEMENTS", 200)
        pieces = line_integral(grid, [[0.0, 0.0, 0.0], [0.9, 0.8, 0.7]])
        torch.testing.assert_close(pieces(normal(5, 6, 7)), whole(normal(5, 6, 7)), rtol=1e-12, atol=0)


class TestMaxima:
    def test_of_all_points_and_of_some(self) -> None:
        for grid in (*BOUNDED, scattered(12, 2)):
            values, mask = normal(2, 3, *grid.shape), uniform(*grid.shape, seed="mask") < 0.5
            assert torch.equal(maximum(grid)(values)[..., 0], values.flatten(2).amax(-1))
            expected = values.flatten(2)[..., mask.flatten()].amax(-1)
            assert torch.equal(maximum(grid, mask)(values)[..., 0], expected)
            middle = grid.points.mean(0)
            inside = (grid.points >= middle).all(1)
            for functional in (maximum(grid, lower=middle), maximum(grid, lambda x, m=middle: (x >= m).all(1))):
                assert torch.equal(functional(values)[..., 0], values.flatten(2)[..., inside].amax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_images_of_a_gaussian_are_those_of_its_draws(dtype: torch.dtype) -> None:
    grid = Grid.uniform((6, 5), periodic=(True, False))
    u = GaussianField(
        normal(2, 1, 6, 5, dtype=dtype), DenseRoot(normal(2, 1, 30, 3, seed=1, dtype=dtype)), latent="xi", grid=grid
    )
    functional = stack(
        [
            region(grid, lower=[0.1, 0.1], upper=[0.7, 0.6]),
            line_integral(grid, [[0.1, 0.1], [0.9, 0.4]]),
            region(grid, lambda x: x[:, 0] > 0.5),
        ]
    )
    image, draws = u.apply(functional), functional(u.rsample((500,), seed=0))
    assert image.mean.dtype == draws.dtype == dtype
    torch.testing.assert_close(image.rsample((500,), seed=0), draws, rtol=1e-4, atol=1e-5)


class TestLabels:
    GRID = Grid.uniform((4, 6))

    def test_functionals_say_what_they_are(self) -> None:
        def basin(points: Tensor) -> Tensor:
            return points[:, 0] < 0.5

        together = stack(
            [
                integral(self.GRID),
                region(self.GRID, lower=[0.1, 0.2], upper=[0.3, 0.4]),
                region(self.GRID, basin, reduction="integral"),
                2.0 * integral(self.GRID),
                sensors(self.GRID, [[0.25, 0.5]]),
                line_integral(self.GRID, [[0.0, 0.0], [0.5, 0.5]]).named("transect"),
            ]
        )
        assert together.labels == (
            "integral",
            "mean over (0.1, 0.2) to (0.3, 0.4)",
            "integral over basin",
            "3",
            "at (0.25, 0.5)",
            "transect",
        )
        assert stack([2.0 * integral(self.GRID), -integral(self.GRID)]).labels is None

    def test_names_can_be_replaced(self) -> None:
        probe = sensors(self.GRID, [[0.25, 0.5], [0.5, 0.5]])
        named = probe.named(["west", "east"])
        assert named.labels == ("west", "east")
        values = normal(2, 4, 6)
        assert torch.equal(named(values), probe(values))
        assert torch.equal(named.adjoint(normal(2, 2)), probe.adjoint(normal(2, 2)))


@pytest.mark.bad_input
class TestBadInput:
    LINE = Grid.uniform(8, periodic=False)
    PLANE = Grid.uniform((4, 6), periodic=False)
    SCATTERED = scattered(5, 2)

    @pytest.mark.parametrize("bound", [[0.1], 0.1, [0.1, 0.2, 0.3], [math.nan, 0.1], "a", [[0.1, 0.2]], [None, 0.1]])
    def test_corners(self, bound: object) -> None:
        for grid in (self.PLANE, self.SCATTERED):
            for make in (region, maximum, average):
                with pytest.raises(ArgumentError, match="corner"):
                    make(grid, lower=bound)  # type: ignore[operator]

    def test_boxes_out_of_order_or_outside(self) -> None:
        for grid in (self.PLANE, self.SCATTERED):
            with pytest.raises(ArgumentError, match="swap them"):
                region(grid, lower=[0.5, 0.5], upper=[0.4, 0.9])
        with pytest.raises(GridError, match="cut the box"):
            region(self.LINE, lower=0.5, upper=1.1)
        with pytest.raises(GridError, match="cut the box"):
            region(Grid.uniform(8), lower=0.5, upper=1.6)
        with pytest.raises(GridError, match="none inside"):
            region(self.SCATTERED, lower=[2.0, 2.0])

    def test_two_regions_at_once(self) -> None:
        for make in (region, maximum):
            with pytest.raises(ArgumentError, match="drop one"):
                make(self.LINE, torch.ones(8), lower=0.5)  # type: ignore[operator]

    @pytest.mark.parametrize("mask", [torch.ones(7), np.ones((1, 8)), [True], True, lambda x: x, lambda x: True])
    def test_masks_of_another_shape(self, mask: object) -> None:
        for make in (region, maximum):
            with pytest.raises(ShapeError, match="of shape"):
                make(self.LINE, mask)  # type: ignore[operator]

    @pytest.mark.parametrize(
        "mask",
        ["a", torch.full((8,), 2.0), torch.full((8,), math.nan), [-1.0] * 8, [1j] * 8, lambda x: x[:, 0] * 3, lambda x: None],
    )
    def test_masks_of_other_numbers(self, mask: object) -> None:
        for make in (region, maximum):
            with pytest.raises((DataError, ShapeError), match="truth values|finite|of shape"):
                make(self.LINE, mask)  # type: ignore[operator]

    def test_nothing_inside(self) -> None:
        for make in (region, maximum):
            with pytest.raises(GridError, match="none inside"):
                make(self.LINE, torch.zeros(8))  # type: ignore[operator]
            with pytest.raises(GridError, match="none inside"):
                make(self.LINE, lambda x: x[:, 0] > 2.0)  # type: ignore[operator]

    def test_paths_elsewhere(self) -> None:
        with pytest.raises(GridError, match="cut the path"):
            line_integral(self.LINE, [[0.5], [1.5]])
        with pytest.raises(GridError, match="predict on a uniform grid"):
            line_integral(self.SCATTERED, [[0.5, 0.5], [0.6, 0.6]])
        with pytest.raises(DataError, match="finite vertices"):
            line_integral(self.LINE, [[0.5], [math.nan]])
        with pytest.raises(ArgumentError, match="positive length"):
            line_integral(self.LINE, [[0.5], [0.5]])


@pytest.mark.parametrize("box", [(0.9, 1.1), (-0.2, -0.05), (0.25, 0.5), (-0.1, 0.9)])
def test_a_maximum_over_a_box_takes_its_points_across_the_ends_of_a_periodic_axis(box: tuple[float, float]) -> None:
    grid = Grid.uniform(20)
    values = normal(20, seed="periodic maximum")
    number = torch.arange(-20, 40) / 20
    inside = (number >= box[0] - 1e-9) & (number <= box[1] + 1e-9)
    expected = values[(torch.arange(-20, 40) % 20)[inside]].max()
    assert maximum(grid, lower=box[0], upper=box[1])(values) == expected


def test_a_maximum_over_a_box_beyond_the_domain_is_refused() -> None:
    for grid, box in ((Grid.uniform(20), (0.5, 7.0)), (Grid.uniform(20, periodic=False), (-0.2, 0.5))):
        with pytest.raises(GridError, match="a box inside the domain"):
            maximum(grid, lower=box[0], upper=box[1])


class TestSphere:
    """Regions of a latitude-longitude grid, against areas that are known."""

    GRID = Grid.latlon(torch.arange(-87.5, 90.0, 5.0), torch.arange(0.0, 360.0, 5.0))
    ONES = torch.ones(1, 1, 36, 72, dtype=DTYPE)
    SPHERE = 4 * math.pi * (180 / math.pi) ** 2

    def test_a_box_up_to_the_pole(self) -> None:
        box = region(self.GRID, lower=[60.0, -10.0], upper=[90.0, 200.0], reduction="integral")
        assert box(self.ONES).item() == pytest.approx(210.0 / 360 * (1 - math.sin(math.pi / 3)) / 2 * self.SPHERE, rel=1e-12)
        assert average(self.GRID, lower=[60.0, 0.0])(self.ONES).item() == pytest.approx(1.0, rel=1e-12)

    def test_a_box_of_a_field_that_varies(self) -> None:
        grid = self.GRID
        field = (1 + torch.deg2rad(grid.points[:, 1]).cos()) * (grid.points[:, 0] / 90) ** 2
        box = region(grid, lower=[-30.0, 0.0], upper=[60.0, 90.0], reduction="integral")
        nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(60))
        latitude = 15.0 + 45.0 * nodes
        along = (45.0 * weights * torch.deg2rad(latitude).cos() * (latitude / 90) ** 2).sum()
        around = 90.0 + math.degrees(1.0)
        assert box(field.reshape(1, 1, *grid.shape)).item() == pytest.approx(along.item() * around, rel=1e-10)

    def test_where_a_function_says_so(self) -> None:
        caps = region(self.GRID, lambda points: points[:, 0].abs() > 60.0, reduction="integral")
        assert caps(self.ONES).item() == pytest.approx((1 - math.sin(math.pi / 3)) * self.SPHERE, rel=1e-3)
