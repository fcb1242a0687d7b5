"""Closed forms of forecasts have the moments of roll-outs: of affine steps, and of heads where deviations are small."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from probneural.calibration import VarianceScale
from probneural.distributions import Predictor
from probneural.fields import Field
from probneural.forecasts import propagate
from probneural.functionals import sensors
from probneural.grids import Grid
from probneural.heads import KernelOperator, LastLayerLaplace
from probneural.operators import FNO
from probneural.pairs import FieldPairs
from tests.forecasts.cases import affine, initial_of, start_of
from tests.helpers import normal

MEMBERS = 400


def agrees(predictor: Predictor, start: Field, *, draws: str, slack: float = 0.0, **options: object) -> None:
    """Means and standard deviations of both forecasts, within four standard errors of so many members and some slack."""
    forecast = propagate(predictor, start, steps=3, draws=draws, **options)  # type: ignore[arg-type]
    drawn = predictor.rollout(start, steps=3, members=MEMBERS, draws=draws, **options)  # type: ignore[arg-type]
    for lead, u in forecast.leads():
        v, std = drawn.at(lead), u.standard_deviation.double()
        error = ((v.mean - u.mean) / std).abs().max()
        assert float(error) <= 4.0 / math.sqrt(MEMBERS) + slack
        ratio = (v.standard_deviation / std - 1.0).abs().max()
        assert float(ratio) <= 4.5 / math.sqrt(2 * MEMBERS) + slack


@pytest.mark.parametrize("draws", ["trajectory", "step"])
def test_affine_steps_with_a_discrepancy(draws: str) -> None:
    """A roll-out's draws take one vector of the discrepancy for all functions: each function's own moments are the same."""
    predictor = affine(own=2)
    agrees(predictor, start_of(predictor), draws=draws, initial=initial_of(predictor))


def pairs() -> FieldPairs:
    inputs = normal(24, 1, 16, seed="inputs").cumsum(-1) / 4
    inputs = inputs - inputs.mean(-1, keepdim=True)
    smooth = (inputs + inputs.roll(1, -1) + inputs.roll(-1, -1)) / 3
    return FieldPairs(Field(inputs, Grid.uniform(16)), Field(0.9 * torch.sin(smooth), Grid.uniform(16)))


@pytest.mark.parametrize("draws", ["trajectory", "step"])
def test_a_last_layer(draws: str) -> None:
    operator = FNO(in_channels=1, out_channels=1, modes=(3,), width=6, depth=2, seed=0).double()
    predictor = LastLayerLaplace(noise=1e-6, prior_precision=1e2).fit(operator, pairs())
    agrees(predictor, pairs().inputs[:2], draws=draws, slack=0.05)


def test_a_kernel_operator_that_is_calibrated_learns_from_observations() -> None:
    """Every call has another latent, and every function a discrepancy: forecasts exist, and observations reduce their error."""
    data = pairs()
    predictor = VarianceScale().fit(KernelOperator().fit(None, data[:14]), data[14:])
    start, steps = data.inputs[:3], 3
    truth = start.values
    for _ in range(steps):
        truth = 0.9 * torch.sin((truth + truth.roll(1, -1) + truth.roll(-1, -1)) / 3)
    forecast = propagate(predictor, start, steps=steps)
    probe = sensors(start.grid, [[0.0], [0.25], [0.5], [0.75]])
    moved = forecast.condition(probe, probe(truth), lead=steps, noise=1e-8)

    def error(values: Tensor) -> float:
        return float((values - truth).norm())

    assert error(moved.at(steps).mean) <= 0.8 * error(forecast.at(steps).mean)
    assert bool((moved.at(1).variance <= forecast.at(1).variance + 1e-12).all())
    assert float((moved.at(1).variance / forecast.at(1).variance).mean()) <= 0.99
