"""Fitted objects of every kind that files hold, the arrays that they compute, and their coverage of new samples."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from probneural import calibration
from probneural.distributions import Predictor
from probneural.grids import Grid
from probneural.heads import LastLayerLaplace
from probneural.pairs import FieldPairs
from probneural.physics import Channel, Dirichlet, Residual, equations
from tests.autoregression import forecast_and_truth
from tests.heads import cases

GRID = Grid.uniform(12, periodic=False)
RESIDUAL = Residual(equations.Poisson(source=Channel(0)), [Dirichlet(0.0)])


@cache
def setting() -> tuple[Predictor, FieldPairs, FieldPairs]:
    """A predictor that underestimates its errors, and exchangeable pairs for calibration and for tests."""
    operator = cases.FNO(1, 1, modes=(3,), width=4, depth=1, projection=4, periodic=False, seed=0).double()
    pairs = cases.data_for(operator.eval(), cases.fields(GRID, 520, 1, seed=1), noise=0.3)
    operator.fit_normalizers(pairs[:20])
    return LastLayerLaplace(noise=0.01).fit(operator, pairs[:20]), pairs[20:119], pairs[119:]


def forecasts(count: int, seed: str) -> tuple[Any, Any]:
    """A forecast of wrong spread, and its truth."""
    forecast, truth = forecast_and_truth(count, steps=3, members=5, seed=seed)
    return forecast.scaled(torch.tensor([0.3, 1.0, 5.0]).double()), truth


METHODS: dict[str, Any] = {
    "simultaneous": calibration.SimultaneousBand(),
    "constant": calibration.SimultaneousBand(modulation="constant", floor=0.0),
    "pointwise": calibration.PointwiseBand(0.8, delta=0.1),
    "novelty": calibration.Novelty(),
    "residuals": calibration.ResidualBand(RESIDUAL),
    "trajectories": calibration.HorizonBand(noise=torch.tensor([0.1]).double()),
    "lead scales": calibration.LeadScale(),
}
KINDS = (*METHODS, "of a corrected predictor", "calibrated in one call")


def fitted(name: str) -> Any:
    """One of `KINDS`."""
    predictor, held_out, _ = setting()
    if name in ("trajectories", "lead scales"):
        return METHODS[name].fit(*forecasts(99, name))
    if name == "calibrated in one call":
        return calibration.calibrate(predictor, held_out)
    if name == "of a corrected predictor":
        return METHODS["simultaneous"].fit(RESIDUAL.corrected(predictor, modes=5), held_out[:9])
    return METHODS[name].fit(predictor, held_out.inputs if name == "residuals" else held_out)


def arrays(name: str, thing: Any) -> list[Tensor]:
    """The arrays that it computes of new samples."""
    inputs = setting()[2][:9].inputs
    if name in ("trajectories", "lead scales"):
        lead_fields = [field for _, field in thing(forecasts(20, "new")[0]).leads()]
        return [field.samples if name == "lead scales" else field.upper for field in lead_fields]
    if name == "residuals":
        return [thing.residuals(inputs)]
    if name == "novelty":
        return list(thing.p_values(inputs).values())
    if name == "calibrated in one call":
        return [*arrays("simultaneous", thing.band), *arrays("novelty", thing.novelty)]
    return [thing(inputs).lower, thing(inputs, GRID.resized(23)).upper]


def coverage(name: str, thing: Any) -> float:
    """Fraction of new samples that it covers, .9 nominally."""
    new = setting()[2]
    if name == "trajectories":
        return thing.coverage(*forecasts(401, "fresh")).horizon
    if name in ("residuals", "novelty"):
        return float((thing.holds(new.inputs) if name == "residuals" else thing(new.inputs) > 0.1).double().mean())
    return getattr(thing, "band", thing).coverage(new)
