"""Fill values that nobody declared are named and counted, wherever numbers come in; ordinary data are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from probneural.arrays.plausibility import fill_values
from probneural.data import from_arrays
from probneural.errors import DataWarning
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads import LastLayerLaplace
from probneural.operators import FNO
from probneural.pairs import FieldPairs, check_dataset
from probneural.training import fit
from tests.helpers import normal

VALUES = normal(12, 1, 16).numpy()
GRID = Grid.uniform(16)


def _with(number: float, count: int = 2) -> np.ndarray:
    filled = VALUES.copy()
    filled.reshape(-1)[7 : 7 + count] = number
    return filled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "number",
    [9.96921e36, 9.969209968386869e36, 1e20, 1e30, -1e34, 3.4028235e38, -3.4028235e38, -9999.0, -999.0, -99.9, -999.99],
)
def test_fill_values_are_counted(number: float, dtype: torch.dtype) -> None:
    counts = fill_values(torch.from_numpy(_with(number, 3)).to(dtype))
    assert list(counts.values()) == [3]
    assert next(iter(counts)) == pytest.approx(number)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(VALUES, id="ordinary"),
        pytest.param(np.array([-99.9, 120.0, 3.0]), id="one of its size"),
        pytest.param(np.array([-999.0, -999.0, -2500.0]), id="not the least"),
        pytest.param(VALUES * 1e30, id="large"),
        pytest.param(np.array([1e13, 1e14, 1e15, 1e15]), id="of the size of others"),
        pytest.param(np.zeros(0), id="none"),
    ],
)
def test_ordinary_numbers_are_none(values: np.ndarray) -> None:
    assert fill_values(torch.from_numpy(values)) == {}


BAD = _with(-9999.0)
PAIRS = FieldPairs.from_numpy(VALUES, 2 * VALUES, grid=GRID)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: FieldPairs.from_numpy(VALUES, BAD, grid=GRID), "2 values of the outputs are -9999"),
        (lambda: Field.from_numpy(BAD, grid=GRID), "2 values of the values are -9999"),
        (lambda: Field.from_xarray(Field(torch.from_numpy(BAD), GRID).to_xarray()), "are -9999"),
        (lambda: from_arrays(BAD, VALUES, grid=GRID), "2 values of the inputs are -9999"),
        (lambda: from_arrays(BAD, VALUES, grid=Grid.uniform(16, periodic=False)), "2 values of the inputs are -9999"),
        (lambda: check_dataset(FieldPairs(PAIRS.inputs, Field(torch.from_numpy(_with(-9999.0, 1)), GRID))), "1 value of the"),
    ],
)
def test_they_are_named_where_data_come_in(call: Callable[[], object], name: str) -> None:
    with pytest.warns(DataWarning, match=name):
        call()


def test_new_inputs_are_looked_at() -> None:
    operator = FNO(1, 1, modes=(4,), width=4, depth=1, seed=0).double()
    predictor = LastLayerLaplace().fit(operator, PAIRS)
    with pytest.warns(DataWarning, match="1 value of the inputs is 1e"):
        predictor(Field(torch.from_numpy(_with(1e20, 1)), GRID))


def test_what_is_declared_is_none() -> None:
    pairs = FieldPairs.from_numpy(np.where(BAD == -9999.0, np.nan, BAD), VALUES, grid=GRID, mask=True)
    assert int((~pairs.inputs.grid.observed).sum()) == 2


def test_all_samples_that_train_from_files_are_looked_at() -> None:
    """Few are read when a source is made."""
    values = normal(40, 1, 16).numpy()
    bad = values.copy()
    bad[37, 0, 3:6] = -999.0
    data = from_arrays(2 * values, bad, grid=GRID, dtype=torch.float32)
    with pytest.warns(DataWarning, match="3 values of the outputs are -999"):
        fit(FNO(1, 1, modes=(4,), width=4, depth=1, seed=0), data, epochs=1, seed=0, show_progress=False)
