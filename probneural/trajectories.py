"""Trajectories in memory, and the arithmetic of windows, which those on disk share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.checks import assign, check_count, check_floating, check_integer, check_least, real_tensor
from probneural.contexts import Undisturbed
from probneural.errors import ArgumentError, DataError, DataWarning, ProbneuralError, ShapeError, warn
from probneural.fields import Field, check_field, check_parts, select_rows
from probneural.fingerprints import fingerprint_of, row_fingerprints
from probneural.grids import Axis, Grid, check_grid
from probneural.pairs import FieldPairs, Rows, split_rows
from probneural.pairs.clocks import UNEVEN, WindowClock, even_step, joined_clocks, rounding_of
from probneural.pairs.splits import check_clock
from probneural.randomness import check_seed

_INTERVAL_CLASSES = 200
"""Classes per median interval that intervals of time are counted in, to find the most frequent one."""


@dataclass(frozen=True, eq=False, repr=False)
class FieldTrajectories(Undisturbed):
    """n samples of space and time in memory: where they start, and their states at some later times.

    Lead k is the k-th of the times, and lead 0 the start, at time 0. The start may have more channels than the states:
    parameters of the equation, which follow the states and do not vary in time.

    Args:
        start: States at time 0, and parameters behind them, `(n, c + extra, *grid)`, in physical units.
        values: States at the times, `(n, times, c, *grid)`, in the start's dtype and on its device.
        times: Times since the start, `(times,)`, positive and ascending; kept in float64.
        clock: Times and identities in the data that the trajectories were read from, a row of all states per trajectory; by
            default times count from the start, and identities follow from the first and the last state.

    Raises:
        ShapeError: If the shapes do not fit together.
        DataError: If the values are of another dtype or device than the start's, or the times not finite and ascending.

    Examples:
        >>> states = torch.arange(10.0).reshape(2, 5, 1, 1).expand(2, 5, 1, 4)
        >>> truth = FieldTrajectories(Field(states[:, 0], Grid.uniform(4)), states[:, 1:], times=[0.1, 0.2, 0.3, 0.4])
        >>> truth.steps, truth.at(2).values[:, 0, 0].tolist()
        (4, [2.0, 7.0])
        >>> pairs = truth.windows(history=2)
        >>> len(pairs), pairs[0].inputs.values[0, :, 0].tolist(), pairs[0].outputs.values[0, :, 0].tolist()
        (6, [0.0, 1.0], [2.0])
    """

    start: Field
    values: Float[Tensor, "n times c *grid"]
    _: KW_ONLY
    times: Float64[Tensor, " times"]
    clock: WindowClock | None = None

    def __post_init__(self) -> None:
        """Check that start, states and times fit together."""
        start, values = check_field(self.start, "start"), check_floating(self.values, "values")
        assign(self, times=check_times(self.times, error=DataError))
        if self.clock is not None:
            check_clock(self.clock, len(start))
        shape, grid = tuple(values.shape), start.grid.shape
        fits = len(shape) == 3 + len(grid) and (shape[0], shape[1], *shape[3:]) == (len(start), len(self.times), *grid)
        if not fits or not 1 <= shape[2] <= start.channels:
            sizes = ", ".join(map(str, (len(start), len(self.times), "c", *grid)))
            remedy = "order trajectories, times, channels, space; parameters are channels of the start behind the states"
            raise ShapeError(expected=f"states ({sizes}) of 1 to {start.channels} channels c", got=str(shape), remedy=remedy)
        if (values.dtype, values.device) != (start.dtype, start.device):
            expected, got = f"states of {start.dtype} on {start.device}, as the start", f"{values.dtype} on {values.device}"
            raise DataError(expected=expected, got=got, remedy="convert one of them with .to(...)")

    @classmethod
    def cat(cls, parts: Sequence[FieldTrajectories]) -> FieldTrajectories:
        """Put trajectories on one grid at the same times one after the other.

        Raises:
            DataError: If there is none, one is of another kind, or times, dtypes or devices differ.
            GridError: If the grids differ.
            ShapeError: If the numbers of channels differ.
        """
        trajectories = check_parts(parts, cls)
        if not all(torch.equal(part.times, trajectories[0].times) for part in trajectories):
            got = str([part.times.tolist() for part in trajectories])[:100]
            raise DataError(expected="trajectories at the same times", got=got, remedy="ask for the same times of each")
        for part in trajectories:
            check_count(part.channels, trajectories[0].channels, "channels of each part", remedy="choose the same")
        start = Field.cat([part.start for part in trajectories])
        clock = joined_clocks([part.clock for part in trajectories])
        return cls(start, torch.cat([part.values for part in trajectories]), times=trajectories[0].times, clock=clock)

    @property
    def grid(self) -> Grid:
        """Grid of the values."""
        return self.start.grid

    @property
    def steps(self) -> int:
        """Number of times after the start."""
        return self.values.shape[1]

    @property
    def channels(self) -> int:
        """Number of channels c of a state."""
        return self.values.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """The values' dtype."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """The values' device."""
        return self.values.device

    @property
    def parameters(self) -> Field | None:
        """The start's time-independent channels after the states, or None."""
        extra = self.start.values[:, self.channels :]
        return Field(extra, self.grid) if extra.shape[1] else None

    @property
    def lead_times(self) -> Float64[Tensor, " leads"]:
        """Time of leads 0 to `steps` since the start."""
        return torch.cat([self.times.new_zeros(1), self.times])

    @property
    def window_keys(self) -> Int64[Tensor, "n leads"]:
        """One key per state of each trajectory: those of the states in its windows."""
        return self._clock.keys

    @property
    def _clock(self) -> WindowClock:
        """Times of all states of each trajectory, and its identity."""
        if self.clock is not None:
            return self.clock
        return WindowClock(self.lead_times.expand(len(self), -1), row_fingerprints(self.start.values, self.values[:, -1]))

    def at(self, lead: int) -> Field:
        """States at one lead, `(n, c, *grid)`, without parameters; lead 0 is the start, lead 1 the first of the times.

        Raises:
            ArgumentError: If the lead does not exist.
        """
        lead = check_integer(lead, "lead", least=0, most=self.steps)
        return Field(self.values[:, lead - 1] if lead else self.start.values[:, : self.channels], self.grid)

    def windows(self, *, history: int = 1, lead: int = 1, stride: int = 1, steps: int = 1) -> FieldPairs:
        """Make pairs: `history` neighbouring states to the state that is `lead` steps after the last of them.

        The start is step 0. Window k of a trajectory maps steps k s ... k s + h - 1 to step k s + h - 1 + l, for stride s,
        history h, lead l; with `steps=K` to the steps that are l, 2 l, ..., K l after the last of them, for training through K
        steps by [`Unroll`][probneural.training.Unroll]. The pairs of the first trajectory come first.

        Args:
            history: States of an input, stacked as channels, the earliest first; parameters follow them, once.
            lead: Steps from the last of the input to the output.
            stride: Steps between the first steps of neighbouring windows.
            steps: Following states that an output holds, stacked as channels, the earliest first.

        Returns:
            Copies of the values, in pairs that have a clock. Of several trajectories they have groups, and a random `split`
            never divides a trajectory; of a single one, split by time.

        Raises:
            ArgumentError: If a number is not a positive integer, no window fits, a lead of more than 1 skips states that the
                history of a second step needs, or the times are not equally spaced from the start on: windows would mix steps
                of several lengths.
        """
        starts = window_starts(self.steps + 1, history=history, lead=lead, stride=stride, steps=steps)
        gaps = torch.diff(self.times, prepend=self.times.new_zeros(1))
        if bool(((gaps - gaps.mean()).abs() > UNEVEN * gaps.mean() + rounding_of(self.lead_times)).any()):
            raise ArgumentError(
                expected="times that are equally spaced from the start at 0 on",
                got=f"intervals from {float(gaps.min()):g} to {float(gaps.max()):g}",
                remedy="ask for times=[step, 2 * step, ...], or pair states yourself: pn.FieldPairs(data.at(0), data.at(1))",
            )
        size = (len(self), self.start.channels - self.channels, *self.grid.shape)
        windows = []
        for first in starts.tolist():
            parts = [self.at(first + step).values for step in range(history)] + [self.start.values[:, self.channels :]]
            windows.append(torch.cat(parts if size[1] else parts[:-1], dim=1))
        inputs = torch.stack(windows, dim=1).flatten(0, 1)
        following = lead * torch.arange(1, steps + 1, device="cpu")
        ends = (starts[:, None] + (history - 2) + following).to(self.device)  # of `values`, which begin at step 1
        groups = torch.arange(len(self), device="cpu").repeat_interleave(len(starts))
        outputs = self.values[:, ends].flatten(0, 1).flatten(1, 2)
        clock = self._clock
        states = clock.states[:, window_steps(starts, history=history, lead=lead, steps=steps)].flatten(0, 1)
        identities = None if clock.trajectories is None else clock.trajectories[groups]
        clock = WindowClock(states, identities, history=history, lead=lead, step=even_step(self.lead_times))
        owners = groups if len(self) > 1 else None
        return FieldPairs(Field(inputs, self.grid), Field(outputs, self.grid), groups=owners, clock=clock)

    def space_time(self) -> FieldPairs:
        """Make pairs on a grid of space and time, on which equations of `pn.physics` are defined.

        Returns:
            Starts, repeated over the first axis, which is time and named "t", to states `(n, c, times + 1, *grid)` that begin
            with the start.

        Raises:
            ArgumentError: If the times are not equally spaced from the start on.
            GridError: If the grid of space is not uniform.
        """
        times = self.lead_times
        grid = check_grid(self.grid, uniform=True)
        if even_step(times) is None:
            raise ArgumentError(
                expected="times equally spaced from the start on",
                got=f"steps from {float(times.diff().min()):g} to {float(times.diff().max()):g}",
                remedy="interpolate to equal steps",
            )
        time = Axis(len(times), float(times[-1]), periodic=False, endpoint=True, name="t")
        where = Grid.of_axes([time, *grid.axes])
        states = torch.cat([self.start.values[:, None, : self.channels], self.values], 1).movedim(1, 2)
        starts = self.start.values[:, :, None].expand(-1, -1, len(times), *(-1,) * grid.dimension)
        return FieldPairs(Field(starts.contiguous(), where), Field(states.contiguous(), where))

    def split(self, count: int, *, seed: int) -> tuple[FieldTrajectories, FieldTrajectories]:
        """Split at random into `count` trajectories and the rest.

        Raises:
            ArgumentError: If either part would be empty.
        """
        check_several(len(self), count)
        first, second = split_rows(len(self), count, seed=check_seed(seed))
        return self[first], self[second]

    @cached_property
    def fingerprint(self) -> str:
        """A content hash of values, times and grid, 64 hexadecimal digits."""
        return fingerprint_of(self.start.values, self.values, self.times, self.grid.points, self.grid.weights)

    def detached(self) -> FieldTrajectories:
        """The same trajectories without a graph."""
        values = self.values.detach()
        return replace(self, start=self.start.detached(), values=values.clone() if values.is_inference() else values)

    def to(self, target: torch.device | torch.dtype | str) -> FieldTrajectories:
        """The same trajectories with values on another device or of another dtype; times stay in float64 on the CPU.

        Raises:
            DataError: If the dtype is neither float32 nor float64, or does not hold the values.
            ArgumentError: If the device does not exist.
        """
        flat = Field(self.values.flatten(0, 1), self.grid).to(target).values
        return replace(self, start=self.start.to(target), values=flat.unflatten(0, tuple(self.values.shape[:2])))

    def __len__(self) -> int:
        """Number of trajectories n."""
        return len(self.start)

    def __getitem__(self, index: Rows) -> FieldTrajectories:
        """Select trajectories; one integer keeps their axis."""
        rows = select_rows(index, len(self))
        clock = None if self.clock is None else self.clock[index]
        return replace(self, start=self.start[rows], values=self.values[rows], clock=clock)

    def __repr__(self) -> str:
        """A short description."""
        return f"FieldTrajectories({len(self)} x {self.steps} times x {self.channels} on {self.grid!r}, {self.dtype})"


