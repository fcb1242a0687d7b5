"""What matrix-free algorithms share, on rows as long as networks have weights."""

from __future__ import annotations

import pytest
import torch

from probneural.linear_algebra.symmetric_maps import inner, orthonormal
from tests.distributions.cases import normal


def test_long_rows_in_single_precision_are_as_long_as_their_dtype_says() -> None:
    """Norms of a plain Q of 300,000 rows are off by 70 roundings, Rayleigh quotients and so residuals by twice that."""
    rows = normal("rows", 8, 300_000).to(torch.float32)
    basis = orthonormal(rows[:5])
    both = torch.cat([basis, orthonormal(rows[5:], against=basis)])
    exact = both.to(torch.float64)
    error = exact @ exact.mT - torch.eye(8, dtype=torch.float64)
    assert error.diagonal().abs().max() < 2 * torch.finfo(torch.float32).eps
    assert error.abs().max() < 10 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("size", [1, 255, 256, 1000, 2**17 + 300])
def test_inner_products_in_single_precision_lose_less_than_a_rounding(size: int) -> None:
    """At sizes that leave a rest behind the last block, and behind the last chunk of blocks."""
    left, right = normal("left", 3, size).to(torch.float32), normal("right", 2, size).to(torch.float32)
    exact = left.to(torch.float64) @ right.to(torch.float64).mT
    scale = left.norm(dim=1)[:, None] * right.norm(dim=1)
    assert ((inner(left, right) - exact).abs() / scale).max() < torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_whose_squares_vanish_or_overflow_have_directions(dtype: torch.dtype) -> None:
    rows, limits = normal("rows", 2, 9).to(dtype), torch.finfo(dtype)
    sizes = torch.tensor([limits.tiny**0.75, limits.max**0.75], dtype=dtype)[:, None]
    torch.testing.assert_close(orthonormal(sizes * rows).square().sum(0), orthonormal(rows).square().sum(0))
