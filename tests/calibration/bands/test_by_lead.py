from __future__ import annotations

import pytest
import torch
from scipy import stats

from probneural.calibration import HorizonBand, LeadScale
from probneural.calibration.bands.conformal import TrajectoryBand, conformal_scores_by_lead
from probneural.errors import ArgumentError, CalibrationError
from probneural.fields import Field
from probneural.metrics import compare
from probneural.pairs.provenance import row_keys
from probneural.trajectories import FieldTrajectories
from tests.autoregression import Exact, Truth, forecast_and_truth
from tests.calibration.synthetic import GRID, Members, changed, scaled_by
from tests.helpers import normal


def part(truth: Truth, rows: slice) -> Truth:
    return Truth(truth.states[:, rows], truth.start[rows])


def test_coverage_of_the_horizon_follows_the_beta_distribution() -> None:
    """Over 400 fresh calibration sets of 39 trajectories; the forecast is exact, its score's distribution is not used."""
    members, truth = forecast_and_truth(400 * 39 + 4000, steps=3, seed="beta")
    scores = conformal_scores_by_lead(Exact(members.start, 3), truth)
    largest, test = scores.amax(1).split([400 * 39, 4000])
    order = test.sort().values
    quantiles = largest.reshape(400, 39).sort(1).values[:, 35].contiguous()  # rank 36 = ceil(40 * 0.9)
    assert HorizonBand(0.9).fit(Exact(members.start[:39], 3), part(truth, slice(39))).quantile == quantiles[0].item()
    coverage = torch.searchsorted(order, quantiles, right=True) / 4000
    assert stats.kstest(coverage.numpy(), stats.beta(36, 4).cdf).pvalue > 0.01
    assert coverage.mean().item() == pytest.approx(0.9, abs=4 * stats.beta(36, 4).std() / 20)
    wrong = largest.reshape(400, 39).sort(1).values[:, 34].contiguous()
    assert stats.kstest((torch.searchsorted(order, wrong) / 4000).numpy(), stats.beta(36, 4).cdf).pvalue < 1e-6


def test_a_wrong_forecast_is_covered_all_the_same() -> None:
    factors = torch.tensor([0.3, 1.0, 5.0]).double()
    (forecast, truth), (other, test) = (forecast_and_truth(n, steps=3, members=5, seed=n) for n in (400, 2000))
    coverage = HorizonBand(0.8).fit(forecast.scaled(factors), truth).coverage(other.scaled(factors), test)
    assert coverage.horizon == pytest.approx(0.8, abs=0.08)
    assert coverage.leads[0] == pytest.approx(coverage.horizon, abs=0.02)  # the lead whose spread is too small decides
    assert coverage.leads[2] == 1.0


def test_scales_first_make_the_band_narrow() -> None:
    factors = torch.tensor([0.3, 1.0, 5.0]).double()
    (first, scaling), (second, conformal), (third, test) = (
        forecast_and_truth(200, steps=3, members=12, seed=name) for name in ("scaling", "conformal", "test")
    )
    calibrated = LeadScale().fit(first.scaled(factors), scaling)
    raw = HorizonBand().fit(second.scaled(factors), conformal)(third.scaled(factors))
    band = HorizonBand().fit(calibrated(second.scaled(factors)), conformal)
    scaled = band(calibrated(third.scaled(factors)))
    assert raw.at(3).width().mean() > 5 * scaled.at(3).width().mean()
    assert band.coverage(calibrated(third.scaled(factors)), test).horizon == pytest.approx(0.9, abs=0.08)


def test_bands_are_the_mean_and_so_many_standard_deviations() -> None:
    forecast, truth = forecast_and_truth(20, steps=2, members=4, channels=2)
    band = HorizonBand(0.5, noise=0.3, floor=0.0).fit(forecast, truth)
    trajectory = band(forecast)
    assert (trajectory.steps, len(trajectory)) == (2, 20)
    inside = torch.ones(20, dtype=torch.bool)
    for lead, bands in trajectory.leads():
        comparison = compare(forecast.at(lead), truth.at(lead), noise=0.3)
        torch.testing.assert_close(bands.half_width, band.quantile * comparison.variance.sqrt())
        assert torch.equal(trajectory.at(lead).mean, bands.mean)
        inside &= bands.contains(truth.at(lead))
    assert inside.double().mean().item() == band.coverage(forecast, truth).horizon == 0.55  # rank 11 of 20
    assert "quantile=" in repr(band)
    assert band.level == 0.5


def test_trajectories_that_variances_were_scaled_on_are_refused() -> None:
    forecast, truth = forecast_and_truth(20, steps=2, members=4)
    scaled = LeadScale().fit(forecast, truth)(forecast)
    with pytest.raises(CalibrationError, match="20 of 20 used for scaling"):
        HorizonBand().fit(scaled, truth)


def test_pairs_that_the_predictor_was_scaled_on_are_refused() -> None:
    """The first window of a trajectory names it."""
    states = normal(12, 3, 1, 16, seed="states")
    truth = FieldTrajectories(Field(states[:, 0], GRID), states[:, 1:], times=torch.tensor([1.0, 2.0]).double())
    predictor = changed(scaled_by(1.0, Members()), calibrated_on=row_keys(truth.windows(stride=2)).flatten())
    forecast = predictor.rollout(truth.start, steps=2, members=3, seed=0)
    with pytest.raises(CalibrationError, match="12 of 12 used for scaling"):
        HorizonBand().fit(forecast, truth)
    assert HorizonBand().fit(Members().rollout(truth.start, steps=2, members=3, seed=0), truth).steps == 2


def test_what_has_no_band_is_refused() -> None:
    forecast, truth = forecast_and_truth(8, steps=2, members=4)
    with pytest.raises(CalibrationError, match="at least 9"):
        HorizonBand(0.9).fit(forecast, truth)
    band = TrajectoryBand(1.0, steps=2, method=HorizonBand())
    longer, _ = forecast_and_truth(8, steps=3, members=4)
    with pytest.raises(ArgumentError, match="at most 2 leads"):
        band(longer)
    with pytest.raises(ArgumentError, match="lead"):
        band(forecast).at(0)
