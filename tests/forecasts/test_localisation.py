"""Correlations that vanish: Gaspari and Cohn's function, distances on periodic axes, positive definiteness."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from probneural.errors import ArgumentError, GridError
from probneural.forecasts.analysis import gaspari_cohn, taper
from probneural.grids import Grid
from tests.helpers import scattered


def test_it_is_the_convolution_of_a_triangle_with_itself() -> None:
    """In three dimensions, of 1 - |x| / c over a ball of radius c: at c = 1/2, by quadrature (their equation 4.6)."""

    def overlap(distance: float, count: int = 120) -> float:
        line = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        along = (2 * line - 1)[:, None] * 0.5  # the axis through both centres
        away = line[None] * 0.5  # the distance from it

        def cone(x: Tensor) -> Tensor:
            return (1 - 2 * (x.square() + away.square()).sqrt()).clamp_min(0.0)

        return float((cone(along) * cone(along - distance) * away).sum())

    whole = overlap(0.0)
    for distance in (0.0, 0.1, 0.3, 0.5, 0.6, 0.8, 1.0, 1.5):
        found = float(gaspari_cohn(torch.tensor(distance, dtype=torch.float64)))
        assert abs(found - overlap(distance) / whole) <= 1e-3


def test_it_is_smooth_where_its_pieces_meet() -> None:
    z = torch.tensor([0.5, 1.0], dtype=torch.float64)
    left, right = gaspari_cohn(z - 1e-6), gaspari_cohn(z + 1e-6)
    assert float((left - right).abs().max()) <= 1e-5
    assert float(gaspari_cohn(torch.linspace(0, 1, 50)).diff().max()) <= 0.0  # it falls


@pytest.mark.parametrize(
    "grid",
    [
        Grid.uniform(20),
        Grid.uniform(15, lengths=3.0, periodic=False),
        Grid.uniform((6, 8), lengths=(1.0, 2.0), periodic=(True, False)),
        scattered(30, 2),
    ],
)
def test_tapers_are_correlations(grid: Grid) -> None:
    found = taper(grid, 0.5)
    assert float((found - found.mT).abs().max()) == 0.0
    assert bool((found.diagonal() == 1.0).all())
    assert float(torch.linalg.eigvalsh(found)[0]) >= -1e-12


def test_distances_go_the_shorter_way_around() -> None:
    grid = Grid.uniform((10, 4), lengths=(1.0, 2.0), periodic=(True, False))
    found = taper(grid, 0.5)[0].reshape(10, 4)
    assert float((found[1:] - found[1:].flip(0)).abs().max()) <= 1e-12
    expected = float(gaspari_cohn(torch.tensor(math.hypot(0.1, 0.0) / 0.5, dtype=torch.float64)))
    assert abs(float(found[9, 0]) - expected) <= 1e-12
    assert float(found[0, 1]) == 0.0  # 2/3 away


def test_what_cannot_be_localised() -> None:
    with pytest.raises(ArgumentError, match="half of the shortest periodic axis"):
        taper(Grid.uniform((4, 4), lengths=(1.0, 3.0)), 0.6)
    taper(Grid.uniform(4, periodic=False), 5.0)
    with pytest.raises(GridError, match="from 1 to 8192 as size of a grid"):
        taper(Grid.uniform((128, 128)), 0.1)
