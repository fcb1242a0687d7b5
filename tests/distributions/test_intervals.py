"""Intervals and quantiles: against SciPy and NumPy, the scores' coverage, and the draws they promise to cover."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor

from probneural import metrics
from probneural.distributions import DenseRoot, EmpiricalField, GaussianField
from probneural.distributions.intervals import Interval
from probneural.errors import DataError, ShapeError
from probneural.fields import Field
from probneural.functionals import integral
from probneural.grids import Grid
from tests.distributions.cases import Case, functionals, on_every_distribution
from tests.helpers import normal

LINE = Grid.uniform(6)
NOISES = [0.0, 0.3]


def gaussian(*, n: int = 3, c: int = 2, dtype: torch.dtype = torch.float64) -> GaussianField:
    root = DenseRoot(normal(n, c, 6, 4, seed=1, dtype=dtype))
    return GaussianField(normal(n, c, 6, dtype=dtype), root, latent="xi", grid=LINE, discrepancy=DenseRoot(normal(n, c, 6, 2)))


def skewed(members: int = 400) -> EmpiricalField:
    return EmpiricalField(normal(members, 2, 2, 6, seed=3).exp(), grid=LINE)


@on_every_distribution
@pytest.mark.parametrize("noise", NOISES)
class TestEveryDistribution:
    def test_intervals_are_those_of_scipys_normal(self, case: Case, noise: float) -> None:
        for u in (case.field, *(case.field.apply(functional) for functional in functionals(case.field.grid))):
            std = np.sqrt(u.standard_deviation.double().numpy() ** 2 + noise)
            with np.errstate(invalid="ignore"):
                ends = stats.norm(u.mean.double().numpy(), std).interval(0.8)
            found = u.interval(0.8, noise=noise)
            assert found.lower.dtype == torch.float64
            for have, want in zip(found, ends, strict=True):
                want = np.where(std > 0, want, u.mean.double().numpy())
                np.testing.assert_allclose(have.numpy(), want, rtol=1e-12, atol=1e-12)

    def test_they_lie_between_quantiles(self, case: Case, noise: float) -> None:
        low, median, high = case.field.quantile([0.05, 0.5, 0.95], noise=noise)
        interval = case.field.interval(0.9, noise=noise)
        torch.testing.assert_close(torch.stack(interval), torch.stack([low, high]), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(median, case.field.mean.double(), rtol=0, atol=1e-12)
        torch.testing.assert_close(case.field.quantile(0.95, noise=noise), high, rtol=0, atol=0)
        torch.testing.assert_close(interval.width, high - low, rtol=1e-12, atol=1e-12)

    def test_coverage_of_the_scores_counts_what_intervals_contain(self, case: Case, noise: float) -> None:
        truth = Field(normal(*case.field.mean.shape, seed=8).to(case.field.mean), case.field.grid)
        scored = metrics.coverage(metrics.compare(case.field, truth, noise=noise), level=0.6)
        inside = case.field.interval(0.6, noise=noise).contains(truth.values)
        torch.testing.assert_close(truth.grid.mean(inside.double().flatten(2)), scored, rtol=1e-12, atol=1e-12)


def test_std_is_the_standard_deviation() -> None:
    for u in (gaussian(), skewed(), gaussian().apply(integral(LINE))):
        assert torch.equal(u.std, u.variance.sqrt())


def test_intervals_resolve_what_the_dtype_of_the_mean_does_not() -> None:
    """Nor are variances formed, which float32 cannot hold."""
    root = DenseRoot(torch.full((1, 1, 6, 1), 1e-30))
    u = GaussianField(torch.zeros(1, 1, 6), root, latent="xi", grid=LINE)
    np.testing.assert_allclose(u.interval(0.9).upper.numpy(), 1.6448536269514722e-30, rtol=1e-6)


def test_noise_may_differ_by_channel_and_value() -> None:
    u = gaussian()
    by_channel = torch.tensor([0.1, 2.0], dtype=torch.float64)
    by_value = by_channel[None, :, None].expand(3, 2, 6)
    for noise in (by_channel, by_value):
        width = u.interval(0.9, noise=noise).width
        expected = 2 * stats.norm.ppf(0.95) * (u.variance + by_channel[:, None]).sqrt()
        torch.testing.assert_close(width, expected, rtol=1e-12, atol=0)


def test_intervals_are_differentiable() -> None:
    def ends(mean: Tensor) -> tuple[Tensor, Tensor]:
        u = GaussianField(mean, DenseRoot(normal(1, 1, 6, 2) * mean.sum()), latent="xi", grid=LINE)
        lower, upper = u.interval(0.9, noise=0.1)
        return lower, upper

    assert torch.autograd.gradcheck(ends, normal(1, 1, 6).requires_grad_())


def test_extreme_levels_are_finite() -> None:
    for u in (gaussian(), skewed()):
        for level in (1e-300, np.nextafter(1.0, 0.0)):
            assert all(bool(torch.isfinite(end).all()) for end in u.interval(level))


class TestManyMembers:
    Q = (0.01, 0.05, 0.5, 0.9, 0.999)

    def test_quantiles_are_numpys(self) -> None:
        u = skewed()
        expected = np.quantile(u.samples.numpy(), self.Q, axis=0, method="hazen")
        np.testing.assert_allclose(u.quantile(self.Q).numpy(), expected, rtol=1e-12)

    def test_a_weight_counts_as_repetition(self) -> None:
        members = normal(150, 1, 1, 6).exp()
        twice = EmpiricalField(torch.cat([members, members[:50]]), grid=LINE)
        weights = torch.cat([torch.full((50,), 2.0), torch.ones(100), torch.zeros(1)])
        weighted = EmpiricalField(torch.cat([members, torch.full((1, 1, 1, 6), 1e6).double()]), weights, grid=LINE)
        gaps = members.sort(0).values.diff(dim=0).amax(0)  # inside the probability of two equal members, one interpolates
        assert ((twice.quantile(0.3) - weighted.quantile(0.3)).abs() <= gaps).all()
        torch.testing.assert_close(weighted.quantile(0.999), members.amax(0), rtol=1e-12, atol=0)

    @pytest.mark.parametrize("noise", [1e-6, 0.3, 40.0])
    def test_noise_blurs_the_members(self, noise: float) -> None:
        u = skewed(121)
        members = u.samples[:, 1, 0, 2].numpy()
        for q in self.Q:

            def gap(y: float, q: float = q) -> float:
                return float(stats.norm.cdf((y - members) / noise**0.5).mean()) - q

            expected = optimize.brentq(gap, -50.0, 100.0, xtol=1e-13)
            assert u.quantile(q, noise=noise)[1, 0, 2].item() == pytest.approx(expected, rel=1e-9, abs=1e-9)

    def test_channels_without_noise_keep_the_members_own(self) -> None:
        u = skewed()
        mixed = u.quantile(0.9, noise=torch.tensor([0.0, 0.5]))
        assert torch.equal(mixed[:, 0], u.quantile(0.9)[:, 0])
        expected = u.quantile(0.9, noise=0.5)[:, 1]
        torch.testing.assert_close(mixed[:, 1], expected, rtol=1e-14, atol=1e-14)  # sums round by their place

    def test_pieces_of_members_add_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = skewed().quantile(self.Q, noise=0.3)
        monkeypatch.setattr("probneural.distributions.intervals._CHUNK_ELEMENTS", 700)
        torch.testing.assert_close(skewed().quantile(self.Q, noise=0.3), whole, rtol=1e-12, atol=0)

    def test_a_hundred_effective_members_are_many(self) -> None:
        members = normal(200, 1, 1, 6).exp()
        few = EmpiricalField(members[:99], grid=LINE)
        torch.testing.assert_close(few.quantile(0.9), few.moment_matched().quantile(0.9), rtol=1e-12, atol=0)
        weights = torch.cat([torch.full((90,), 1.0), torch.full((110,), 1e-3)])
        heavy = EmpiricalField(members, weights, grid=LINE)
        torch.testing.assert_close(heavy.quantile(0.9), heavy.moment_matched().quantile(0.9), rtol=1e-12, atol=0)
        many = EmpiricalField(members[:100], grid=LINE)
        np.testing.assert_allclose(
            many.quantile(0.9).numpy(), np.quantile(members[:100].numpy(), 0.9, axis=0, method="hazen"), rtol=1e-12
        )


class TestInterval:
    def test_contains_its_ends(self) -> None:
        interval = Interval(torch.zeros(1, 1, 4, dtype=torch.float64), torch.ones(1, 1, 4, dtype=torch.float64))
        assert interval.contains([[[0.0, 1.0, 1.1, float("nan")]]]).tolist() == [[[True, True, False, False]]]

    @pytest.mark.bad_input
    def test_shapes_are_not_broadcast(self) -> None:
        with pytest.raises(ShapeError, match="not broadcast"):
            gaussian().interval().contains(torch.zeros(6))


@pytest.mark.bad_input
def test_members_that_are_not_finite_have_no_quantiles() -> None:
    members = normal(120, 1, 1, 6)
    members[3, 0, 0, 2] = torch.nan
    with pytest.raises(DataError, match="finite members"):
        EmpiricalField(members, grid=LINE).interval()
