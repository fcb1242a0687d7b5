"""What matrix-free algorithms share, on rows as long as networks have weights."""

from __future__ import annotations

import torch

from probneural.linear_algebra.symmetric_maps import inner, orthonormal
from tests.distributions.cases import normal


def test_long_rows_in_single_precision_are_as_long_as_their_dtype_says() -> None:
    """Norms of a plain Q of 300,000 rows are off by 70 roundings, Rayleigh quotients and so residuals by twice that."""
    rows = normal("rows", 8, 300_000).to(torch.float32)
    basis = orthonormal(rows[:5])
    both = torch.cat([basis, orthonormal(rows[5:], against=basis)])
    error = inner(both, both) - torch.eye(8, dtype=torch.float64)
    assert error.diagonal().abs().max() < 2 * torch.finfo(torch.float32).eps
    assert error.abs().max() < 10 * torch.finfo(torch.float32).eps
