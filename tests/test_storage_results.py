"""Files of fitted objects: equal bits on new inputs, and the guarantee of what was saved on exchangeable samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import probneural as pn
from probneural.active.loop.history import LearningHistory, Round, RoundErrors, RoundSeconds, SimulationCounts
from probneural.calibration import (
    HorizonBand,
    LeadScale,
    Novelty,
    PointwiseBand,
    ResidualBand,
    SimultaneousBand,
    VarianceScale,
    calibrate,
)
from probneural.distributions import Predictor
from probneural.errors import DataError, FileError, GridError, ShapeError, UnsupportedError
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.physics import Channel, Dirichlet, Residual, equations
from probneural.training import files
from probneural.training.callbacks import History
from tests.autoregression import forecast_and_truth
from tests.heads import cases

GRID = Grid.uniform(12, periodic=False)
RESIDUAL = Residual(equations.Poisson(source=Channel(0)), [Dirichlet(0.0)])
FACTORS = torch.tensor([0.3, 1.0, 5.0]).double()


@cache
def setting() -> tuple[Predictor, list[FieldPairs]]:
    """A predictor that underestimates its errors, and exchangeable pairs for scaling, calibration and tests."""
    operator = cases.FNO(1, 1, modes=(3,), width=4, depth=1, projection=4, periodic=False, seed=0).double()
    pairs = cases.data_for(operator.eval(), cases.fields(GRID, 560, 1, seed=1), noise=0.3)
    operator.fit_normalizers(pairs[:20])
    return pn.heads.LastLayerLaplace(noise=0.01).fit(operator, pairs[:20]), [pairs[20:60], pairs[60:159], pairs[159:]]


def forecasts(count: int, seed: str) -> tuple[Any, Any]:
    """A forecast of wrong spread, and its truth."""
    forecast, truth = forecast_and_truth(count, steps=3, members=5, seed=seed)
    return forecast.scaled(FACTORS), truth


def horizon_coverage(band: Any) -> float:
    return band.coverage(*forecasts(401, "fresh")).horizon


def edges(band: Any) -> list[Tensor]:
    inputs = setting()[1][2][:9].inputs
    return [band(inputs).lower, band(inputs, GRID.resized(23)).upper]


def by_lead(scales_or_band: Any) -> list[Tensor]:
    lead_fields = [field for _, field in scales_or_band(forecasts(20, "new")[0]).leads()]
    return [field.upper if hasattr(field, "upper") else field.samples for field in lead_fields]


def fitted(method: Any, *, predictor: Predictor | None = None) -> Any:
    return method.fit(setting()[0] if predictor is None else predictor, setting()[1][1])


def coverage(band: Any) -> float:
    return band.coverage(setting()[1][2])


# By name: an object to save, the arrays that it computes, and its coverage of new samples, .9 nominally.
KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], list[Tensor]], Callable[[Any], float] | None]] = {
    "simultaneous": (lambda: fitted(SimultaneousBand()), edges, coverage),
    "constant": (lambda: fitted(SimultaneousBand(modulation="constant", floor=0.0)), edges, coverage),
    "pointwise": (lambda: fitted(PointwiseBand(0.8, delta=0.1)), edges, coverage),
    "of a calibrated predictor": (
        lambda: fitted(SimultaneousBand(), predictor=VarianceScale().fit(setting()[0], setting()[1][0])),
        edges,
        coverage,
    ),
    "of a corrected predictor": (
        lambda: fitted(SimultaneousBand(), predictor=RESIDUAL.corrected(setting()[0], modes=5)),
        edges,
        coverage,
    ),
    "residuals": (
        lambda: ResidualBand(RESIDUAL).fit(setting()[0], setting()[1][1].inputs),
        lambda bound: [bound.residuals(setting()[1][2].inputs)],
        lambda bound: bound.holds(setting()[1][2].inputs).double().mean().item(),
    ),
    "trajectories": (
        lambda: HorizonBand(noise=torch.tensor([0.1]).double()).fit(*forecasts(99, "calibration")),
        by_lead,
        horizon_coverage,
    ),
    "lead scales": (lambda: LeadScale().fit(*forecasts(60, "scaling")), by_lead, None),
    "novelty": (
        lambda: fitted(Novelty()),
        lambda detector: list(detector.p_values(setting()[1][2].inputs).values()),
        lambda detector: (detector(setting()[1][2].inputs) > 0.1).double().mean().item(),
    ),
    "calibrated": (
        lambda: calibrate(setting()[0], setting()[1][1]),
        lambda calibrated: [*edges(calibrated.band), calibrated.novelty(setting()[1][2].inputs)],
        lambda calibrated: coverage(calibrated.band),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_saved_and_loaded_objects_give_equal_bits_and_keep_their_guarantee(name: str, tmp_path: Path) -> None:
    make, arrays, covered = KINDS[name]
    saved = make()
    pn.save(saved, tmp_path / "file")
    loaded = pn.load(tmp_path / "file")
    assert type(loaded) is type(saved)
    assert repr(loaded) == repr(saved)
    for array, expected in zip(arrays(loaded), arrays(saved), strict=True):
        assert torch.equal(array, expected)
        assert array.dtype == expected.dtype
    if covered is not None:
        assert covered(loaded) == covered(saved) == pytest.approx(0.9, abs=0.08)
    tensors, metadata = files.read(tmp_path / "file")
    part = "scales" if name == "lead scales" else "quantile" if "quantile" in metadata["parts"] else "groups"
    metadata["parts"][part] = "x"
    files.write(tmp_path / "file", tensors, metadata=metadata)
    with pytest.raises(FileError, match=f"as {part}"):
        pn.load(tmp_path / "file")


def test_histories_are_equal(tmp_path: Path) -> None:
    errors, seconds = RoundErrors(mean=0.1 + 0.2), RoundSeconds(select=0.0, simulate=1.5, train=2.0, fit=0.1)
    counts = SimulationCounts(simulated=3, reused=0, failed=1)
    line = Round(number=0, labels=3, chosen=(2, 0, 1), simulations=counts, loss=None, errors=errors, seconds=seconds)
    training = History(train=(1.0, 1 / 3), validation=(), seconds=(0.1, 0.2), restored=1, weights=({"data": 1.0}, {}))
    for history in (training, LearningHistory((line, replace(line, number=1)))):
        pn.save(history, tmp_path / "file")
        assert pn.load(tmp_path / "file") == history


@pytest.mark.bad_input
def test_functions_of_the_user_are_not_saved(tmp_path: Path) -> None:
    residual = Residual(lambda u, inputs: u.values)
    for thing in (residual.corrected(setting()[0]), ResidualBand(residual).fit(setting()[0], setting()[1][1].inputs)):
        with pytest.raises(UnsupportedError, match="without functions .* of your own; got function"):
            pn.save(thing, tmp_path / "file")
    assert not list(tmp_path.iterdir())


def test_arrays_in_and_arrays_out() -> None:
    predictor, inputs = setting()[0], setting()[1][2].inputs
    u = predictor(inputs)
    for values in (inputs.values, inputs.values.numpy(), inputs.values.numpy().astype(">f8")):
        mean, std = predictor.predict(values)
        assert type(mean) is type(std) is type(values)
        assert torch.equal(torch.as_tensor(mean), u.mean)
        assert torch.equal(torch.as_tensor(std), u.variance.sqrt())
    many = inputs.values.repeat(30, 1, 1).float().numpy()  # several chunks
    means, query = predictor.predict(many, query=GRID.resized(23))[0], GRID.resized(23)
    assert means.shape == (len(many), 1, 23)
    assert means.dtype == np.float64
    np.testing.assert_allclose(means[-len(u) :], predictor(inputs, query).mean, atol=1e-6)
    assert torch.equal(predictor.predict(inputs.values, grid=GRID)[0], u.mean)
    meshes = cases.fitted("last-layer-given", "meshes")
    batch = cases.operator_case("meshes").inputs
    assert torch.equal(meshes.predict(batch.values, grid=batch.grid)[0], meshes(batch).mean)


@pytest.mark.bad_input
def test_arrays_that_cannot_be_predicted() -> None:
    predictor, values = setting()[0], np.ones((2, 1, 12))
    bad: list[tuple[Any, type[Exception], str]] = [
        ([[[1.0]]], DataError, "NumPy array"),
        (values[0], ShapeError, r"\(n, c, \*grid\) with 1 axes"),
        (np.ones((2, 3, 12)), ShapeError, "1 channels"),
        (np.nan * values, DataError, "finite inputs"),
        (1j * values, DataError, "real numbers"),
    ]
    for array, error, message in bad:
        with pytest.raises(error, match=message):
            predictor.predict(array)
    with pytest.raises(GridError, match="grid=, the points of the inputs"):
        cases.fitted("last-layer-given", "meshes").predict(np.ones((1, 2, 9)))
