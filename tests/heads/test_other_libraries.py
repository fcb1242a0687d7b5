"""Draws do not depend on which eigenvectors a linear-algebra library finds: LAPACK and cuSOLVER choose differently."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from probneural.distributions import Predictor
from probneural.heads import KernelOperator
from probneural.problems import Burgers
from tests.heads.cases import ALL_HEADS, OperatorCase, data_for, fields, operator_case
from tests.helpers import normal

HEADS = ("last-layer", "full", "low-rank", "kronecker", "mixture")


@contextmanager
def another_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Turn eigenvectors, singular vectors and orthonormal columns by what a library is free to choose: signs, or phases, and
    the basis of what rounding cannot tell from zero."""
    draws = torch.Generator().manual_seed(5)
    eigh, svd, qr = torch.linalg.eigh, torch.linalg.svd, torch.linalg.qr

    def gaussian(*shape: int, like: Tensor) -> Tensor:
        dtype = torch.complex128 if like.is_complex() else torch.float64
        return torch.randn(*shape, generator=draws, dtype=dtype).to(like)

    def phases(vectors: Tensor) -> Tensor:
        found = gaussian(vectors.shape[-1], like=vectors)
        return found / found.abs()

    def turned(matrix: Tensor) -> object:
        values, vectors = eigh(matrix)
        vectors = vectors * phases(vectors)
        for one, columns in zip(values.reshape(-1, values.shape[-1]), vectors.view(-1, *vectors.shape[-2:]), strict=True):
            null = int((one <= 1e-15 * len(one) * one[-1]).sum()) if len(one) else 0
            columns[:, :null] = columns[:, :null] @ qr(gaussian(null, null, like=columns)).Q
        return torch.return_types.linalg_eigh((values, vectors))

    def turned_svd(matrix: Tensor, full_matrices: bool = True) -> object:
        left, values, right = svd(matrix, full_matrices=full_matrices)
        assert not full_matrices
        turn = phases(left)
        return torch.return_types.linalg_svd((left * turn, values, right * turn.conj()[:, None]))

    def turned_qr(matrix: Tensor, mode: str = "reduced") -> object:
        basis, triangle = qr(matrix, mode=mode)
        turn = phases(triangle.mT)
        return torch.return_types.linalg_qr((basis * turn if basis.numel() else basis, triangle * turn.conj()[:, None]))

    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "eigh", turned)
        patch.setattr(torch.linalg, "svd", turned_svd)
        patch.setattr(torch.linalg, "qr", turned_qr)
        yield


def drawn(predictor: Predictor, case: OperatorCase) -> list[Tensor]:
    """Draws of fields, and of a function."""
    u = predictor(case.inputs)
    return [u.rsample((3,), seed=1), predictor.draw(2)(case.inputs.values)]


def check(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-9) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= tolerance * other.abs().max()


@pytest.mark.parametrize("operator", ["fno-outputs", "complex"])
@pytest.mark.parametrize("head", HEADS)
def test_draws_are_the_same(head: str, operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = operator_case(operator)

    def outcome() -> list[Tensor]:
        return drawn(ALL_HEADS[head].fit(case.operator, case.data), case)

    expected = outcome()
    with another_library(monkeypatch):
        check(outcome(), expected)


def test_draws_of_processes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where small variances amplify rounding, and the search for hyper-parameters ends at another last digit."""
    problem = Burgers(viscosity=0.01)
    train, test = problem.sample(40, resolution=64, seed=0), problem.sample(3, resolution=64, seed=1)

    def outcome() -> list[Tensor]:
        predictor = KernelOperator().fit(None, train)
        return [predictor(test.inputs).rsample((3,), seed=1), predictor.draw(2)(test.inputs.values)]

    expected = outcome()
    with another_library(monkeypatch):
        check(outcome(), expected, tolerance=1e-3)


@pytest.mark.parametrize("head", ["last-layer", "full", "low-rank"])
def test_draws_are_the_same_after_updates(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = operator_case("fno-1d")
    more = data_for(case.operator, fields(case.data.inputs.grid, 6, 1, seed=31), seed=32)

    def outcome() -> list[Tensor]:
        return drawn(ALL_HEADS[head].fit(case.operator, case.data).update(more), case)

    expected = outcome()
    with another_library(monkeypatch):
        check(outcome(), expected, tolerance=1e-6)


@pytest.mark.parametrize("decompose", [torch.linalg.eigh, torch.linalg.svd, torch.linalg.qr])
def test_the_other_library_is_another_one(
    decompose: Callable[[Tensor], tuple[Tensor, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decomposes the same matrix with other vectors."""
    rows = normal(6, 4, seed=1)
    matrix, name = rows @ rows.mT, decompose.__name__.removeprefix("linalg_")
    options = {"full_matrices": False} if name == "svd" else {}
    expected = decompose(matrix, **options)
    with another_library(monkeypatch):
        found = getattr(torch.linalg, name)(matrix, **options)
    rebuild = {
        "eigh": lambda values, vectors: (vectors * values) @ vectors.mT,
        "svd": lambda left, values, right: (left * values) @ right,
        "qr": lambda basis, triangle: basis @ triangle,
    }[name]
    torch.testing.assert_close(rebuild(*found), matrix, rtol=0, atol=1e-12)
    assert (found[-1] - expected[-1]).abs().max() > 0.1
