"""Effective observations against spectra known in closed form."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from probneural.errors import ArgumentError, DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads import KernelOperator, Laplace, LastLayerLaplace
from probneural.heads.training_data import ResidualSums, given_per_channel, training_data
from probneural.pairs import FieldPairs
from tests.heads.cases import PERIODIC, data_for, estimate_effective_observations, fields, small_fno
from tests.helpers import generator, normal


@pytest.mark.parametrize("shape", [(32,), (4, 8)])
def test_white_noise_has_as_many_as_points(shape: tuple[int, ...]) -> None:
    count = estimate_effective_observations(normal(2000, 1, *shape), grid=Grid.uniform(shape))
    assert float(count) == pytest.approx(32, rel=0.02)


@pytest.mark.parametrize("rank", [1, 3, 6])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_fields_of_equal_directions_have_their_number(rank: int, scale: float) -> None:
    basis = torch.linalg.qr(normal(64, rank, seed=1)).Q
    residuals = scale * (normal(4000, rank) @ basis.mT)[:, None]
    assert float(estimate_effective_observations(residuals, grid=Grid.uniform(64))) == pytest.approx(rank, rel=0.02)


def test_few_fields_are_not_few_observations() -> None:
    """The plain ratio of the empirical covariance cannot exceed n; pairs of different fields are unbiased, in both traces."""
    counts = torch.stack(
        [estimate_effective_observations(normal(4, 1, 32, seed=seed), grid=Grid.uniform(32))[0] for seed in range(200)]
    )
    assert float(1.0 / (1.0 / counts).mean()) == pytest.approx(32, rel=0.2)


@pytest.mark.parametrize(
    "grid", [Grid.uniform(48), Grid.uniform(49, periodic=False), Grid.uniform((9, 10), periodic=(False, True))]
)
def test_large_samples_give_the_participation_ratio_of_the_covariance(grid: Grid) -> None:
    """Of a covariance operator discretised with the quadrature, the eigenvalues densely."""
    decay = 0.8 ** torch.arange(12, dtype=torch.float64)
    basis = normal(12, grid.size, seed=3) * decay[:, None]
    root = basis * (grid.weights / grid.volume).sqrt()
    eigenvalues = torch.linalg.eigvalsh(root.mT @ root)
    expected = float(eigenvalues.sum().square() / eigenvalues.square().sum())
    residuals = (normal(6000, 12) @ basis).unflatten(-1, grid.shape)[:, None]
    assert float(estimate_effective_observations(residuals, grid=grid)) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("periodic", [True, False])
def test_smooth_residuals_count_the_same_on_every_grid(periodic: bool) -> None:
    coarse, fine = ((32, 64) if periodic else (33, 65)), 512
    counts = [
        estimate_effective_observations(
            fields(Grid.uniform(size, periodic=periodic), 10, 2, seed=5).values, grid=Grid.uniform(size, periodic=periodic)
        )
        for size in (*coarse, fine + (not periodic))
    ]
    for count in counts[1:]:
        torch.testing.assert_close(count, counts[0], rtol=1e-10 if periodic else 1e-2, atol=0)


def test_points_of_meshes_have_no_order() -> None:
    """Residuals of rank one and of rank two on points of other places, orders and numbers in each sample, with padding."""
    grids = []
    for number, size in enumerate(torch.randint(300, 500, (200,), generator=generator(1)).tolist()):
        points = torch.rand(size, 2, generator=generator(2 + number), dtype=torch.float64)
        grids.append(Grid.scattered(points, torch.full((size,), 1.0 / size)))
    grid, counts = Grid.batch(grids), []
    x, y = grid.points.movedim(-1, 0)
    waves = torch.stack([torch.cos(math.pi * x), torch.cos(math.pi * y)], -1)
    for rank in (1, 2):
        residuals = (waves[..., :rank] * normal(200, 1, rank, seed=3)).sum(-1)[:, None]
        pairs = FieldPairs(Field(residuals, grid), Field(residuals, grid))
        data = training_data(pairs, None)
        sums = ResidualSums(data, channels=1)
        for rows in (slice(0, 90), slice(90, 200)):
            sums.add(residuals[rows], grid=grid.select(rows))
        counts.append(float(sums.effective_observations()))
    assert counts == pytest.approx([1.0, 2.0], rel=0.05)


def test_channels_count_by_themselves() -> None:
    residuals = torch.cat([normal(1000, 1, 16), normal(1000, 1, 1, seed=1).expand(-1, -1, 16)], dim=1)
    counts = estimate_effective_observations(residuals, grid=Grid.uniform(16))
    assert counts.tolist() == pytest.approx([16, 1], rel=0.05)


def test_limits() -> None:
    grid = Grid.uniform(8)
    assert estimate_effective_observations(normal(1, 2, 8), grid=grid).tolist() == [1.0, 1.0]
    assert estimate_effective_observations(torch.zeros(3, 1, 8, dtype=torch.float64), grid=grid).tolist() == [1.0]
    apart = torch.eye(8, dtype=torch.float64)[:3, None]  # nothing in common: as many as there can be
    assert estimate_effective_observations(apart, grid=grid).tolist() == [8.0]
    assert estimate_effective_observations(normal(1, 1, 8).expand(5, -1, -1), grid=grid).tolist() == pytest.approx([1.0])


def test_output_units_by_quadrature() -> None:
    grid = Grid.uniform(201, periodic=False)
    line = 3.0 + 2.0 * grid.points[:, 0]
    flat = torch.full_like(line, 0.1)
    outputs = Field(torch.stack([line, flat, flat * 1e9])[None].expand(7, -1, -1), grid)
    mean, scale = training_data(FieldPairs(outputs, outputs), None).output_units()
    assert mean.tolist() == pytest.approx([4.0, 0.1, 1e8])
    assert scale.tolist() == pytest.approx([2.0 / 12**0.5, 1.0, 1.0], rel=1e-4)


def test_settings_per_channel() -> None:
    assert given_per_channel(None, 2, name="noise") is None
    assert given_per_channel(3.0, 2, name="noise").tolist() == [3.0, 3.0]
    assert given_per_channel(torch.tensor([1.0, 2.0]), 2, name="noise").tolist() == [1.0, 2.0]


@pytest.mark.bad_input
def test_bad_settings() -> None:
    for value in (0.0, -1.0, float("inf"), torch.ones(3)):
        with pytest.raises(ArgumentError, match="noise > 0, finite|leave noise=None"):
            given_per_channel(value, 2, name="noise")


@pytest.mark.parametrize(
    "head",
    [
        LastLayerLaplace(),
        Laplace(structure="diagonal"),
        KernelOperator(),
    ],
    ids=["last layer", "diagonal", "kernel"],
)
def test_an_operator_whose_weights_are_not_finite_is_named(head: Any) -> None:
    operator = small_fno()()
    train = data_for(operator, Field(fields(PERIODIC, 6, 1, seed=3).values.float(), PERIODIC))
    with torch.no_grad():
        next(operator.parameters()).fill_(math.nan)
    with pytest.raises(DataError, match="finite outputs of the operator"):
        head.fit(operator, train)
