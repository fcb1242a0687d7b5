"""Band-limited noise: the same function on every grid, and its covariance in closed form."""

from __future__ import annotations

import math

import pytest
import torch

from probneural.errors import ArgumentError, GridError, ShapeError
from probneural.grids import Grid
from probneural.operators import NoiseField
from tests.helpers import generator


def test_a_draw_is_the_same_function_on_every_grid() -> None:
    for noise, coarse in (
        (NoiseField(2, modes=(3,)), Grid.uniform(8, lengths=2.0)),
        (NoiseField(1, modes=(3, 2), periodic=(True, False)), Grid.uniform((6, 5), periodic=(True, False))),
    ):
        sizes = [2 * size - int(end) for size, end in zip(coarse.shape, coarse.endpoint, strict=True)]
        drawn = torch.randn(4, noise.size, generator=generator("noise"), dtype=torch.float64)
        fine = noise.evaluate(drawn, coarse.resized(sizes))[(..., *(slice(None, None, 2) for _ in coarse.shape))]
        torch.testing.assert_close(fine, noise.evaluate(drawn, coarse), atol=1e-13, rtol=0)


def test_covariance_is_that_of_the_band() -> None:
    """B B^T for the basis B: on a periodic axis the Dirichlet kernel, sum of cos(2 pi k (x - y)) over |k| < m, / (2m - 1)."""
    noise, grid = NoiseField(modes=(4,), channels=1), Grid.uniform(9)
    basis = noise.evaluate(torch.eye(noise.size, dtype=torch.float64), grid)[:, 0]
    gaps = 2 * math.pi * (grid.points - grid.points.mT)
    expected = sum(torch.cos(k * gaps) for k in range(-3, 4)) / 7
    torch.testing.assert_close(basis.mT @ basis, expected, atol=1e-13, rtol=0)
    walls = Grid.uniform(2001, periodic=False)
    own = NoiseField(modes=(4,), channels=1, periodic=False)
    squares = own.evaluate(torch.eye(own.size, dtype=torch.float64), walls)[:, 0].square().sum(0)
    assert float(squares @ walls.mean_weights) == pytest.approx(1.0, abs=1e-6)
    assert float(squares[0]) == pytest.approx((1 + 3 * 2) / 4)


def test_constant_noise_broadcasts_on_any_grid() -> None:
    noise = NoiseField(3)
    drawn = torch.randn(2, 3, generator=generator("constant"))
    scattered = Grid.scattered([[0.1, 0.2], [0.3, 0.1]], [0.5, 0.5])
    assert torch.equal(noise.evaluate(drawn, scattered), drawn[:, :, None])
    assert noise.evaluate(drawn, Grid.uniform((4, 4))).shape == (2, 3, 1, 1)


@pytest.mark.bad_input
def test_bad_noise() -> None:
    for settings in ({"channels": 0}, {"modes": (0,)}, {"modes": (2,), "periodic": (True, False)}):
        with pytest.raises(ArgumentError):
            NoiseField(**settings)  # type: ignore[arg-type]
    noise = NoiseField(modes=(2,))
    with pytest.raises(ShapeError, match="coefficients"):
        noise.evaluate(torch.zeros(1, 3), Grid.uniform(8))
    for grid in (Grid.uniform(8, periodic=False), Grid.scattered([[0.5]], [1.0])):
        with pytest.raises(GridError, match="as the noise has it"):
            noise.evaluate(torch.zeros(1, noise.size), grid)
