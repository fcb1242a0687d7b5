"""Stochastic Lanczos quadrature against traces of dense functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from probneural.curvature import quadrature
from probneural.curvature.lanczos import Eigenpairs, top_eigenpairs
from probneural.curvature.quadrature import SpectralMeasure, spectral_density
from probneural.errors import DataError, ShapeError
from tests.curvature.spectrum_cases import F64, Counted, spectra, with_eigenvalues

SIZE = 120
SPECTRA = spectra(SIZE)


def dense_pairs(matrix: Tensor, rank: int) -> Eigenpairs:
    values, vectors = torch.linalg.eigh(matrix)
    values, vectors = values.flip(0), vectors.flip(1)
    following = float(values[rank]) if rank < len(values) else 0.0
    return Eigenpairs(
        values=values[:rank],
        vectors=vectors[:, :rank],
        residuals=torch.zeros(rank, dtype=F64),
        next_value=following,
        is_converged=True,
        products=0,
    )


def log_shift(noise: float, prior: float) -> Callable[[Tensor], Tensor]:
    return lambda values: torch.log(values / noise + prior)


@pytest.mark.parametrize("rank", [0, 15])
@pytest.mark.parametrize("name", SPECTRA)
def test_log_determinants_within_their_errors(name: str, rank: int) -> None:
    matrix = with_eigenvalues(SPECTRA[name])
    steps = 120 if name == "wide" else 40
    measure = spectral_density(Counted(matrix), SIZE, probes=30, steps=steps, deflate=dense_pairs(matrix, rank), seed=3)
    for noise, prior in ((1.0, 1.0), (1e-2, 0.1), (10.0, 3.0)):
        function = log_shift(noise, prior)
        truth = float(function(SPECTRA[name]).sum())
        estimate, error = measure.trace(function)
        assert abs(estimate - truth) <= 3.5 * error + 1e-6 * abs(truth)
        rest, same = measure.remainder(function)
        assert same == error
        assert rest + float(function(measure.deflated).sum()) == pytest.approx(estimate, rel=1e-12)


@pytest.mark.parametrize("rank", [0, 7])
def test_shapes_and_weights(rank: int) -> None:
    matrix = with_eigenvalues(SPECTRA["harmonic"])
    counted = Counted(matrix)
    measure = spectral_density(counted, SIZE, probes=5, steps=12, deflate=dense_pairs(matrix, rank))
    assert measure.nodes.shape == measure.weights.shape == (5, 12)
    assert measure.deflated.shape == (rank,)
    assert measure.nodes.dtype == measure.weights.dtype == F64
    assert bool((measure.nodes >= 0).all())
    assert bool((measure.weights >= 0).all())
    torch.testing.assert_close(measure.weights.sum(1), torch.full((5,), SIZE - rank, dtype=F64))
    assert measure.trace(torch.ones_like)[0] == pytest.approx(SIZE)
    assert measure.products == counted.rows == 60


def test_gauss_quadrature_is_exact_up_to_twice_the_steps() -> None:
    matrix = with_eigenvalues(torch.linspace(0.0, 1.0, SIZE, dtype=F64))
    short = spectral_density(Counted(matrix), SIZE, probes=3, steps=5)
    long = spectral_density(Counted(matrix), SIZE, probes=3, steps=60)
    for power in range(1, 10):
        assert short.trace(lambda x, p=power: x**p) == pytest.approx(long.trace(lambda x, p=power: x**p), rel=1e-10)
    assert short.trace(lambda x: x**10)[0] != pytest.approx(long.trace(lambda x: x**10)[0], rel=1e-10)


def test_error_bars_are_calibrated() -> None:
    values = SPECTRA["squares"] * 100
    matrix = with_eigenvalues(values)
    function = log_shift(1.0, 1.0)
    truth = float(function(values).sum())
    scores = []
    for seed in range(60):
        estimate, error = spectral_density(Counted(matrix), SIZE, probes=16, steps=30, seed=seed).trace(function)
        scores.append((estimate - truth) / error)
    scores = torch.tensor(scores)
    assert 0.7 < float(scores.square().mean().sqrt()) < 1.35  # Student's t of 15 degrees would have 1.07
    assert abs(float(scores.mean())) < 0.45


def test_deflation_lowers_the_error() -> None:
    values = SPECTRA["exponential"] * 1e4
    matrix = with_eigenvalues(values)
    function = log_shift(1.0, 1.0)
    plain = spectral_density(Counted(matrix), SIZE, probes=10, steps=30)
    pairs = top_eigenpairs(Counted(matrix), SIZE, rank=40, tolerance=1e-8)
    deflated = spectral_density(Counted(matrix), SIZE, probes=10, steps=30, deflate=pairs)
    assert deflated.trace(function)[1] < 0.2 * plain.trace(function)[1]
    assert deflated.trace(function)[0] == pytest.approx(float(function(values).sum()), rel=1e-2)
    assert float(deflated.nodes.max()) < 1.1 * float(values[40])


@pytest.mark.parametrize("name", ["identity", "low rank", "more copies than a block"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_runs_that_end_early(name: str, dtype: torch.dtype) -> None:
    matrix = with_eigenvalues(SPECTRA[name])
    measure = spectral_density(Counted(matrix), SIZE, probes=3, steps=30, like=torch.zeros((), dtype=dtype))
    assert measure.products < 3 * 30
    torch.testing.assert_close(measure.weights.sum(1), torch.full((3,), SIZE, dtype=F64))
    distinct = SPECTRA[name].unique()
    heavy = measure.nodes[measure.weights > 1e-3]
    assert float((heavy[:, None] - distinct).abs().min(1).values.max()) < (1e-10 if dtype == F64 else 1e-4)


@pytest.mark.parametrize("room", [quadrature._ROOM, 1])
def test_it_stops_where_the_measure_has_settled(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was asked of is the measure of so many steps, and the others' probes take as many."""
    monkeypatch.setattr(quadrature, "_ROOM", room)
    matrix = with_eigenvalues(SPECTRA["harmonic"])
    asked: list[SpectralMeasure] = []

    def is_settled(measure: SpectralMeasure) -> bool:
        asked.append(measure)
        return len(asked) == 3

    stopped = spectral_density(Counted(matrix), SIZE, probes=3, steps=60, is_settled=is_settled)
    assert [measure.nodes.shape[1] for measure in asked] == [5, 10, 15]
    short = spectral_density(Counted(matrix), SIZE, probes=3, steps=15)
    torch.testing.assert_close(stopped.nodes, short.nodes)
    torch.testing.assert_close(stopped.weights, short.weights)
    assert stopped.products == short.products == 45
    probes = len(asked[-1].nodes)
    torch.testing.assert_close(asked[-1].nodes, short.nodes[:probes])


