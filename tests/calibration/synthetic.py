"""Predictors with a known mistake, and data they can be calibrated on."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from probneural.calibration.variance.discrepancy import Decomposition
from probneural.calibration.variance.scaled_predictor import ScaledPredictor
from probneural.distributions import (
    DenseRoot,
    EmpiricalField,
    FieldDistribution,
    GaussianField,
    Predictor,
    PredictorTraits,
)
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.helpers import PerSetPredictor, normal

GRID = Grid.uniform((16,))


def basis(grid: Grid) -> Tensor:
    """Three functions, the first of which vanishes at the left end and at the centre: `(p, 3)`."""
    x = 2 * math.pi * grid.points[:, 0]
    return torch.stack([torch.sin(x), torch.cos(2 * x) - 1.0, torch.sin(3 * x)], dim=-1)


class Synthetic(PerSetPredictor):
    """Predicts each output channel as its input, with sd in proportion to the input's size; frozen otherwise."""

    def __init__(
        self, *, sd: float = 1.0, noise: float | Tensor = 0.1, channels: int = 1, dtype: torch.dtype = torch.float64
    ) -> None:
        variance = torch.as_tensor(noise, dtype=dtype).expand(channels)
        super().__init__(PredictorTraits(in_channels=channels, noise=variance, domain=GRID, like=variance))
        self.sd = sd
        self.calls: list[tuple[int, Grid | None]] = []

    def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        self.calls.append((len(inputs), query))
        where = inputs.grid if query is None else query
        mean = inputs.resample(where).values
        size = self.sd * inputs.mean_square().sqrt()
        root = size[:, :, None, None] * basis(where).to(size)
        return GaussianField(mean, DenseRoot(root), latent="synthetic", grid=where)


class Members(Synthetic):
    """The same as an ensemble of four."""

    def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        u = super()._field(inputs, query)
        return EmpiricalField(u.rsample(torch.Size([4]), seed=3), torch.tensor([1.0, 2.0, 2.0, 1.0]), grid=u.grid)


def pairs(n: int, *, channels: int = 1, errors: float = 0.5, seed: int = 0, grid: Grid = GRID) -> FieldPairs:
    """Inputs of random size, and outputs that stray from them by `errors` times what `Synthetic()` states, and by noise."""
    weights = normal(n, channels, 3, seed=seed) * (0.5 + normal(n, channels, 1, seed=seed + 1).abs())
    inputs = Field((weights @ basis(GRID).mT), GRID)
    size = inputs.mean_square().sqrt()[..., None]
    drawn = errors * size * (normal(n, channels, 3, seed=seed + 2) @ basis(grid).mT)
    spread = errors * math.sqrt(0.1) * normal(n, channels, grid.size, seed=seed + 3)
    return FieldPairs(inputs, Field(weights @ basis(grid).mT + drawn + spread, grid))


def scaled_by(factor: float, predictor: Predictor) -> ScaledPredictor:
    """A scaled predictor with one factor for everything, and no discrepancy."""
    ones = torch.ones(predictor.out_channels, dtype=torch.float64)
    return ScaledPredictor(
        predictor,
        factor * ones,
        noise_scale=factor * ones,
        decomposition=Decomposition(process=None, root_fraction=ones, white_fraction=ones, variance=0.0 * ones),
        noise=factor * predictor.noise,
        calibrated_on=torch.zeros(0, dtype=torch.int64),
    )


def changed(scaled: ScaledPredictor, **parts: Any) -> ScaledPredictor:
    """The same predictor with some of its parts changed."""
    names = ("inner", "scale", "noise_scale", "decomposition", "noise", "calibrated_on", "local")
    return ScaledPredictor(**{name: getattr(scaled, name) for name in names} | parts)
