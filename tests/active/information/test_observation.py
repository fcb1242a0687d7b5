"""Observing a whole function, against the closed-form update of the head itself."""

from __future__ import annotations

import itertools

import pytest
import torch

from probneural.active.information.latent_information import information_gain
from probneural.active.information.observation import observation_weights, whitened_rows
from probneural.distributions import GaussianField
from probneural.errors import ArgumentError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads import LastLayerLaplace
from probneural.operators import LinearRegression
from probneural.problems import Heat
from tests.active.predictors import FINE_GRID, INPUT_GRID, FeaturePredictor, dense_root, feature_root
from tests.calibration.synthetic import scaled_by

HEAT = Heat(dimension=1)
PAIRS = HEAT.sample(20, resolution=64, seed=0, dtype=torch.float64)


def test_rows_are_what_an_update_learns_from() -> None:
    predictor = LastLayerLaplace(noise=1e-4).fit(LinearRegression.fitted(PAIRS), PAIRS)
    new, probes = HEAT.sample(3, resolution=96, seed=1, dtype=torch.float64), HEAT.sample(4, resolution=64, seed=2).inputs
    before = predictor(Field(probes.values.double(), probes.grid)).root.dense().flatten(0, 2)
    after = predictor.update(new)(Field(probes.values.double(), probes.grid)).root.dense().flatten(0, 2)
    field = predictor(new.inputs)
    assert isinstance(field, GaussianField)
    rows = whitened_rows(field, observation_weights(predictor, new.inputs.grid)).flatten(0, 1)
    updated = torch.linalg.inv(torch.eye(rows.shape[1], dtype=torch.float64) + rows.mT @ rows)
    torch.testing.assert_close(after @ after.mT, before @ updated @ before.mT, rtol=1e-8, atol=1e-12)


def test_finer_grids_are_no_more_data() -> None:
    predictor = LastLayerLaplace(noise=1e-4).fit(LinearRegression.fitted(PAIRS), PAIRS)
    grams = []
    for resolution in (64, 256):
        inputs = HEAT.sample(2, resolution=resolution, seed=3).inputs
        field = predictor(inputs)
        assert isinstance(field, GaussianField)
        rows = whitened_rows(field, observation_weights(predictor, inputs.grid))
        grams.append(rows.mT @ rows)
    torch.testing.assert_close(grams[0], grams[1], rtol=1e-4, atol=1e-4 * float(grams[0].abs().max()))


def test_noise_and_counts() -> None:
    predictor = FeaturePredictor(feature_root, out_channels=2)
    weights = observation_weights(predictor, INPUT_GRID)
    assert weights.shape == (2, 16)
    torch.testing.assert_close(weights.sum(1), torch.full((2,), 16 / 1e-2).double(), rtol=1e-6, atol=0.0)  # no m: every point
    given = observation_weights(predictor, INPUT_GRID, noise=torch.tensor([1.0, 4.0]))
    torch.testing.assert_close(given.sum(1), torch.tensor([16.0, 4.0]).double())
    linear = LastLayerLaplace().fit(LinearRegression.fitted(PAIRS), PAIRS)
    scaled = scaled_by(2.0, linear)
    assert scaled.effective_observations is not None
    torch.testing.assert_close(scaled.effective_observations, linear.effective_observations)


def test_a_grid_tells_no_more_than_its_points() -> None:
    """Sixty-four effective observations on eight points are eight."""
    predictor = FeaturePredictor(feature_root)
    predictor.effective_observations = torch.tensor([64.0])
    eight, nested = Grid.uniform((8,)), [Grid.uniform((n,)) for n in (8, 16, 32, 64, 128)]
    torch.testing.assert_close(observation_weights(predictor, eight), torch.full((1, 8), 100.0).double(), rtol=1e-6, atol=0.0)
    inputs = Field(PAIRS.inputs.values[:3], PAIRS.inputs.grid)
    gains = []
    for grid in nested:
        field = predictor(inputs, grid)
        assert isinstance(field, GaussianField)
        gains.append(information_gain(whitened_rows(field, observation_weights(predictor, grid))))
    assert all((coarse <= fine + 1e-9).all() for coarse, fine in itertools.pairwise(gains))


def test_a_noise_given_as_a_number_keeps_its_digits() -> None:
    predictor = FeaturePredictor(feature_root)
    weights = observation_weights(predictor, INPUT_GRID, noise=0.1)
    torch.testing.assert_close(weights, torch.full((1, 16), 10.0).double(), rtol=1e-14, atol=0.0)


@pytest.mark.bad_input
def test_bad_input() -> None:
    predictor = FeaturePredictor(dense_root, out_channels=2)
    for noise in (0.0, -1.0, float("nan")):
        with pytest.raises(ArgumentError, match="noise > 0"):
            observation_weights(predictor, INPUT_GRID, noise=noise)
    with pytest.raises(ShapeError, match="2 channels"):
        observation_weights(predictor, INPUT_GRID, noise=torch.ones(3))
    field = predictor(Field(torch.zeros(1, 1, 16).double(), INPUT_GRID))
    assert isinstance(field, GaussianField)
    with pytest.raises(ShapeError, match="field's grid"):
        whitened_rows(field, observation_weights(predictor, FINE_GRID))
