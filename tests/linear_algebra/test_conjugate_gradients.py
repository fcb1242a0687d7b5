"""Truncated conjugate gradients against dense solves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from probneural.linear_algebra.conjugate_gradients import solve_truncated
from tests.curvature.spectrum_cases import F64, Counted, with_eigenvalues
from tests.helpers import normal

SIZE = 60


def definite(condition: float = 1e3, *, seed: int = 0) -> Tensor:
    return with_eigenvalues(torch.logspace(0, -torch.tensor(condition).log10().item(), SIZE, dtype=F64), seed=seed)


class TestTruncated:
    """Each row has a map of its own, `(s, P, P)`."""

    @pytest.mark.parametrize("tolerance", [1e-2, 1e-10])
    def test_dense(self, tolerance: float) -> None:
        maps = torch.stack([definite(seed=seed) for seed in range(3)])
        right, shift = normal(3, SIZE, seed=1), torch.tensor([0.0, 0.1, 10.0], dtype=F64)
        result, image = solve_truncated(
            lambda rows: (maps @ rows[..., None])[..., 0], right, shift=shift, tolerance=tolerance, max_iterations=500
        )
        torch.testing.assert_close(image, (maps @ result[..., None])[..., 0], rtol=0, atol=1e-10)
        missed = (image + shift[:, None] * result - right).norm(dim=1)
        assert bool((missed <= 1.001 * tolerance * right.norm(dim=1)).all())
        assert bool((missed > 1e-4 * tolerance * right.norm(dim=1)).all())  # and no further than that

    def test_stops_at_negative_curvature(self) -> None:
        maps = torch.tensor([[2.0, 2.0], [-1.0, -1.0], [1.0, -3.0]], dtype=F64)
        right = torch.ones(3, 2, dtype=F64)
        result, image = solve_truncated(lambda rows: maps * rows, right, tolerance=1e-9, max_iterations=9)
        assert result.tolist() == [[0.5, 0.5], [0.0, 0.0], [0.0, 0.0]]
        assert image.tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]

    def test_tolerances_and_zeros_of_each_row(self) -> None:
        matrix, right = definite(), normal(3, SIZE, seed=1)
        right[2] = 0.0
        tolerance = torch.tensor([1e-1, 1e-8, 1e-8], dtype=F64)
        result, image = solve_truncated(Counted(matrix), right, tolerance=tolerance, max_iterations=500)
        missed = (image - right).norm(dim=1) / right.norm(dim=1)
        assert 1e-3 < float(missed[0]) <= 1e-1
        assert float(missed[1]) <= 1e-8
        assert not result[2].any()

    def test_products_are_bounded(self) -> None:
        counted = Counted(definite(1e6))
        solve_truncated(counted, normal(1, SIZE, seed=1), tolerance=1e-12, max_iterations=7)
        assert counted.rows == 7
