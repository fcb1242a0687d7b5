"""Gradients of deviations and intervals where a value is certain: 0 there, and right beside it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from probneural.distributions import DenseRoot, EmpiricalField, FieldDistribution, GaussianField, MixtureField
from probneural.grids import Grid
from tests.helpers import normal

GRID = Grid.uniform(5)
CERTAIN = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
"""Boundary values that are kept: the first point does not vary."""


def field(kind: str, size: Tensor) -> FieldDistribution:
    """Deviations in proportion to a number."""
    mean = size.detach() * normal(2, 1, 5, seed="mean")
    root = size * CERTAIN[:, None] * normal(2, 1, 5, 3, seed="root")
    if kind == "empirical":
        return EmpiricalField(mean + root.movedim(-1, 0), grid=GRID)
    gaussian = GaussianField(mean, DenseRoot(root), latent="certain", grid=GRID)
    if kind == "Gaussian":
        return gaussian
    other = GaussianField(mean, DenseRoot(2.0 * root), latent="other", grid=GRID)
    return MixtureField([gaussian, other], torch.tensor([0.5, 0.5], dtype=torch.float64))


@pytest.mark.parametrize("size", [1.0, 1e-180], ids=["", "tiny"])
@pytest.mark.parametrize("kind", ["Gaussian", "empirical", "mixture"])
def test_deviations_have_gradients_where_others_are_certain(kind: str, size: float) -> None:
    """Deviations are in proportion to the number, so they are their own derivative; so are intervals."""
    factor = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    u = field(kind, size * factor)
    totals = [u.standard_deviation.sum()]
    if kind != "mixture":  # its quantiles are found by bisection
        interval = u.interval(0.9)
        totals.append((interval.upper - interval.lower).sum())
    for total in totals:
        assert float(total.detach()) > 0
        (gradient,) = torch.autograd.grad(total, factor, retain_graph=True)
        assert float(gradient) == pytest.approx(float(total.detach()), rel=1e-9)
    assert float(u.standard_deviation[:, :, 0].detach().abs().max()) <= 1e-15 * size
