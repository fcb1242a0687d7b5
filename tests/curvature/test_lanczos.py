"""Largest eigenpairs against dense eigendecompositions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from probneural.curvature import lanczos
from probneural.curvature.lanczos import Eigenpairs, top_eigenpairs
from probneural.errors import ArgumentError, DataError, ShapeError
from tests.curvature.spectrum_cases import F64, Counted, rotation, spectra, with_eigenvalues
from tests.helpers import normal

SPECTRA = spectra()


def check(pairs: Eigenpairs, matrix: Tensor, *, tolerance: float = 1e-4) -> None:
    """What must hold of any result: true eigenvalues from the top, orthonormal vectors, honest residuals."""
    eps = torch.finfo(pairs.vectors.dtype).eps
    count = len(pairs.values)
    truth = torch.linalg.eigvalsh(matrix).flip(0)
    scale = float(truth[0].clamp_min(0.0))
    vectors = pairs.vectors.to(F64)
    assert pairs.vectors.shape == (len(matrix), count)
    assert pairs.values.dtype == F64
    assert bool((pairs.values > 0).all())
    assert bool((pairs.values.diff() <= 1e-12 * scale).all())
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(count, dtype=F64), rtol=0, atol=50 * eps)
    bound = torch.clamp(tolerance * truth[:count], min=50 * eps * scale)
    assert bool((pairs.residuals <= bound).all())
    assert bool(((pairs.values - truth[:count]).abs() <= bound).all())
    residuals = (matrix @ vectors - vectors * pairs.values).norm(dim=0)
    torch.testing.assert_close(residuals, pairs.residuals, rtol=1e-2, atol=20 * eps * scale)
    left = float(truth[count]) if count < len(truth) else 0.0
    if left > 100 * eps * scale:
        assert left * 0.98 <= pairs.next_value <= left * 1.12
    else:
        assert 0.0 <= pairs.next_value <= 100 * eps * scale


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("rank", [1, pytest.param(10, marks=pytest.mark.slow), 30, pytest.param(120, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SPECTRA)
def test_rank(name: str, rank: int, dtype: torch.dtype) -> None:
    matrix = with_eigenvalues(SPECTRA[name])
    counted = Counted(matrix)
    pairs = top_eigenpairs(counted, 120, rank=rank, like=torch.zeros((), dtype=dtype))
    check(pairs, matrix)
    assert pairs.is_converged
    assert pairs.vectors.dtype == dtype
    assert pairs.products == counted.rows
    visible = int((SPECTRA[name] > 100 * torch.finfo(dtype).eps * SPECTRA[name].max()).sum())
    assert min(rank, visible) <= len(pairs.values) <= rank


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_rounding_is_not_a_next_value(dtype: torch.dtype, seed: int) -> None:
    matrix = with_eigenvalues(SPECTRA["low rank"], seed=seed)
    pairs = top_eigenpairs(Counted(matrix), 120, rank=10, like=torch.zeros((), dtype=dtype), seed=seed)
    assert len(pairs.values) == 10
    assert pairs.next_value == 0.0


@pytest.mark.parametrize("size", [30, 500])
def test_a_noisy_product_ends_unconverged(size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = with_eigenvalues(torch.linspace(1.0, 0.0, size, dtype=F64))
    counted = Counted(matrix)

    def product(rows: Tensor) -> Tensor:
        return counted(rows) + 1e-6 * torch.randn(rows.shape, generator=generator, dtype=F64)

    pairs = top_eigenpairs(product, size, rank=3, tolerance=1e-10)
    assert not pairs.is_converged
    assert counted.rows <= 400
    torch.testing.assert_close(pairs.values, torch.linalg.eigvalsh(matrix).flip(0)[:3], rtol=0, atol=1e-4)


def test_multiplicities_up_to_the_block_are_found() -> None:
    values = torch.cat([torch.full((8,), 2.0), torch.linspace(1.9, 0.0, 292)]).to(F64)
    pairs = top_eigenpairs(Counted(with_eigenvalues(values)), 300, rank=8)
    torch.testing.assert_close(pairs.values, values[:8], rtol=1e-6, atol=0)
    assert pairs.next_value < 1.91


def test_restarts_reach_the_same_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = with_eigenvalues(torch.arange(1, 401, dtype=F64).flip(0) ** 0.5)
    monkeypatch.setattr(lanczos, "_BLOCK", 4)
    grown = top_eigenpairs(Counted(matrix), 400, rank=5)
    monkeypatch.setattr(lanczos, "_ROOM", 0)
    longest = []
    original = lanczos._Search.extend

    def watched(self: lanczos._Search, fresh: Tensor) -> float:
        largest = original(self, fresh)
        longest.append(self.count)
        return largest

    monkeypatch.setattr(lanczos._Search, "extend", watched)
    restarted = top_eigenpairs(Counted(matrix), 400, rank=5)
    check(restarted, matrix)
    assert max(longest) <= 53 < grown.products
    assert restarted.products > max(longest)
    torch.testing.assert_close(restarted.values, grown.values, rtol=1e-7, atol=0)


@pytest.mark.parametrize("seed", range(8))
def test_a_start_that_misses_a_direction(seed: int) -> None:
    """Exact pairs of a start converge at once, which must not end the search; in eight random vectors 10 shows as about 1."""
    basis = rotation(100)
    values = torch.cat([torch.tensor([10.0]), torch.ones(20), torch.zeros(79)]).to(F64)
    matrix = (basis * values) @ basis.mT
    check(top_eigenpairs(Counted(matrix), 100, rank=5, start=basis[:, 1:15], seed=seed), matrix)


def test_too_few_products_are_reported() -> None:
    matrix = with_eigenvalues(torch.linspace(1.0, 2.0, 400, dtype=F64))
    counted = Counted(matrix)
    pairs = top_eigenpairs(counted, 400, rank=10, max_products=40)
    assert not pairs.is_converged
    assert counted.rows <= 40
    assert len(pairs.values) == 10
    vectors = pairs.vectors
    torch.testing.assert_close((matrix @ vectors - vectors * pairs.values).norm(dim=0), pairs.residuals)
    assert float(pairs.residuals.max()) > 1e-3


@given(
    size=st.integers(1, 30),
    rank=st.integers(1, 30),
    nonzero=st.integers(0, 30),
    block=st.integers(1, 9),
    seed=st.integers(0, 99),
    power=st.integers(-150, 150),
)
def test_any_size_rank_and_scale(size: int, rank: int, nonzero: int, block: int, seed: int, power: int) -> None:
    rank, nonzero = min(rank, size), min(nonzero, size)
    values = torch.zeros(size, dtype=F64)
    values[:nonzero] = torch.rand(nonzero, generator=torch.Generator().manual_seed(seed), dtype=F64) + 0.1
    matrix = with_eigenvalues(values, seed=seed)
    scale = 10.0**power
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanczos, "_BLOCK", block)
        pairs = top_eigenpairs(Counted(matrix * scale), size, rank=rank, seed=seed)
    assert pairs.is_converged
    assert len(pairs.values) == min(rank, nonzero)
    expected = values.sort(descending=True).values[: len(pairs.values)]
    torch.testing.assert_close(pairs.values / scale, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("where", [0, 2])
def test_nan_is_a_data_error(where: int) -> None:
    matrix = with_eigenvalues(torch.linspace(1.0, 2.0, 100, dtype=F64))
    calls = []

    def product(rows: Tensor) -> Tensor:
        calls.append(len(rows))
        return rows @ matrix * (float("nan") if len(calls) > where else 1.0)

    with pytest.raises(DataError, match="finite"):
        top_eigenpairs(product, 100, rank=3)


def test_indefinite_and_asymmetric_maps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.linspace(1.0, -0.5, 50, dtype=F64)
    with pytest.raises(ArgumentError, match="semi-definite"):
        top_eigenpairs(Counted(with_eigenvalues(values)), 50, rank=3)
    with pytest.raises(ArgumentError, match="semi-definite"):
        top_eigenpairs(Counted(-torch.eye(5, dtype=F64)), 5, rank=3)
    with pytest.raises(ArgumentError, match="symmetric"):
        top_eigenpairs(Counted(normal(50, 50, seed=0)), 50, rank=3)
    skew = 0.1 * normal(50, 50, seed=0).triu(1)
    monkeypatch.setattr(lanczos, "_BLOCK", 1)
    with pytest.raises(ArgumentError, match="symmetric"):  # seen between blocks only
        top_eigenpairs(Counted(5.0 * torch.eye(50, dtype=F64) + skew - skew.mT), 50, rank=3)


@pytest.mark.bad_input
def test_bad_products() -> None:
    with pytest.raises(ShapeError, match="one image per row"):
        top_eigenpairs(lambda rows: rows[:, :-1], 5, rank=2)
    with pytest.raises(DataError, match="real"):
        top_eigenpairs(lambda rows: rows.to(torch.complex128), 5, rank=2)
    with pytest.raises(ArgumentError):
        top_eigenpairs(lambda rows: rows, 0, rank=2)