@pytest.mark.parametrize("name", ["harmonic", "wide"])
def test_unresolved_pairs_save_steps_and_probes(name: str) -> None:
    """With what a search for few pairs leaves, fewer steps err less than with those pairs alone, over all seeds together."""
    matrix = with_eigenvalues(SPECTRA[name])
    function = log_shift(1.0, 1.0)
    truth = float(function(SPECTRA[name]).sum())
    pairs = top_eigenpairs(lambda rows: rows @ matrix, SIZE, rank=8, tolerance=1e-6)
    assert pairs.unresolved is not None
    both = torch.cat([pairs.vectors, pairs.unresolved.vectors], dim=1)
    torch.testing.assert_close(both.mT @ both, torch.eye(both.shape[1], dtype=F64))
    assert bool((pairs.unresolved.values > 0).all())
    residuals = (matrix @ pairs.unresolved.vectors - pairs.unresolved.vectors * pairs.unresolved.values).norm(dim=0)
    assert bool((residuals <= 0.3 * pairs.unresolved.values).all())
    squares = {"with": 0.0, "without": 0.0}
    for seed in range(8):
        for which, steps, deflate in (("with", 10, pairs), ("without", 20, replace(pairs, unresolved=None))):
            measure = spectral_density(Counted(matrix), SIZE, probes=4, steps=steps, seed=seed, deflate=deflate)
            squares[which] += (measure.trace(function)[0] - truth) ** 2
    assert squares["with"] < squares["without"]


def test_memory_is_bounded_without_changing_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = with_eigenvalues(SPECTRA["harmonic"])
    at_once = spectral_density(Counted(matrix), SIZE, probes=5, steps=9)
    monkeypatch.setattr(quadrature, "_ROOM", 2 * 9 * SIZE)
    batches = []

    def product(rows: Tensor) -> Tensor:
        batches.append(len(rows))
        return rows @ matrix

    in_turn = spectral_density(product, SIZE, probes=5, steps=9)
    assert max(batches) == 2
    torch.testing.assert_close(in_turn.nodes, at_once.nodes)


@given(
    size=st.integers(1, 20),
    rank=st.integers(0, 20),
    probes=st.integers(1, 4),
    steps=st.integers(1, 25),
    seed=st.integers(0, 50),
)
def test_traces_of_the_identity_function(size: int, rank: int, probes: int, steps: int, seed: int) -> None:
    """Constants are exact, and nodes stay within the spectrum."""
    values = torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=F64)
    matrix = with_eigenvalues(values, seed=seed)
    measure = spectral_density(
        Counted(matrix), size, probes=probes, steps=steps, seed=seed, deflate=dense_pairs(matrix, min(rank, size))
    )
    assert measure.trace(torch.ones_like)[0] == pytest.approx(size)
    left = values.sort(descending=True).values[min(rank, size) :]
    nodes = measure.nodes[measure.weights > 1e-9]
    if len(left):
        assert float(nodes.max()) <= float(left.max()) + 1e-9
        assert float(nodes.min()) >= float(left.min()) - 1e-9


def test_functions_that_are_not_finite() -> None:
    matrix = with_eigenvalues(SPECTRA["low rank"])
    measure = spectral_density(Counted(matrix), SIZE, probes=2, steps=30)
    with pytest.raises(DataError, match="finite"):
        measure.trace(lambda nodes: torch.where(nodes < 1e-8, math.inf, nodes))
    known = SpectralMeasure(nodes=measure.nodes, weights=measure.weights, deflated=torch.zeros(1, dtype=F64), products=0)
    with pytest.raises(DataError, match="finite"):
        known.trace(lambda nodes: torch.where(nodes == 0.0, math.inf, nodes))


def test_nan_product() -> None:
    with pytest.raises(DataError, match="finite"):
        spectral_density(lambda rows: rows * math.nan, 9, probes=2, steps=3)


@pytest.mark.bad_input
def test_bad_input() -> None:
    with pytest.raises(ShapeError):
        spectral_density(lambda rows: rows[:, 1:], 5, probes=2, steps=2)
    with pytest.raises(ShapeError):
        spectral_density(torch.clone, 6, probes=2, steps=2, deflate=dense_pairs(torch.eye(5, dtype=F64), 2))
