from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from probneural.calibration import LeadScale
from probneural.calibration.variance.by_lead import LeadScaling, fit_saturation, saturated
from probneural.distributions import GaussianField
from probneural.distributions.forecasts.trajectory import Forecast
from probneural.errors import ArgumentError, CalibrationError, DataError, GridError, ShapeError
from probneural.functionals import integral
from probneural.grids import Grid
from probneural.metrics import chi2, compare, score_by_lead, spread_skill
from probneural.pairs import FieldPairs
from probneural.pairs.provenance import row_keys
from tests.autoregression import DECAY, GRID, Exact, Members, Truth, forecast_and_truth
from tests.helpers import normal

FACTORS = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
"""By how much the deviations of members are wrong at each lead."""


@pytest.mark.parametrize("members", [2, 8, 40])
def test_the_scale_is_that_of_the_distribution_whatever_the_number_of_members(members: int) -> None:
    forecast, truth = forecast_and_truth(4000, steps=3, members=members, channels=2, seed=1)
    scaling = LeadScale(local=False).fit(forecast.spread(FACTORS), truth)
    expected = (FACTORS**-2)[:, None].expand(3, 2)
    torch.testing.assert_close(scaling.scales, expected, rtol=0.06, atol=0.06 / members)  # of 1/s, the error of a mean


@pytest.mark.parametrize("members", [2, 8])
def test_scales_of_few_members_hold_for_many(members: int) -> None:
    few, truth = forecast_and_truth(4000, steps=3, members=members, seed=2)
    many, test = forecast_and_truth(1000, steps=3, members=40, seed=3)
    scaling = LeadScale(local=False).fit(few.spread(FACTORS), truth)
    before, after = (score_by_lead(f, test) for f in (many.spread(FACTORS), scaling(many.spread(FACTORS))))
    torch.testing.assert_close(before["spread_skill"].values, FACTORS, rtol=0.1, atol=0)
    score = after["spread_skill"]
    assert bool(((score.values - 1.0).abs() < 4 * score.errors + 0.03).all())  # the scales have an error of their own


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
    factors = (5.0 * scales[:, 0] + 1.0) / 6.0  # of five members, about a mean that stays
    expected = (factors[0] * factors[2]).sqrt() * (deviations(1, forecast) * deviations(3, forecast)).mean(0)
    torch.testing.assert_close(cross, expected)
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
    pairs = torch.cat([row_keys(FieldPairs(truth.at(lead), truth.at(lead + 1))) for lead in range(2)], 1).flatten()
    assert torch.equal(scaling.calibrated_on, pairs)
    twice = LeadScale().fit(scaling(forecast), truth)
    assert torch.equal(twice(scaling(forecast)).calibrated_on.unique(), pairs.unique())
    assert "2 leads, 1 channels" in repr(scaling)
    assert "ScaledForecast(" in repr(scaling(forecast))


def uneven(n: int, *, members: int = 40, seed: int = 0, noise: float = 0.0) -> tuple[Members, Truth]:
    """Members that know nothing of where errors are large: on half of the domain they are four times those of the other."""
    forecast, truth = forecast_and_truth(n, steps=2, members=members, seed=seed)
    centre = torch.stack([DECAY**lead * truth.start.values for lead in (1, 2)])
    states = centre + UNEVEN * (truth.states - centre)
    return forecast, Truth(states + math.sqrt(noise) * normal(*states.shape, seed=f"noise {seed}"), truth.start)


UNEVEN = torch.tensor([2.0] * 4 + [0.5] * 4).double()
"""Factors of errors, by point."""


def covered(forecast: Forecast, truth: Truth, *, noise: float = 0.0) -> torch.Tensor:
    """Fraction of true values at lead 2 in their intervals at .9, by halves of the domain."""
    u, values = forecast.at(2), truth.at(2).values
    return u.interval(0.9, noise=noise).contains(values).double().mean((0, 1)).unflatten(0, (2, 4)).mean(1)


def test_errors_that_vary_along_functions_get_a_local_scale() -> None:
    forecast, truth = uneven(400)
    other, test = uneven(400, seed=1)
    even, local = (LeadScale(local=flag).fit(forecast, truth) for flag in (False, True))
    assert "local at 2)" in repr(local)
    assert "local" not in repr(even)
    assert float(covered(even(other), test)[0]) < 0.8
    torch.testing.assert_close(covered(local(other), test), torch.full((2,), 0.9).double(), atol=0.04, rtol=0)
    before, after = (score_by_lead(scaling(other), test) for scaling in (even, local))
    assert bool((after["crps"].values < before["crps"].values).all())
    # On the calibration functions the mean standardised square is 1, of the distribution that members are drawn from, until
    # the largest variances are changed.
    for lead, u in replace(local, saturations=None)(forecast).leads():
        comparison = compare(u, truth.at(lead))
        assert float(chi2(comparison).mean()) == pytest.approx(41 / 39, rel=1e-9)
        torch.testing.assert_close(u.mean, forecast.at(lead).mean)
    # Deviations are multiplied by what is told, and nothing else.
    factors = local.deviation_factors(2, other.at(2))
    assert factors.shape == (400, 1, 8)
    torch.testing.assert_close(local(other).at(2).standard_deviation, factors * other.at(2).standard_deviation)


