from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from probneural.calibration import LeadScale, LeadScaling
from probneural.distributions import Forecast, GaussianField
from probneural.errors import ArgumentError, CalibrationError, DataError, ShapeError
from probneural.fingerprints import row_fingerprints
from probneural.functionals import integral
from probneural.metrics import chi2, compare, score_by_lead, spread_skill
from tests.autoregression import DECAY, GRID, Exact, Truth, forecast_and_truth

FACTORS = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
"""By how much the deviations of members are wrong at each lead."""


@pytest.mark.parametrize("members", [3, 24])
def test_the_scale_undoes_what_is_wrong_whatever_the_number_of_members(members: int) -> None:
    forecast, truth = forecast_and_truth(3000, steps=3, members=members, channels=2, seed=1)
    scaling = LeadScale().fit(forecast.scaled(FACTORS), truth)
    torch.testing.assert_close(scaling.scales, (FACTORS**-2)[:, None].expand(3, 2), rtol=0.06, atol=0)


def test_scales_of_few_members_hold_for_many() -> None:
    few, truth = forecast_and_truth(2000, steps=3, members=4, seed=2)
    many, test = forecast_and_truth(500, steps=3, members=40, seed=3)
    scaling = LeadScale().fit(few.scaled(FACTORS), truth)
    before, after = (score_by_lead(f, test) for f in (many.scaled(FACTORS), scaling(many.scaled(FACTORS))))
    torch.testing.assert_close(before["spread_skill"].values, FACTORS, rtol=0.1, atol=0)
    for name in ("spread_skill", "chi2"):
        expected = 1.0 if name == "spread_skill" else 39 / 37  # the mean of F(1, 39)
        score = after[name]
        gap = (score.values - expected).abs()
        assert bool((gap < 4 * score.errors + 0.03).all()), name  # the scales have an error of their own


def test_a_gaussian_forecast_ends_with_chi2_of_one() -> None:
    members, truth = forecast_and_truth(2000, steps=3, channels=2, seed=4)
    forecast = Exact(members.start, 3)
    wrong = LeadScaling((FACTORS**2)[:, None].expand(3, 2), calibrated_on=torch.zeros(0, dtype=torch.int64))(forecast)
    scaled = LeadScale().fit(wrong, truth)(wrong)
    for lead, u in scaled.leads():
        comparison = compare(u, truth.at(lead))
        assert chi2(comparison).mean().item() == pytest.approx(1.0, abs=0.05)
        # Exact on the calibration functions themselves.
        torch.testing.assert_close(spread_skill(comparison), torch.ones(2).double(), rtol=1e-12, atol=0)
        assert torch.equal(u.mean, forecast.at(lead).mean)


def test_noise_in_the_truth_is_not_spread() -> None:
    forecast, truth = forecast_and_truth(4000, steps=2, members=6, seed=5)
    noisy = Truth(truth.states + 1.5 * torch.randn(truth.states.shape, generator=torch.Generator().manual_seed(0)), truth.start)
    torch.testing.assert_close(LeadScale(noise=2.25).fit(forecast, noisy).scales, torch.ones(2, 1).double(), rtol=0.05, atol=0)
    assert bool((LeadScale().fit(forecast, noisy).scales > 1.2).all())


def test_scaled_leads_keep_their_correlations() -> None:
    forecast, _ = forecast_and_truth(2, steps=3, members=5)
    scales = torch.tensor([[4.0], [1.0], [0.25]]).double()
    scaled = LeadScaling(scales, calibrated_on=torch.zeros(0, dtype=torch.int64))(forecast)
    assert isinstance(scaled, Forecast)
    assert (scaled.steps, len(scaled), scaled.grid) == (3, 2, GRID)

    def deviations(lead: int, u: object) -> torch.Tensor:
        samples = u.at(lead).samples  # type: ignore[attr-defined]
        return samples - samples.mean(0)

    cross = (deviations(1, scaled) * deviations(3, scaled)).mean(0)
    torch.testing.assert_close(cross, math.sqrt(4 * 0.25) * (deviations(1, forecast) * deviations(3, forecast)).mean(0))
    assert torch.equal(scaled.at(0).mean, forecast.at(0).mean)
    for lead, u in scaled.leads():
        assert torch.equal(u.mean, scaled.at(lead).mean)


