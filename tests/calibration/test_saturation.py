from __future__ import annotations

import pytest
import torch

from probneural.calibration.saturation import fit_saturation, saturated
from tests.helpers import normal

WEIGHTS = torch.tensor([0.4, 0.1, 0.2, 0.2, 0.1], dtype=torch.float64)


def averages(values: torch.Tensor) -> torch.Tensor:
    return (values @ WEIGHTS).mean(0)


def test_the_mean_variance_becomes_the_mean_square() -> None:
    variances, squares = normal(30, 3, 5, seed="v").mul(2.0).exp(), normal(30, 3, 5, seed="e").square()
    squares[:, 2] *= 100.0  # more than is stated
    found = fit_saturation(variances, squares, weights=WEIGHTS)
    after = averages(saturated(variances, found[:, None].expand_as(variances)))
    torch.testing.assert_close(after[:2], averages(squares)[:2], rtol=1e-9, atol=0)
    assert float(found[2]) == 0.0
    torch.testing.assert_close(after[2], averages(variances)[2])


@pytest.mark.parametrize("unit", [1e-8, 1e8])
def test_units_do_not_matter(unit: float) -> None:
    variances, squares = normal(30, 1, 5, seed="v").mul(2.0).exp(), normal(30, 1, 5, seed="e").square()
    expected = fit_saturation(variances, squares, weights=WEIGHTS)
    torch.testing.assert_close(
        fit_saturation(unit * variances, unit * squares, weights=WEIGHTS) * unit, expected, rtol=1e-6, atol=0
    )


def test_saturated_variances_are_the_most_likely_with_their_mean() -> None:
    """Any other variances of the same mean are less likely, where the squares are what was stated on average."""
    t = normal(200, seed="t").mul(1.5).exp()
    best = saturated(t, torch.full_like(t, 0.3))

    def loss(v: torch.Tensor) -> float:
        return float((v.log() + t / v).mean())

    for seed in range(20):
        other = best * (0.1 * normal(200, seed=f"other {seed}")).exp()
        other = other * (best.mean() / other.mean())
        assert loss(other) > loss(best)


def test_errors_that_are_all_zero_leave_variances_alone() -> None:
    assert float(fit_saturation(torch.ones(4, 1, 5).double(), torch.zeros(4, 1, 5).double(), weights=WEIGHTS)) == 0.0
