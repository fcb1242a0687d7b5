"""Trajectories, and the windows of them that make pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.arrays.layouts import layouts_of
from probneural.arrays.reading import Mask, array_layout, check_grid_alone
from probneural.checks import check_integer, real_tensor
from probneural.data.fields import (
    FUNCTION,
    TIME,
    Part,
    StoredFields,
    Variable,
    common_dtype,
    stored,
    variable_of,
    with_mask,
    with_one_mask,
)
from probneural.data.pairs import StoredPairs
from probneural.data.readers import arranged, location_of, reader_of
from probneural.errors import ArgumentError, DataError, ShapeError, UnsupportedError
from probneural.fields import select_rows
from probneural.fingerprints import row_fingerprints
from probneural.grids import Grid, check_grid
from probneural.pairs import Rows, split_rows
from probneural.pairs.clocks import UNEVEN, WindowClock, identity
from probneural.trajectories import FieldTrajectories, check_several, regular_windows, window_starts, window_steps

_IDENTIFIED = 64
"""Number of trajectories per chunk of hashing."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Trajectories:
    """n trajectories, `(n, times, c, *grid)`, read a few at a time.

    Inputs and outputs name the variables of a window, usually the same ones. An input that does not vary in
    time, a coefficient for example, is part of every window once.

    Args:
        inputs: Variables that a window's input has.
        outputs: Variables that a window's output has; all vary in time.
        times: Ascending, `(times,)`, or `(n_all, times)` where times differ between trajectories; in the data's units.
        grid: Grid of the values.
        rows: Indices of the trajectories, `(n,)`.
        dtype: Dtype of the numbers that are read.

    Raises:
        ShapeError: If the variables have different numbers of trajectories or times, or an output does not vary in time.
        DataError: If times are not finite and ascending.

    Examples:
        >>> states = torch.arange(12.0).reshape(2, 6, 1, 1).expand(2, 6, 1, 4)
        >>> data = Trajectories.from_array(states, times=[0.1 * step for step in range(6)], periodic=(True,))
        >>> pairs = data.windows(history=2, lead=1)
        >>> len(pairs), pairs[0].inputs.values[0, :, 0].tolist(), pairs[0].outputs.values[0, :, 0].tolist()
        (8, [0.0, 1.0], [2.0])
    """

    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    times: Float64[Tensor, "..."]
    grid: Grid
    rows: Int64[Tensor, " n"]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        """Check that the variables are of the same trajectories."""
        for variable in (*self.inputs, *self.outputs):
            count = variable.count(TIME)
            if count not in (None, self.times.shape[-1]) or (count is None and variable in self.outputs):
                raise ShapeError(
                    expected=f"{variable.name} at {self.times.shape[-1]} times",
                    got="no axis of time" if count is None else f"{count} times",
                    remedy="give one time per step; an output varies in time",
                )
        _check_ascending(self.times)

    @classmethod
    def from_array(
        cls,
        values: Any,
        *,
        times: Sequence[float] | Tensor,
        axes: str | None = None,
        grid: Grid | None = None,
        periodic: bool | Sequence[bool] | None = None,
        dtype: torch.dtype | None = None,
        mask: Mask | str = None,
    ) -> Trajectories:
        """Take an array of any kind that can be sliced; it is never copied whole.

        Args:
            values: A NumPy array or memory map, a tensor, a `h5py.Dataset`, a zarr array.
            times: One per step, ascending.
            axes: Roles of its axes, for example `"t n x"`; by default `(n, times, c, *grid)`, or `(n, times, *grid)` where
                `grid` or the entries of `periodic` state the number of axes of space.
            grid: Grid of the values. In its place, `periodic` for the unit cube.
            periodic: Whether each axis of space is periodic.
            dtype: float32 or float64; by default float64 if the array is of it, else float32.
            mask: Which values are missing, as in [`open`][probneural.data.open].

        Raises:
            ShapeError: If the array has not four axes or more, or does not fit the grid or the times.
        """
        reader = reader_of(values, "values")
        check_grid_alone(grid, periodic)
        if grid is not None:
            check_grid(grid)
        stated = layouts_of(axes)[0]
        layout, where = array_layout(reader.shape, "values", stated=stated, grid=grid, periodic=periodic, has_time=True)
        if where is None or not layout.axes("t"):
            raise ArgumentError(
                expected="a layout with times and space", got=f'axes="{layout}"', remedy='name them: axes="n t c x"'
            )
        variable = variable_of(reader, layout, where, "values")
        data = trajectories_of([variable], [variable], times=times, grid=where, dtype=dtype)
        return masked_trajectories(data, mask)

    @property
    def steps(self) -> int:
        """Number of times."""
        return self.times.shape[-1]

    @property
    def lead_times(self) -> Float64[Tensor, " times"] | None:
        """Times since the first state; None where they differ between trajectories."""
        times = self._own_times()
        elapsed = times - times[:, :1]
        limit = UNEVEN * times.diff(dim=-1).abs().amin() if times.shape[-1] > 1 else 0.0
        return elapsed[0] if len(elapsed) and bool(((elapsed - elapsed[:1]).abs() <= limit).all()) else None

    def windows(self, *, history: int = 1, lead: int = 1, stride: int = 1, steps: int = 1) -> StoredPairs:
        """Make pairs: `history` neighbouring states to the state that is `lead` steps after the last of them.

        Window k of a trajectory maps states k s ... k s + h - 1 to state k s + h - 1 + l, for stride s, history h, lead l; with
        `steps=K` to the states that are l, 2 l, ..., K l after the last of them, for training through K steps by
        [`Unroll`][probneural.training.Unroll]. The pairs of the first trajectory come first.

        Channels of the input are its states, the earliest first, each with the variables of the outputs in their order. The
        variables that are in the inputs alone come after them.

        Args:
            history: States of an input, stacked as channels.
            lead: Steps of time from the last state of the input to the output.
            stride: Steps of time between the first states of neighbouring windows.
            steps: Following states that an output holds, stacked as channels, the earliest first.

        Returns:
            The pairs, which have a clock. Of several trajectories they have groups, and a random `split` never divides a
            trajectory; of a single one, split by time.

        Raises:
            ArgumentError: If a number is not a positive integer, no window fits into the times, or several steps do not follow
                each other: with a history, a lead of more than 1 skips states that the next input needs; and an input that
                varies in time and is no output is not known at the steps that follow. Or if no input varies in time and a
                trajectory has several windows: one input would have several outputs. Or if times are not equally spaced but
                for gaps, so that windows would mix steps of several lengths.

        Warns:
            DataWarning: If windows that cross a gap between the times are left out.
        """
        starts = window_starts(self.steps, history=history, lead=lead, stride=stride, steps=steps)
        if steps > 1:
            self._check_states()
        if len(starts) > 1 and all(variable.count(TIME) is None for variable in self.inputs):
            names = [", ".join(variable.name for variable in side) for side in (self.inputs, self.outputs)]
            raise ArgumentError(
                expected="an input that varies in time, or one window per trajectory",
                got=f"inputs {names[0]} without times, and {len(starts)} outputs {names[1]} for each of them",
                remedy=f"pair them with the last time, windows(lead={self.steps - 1}); or open {names[1]} as an input, too; or "
                'take times as channels of the outputs: axes="n x -> n c x"',
            )
        places = self._places(starts)
        after = range(history - 1 + lead, history + lead * steps, lead)
        offsets = window_steps(starts, history=history, lead=lead, steps=steps)
        rows, step = regular_windows(self._own_times(), offsets)
        places = places[rows]
        targets = stored(_parts(self.outputs, after), places, grid=self.grid, dtype=self.dtype)
        times = self._own_times()[:, offsets].flatten(0, 1)[rows]
        identities = self._identities().repeat_interleave(len(starts))[rows]
        clock = WindowClock(times, identities, history=history, lead=lead, step=step)
        groups = places[:, FUNCTION] if len(self) > 1 else None
        return StoredPairs(self._taken(places, history), targets, groups=groups, clock=clock)

    def _own_times(self) -> Float64[Tensor, "n times"]:
        """Times of each trajectory."""
        return self.times[self.rows] if self.times.ndim == 2 else self.times.expand(len(self), -1)

    @property
    def window_keys(self) -> Int64[Tensor, "n times"]:
        """One key per state of each trajectory: those of the states in its windows."""
        return self._clock.keys

    @property
    def _clock(self) -> WindowClock:
        """Times and identity of each trajectory."""
        return WindowClock(self._own_times(), self._identities())

    def _identities(self) -> Int64[Tensor, " n"]:
        """One per trajectory: a hash of files as last modified, variables and row; in memory, of the first and last state."""
        variables = list(dict.fromkeys((*self.inputs, *self.outputs)))
        locations = [location_of(variable.reader) for variable in variables]
        if None not in locations:
            return torch.tensor([identity(f"{locations} {row}") for row in self.rows.tolist()], dtype=torch.int64, device="cpu")
        hashes = []
        for rows in self.rows.split(_IDENTIFIED):
            first, last = (torch.stack([rows, torch.full_like(rows, step)], dim=1).numpy() for step in (0, self.steps - 1))
            values = [variable.read(where) for where in (first, last) for variable in variables]
            tensors = [torch.from_numpy(np.array(array, array.dtype.newbyteorder("="))) for array in values]
            hashes.append(row_fingerprints(*tensors))
        return torch.cat([*hashes, self.rows[:0]])

    def histories(self, count: int = 1) -> StoredFields:
        """The inputs alone of all windows of `count` neighbouring steps, up to the last step: the initial states of forecasts.

        Raises:
            ArgumentError: If there are fewer times.
        """
        count = check_integer(count, "count", most=self.steps)
        return self._taken(self._places(torch.arange(self.steps - count + 1, device="cpu")), count)

    def _places(self, starts: Int64[Tensor, " w"]) -> Int64[Tensor, "n_w 2"]:
        """Trajectory and first step of each window."""
        return torch.stack([self.rows.repeat_interleave(len(starts)), starts.repeat(len(self.rows))], dim=1)

    def _taken(self, places: Int64[Tensor, "n_w 2"], history: int) -> StoredFields:
        """The inputs of windows."""
        names = {variable.name: variable for variable in self.inputs}
        states = [names[variable.name] for variable in self.outputs if variable.name in names]
        others = [variable for variable in self.inputs if variable not in states]
        before = range(history)
        parts = _parts(states, before) + [
            Part(variable=variable, steps=tuple(before) if variable.count(TIME) is not None else (0,)) for variable in others
        ]
        return stored(parts, places, grid=self.grid, dtype=self.dtype)

    def _check_states(self) -> None:
        """Raise an ArgumentError unless the output of a step can be the input of the next."""
        varying = {variable.name for variable in self.inputs if variable.count(TIME) is not None}
        unmatched = sorted(varying ^ {variable.name for variable in self.outputs})
        if unmatched:
            expected, got = ("several steps of inputs that vary in time as outputs do", f"{', '.join(unmatched)} on one side")
            raise ArgumentError(expected=expected, got=got, remedy="make windows of one step: steps=1")

    def at(self, step: int) -> StoredFields:
        """The outputs' variables of all trajectories at one step, `(n, c, *grid)`; negative numbers count from the end.

        Raises:
            ArgumentError: If the step does not exist.
        """
        step = check_integer(step, "step", least=-self.steps, most=self.steps - 1) % self.steps
        places = torch.stack([self.rows, torch.full_like(self.rows, step)], dim=1)
        return stored([Part(variable=variable) for variable in self.outputs], places, grid=self.grid, dtype=self.dtype)

    def subset(self, index: Rows) -> Trajectories:
        """Choose some trajectories without reading them, in the order of the index."""
        return replace(self, rows=self.rows[select_rows(index, len(self))])

    def split(self, count: int, *, seed: int) -> tuple[Trajectories, Trajectories]:
        """Split at random into `count` and the remaining trajectories, without reading them.

        Raises:
            ArgumentError: If either part would be empty.
        """
        check_several(len(self), count)
        first, second = split_rows(len(self), count, seed=seed)
        return self.subset(first), self.subset(second)

    def __getitem__(self, index: Rows) -> FieldTrajectories:
        """Read some trajectories into memory, in the order of the index; times count from the first state on.

        Inputs that do not vary in time become channels of the start behind the states, as parameters.

        Raises:
            UnsupportedError: If there is but one time, the inputs that vary in time are not the outputs' variables, or come
                behind one that does not, or times or masks of the trajectories differ, or masks vary in time.
            DataError: If a value that is read is not finite.
        """
        chosen = self.subset(index)
        fixed = tuple(variable for variable in self.inputs if variable.count(TIME) is None)
        if self.steps < 2 or self.inputs != self.outputs + fixed:
            raise UnsupportedError(
                expected="two times or more, and inputs that are the outputs' variables, then any that do not vary in time",
                got=f"{self.steps} times, inputs {[variable.name for variable in self.inputs]}, "
                f"outputs {[variable.name for variable in self.outputs]}",
                remedy="name the same variables as inputs and outputs, those that vary in time first",
            )
        times = self.times if self.times.ndim == 1 else self.times[chosen.rows]
        if times.ndim == 2 and not bool((times == times[:1]).all()):
            raise UnsupportedError(
                expected="trajectories at the same times", got="times of their own", remedy="read those of equal times together"
            )
        times = times.reshape(-1, self.steps)[0]
        following = [chosen.at(step)[:] for step in range(1, self.steps)]
        places = torch.stack([chosen.rows, torch.zeros_like(chosen.rows)], dim=1)
        source = stored([Part(variable=variable) for variable in self.inputs], places, grid=self.grid, dtype=self.dtype)
        start = with_one_mask([source[:], *following])
        states = torch.stack([state.values for state in following], dim=1)
        return FieldTrajectories(start, states, times=times[1:] - times[0], clock=chosen._clock)

    @property
    def channels(self) -> int:
        """Number of channels of the outputs' variables."""
        return sum(variable.channels for variable in self.outputs)

    @property
    def fingerprint(self) -> str:
        """A hash of shapes, dtype, grid and some values, as that of pairs of the first and the last state."""
        pairs = self.windows(lead=self.steps - 1) if self.steps > 1 else StoredPairs(self.at(0), self.at(0))
        return pairs.fingerprint

    def __len__(self) -> int:
        """Number of trajectories n."""
        return len(self.rows)

    def __repr__(self) -> str:
        """A short description."""
        return f"Trajectories({len(self)} x {self.steps} times x {self.channels} on {self.grid!r}, {self.dtype})"


