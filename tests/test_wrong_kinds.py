"""Several data sets where one is taken, and arrays where numbers are taken."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

import probneural as pn
from probneural.distributions import GaussianField, Predictor
from probneural.errors import DataError

pytestmark = pytest.mark.bad_input
BURGERS = pn.problems.Burgers(random_field=pn.problems.GaussianRandomField(1, 3), design_dim=2)
TRAIN, TEST = BURGERS.sample(12, resolution=16, seed=0), BURGERS.sample(3, resolution=16, seed=1)
GRID = TEST.outputs.grid
VALUES, ARRAY = TEST.inputs.values, TEST.inputs.values.numpy()
PROBE = pn.functionals.sensors(GRID, [[0.25], [0.75]])
LAST, DIAGONAL, KERNEL = pn.heads.LastLayerLaplace(), pn.heads.Laplace(structure="diagonal"), pn.heads.KernelOperator()
ENSEMBLE = pn.heads.DeepEnsemble(2, train=pn.fit, show_progress=False)
SCALE, BAND = pn.calibration.VarianceScale(), pn.calibration.SimultaneousBand(level=0.5)


@cache
def operator() -> pn.operators.FNO:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = pn.operators.FNO(in_channels=1, out_channels=1, modes=(4,), width=4, depth=1, projection=4)
    pn.fit(module, TRAIN, epochs=1, show_progress=False)
    return module


@cache
def build_predictor() -> Predictor:
    return LAST.fit(operator(), TRAIN)


@cache
def field() -> GaussianField:
    u = build_predictor()(TEST.inputs)
    assert isinstance(u, GaussianField)
    return u


def fit(operator: object, data: object = TRAIN, **options: object) -> object:
    return pn.fit(operator, data, epochs=1, show_progress=False, **options)  # type: ignore[arg-type]


COARSE = BURGERS.sample(12, resolution=8, seed=0)
BOTH = [COARSE, TRAIN]
ONE_GRID: dict[str, Callable[[], object]] = {
    "last layer": lambda: LAST.fit(operator(), BOTH),  # type: ignore[arg-type]
    "Laplace": lambda: DIAGONAL.fit(operator(), BOTH),  # type: ignore[arg-type]
    "ensemble": lambda: ENSEMBLE.fit(operator(), tuple(BOTH)),  # type: ignore[arg-type]
    "kernel": lambda: KERNEL.fit(None, BOTH),  # type: ignore[arg-type]
    "scale": lambda: SCALE.fit(build_predictor(), BOTH),  # type: ignore[arg-type]
    "band": lambda: BAND.fit(build_predictor(), BOTH),  # type: ignore[arg-type]
    "novelty": lambda: pn.calibration.Novelty().fit(build_predictor(), BOTH),  # type: ignore[arg-type]
    "scores": lambda: pn.metrics.score_pairs(build_predictor(), BOTH),  # type: ignore[arg-type]
}
"""What takes one data set, given several that training takes."""


@pytest.mark.parametrize("call", ONE_GRID.values(), ids=list(ONE_GRID))
def test_several_resolutions_are_for_training_alone(call: Callable[[], object]) -> None:
    fit(operator(), BOTH)
    with pytest.raises(DataError, match="one Dataset as .* data, with one grid for all samples") as caught:
        call()
    assert caught.value.got in ("a list of 2, which only pn.fit takes", "a tuple of 2, which only pn.fit takes")
    assert "give the one on the grid that you predict on" in caught.value.remedy


def test_arrays_are_taken_where_numbers_are_wanted() -> None:
    zeros = np.zeros((3, 1, 2))
    torch.testing.assert_close(
        field().condition(PROBE, zeros, noise=0.1).mean, field().condition(PROBE, torch.from_numpy(zeros), noise=0.1).mean
    )
    torch.testing.assert_close(PROBE(ARRAY), PROBE(VALUES))
