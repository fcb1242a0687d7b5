"""Trajectories and their windows, against explicit indexing, and splits that never divide a trajectory."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray
from hypothesis import given
from hypothesis import strategies as st

import probneural as pn
from probneural.data import StoredPairs, Trajectories
from probneural.errors import ArgumentError, DataError, DataWarning, ShapeError, UnsupportedError
from probneural.grids import Grid
from probneural.trajectories import FieldTrajectories
from tests.data.files import numbers, opened, write_hdf5, write_zarr
from tests.helpers import normal

STATES = numbers(7, 6, 2, 8, 4)
TIMES = [0.5 * step for step in range(6)]
GRID = Grid.uniform((8, 4))
DATA = Trajectories.from_array(STATES, times=TIMES, grid=GRID)


def windows_by_hand(states: np.ndarray, history: int, lead: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and outputs of all windows, one after the other."""
    inputs, outputs = [], []
    for trajectory in states:
        for start in range(0, len(trajectory), stride):
            if start + history - 1 + lead < len(trajectory):
                inputs.append(np.concatenate([trajectory[start + step] for step in range(history)]))
                outputs.append(trajectory[start + history - 1 + lead])
    return np.stack(inputs), np.stack(outputs)


@given(history=st.integers(1, 4), lead=st.integers(1, 3), stride=st.integers(1, 4))
def test_windows_are_those_of_explicit_indexing(history: int, lead: int, stride: int) -> None:
    if history + lead > 6:
        return
    inputs, outputs = windows_by_hand(STATES, history, lead, stride)
    pairs = DATA.windows(history=history, lead=lead, stride=stride)
    assert len(pairs) == len(inputs)
    assert (pairs.inputs.channels, pairs.outputs.channels) == (2 * history, 2)
    read = pairs[:]
    assert np.array_equal(read.inputs.values, inputs)
    assert np.array_equal(read.outputs.values, outputs)
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(1))
    assert np.array_equal(pairs[order].inputs.values, inputs[order])


@given(history=st.integers(1, 3), lead=st.integers(1, 2), stride=st.integers(1, 3), steps=st.integers(1, 4))
def test_windows_of_several_steps_are_those_of_explicit_indexing(history: int, lead: int, stride: int, steps: int) -> None:
    """Each state that follows is that of a window of one step with a longer lead."""
    if history + lead * steps > 6 or min(history, lead, steps) > 1:
        return
    pairs = DATA.windows(history=history, lead=lead, stride=stride, steps=steps)
    parts = [windows_by_hand(STATES, history, lead * (number + 1), stride) for number in range(steps)]
    starts = len(range(0, 6 - history - lead * steps + 1, stride))
    kept = [one.reshape(7, -1, *one.shape[1:])[:, :starts].reshape(-1, *one.shape[1:]) for _, one in parts]
    assert (len(pairs), pairs.outputs.channels) == (7 * starts, 2 * steps)
    assert np.array_equal(pairs[:].outputs.values, np.concatenate(kept, 1))
    inputs = parts[-1][0].reshape(7, -1, *parts[-1][0].shape[1:])[:, :starts]
    assert np.array_equal(pairs[:].inputs.values, inputs.reshape(-1, *inputs.shape[2:]))


def test_states_of_several_variables_are_stacked_state_by_state(tmp_path: Path) -> None:
    """In the outputs' order; what is in the inputs alone comes after them, however the inputs are named."""
    fields = {"u": STATES[:, :, :1], "v": STATES[:, :, 1:], "f": -STATES[:, :, :1]}
    path = write_hdf5(tmp_path / "f.h5", None, **fields)
    options: dict[str, Any] = {"time": TIMES, "grid": GRID}
    data = opened(path, inputs=["v", "u"], outputs=["u", "v"], **options)
    pairs, expected = data.windows(history=2, steps=2), DATA.windows(history=2, steps=2)
    assert torch.equal(pairs[:].inputs.values, expected[:].inputs.values)
    assert torch.equal(pairs[:].outputs.values, expected[:].outputs.values)
    forced = opened(path, inputs=["f", "u"], outputs=["u"], **options)
    read = forced.windows(history=2)[:].inputs.values
    assert torch.equal(read[:, 2:], -read[:, :2])
    assert torch.equal(read[:, :2], DATA.windows(history=2)[:].inputs.values[:, [0, 2]])
    with pytest.raises(ArgumentError, match="f on one side"):
        forced.windows(steps=2)
    with pytest.raises(ArgumentError, match="v on one side"):
        opened(path, inputs=["u"], outputs=["u", "v"], **options).windows(steps=2)


