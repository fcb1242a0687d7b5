"""Operators take units, modes and maps from data on disk as from data in memory, and read no more than they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from probneural import data as pn_data
from probneural.data import StoredPairs
from probneural.data.readers import SlicedReader
from probneural.errors import DataError
from probneural.grids import Grid
from probneural.operators import (
    FNO,
    DeepONet,
    LinearRegression,
    PODDeepONet,
    linear,
    pod_deeponet,
)
from probneural.operators.base import Operator
from probneural.pairs import Dataset, FieldPairs, check_dataset
from tests.data.files import numbers, write_hdf5

GRID = Grid.uniform(8)
A, U = numbers(40, 1, 8), 3.0 + 2.0 * numbers(40, 2, 8, seed=1)
PAIRS = FieldPairs.from_numpy(A, U, grid=GRID)


def normalised(build: Callable[[], Operator]) -> Callable[[Dataset], nn.Module]:
    def make(data: Dataset) -> nn.Module:
        operator = build()
        operator.fit_normalizers(data)
        return operator

    return make


MAKE: dict[str, Callable[[Dataset], nn.Module]] = {
    "FNO": normalised(lambda: FNO(1, 2, modes=(2,), width=4, depth=1, seed=0)),
    "DeepONet": normalised(lambda: DeepONet(1, 2, sensors=GRID, seed=0)),
    "PODDeepONet": normalised(lambda: PODDeepONet(1, 2, sensors=GRID, out_grid=GRID, basis=3, seed=0)),
    "LinearRegression": lambda data: LinearRegression.fitted(data, components=3),
}


def same(first: nn.Module, second: nn.Module) -> bool:
    """Whether all numbers of two modules have the same bits."""
    others = second.state_dict()
    return all(torch.equal(tensor, others[name]) for name, tensor in first.state_dict().items())


@pytest.mark.parametrize("name", MAKE)
def test_the_bits_are_those_of_data_in_memory(name: str, tmp_path: Path) -> None:
    stored = pn_data.open(write_hdf5(tmp_path / "f.h5", (7, 1, 8), a=A, u=U), inputs=["a"], outputs=["u"], periodic=(True,))
    assert isinstance(stored, StoredPairs)
    assert same(MAKE[name](stored), MAKE[name](PAIRS))


@pytest.mark.parametrize("name", ["PODDeepONet", "LinearRegression"])
def test_what_needs_functions_at_once_reads_some_evenly_spread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []

    class Recorded(SlicedReader):
        def read(self, box: tuple[slice, ...]) -> object:
            rows.extend(range(*box[0].indices(40)))
            return super().read(box)

        def read_rows(self, chosen: np.ndarray) -> object:
            rows.extend(chosen.tolist())
            return super().read_rows(chosen)

    monkeypatch.setattr(pod_deeponet, "_MOST_NUMBERS", 0)  # four functions per mode
    monkeypatch.setattr(linear, "_MOST_NUMBERS", 16 * 12)
    monkeypatch.setattr("probneural.data.roles.reader_of", lambda array, name: Recorded(array))
    data = pn_data.from_arrays(A, U, grid=GRID)
    assert data.fingerprint  # it is kept: run-time checks ask for it
    rows.clear()
    found = MAKE[name](data)
    some = [40 * row // 12 for row in range(12)]
    if name == "LinearRegression":
        assert sorted(rows) == sorted(some * 2)
        assert same(found, MAKE[name](PAIRS[some]))
        return
    assert set(rows[: len(some)]) == set(some)
    assert len(rows) == len(some) + 40 + 40  # and the units of both sides
    assert not same(found, MAKE[name](PAIRS[some]))
    assert torch.equal(found.output_normalizer.mean, MAKE["FNO"](PAIRS).output_normalizer.mean)


@pytest.mark.bad_input  # run-time checks of types evaluate all members
def test_nothing_is_read_to_see_that_it_is_a_data_set() -> None:
    data = pn_data.from_arrays(A, U, grid=GRID)
    assert check_dataset(data) is data
    assert "fingerprint" not in vars(data)
    for other in (A, StoredPairs, data.inputs):
        with pytest.raises(DataError, match="a Dataset as training data"):
            check_dataset(other)
