"""The search for hyper-parameters does not end in the optimum of one start."""

from __future__ import annotations

import math

import pytest
import torch

from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads import KernelOperator
from probneural.heads.kernel.kernel_operator import _distinct
from probneural.pairs import FieldPairs

GRID = Grid.uniform(32)


def pairs(count: int, seed: int) -> FieldPairs:
    """Smooth inputs, and a nonlinear map of them with noise."""
    generator = torch.Generator().manual_seed(seed)
    phase, orders = 2.0 * math.pi * GRID.points[:, 0], torch.arange(1, 6).double()[:, None]
    modes = torch.cat([torch.sin(orders * phase), torch.cos(orders * phase)]) / torch.cat([orders, orders]).square()
    inputs = torch.randn(count, 10, generator=generator).double() @ modes
    outputs = torch.sin(inputs) + 0.3 * inputs.square() + 0.1 * torch.roll(inputs, 3, -1)
    noise = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(seed + 99)).double()
    return FieldPairs(Field(inputs[:, None], GRID), Field((outputs + 0.02 * noise)[:, None], GRID))


@pytest.mark.parametrize(("count", "seed", "least"), [(20, 0, 887.0), (80, 2, 8367.0)])
def test_evidence_is_that_of_the_best_start(count: int, seed: int, least: float) -> None:
    """From the best start of few steps alone it is 885.5 and 8364.9 nats."""
    assert KernelOperator().fit(None, pairs(count, seed)).log_evidence > least


def test_points_that_coincide_are_found_without_comparing_all() -> None:
    points = torch.randn(300, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    points = torch.cat([points, points[50:90], points[5:9] * (1.0 + 1e-15), points[:1].expand(30, 3)])
    same = torch.cdist(points, points, p=math.inf) <= 1e-12 * points.abs().max()
    earliest = torch.where(same, torch.arange(len(points)), len(points)).amin(1)
    distinct, numbers = _distinct(points)
    torch.testing.assert_close(distinct, points[earliest.unique()], rtol=0, atol=0)
    torch.testing.assert_close(distinct[numbers], points[earliest], rtol=0, atol=0)
