"""Symmetric matrices with prescribed eigenvalues, and the maps that stand for them."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.helpers import normal

F64 = torch.float64


class Counted:
    """Rows times a symmetric matrix, and how many rows there have been."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self.rows = 0

    def __call__(self, rows: Tensor) -> Tensor:
        self.rows += len(rows)
        return rows @ self.matrix.to(rows)


def rotation(size: int, *, seed: int = 0) -> Tensor:
    return torch.linalg.qr(normal(size, size, seed=seed)).Q


def with_eigenvalues(values: Tensor, *, seed: int = 0) -> Tensor:
    basis = rotation(len(values), seed=seed)
    matrix = (basis * values) @ basis.mT
    return (matrix + matrix.mT) / 2


def spectra(size: int = 120) -> dict[str, Tensor]:
    index = torch.arange(size, dtype=F64)
    return {
        "exponential": torch.exp(-0.2 * index),
        "squares": (1.0 + index) ** -2,
        "harmonic": 5.0 / (1.0 + index),
        "clustered": torch.cat([torch.full((5,), 3.0), torch.full((12,), 1.0), torch.linspace(0.1, 0.01, size - 17)]).to(F64),
        "more copies than a block": torch.cat([torch.ones(20), torch.zeros(size - 20)]).to(F64),
        "low rank": torch.cat([torch.linspace(2.0, 1.0, 10), torch.zeros(size - 10)]).to(F64),
        "wide": torch.logspace(6, -6, size, dtype=F64),
        "identity": torch.ones(size, dtype=F64),
    }
