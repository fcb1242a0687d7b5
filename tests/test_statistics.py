"""Statistics per channel: against NumPy's on all values at once, in parts and over processes, and at their limits."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probneural import statistics as module
from probneural.errors import DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators.layers import ChannelNormalizer
from probneural.processes import alone, together
from probneural.statistics import Statistics, statistics, units
from tests.helpers import normal, scattered

GRID = Grid.uniform((5, 4), periodic=(False, True))
SCALES = torch.tensor([1.0, 3e4, 1e-6], dtype=torch.float64)[:, None, None]
FIELD = Field(normal(23, 3, 5, 4) * SCALES + torch.tensor([0.0, -7e5, 4e-5], dtype=torch.float64)[:, None, None], GRID)


def expected(field: Field) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean and variance of all values at once, by NumPy."""
    values = field.values.double().flatten(2).numpy()
    weights = np.broadcast_to(field.grid.mean_weights.numpy() / len(field), (len(field), field.grid.size))
    mean = np.einsum("ncp,np->c", values, weights)
    return mean, np.einsum("ncp,np->c", (values - mean[:, None]) ** 2, weights)


@pytest.mark.parametrize("grid", [GRID, scattered(20, 2)], ids=["uniform", "scattered"])
def test_they_are_the_weighted_moments(grid: Grid) -> None:
    field = Field(FIELD.values.reshape(23, 3, *grid.shape), grid)
    found = statistics(field)
    mean, variance = expected(field)
    assert found.count == 23
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-12)
    np.testing.assert_allclose(found.std, np.sqrt(variance), rtol=1e-12)


@given(cuts=st.lists(st.integers(0, 23), max_size=5))
def test_parts_merge_to_the_whole(cuts: list[int]) -> None:
    parts = [FIELD[slice(*ends)] for ends in pairwise([0, *sorted(cuts), 23])]
    total = Statistics.empty(3)
    for part in parts:
        total = total.merge(Statistics.of(part))
    assert total.count == 23
    for found in (total, Statistics.merged(Statistics.of(part) for part in parts)):
        torch.testing.assert_close(found.mean, Statistics.of(FIELD).mean, rtol=1e-13, atol=0.0)
        torch.testing.assert_close(found.variance, Statistics.of(FIELD).variance, rtol=1e-11, atol=0.0)


def test_chunks_follow_from_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read in order, each once, and hold a fixed number of values."""

    class Recorded(Field):
        asked: ClassVar[list[tuple[int, int]]] = []

        def __getitem__(self, index: slice) -> Field:
            self.asked.append((index.start, index.stop))
            return super().__getitem__(index)

    monkeypatch.setattr(module, "_CHUNK_NUMBERS", 10 * 3 * 20 + 1)
    found = statistics(Recorded(FIELD.values, GRID))
    assert Recorded.asked == [(0, 10), (10, 20), (20, 23)]
    torch.testing.assert_close(found.variance, Statistics.of(FIELD).variance, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("value", [0.1, -3e7, 0.0, 1e-300, 1e300])
def test_a_constant_channel_has_unit_scale(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_NUMBERS", 60)
    mean, scale = units(Field(torch.full((7, 1, 5, 4), value, dtype=torch.float64), GRID))
    assert (mean.tolist(), scale.tolist()) == ([value], [1.0])


@pytest.mark.parametrize("size", [1e-300, 2e-160, 1e160, 1e300])
def test_squares_neither_overflow_nor_vanish(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they beside functions that are zero, or much smaller."""
    monkeypatch.setattr(module, "_CHUNK_NUMBERS", 1)
    values = normal(6, 1, 5, 4)
    values[0], values[1] = 0.0, 1e-20 * values[1]
    mean, scale = units(Field(values, GRID))
    large_mean, large_scale = units(Field(values * size, GRID))
    torch.testing.assert_close(large_mean, mean * size, rtol=1e-13, atol=0.0)
    torch.testing.assert_close(large_scale, scale * size, rtol=1e-13, atol=0.0)


def test_a_large_mean_does_not_hide_a_small_spread() -> None:
    """The textbook formula, mean square less squared mean, loses all digits here."""
    field = Field(1e9 + 1e-3 * normal(50, 1, 5, 4), GRID)
    assert float(units(field)[1]) == pytest.approx(math.sqrt(expected(field)[1][0]), rel=1e-6)


def test_sources_of_several_grids_count_by_function() -> None:
    coarse, fine = (
        Field(torch.ones(3, 1, 4), Grid.uniform(4)),
        Field(torch.full((1, 1, 64), 5.0), Grid.uniform(64, lengths=9.0)),
    )
    mean, scale = units([coarse, fine])
    assert (mean.item(), scale.item()) == (2.0, pytest.approx(math.sqrt(3.0)))


def test_they_carry_no_graph() -> None:
    mean, scale = units(Field(FIELD.values.clone().requires_grad_(), GRID))
    assert not mean.requires_grad
    assert not scale.requires_grad


def test_refuses_nothing_and_other_channels() -> None:
    with pytest.raises(DataError, match="1 or more functions to take units from"):
        units(FIELD[:0])
    with pytest.raises(DataError, match="expected 3 channels of functions; got 2"):
        units([FIELD, Field(FIELD.values[:, :2], GRID)])


def _gathered(rank: int, folder: Path) -> None:
    """What each of three processes finds."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=3)
    module._CHUNK_NUMBERS = 4 * 60  # six chunks
    shared = [*units(FIELD, over_processes=True), *units(FIELD[:5], over_processes=True)]
    own = statistics(FIELD[rank * 7 : rank * 7 + 7]).over_processes()
    normalizer = ChannelNormalizer(3).double()
    with together():
        normalizer.fit(FIELD)
    torch.save([*shared, own.mean, own.std, torch.tensor(own.count), normalizer.mean, normalizer.scale], folder / f"{rank}.pt")
    if rank == 1:  # what one process does by itself waits for nobody
        normalizer.fit(FIELD[:5])
        with together(), alone():
            normalizer.fit(FIELD)
    torch.distributed.destroy_process_group()


def test_processes_read_a_part_each_and_agree_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.multiprocessing.spawn(_gathered, args=(tmp_path,), nprocs=3)
    monkeypatch.setattr(module, "_CHUNK_NUMBERS", 4 * 60)
    by_one = [*units(FIELD), *units(FIELD[:5])]
    whole = statistics(FIELD[:21])
    for rank in range(3):
        *shared, mean, std, count, centre, scale = torch.load(tmp_path / f"{rank}.pt")
        assert torch.equal(torch.stack([centre, scale]), torch.stack(by_one[:2]))
        assert all(torch.equal(one, other) for one, other in zip(shared, by_one, strict=True))
        torch.testing.assert_close(mean, whole.mean, rtol=1e-13, atol=0.0)
        torch.testing.assert_close(std, whole.std, rtol=1e-12, atol=0.0)
        assert int(count) == 21
