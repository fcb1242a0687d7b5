"""Moments of the constant error for prescribed residuals."""

from __future__ import annotations

import torch

import probneural as pn
from probneural.heads import ConstantError
from probneural.operators import PointwiseNetwork


def test_splits_residuals_into_constant_and_noise() -> None:
    operator = PointwiseNetwork(1, 1, seed=0).double()
    inputs = pn.problems.CubicDecay().sample_inputs(2, resolution=64, seed=0, dtype=torch.float64)
    wave = 0.3 * torch.cos(2 * torch.pi * inputs.grid.points[:, 0])
    off = torch.stack([0.5 + wave, -0.1 - wave])[:, None]
    with torch.no_grad():
        data = pn.FieldPairs(inputs, pn.Field(operator(inputs.values) + off, inputs.grid))
    predictor = ConstantError().fit(operator, data)
    variance = torch.full((2, 1, 64), (0.5**2 + 0.1**2) / 2, dtype=torch.float64)
    torch.testing.assert_close(predictor(inputs).variance, variance, atol=1e-15, rtol=1e-12)
    noise = torch.tensor([0.3**2 / 2], dtype=torch.float64)
    torch.testing.assert_close(predictor.noise, noise, atol=0, rtol=1e-12)
    draws = predictor(inputs).rsample(torch.Size([3]), seed=0) - predictor(inputs).mean
    torch.testing.assert_close(draws, draws[:, :1, :, :1].expand_as(draws), atol=1e-15, rtol=0)