def exaggerated(n: int, *, seed: int) -> tuple[Members, Truth]:
    """The same, but in one function of fifty members are thirty times as far from what is true of the others."""
    forecast, truth = uneven(n, seed=seed)
    far = torch.where(torch.arange(n) % 50 == 0, 30.0, 1.0).double()[:, None, None]
    centre = torch.stack([DECAY**lead * truth.start.values for lead in (1, 2)])[:, None]
    return replace(forecast, states=centre + far * (forecast.states - centre)), truth


def test_the_largest_variances_saturate_so_that_spread_is_as_large_as_skill() -> None:
    forecast, truth = exaggerated(400, seed=0)
    other, test = exaggerated(400, seed=1)
    scaling = LeadScale().fit(forecast, truth)
    without = replace(scaling, saturations=None)
    assert scaling.saturations is not None
    assert bool((scaling.saturations > 0).any())
    for lead, u in scaling(forecast).leads():
        assert float(spread_skill(compare(u, truth.at(lead)))) == pytest.approx(1.0, rel=1e-9)
    before, after = (score_by_lead(one(other), test)["spread_skill"].values for one in (without, scaling))
    assert bool((before > 1.1).all())
    torch.testing.assert_close(after, torch.ones(2).double(), atol=0.05, rtol=0)
    # No variance grows, and those that are not large stay.
    new, old = (one.deviation_factors(2, other.at(2)) for one in (scaling, without))
    assert bool((new <= old).all())
    torch.testing.assert_close(new.median(), old.median(), rtol=0.02, atol=0)


def test_forecasts_that_are_scaled_in_another_way_have_another_latent() -> None:
    forecast, ones = Exact(torch.zeros(1, 1, 8).double(), 2), torch.ones(2, 1).double()
    settings = [{}, {"saturations": ones}, {"saturations": 2.0 * ones}]
    scaled = [LeadScaling(ones, calibrated_on=torch.zeros(0, dtype=torch.int64), **one)(forecast).at(1) for one in settings]
    assert len({u.latent.id for u in scaled if isinstance(u, GaussianField)}) == 3


def test_even_errors_of_a_gaussian_forecast_get_none() -> None:
    for seed in range(4):
        members, truth = forecast_and_truth(300, steps=3, seed=seed)
        scaling = LeadScale().fit(Exact(members.start, 3), truth)
        assert scaling.local == [None] * 3
        assert torch.equal(scaling.scales, LeadScale(local=False).fit(Exact(members.start, 3), truth).scales)


def test_a_local_scale_widens_the_states_and_not_the_noise() -> None:
    noise = 0.3
    forecast, truth = uneven(600, noise=noise)
    other, test = uneven(600, seed=1, noise=noise)
    local = LeadScale(noise=noise).fit(forecast, truth)
    torch.testing.assert_close(covered(local(other), test, noise=noise), torch.full((2,), 0.9).double(), atol=0.04, rtol=0)
    without = uneven(600, seed=1)[1]
    states = compare(local(other).at(2), without.at(2))
    by_half = (states.residual.square() / states.variance).mean((0, 1)).unflatten(0, (2, 4)).mean(1)
    torch.testing.assert_close(by_half, torch.ones(2).double(), atol=0.35, rtol=0)
    u, scaled = forecast.at(1), replace(local, saturations=None)(forecast).at(1)
    assert float(chi2(compare(u, truth.at(1), noise=noise)).mean()) != pytest.approx(1.0, abs=0.1)
    size = 41 / 39  # members are a sample: their variance stands for a larger one, the noise does not
    predictive = size * scaled.variance + noise
    standardised = (truth.at(1).values - scaled.mean).square() / predictive
    assert float(standardised.mean()) == pytest.approx(1.0, abs=1e-9)


def test_gaussian_leads_with_local_scales_stay_joint() -> None:
    _, truth = uneven(300)
    forecast = Exact(truth.start.values, 2)
    scaled = LeadScale().fit(forecast, truth)(forecast)
    assert scaled.scaling.local[0] is not None
    first, second = scaled.at(1), scaled.at(2)
    assert isinstance(first, GaussianField)
    assert isinstance(second, GaussianField)
    assert first.latent.id == second.latent.id != forecast.at(1).latent.id
    factors = [scaled.scaling.deviation_factors(lead, forecast.at(lead)) for lead in (1, 2)]
    whole = [forecast.at(lead).root.dense()[0, 0] * factor[0, 0, :, None] for lead, factor in zip((1, 2), factors, strict=True)]
    torch.testing.assert_close(first.root.dense()[0, 0] @ second.root.dense()[0, 0].mT, whole[0] @ whole[1].mT)


