"""Residuals of predictions against a closed form."""

from __future__ import annotations

import torch

from probneural.distributions import DenseRoot, GaussianField
from probneural.grids import Grid
from probneural.metrics import residual
from probneural.physics import Residual, equations

GRID = Grid.uniform((16,), periodic=False)


def test_scores_are_root_mean_squares_of_mean_and_draws() -> None:
    """u = a x (1 - x) has -u'' = 2 a: with f = 2 the residual is 2 (a - 1)."""
    x = GRID.points.T[None]
    parabola = x * (1.0 - x)
    u = GaussianField(
        torch.cat([parabola, 3.0 * parabola]), DenseRoot(parabola[..., None].expand(2, -1, -1, 1)), latent="a", grid=GRID
    )
    result = residual(u, Residual(equations.Poisson(2.0)), draws=3)
    torch.testing.assert_close(result.mean, torch.tensor([0.0, 4.0], dtype=torch.float64), rtol=0, atol=1e-8)
    sizes = u.draw(range(3))[:, :, 0, 1] / parabola[0, 0, 1]
    torch.testing.assert_close(result.draws, 2.0 * (sizes - 1.0).abs(), rtol=0, atol=1e-8)
