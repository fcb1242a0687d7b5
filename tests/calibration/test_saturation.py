from __future__ import annotations

import pytest
import torch

from probneural.calibration.variance.by_lead import fit_saturation, saturated
from tests.helpers import normal

WEIGHTS = torch.tensor([0.4, 0.1, 0.2, 0.2, 0.1], dtype=torch.float64)


def averages(values: torch.Tensor) -> torch.Tensor:
    return (values @ WEIGHTS).mean(0)


def test_the_mean_variance_becomes_the_mean_square() -> None:
    variances, squares = normal(30, 3, 5, seed="v").mul(2.0).exp(), normal(30, 3, 5, seed="e").square()
    squares[:, 2] *= 100.0  # more than is stated
    found, largest = fit_saturation(variances, squares, weights=WEIGHTS)
    after = saturated(variances, found[:, None].expand_as(variances), largest=largest[:, None].expand_as(variances))
    torch.testing.assert_close(averages(after), averages(squares), rtol=1e-9, atol=0)
    assert bool((found[:2] > 0).all())
    assert float(found[2]) < 0.0
    torch.testing.assert_close(largest, variances.amax((0, 2)))
    # What grows does so by a factor that grows with it, up to that of the largest; what shrinks, the other way round.
    t = torch.linspace(0.1, 2.0, 20).double() * largest[2]
    factors = saturated(t, found[2].expand_as(t), largest=largest[2].expand_as(t)) / t
    assert bool((factors[:10].diff() > 0).all())
    torch.testing.assert_close(factors[10:], factors[9].expand(10))
    shrunk = saturated(t, -found[2].expand_as(t)) / t
    assert bool((shrunk.diff() < 0).all())


def test_growing_undoes_saturating() -> None:
    t, s = normal(50, seed="t").mul(2.0).exp(), torch.full((50,), 0.7).double()
    torch.testing.assert_close(saturated(saturated(t, s), -s), t, rtol=1e-12, atol=0)


@pytest.mark.parametrize("unit", [1e-170, 1e-8, 1e8, 1e160])
def test_units_do_not_matter(unit: float) -> None:
    variances, squares = normal(30, 1, 5, seed="v").mul(2.0).exp(), normal(30, 1, 5, seed="e").square()
    for factor in (1.0, 100.0):  # shrinking, and growing
        expected, _ = fit_saturation(variances, factor * squares, weights=WEIGHTS)
        found, _ = fit_saturation(unit * variances, unit * factor * squares, weights=WEIGHTS)
        torch.testing.assert_close(found * unit, expected, rtol=1e-6, atol=0)


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
    ones, zeros = torch.ones(4, 1, 5).double(), torch.zeros(4, 1, 5).double()
    assert float(fit_saturation(ones, zeros, weights=WEIGHTS)[0]) == 0.0
    assert float(fit_saturation(zeros, ones, weights=WEIGHTS)[0]) == 0.0