def test_steps_that_do_not_follow_each_other_are_refused() -> None:
    with pytest.raises(ArgumentError, match="lead=1 with a history and several steps; got history=2, lead=2, steps=2"):
        DATA.windows(history=2, lead=2, steps=2)
    with pytest.raises(ArgumentError, match=r"history \+ steps \* lead of at most 6, the number of times; got 2 \+ 5 \* 1"):
        DATA.windows(history=2, steps=5)
    assert len(DATA.windows(history=2, steps=4)) == 7


def test_the_last_window_ends_at_the_last_time() -> None:
    """And so do those of as many steps as there are; one more is refused."""
    assert np.array_equal(DATA.windows()[-1].outputs.values[0], STATES[-1, -1])
    assert len(DATA.windows()) == 7 * 5
    assert len(DATA.windows(history=3, lead=3)) == len(DATA.windows(lead=5)) == 7
    for history, lead in ((4, 3), (1, 6), (6, 1)):
        with pytest.raises(ArgumentError, match=r"expected history \+ lead of at most 6"):
            DATA.windows(history=history, lead=lead)


@pytest.mark.parametrize("kind", ["hdf5", "hdf5-chunks", "zarr", "npy", "memory-map"])
def test_files_give_the_windows_of_the_array(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"inputs": ["u"], "outputs": ["u"], "time": TIMES, "grid": GRID}
    if kind.startswith("hdf5"):
        found = opened(write_hdf5(tmp_path / "f.h5", (2, 4, 1, 8, 4) if "chunks" in kind else None, u=STATES), **options)
    elif kind == "zarr":
        found = opened(write_zarr(tmp_path / "f.zarr", 3, u=STATES), **options)
    else:
        np.save(tmp_path / "u.npy", STATES)
        mapped = np.load(tmp_path / "u.npy", mmap_mode="r")
        found = Trajectories.from_array(mapped, times=TIMES, grid=GRID)
        found = opened(tmp_path / "u.npy", time=TIMES, grid=GRID) if kind == "npy" else found
    assert isinstance(found, Trajectories)
    pairs, expected = found.windows(history=2, stride=2), DATA.windows(history=2, stride=2)
    for index in (slice(None), [13, 2, 2, 0], slice(3, 9)):
        assert torch.equal(pairs[index].inputs.values, expected[index].inputs.values)
        assert torch.equal(pairs[index].outputs.values, expected[index].outputs.values)
    assert (pairs.fingerprint, found.fingerprint) == (expected.fingerprint, DATA.fingerprint)
    assert torch.equal(pickle.loads(pickle.dumps(pairs))[5].inputs.values, expected[5].inputs.values)  # noqa: S301


def trajectories_in(pairs: StoredPairs) -> set[int]:
    """Which trajectories the values that are read come from."""
    starts = {trajectory[step].tobytes(): number for number, trajectory in enumerate(STATES) for step in range(6)}
    sides = (pairs[:].inputs.values[:, :2], pairs[:].outputs.values)
    return {starts[state.numpy().tobytes()] for side in sides for state in side}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [1, 5, 6, 17, 24])
def test_no_trajectory_is_on_both_sides_of_a_split_of_windows(count: int, seed: int) -> None:
    pairs = DATA.windows(history=2)
    first, second = pairs.split(count, seed=seed)
    assert not trajectories_in(first) & trajectories_in(second)
    assert len(first) + len(second) == len(pairs)
    assert count <= len(first) < count + 4  # four windows each
    again = first.split(1, seed=0) if len(trajectories_in(first)) > 1 else ()
    assert not again or not trajectories_in(again[0]) & trajectories_in(again[1])


