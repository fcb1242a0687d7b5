"""Forecasts have a clock: states at equal times are compared, whatever the lead and history of the training windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import xarray

import probneural as pn
from probneural.errors import ArgumentError
from probneural.metrics.lead_table import LeadScores
from probneural.pairs import Dataset
from tests.helpers import normal

STEP = 0.25
STATES = normal(12, 13, 1, 8, seed="lead alignment", dtype=torch.float64).float()
TRAIN = pn.data.Trajectories.from_array(
    normal(12, 13, 1, 8, seed="lead alignment, training").float(), times=[STEP * number for number in range(13)], periodic=True
)
TRUTH = pn.data.Trajectories.from_array(STATES, times=[5.0 + STEP * number for number in range(13)], periodic=True)


def predictor(data: Dataset) -> pn.distributions.Predictor:
    """A predictor of which nothing but its training windows matters."""
    operator = pn.operators.FNO(data.inputs.channels, 1, modes=(3,), width=4, depth=1, seed=0)
    pn.fit(operator, data, epochs=1, show_progress=False)
    return pn.heads.LastLayerLaplace().fit(operator, data)


@pytest.fixture(scope="module")
def of_two_steps() -> pn.distributions.Predictor:
    return predictor(TRAIN.windows(lead=2))


@pytest.fixture(scope="module")
def of_two_states() -> pn.distributions.Predictor:
    return predictor(TRAIN.windows(history=2))


def forecast_of(fitted: pn.distributions.Predictor, start: pn.Field, steps: int = 6, **options: Any) -> Any:
    return fitted.rollout(start, steps=steps, members=4, seed=0, show_progress=False, **options)


def table(scores: LeadScores) -> torch.Tensor:
    return torch.stack([scores[name].values for name in ("relative_l2", "crps", "coverage")])


def every(count: int) -> pn.data.Trajectories:
    times = [STEP * count * number for number in range(-(-13 // count))]
    return pn.data.Trajectories.from_array(STATES[:, ::count], times=times, periodic=True)


def test_forecasts_know_the_times_of_their_leads(of_two_steps: pn.distributions.Predictor, tmp_path: Path) -> None:
    forecast = forecast_of(of_two_steps, TRUTH.at(0)[:])
    assert forecast.times.tolist() == [0.5 * lead for lead in range(1, 7)]
    forecast.to_zarr(tmp_path / "a.zarr")
    with xarray.open_zarr(tmp_path / "a.zarr") as written:
        assert written["time"].values.tolist() == [0.5 * lead for lead in range(7)]
    closed = pn.forecasts.propagate(of_two_steps, TRUTH.at(0)[:2], steps=3)
    assert closed.times.tolist() == [0.5, 1.0, 1.5]
    assert closed.under(closed.latent).times.tolist() == [0.5, 1.0, 1.5]


def test_scores_compare_states_at_equal_times(of_two_steps: pn.distributions.Predictor) -> None:
    forecast = forecast_of(of_two_steps, TRUTH.at(0)[:])
    scores = pn.metrics.score_by_lead(forecast, TRUTH)
    assert torch.equal(table(scores), table(pn.metrics.score_by_lead(forecast, every(2))))
    assert torch.equal(table(scores), table(pn.metrics.score_by_lead(forecast, TRUTH[:])))  # in memory
    assert scores.times.tolist() == forecast.times.tolist()
    expected = pn.metrics.relative_l2(pn.Field(forecast.at(3).mean, TRUTH.grid), TRUTH.at(6)[:]).mean()
    assert float(scores["relative_l2"].values[2]) == pytest.approx(float(expected), rel=1e-6)


def test_scales_and_bands_compare_states_at_equal_times(of_two_steps: pn.distributions.Predictor) -> None:
    forecast = forecast_of(of_two_steps, TRUTH.at(0)[:])
    scales = [pn.calibration.LeadScale(local=False).fit(forecast, truth).scales for truth in (TRUTH, every(2))]
    assert torch.equal(*scales)
    bands = [pn.calibration.HorizonBand().fit(forecast, truth).quantile for truth in (TRUTH, every(2))]
    assert bands[0] == bands[1]


def test_what_was_fitted_at_other_times_is_refused(
    of_two_steps: pn.distributions.Predictor, of_two_states: pn.distributions.Predictor
) -> None:
    forecast, other = forecast_of(of_two_steps, TRUTH.at(0)[:]), forecast_of(of_two_states, TRUTH.histories(2)[:12])
    with pytest.raises(ArgumentError, match=r"leads are at 0.5, 1, 1.5, 2, ..., where scales were fitted"):
        pn.calibration.LeadScale(local=False).fit(forecast, TRUTH)(other)
    with pytest.raises(ArgumentError, match="where bands were fitted"):
        pn.calibration.HorizonBand().fit(forecast, TRUTH)(other)


def test_times_that_the_truth_lacks_are_refused(of_two_steps: pn.distributions.Predictor) -> None:
    forecast = forecast_of(of_two_steps, TRUTH.at(0)[:])
    with pytest.raises(ArgumentError, match=r"none at 0.5, 1, 2, 2.5") as caught:
        pn.metrics.score_by_lead(forecast, every(3))  # states every 0.75
    assert "roll out fewer steps" in caught.value.remedy
    with pytest.raises(ArgumentError, match=r"none at 3.5"):
        pn.metrics.score_by_lead(forecast_of(of_two_steps, TRUTH.at(0)[:], steps=7), TRUTH)


def test_the_history_is_that_of_the_training_windows(of_two_states: pn.distributions.Predictor) -> None:
    starts = TRUTH.windows(history=2).inputs[[0, 11, 22]]
    forecast = forecast_of(of_two_states, starts)
    assert forecast.history == 2
    assert torch.equal(
        forecast.at(4).mean, forecast_of(of_two_states, starts, inputs=pn.forecasts.StepInputs(history=2)).at(4).mean
    )
    with pytest.raises(ArgumentError, match=r"history=2, as in training windows; got history=1; leave history= out"):
        forecast_of(of_two_states, starts, inputs=pn.forecasts.StepInputs(history=1))
    closed = pn.forecasts.propagate(of_two_states, starts, steps=2)
    assert torch.allclose(closed.at(1).mean, of_two_states(starts).mean)


def test_truth_that_begins_with_the_input_states_counts_from_the_last_of_them(
    of_two_states: pn.distributions.Predictor,
) -> None:
    starts = TRUTH.windows(history=2).inputs[list(range(0, 11 * 12, 11))]
    forecast = forecast_of(of_two_states, starts)
    later = pn.data.Trajectories.from_array(STATES[:, 1:], times=[STEP * number for number in range(12)], periodic=True)
    expected = pn.metrics.score_by_lead(forecast, later)
    assert torch.equal(table(pn.metrics.score_by_lead(forecast, TRUTH)), table(expected))


def test_forecasts_without_a_clock_are_compared_by_number() -> None:
    pairs = TRAIN.windows()[:20]
    forecast = forecast_of(predictor(pn.FieldPairs(pairs.inputs, pairs.outputs)), TRUTH.at(0)[:])
    assert forecast.times is None
    scores = pn.metrics.score_by_lead(forecast, TRUTH)
    assert torch.equal(table(scores), table(pn.metrics.score_by_lead(forecast, every(1))))
    assert scores.times.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_histories_with_leads_beyond_one_are_refused() -> None:
    data = TRAIN.windows(history=2, lead=2)
    with pytest.raises(ArgumentError, match="neighbouring states"):
        forecast_of(predictor(data), data.inputs[:2])


@pytest.mark.parametrize("memory", [False, True])
def test_forecasts_of_months_are_compared_at_multiples_of_their_lead(memory: bool) -> None:
    months = torch.tensor([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]).cumsum(0).double()
    data = [
        pn.data.Trajectories.from_array(one, times=months, periodic=True)
        for one in (normal(12, 13, 1, 8, seed=1).float(), STATES)
    ]
    forecast = forecast_of(predictor(data[0].windows(lead=2)), data[1].at(0)[:])
    assert forecast.times is None
    scores = pn.metrics.score_by_lead(forecast, data[1][:] if memory else data[1])
    expected = pn.metrics.relative_l2(pn.Field(forecast.at(3).mean, TRUTH.grid), TRUTH.at(6)[:]).mean()
    assert float(scores["relative_l2"].values[2]) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("decimals", [2, 3])
def test_rounded_times_are_even(decimals: int) -> None:
    times = (torch.arange(13, dtype=torch.float64) / 3).round(decimals=decimals)
    train, truth = (
        pn.data.Trajectories.from_array(one, times=times, periodic=True)
        for one in (normal(12, 13, 1, 8, seed=1).float(), STATES)
    )
    windows = train.windows(lead=2)
    assert len(train.windows(history=3)) == 12 * 10
    assert windows.clock is not None
    assert windows.clock.step == pytest.approx(1 / 3, rel=1e-3)
    assert len(truth[:].windows(history=3)) == 12 * 10
    forecast = forecast_of(predictor(windows), truth.at(0)[:])
    expected = pn.metrics.relative_l2(pn.Field(forecast.at(3).mean, TRUTH.grid), TRUTH.at(6)[:]).mean()
    for states in (truth, truth[:]):
        scores = pn.metrics.score_by_lead(forecast, states)
        assert float(scores["relative_l2"].values[2]) == pytest.approx(float(expected), rel=1e-6)


def test_a_start_that_is_no_true_state_is_the_nearest_of_the_input_states(
    of_two_states: pn.distributions.Predictor,
) -> None:
    starts = TRUTH.windows(history=2).inputs[list(range(0, 11 * 12, 11))]
    noisy = pn.Field(starts.values + 1e-3 * normal(*starts.values.shape, seed=2), starts.grid)
    forecast = forecast_of(of_two_states, noisy)
    later = pn.data.Trajectories.from_array(STATES[:, 1:], times=[STEP * number for number in range(12)], periodic=True)
    expected = table(pn.metrics.score_by_lead(forecast, later))
    assert torch.equal(table(pn.metrics.score_by_lead(forecast, TRUTH)), expected)
