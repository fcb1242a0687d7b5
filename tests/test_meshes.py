"""Meshes: quadrature, validation, batches with one mesh per sample, interpolation; and posteriors on them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import probneural as pn
from probneural.errors import ArgumentError, DataError, DataWarning, GridError, ProbneuralError, ShapeError
from probneural.functionals import boundary_integral, integral, region, sensors
from probneural.grids import Grid, resample
from probneural.grids.mesh import cell_volumes, triangulated
from probneural.grids.resampling import background, rasterised
from probneural.problems.poisson_on_shapes import triangulated_disk
from tests.helpers import normal

SQUARE = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
HALVES = [[0, 1, 2], [1, 2, 3]]
TETRAHEDRA = [[0, 1, 3, 5], [0, 2, 3, 6], [0, 4, 5, 6], [3, 5, 6, 7], [0, 3, 5, 6]]
"""Five tetrahedra of the unit cube, whose corners are numbered in binary."""


def disk(count: int, *, scale: float = 1.0) -> Grid:
    points, cells, _ = triangulated_disk(count)
    return Grid.mesh(scale * points, cells)


def cube() -> Tensor:
    return torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 3)


class TestQuadrature:
    def test_cells_give_their_points_equal_parts(self) -> None:
        grid = Grid.mesh(SQUARE, HALVES)
        assert grid.weights.tolist() == pytest.approx([1 / 6, 1 / 3, 1 / 3, 1 / 6], abs=1e-15)
        assert (grid.shape, grid.dimension, grid.is_uniform) == ((4,), 2, False)

    def test_converges_at_second_order(self) -> None:
        """The integral of e^x over the unit disk is 2 pi I_1(1)."""
        exact = 2.0 * math.pi * float(torch.special.i1(torch.ones((), dtype=torch.float64)))
        errors = [abs(float(grid.weights @ grid.points[:, 0].exp()) - exact) for grid in map(disk, (200, 800, 3200))]
        assert 3.0 < errors[0] / errors[1] < 5.5
        assert 3.0 < errors[1] / errors[2] < 5.5

    def test_volumes_in_one_two_and_three_dimensions_and_of_surfaces(self) -> None:
        assert Grid.mesh([[0.0], [0.5], [2.0]], [[0, 1], [1, 2]]).weights.tolist() == [0.25, 1.0, 0.75]
        assert Grid.mesh(cube(), TETRAHEDRA).volume == pytest.approx(1.0, abs=1e-14)
        sides = [[0, 1, 3], [0, 2, 3], [4, 5, 7], [4, 6, 7]]  # two faces of the cube
        assert Grid.mesh(cube(), sides).volume == pytest.approx(2.0, abs=1e-14)

    def test_boundary_facets_belong_to_one_cell(self) -> None:
        boundary = Grid.mesh(SQUARE, HALVES).boundary
        assert boundary.tolist() == [[0, 1], [0, 2], [1, 3], [2, 3]]
        assert len(Grid.mesh(cube(), TETRAHEDRA).boundary) == 12

    def test_scattered_points_are_triangulated_with_a_warning(self) -> None:
        with pytest.warns(DataWarning, match="convex hull"):
            grid = Grid.scattered(SQUARE)
        assert grid.volume == pytest.approx(1.0, abs=1e-14)


@pytest.mark.bad_input
class TestBadMeshes:
    @pytest.mark.parametrize(
        ("points", "cells", "message"),
        [
            (SQUARE, [[0, 1, 4]], "indices from 0 to 3"),
            (SQUARE, [[0, 1, -1]], "indices from 0 to 3"),
            (SQUARE, [[0, 1, 1]], "cells with a volume"),
            ([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]], [[0, 1, 2]], "cells with a volume"),
            (SQUARE, [[0, 1, 2], [2, 0, 1]], "each cell once"),
            (SQUARE, torch.tensor([[0.0, 1.0, 2.0]]), "cells of integers"),
            (SQUARE, [[0, 1, 2, 3]], "simplices of 2 to 3 points"),
            (SQUARE, [[0], [1]], "simplices of 2 to 3 points"),
            (SQUARE, torch.zeros(0, 3, dtype=torch.int64), "simplices of 2 to 3 points"),
            ([[0.0, math.nan], [1.0, 0.0], [0.0, 1.0]], [[0, 1, 2]], "finite points"),
            (torch.zeros(0, 2), [[0, 1, 2]], r"points of shape \(p, d\)"),
        ],
    )
    def test_are_refused(self, points: object, cells: object, message: str) -> None:
        with pytest.raises(ProbneuralError, match=message):
            Grid.mesh(points, cells)  # type: ignore[arg-type]

    @pytest.mark.parametrize("points", [[[0.0, 0.0]], [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]], [*SQUARE, SQUARE[0]]])
    def test_points_without_a_triangulation(self, points: list[list[float]]) -> None:
        with pytest.raises(DataError):
            Grid.scattered(points)

    def test_batches_of_different_kinds(self) -> None:
        for other in (Grid.uniform((4, 4)), Grid.mesh(cube(), TETRAHEDRA), Grid.scattered(SQUARE, torch.ones(4))):
            with pytest.raises(GridError, match="of one dimension and kind"):
                Grid.batch([Grid.mesh(SQUARE, HALVES), other])
        with pytest.raises(GridError, match="none"):
            Grid.batch([])

    def test_masks_of_a_batch(self) -> None:
        with pytest.raises(GridError, match="points per sample without a mask"):
            Grid.batch([disk(40), disk(50)]).masked(torch.ones(2, 50, dtype=torch.bool))

    def test_pairs_that_do_not_fit(self) -> None:
        points, cells = [torch.tensor(SQUARE)] * 2, [torch.tensor(HALVES)] * 2
        values = [torch.ones(1, 4)] * 2
        with pytest.raises(ArgumentError, match="cells or weights"):
            pn.FieldPairs.from_meshes(points=points, inputs=values, outputs=values, cells=cells, weights=[torch.ones(4)] * 2)
        with pytest.raises(ShapeError, match="2 entries of outputs"):
            pn.FieldPairs.from_meshes(points=points, inputs=values, outputs=values[:1], cells=cells)
        with pytest.raises(ShapeError, match="inputs of sample 1"):
            pn.FieldPairs.from_meshes(points=points, inputs=[values[0], torch.ones(1, 3)], outputs=values, cells=cells)
        with pytest.raises(DataError, match="inputs of sample 0"):
            pn.FieldPairs.from_meshes(points=points, inputs=[math.nan * values[0], values[0]], outputs=values, cells=cells)


class TestBatches:
    def test_padding_has_no_weight(self) -> None:
        small, large = disk(40), disk(60, scale=2.0)
        grid = Grid.batch([small, large])
        assert (grid.shape, tuple(grid.points.shape)) == ((60,), (2, 60, 2))
        assert torch.equal(grid.weights[0, 40:], torch.zeros(20, dtype=torch.float64))
        field = pn.Field(normal(2, 1, 60, seed="padded"), grid)
        alone = pn.Field(field.values[:1, :, :40], small)
        torch.testing.assert_close(field.mean_square()[:1], alone.mean_square(), rtol=1e-14, atol=0)
        torch.testing.assert_close(field.norm()[:1], alone.norm(), rtol=1e-14, atol=0)
        assert grid.select(slice(0, 1)).first == small

    def test_fields_slice_and_join_with_their_grids(self) -> None:
        grid = Grid.batch([disk(40), disk(60), disk(50)])
        field = pn.Field(normal(3, 2, 60, seed="sliced"), grid)
        joined = pn.Field.cat([field[2:], field[:2]])
        assert joined.grid == Grid.batch([grid.select(slice(2, 3)), grid.select(slice(0, 2))])
        for row, source in enumerate((2, 0, 1)):
            count = grid.singles()[source].size
            assert torch.equal(joined.values[row, :, :count], field.values[source, :, :count])
        assert pn.Field.cat([field[:1], field[:1]]).values.shape[2] == 40
        shared = pn.Field(normal(2, 2, 45, seed="shared"), disk(45))
        for parts in ([field[:1], shared], [shared, field[:1]]):
            mixed = pn.Field.cat(parts)
            assert len(mixed.grid.weights) == len(mixed) == 3

    def test_equality_sees_cells(self) -> None:
        assert Grid.mesh(SQUARE, HALVES) != Grid.mesh(SQUARE, [[0, 1, 3], [0, 2, 3]])
        weights = Grid.mesh(SQUARE, HALVES).weights
        assert Grid.mesh(SQUARE, HALVES) != Grid.scattered(SQUARE, weights)


class TestInterpolation:
    def test_is_exact_for_linear_functions(self) -> None:
        coarse, fine = disk(60), disk(400)
        values = coarse.points.sum(1)[None, None]
        torch.testing.assert_close(resample(values, coarse, fine), fine.points.sum(1)[None, None], rtol=0, atol=1e-13)
        both = Grid.batch([coarse, disk(80)])
        linear = both.points.sum(-1)[:, None]
        moved = resample(linear, both, fine)
        torch.testing.assert_close(moved, fine.points.sum(1).expand(2, 1, -1), rtol=0, atol=1e-13)

    def test_sensors_read_it(self) -> None:
        grid = disk(100)
        probe = sensors(grid, [[0.1, -0.2], [0.0, 0.3]])
        torch.testing.assert_close(
            probe(grid.points.mT), torch.tensor([[0.1, 0.0], [-0.2, 0.3]], dtype=torch.float64), rtol=0, atol=1e-14
        )
        with pytest.raises(GridError, match="inside the mesh"):
            sensors(grid, [[2.0, 0.0]])

    def test_in_three_dimensions(self) -> None:
        grid = Grid.mesh(cube(), TETRAHEDRA)
        probe = sensors(grid, [[0.2, 0.3, 0.4]])
        torch.testing.assert_close(
            probe(grid.points.mT)[:, 0], torch.tensor([0.2, 0.3, 0.4], dtype=torch.float64), rtol=0, atol=1e-14
        )


class TestFunctionals:
    def test_of_one_mesh_per_sample(self) -> None:
        grids = [disk(40), disk(60, scale=2.0)]
        grid = Grid.batch(grids)
        values = normal(2, 1, 60, seed="functional")
        for make in (integral, lambda where: region(where, lower=[0.0, 0.0])):
            functional = make(grid)
            expected = torch.stack([make(one)(values[i, :, : one.size]) for i, one in enumerate(grids)])
            torch.testing.assert_close(functional(values), expected, rtol=1e-13, atol=1e-13)
            numbers = normal(2, 1, 1, seed="numbers")
            left, right = (functional(values) * numbers).sum(), (values * functional.adjoint(numbers)).sum()
            torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def mapping(count: int, *, resolution: int, seed: int) -> pn.FieldPairs:
    return pn.problems.PoissonOnShapes().sample(count, resolution=resolution, seed=seed)


OPERATORS = {
    "PointFNO": lambda: pn.operators.PointFNO(1, 1, modes=(4, 4), width=12, depth=2, seed=0),
    "attention": lambda: pn.operators.AttentionOperator(1, 1, dimension=2, width=12, depth=3, latents=8, seed=0),
}


@pytest.fixture(scope="module", params=[*OPERATORS, "laplace"])
def predictor(request: pytest.FixtureRequest) -> pn.distributions.Predictor:
    operator = OPERATORS.get(request.param, OPERATORS["PointFNO"])()
    train = mapping(40, resolution=100, seed=0)
    pn.fit(operator, train, epochs=4, seed=0, show_progress=False)
    laplace = pn.heads.Laplace("full", parameters=["projection"], show_progress=False)
    head = laplace if request.param == "laplace" else pn.heads.LastLayerLaplace()
    return pn.calibration.VarianceScale().fit(head.fit(operator, train), mapping(40, resolution=100, seed=1))


class TestRasters:
    """Fields of meshes on a uniform grid."""

    def test_linear_inside_zero_outside_and_a_mask(self) -> None:
        mesh = Grid.mesh(SQUARE, HALVES)
        grid = background(Grid.batch([mesh, mesh]), size=100, margin=0.5)
        x, y = grid.points.T
        raster = rasterised(
            (1.0 + mesh.points[:, 0] - 2.0 * mesh.points[:, 1]).expand(2, 1, -1), Grid.batch([mesh, mesh]), grid
        )
        inside = ((x >= 0) & (x <= 1) & (y >= 0) & (y <= 1)).double()
        assert 0.1 < float(inside.mean()) < 0.5
        torch.testing.assert_close(raster.flatten(2), torch.stack([(1.0 + x - 2.0 * y) * inside, inside]).expand(2, -1, -1))


class TestPosteriors:
    """On one mesh per sample; each sample alone, on its own mesh without padding, is the reference."""

    @pytest.fixture
    def pairs(self) -> pn.FieldPairs:
        parts = [mapping(2, resolution=size, seed=size) for size in (80, 120)]
        inputs, outputs = (pn.Field.cat([getattr(part, side) for part in parts]) for side in ("inputs", "outputs"))
        return pn.FieldPairs(inputs, outputs)

    def test_samples_alone_give_the_same_field(self, predictor: pn.distributions.Predictor, pairs: pn.FieldPairs) -> None:
        u = predictor(pairs.inputs)
        draws = u.draw([3, 4])
        total = integral(u.grid)
        for row in range(len(pairs)):
            single = pairs[row]
            grid = single.inputs.grid.first
            alone = predictor(pn.Field(single.inputs.values[..., : grid.size], grid))
            for name in ("mean", "variance"):
                values = getattr(u, name)[row : row + 1, :, : grid.size]
                torch.testing.assert_close(values, getattr(alone, name), rtol=2e-4, atol=1e-7)
            torch.testing.assert_close(draws[:, row : row + 1, :, : grid.size], alone.draw([3, 4]), rtol=1e-3, atol=1e-5)
            of_sample = alone.apply(integral(grid))
            torch.testing.assert_close(u.apply(total).mean[row : row + 1], of_sample.mean, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(u.apply(total).variance[row : row + 1], of_sample.variance, rtol=1e-3, atol=1e-9)

    def test_scores_leave_padding_out(self, predictor: pn.distributions.Predictor, pairs: pn.FieldPairs) -> None:
        score = pn.metrics.score(predictor(pairs.inputs), pairs.outputs, noise=predictor.noise)
        alone = []
        for row in range(len(pairs)):
            single, grid = pairs[row], pairs[row].inputs.grid.first
            inputs, truth = (pn.Field(side.values[..., : grid.size], grid) for side in (single.inputs, single.outputs))
            alone.append(pn.metrics.score(predictor(inputs), truth, noise=predictor.noise))
        for name in ("crps", "nll", "chi2", "coverage", "joint_nll"):
            assert getattr(score, name) == pytest.approx(sum(getattr(one, name) for one in alone) / len(alone), rel=1e-3)

    @pytest.mark.parametrize("is_calibrated", [False, True])
    def test_densities_leave_padding_out(
        self, predictor: pn.distributions.Predictor, pairs: pn.FieldPairs, is_calibrated: bool
    ) -> None:
        head = predictor if is_calibrated else predictor.inner
        density = head(pairs.inputs).log_prob(pairs.outputs.values, noise=1e-3)
        for row in range(len(pairs)):
            grid = pairs[row].inputs.grid.first
            inputs, values = pairs[row].inputs.values[..., : grid.size], pairs[row].outputs.values[..., : grid.size]
            alone = head(pn.Field(inputs, grid)).log_prob(values, noise=1e-3)
            assert float(density[row]) == pytest.approx(float(alone), rel=1e-3)

    @pytest.mark.parametrize("predictor", OPERATORS, indirect=True)
    def test_calibration_on_meshes_of_many_points(self, predictor: pn.distributions.Predictor) -> None:
        """More points than likelihoods are taken at."""
        scaled = pn.calibration.VarianceScale().fit(predictor.inner, mapping(12, resolution=1200, seed=5))
        test = mapping(12, resolution=1200, seed=6)
        chi2 = pn.metrics.score(scaled(test.inputs), test.outputs, noise=scaled.noise, whole=1).chi2
        assert chi2 is not None
        assert 0.3 < chi2 < 3.0

    def test_joint_covariance_against_a_dense_reference(self, predictor: pn.distributions.Predictor) -> None:
        """Root and discrepancy of 20 points, formed from the parts."""
        inputs = mapping(2, resolution=20, seed=9).inputs
        u = predictor(inputs)
        assert isinstance(u, pn.distributions.GaussianField)
        assert u.discrepancy is not None
        root = torch.cat([u.root.dense(), u.discrepancy.dense()], -1).double().flatten(1, 2)
        dense = root @ root.mT
        torch.testing.assert_close(u.variance.double().flatten(1), dense.diagonal(dim1=1, dim2=2), rtol=1e-5, atol=1e-12)
        weights = u.grid.weights
        expected = torch.einsum("np,npq,nq->n", weights, dense, weights)
        torch.testing.assert_close(u.apply(integral(u.grid)).variance.double().flatten(), expected, rtol=1e-4, atol=1e-12)

    def test_constraints_and_conditioning(self, predictor: pn.distributions.Predictor, pairs: pn.FieldPairs) -> None:
        u = predictor(pairs.inputs)
        total = integral(u.grid)
        truth = total(pairs.outputs.values)
        torch.testing.assert_close(total(u.constrain(total, truth).mean), truth, rtol=0, atol=1e-5)
        assert bool((u.condition(total, truth, noise=1e-6).variance <= u.variance * 1.001).all())

    def test_bands_hold_their_level_on_other_meshes(self, predictor: pn.distributions.Predictor) -> None:
        band = pn.calibration.SimultaneousBand(level=0.8).fit(predictor, mapping(99, resolution=100, seed=3))
        test = mapping(150, resolution=100, seed=4)
        assert 0.68 <= band.coverage(test) <= 0.92

    def test_files(self, predictor: pn.distributions.Predictor, pairs: pn.FieldPairs, tmp_path) -> None:  # type: ignore[no-untyped-def]
        pn.save(predictor, tmp_path / "predictor.safetensors")
        loaded = pn.load(tmp_path / "predictor.safetensors")
        assert torch.equal(loaded(pairs.inputs).variance, predictor(pairs.inputs).variance)

    def test_plots_show_the_mesh_of_the_sample(self, predictor: pn.distributions.Predictor, pairs: pn.FieldPairs) -> None:
        figure = pn.plots.field(predictor(pairs.inputs), pairs.outputs, index=0)
        meshes = [part for axes in figure.axes for part in axes.collections if type(part).__name__ == "TriMesh"]
        assert len(meshes) == 5
        assert all(len(part.get_array()) == 80 for part in meshes)
        bands = pn.calibration.SimultaneousBand(level=0.8).fit(predictor, mapping(20, resolution=60, seed=3))
        assert pn.plots.band(bands(pairs.inputs), pairs.outputs, index=1).axes

    def test_queries_are_divided_with_their_samples(
        self, predictor: pn.distributions.Predictor, pairs: pn.FieldPairs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        query = mapping(4, resolution=90, seed=1).inputs.grid
        whole = predictor(pairs.inputs, query)
        monkeypatch.setattr("probneural.heads.last_layer.laplace._BATCH_ELEMENTS", 1)
        monkeypatch.setattr("probneural.distributions.predictors.base._DRAWN_VALUES", 1)
        parts = predictor(pairs.inputs, query)
        torch.testing.assert_close(parts.mean, whole.mean, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(
            predictor.evaluate_draws(pairs.inputs, query, seeds=[3]), whole.draw([3]), rtol=1e-3, atol=1e-5
        )

    @pytest.mark.parametrize("predictor", OPERATORS, indirect=True)
    def test_novelty_of_inputs_and_shapes(self, predictor: pn.distributions.Predictor, pairs: pn.FieldPairs) -> None:
        calibrated = pn.calibration.calibrate(predictor.inner, mapping(60, resolution=80, seed=3))
        novelty = calibrated.novelty
        alone = [
            novelty.scores(pn.Field(pair.values[..., : pair.grid.first.size], pair.grid.first))
            for pair in (pairs.inputs[row : row + 1] for row in range(len(pairs)))
        ]
        for name, scores in novelty.scores(pairs.inputs).items():
            torch.testing.assert_close(scores, torch.cat([one[name] for one in alone]), rtol=1e-3, atol=1e-6)
        test = mapping(60, resolution=200, seed=4).inputs
        ordinary = novelty(test)
        assert float((ordinary <= 0.2).double().mean()) < 0.4  # nominal .2
        shrunk = pn.Field(test.values, Grid.batch([Grid.mesh(0.4 * mesh.points, mesh.cells) for mesh in test.grid.singles()]))
        for strange in (pn.Field(10.0 * test.values, test.grid), shrunk):
            assert float((novelty(strange) <= 0.05).double().mean()) > 0.5

    def test_what_needs_one_mesh_for_all_samples_says_so(self, predictor: pn.distributions.Predictor) -> None:
        train = mapping(30, resolution=60, seed=0)
        for refused in (
            lambda: pn.heads.KernelOperator().fit(None, train),
            lambda: pn.operators.LinearRegression.fitted(train),
            lambda: pn.fit(pn.operators.FNO(1, 1, modes=(3,)), train, epochs=1),
            lambda: pn.functionals.maximum(train.inputs.grid),
        ):
            with pytest.raises(GridError):
                refused()


def ball(count: int) -> Grid:
    """Tetrahedra of the unit ball between shells of points."""
    shells = [
        pn.problems.SphereHeat.grid(size).points * radius
        for size, radius in ((count, 1.0), (count // 3, 0.6), (count // 10, 0.25))
    ]
    points = torch.cat(shells)
    cells = triangulated(points)
    return Grid.mesh(points, cells[cell_volumes(points, cells) > 1e-6])


def harmonic(count: int, *, grid: Grid, seed: int) -> pn.FieldPairs:
    """From boundary values of random harmonic polynomials of degree 2 to the polynomials: -Δu = 0 in the ball."""
    x, y, z = grid.points.mT
    polynomials = torch.stack([torch.ones_like(x), x, y, z, x * y, y * z, z * x, x**2 - y**2, 2.0 * z**2 - x**2 - y**2])
    u = (normal(count, 9, seed=seed) @ polynomials)[:, None]
    on_boundary = torch.zeros(grid.size, dtype=torch.float64)
    on_boundary[grid.boundary.flatten()] = 1.0
    return pn.FieldPairs(pn.Field((u * on_boundary).float(), grid), pn.Field(u.float(), grid))


def test_three_dimensions_end_to_end() -> None:
    """Train on one mesh of a ball, predict on a finer one, and integrate over the ball and its surface, with intervals."""
    coarse, fine = ball(100), ball(250)
    operator = pn.operators.PointFNO(in_channels=1, out_channels=1, modes=(2, 2, 2), width=16, depth=2, seed=0)
    train, test = harmonic(200, grid=coarse, seed=0), harmonic(60, grid=fine, seed=2)
    pn.fit(operator, train, epochs=12, seed=0, show_progress=False)
    predictor = pn.heads.LastLayerLaplace().fit(operator, train)
    predictor = pn.calibration.VarianceScale().fit(predictor, harmonic(60, grid=fine, seed=1))
    u = predictor(test.inputs)
    score = pn.metrics.score(u, test.outputs, noise=predictor.noise)
    assert score.relative_l2 < 0.4
    assert 0.84 < score.coverage < 0.96
    # the mean of a harmonic function over a ball, and over its surface, is that at the centre
    for functional, measure in ((integral(fine), 4.0 / 3.0 * math.pi), (boundary_integral(fine), 4.0 * math.pi)):
        truth = functional(test.outputs.values.double())
        centre = sensors(fine, [[0.0, 0.0, 0.0]])(test.outputs.values.double())
        assert float((truth / measure - centre).square().mean().sqrt()) < 0.06 * float(centre.std())
        inside = u.apply(functional).interval(0.9).contains(truth).double().mean()
        assert float(inside) >= 0.7
