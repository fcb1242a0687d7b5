"""First derivatives of updates and densities beside central differences, where singular values repeat, vanish, or neither."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from probneural.linear_algebra.conditioning import (
    Rounding,
    condition_exactly,
    condition_noisily,
    row_norms,
)
from probneural.linear_algebra.densities import log_density, log_density_without_noise
from tests.helpers import normal

NOISE = torch.tensor([0.3, 0.5, 0.2, 0.4], dtype=torch.float64)
RESIDUAL = normal(4, seed="residual", dtype=torch.float64)


def isotropic(m: int, k: int) -> Tensor:
    return 1.5 * torch.eye(max(m, k), dtype=torch.float64)[:m, :k]


def repeated(m: int, k: int) -> Tensor:
    """Two rows that are the same."""
    rows = normal(m, k, seed=f"repeated {m} {k}", dtype=torch.float64)
    return torch.cat([rows[:1], rows[:1], rows[2:]])


def certain(m: int, k: int) -> Tensor:
    """Rows and a column of zeros."""
    rows = normal(m, k, seed=f"certain {m} {k}", dtype=torch.float64)
    rows[0] = rows[-1] = 0.0
    rows[:, -1] = 0.0
    return rows


def ordinary(m: int, k: int) -> Tensor:
    return normal(m, k, seed=f"ordinary {m} {k}", dtype=torch.float64)


ROWS = pytest.mark.parametrize("make", [ordinary, isotropic, repeated, certain])
SHAPES = pytest.mark.parametrize("k", [2, 4, 7])


def agrees(function: Callable[[Tensor], Tensor], at: Tensor) -> None:
    """The gradient along three directions is that of central differences."""
    values = at.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(values), values)
    for seed in range(3):
        direction = normal(*at.shape, seed=f"direction {seed}", dtype=torch.float64)
        step = 1e-5
        with torch.no_grad():
            expected = (function(at + step * direction) - function(at - step * direction)) / (2 * step)
        assert float((gradient * direction).sum()) == pytest.approx(float(expected), rel=2e-6, abs=2e-7)


def summary(probe: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Numbers that depend on all that an update holds: mean, draws and covariance of other rows, distances and pulls."""

    def found(shift: Tensor, mapped: Tensor, chi2: Tensor, pulls: Tensor) -> Tensor:
        mean, covariance = probe @ shift, mapped @ mapped.mT
        return mean.sin().sum() + covariance.sin().sum() + mapped.cos().sum() + chi2 + pulls.sin().sum()

    return found


@ROWS
@SHAPES
def test_noisy_updates(make: Callable[[int, int], Tensor], k: int) -> None:
    rows, probe = make(4, k), normal(3, k, seed=f"probe {k}", dtype=torch.float64)

    def value(rows: Tensor, residual: Tensor, noise: Tensor) -> Tensor:
        update = condition_noisily(rows, residual, noise)
        return summary(probe)(update.shift, update.transform.product(probe), update.chi2, update.multipliers)

    agrees(lambda rows: value(rows, RESIDUAL, NOISE), rows)
    agrees(lambda residual: value(rows, residual, NOISE), RESIDUAL)
    agrees(lambda noise: value(rows, RESIDUAL, noise), NOISE)


@pytest.mark.parametrize("make", [ordinary, isotropic])
@pytest.mark.parametrize("k", [4, 7])
def test_exact_updates(make: Callable[[int, int], Tensor], k: int) -> None:
    rows, probe = make(3, k), normal(3, k, seed=f"probe {k}", dtype=torch.float64)
    rounding = Rounding(*[torch.full((3,), 1e-12, dtype=torch.float64)] * 2)

    def value(rows: Tensor, residual: Tensor) -> Tensor:
        update = condition_exactly(rows, residual, rounding=rounding, dtype=torch.float64)
        return summary(probe)(update.shift, update.transform.product(probe), update.chi2, update.multipliers)

    agrees(lambda rows: value(rows, RESIDUAL[:3]), rows)
    agrees(lambda residual: value(rows, residual), RESIDUAL[:3])


@ROWS
@SHAPES
def test_densities(make: Callable[[int, int], Tensor], k: int) -> None:
    rows = make(4, k)
    agrees(lambda rows: log_density(rows, RESIDUAL, NOISE), rows)
    agrees(lambda residual: log_density(rows, residual, NOISE), RESIDUAL)
    agrees(lambda noise: log_density(rows, RESIDUAL, noise), NOISE)
    if k >= 4 and make in (ordinary, isotropic):
        agrees(lambda rows: log_density_without_noise(rows, RESIDUAL, dtype=torch.float64), rows)
        agrees(lambda residual: log_density_without_noise(rows, residual, dtype=torch.float64), RESIDUAL)


def test_batches_have_the_gradients_of_each() -> None:
    rows = torch.stack([ordinary(4, 7), repeated(4, 7)]).requires_grad_()
    residual = torch.stack([RESIDUAL, 2.0 * RESIDUAL])
    probe = normal(2, 3, 7, seed="probes", dtype=torch.float64)

    def value(rows: Tensor, residual: Tensor, probe: Tensor) -> Tensor:
        update = condition_noisily(rows, residual, NOISE.expand_as(residual))
        density = log_density(rows, residual, NOISE.expand_as(residual)).sum()
        return density + update.transform.product(probe).sin().sum() + update.shift.sum() + update.chi2.sum()

    (together,) = torch.autograd.grad(value(rows, residual, probe), rows)
    alone = [torch.autograd.grad(value(rows[i], residual[i], probe[i]), rows)[0][i] for i in range(2)]
    torch.testing.assert_close(together, torch.stack(alone))


def test_values_are_the_same_with_and_without_a_gradient() -> None:
    rows = ordinary(4, 7)
    plain, recorded = (condition_noisily(one, RESIDUAL, NOISE) for one in (rows, rows.clone().requires_grad_()))
    assert not plain.shift.requires_grad
    assert recorded.shift.requires_grad
    for name in ("shift", "chi2", "multipliers"):
        assert torch.equal(getattr(plain, name), getattr(recorded, name).detach())
    assert torch.equal(plain.transform.directions, recorded.transform.directions.detach())


def test_second_derivatives_are_refused() -> None:
    rows = ordinary(4, 7).requires_grad_()
    (gradient,) = torch.autograd.grad(log_density(rows, RESIDUAL, NOISE).square(), rows, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_rows_without_columns_have_no_norm() -> None:
    assert row_norms(torch.zeros(2, 3, 0, dtype=torch.float64)).tolist() == [[0.0] * 3] * 2