def test_a_split_that_would_divide_the_last_trajectory_is_refused() -> None:
    with pytest.raises(ArgumentError, match="leaves a trajectory of 7"):
        DATA.windows().split(34, seed=0)


def test_trajectories_are_split_as_a_whole() -> None:
    first, second = DATA.split(3, seed=0)
    assert (len(first), len(second)) == (3, 4)
    assert not trajectories_in(first.windows()) & trajectories_in(second.windows())
    assert trajectories_in(DATA.subset([4, 1]).windows()) == {1, 4}


def test_trajectories_of_one_time_have_a_fingerprint() -> None:
    found = {Trajectories.from_array(STATES[:, step : step + 1], times=[0.0], grid=GRID).fingerprint for step in (0, 1)}
    assert len(found) == 2


def test_refuses_arrays_and_times_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match=r"2 grid axes; got \(7, 6, 8\); state the roles"):
        Trajectories.from_array(STATES[:, :, 0, :, 0], times=TIMES, grid=GRID)
    with pytest.raises(ShapeError, match="at 5 times; got 6 times"):
        Trajectories.from_array(STATES, times=TIMES[:5], grid=GRID)
    with pytest.raises(DataError, match="ascending times"):
        Trajectories.from_array(STATES, times=[*TIMES[1:], TIMES[0]], grid=GRID)
    with pytest.raises(ArgumentError, match="periodic"):
        Trajectories.from_array(STATES, times=TIMES)


def test_a_bad_state_is_named_where_it_is_read() -> None:
    broken = STATES.copy()
    broken[3, 4, 1, 2, 2] = np.inf
    pairs = Trajectories.from_array(broken, times=TIMES, grid=GRID).windows()
    assert len(pairs[:18].inputs) == 18
    with pytest.raises(DataError, match="in function 3, window at step 3"):
        pairs[18]


def test_windows_do_not_mix_steps_of_several_lengths() -> None:
    uneven = Trajectories.from_array(STATES, times=[0.0, 0.5, 1.0, 2.0, 2.5, 3.0], grid=GRID)
    for options in ({}, {"history": 2}, {"lead": 2}, {"steps": 2}):
        with pytest.warns(DataWarning, match="cross a gap"):
            pairs = uneven.windows(**options)
        assert float((pairs.clock.states[:, -1] - pairs.clock.states[:, 0]).max()) <= 1.0
    assert len(uneven.windows(lead=5)) == len(STATES)  # one window of each: nothing is mixed
    assert len(uneven.windows(stride=6)) == len(STATES)
    with pytest.raises(ArgumentError, match="equally spaced"):  # the same places, but steps of .5 and of 1
        uneven.windows(history=3, stride=2, lead=1)


def with_land(*, varies: str = "") -> torch.Tensor:
    """States of 3 trajectories at 4 times with two missing points, and others at a later time or in another trajectory."""
    states = torch.arange(96.0).reshape(3, 4, 1, 8).sin()
    states[..., 2:4] = torch.nan
    if varies:
        states[(slice(None), 2) if varies == "time" else 1][..., 6] = torch.nan
    return states


@pytest.mark.parametrize("mask", [True, "land"])
def test_a_constant_mask_is_one_mask_of_trajectories_in_memory(mask: bool | str) -> None:
    data = Trajectories.from_array(with_land(), times=[0.0, 1.0, 2.0, 3.0], periodic=True, mask=mask)
    read = data[[2, 0]]
    assert not read.grid.is_batch
    assert read.grid.observed.tolist() == [True, True, False, False, True, True, True, True]
    pairs, stored_pairs = read.windows(), data.subset([2, 0]).windows()[:]
    assert torch.equal(pairs.inputs.grid.fill(pairs.inputs.values), stored_pairs.inputs.grid.fill(stored_pairs.inputs.values))
    assert len(FieldTrajectories.cat([read, data[1]])) == 3


