"""Calibrators that are fitted on a coarse grid with walls state the same on a finer one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from torch import Tensor

from probneural.calibration import (
    HorizonBand,
    LeadScale,
    Novelty,
    NoveltyScale,
    PointwiseBand,
    ResidualBand,
    ScaleMixture,
    SimultaneousBand,
    Stacking,
    VarianceScale,
)
from probneural.calibration.bands.conformal import BandField
from probneural.calibration.variance.by_lead import LeadScaling
from probneural.distributions import DenseRoot, FieldDistribution, GaussianField, Predictor, PredictorTraits
from probneural.errors import DataWarning
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.trajectories import FieldTrajectories
from tests.helpers import PerSetPredictor, normal

COARSE = Grid.uniform((12, 9), periodic=(True, False))
GRIDS = {"24 x 17": COARSE.resized((24, 17)), "48 x 33": COARSE.resized((48, 33))}


def functions(weights: Tensor, grid: Grid) -> Tensor:
    """Smooth functions that vanish at one wall."""
    x, y = grid.points.mT
    waves = torch.stack([torch.ones_like(x), torch.sin(2 * math.pi * x), torch.cos(4 * math.pi * x)])
    return (weights @ (waves * torch.sin(0.5 * math.pi * y) * torch.exp(-y))).unflatten(-1, grid.shape)


class Walled(PerSetPredictor):
    """Predicts its input; the standard deviation is zero at the walls, grows with the input's size, and has a front."""

    def __init__(self, front: float = 0.3) -> None:
        variance = torch.full((1,), 1e-6, dtype=torch.float64)
        super().__init__(PredictorTraits(in_channels=1, noise=variance, domain=COARSE, like=variance))
        self.front = front

    def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution:
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


class WalledForecast:
    """The distributions of `Walled` at both leads."""

    steps = 2

    def __init__(self, inputs: Field) -> None:
        self.start, self.grid = inputs, inputs.grid

    def at(self, lead: int, /) -> FieldDistribution:
        return Walled()(self.start)

    def leads(self) -> Iterator[tuple[int, FieldDistribution]]:
        return ((lead, self.at(lead)) for lead in (1, 2))

    def __len__(self) -> int:
        return len(self.start)


def trajectories(data: FieldPairs) -> FieldTrajectories:
    """Outputs at both leads."""
    return FieldTrajectories(data.inputs, torch.stack(2 * [data.outputs.values], 1), times=torch.tensor([1.0, 2.0]).double())


DATA, OTHERS = pairs(60, seed=1), pairs(60, seed=11)
STATED: dict[str, Callable[[], Callable[[Field], Tensor]]] = {
    "VarianceScale": lambda: _std(VarianceScale().fit(Walled(), DATA)),
    "Stacking": lambda: _std(Stacking().fit([Walled(), Walled(0.6)], DATA)),
    "ScaleMixture": lambda: _std(ScaleMixture().fit(VarianceScale().fit(Walled(), DATA), OTHERS)),
    "NoveltyScale": lambda: _std(NoveltyScale().fit(Walled(), DATA, shifted=pairs(40, seed=31, size=2.0))),
    "SimultaneousBand": lambda: _width(SimultaneousBand().fit(VarianceScale().fit(Walled(), DATA), OTHERS)),
    "PointwiseBand": lambda: _width(PointwiseBand().fit(VarianceScale().fit(Walled(), DATA), OTHERS)),
    "LeadScale": lambda: lambda inputs: _lead_scaling()(WalledForecast(inputs)).at(2).std,
    "HorizonBand": lambda: _horizon_width(HorizonBand()),
    "ResidualBand": lambda: _residual_bound(ResidualBand(_residual, 0.8)),
}


def _std(predictor: Predictor) -> Callable[[Field], Tensor]:
    return lambda inputs: predictor(inputs).std


@cache
def _lead_scaling() -> LeadScaling:
    return LeadScale(noise=1e-6).fit(WalledForecast(DATA.inputs), trajectories(DATA))


def _horizon_width(method: HorizonBand) -> Callable[[Field], Tensor]:
    band = method.fit(_lead_scaling()(WalledForecast(OTHERS.inputs)), trajectories(OTHERS))
    return lambda inputs: band(_lead_scaling()(WalledForecast(inputs))).at(2).half_width


def _residual_bound(method: ResidualBand) -> Callable[[Field], Tensor]:
    """The bound that is fitted on the same inputs on another grid."""
    return lambda inputs: torch.tensor(method.fit(Walled(), inputs).quantile, dtype=torch.float64)


def _residual(predicted: Tensor, inputs: Field, grid: Grid) -> Tensor:
    return predicted - 1.3 * inputs.resample(grid).values


def _width(band: Callable[[Field], BandField]) -> Callable[[Field], Tensor]:
    return lambda inputs: band(inputs).half_width


@pytest.mark.parametrize("name", STATED)
def test_what_is_stated_does_not_depend_on_the_grid(name: str) -> None:
    stated, weights = STATED[name](), normal(5, 1, 3, seed=21)
    coarse = stated(Field(functions(weights, COARSE), COARSE))
    for grid in GRIDS.values():
        rows, columns = grid.shape[0] // 12, (grid.shape[1] - 1) // 8
        fine = stated(Field(functions(weights, grid), grid))
        fine = fine[..., ::rows, ::columns] if fine.ndim else fine
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
