"""Decompositions of rows: they rebuild what they are made from, and their directions are orthonormal."""

from __future__ import annotations

import pytest
import torch

from probneural.linear_algebra.principal_components import eigenpairs, narrowed, singular_values
from tests.distributions.cases import normal


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 3, 70), (0, 2, 4), (2, 0, 4), (3, 0)])
def test_singular_values(shape: tuple[int, ...]) -> None:
    matrix = normal("matrix", *shape)
    left, values, right = singular_values(matrix)
    identity = torch.eye(min(shape[-2:]), dtype=torch.float64)
    assert torch.allclose((left * values[..., None, :]) @ right, matrix, rtol=0, atol=1e-13)
    assert torch.allclose(right @ right.mT, identity.expand(*shape[:-2], -1, -1), rtol=0, atol=1e-14)
    assert torch.allclose(left.mT @ left, identity.expand(*shape[:-2], -1, -1), rtol=0, atol=1e-14)
    assert torch.allclose(values, torch.linalg.svdvals(matrix), rtol=1e-13)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (3, 4, 2)])
def test_singular_values_where_divide_and_conquer_fails(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK's gesdd gave NaN for the second matrix of a batch, or for the only one; the others stay as they are."""
    matrix, decompose = normal("matrix", *shape), torch.linalg.svd

    def failing(*arguments: object, **settings: object) -> tuple[torch.Tensor, ...]:
        left, values, right = decompose(*arguments, **settings)
        (left if left.ndim == 2 else left[1])[:, 1] = torch.nan
        return left, values, right

    expected = singular_values(matrix)
    monkeypatch.setattr(torch.linalg, "svd", failing)
    for found, one in zip(singular_values(matrix), expected, strict=True):
        torch.testing.assert_close(found, one, rtol=0, atol=1e-13)
        if len(shape) == 3:
            assert torch.equal(found[0], one[0])


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 3, 70), (1, 1), (2, 0, 4)])
def test_eigenpairs(shape: tuple[int, ...]) -> None:
    rows = normal("rows", *shape)
    values, vectors = eigenpairs(rows @ rows.mT)
    assert torch.allclose((vectors * values[..., None, :]) @ vectors.mT, rows @ rows.mT, rtol=0, atol=1e-12)
    assert bool((values.diff(dim=-1) >= 0).all())


def test_negative_eigenvalues_of_gram_matrices_are_rounding() -> None:
    gram = torch.diag(torch.tensor([1.0, -1e-17], dtype=torch.float64))
    assert eigenpairs(gram)[0].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (6, 700), (1, 1), (2, 0)])
def test_narrowed_rows_have_the_same_gram_matrix(
    shape: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probneural.linear_algebra.principal_components._CHUNK_ELEMENTS", 100)
    rows = normal("rows", *shape).to(dtype)
    narrow = narrowed(rows)
    exact = rows.to(torch.float64)
    assert narrow.dtype == torch.float64
    assert narrow.shape == (shape[0], min(shape))
    assert torch.allclose(narrow @ narrow.mT, exact @ exact.mT, rtol=0, atol=1e-12)


def test_narrowed_rows_resolve_what_their_dtype_holds() -> None:
    """Two rows that differ by 1e-9 of themselves: squares of that are lost in a Gram matrix, not in a triangle."""
    row = normal("row", 1, 50)
    rows = torch.cat([row, row + 1e-9 * normal("difference", 1, 50)])
    smallest = torch.linalg.svdvals(narrowed(rows))[1]
    assert smallest.item() == pytest.approx(torch.linalg.svdvals(rows)[1].item(), rel=1e-5)
