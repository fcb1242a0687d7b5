"""Gradients of deviations and intervals where a value is certain: 0 there, and right beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from probneural.distributions import DenseRoot, EmpiricalField, FieldDistribution, GaussianField, MixtureField
from probneural.grids import Grid
from tests.helpers import normal

GRID = Grid.uniform(5)
CERTAIN = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
"""Boundary values that are kept: the first point does not vary."""
VALUES = normal(2, 1, 5, seed="values")


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
    interval = u.interval(0.9)
    for total in (u.standard_deviation.sum(), (interval.upper - interval.lower).sum()):
        assert float(total.detach()) > 0
        (gradient,) = torch.autograd.grad(total, factor, retain_graph=True)
        assert float(gradient) == pytest.approx(float(total.detach()), rel=1e-9)
    assert float(u.standard_deviation[:, :, 0].detach().abs().max()) <= 1e-15 * size


def by_differences(function: Callable[[Tensor], Tensor], at: float) -> float:
    """Central differences."""
    ends = [function(torch.tensor(at + step, dtype=torch.float64)) for step in (1e-5, -1e-5)]
    return float(ends[0] - ends[1]) / 2e-5


@pytest.mark.parametrize(
    "question",
    [
        lambda u: u.cdf(VALUES),
        lambda u: u.cdf(VALUES, noise=0.2),
        lambda u: u.quantile(0.8),
        lambda u: u.quantile([0.1, 0.6], noise=0.1).sin(),
    ],
    ids=["cdf", "cdf with noise", "quantile", "quantiles with noise"],
)
def test_a_mixture_has_the_gradients_of_differences(question: Callable[[MixtureField], Tensor]) -> None:
    """Means and deviations move with a number; where a value is certain, only its means do."""

    def asked(number: Tensor) -> Tensor:
        shifts, sizes = (number.sin(), number.square()), (number, 2.0 * number)
        parts = [
            GaussianField(
                normal(2, 1, 5, seed="mean") + shift,
                DenseRoot(size * CERTAIN[:, None] * normal(2, 1, 5, 3, seed="root")),
                latent="moved",
                grid=GRID,
            )
            for shift, size in zip(shifts, sizes, strict=True)
        ]
        return question(MixtureField(parts, torch.tensor([0.3, 0.7]).double())).sum()

    number = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(asked(number), number)
    assert float(gradient) == pytest.approx(by_differences(asked, 0.8), rel=1e-5)


def test_quantiles_of_many_members_with_noise_have_gradients() -> None:
    members = normal(120, 1, 1, 5, seed="members")

    def upper(factor: Tensor) -> Tensor:
        return EmpiricalField(factor * members, grid=GRID).interval(0.9, noise=0.1).upper.sum()

    factor = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(upper(factor), factor)
    assert float(gradient) == pytest.approx(by_differences(upper, 1.3), rel=1e-6)
    assert float(gradient) > 1.0
