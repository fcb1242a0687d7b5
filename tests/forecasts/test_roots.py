"""The root of a forecast does what the dense root of the same entries does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from probneural.distributions import DenseRoot
from probneural.forecasts.roots import PropagatedRoot
from probneural.functionals import MatrixFunctional
from probneural.grids import Grid
from probneural.linear_algebra.conditioning import LowRankUpdate
from tests.helpers import normal

N, C, P = 3, 2, 4


def orthonormal(*shape: int, seed: str) -> Tensor:
    return torch.linalg.qr(normal(*shape, seed=seed).mT).Q.mT.contiguous()


def root_of(kind: str) -> PropagatedRoot:
    columns, own = normal(N, C, P, 3, seed="columns"), normal(N, C, P, 2, seed="own")
    positions = torch.tensor([4, 0, 1])  # of five functions
    if kind == "identity":
        return PropagatedRoot(columns, None, own, None, positions, functions=5)
    rows, own_rows = orthonormal(3, 6, seed="rows"), orthonormal(N, 2, 3, seed="own rows")
    return PropagatedRoot(columns, rows, own, own_rows, positions, functions=5)


def close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= 1e-13)


@pytest.mark.parametrize("kind", ["identity", "rows"])
def test_it_is_the_dense_root(kind: str) -> None:
    root = root_of(kind)
    dense = DenseRoot(root.dense())
    _, _, _, rank = root.shape
    latents, each, values = normal(7, rank), normal(N, rank, seed=1), normal(6, N, C, P, seed=2)
    assert root.shape == dense.shape
    assert close(root.product(latents), dense.product(latents))
    assert close(root.product_each(each), dense.product_each(each))
    assert close(root.transposed_product(values), dense.transposed_product(values))
    assert close(root.pull(normal(N, 5, C, P)), dense.pull(normal(N, 5, C, P)))
    assert close(root.row_squares(), dense.row_squares())
    assert close(root.gram(), dense.gram())
    assert close(root.scale(torch.tensor([2.0, 3.0])).dense(), dense.scale(torch.tensor([2.0, 3.0])).dense())
    functional = MatrixFunctional(Grid.uniform(P), normal(2, P, seed=3))
    assert close(root.push(functional).dense(), dense.push(functional).dense())
    index = torch.tensor([2, 0])
    assert close(root.select(index).dense(), dense.select(index).dense())
    assert close(root.select(slice(1, 3)).product(latents), dense.select(slice(1, 3)).product(latents))
    one = root.marginal(1).dense().flatten(1, 2)
    assert close(one @ one.mT, dense.select(slice(1, 2)).gram())
    update = LowRankUpdate(orthonormal(2, rank, seed="directions"), torch.tensor([0.5, 0.0], dtype=torch.float64))
    assert close(root.compose(update).dense(), dense.compose(update).dense())


@pytest.mark.parametrize("kind", ["identity", "rows"])
def test_shared_and_own_dimensions_are_where_they_should_be(kind: str) -> None:
    """The shared dimensions come first, then those of each of the five functions; a function has none of another's."""
    root = root_of(kind)
    shared, own = root.formed()
    dense, k, r = root.dense(), root.rank, root.own_rank
    assert close(dense[..., :k], shared)
    for row, position in enumerate(root.positions.tolist()):
        for other in range(5):
            block = dense[row, ..., k + other * r : k + (other + 1) * r]
            assert close(block, own[row] if other == position else torch.zeros_like(block))