def check_times(times: object, *, error: type[ProbneuralError] = ArgumentError) -> Float64[Tensor, " times"]:
    """Return times after a start at 0, as float64 on the CPU.

    Args:
        times: Numbers, an array or a tensor.
        error: Class of the error.

    Raises:
        ProbneuralError: Of the class `error`, if they are no finite, positive, ascending numbers, one at least.

    Examples:
        >>> check_times([1, 2.5]).tolist()
        [1.0, 2.5]
    """
    checked = real_tensor(times, "times", dtype=torch.float64, device=torch.device("cpu"), error=error).detach()
    fits = (
        checked.ndim == 1 and len(checked) and torch.isfinite(checked).all() and checked[0] > 0 and (checked.diff() > 0).all()
    )
    if not bool(fits):
        remedy = "the start is at time 0; give times=[step, 2 * step, ...]"
        raise error(expected="finite, positive, ascending times, one at least", got=str(checked.tolist())[:100], remedy=remedy)
    return checked


def check_several(trajectories: int, count: int) -> None:
    """Raise an ArgumentError if there are too few trajectories to split them."""
    remedy = f'split windows in time: data.windows().split({count}, by="time")'
    check_least(trajectories, 2, "trajectories to split", remedy=remedy, error=ArgumentError)


def window_starts(times: int, *, history: int, lead: int, stride: int, steps: int = 1) -> Int64[Tensor, " windows"]:
    """The first step of each window of a trajectory.

    Args:
        times: Number of states.
        history: States of a window's input.
        lead: Steps from the last of the input to the output, and from each state of the output to the next.
        stride: Steps between the first steps of neighbouring windows.
        steps: States of a window's output.

    Raises:
        ArgumentError: If a number is not a positive integer, no window fits into the times, or a lead of more than 1 skips
            states that the input of a second step needs.

    Examples:
        >>> window_starts(6, history=2, lead=1, stride=2).tolist()
        [0, 2]
    """
    history, lead = check_integer(history, "history"), check_integer(lead, "lead")
    stride, steps = check_integer(stride, "stride"), check_integer(steps, "steps")
    if history > 1 and lead > 1 and steps > 1:
        expected, got = "lead=1 with a history and several steps", f"history={history}, lead={lead}, steps={steps}"
        raise ArgumentError(expected=expected, got=got, remedy="thin out the times first, for states that follow each other")
    last = times - history - lead * steps
    if last < 0:
        several, product = ("", str(lead)) if steps == 1 else ("steps * ", f"{steps} * {lead}")
        expected = f"history + {several}lead of at most {times}, the number of times"
        raise ArgumentError(expected=expected, got=f"{history} + {product}", remedy="take shorter windows")
    return torch.arange(0, last + 1, stride, device="cpu")


