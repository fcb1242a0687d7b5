"""The transformer on points: attention as a quadrature, invariances, any query, memory, and typed errors."""

from __future__ import annotations

import math

import pytest
import torch

from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.grids import Grid
from probneural.operators import AttentionOperator
from probneural.operators.attention import AttentionBlock, attention, log_weights_of
from probneural.problems.poisson_on_shapes import triangulated_disk
from tests.curvature.cases import Sizes
from tests.helpers import generator, normal

modes = pytest.mark.parametrize("latents", [None, 7], ids=["full", "latents"])


def operator(latents: int | None = None) -> AttentionOperator:
    return AttentionOperator(1, 1, dimension=2, width=8, depth=3, heads=2, latents=latents, seed=0).double()


def points_in_box(count: int) -> Grid:
    points = torch.rand(count, 2, generator=generator("points"), dtype=torch.float64)
    return Grid.scattered(points, torch.rand(count, generator=generator("weights")) / count)


def disk(count: int, *, graded: bool = False) -> Grid:
    points, cells, _ = triangulated_disk(count, graded=graded)
    return Grid.mesh(points, cells)


def test_attention_is_a_ratio_of_integrals_on_graded_meshes() -> None:
    """Scores 2 x and values cos 3x on [0, 1]: the ratio of their integrals has a closed form; points are dense near 0."""
    a, b = 2.0, 3.0
    numerator = (math.exp(a) * (a * math.cos(b) + b * math.sin(b)) - a) / (a**2 + b**2)
    exact = numerator / ((math.exp(a) - 1.0) / a)
    errors: dict[bool, list[float]] = {True: [], False: []}
    for count in (64, 256, 1024):
        x = torch.linspace(0.0, 1.0, count, dtype=torch.float64)[:, None].square()
        grid = Grid.mesh(x, torch.stack([torch.arange(count - 1), torch.arange(1, count)], 1))
        query, key, value = torch.full((1, 1, 1, 1), a, dtype=x.dtype), x[None, None], (b * x).cos()[None, None]
        for is_weighted in (True, False):
            log_weights = log_weights_of(grid, x) if is_weighted else None
            read = float(attention(query, key=key, value=value, log_weights=log_weights))
            errors[is_weighted].append(abs(read / exact - 1.0))
    weighted, plain = errors[True], errors[False]
    assert weighted[0] < 5e-3
    assert 12.0 < weighted[0] / weighted[1] < 20.0  # second order
    assert 12.0 < weighted[1] / weighted[2] < 20.0
    assert min(plain) > 0.1


@modes
def test_permuting_splitting_and_padding_points_changes_nothing(latents: int | None) -> None:
    network, grid = operator(latents), points_in_box(30)
    values = normal(2, 1, 30, seed="values")
    expected = network(values, grid=grid)
    order = torch.randperm(30, generator=generator("order"))
    permuted = network(values[..., order], grid=Grid.scattered(grid.points[order], grid.weights[order]))
    torch.testing.assert_close(permuted, expected[..., order], rtol=1e-12, atol=1e-13)
    weights = grid.weights
    weights[4] /= 2.0
    split = Grid.scattered(torch.cat([grid.points, grid.points[4:5]]), torch.cat([weights, weights[4:5]]))
    outputs = network(torch.cat([values, values[..., 4:5]], -1), grid=split)
    torch.testing.assert_close(outputs[..., :30], expected, rtol=1e-12, atol=1e-13)
    padded = Grid.batch([grid, points_in_box(40)])
    filled = torch.cat([torch.nn.functional.pad(values[:1], (0, 10), value=9.0), normal(1, 1, 40, seed="other")])
    torch.testing.assert_close(network(filled, grid=padded)[:1, :, :30], expected[:1], rtol=1e-12, atol=1e-13)
    assert not torch.allclose(network(values, grid=Grid.scattered(grid.points, torch.ones(30))), expected, rtol=1e-3)


