"""Fields, distributions and true functions that the tests of the scores share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from probneural.distributions import DenseRoot, EmpiricalField, FieldDistribution, GaussianField
from probneural.fields import Field
from probneural.grids import Grid
from tests.helpers import normal

GRIDS = {
    "periodic": Grid.uniform((12,)),
    "interval": Grid.uniform((9,), lengths=3.0, periodic=False),
    "plane": Grid.uniform((4, 5), periodic=(True, False)),
    "scattered": Grid.scattered(
        torch.rand(7, 2, generator=torch.Generator().manual_seed(0)), [0.0, 1.0, 2.0, 1.0, 0.5, 3.0, 1.0]
    ),
}


def gaussian(grid: Grid, *, n: int = 5, c: int = 2, rank: int = 3, dtype: torch.dtype = torch.float64) -> GaussianField:
    mean, root = normal(n, c, *grid.shape, seed=0), normal(n, c, grid.size, rank, seed=1)
    return GaussianField(mean.to(dtype), DenseRoot(root.to(dtype)), latent="case", grid=grid)


def empirical(grid: Grid, *, n: int = 5, c: int = 2, members: int = 4) -> EmpiricalField:
    return EmpiricalField(normal(members, n, c, *grid.shape, seed=2), normal(members, seed=3).abs(), grid=grid)


def truth_for(u: FieldDistribution) -> Field:
    return Field(normal(*u.mean.shape, seed=9), u.grid)


Maker = Callable[..., FieldDistribution]


def shares(grid: Grid) -> Tensor:
    return grid.weights / grid.weights.sum()
