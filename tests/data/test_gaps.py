"""Times with gaps, of calendar months, descending and repeated: windows where they can be made, and remedies that work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray

import probneural as pn
from probneural.errors import ArgumentError, DataError, DataWarning
from tests.data.files import opened
from tests.helpers import normal

STATES = normal(3, 9, 1, 8, seed="gaps")
MONTHS = np.cumsum([0, 31, 29, 31, 30, 31, 30, 31, 31])


def trajectories(times: list[float] | torch.Tensor | np.ndarray, states: torch.Tensor = STATES) -> pn.data.Trajectories:
    return pn.data.Trajectories.from_array(states, times=torch.as_tensor(times, dtype=torch.float64), periodic=True)


@pytest.mark.parametrize(("history", "lead", "steps"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)])
def test_windows_across_a_gap_are_left_out_and_counted(history: int, lead: int, steps: int) -> None:
    times = torch.tensor([0, 6, 12, 18, 30, 36, 42, 48, 54], dtype=torch.float64)  # 24 is missing
    span = history - 1 + lead * steps
    expected = [first for first in range(9 - span) if times[first + span] - times[first] == 6 * span]
    with pytest.warns(DataWarning, match=f"{3 * (9 - span - len(expected))} of {3 * (9 - span)} windows cross a gap"):
        pairs = trajectories(times).windows(history=history, lead=lead, steps=steps)
    assert pairs.clock.step == 6.0
    assert pairs.clock.times.reshape(3, -1)[1].tolist() == [float(times[first + history - 1]) for first in expected]
    read = pairs[:]
    for row, first in enumerate(expected):
        assert torch.equal(read.inputs.values[row], STATES[0, first : first + history, 0])
        ends = [first + history - 1 + lead * (number + 1) for number in range(steps)]
        assert torch.equal(read.outputs.values[row], STATES[0, ends, 0])
    assert torch.equal(read.groups, torch.arange(3).repeat_interleave(len(expected)))


def test_trajectories_may_have_gaps_of_their_own() -> None:
    times = torch.arange(9.0).repeat(3, 1)
    times[1, 5:] += 2.0
    with pytest.warns(DataWarning, match="1 of 24 windows"):
        pairs = trajectories(times).windows()
    assert pairs.groups.unique(return_counts=True)[1].tolist() == [8, 7, 8]


def test_rounding_of_times_hides_no_step() -> None:
    times = np.delete(np.arange(10) * 0.1, 4)
    with pytest.warns(DataWarning, match="3 of 24 windows"):
        assert trajectories(times).windows().clock.step == pytest.approx(0.1)


@pytest.mark.parametrize("times", [MONTHS, MONTHS + 0.5, 30.0 * np.arange(9)])
def test_calendar_months_are_equal_steps(times: np.ndarray) -> None:
    pairs = trajectories(times).windows(history=2)
    assert len(pairs) == 3 * 7
    assert torch.equal(pairs[:].outputs.values[:7], STATES[0, 2:])
    earlier, later = pairs.subset(slice(0, 7)).split(3, by="time")
    assert [len(earlier), len(later)] == [3, 2]
    missing = np.delete(times, 4)
    with pytest.warns(DataWarning, match="3 of 21 windows"):
        trajectories(missing, STATES[:, :8]).windows()


def test_times_without_a_frequent_step_are_refused() -> None:
    with pytest.raises(ArgumentError, match="equally spaced, but for gaps") as caught:
        trajectories([0.0, 1, 3, 7, 8, 15, 31, 50, 77]).windows()
    assert "StoredPairs(data.at(0), data.at(1))" in caught.value.remedy


def test_descending_times_are_turned_round(tmp_path: Path) -> None:
    times = 6.0 * np.arange(9)
    forward, backward = trajectories(times), trajectories(times[::-1].copy(), STATES.flip(1))
    assert torch.equal(backward.times, forward.times)
    for pairs, other in ((forward.windows(history=2), backward.windows(history=2)), (forward.windows(), backward.windows())):
        assert torch.equal(pairs[:].inputs.values, other[:].inputs.values)
        assert torch.equal(pairs[:].outputs.values, other[:].outputs.values)
        rows = [5, 2, 11]
        assert torch.equal(pairs[rows].inputs.values, other[rows].inputs.values)
    coordinates = {"time": times[::-1], "x": np.arange(8.0)}
    dataset = xarray.Dataset({"u": (("member", "time", "x"), STATES.flip(1)[:, :, 0].numpy())}, coords=coordinates)
    dataset.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    stored = opened(tmp_path / "a.nc", inputs=["u"], outputs=["u"], sample="member", periodic=True)
    assert torch.equal(stored.at(3)[:].values, forward.at(3)[:].values)
    assert torch.equal(stored[:].values, forward[:].values)
    dataset.sortby("time").to_netcdf(tmp_path / "b.nc", engine="h5netcdf")
    keys = stored.windows().window_keys
    assert len(keys.unique()) == 27
    assert torch.isin(keys, stored.window_keys).all()


def test_remedies_for_repeated_and_unsorted_times_work() -> None:
    times = np.array([0.0, 6, 6, 12, 18, 24, 30, 36, 42])
    with pytest.raises(DataError, match="1 that are repeated, 6 first") as caught:
        trajectories(times)
    assert "np.unique(times, return_index=True)[1]" in caught.value.remedy
    rows = np.unique(times, return_index=True)[1]
    assert len(trajectories(times[rows], STATES[:, rows]).windows()) == 3 * 7
    times = np.array([0.0, 12, 6, 18, 24, 30, 36, 42, 48])
    with pytest.raises(DataError, match="ascending") as caught:
        trajectories(times)
    assert "np.argsort(times)" in caught.value.remedy
    rows = np.argsort(times)
    assert len(trajectories(times[rows], STATES[:, rows]).windows()) == 3 * 8