@pytest.mark.parametrize("varies", ["time", "trajectory"])
def test_masks_that_vary_are_refused_in_memory(varies: str) -> None:
    data = Trajectories.from_array(with_land(varies=varies), times=[0.0, 1.0, 2.0, 3.0], periodic=True, mask=True)
    with pytest.raises(UnsupportedError, match="masks that differ between times or trajectories") as caught:
        data[:]
    assert "data.windows()" in caught.value.remedy
    windows = data.windows()[:]
    assert int((~windows.outputs.grid.observed).sum()) == 3 * 3 * 2 + 3
    if varies == "trajectory":
        assert int(data[1].grid.observed.sum()) == 5


def test_missing_values_of_arrays_need_a_mask() -> None:
    data = Trajectories.from_array(with_land(), times=[0.0, 1.0, 2.0, 3.0], periodic=True)
    with pytest.raises(DataError, match="mask=True"):
        data[:]


# Times with gaps, of calendar months, descending and repeated: windows where they can be made, and remedies that work

GAP_STATES = normal(3, 9, 1, 8, seed="gaps")
MONTHS = np.cumsum([0, 31, 29, 31, 30, 31, 30, 31, 31])


def trajectories(times: list[float] | torch.Tensor | np.ndarray, states: torch.Tensor = GAP_STATES) -> pn.data.Trajectories:
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
        assert torch.equal(read.inputs.values[row], GAP_STATES[0, first : first + history, 0])
        ends = [first + history - 1 + lead * (number + 1) for number in range(steps)]
        assert torch.equal(read.outputs.values[row], GAP_STATES[0, ends, 0])
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
    assert torch.equal(pairs[:].outputs.values[:7], GAP_STATES[0, 2:])
    earlier, later = pairs.subset(slice(0, 7)).split(3, by="time")
    assert [len(earlier), len(later)] == [3, 2]
    missing = np.delete(times, 4)
    with pytest.warns(DataWarning, match="3 of 21 windows"):
        trajectories(missing, GAP_STATES[:, :8]).windows()


def test_times_without_a_frequent_step_are_refused() -> None:
    with pytest.raises(ArgumentError, match="equally spaced, but for gaps") as caught:
        trajectories([0.0, 1, 3, 7, 8, 15, 31, 50, 77]).windows()
    assert "StoredPairs(data.at(0), data.at(1))" in caught.value.remedy


def test_descending_times_are_turned_round(tmp_path: Path) -> None:
    times = 6.0 * np.arange(9)
    forward, backward = trajectories(times), trajectories(times[::-1].copy(), GAP_STATES.flip(1))
    assert torch.equal(backward.times, forward.times)
    for pairs, other in ((forward.windows(history=2), backward.windows(history=2)), (forward.windows(), backward.windows())):
        assert torch.equal(pairs[:].inputs.values, other[:].inputs.values)
        assert torch.equal(pairs[:].outputs.values, other[:].outputs.values)
        rows = [5, 2, 11]
        assert torch.equal(pairs[rows].inputs.values, other[rows].inputs.values)
    coordinates = {"time": times[::-1], "x": np.arange(8.0)}
    dataset = xarray.Dataset({"u": (("member", "time", "x"), GAP_STATES.flip(1)[:, :, 0].numpy())}, coords=coordinates)
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
    with pytest.raises(DataError, match="each once; got .*6.0, 6.0.*keep one state of each time") as caught:
        trajectories(times)
    assert "np.unique(times, return_index=True)[1]" in caught.value.remedy
    rows = np.unique(times, return_index=True)[1]
    assert len(trajectories(times[rows], GAP_STATES[:, rows]).windows()) == 3 * 7
    times = np.array([0.0, 12, 6, 18, 24, 30, 36, 42, 48])
    with pytest.raises(DataError, match="ascending") as caught:
        trajectories(times)
    assert "np.argsort(times)" in caught.value.remedy
    rows = np.argsort(times)
    assert len(trajectories(times[rows], GAP_STATES[:, rows]).windows()) == 3 * 8
