"""A prior from a sample of states."""

from __future__ import annotations

import pytest
import torch

from probneural.errors import ArgumentError, DataError
from probneural.fields import Field
from probneural.forecasts import climatology, propagate
from probneural.functionals import MatrixFunctional
from tests.forecasts.cases import GRID, affine, start_of
from tests.helpers import cross_covariance, normal


def test_moments_are_those_of_the_sample_and_functions_are_apart() -> None:
    states = Field(normal(9, 2, GRID.size), GRID)
    u = climatology(states, functions=3)
    assert torch.equal(u.mean, states.values.mean(0).expand(3, -1, -1))
    assert u.discrepancy is not None
    covariance = cross_covariance(u, u).unflatten(0, (3, -1)).unflatten(2, (3, -1))
    sample = torch.cov(states.values.flatten(1).mT)
    for row in range(3):
        for column in range(3):
            expected = sample if row == column else torch.zeros_like(sample)
            assert float((covariance[row, :, column] - expected).abs().max()) <= 1e-12


def test_an_observation_of_one_start_leaves_the_others() -> None:
    predictor = affine()
    prior = climatology(Field(normal(9, 1, GRID.size), GRID), functions=2)
    forecast = propagate(predictor, start_of(predictor), steps=2, initial=prior, draws="step")
    functional = MatrixFunctional(GRID, normal(2, GRID.size))
    values = forecast.at(0).apply(functional).mean.clone()
    values[0] += 1.0
    moved = forecast.condition(functional, values, lead=0, noise=0.01)
    assert float((moved.at(2).mean[0] - forecast.at(2).mean[0]).abs().max()) >= 0.05
    assert float((moved.at(2).mean[1] - forecast.at(2).mean[1]).abs().max()) <= 1e-12


def test_too_few_states_are_refused() -> None:
    with pytest.raises(DataError):
        climatology(Field(normal(1, 1, GRID.size), GRID))
    with pytest.raises(ArgumentError):
        climatology(Field(normal(2, 1, GRID.size), GRID), functions=0)
