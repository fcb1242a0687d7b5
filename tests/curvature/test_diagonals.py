"""Diagonals, traces and row norms against dense matrices, and their error bars against many seeds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from probneural.curvature import diagonals
from probneural.curvature.diagonals import Estimate, row_squares_estimate, xdiag
from probneural.curvature.lanczos import top_eigenpairs
from probneural.curvature.quadrature import spectral_density
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.randomness import stream
from tests.curvature.spectrum_cases import F64, Counted, rotation, spectra, with_eigenvalues
from tests.helpers import normal


def rows_of(root: Tensor, **numbers: int) -> Estimate:
    return row_squares_estimate(
        lambda latents: latents @ root.to(latents).mT,
        lambda values: values @ root.to(values),
        shape=(root.shape[0], root.shape[1]),
        **numbers,
    )


def decaying(rows: int = 40, latent: int = 60, power: float = 1.0) -> Tensor:
    count = min(rows, latent)
    values = torch.arange(1, count + 1, dtype=F64) ** -power
    return (rotation(rows, seed=1)[:, :count] * values) @ rotation(latent, seed=2)[:, :count].mT


def smooth(points: int = 32, length: float = 0.2) -> Tensor:
    """A root of the squared exponential kernel on points x points of the unit square."""
    x = torch.linspace(0.0, 1.0, points, dtype=F64)
    kernel = torch.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + 1e-10 * torch.eye(points, dtype=F64)
    factor = torch.linalg.cholesky(kernel)
    return torch.kron(factor, factor)


# Row sums of squares


@pytest.mark.parametrize("values", [[2.0], [3.0, 1.0]])
def test_sketches_are_full_where_singular_values_repeat(values: list[float]) -> None:
    """The Krylov space of a block has as many dimensions as there are different singular values."""
    root = torch.diag(torch.tensor(values, dtype=F64).repeat_interleave(60 // len(values)))
    estimate = rows_of(root, sketch=48, probes=8)
    assert float(estimate.lower.sum()) > 0.5 * float(estimate.values.sum())
    assert estimate.products <= 2 * 48 + 8


@pytest.mark.parametrize(("rank", "sketch"), [(1, 1), (1, 5), (7, 7), (7, 20), (60, 60), (60, 500)])
def test_rows_are_exact_once_the_sketch_holds_them(rank: int, sketch: int) -> None:
    root = normal(200, rank, seed=0) @ normal(rank, 60, seed=1)
    estimate = rows_of(root, sketch=sketch, probes=2)
    truth = root.square().sum(1)
    torch.testing.assert_close(estimate.values, truth, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(estimate.lower, truth, rtol=1e-9, atol=1e-9)
    assert float(estimate.errors.max()) < 1e-9 * float(truth.max())


@pytest.mark.parametrize("sketch", [1, 5, 16])
def test_rows_are_bounded_from_below_and_unbiased(sketch: int) -> None:
    root = decaying()
    truth = root.square().sum(1)
    total, squares, errors = torch.zeros_like(truth), torch.zeros_like(truth), torch.zeros_like(truth)
    runs = 300
    for seed in range(runs):
        estimate = rows_of(root, sketch=sketch, probes=4, seed=seed)
        assert bool((estimate.lower <= truth * (1 + 1e-12)).all())
        assert bool((estimate.values >= estimate.lower).all())
        assert estimate.products <= 2 * sketch + 4
        total += estimate.values / runs
        squares += (estimate.values - truth).square() / runs
        errors += estimate.errors.square() / runs
    scores = (total - truth) / (squares / runs).sqrt()
    assert float(scores.abs().max()) < 4.5
    assert float((squares.sum() / errors.sum()).sqrt()) == pytest.approx(1.0, abs=0.12)
    assert 0.7 < float((squares / errors).sqrt().median()) < 1.3


def test_smooth_kernels_need_few_products() -> None:
    root = smooth()
    truth = root.square().sum(1)
    estimate = rows_of(root, sketch=48, probes=24)
    draws = normal(120, root.shape[1], seed=1) @ root.mT
    assert float(estimate.lower.sum()) > 0.99 * float(estimate.values.sum())
    sketched = float(((estimate.values - truth) / truth).square().mean().sqrt())
    sampled = float(((draws.square().mean(0) - truth) / truth).square().mean().sqrt())
    assert sketched < 0.005 < 0.1 < sampled


@pytest.mark.parametrize("sketch", [12, 48])
def test_rows_in_float32(sketch: int) -> None:
    root = smooth(16).to(torch.float32)
    truth = root.to(F64).square().sum(1)
    estimate = rows_of(root, sketch=sketch, probes=24, like=torch.zeros(()))  # type: ignore[arg-type]
    double = rows_of(root, sketch=sketch, probes=24)
    assert estimate.values.dtype == estimate.errors.dtype == estimate.lower.dtype == F64
    torch.testing.assert_close(estimate.values, double.values, rtol=1e-3, atol=1e-4)
    assert bool((estimate.lower <= truth * (1 + 1e-5)).all())


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("sketch", [10, 24, 30])
def test_equal_singular_values_count_once(sketch: int, dtype: torch.dtype) -> None:
    """A direction that comes back unchanged from F^T F is no new one; what single precision adds to it may be."""
    unit = torch.eye(30, dtype=F64)
    for root in (unit, unit.flip(0), torch.cat([unit, unit]), unit[:15]):
        estimate = rows_of(root, sketch=sketch, probes=4, like=torch.zeros((), dtype=dtype))  # type: ignore[arg-type]
        truth = root.square().sum(1)
        assert bool((estimate.lower <= truth * (1 + 1e-6)).all())


def test_rows_of_the_zero_map() -> None:
    estimate = rows_of(torch.zeros(30, 20, dtype=F64), sketch=3, probes=2)
    assert not estimate.values.any()
    assert not estimate.errors.any()
    assert not estimate.lower.any()


def test_gradients_flow_through_products() -> None:
    base = decaying(12, 10)
    scale = torch.ones(12, dtype=F64, requires_grad=True)

    def estimate(sketch: int, seed: int) -> Tensor:
        return row_squares_estimate(
            lambda latents: latents @ (base * scale[:, None]).mT,
            lambda values: values @ (base * scale[:, None]),
            shape=(12, 10),
            sketch=sketch,
            probes=5,
            seed=seed,
        ).values

    expected = 2.0 * base.square().sum(1)
    (exact,) = torch.autograd.grad(estimate(10, 0).sum(), scale)
    torch.testing.assert_close(exact, expected)
    gradients = torch.stack([torch.autograd.grad(estimate(3, seed).sum(), scale)[0] for seed in range(400)])
    scores = (gradients.mean(0) - expected) / (gradients.std(0) / 20.0)
    assert float(scores.abs().max()) < 4.0


def test_gradients_are_finite_where_rows_are_dependent() -> None:
    scale = torch.ones((), dtype=F64, requires_grad=True)
    column = normal(9, 1, seed=0) @ normal(1, 7, seed=1)
    estimate = row_squares_estimate(
        lambda latents: latents @ (column * scale).mT,
        lambda values: values @ (column * scale),
        shape=(9, 7),
        sketch=4,
        probes=2,
    )
    assert not estimate.errors.requires_grad
    assert not rows_of(column, sketch=4, probes=2).values.requires_grad
    untouched = torch.ones((), dtype=F64, requires_grad=True)
    fixed = row_squares_estimate(
        lambda latents: latents @ column.mT,
        lambda values: values @ (column * untouched),
        shape=(9, 7),
        sketch=4,
        probes=2,
    )
    assert not fixed.values.requires_grad
    (gradient,) = torch.autograd.grad(estimate.values.sum(), scale)
    assert float(gradient) == pytest.approx(2.0 * float(column.square().sum()))


# Diagonals and traces


def naive(matrix: Tensor, tests: Tensor) -> Tensor:
    """The leave-one-out estimates of XDiag, `(n, P)`, each from its own factorisation."""
    estimates = []
    for index in range(len(tests)):
        others = torch.cat([tests[:index], tests[index + 1 :]])
        basis = torch.linalg.qr((others @ matrix).mT).Q
        left = matrix @ tests[index] - basis @ (basis.mT @ matrix @ tests[index])
        estimates.append((basis * (matrix @ basis)).sum(1) + tests[index] * left)
    return torch.stack(estimates)


@pytest.mark.parametrize("chunk", [None, 50])
@pytest.mark.parametrize("name", ["exponential", "squares", "harmonic", "clustered"])
def test_against_one_factorisation_per_vector(name: str, chunk: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if chunk is not None:
        monkeypatch.setattr(diagonals, "_CHUNK", chunk)
    matrix = with_eigenvalues(spectra(80)[name])
    counted = Counted(matrix)
    tests = (torch.randint(0, 2, (6, 80), generator=stream(5, "diagonal")) * 2 - 1).to(F64)
    replicates = naive(matrix, tests)
    estimate = xdiag(counted, 80, products=12, seed=5)
    torch.testing.assert_close(estimate.values, replicates.mean(0), rtol=1e-6, atol=1e-10)
    torch.testing.assert_close(estimate.errors, replicates.std(0) / math.sqrt(6), rtol=1e-6, atol=1e-10)
    assert estimate.products == counted.rows == 12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("rank", [0, 1, 5, 9])
def test_exact_for_low_rank(rank: int, dtype: torch.dtype) -> None:
    values = torch.cat([torch.linspace(2.0, 1.0, rank), torch.zeros(90 - rank)]).to(F64)
    matrix = with_eigenvalues(values)
    tolerance = 1e-10 if dtype == F64 else 1e-4
    estimate = xdiag(Counted(matrix), 90, products=20, like=torch.zeros((), dtype=dtype))
    torch.testing.assert_close(estimate.values, matrix.diagonal(), rtol=0, atol=tolerance)
    torch.testing.assert_close(estimate.lower, matrix.diagonal(), rtol=0, atol=tolerance)
    assert float(estimate.errors.abs().max()) < tolerance
    assert estimate.products == 10 + rank


@pytest.mark.parametrize("name", ["squares", "harmonic", "identity"])
def test_xdiag_is_unbiased_with_a_lower_bound(name: str) -> None:
    values = spectra(40)[name]
    matrix = with_eigenvalues(values)
    runs = [xdiag(Counted(matrix), 40, products=12, seed=seed) for seed in range(400)]
    estimates = torch.stack([run.values for run in runs])
    scores = (estimates.mean(0) - matrix.diagonal()) / (estimates.std(0) / 20.0).clamp_min(1e-12)
    assert float(scores.abs().max()) < 4.0
    for run in runs:
        assert bool((run.lower <= matrix.diagonal() + 1e-12).all())
        assert bool((run.lower >= 0).all())
    if name == "identity":
        return
    errors = torch.stack([run.errors for run in runs])
    ratio = ((estimates - matrix.diagonal()).square().mean() / errors.square().mean()).sqrt()
    assert 0.7 < float(ratio) < 1.4


def test_seeds_repeat_and_leave_the_global_generator() -> None:
    matrix = with_eigenvalues(spectra(40)["harmonic"])
    root = decaying()
    before = torch.get_rng_state()
    pairs = [
        [top_eigenpairs(Counted(matrix), 40, rank=4, seed=seed).vectors for seed in (1, 1, 2)],
        [spectral_density(Counted(matrix), 40, probes=2, steps=5, seed=seed).nodes for seed in (1, 1, 2)],
        [xdiag(Counted(matrix), 40, products=8, seed=seed).values for seed in (1, 1, 2)],
        [rows_of(root, sketch=4, probes=3, seed=seed).values for seed in (1, 1, 2)],
    ]
    assert torch.equal(before, torch.get_rng_state())
    for first, second, other in pairs:
        assert torch.equal(first, second)
        assert not torch.equal(first, other)


def test_nan() -> None:
    root = decaying()
    for call in (
        lambda: xdiag(lambda rows: rows * math.nan, 9, products=4),
        lambda: row_squares_estimate(lambda x: x @ root.mT * math.nan, lambda y: y @ root, shape=(40, 60), sketch=2, probes=2),
        lambda: row_squares_estimate(lambda x: x @ root.mT, lambda y: y @ root / 0.0, shape=(40, 60), sketch=2, probes=2),
    ):
        with pytest.raises(DataError, match="finite"):
            call()


@pytest.mark.bad_input
def test_bad_input() -> None:
    root = decaying()
    for name in ("sketch", "probes"):
        with pytest.raises(ArgumentError, match=name):
            rows_of(root, **{"sketch": 3, "probes": 3, name: 0})
    with pytest.raises(ArgumentError, match="4 or more products"):
        xdiag(torch.clone, 9, products=3)
    with pytest.raises(ArgumentError, match="products"):
        xdiag(torch.clone, 9, products=0)
    with pytest.raises(ArgumentError, match="size"):
        xdiag(torch.clone, 0, products=4)
    with pytest.raises(ShapeError):
        xdiag(lambda rows: rows[:, 1:], 9, products=4)
    with pytest.raises(ShapeError):
        row_squares_estimate(lambda x: x @ root.mT, lambda y: y @ root, shape=(40, 59), sketch=3, probes=3)
    with pytest.raises(ShapeError):
        row_squares_estimate(lambda x: x, lambda y: y @ root, shape=(40, 60), sketch=3, probes=3)