def window_steps(
    starts: Int64[Tensor, " windows"], *, history: int, lead: int, steps: int = 1
) -> Int64[Tensor, "windows states"]:
    """Steps of the states of each window: `history` neighbouring input states, then output states, `lead` steps apart.

    Examples:
        >>> window_steps(torch.tensor([0, 1]), history=2, lead=3).tolist()
        [[0, 1, 4], [1, 2, 5]]
    """
    inputs = torch.arange(history, device="cpu")
    outputs = history - 1 + lead * torch.arange(1, steps + 1, device="cpu")
    return starts[:, None] + torch.cat([inputs, outputs])


def regular_windows(
    times: Float64[Tensor, "n times"], offsets: Int64[Tensor, "windows states"]
) -> tuple[Tensor | slice, float | None]:
    """Rows of the windows whose states are equally spaced, and their step; a DataWarning counts the windows that are left out.

    Calendar months, intervals of 28 to 31 days, count as equal steps.

    Args:
        times: Times of each trajectory.
        offsets: Steps of the states of each window of a trajectory.

    Raises:
        ArgumentError: If there are none, or fewer than half of the intervals are equal.
    """
    states = times[:, offsets].flatten(0, 1)
    lengths = (states[:, 1:] - states[:, :1]) / (offsets[0, 1:] - offsets[0, 0])
    rounding = rounding_of(times)
    if not lengths.numel() or bool(((lengths - lengths.mean()).abs() <= UNEVEN * lengths.mean() + rounding).all()):
        return slice(None), even_step(times)
    gaps = times.diff(dim=-1)
    unit = (gaps / gaps.median() * _INTERVAL_CLASSES).round()
    step = float(gaps[(unit - unit.flatten().mode().values).abs() <= 1].median())
    is_regular = (gaps - step).abs() <= UNEVEN * step + rounding
    step = float(gaps[is_regular].mean()) if rounding else step
    is_month = (gaps >= 28.0) & (gaps <= 31.0) & (gaps % 0.5 == 0.0)  # ends and middles of months
    are_months = int(is_month.sum()) > int(is_regular.sum())
    is_regular = is_month if are_months else is_regular
    # A window is regular if all intervals from its first to its last state are.
    irregular = torch.nn.functional.pad((~is_regular).cumsum(1), (1, 0))
    regular = (irregular[:, offsets.amax(1)] == irregular[:, offsets.amin(1)]).flatten()
    count = int(regular.sum())
    if 2 * int(is_regular.sum()) < is_regular.numel() or not count:
        raise ArgumentError(
            expected="times that are equally spaced, but for gaps",
            got=f"steps from {float(gaps.min()):g} to {float(gaps.max()):g}, {step:g} most often",
            remedy="windows would mix them: take trajectories of equal steps, or pair states yourself: "
            "pn.data.StoredPairs(data.at(0), data.at(1))",
        )
    if count < len(regular):
        words = "months" if are_months else f"steps of {step:g}"
        warn(
            f"{len(regular) - count} of {len(regular)} windows cross a gap between the times and are left out: their "
            f"states are not equally spaced, by {words}",
            DataWarning,
        )
    return regular.nonzero()[:, 0], None if are_months else step
