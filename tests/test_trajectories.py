"""Trajectories in memory: their windows are those of files, they stay whole in splits, and they refuse what does not fit."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import probneural as pn
from probneural.data import Trajectories
from probneural.errors import ArgumentError, DataError, GridError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import Dataset, FieldPairs
from probneural.trajectories import FieldTrajectories
from tests.data.files import numbers

STATES = torch.from_numpy(numbers(7, 6, 2, 8, 4))
FORCES = torch.from_numpy(numbers(7, 1, 8, 4)) + 100.0
GRID = Grid.uniform((8, 4))
TIMES = torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5], dtype=torch.float64)
PLAIN = FieldTrajectories(Field(STATES[:, 0], GRID), STATES[:, 1:], times=TIMES)
FORCED = FieldTrajectories(Field(torch.cat([STATES[:, 0], FORCES], dim=1), GRID), STATES[:, 1:], times=TIMES)
STORED = Trajectories.from_array(STATES, times=[0.0, *TIMES.tolist()], grid=GRID)


@pytest.mark.parametrize(
    ("history", "lead", "stride", "steps"),
    [
        (1, 1, 1, 1),
        (2, 1, 1, 1),
        (3, 2, 1, 1),
        (1, 5, 1, 1),
        (2, 2, 2, 1),
        (1, 1, 4, 1),
        (1, 1, 1, 5),
        (3, 1, 2, 2),
        (1, 2, 1, 2),
    ],
)
def test_windows_are_those_of_files(history: int, lead: int, stride: int, steps: int) -> None:
    options = {"history": history, "lead": lead, "stride": stride, "steps": steps}
    stored, found = STORED.windows(**options)[:], PLAIN.windows(**options)
    assert torch.equal(found.inputs.values, stored.inputs.values)
    assert torch.equal(found.outputs.values, stored.outputs.values)
    assert found.groups is not None
    assert torch.equal(found.groups, stored.groups)
    forced = FORCED.windows(**options)
    assert torch.equal(forced.inputs.values[:, : 2 * history], stored.inputs.values)
    assert torch.equal(forced.inputs.values[:, 2 * history :], FORCES[found.groups])
    assert torch.equal(forced.outputs.values, stored.outputs.values)


@pytest.mark.parametrize("count", [1, 5, 6, 17, 24])
def test_no_trajectory_is_on_both_sides_of_a_split_of_windows(count: int) -> None:
    pairs = PLAIN.windows(history=2)
    assert isinstance(pairs, Dataset)
    for data in (pairs, pairs.to("cpu").detached(), pairs.subset(torch.arange(len(pairs)).flip(0))):
        first, second = data.split(count, seed=1)
        assert not {*first.groups.tolist()} & {*second.groups.tolist()}
        assert len(first) + len(second) == len(pairs)
        assert count <= len(first) < count + 4
    lazy = STORED.windows(history=2).split(count, seed=1)
    assert torch.equal(lazy[0][:].inputs.values, pairs.split(count, seed=1)[0].inputs.values)


def test_training_watches_whole_trajectories(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    split = FieldPairs.split

    def watched(self: FieldPairs, count: int, *, seed: int) -> tuple[FieldPairs, FieldPairs]:
        seen.append(split(self, count, seed=seed))
        return seen[-1]

    monkeypatch.setattr(FieldPairs, "split", watched)
    operator = pn.operators.FNO(3, 2, modes=(2, 2), width=4, depth=1, seed=0)
    pn.fit(operator, FORCED.windows(), epochs=1, data=pn.training.DataOptions(validation=0.2), seed=0)
    assert len(seen) == 1
    assert [len(part) % 5 for part in seen[0]] == [0, 0]


def test_data_sets_joined_keep_their_trajectories_apart() -> None:
    joined = FieldPairs.cat([PLAIN[5:].windows(), PLAIN[:1].windows(), FieldPairs(PLAIN.at(0), PLAIN.at(1))])
    assert joined.groups is not None
    assert joined.groups.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + list(range(3, 10))
    assert FieldPairs.cat([FieldPairs(PLAIN.at(0), PLAIN.at(1))] * 2).groups is None


def test_leads_and_parameters() -> None:
    assert (FORCED.steps, FORCED.channels, len(FORCED), FORCED.dtype, FORCED.device.type) == (5, 2, 7, STATES.dtype, "cpu")
    for lead in range(6):
        assert torch.equal(FORCED.at(lead).values, STATES[:, lead])
    assert PLAIN.parameters is None
    assert FORCED.parameters is not None
    assert torch.equal(FORCED.parameters.values, FORCES)
    assert FORCED.start.channels == 3
    for lead in (-1, 6):
        with pytest.raises(ArgumentError, match="from 0 to 5 as lead"):
            FORCED.at(lead)


def test_functions_are_selected_with_their_start() -> None:
    chosen = FORCED[[4, 1]]
    assert torch.equal(chosen.start.values, FORCED.start.values[[4, 1]])
    assert torch.equal(chosen.at(3).values, STATES[[4, 1], 3])
    assert len(FORCED[2]) == 1
    first, second = PLAIN.split(3, seed=0)
    both = torch.cat([first.start.values, second.start.values]).flatten(1).sum(1)
    assert (len(first), len(second)) == (3, 4)
    assert torch.equal(both.sort().values, PLAIN.start.values.flatten(1).sum(1).sort().values)
    assert FieldTrajectories.cat([first, second]).fingerprint != PLAIN.fingerprint
    assert FieldTrajectories.cat([PLAIN[:2], PLAIN[2:]]).fingerprint == PLAIN.fingerprint


def test_conversions_keep_the_times() -> None:
    double = PLAIN.to(torch.float64)
    assert (double.dtype, double.start.dtype, double.times.dtype) == (torch.float64,) * 3
    assert torch.equal(double.at(2).values.float(), PLAIN.at(2).values)
    assert PLAIN.to("cpu").fingerprint == PLAIN.fingerprint
    assert pickle.loads(pickle.dumps(PLAIN)).fingerprint == PLAIN.fingerprint  # noqa: S301
    slope = torch.ones(7, 2, 8, 4, requires_grad=True)
    moving = FieldTrajectories(Field(slope, GRID), STATES[:, 1:] * slope[:, None], times=TIMES)
    assert moving.values.requires_grad
    assert not moving.detached().values.requires_grad
    assert not moving.detached().start.values.requires_grad
    assert repr(PLAIN).startswith("FieldTrajectories(7 x 5 times x 2 on Grid.uniform((8, 4)")


def test_stored_trajectories_are_read_into_memory() -> None:
    shifted = Trajectories.from_array(STATES, times=[3.0, 3.5, 4.0, 4.5, 5.0, 5.5], grid=GRID)
    assert shifted[:].fingerprint == PLAIN.fingerprint
    assert torch.equal(shifted[[5, 0]].at(2).values, STATES[[5, 0], 2])
    assert torch.equal(shifted.subset([3, 2])[1].start.values, STATES[[2], 0])


@pytest.mark.bad_input
def test_stored_trajectories_that_are_not_read_into_memory() -> None:
    with pytest.raises(UnsupportedError, match="two times or more"):
        Trajectories.from_array(STATES[:, :1], times=[0.0], grid=GRID)[:]
    each = torch.arange(6.0, dtype=torch.float64) * torch.arange(1.0, 8.0, dtype=torch.float64)[:, None]
    own = Trajectories(
        inputs=STORED.inputs, outputs=STORED.outputs, times=each, grid=GRID, rows=STORED.rows, dtype=STORED.dtype
    )
    assert own[3].times.tolist() == [4.0, 8.0, 12.0, 16.0, 20.0]
    with pytest.raises(UnsupportedError, match="times of their own"):
        own[:2]


@pytest.mark.bad_input
def test_parts_that_do_not_fit() -> None:
    start = Field(STATES[:, 0], GRID)
    with pytest.raises(ShapeError, match=r"states \(7, 5, c, 8, 4\)"):
        FieldTrajectories(start, STATES, times=TIMES)
    with pytest.raises(ShapeError, match="1 to 1 channels"):
        FieldTrajectories(Field(STATES[:, 0, :1], GRID), STATES[:, 1:], times=TIMES)
    with pytest.raises(DataError, match="as the start"):
        FieldTrajectories(
            start, STATES[:, 1:].double() if STATES.dtype == torch.float32 else STATES[:, 1:].float(), times=TIMES
        )
    with pytest.raises(DataError, match="at the same times"):
        FieldTrajectories.cat([PLAIN, FieldTrajectories(start, STATES[:, 1:], times=2.0 * TIMES)])
    with pytest.raises(ShapeError, match="2 channels of each part"):
        FieldTrajectories.cat([FORCED, FieldTrajectories(FORCED.start, FORCED.values[:, :, :1], times=TIMES)])
    other = Field(STATES[:, 0], Grid.uniform((8, 4), lengths=2.0))
    with pytest.raises(GridError, match="fields on Grid"):
        FieldTrajectories.cat([PLAIN, FieldTrajectories(other, STATES[:, 1:], times=TIMES)])


def test_windows_of_unequal_steps_are_refused() -> None:
    rounded = torch.tensor(np.arange(1, 6, dtype=np.float32) * np.float32(0.1)).double()
    FieldTrajectories(PLAIN.start, PLAIN.values, times=rounded).windows()
    for times in (TIMES + 1.0, TIMES**2):
        with pytest.raises(ArgumentError, match="equally spaced from the start"):
            FieldTrajectories(PLAIN.start, PLAIN.values, times=times).windows()
    with pytest.raises(ArgumentError, match=r"history \+ lead of at most 6"):
        PLAIN.windows(history=4, lead=3)
