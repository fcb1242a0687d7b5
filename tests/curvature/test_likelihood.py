"""The quadrature likelihood against integrals, and its Hessian against autograd."""

from __future__ import annotations

import math

import pytest
import torch
from torch.func import hessian

from probneural.curvature.problem import QuadratureGaussian
from probneural.errors import DataError, ShapeError
from probneural.grids import Grid
from tests.curvature.cases import F64, close


@pytest.mark.parametrize("size", [16, 64])
def test_loss_is_a_mean_over_the_domain(size: int) -> None:
    """1/2 * precision * mean of sin^2 = precision / 4, whatever the grid and the length."""
    grid = Grid.uniform(size, lengths=3.0)
    values = torch.sin(2 * math.pi * grid.points[:, 0] / 3.0).expand(2, 2, size)
    likelihood = QuadratureGaussian.of(grid, torch.tensor([2.0, 10.0]))
    assert float(likelihood.loss(values, torch.zeros_like(values))) == pytest.approx(2 * (2.0 + 10.0) / 4, rel=1e-12)
    close(likelihood.losses(values, -values), torch.full((2,), 12.0, dtype=F64), 1e-12)


def test_hessian_in_outputs_is_the_weights() -> None:
    grid = Grid.uniform(5, periodic=False)
    likelihood = QuadratureGaussian.of(grid, torch.tensor([2.0, 3.0]))
    values, targets = torch.randn(2, 2, 5, dtype=F64), torch.randn(2, 2, 5, dtype=F64)
    dense = hessian(lambda f: likelihood.loss(f, targets))(values).reshape(20, 20)
    close(dense, torch.diag(likelihood.weights.expand(2, 2, 5).flatten()), 1e-12)
    assert likelihood.weights.dtype == F64
    close(likelihood.weights.sum(1), torch.tensor([2.0, 3.0], dtype=F64), 1e-12)


def test_keeps_the_values_dtype() -> None:
    likelihood = QuadratureGaussian.of(Grid.uniform(4), torch.ones(1))
    assert likelihood.loss(torch.ones(1, 1, 4), torch.zeros(1, 1, 4)).dtype == torch.float32


@pytest.mark.bad_input
def test_errors() -> None:
    likelihood = QuadratureGaussian.of(Grid.uniform(4), torch.ones(1))
    for values, targets in ((torch.ones(2, 1, 4), torch.ones(1, 1, 4)), (torch.ones(2, 4), torch.ones(2, 4))):
        with pytest.raises(ShapeError, match=r"(values|targets) of shape"):
            likelihood.loss(values, targets)
    with pytest.raises(ShapeError, match=r"precision of shape"):
        QuadratureGaussian.of(Grid.uniform(4), torch.ones(()))
    with pytest.raises(ShapeError, match=r"Float64\[Tensor, '\*n c p'\] as weights"):
        QuadratureGaussian(torch.ones(4, dtype=F64))
    with pytest.raises(ShapeError, match=r"weights \(c, p\) or \(n, c, p\)"):
        QuadratureGaussian(torch.ones(1, 1, 1, 4, dtype=F64))
    with pytest.raises(DataError, match=r"Float64\[Tensor, '\*n c p'\] as weights; got torch.float32"):
        QuadratureGaussian(torch.ones(1, 4))
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(DataError, match="finite weights >= 0"):
            QuadratureGaussian(torch.full((1, 4), bad, dtype=F64))