@modes
def test_masked_points_have_no_influence(latents: int | None) -> None:
    network = operator(latents)
    observed = torch.arange(12).reshape(3, 4) % 5 != 0
    grid, values = Grid.uniform((3, 4)), normal(2, 1, 3, 4, seed="values")
    outputs = network(values, grid=grid.masked(observed), query=grid)
    changed = network(torch.where(observed, values, 5.0), grid=grid.masked(observed), query=grid)
    torch.testing.assert_close(changed, outputs, rtol=1e-13, atol=1e-14)


@modes
def test_a_query_is_evaluated_anywhere(latents: int | None) -> None:
    coarse, fine, finest = disk(200), disk(300, graded=True), disk(6400)
    network = operator(latents)
    network.box.set(torch.full((2,), -1.25), torch.full((2,), 2.5))
    of_coarse = coarse.points.sum(1).sin()[None, None]
    with torch.no_grad():
        reference = network(finest.points.sum(1).sin()[None, None], grid=finest, query=fine)
        errors = []
        for source in (coarse, disk(800)):
            scattered = Grid.scattered(source.points, source.weights)  # no cells are needed
            moved = network(source.points.sum(1).sin()[None, None], grid=scattered, query=fine)
            errors.append(float((moved - reference).norm() / reference.std() / reference.numel() ** 0.5))
        assert errors[0] < 5e-3
        assert errors[0] / errors[1] > 3.0
        assert torch.equal(network(of_coarse, grid=coarse, query=coarse), network(of_coarse, grid=coarse))
        both = network(of_coarse.expand(2, -1, -1), grid=coarse, query=Grid.batch([coarse, fine]))
        torch.testing.assert_close(both[0, :, : coarse.size], network(of_coarse, grid=coarse)[0], rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(both[1], network(of_coarse, grid=coarse, query=fine)[0], rtol=1e-12, atol=1e-13)


@modes
def test_memory_is_linear_in_points(latents: int | None) -> None:
    """Of the largest tensor: the hidden channels of a block, at every point. Full attention forms no scores either."""
    network, largest = operator(latents).float(), []
    for count in (1000, 2000) if latents is None else (10_000, 20_000):
        with torch.no_grad(), Sizes() as sizes:
            network(torch.zeros(1, 1, count), grid=points_in_box(count))
        largest.append(max(sizes.seen) / count)
    assert largest[0] == largest[1] <= 2 * network.width


def test_an_untrained_operator_takes_any_points() -> None:
    assert (
        operator()(torch.zeros(1, 1, 10).double(), grid=Grid.scattered(3.0 * points_in_box(10).points, torch.ones(10)))
        .isfinite()
        .all()
    )


@pytest.mark.bad_input
def test_bad_inputs() -> None:
    network, grid = operator(), points_in_box(10)
    network.box.set(torch.zeros(2), torch.ones(2))
    with pytest.raises(GridError, match="a grid in 2 dimensions as grid"):
        network(torch.zeros(1, 1, 4).double(), grid=Grid.scattered([[0.0], [0.1], [0.2], [0.3]], torch.ones(4)))
    with pytest.raises(ShapeError, match="3 grids, one for each sample"):
        network(torch.zeros(3, 1, 10).double(), grid=Grid.batch([grid, grid]))
    with pytest.raises(ShapeError):
        network(torch.zeros(1, 1, 11).double(), grid=grid)
    with pytest.raises(DataError, match="float64"):
        network(torch.zeros(1, 1, 10), grid=grid)
    elsewhere = Grid.scattered(grid.points + 1.0, grid.weights)
    for source, query in ((elsewhere, grid), (grid, elsewhere)):
        with pytest.raises(GridError, match="domain of training"):
            network(torch.zeros(1, 1, 10).double(), grid=source, query=query)
    with pytest.raises(ArgumentError, match="multiple of 3"):
        AttentionBlock(8, heads=3)
    with pytest.raises(ArgumentError, match="at least 2 as depth"):
        AttentionOperator(1, 1, dimension=1, depth=1, latents=4)