@pytest.mark.bad_input
def test_a_local_scale_is_not_carried_elsewhere() -> None:
    forecast, truth = uneven(60)
    local = LeadScale().fit(forecast, truth)
    assert local.local[1] is not None
    with pytest.raises(ArgumentError, match="forecasts of 40 members, as scales were fitted with; got 12"):
        local(uneven(5, members=12)[0]).at(2)
    with pytest.raises(ArgumentError, match="got Gaussian states"):
        local(Exact(truth.start.values, 2)).at(2)
    with pytest.raises(GridError, match="uniform grids over the domain"):
        local(replace(uneven(5)[0], grid=Grid.scattered(GRID.points, GRID.weights))).at(2)
    with pytest.raises(GridError, match="uniform grids over the domain"):
        local(replace(uneven(5)[0], grid=Grid.uniform((8,), lengths=2.0))).at(2)
    with pytest.raises(ArgumentError, match="local"):
        LeadScale(local="no")  # type: ignore[arg-type]


def test_values_that_are_right_to_rounding_stand_in_no_ones_way() -> None:
    """A wall where the solution is given: no error and no spread there."""
    forecast, truth = uneven(200)
    forecast.states[..., 0] = 1.0  # type: ignore[attr-defined]
    truth.states[..., 0] = 1.0
    scaling = LeadScale().fit(forecast, truth)
    assert scaling.local[0] is not None
    assert bool((scaling(forecast).at(1).variance[..., 0] < 1e-20).all())
    # An error where nothing is uncertain is what no factor can mend: the scale of the lead stays.
    truth.states[..., 0] = 1.1
    assert LeadScale().fit(forecast, truth).local == [None, None]


def test_what_cannot_be_scaled_is_refused() -> None:
    forecast, truth = forecast_and_truth(3, steps=2, members=4)
    states = forecast.states.clone()
    states[0] = states[0, :1]
    with pytest.raises(CalibrationError, match="at leads \\[1\\]"):
        LeadScale().fit(replace(forecast, states=states), truth)
    with pytest.raises(CalibrationError, match="errors above the noise"):
        LeadScale(noise=1e6).fit(forecast, truth)
    one, single = forecast_and_truth(1, steps=2, members=3)
    with pytest.raises(CalibrationError, match="2 or more calibration trajectories"):
        LeadScale().fit(one, single)
    alone, alone_truth = forecast_and_truth(3, steps=2, members=1)
    with pytest.raises(DataError, match="two or more members"):
        LeadScale().fit(alone, alone_truth)
    with pytest.raises(ArgumentError, match="at most 2 leads"):
        LeadScale().fit(forecast, truth)(forecast_and_truth(3, steps=3)[0])
    with pytest.raises(ShapeError, match="1 channels"):
        LeadScale().fit(forecast, truth)(forecast_and_truth(3, steps=2, channels=2)[0]).at(1)
    with pytest.raises(ShapeError, match="3 true trajectories"):
        LeadScale().fit(forecast, single)
    with pytest.raises(ArgumentError, match="a lead up to 2"):
        LeadScale().fit(forecast_and_truth(3, steps=3)[0], truth)


WEIGHTS = torch.tensor([0.4, 0.1, 0.2, 0.2, 0.1], dtype=torch.float64)


def averages(values: torch.Tensor) -> torch.Tensor:
    return (values @ WEIGHTS).mean(0)


def test_the_mean_variance_becomes_the_mean_square_where_it_is_larger() -> None:
    variances, squares = normal(30, 3, 5, seed="v").mul(2.0).exp(), normal(30, 3, 5, seed="e").square()
    squares[:, 2] *= 100.0  # the mean variance is too small: it stays
    saturation = fit_saturation(variances, squares, weights=WEIGHTS)
    after = saturated(variances, saturation[:, None].expand_as(variances))
    torch.testing.assert_close(averages(after)[:2], averages(squares)[:2], rtol=1e-9, atol=0)
    assert bool((saturation[:2] > 0).all())
    assert torch.equal(after[:, 2], variances[:, 2])
    t = torch.linspace(0.1, 2.0, 20).double()
    assert bool(((saturated(t, saturation[0].expand_as(t)) / t).diff() < 0).all())


@pytest.mark.parametrize("unit", [1e-170, 1e-8, 1e8, 1e160])
def test_saturation_does_not_depend_on_units(unit: float) -> None:
    variances, squares = normal(30, 1, 5, seed="v").mul(2.0).exp(), normal(30, 1, 5, seed="e").square()
    expected = fit_saturation(variances, squares, weights=WEIGHTS)
    rescaled = fit_saturation(unit * variances, unit * squares, weights=WEIGHTS)
    torch.testing.assert_close(rescaled * unit, expected, rtol=1e-6, atol=0)


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
    assert float(fit_saturation(ones, zeros, weights=WEIGHTS)) == 0.0
    assert float(fit_saturation(zeros, ones, weights=WEIGHTS)) == 0.0