def _parts(variables: Sequence[Variable], steps: range) -> list[Part]:
    """Variables at some steps, state by state; the states of one variable are read in one go."""
    if len(variables) == 1:
        return [Part(variable=variables[0], steps=tuple(steps))]
    return [Part(variable=variable, steps=(step,)) for step in steps for variable in variables]


def trajectories_of(
    inputs: Sequence[Variable], outputs: Sequence[Variable], *, times: Any, grid: Grid, dtype: torch.dtype | None = None
) -> Trajectories:
    """All trajectories of some variables, equally many of each; descending times are turned round."""
    counts = {count for variable in (*inputs, *outputs) if (count := variable.count(FUNCTION)) is not None}
    when = real_tensor(times, "times", dtype=torch.float64)
    if when.shape[-1] > 1 and bool((when.diff(dim=-1) < 0).all()):
        when = when.flip(-1)
        turned = {variable: _turned(variable) for variable in (*inputs, *outputs)}
        inputs, outputs = ([turned[variable] for variable in side] for side in (inputs, outputs))
    return Trajectories(
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        times=when,
        grid=grid,
        rows=torch.arange(counts.pop() if counts else 1, device="cpu"),
        dtype=dtype or common_dtype((*inputs, *outputs)),
    )


def masked_trajectories(data: Trajectories, mask: Mask | str) -> Trajectories:
    """Trajectories with a mask, if their first and last states are plausible."""
    masked = replace(data, grid=with_mask(data.at(0), mask).grid)
    StoredPairs(masked.at(0), masked.at(-1)).looked_at(may_be_equal=True)
    return masked


def _turned(variable: Variable) -> Variable:
    """A variable with its axis of time in the opposite order; itself if it has none."""
    if TIME not in variable.leading:
        return variable
    axes = range(len(variable.reader.shape))
    return replace(variable, reader=arranged(variable.reader, axes, descending=(variable.leading.index(TIME),)))


def _check_ascending(times: Float64[Tensor, "..."]) -> None:
    """Raise a DataError unless times are finite and ascending, each once."""
    gaps = times.diff(dim=-1)
    mistakes = {
        "give each state a finite time: time=[0.0, 0.1, ...]": ~torch.isfinite(times),
        'keep one state of each time: dataset.drop_duplicates("time") in xarray, or '
        "values[:, np.unique(times, return_index=True)[1]]": gaps == 0,
        'sort the states by time: dataset.sortby("time") in xarray, or values[:, np.argsort(times)]': gaps < 0,
    }
    for remedy, is_wrong in mistakes.items():
        if bool(is_wrong.any()):
            raise DataError(expected="finite, ascending times, each once", got=str(times.tolist())[:100], remedy=remedy)
