"""Guards against reuse: pairs that trained the predictor, in another dtype, or as other windows, are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import pytest
import torch

import probneural as pn
from probneural import calibration as c
from probneural.distributions import Predictor
from probneural.errors import CalibrationError, DataWarning
from probneural.fields import Field
from probneural.pairs import FieldPairs
from tests.helpers import normal

GRID = pn.Grid.uniform(16)


def pairs(seed: int, *, count: int = 40) -> FieldPairs:
    inputs = normal(count, 1, 16, seed=seed)
    return FieldPairs(Field(inputs, GRID), Field(inputs.square() + 0.1 * normal(count, 1, 16, seed=seed + 100), GRID))


def trajectories() -> pn.FieldTrajectories:
    states = normal(8, 8, 1, 16, seed=3)
    return pn.FieldTrajectories(Field(states[:, 0], GRID), states[:, 1:], times=torch.arange(1.0, 8.0).double())


@cache
def trained(kind: str) -> Predictor:
    """A head; of "own", the operator was trained on other pairs than the head's."""
    data = trajectories().windows() if kind == "windows" else pairs(0)
    operator = pn.operators.FNO(1, 1, modes=(3,), width=4, depth=1, seed=0).double()
    pn.fit(operator, pairs(1) if kind == "own" else data, epochs=1, show_progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # the operator knows other pairs, which is the case
        return pn.heads.LastLayerLaplace().fit(operator, data)


def rounded(data: FieldPairs) -> FieldPairs:
    return data.to(torch.float32).to(torch.float64)


REUSED: dict[str, tuple[str, Callable[[], FieldPairs]]] = {
    "the head's own pairs": ("own", lambda: pairs(0)),
    "the operator's pairs": ("own", lambda: pairs(1)),
    "another dtype": ("same", lambda: rounded(pairs(0))),
    "windows of another lead": ("windows", lambda: trajectories().windows(lead=2)),
    "windows of another stride": ("windows", lambda: trajectories().windows(stride=2)),
    "windows in another dtype": ("windows", lambda: rounded(trajectories().windows(lead=3))),
}


@pytest.mark.parametrize("reused", REUSED)
def test_training_pairs_are_refused(reused: str) -> None:
    kind, data = REUSED[reused]
    with pytest.raises(CalibrationError, match="trained it"):
        c.VarianceScale().fit(trained(kind), data())


@pytest.mark.parametrize("reused", ["another dtype", "windows of another lead", "windows in another dtype"])
def test_pairs_that_scaled_the_predictor_are_refused_by_bands(reused: str) -> None:
    kind, data = REUSED[reused]
    head = trained("own")
    first = trajectories().windows() if kind == "windows" else pairs(5)
    scaled = c.VarianceScale().fit(head, first)
    again = data() if kind == "windows" else rounded(first)
    with pytest.raises(CalibrationError, match="calibrat"):
        c.SimultaneousBand(level=0.5).fit(scaled, again)
