"""Clocks of pairs: times and identities survive what is done to pairs, and parts in time share nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray

import probneural as pn
from probneural.errors import ArgumentError, DataError, DataWarning, ShapeError
from probneural.pairs.clocks import split_in_time
from tests.data.files import opened
from tests.helpers import normal


def trajectories(count: int = 2, times: int = 12, *, step: float = 0.5) -> pn.data.Trajectories:
    states = normal(count, times, 1, 8, seed="clock states")
    return pn.data.Trajectories.from_array(states, times=[3.0 + step * number for number in range(times)], periodic=True)


def series(count: int = 60) -> pn.FieldPairs:
    side = pn.Field(normal(count, 1, 8, seed="series"), pn.Grid.uniform(8))
    return pn.FieldPairs(side, side, clock=pn.WindowClock(6.0 * torch.arange(count), step=6.0))


@pytest.mark.parametrize(("history", "lead", "steps"), [(1, 1, 1), (2, 1, 1), (1, 3, 2)])
def test_windows_know_the_times_of_their_states(history: int, lead: int, steps: int) -> None:
    data = trajectories()
    pairs = data.windows(history=history, lead=lead, steps=steps)
    clock = pairs.clock
    assert (clock.history, clock.lead, clock.step) == (history, lead, 0.5)
    per_trajectory = len(pairs) // 2
    for row in (0, per_trajectory - 1, per_trajectory, len(pairs) - 1):
        first = row % per_trajectory
        offsets = [*range(history), *(history - 1 + lead * (number + 1) for number in range(steps))]
        assert clock.states[row].tolist() == [3.0 + 0.5 * (first + offset) for offset in offsets]
        assert clock.times[row] == 3.0 + 0.5 * (first + history - 1)
    assert len(clock.trajectories.unique()) == 2
    assert torch.equal(clock.trajectories[:per_trajectory].unique(), clock.trajectories[:1])


def test_keys_are_equal_exactly_for_equal_states_of_one_trajectory() -> None:
    keys = trajectories().windows(history=2).window_keys
    assert torch.equal(keys[:9, 1:], keys[1:10, :2])  # the windows of the first trajectory overlap
    assert len(keys.unique()) == 2 * 12
    again = trajectories().windows(lead=2).window_keys  # the same contents, in other windows
    assert torch.isin(again, keys).all()
    other = pn.data.Trajectories.from_array(
        normal(2, 12, 1, 8, seed=1), times=[3.0 + 0.5 * k for k in range(12)], periodic=True
    )
    assert not torch.isin(other.windows().window_keys, keys).any()


def test_trajectories_that_are_read_keep_their_times_and_identities() -> None:
    data = trajectories(3)
    read = data[[2, 0]]
    for part in (read, read[1], read.to(torch.float64).detached(), pn.FieldTrajectories.cat([read[0], data[1]])):
        assert torch.isin(part.window_keys, data.window_keys).all()
        assert torch.isin(part.windows(history=2).window_keys, data.windows(history=2).window_keys).all()
    assert torch.equal(read[1].windows().clock.states, data.windows().clock.states[:11])
    loose = pn.FieldTrajectories(read.start, read.values, times=read.times)
    assert loose.windows().clock.times[:2].tolist() == [0.0, 0.5]
    assert torch.isin(loose.windows().window_keys, loose.window_keys).all()


@pytest.mark.parametrize("suffix", ["nc", "zarr"])
def test_identities_of_files_follow_from_path_and_modification(suffix: str, tmp_path: Path) -> None:
    def written(name: str, seed: int) -> Path:
        values = {"u": (("member", "time", "x"), normal(2, 5, 8, seed=seed, dtype=torch.float64).numpy())}
        dataset = xarray.Dataset(values, coords={"time": np.arange(5) * 6.0, "x": np.arange(8.0)})
        path = tmp_path / f"{name}.{suffix}"
        if suffix == "nc":
            dataset.to_netcdf(path, engine="h5netcdf")
        else:
            dataset.to_zarr(path, mode="w", consolidated=False)
        return path

    def keys(path: Path) -> torch.Tensor:
        data = opened(path, inputs=["u"], outputs=["u"], sample="member", periodic=True)
        return data.windows().window_keys

    first = keys(written("a", 0))
    assert torch.equal(keys(tmp_path / f"a.{suffix}"), first)
    assert not torch.isin(keys(written("b", 0)), first).any()
    assert not torch.isin(keys(written("a", 1)), first).any()  # other contents of the same shape


def test_a_clock_survives_what_is_done_to_pairs() -> None:
    stored = trajectories().windows()
    memory = stored[:]
    rows = [3, 7]
    expected = memory.clock.states[rows], memory.window_keys[rows]
    for pairs in (
        stored.subset(rows),
        stored[rows],
        stored.to(torch.float64).subset(rows),
        stored.detached()[rows],
        memory[rows].to(torch.float64).detached(),
        pn.FieldPairs.cat([memory[3], memory[7]]),
        pn.FieldPairs.from_xarray(memory[rows].to_xarray()),
    ):
        assert torch.equal(pairs.clock.states, expected[0])
        assert torch.equal(pairs.window_keys, expected[1])
        assert (pairs.clock.history, pairs.clock.lead, pairs.clock.step) == (1, 1, 0.5)


def test_samples_along_an_axis_of_time_have_a_clock(tmp_path: Path) -> None:
    values = normal(20, 8, dtype=torch.float64).numpy()
    dataset = xarray.Dataset(
        {"a": (("time", "x"), values), "u": (("time", "x"), 2 * values)},
        coords={"time": np.arange(20) * 6.0, "x": np.arange(8.0)},
    )
    dataset.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    stored = opened(tmp_path / "a.nc", inputs=["a"], outputs=["u"], sample="time", periodic=True)
    memory = pn.FieldPairs.from_xarray(dataset["a"], dataset["u"], sample="time", periodic=True)
    dates = dataset.assign_coords(time=np.datetime64("2000-01-01") + np.arange(20) * np.timedelta64(6, "h"))
    dated = pn.FieldPairs.from_xarray(dates["a"], dates["u"], sample="time", periodic=True)
    for pairs, step in ((stored, 6.0), (memory, 6.0), (dated, 6 * 3600.0)):
        assert pairs.clock.is_series
        assert (pairs.clock.history, pairs.clock.lead, pairs.clock.step) == (1, 0, step)
        assert pairs.clock.times.diff().tolist() == [step] * 19


def test_a_split_by_time_leaves_out_what_shares_states() -> None:
    first, second = trajectories(1).windows(history=2, lead=2).split(4, by="time")
    assert first.clock.states[-1].tolist() == [4.5, 5.0, 6.0]
    assert second.clock.states[0].tolist() == [6.5, 7.0, 8.0]
    _, later = trajectories(1).windows(history=2).split(4, by="time", embargo=2)
    assert float(later.clock.states.min()) - 5.5 == pytest.approx(3 * 0.5)
    first, second = series().split(40, by="time", embargo=3)  # pairs of a single time share nothing
    assert (len(first), second.clock.times.tolist()) == (40, [6.0 * row for row in range(43, 60)])


def test_a_split_by_time_follows_the_times_not_the_rows() -> None:
    rows = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    first, second = series()[rows].split(20, by="time")
    assert first.clock.times.max() < second.clock.times.min()
    first, second = trajectories(3).windows().split(9, by="time")  # three trajectories at the same times
    assert first.clock.states.max() < second.clock.states.min()


@pytest.mark.parametrize("embargo", [0, 2])
def test_blocks_lie_an_embargo_apart(embargo: int) -> None:
    pairs = trajectories(1, 200).windows(history=2)
    first, second = pairs.split(150, seed=0, by="blocks", embargo=embargo)
    distances = (second.clock.states[:, :, None, None] - first.clock.states).abs().amin((1, 3)) / 0.5
    assert float(distances.min()) > embargo
    assert 130 <= len(first) <= 170 < len(first) + len(second)
    assert not torch.equal(first.clock.times, pairs.split(150, seed=1, by="blocks")[0].clock.times)
    runs = int((first.clock.times.sort().values.diff() > 0.6).sum()) + 1
    assert runs < 10  # whole blocks, not single rows


def test_parts_agree_with_slow_comparison_of_intervals() -> None:
    """Uneven times: positions count, and each kept row is apart from all earlier parts."""
    times = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).cumsum(0)
    clock = pn.WindowClock(torch.stack([times[:-1], times[1:]], 1), lead=1)
    parts = split_in_time(clock, [20, 10, 9], by="time", embargo=1)
    assert [part.tolist() for part in parts] == [list(range(20)), list(range(22, 30)), list(range(32, 39))]


def test_coordinates_of_a_file_keep_their_values_together(tmp_path: Path) -> None:
    values = normal(12, 8, dtype=torch.float64).numpy()
    year = np.repeat([2001, 2002, 2003], 4)
    coordinates = {"year": ("storm", year), "x": np.arange(8.0), "height": ("x", np.arange(8.0))}
    variables = {"a": (("storm", "x"), values), "u": (("storm", "x"), 2 * values)}
    dataset = xarray.Dataset(variables, coords=coordinates)
    dataset.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    pairs = opened(tmp_path / "a.nc", inputs=["a"], outputs=["u"], sample="storm", periodic=True)
    with pytest.raises(ArgumentError, match="'random', 'time', 'blocks', 'year'; got 'height'"):
        pairs.split(4, seed=0, by="height")
    first, second = pairs.split(4, seed=0, by="year")
    assert (len(first), len(second)) == (4, 8)
    assert len(set(year[first.inputs.places[:, 0]]) | set(year[second.inputs.places[:, 0]])) == 3
    assert len(set(year[first.inputs.places[:, 0]])) == 1


def test_random_splits_over_time_warn_with_what_to_write() -> None:
    with pytest.warns(DataWarning, match=r'split\(40, by="time"\)'):
        series().split(40, seed=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"by": "blocks"}, "a seed"),
        ({}, "a seed"),
        ({"by": "month", "seed": 0}, "by one of 'random', 'time', 'blocks'"),
        ({"by": "random", "seed": 0, "embargo": 2}, "no embargo"),
        ({"by": "time", "embargo": -1}, "embargo"),
        ({"by": "time", "embargo": 100}, "share no state"),
    ],
)
def test_splits_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        series().split(40, **options)


def test_the_remedies_of_splits_work() -> None:
    pairs, data = trajectories(1, 60).windows(), trajectories(1, 60)
    with pytest.warns(DataWarning, match=r'split\(40, by="time"\)'):
        pairs.split(40, seed=0)
    assert len(pairs.split(40, by="time")[0]) == 40
    with pytest.raises(ArgumentError, match=r'data.windows\(\).split\(1, by="time"\)'):
        data.split(1, seed=0)
    assert len(data.windows().split(1, by="time")[0]) == 1
    values = normal(60, 1, 8).numpy()
    for plain in (pn.FieldPairs(series().inputs, series().outputs), pn.data.from_arrays(values, 2 * values, periodic=True)):
        with pytest.raises(ArgumentError, match="pairs that have times") as caught:
            plain.split(40, by="time")
        program = caught.value.remedy.removeprefix("give their times, ").removesuffix(", or split at random")
        timed = eval(program, {"pn": pn, "pairs": plain, "times": torch.arange(60.0)})
        assert [len(part) for part in timed.split(40, by="time")] == [40, 20]


def test_clocks_that_fit_nothing_are_refused() -> None:
    side = series().inputs
    with pytest.raises(ShapeError, match="60 pairs of a clock"):
        pn.FieldPairs(side, side, clock=pn.WindowClock(torch.arange(5.0)))
    with pytest.raises(DataError, match="finite times"):
        pn.WindowClock(torch.tensor([0.0, float("nan")]))
    with pytest.raises(DataError, match="identities"):
        pn.WindowClock(torch.arange(3.0), torch.arange(4))
    with pytest.raises(ShapeError, match="times of 2 or more states"):
        pn.WindowClock(torch.arange(3.0), history=2)
