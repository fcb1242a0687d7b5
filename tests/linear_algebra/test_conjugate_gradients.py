"""Conjugate gradients against dense solves, and residuals against the truth."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from probneural.curvature.lanczos import top_eigenpairs
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.linear_algebra.conditioning import LowRankUpdate
from probneural.linear_algebra.conjugate_gradients import Solution, solve, solve_truncated
from tests.curvature.spectrum_cases import F64, Counted, with_eigenvalues
from tests.helpers import normal

SIZE = 60


def definite(condition: float = 1e3, *, seed: int = 0) -> Tensor:
    return with_eigenvalues(torch.logspace(0, -torch.tensor(condition).log10().item(), SIZE, dtype=F64), seed=seed)


def true_residuals(matrix: Tensor, right: Tensor, result: Solution) -> Tensor:
    right = right.to(F64)
    return (right - result.solution.to(F64) @ matrix).norm(dim=1) / right.norm(dim=1)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("count", [1, 7])
def test_dense(count: int, tolerance: float) -> None:
    matrix, right = definite(), normal(count, SIZE, seed=1)
    result = solve(Counted(matrix), right, tolerance=tolerance)
    assert result.converged
    assert bool((result.relative_residuals <= tolerance).all())
    torch.testing.assert_close(result.relative_residuals, true_residuals(matrix, right, result), rtol=1e-3, atol=1e-14)
    expected = torch.linalg.solve(matrix, right.mT).mT
    assert bool(((result.solution - expected).norm(dim=1) <= 1e3 * tolerance * expected.norm(dim=1)).all())


def test_each_row_is_as_if_alone() -> None:
    matrix, right = definite(), normal(5, SIZE, seed=1)
    right[1] = torch.linalg.eigh(matrix).eigenvectors[:, 3]  # done in one step
    right[2] *= 1e-9
    right[3] = 0.0
    together = solve(Counted(matrix), right, tolerance=1e-11)
    for index in range(5):
        alone = solve(Counted(matrix), right[index : index + 1], tolerance=1e-11)
        torch.testing.assert_close(together.solution[index], alone.solution[0], rtol=0, atol=1e-7 * float(right[index].norm()))
    assert together.solution[3].tolist() == [0.0] * SIZE
    assert float(together.relative_residuals[3]) == 0.0


def test_converged_rows_take_no_more_products() -> None:
    matrix = definite()
    right = torch.linalg.eigh(matrix).eigenvectors.mT[:10].clone()
    right[0] = normal(SIZE, seed=3)
    counted = Counted(matrix)
    result = solve(counted, right)
    assert result.iterations > 20
    assert counted.rows <= result.iterations + 2 * 10


def test_too_few_iterations_are_reported_not_raised() -> None:
    matrix, right = definite(1e6), normal(3, SIZE, seed=1)
    result = solve(Counted(matrix), right, max_iterations=12)
    assert not result.converged
    assert result.iterations <= 13
    torch.testing.assert_close(result.relative_residuals, true_residuals(matrix, right, result), rtol=1e-6, atol=0)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-5])
def test_float32(tolerance: float) -> None:
    matrix, right = definite(100.0), normal(6, SIZE, seed=1).to(torch.float32)
    result = solve(Counted(matrix), right, tolerance=tolerance)
    assert result.converged
    assert result.solution.dtype == torch.float32
    assert bool((true_residuals(matrix, right, result) <= 1.5 * tolerance).all())


def test_float32_beyond_its_reach_is_not_called_converged() -> None:
    matrix, right = definite(1e5), normal(3, SIZE, seed=1).to(torch.float32)
    result = solve(Counted(matrix), right, tolerance=1e-9)
    assert not result.converged
    assert bool((result.relative_residuals > 1e-9).all())


def test_drift_is_found_and_made_good() -> None:
    """A product that is wrong for a while, so that the recursive residual no longer is that of the solution."""
    matrix, right = definite(100.0), normal(3, SIZE, seed=1)
    calls = []

    def product(rows: Tensor) -> Tensor:
        calls.append(1)
        return rows @ matrix * (1.0 + 1e-3 * (len(calls) == 3))

    result = solve(product, right, tolerance=1e-8)
    assert result.converged
    assert bool((true_residuals(matrix, right, result) <= 1e-8).all())
    for limit in range(result.iterations // 2, result.iterations, 3):
        calls.clear()
        assert solve(product, right, tolerance=1e-8, max_iterations=limit).iterations <= limit + 1


def test_a_product_that_lies_at_the_end_is_reported() -> None:
    """Rounding to a grid of 1e-4: the recursion converges, the residual cannot."""
    matrix, right = definite(100.0), normal(3, SIZE, seed=1)

    def product(rows: Tensor) -> Tensor:
        return (rows @ matrix * 1e4).round() / 1e4

    result = solve(product, right, tolerance=1e-9)
    assert not result.converged
    truth = (right - product(result.solution)).norm(dim=1) / right.norm(dim=1)
    torch.testing.assert_close(result.relative_residuals, truth, rtol=1e-2, atol=0)


def test_low_rank_preconditioner_is_the_inverse() -> None:
    vectors = torch.linalg.qr(normal(SIZE, 5, seed=0)).Q
    values = torch.tensor([9.0, 4.0, 2.0, 1.0, 0.0], dtype=F64)
    matrix = (vectors * values) @ vectors.mT + torch.eye(SIZE, dtype=F64)
    rows = normal(3, SIZE, seed=1)
    inverse = LowRankUpdate(vectors.mT, 1.0 / (values + 1.0)).product
    torch.testing.assert_close(inverse(rows), torch.linalg.solve(matrix, rows.mT).mT)
    assert inverse(rows.to(torch.float32)).dtype == torch.float32
    assert solve(lambda x: x @ matrix, rows, preconditioner=inverse, tolerance=1e-10).iterations == 2


def test_preconditioner_saves_iterations_and_changes_nothing_else() -> None:
    curvature = with_eigenvalues(torch.logspace(5, -2, SIZE, dtype=F64))
    matrix = curvature + torch.eye(SIZE, dtype=F64)
    right = normal(4, SIZE, seed=1)
    pairs = top_eigenpairs(Counted(curvature), SIZE, rank=30)
    plain = solve(Counted(matrix), right, tolerance=1e-9)
    preconditioner = LowRankUpdate(pairs.vectors.mT, 1.0 / (pairs.values + 1.0)).product
    helped = solve(Counted(matrix), right, tolerance=1e-9, preconditioner=preconditioner)
    assert plain.converged
    assert helped.converged
    assert helped.iterations < plain.iterations / 3
    expected = torch.linalg.solve(matrix, right.mT).mT
    torch.testing.assert_close(helped.solution, expected, rtol=0, atol=1e-6)


@given(size=st.integers(1, 12), count=st.integers(1, 4), seed=st.integers(0, 99), power=st.integers(-200, 200))
def test_any_size_and_scale(size: int, count: int, seed: int, power: int) -> None:
    matrix = with_eigenvalues(torch.linspace(1.0, 2.0, size, dtype=F64), seed=seed)
    right = normal(count, size, seed=seed + 1)
    result = solve(lambda rows: rows @ matrix, right * 10.0**power, tolerance=1e-10)
    assert result.converged
    torch.testing.assert_close(result.solution / 10.0**power, torch.linalg.solve(matrix, right.mT).mT, rtol=1e-8, atol=1e-8)


def test_maps_that_are_not_positive_definite() -> None:
    right = normal(2, SIZE, seed=1)
    with pytest.raises(ArgumentError, match="positive definite map"):
        solve(Counted(with_eigenvalues(torch.linspace(1.0, -1.0, SIZE, dtype=F64))), right)
    with pytest.raises(ArgumentError, match="positive definite map"):
        solve(torch.zeros_like, right)
    with pytest.raises(ArgumentError, match="positive definite preconditioner"):
        solve(Counted(definite()), right, preconditioner=torch.neg)


def test_nan() -> None:
    right = normal(2, SIZE, seed=1)
    with pytest.raises(DataError, match="finite"):
        solve(lambda rows: rows * float("nan"), right)
    with pytest.raises(DataError, match="finite"):
        solve(Counted(definite()), right, preconditioner=lambda rows: rows / 0.0)
    right[0, 0] = float("inf")
    with pytest.raises(DataError, match="right-hand"):
        solve(Counted(definite()), right)


@pytest.mark.bad_input
def test_bad_input() -> None:
    right = normal(2, SIZE, seed=1)
    for arguments in ({"tolerance": 0.0}, {"tolerance": 2.0}, {"max_iterations": 0}, {"max_iterations": 2.5}):
        with pytest.raises(ArgumentError):
            solve(Counted(definite()), right, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ShapeError):
        solve(Counted(definite()), right[0])
    with pytest.raises(ShapeError):
        solve(lambda rows: rows[:, 1:], right)
    with pytest.raises(DataError):
        solve(Counted(definite()), right.to(torch.complex128))


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
