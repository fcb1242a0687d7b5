"""Linearised propagation: dense algebra where the step is affine, closed forms of a diagonal operator, smoothing."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from probneural.distributions import DenseRoot, Forecast, GaussianField
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.forecasts import GaussianTrajectory, propagate
from probneural.functionals import MatrixFunctional, sensors
from tests.forecasts.cases import GRID, ScalarPredictor, affine, dense_forecast, initial_of, start_of
from tests.helpers import normal

STEPS = 4
CHOICES = [
    (draws, own, has_initial)
    for draws, own, has_initial in itertools.product(("trajectory", "step"), ("trajectory", "step", "none"), (False, True))
]


def gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def stacked(forecast: GaussianTrajectory) -> tuple[Tensor, Tensor]:
    """Mean and root of leads 0 to `steps`, `(n, leads, c p)` and `(n, leads, c p, k)`."""
    fields = [forecast.at(lead) for lead in range(forecast.steps + 1)]
    means = torch.stack([field.mean.flatten(1) for field in fields], dim=1)
    return means, torch.stack([field.root.dense().flatten(1, 2) for field in fields], dim=1)


@pytest.mark.parametrize(("draws", "own", "has_initial"), CHOICES)
def test_affine_steps_are_dense_algebra(draws: str, own: str, has_initial: bool) -> None:
    """Joint over leads, functions and channels; the rank exceeds the number of values, so columns are also left out exactly."""
    predictor = affine(rank=7, channels=2, own=3)
    start = start_of(predictor)
    initial = initial_of(predictor, own=2) if has_initial else None
    forecast = propagate(predictor, start, steps=STEPS, initial=initial, draws=draws, discrepancy=own)
    mean, root = dense_forecast(predictor, start.values.flatten(1), steps=STEPS, draws=draws, discrepancy=own, initial=initial)
    means, roots = stacked(forecast)
    assert forecast.latent.rank == root.shape[3]
    assert gap(means, mean) <= 1e-12
    assert gap(torch.einsum("nlpk,mjqk->nlpmjq", roots, roots), torch.einsum("nlpk,mjqk->nlpmjq", root, root)) <= 1e-12
    variances = torch.stack([forecast.at(lead).variance.flatten(1) for lead in range(STEPS + 1)], dim=1)
    assert gap(variances, root.square().sum(-1)) <= 1e-12


@pytest.mark.parametrize("draws", ["trajectory", "step"])
def test_a_diagonal_operator(draws: str) -> None:
    """u_n = l^n u_0: to first order in s its standard deviation is |n m^(n-1) s| for one l, and √n |m^(n-1) s| for fresh ones."""
    mean, std = 0.9, 0.05
    predictor = ScalarPredictor(GRID, mean, std)
    start = Field(normal(3, 1, GRID.size), GRID)
    forecast = propagate(predictor, start, steps=20, draws=draws)
    for lead, u in forecast.leads():
        growth = lead if draws == "trajectory" else lead**0.5
        expected = growth * abs(mean) ** (lead - 1) * std * start.values.abs()
        assert gap(u.mean, mean**lead * start.values) <= 1e-13
        assert gap(u.standard_deviation, expected) <= 1e-13


def test_it_meets_the_protocol() -> None:
    predictor = affine()
    forecast = propagate(predictor, start_of(predictor), steps=3)
    assert isinstance(forecast, Forecast)
    assert len(forecast) == 2
    assert forecast.grid == GRID
    assert [lead for lead, _ in forecast.leads()] == [1, 2, 3]
    with pytest.raises(ArgumentError):
        forecast.at(4)
