"""Grids and resampling: exact where they promise exactness, of measured order elsewhere."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Sequence
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from probneural.errors import GridError, ShapeError
from probneural.grids import Grid, interpolation_matrix, resample
from probneural.grids.axes import Axis
from tests.helpers import DTYPE, BandLimited, generator, normal, scattered


class TestQuadrature:
    AXES = (
        pytest.param(Axis(1, 2.0, True, False), id="periodic-1"),
        pytest.param(Axis(7, 2.0, True, False, -1.0), id="periodic-odd"),
        pytest.param(Axis(8, 3.0, True, False), id="periodic-even"),
        pytest.param(Axis(1, 2.0, False, True), id="ends-1"),
        pytest.param(Axis(2, 2.0, False, True), id="ends-2"),
        pytest.param(Axis(9, 2.0, False, True, 5.0), id="ends"),
        pytest.param(Axis(1, 2.0, False, False), id="open-1"),
        pytest.param(Axis(2, 2.0, False, False), id="open-2"),
        pytest.param(Axis(3, 2.0, False, False), id="open-3"),
        pytest.param(Axis(9, 0.5, False, False, -3.0), id="open"),
    )

    @pytest.mark.parametrize("axis", AXES)
    def test_weights_are_not_negative_and_sum_to_the_length(self, axis: Axis) -> None:
        assert axis.weights.shape == (axis.size,)
        assert (axis.weights >= 0).all()
        assert axis.weights.sum().item() == pytest.approx(axis.length, rel=1e-14)

    @pytest.mark.parametrize("size", [1, 2, 5, 8])
    def test_periodic_weights_are_exact_below_the_sampling_frequency(self, size: int) -> None:
        axis = Axis(size, 3.0, True, False, 0.5)
        for frequency in range(1, size):
            angle = 2 * math.pi * frequency * (axis.coordinates - 0.5) / 3.0
            assert abs((axis.weights * angle.cos()).sum()) <= 1e-13
            assert abs((axis.weights * angle.sin()).sum()) <= 1e-13

    @pytest.mark.parametrize("endpoint", [True, False])
    @pytest.mark.parametrize("size", [2, 3, 4, 9])
    def test_other_weights_are_exact_for_lines_up_to_the_right_end(self, size: int, endpoint: bool) -> None:
        axis = Axis(size, 3.0, False, endpoint, 0.5)
        assert (axis.weights * axis.coordinates).sum().item() == pytest.approx((3.5**2 - 0.5**2) / 2, rel=1e-14)

    @pytest.mark.parametrize("endpoint", [True, False])
    def test_other_weights_converge_at_second_order(self, endpoint: bool) -> None:
        errors = []
        for size in (512, 1024):
            axis = Axis(size, 1.0, False, endpoint)
            errors.append(abs((axis.weights * axis.coordinates.exp()).sum().item() - (math.e - 1)))
        assert math.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=0.05)

    def test_weights_of_a_grid_are_products(self) -> None:
        grid = Grid.uniform((3, 4, 2), lengths=(1.0, 2.0, 0.5), periodic=(True, False, False), endpoint=(False, True, False))
        expected = [a * b * c for a, b, c in product(*(axis.weights.tolist() for axis in grid.axes))]
        assert grid.weights.tolist() == pytest.approx(expected, rel=1e-14)
        assert grid.volume == pytest.approx(1.0, rel=1e-14)


class TestGrid:
    def test_points_run_with_the_last_axis_fastest(self) -> None:
        grid = Grid.uniform((2, 3), lengths=(1.0, 3.0), origin=(10.0, 0.0))
        assert grid.points.tolist() == [[10.0, 0.0], [10.0, 1.0], [10.0, 2.0], [10.5, 0.0], [10.5, 1.0], [10.5, 2.0]]

    @pytest.mark.parametrize(
        ("periodic", "endpoint", "last"), [(True, None, 0.75), (False, None, 1.0), (False, True, 1.0), (False, False, 0.75)]
    )
    def test_where_the_last_point_is(self, periodic: bool, endpoint: bool | None, last: float) -> None:
        grid = Grid.uniform(4, periodic=periodic, endpoint=endpoint)
        assert grid.points[-1].item() == last
        assert grid.endpoint == (last == 1.0,)

    def test_is_float64_and_keeps_nothing_of_its_arguments(self) -> None:
        points, weights = torch.rand(3, 2, requires_grad=True), torch.ones(3)
        grid = Grid.scattered(points, weights)
        weights.zero_()
        assert grid.weights.tolist() == [1.0, 1.0, 1.0]
        assert (grid.points.dtype, grid.weights.dtype, grid.points.requires_grad) == (DTYPE, DTYPE, False)
        assert Grid.uniform((3,)).points.dtype == Grid.uniform((3,)).weights.dtype == DTYPE

    UNEQUAL = (
        Grid.uniform((4, 4)),
        Grid.uniform((16,)),
        Grid.uniform((4, 5)),
        Grid.uniform((4, 4), lengths=2.0),
        Grid.uniform((4, 4), periodic=False),
        Grid.uniform((4, 4), periodic=False, endpoint=False),
        Grid.uniform((4, 4), origin=1.0),
        Grid.scattered(Grid.uniform((4, 4)).points, Grid.uniform((4, 4)).weights),
        Grid.scattered(Grid.uniform((4, 4)).points, 2 * Grid.uniform((4, 4)).weights),
        Grid.scattered(Grid.uniform((4, 4)).points.flip(0), Grid.uniform((4, 4)).weights),
    )

    def test_equality_sees_every_difference(self) -> None:
        for (i, first), (j, second) in product(enumerate(self.UNEQUAL), repeat=2):
            assert (first == second) == (i == j)
        assert Grid.uniform((4,)) != "Grid.uniform((4,))"

    @pytest.mark.parametrize("travel", [copy.copy, copy.deepcopy, lambda grid: pickle.loads(pickle.dumps(grid))])  # noqa: S301
    @pytest.mark.parametrize("grid", UNEQUAL)
    def test_equal_grids_have_equal_hashes(self, grid: Grid, travel: object) -> None:
        same = travel(grid)  # type: ignore[operator]
        assert same == grid
        assert hash(same) == hash(grid)
        assert len({same, grid}) == 1

    def test_zeros_of_both_signs_are_one_point(self) -> None:
        first, second = Grid.scattered([[0.0]], [1.0]), Grid.scattered([[-0.0]], [1.0])
        assert first == second
        assert hash(first) == hash(second)
        assert hash(Grid.uniform(3, origin=0.0)) == hash(Grid.uniform(3, origin=-0.0))

    def test_resized_keeps_the_domain(self) -> None:
        grid = Grid.uniform((4, 5), lengths=(1.0, 2.0), periodic=(True, False), endpoint=(False, False), origin=(0.5, -1.0))
        finer = grid.resized((8, 9))
        assert finer.shape == (8, 9)
        assert (finer.lengths, finer.periodic, finer.endpoint) == (grid.lengths, grid.periodic, grid.endpoint)
        assert [axis.origin for axis in finer.axes] == [0.5, -1.0]
        assert finer.resized((4, 5)) == grid
        assert grid.resized(6).shape == (6, 6)

    def test_is_on_the_cpu_under_any_default_device(self) -> None:
        with torch.device("meta"):
            grids = [Grid.uniform((3, 4), periodic=(True, False)), Grid.uniform(1), Grid.scattered([[0.0]], [1.0])]
            devices = [tensor.device.type for grid in grids for tensor in (grid.points, grid.weights)]
        assert devices == ["cpu"] * 6


@pytest.mark.bad_input
class TestBadGrids:
    def test_a_scattered_grid_has_no_resolution(self) -> None:
        with pytest.raises(GridError, match="no resolution to change"):
            scattered(3, 1).resized(4)


# Sizes of source and target, and the highest frequency along each axis that both resolve.
RESIZES = [
    ((8,), (8,), (3,)),
    ((8,), (20,), (3,)),
    ((9,), (20,), (4,)),
    ((9,), (21,), (4,)),
    ((20,), (9,), (4,)),
    ((21,), (8,), (3,)),
    ((5, 6), (8, 9), (2, 2)),
    ((8, 9), (5, 6), (2, 2)),
    ((6, 9), (9, 6), (2, 2)),
    ((3, 4, 5), (6, 5, 4), (1, 1, 1)),
    ((5, 6, 4), (4, 3, 7), (1, 1, 1)),
]


class TestResampling:
    LENGTHS, ORIGIN = (1.0, 2.5, 0.3), (0.0, -1.0, 7.0)

    def domain(self, shape: tuple[int, ...]) -> Grid:
        count = len(shape)
        return Grid.uniform(shape, lengths=self.LENGTHS[:count], origin=self.ORIGIN[:count])

    def function(self, highest: Sequence[int]) -> BandLimited:
        return BandLimited(highest, lengths=self.LENGTHS[: len(highest)], origin=self.ORIGIN[: len(highest)])

    @pytest.mark.parametrize(("coarse", "fine", "highest"), RESIZES)
    def test_band_limited_fields_move_exactly(
        self, coarse: tuple[int, ...], fine: tuple[int, ...], highest: tuple[int, ...]
    ) -> None:
        source, target, function = self.domain(coarse), self.domain(fine), self.function(highest)
        moved = resample(function.on(source)[None, None], source, target)
        assert (moved[0, 0] - function.on(target)).abs().max() <= 1e-12

    @pytest.mark.parametrize(("shape", "target", "highest"), RESIZES)
    def test_band_limited_fields_are_read_exactly_at_scattered_points(
        self, shape: tuple[int, ...], target: tuple[int, ...], highest: tuple[int, ...]
    ) -> None:
        source, function = self.domain(shape), self.function(highest)
        where = source.points.amin(0) + torch.tensor(source.lengths) * torch.rand(
            13, len(shape), generator=generator(), dtype=DTYPE
        )
        points = Grid.scattered(where, torch.ones(13))
        assert (resample(function.on(source), source, points) - function(points.points)).abs().max() <= 2e-12

    def test_resampling_the_same_grid_changes_nothing(self) -> None:
        grid, points, values = Grid.uniform((4, 3)), scattered(5, 2), normal(1, 1, 4, 3)
        assert resample(values, grid, Grid.uniform((4, 3))) is values
        assert resample(normal(1, 1, 5), points, points).shape == (1, 1, 5)

    def test_mixed_axes_are_exact_on_what_each_is_exact_for(self) -> None:
        def function(points: Tensor) -> Tensor:
            x, t = points.T
            return torch.sin(2 * math.pi * x + 0.3) * (1 + t - 2 * t**5)

        source = Grid.uniform((5, 9), periodic=(True, False))
        targets = [
            source.resized((8, 31)),
            Grid.uniform((6, 12), periodic=(True, False), endpoint=(False, False)),
            scattered(17, 2),
        ]
        for target in targets:
            expected = function(target.points).reshape(target.shape)
            assert (resample(function(source.points).reshape(5, 9), source, target) - expected).abs().max() <= 1e-12

    def test_many_scattered_points_come_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        source, target = Grid.uniform((5, 6)), scattered(23, 2)
        values = normal(2, 1, 5, 6)
        at_once = resample(values, source, target)
        monkeypatch.setattr("probneural.grids.resampling._CHUNK_ELEMENTS", 5 * 6 * 4)
        assert torch.allclose(resample(values, source, target), at_once, rtol=0, atol=1e-14)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_keeps_dtype_and_leading_axes(self, dtype: torch.dtype) -> None:
        values = torch.ones(2, 1, 4, 6, dtype=dtype)
        moved = resample(values, Grid.uniform(6), Grid.uniform(9))
        assert (moved.shape, moved.dtype) == ((2, 1, 4, 9), dtype)
        assert torch.allclose(moved, torch.ones_like(moved))

    def test_a_matrix_first_used_without_autograd_serves_autograd_later(self) -> None:
        source, target, values = Grid.uniform(6, lengths=1.25), Grid.uniform(9, lengths=1.25), normal(1, 1, 6)
        with torch.inference_mode():
            resample(values, source, target), source.points, source.weights
            points = Grid.scattered(torch.rand(3, 1), torch.ones(3))
        values.requires_grad_()
        (resample(values, source, target).sum() + (values * source.weights * source.points[:, 0]).sum()).backward()
        assert not any(tensor.is_inference() for tensor in (points.points, points.weights))
        assert values.grad is not None

    def test_a_trace_leaves_no_tensor_of_its_own_behind(self) -> None:
        source, target, values = Grid.uniform(6, lengths=1.5), Grid.uniform(9, lengths=1.5), normal(1, 1, 6)

        class Refine(nn.Module):
            def forward(self, values: Tensor) -> Tensor:
                return resample(values * source.weights + source.points[:, 0], source, target)

        exported = torch.export.export(Refine(), (values,), strict=False).module()
        after = Refine()(values)
        assert [type(tensor) for tensor in (after, source.points, source.weights)] == [Tensor] * 3
        assert torch.allclose(exported(values), after, rtol=0, atol=1e-14)


@pytest.mark.bad_input
class TestBadResampling:
    def test_from_scattered_points(self) -> None:
        with pytest.raises(GridError, match="a uniform grid"):
            resample(torch.ones(5), scattered(5, 1), Grid.uniform(4))

    def test_to_another_dimension(self) -> None:
        with pytest.raises(GridError, match=r"points of shape \(m, 1\)"):
            resample(torch.ones(4), Grid.uniform(4), scattered(5, 2))

    @pytest.mark.parametrize(
        "target", [Grid.uniform(8, lengths=2.0), Grid.uniform(8, periodic=False), Grid.uniform(8, origin=0.5)]
    )
    def test_to_another_domain(self, target: Grid) -> None:
        with pytest.raises(GridError, match="a target on the source's domain"):
            resample(torch.ones(4), Grid.uniform(4), target)

    @pytest.mark.parametrize("values", [torch.ones(5), torch.ones(()), torch.ones(4, 1)])
    def test_values_of_another_shape(self, values: Tensor) -> None:
        with pytest.raises(ShapeError, match=r"values of shape \(\.\.\., 4\)"):
            resample(values, Grid.uniform(4), Grid.uniform(8))

    @pytest.mark.parametrize("place", [-0.1, 1.1, math.nan])
    def test_outside_a_closed_axis(self, place: float) -> None:
        grid = Grid.uniform((4, 5), periodic=(True, False))
        with pytest.raises(GridError, match=r"points in \[0, 1\] along axis 1"):
            interpolation_matrix(grid, torch.tensor([[0.5, place]], dtype=DTYPE))

    @pytest.mark.parametrize("place", [math.nan, math.inf])
    def test_nowhere_on_a_periodic_axis(self, place: float) -> None:
        with pytest.raises(GridError, match="along axis 0"):
            interpolation_matrix(Grid.uniform(4), torch.tensor([[place]], dtype=DTYPE))


class TestSphere:
    """Grids in degrees, weighted by areas: compared with integrals over the sphere that are known."""

    LONGITUDES = torch.arange(0.0, 360.0, 7.5)
    GLOBES = (
        pytest.param(torch.linspace(-90.0, 90.0, 37), id="both poles"),
        pytest.param(torch.arange(-87.5, 90.0, 5.0), id="between the poles"),
        pytest.param(torch.arange(-85.0, 90.0, 5.0), id="without the polar rows"),
        pytest.param(torch.linspace(-90.0, 90.0, 37, dtype=torch.float32), id="float32"),
    )

    @pytest.mark.parametrize("latitudes", GLOBES)
    def test_areas_add_up_to_the_sphere(self, latitudes: Tensor) -> None:
        grid = Grid.latlon(latitudes, self.LONGITUDES)
        assert grid.volume == pytest.approx(4 * math.pi * (180 / math.pi) ** 2, rel=1e-13)
        assert grid.periodic == (False, True)
        assert grid.resized((18, 20)).volume == pytest.approx(grid.volume, rel=1e-13)

    def test_means_of_legendre_polynomials_converge_to_zero(self) -> None:
        errors = []
        for size in (37, 73):
            grid = Grid.latlon(torch.linspace(-90.0, 90.0, size), self.LONGITUDES)
            sine = torch.deg2rad(grid.points[:, 0]).sin()
            assert abs(grid.mean(sine)) < 1e-15
            errors.append(abs(grid.mean(1.5 * sine.square() - 0.5).item()))
        assert errors[0] < 2e-3
        assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.05)

    def test_a_region_ends_at_its_points(self) -> None:
        grid = Grid.latlon(torch.linspace(30.0, 60.0, 7), torch.linspace(-20.0, 20.0, 9), latitude_first=True)
        assert grid.volume == pytest.approx(40 * 180 / math.pi * (math.sin(math.pi / 3) - 0.5), rel=1e-13)

    def test_latitude_may_come_second(self) -> None:
        first = Grid.latlon(torch.linspace(-90.0, 90.0, 7), self.LONGITUDES)
        second = Grid.latlon(torch.linspace(-90.0, 90.0, 7), self.LONGITUDES, latitude_first=False)
        assert second.shape == (48, 7)
        assert torch.equal(second.weights.reshape(48, 7).T.flatten(), first.weights)

    def test_it_is_another_grid_than_the_flat_one(self) -> None:
        flat = Grid.uniform((7, 4), lengths=(180.0, 360.0), periodic=(False, True), origin=(-90.0, 0.0))
        sphere = flat.on_sphere(latitude=0)
        assert sphere == Grid.latlon(torch.linspace(-90.0, 90.0, 7), torch.arange(4) * 90.0)
        assert sphere != flat
        assert hash(sphere) == hash(copy.deepcopy(sphere))
        assert "on_sphere" in repr(sphere)

    @pytest.mark.parametrize(
        ("latitudes", "longitudes"),
        [
            pytest.param([90.0, 0.0, -90.0], [0.0, 90.0], id="descending"),
            pytest.param([-90.0, 0.0, 80.0], [0.0, 90.0], id="not equispaced"),
            pytest.param([-90.0, 0.0, 90.0], [0.0, 180.0, 360.0], id="repeated longitude"),
            pytest.param([0.0, 60.0, 120.0], [0.0, 90.0], id="no latitudes"),
            pytest.param([0.0], [0.0, 90.0], id="one latitude"),
        ],
    )
    def test_coordinates_that_are_none_are_refused(self, latitudes: list[float], longitudes: list[float]) -> None:
        with pytest.raises(GridError):
            Grid.latlon(latitudes, longitudes)


WRITES: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda tensor: tensor.zero_(),
    "through a view": lambda tensor: tensor.view(-1)[1:].fill_(0),
    "through NumPy": lambda tensor: tensor.numpy().fill(0),
}


def test_grids_from_other_processes_cannot_be_changed_either() -> None:
    grid = Grid.uniform(8)
    expected = grid.points.clone()
    for tensor in grid._unmasked_tensors:
        tensor.share_memory_()
    grid.points.zero_()
    assert torch.equal(grid.points, expected)
    assert float(grid.weights.sum()) == 1.0


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", ["uniform", "scattered", "masked"])
def test_grids_cannot_be_changed_through_their_tensors(kind: str, write: str) -> None:
    mask = torch.tensor([True, False, True, True, True, True])
    grid = Grid.uniform(6, periodic=False)
    grid = {"uniform": grid, "scattered": Grid.scattered(grid.points, grid.weights), "masked": grid.masked(mask)}[kind]
    names = ("points", "weights", "observed")
    expected = {name: getattr(grid, name).clone() for name in names}
    for tensor in (mask, *(getattr(grid, name) for name in names), grid.unmasked.weights):
        WRITES[write](tensor)
    for name in names:
        assert torch.equal(getattr(grid, name), expected[name])


def test_reading_points_copies_nothing() -> None:
    points = Grid.uniform(100).points
    assert torch._C._is_cow_tensor(points)
    points.sum(0)
    assert torch._C._is_cow_tensor(points)
