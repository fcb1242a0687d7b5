"""Measurement noise for exact solutions, which have no density and no scale without it."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

import probneural as pn

NOISE = 1e-5
"""Standard deviation of the measurement noise of all samples, relative to the root mean square of the training outputs.

Rounding errors are about 1e-6 of the largest value. Without noise, an exact predictor (regression of a linear map) has no
density and no scale."""


def noise_variance(train: pn.FieldPairs) -> Float64[Tensor, " c"]:
    """Variance of the measurement noise per channel, `(c,)`, in physical units squared."""
    return NOISE**2 * train.outputs.values.double().flatten(2).square().mean((0, 2))


def measured(pairs: pn.FieldPairs, noise: Float64[Tensor, " c"], generator: torch.Generator) -> pn.FieldPairs:
    """Pairs with white noise of these variances in their outputs."""
    values = pairs.outputs.values
    white = torch.randn(values.shape, generator=generator, dtype=torch.float64)
    moved = values + (noise.sqrt().reshape(-1, *(1,) * (values.ndim - 2)) * white).to(values)
    return pn.FieldPairs(pairs.inputs, pn.Field(moved, pairs.outputs.grid))