def test_gaussian_leads_stay_joint() -> None:
    """What is measured at lead 1 moves lead 2 by the regression coefficient, which the scales change by the ratio of roots."""
    forecast = Exact(torch.zeros(1, 1, 8).double(), 2)
    scaling = LeadScaling(torch.tensor([[1.0], [4.0]]).double(), calibrated_on=torch.zeros(0, dtype=torch.int64))
    scaled = scaling(forecast)
    first, second = scaled.at(1), scaled.at(2)
    assert isinstance(first, GaussianField)
    assert isinstance(second, GaussianField)
    total = integral(GRID)
    measured = first.condition(total, torch.ones(1, 1, 1).double(), noise=1e-12)
    moved = second.under(measured.latent).apply(total).mean.item()
    assert moved == pytest.approx(DECAY * 2.0, rel=1e-6)
    with pytest.raises(Exception, match="latent"):
        forecast.at(2).under(measured.latent)


def test_what_scales_were_fitted_on_is_remembered() -> None:
    forecast, truth = forecast_and_truth(6, steps=2, members=3)
    scaling = LeadScale().fit(forecast, truth)
    pairs = row_fingerprints(truth.start.values, truth.at(1).values)
    assert torch.equal(scaling.calibrated_on, pairs)
    twice = LeadScale().fit(scaling(forecast), truth)
    assert torch.equal(twice(scaling(forecast)).calibrated_on.unique(), pairs.unique())
    assert "2 leads, 1 channels" in repr(scaling)
    assert "ScaledForecast(" in repr(scaling(forecast))


def test_what_cannot_be_scaled_is_refused() -> None:
    forecast, truth = forecast_and_truth(3, steps=2, members=4)
    states = forecast.states.clone()
    states[0] = states[0, :1]
    with pytest.raises(CalibrationError, match="at leads \\[1\\]"):
        LeadScale().fit(replace(forecast, states=states), truth)
    with pytest.raises(CalibrationError, match="errors above the noise"):
        LeadScale(noise=1e6).fit(forecast, truth)
    one, single = forecast_and_truth(1, steps=2, members=3)
    with pytest.raises(CalibrationError, match="at least 2"):
        LeadScale().fit(one, single)
    alone, alone_truth = forecast_and_truth(3, steps=2, members=1)
    with pytest.raises(DataError, match="two or more members"):
        LeadScale().fit(alone, alone_truth)
    with pytest.raises(ArgumentError, match="at most 2 leads"):
        LeadScale().fit(forecast, truth)(forecast_and_truth(3, steps=3)[0])
    with pytest.raises(ShapeError, match="1 channels"):
        LeadScale().fit(forecast, truth)(forecast_and_truth(3, steps=2, channels=2)[0]).at(1)
    with pytest.raises(ShapeError, match="trajectories of 3 functions"):
        LeadScale().fit(forecast, single)
    with pytest.raises(ArgumentError, match="a lead up to 2"):
        LeadScale().fit(forecast_and_truth(3, steps=3)[0], truth)
    with pytest.raises(ArgumentError, match="positive finite scales"):
        LeadScaling(torch.zeros(2, 1).double(), calibrated_on=torch.zeros(0, dtype=torch.int64))


@pytest.mark.bad_input
def test_what_is_no_forecast_is_not_scaled() -> None:
    forecast, truth = forecast_and_truth(3, steps=2, members=4)
    with pytest.raises(DataError, match="roll a predictor out"):
        LeadScale().fit(forecast, truth)(truth)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="give trajectories"):
        LeadScale().fit(forecast, torch.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="noise"):
        LeadScale(noise=-1.0)
