"""Calibrators that are fitted on a coarse grid with walls state the same on a finer one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from probneural.calibration import (
    Novelty,
    NoveltyScale,
    PointwiseBand,
    RiskControl,
    ScaleMixture,
    SimultaneousBand,
    Stacking,
    VarianceScale,
    fraction_outside,
)
from probneural.calibration.band_fields import BandField
from probneural.calibration.conditional_bands import GroupBand
from probneural.distributions import DenseRoot, FieldDistribution, GaussianField, Predictor, PredictorTraits
from probneural.errors import DataWarning
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.helpers import normal

COARSE = Grid.uniform((12, 9), periodic=(True, False))
GRIDS = {"24 x 17": COARSE.resized((24, 17)), "48 x 33": COARSE.resized((48, 33))}


def functions(weights: Tensor, grid: Grid) -> Tensor:
    """Smooth functions that vanish at one wall."""
    x, y = grid.points.mT
    waves = torch.stack([torch.ones_like(x), torch.sin(2 * math.pi * x), torch.cos(4 * math.pi * x)])
    return (weights @ (waves * torch.sin(0.5 * math.pi * y) * torch.exp(-y))).unflatten(-1, grid.shape)


class Walled(Predictor):
    """Predicts its input; the standard deviation is zero at the walls, grows with the input's size, and has a front."""

    def __init__(self, front: float = 0.3) -> None:
        variance = torch.full((1,), 1e-6, dtype=torch.float64)
        super().__init__(PredictorTraits(in_channels=1, noise=variance, domain=COARSE, like=variance))
        self.front = front

    def _predict(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        grid = inputs.grid if query is None else query
        x, y = grid.points.mT
        std = torch.sin(math.pi * y) * torch.exp(torch.sin(2 * math.pi * (x - self.front)))
        shared = torch.stack([torch.cos(3 * y), torch.sin(3 * y)], -1) * std[:, None]
        root = shared * inputs.mean_square().sqrt()[..., None, None]
        return GaussianField(inputs.resample(grid).values, DenseRoot(root), latent="walled", grid=grid)


def pairs(count: int, *, seed: int, size: float = 1.0) -> FieldPairs:
    """Errors are those that `Walled` states times a factor that grows from one wall to the other."""
    inputs = Field(functions(size * normal(count, 1, 3, seed=seed), COARSE), COARSE)
    noise, y = normal(2, count, 1, *COARSE.shape, seed=seed + 1), COARSE.points[:, 1].reshape(COARSE.shape)
    errors = Walled()(inputs).std * torch.exp(2 * y - 1) * noise[0] + 1e-3 * noise[1]
    return FieldPairs(inputs, Field(inputs.values + errors, COARSE))


DATA, OTHERS = pairs(60, seed=1), pairs(60, seed=11)
STATED: dict[str, Callable[[], Callable[[Field], Tensor]]] = {
    "VarianceScale": lambda: _std(VarianceScale().fit(Walled(), DATA)),
    "Stacking": lambda: _std(Stacking().fit([Walled(), Walled(0.6)], DATA)),
    "ScaleMixture": lambda: _std(ScaleMixture().fit(VarianceScale().fit(Walled(), DATA), OTHERS)),
    "NoveltyScale": lambda: _std(NoveltyScale().fit(Walled(), DATA, shifted=pairs(40, seed=31, size=2.0))),
    "SimultaneousBand": lambda: _width(SimultaneousBand().fit(VarianceScale().fit(Walled(), DATA), OTHERS)),
    "PointwiseBand": lambda: _width(PointwiseBand().fit(VarianceScale().fit(Walled(), DATA), OTHERS)),
    "GroupBand": lambda: _of_groups(
        SimultaneousBand(0.8).fit(VarianceScale().fit(Walled(), DATA), OTHERS, groups=torch.arange(60) % 2)
    ),
    "WeightedBand": lambda: _of_groups(
        SimultaneousBand(0.8).fit(VarianceScale().fit(Walled(), DATA), OTHERS, weights=torch.linspace(0.5, 2.0, 60))
    ),
    "RiskControl": lambda: _width(RiskControl(fraction_outside, level=0.2).fit(VarianceScale().fit(Walled(), DATA), OTHERS)),
}


def _std(predictor: Predictor) -> Callable[[Field], Tensor]:
    return lambda inputs: predictor(inputs).std


def _of_groups(band: Any) -> Callable[[Field], Tensor]:
    if isinstance(band, GroupBand):
        return lambda inputs: band(inputs, groups=torch.ones(len(inputs), dtype=torch.int64)).half_width
    return lambda inputs: band(inputs, weights=torch.ones(len(inputs), dtype=torch.float64)).half_width


def _width(band: Callable[[Field], BandField]) -> Callable[[Field], Tensor]:
    return lambda inputs: band(inputs).half_width


@pytest.mark.parametrize("name", STATED)
def test_what_is_stated_does_not_depend_on_the_grid(name: str) -> None:
    stated, weights = STATED[name](), normal(5, 1, 3, seed=21)
    coarse = stated(Field(functions(weights, COARSE), COARSE))
    for grid in GRIDS.values():
        rows, columns = grid.shape[0] // 12, (grid.shape[1] - 1) // 8
        fine = stated(Field(functions(weights, grid), grid))[..., ::rows, ::columns]
        torch.testing.assert_close(fine, coarse, rtol=0.05, atol=1e-9 * float(coarse.max()))


def test_novelty_does_not_depend_on_the_grid() -> None:
    detector, weights = Novelty().fit(Walled(), DATA), normal(20, 1, 3, seed=21)
    expected = detector.scores(Field(functions(weights, COARSE), COARSE))
    for grid in GRIDS.values():
        fine = Field(functions(weights, grid), grid)
        for name, scores in detector.scores(fine).items():
            torch.testing.assert_close(scores, expected[name], rtol=0.05, atol=1e-3, msg=name)
        ripples = 0.3 * torch.sin(7.9 * 2 * math.pi * fine.grid.points[:, 1])  # eight intervals do not hold them
        with pytest.warns(DataWarning, match="have power"):
            assert float(detector(Field(fine.values + ripples.unflatten(0, grid.shape), grid)).max()) < 0.1
