"""Scores by lead against xskillscore, of the ensemble as it verifies forecasts: one array with dimensions of all kinds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray

from probneural.metrics import compare, crps, score_by_lead, spread_skill
from tests.autoregression import forecast_and_truth

xskillscore = pytest.importorskip("xskillscore", reason="xskillscore is not installed")
DIMENSIONS = ("lead", "sample", "channel", "x")


def test_scores_are_those_of_xskillscore() -> None:
    forecast, truth = forecast_and_truth(10, steps=3, members=6, channels=2)
    scores = score_by_lead(forecast, truth)
    observed = xarray.DataArray(truth.states.numpy(), dims=DIMENSIONS)
    members = xarray.DataArray(forecast.states.numpy(), dims=("lead", "member", *DIMENSIONS[1:]))
    means = ["sample", "channel", "x"]

    plain = xskillscore.crps_ensemble(observed, members, dim=means).values
    ours = [crps(compare(u, truth.at(lead))).mean().item() for lead, u in forecast.leads()]
    np.testing.assert_allclose(ours, plain, rtol=1e-12)
    pairs = np.abs(forecast.states.numpy()[:, :, None] - forecast.states.numpy()[:, None]).mean((1, 2, 3, 4, 5))
    np.testing.assert_allclose(scores["crps"].values, plain - pairs / (2 * 5), rtol=1e-12)  # from the mean over all pairs

    rmse = xskillscore.rmse(members.mean("member"), observed, dim=["sample", "x"])
    np.testing.assert_allclose(scores["rmse"].values, rmse.mean("channel"), rtol=1e-12)
    spread = np.sqrt(members.var("member", ddof=1).mean(["sample", "x"]) * 7 / 6)
    np.testing.assert_allclose(scores["spread_skill"].values, (spread / rmse).mean("channel"), rtol=1e-12)
    torch.testing.assert_close(spread_skill(compare(forecast.at(1), truth.at(1))), torch.as_tensor((spread / rmse).values[0]))

    histogram = xskillscore.rank_histogram(observed, members, dim=means).values
    assert scores.ranks is not None
    np.testing.assert_allclose(scores.ranks.frequencies, histogram / histogram.sum(1, keepdims=True), rtol=1e-12)
