"""Clocks of data sets: the times of the states in each pair, and splits by time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from probneural.arrays.layouts import TIME, named_role
from probneural.checks import assign, check_finite, check_integer, real_tensor
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.fields import select_rows
from probneural.settings import Count, Index, Positive, Settings

if TYPE_CHECKING:
    import xarray

UNEVEN = 1e-3
"""Largest deviation of a time interval, relative to the mean interval, that is treated as rounding."""
_BLOCKS = 20
"""Maximum number of blocks that a split by blocks cuts the axis of time into."""
_ROUNDED = 0.1
"""Largest error of rounding times to decimals, in steps; steps with larger errors are uneven."""
_TRAJECTORY = 0x7472616A
"""Offset that distinguishes keys of trajectories from keys of states at time 0."""

_STATE, _TRAJECTORIES = "state_time", "trajectory"
"""Names of the sample coordinates: the time of each state, and the identity of the trajectory."""


@dataclass(frozen=True, eq=False, repr=False)
class WindowClock(Settings):
    """Times of the states of n pairs, and the trajectory of each pair.

    Row r has `history` input states and then its output states. If input and output have the same time, the row has a single
    time, and the lead is 0.

    Args:
        states: Time of each state of each pair, inputs first, `(n, k)`; `(n,)` for pairs of a single time. In the data's
            units of time.
        trajectories: Identity of each pair's trajectory, `(n,)`; by default all pairs belong to one trajectory, whose identity
            is a hash of the data. Equal numbers in two data sets mean the same trajectory: use different numbers for
            different simulations, or checks for training data raise an error.
        history: Number of input states.
        lead: Number of steps from the last input state to the first output state.
        step: Time between consecutive states; None if it is unknown or uneven.

    Raises:
        DataError: If a time is not finite, or identities are not int64 on the CPU.
        ShapeError: If there are fewer states than the history, or there is not one identity per pair.
        ArgumentError: If history, lead or step is out of range.

    Examples:
        >>> clock = WindowClock(torch.tensor([[0.0, 6.0], [6.0, 12.0]]), lead=1, step=6.0)
        >>> clock.times.tolist(), len(clock), clock[1:].times.tolist()
        ([0.0, 6.0], 2, [6.0])
    """

    states: Tensor
    trajectories: Int64[Tensor, " n"] | None = None
    _: KW_ONLY
    history: Count = 1
    lead: Index = 0
    step: Positive | None = None

    def __post_init__(self) -> None:
        """Check that the shapes of times and identities agree."""
        super().__post_init__()
        cpu = torch.device("cpu")
        states = real_tensor(self.states, "states", dtype=torch.float64, device=cpu, error=DataError).detach()
        states = states[:, None] if states.ndim == 1 else states
        if states.ndim != 2 or states.shape[1] < self.history:
            got, remedy = str(tuple(states.shape)), "give the times of the input states, then those of the output states"
            raise ShapeError(expected=f"times of {self.history} or more states of each pair, (n, k)", got=got, remedy=remedy)
        check_finite(states, "times", remedy="leave out rows without a time")
        assign(self, states=states)
        if self.trajectories is not None:
            fits = isinstance(self.trajectories, Tensor) and self.trajectories.dtype == torch.int64
            if not fits or self.trajectories.device != cpu or self.trajectories.shape != states.shape[:1]:
                raise DataError(
                    expected=f"identities of trajectories, int64 of shape ({len(states)},) on the CPU",
                    got=str(self.trajectories)[:100],
                    remedy="number the trajectories, or leave trajectories out for a single one",
                )

    @property
    def times(self) -> Float64[Tensor, " n"]:
        """Time of each pair's last input state."""
        return self.states[:, self.history - 1]

    @property
    def is_series(self) -> bool:
        """Whether all pairs belong to one trajectory."""
        return len(self) > 0 and len(self._identities.unique()) == 1

    @property
    def description(self) -> str:
        """Text description of times, trajectories, history and lead."""
        if not len(self):
            return "none"
        count = len(self._identities.unique())
        span = f"{float(self.states.min()):.6g} to {float(self.states.max()):.6g}"
        step = "" if self.step is None else f" in steps of {self.step:.6g}"
        if not self.lead:
            return f"one per sample, {span}{step}"
        series = f"{count} trajectories" if count > 1 else "one series"
        return f"windows of {series}, {span}{step}, history {self.history}, lead {self.lead}"

    @property
    def keys(self) -> Int64[Tensor, "n k"]:
        """One 64-bit key per state of each pair; states of equal trajectory and time have equal keys."""
        return _mixed(_mixed(self._identities)[:, None] ^ (self.states + 0.0).view(torch.int64))  # + 0.0: -0.0 becomes 0.0

    @property
    def trajectory_keys(self) -> Int64[Tensor, " n"]:
        """One 64-bit key per pair; pairs of equal trajectory and time step have equal keys."""
        step = torch.tensor(self.step or 0.0, dtype=torch.float64, device="cpu").view(torch.int64)
        return _mixed(_mixed(self._identities ^ _TRAJECTORY) ^ step)

    @property
    def _identities(self) -> Int64[Tensor, " n"]:
        none = torch.zeros(len(self), dtype=torch.int64, device="cpu")
        return none if self.trajectories is None else self.trajectories

    def __len__(self) -> int:
        """Number of pairs n."""
        return len(self.states)

    def __getitem__(self, index: Any) -> WindowClock:
        """Select pairs."""
        rows = select_rows(index, len(self))
        rows = rows.cpu() if isinstance(rows, Tensor) else rows
        return replace(
            self, states=self.states[rows], trajectories=self._identities[rows] if self.trajectories is not None else None
        )

    def __repr__(self) -> str:
        """A short description."""
        count = f"{len(self)} pairs of {len(self._identities.unique())} trajectories"
        return f"WindowClock({count}, history={self.history}, lead={self.lead}, step={self.step})"


def joined_clocks(clocks: Sequence[WindowClock | None]) -> WindowClock | None:
    """The clock of concatenated data sets; None if a data set has no clock, or their windows differ."""
    present = [clock for clock in clocks if clock is not None]
    kinds = {(clock.states.shape[1], clock.history, clock.lead) for clock in present}
    if len(present) != len(clocks) or len(kinds) != 1:
        return None
    steps = {clock.step for clock in present}
    return replace(
        present[0],
        states=torch.cat([clock.states for clock in present]),
        trajectories=torch.cat([clock._identities for clock in present]),
        step=steps.pop() if len(steps) == 1 else None,
    )


def identity(name: str) -> int:
    """A 64-bit hash of a name.

    Examples:
        >>> identity("a.nc") == identity("a.nc"), identity("a.nc") == identity("b.nc")
        (True, False)
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def series_clock(times: NDArray[Any], name: str | None = None) -> WindowClock | None:
    """The clock of pairs along an axis of time; None if its coordinate holds no finite numbers or dates.

    Args:
        times: Time of each pair; dates are converted to seconds.
        name: Name of the series; if None, its identity is a hash of the data.
    """
    if times.dtype.kind == "M":
        times = times.astype("datetime64[ms]").astype(np.float64) / 1e3
    if times.ndim != 1 or times.dtype.kind not in "iuf" or not np.isfinite(times).all():
        return None
    states = torch.from_numpy(times.astype(np.float64))
    clock = WindowClock(states, step=even_step(states.sort().values))
    return clock if name is None else named_clock(clock, name)


def named_clock(clock: WindowClock, fingerprint: str) -> WindowClock:
    """The same clock; a single trajectory without identity gets this one."""
    if clock.trajectories is not None:
        return clock
    return replace(clock, trajectories=torch.full((len(clock),), identity(fingerprint), dtype=torch.int64, device="cpu"))


def even_step(times: Float64[Tensor, "... times"]) -> float | None:
    """The interval between neighbouring times if all are equal up to rounding and positive, else None.

    Examples:
        >>> even_step(torch.tensor([0.0, 6.0, 12.0])), even_step(torch.tensor([0.0, 6.0, 18.0]))
        (6.0, None)
    """
    gaps = times.diff(dim=-1)
    if not gaps.numel() or float(gaps.min()) <= 0:
        return None
    mean = float(gaps.mean())
    return mean if bool(((gaps - mean).abs() <= UNEVEN * mean + rounding_of(times)).all()) else None


def rounding_of(times: Float64[Tensor, "... times"]) -> float:
    """Largest error of an interval between times rounded to 2 or 3 decimals, at most a tenth of the median interval.

    0 for times that are not rounded.

    Examples:
        >>> rounding_of(torch.tensor([0.0, 0.33, 0.67, 1.0])), rounding_of(torch.tensor([0.0, 0.3333]))
        (0.01, 0.0)
    """
    gaps = times.diff(dim=-1)
    if not gaps.numel():
        return 0.0
    is_single = bool((times.to(torch.float32) == times).all())
    slack = (2.0**-22 if is_single else 1e-12) * float(times.abs().max())
    for decimals in (2, 3):
        if slack < 0.1**decimals / 4 and bool(((times - times.round(decimals=decimals)).abs() <= slack).all()):
            return min(10.0**-decimals, _ROUNDED * float(gaps.median()))
    return 0.0


def is_time(name: str, attributes: Mapping[str, Any]) -> bool:
    """Whether a dimension is time, by its name or the CF attributes of its coordinate."""
    return named_role(name, attributes) == TIME or " since " in str(attributes.get("units", ""))


def split_in_time(
    clock: WindowClock, sizes: Sequence[int], *, by: str, embargo: int = 0, generator: torch.Generator | None = None
) -> list[Int64[Tensor, " _"]]:
    """Rows of each part of a split in time; parts share no state and are separated by an embargo.

    Args:
        clock: Times of all rows.
        sizes: Number of rows of each part before the embargo; their sum is the number of all rows.
        by: "time": the first part is the earliest. "blocks": contiguous blocks of time are assigned at random.
        embargo: Number of steps between two parts. Rows closer than that are dropped from the later part in the list.
        generator: Random number generator of the assignment of blocks.

    Returns:
        Rows of each part in temporal order; a part may be empty.

    Examples:
        >>> clock = WindowClock(torch.arange(10.0)[:, None] + torch.tensor([0.0, 1.0]), lead=1, step=1.0)
        >>> [rows.tolist() for rows in split_in_time(clock, [6, 4], by="time", embargo=1)]
        [[0, 1, 2, 3, 4, 5], [8, 9]]
    """
    embargo = check_integer(embargo, "embargo", least=0)
    order = clock.times.argsort(stable=True)
    first, last = _extents(clock)
    if by == "time":
        pieces = list(order.split(list(sizes)))
    else:
        span = float((last - first).max()) + embargo + 1.0
        pieces = _blocks(clock.times[order], order, sizes, span=span, generator=generator)
    parts: list[Tensor] = []
    for piece in pieces:
        used = torch.cat(parts) if parts else piece[:0]
        parts.append(piece[_is_apart(first[piece], last[piece], first[used], last[used], embargo + _ROUNDED)])
    return parts


def _extents(clock: WindowClock) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
    """First and last state of each row, in steps; for uneven steps, as ranks among all times."""
    if clock.step is not None:
        positions = clock.states / clock.step
    else:
        positions = torch.searchsorted(clock.states.unique(), clock.states).to(torch.float64)
    return positions.amin(1), positions.amax(1)


def _blocks(
    times: Float64[Tensor, " n"],
    order: Int64[Tensor, " n"],
    sizes: Sequence[int],
    *,
    span: float,
    generator: torch.Generator | None,
) -> list[Int64[Tensor, " _"]]:
    """Rows of parts that consist of whole blocks of consecutive times."""
    _, rank = times.unique(return_inverse=True)
    length = int(rank.max()) + 1 if len(rank) else 0
    least = sum(size > 0 for size in sizes)
    count = min(length, max(least, min(_BLOCKS, int(length // (4.0 * span)))))
    shares = [max(1, int(size * count / len(order))) if size else 0 for size in sizes]
    largest = max(range(len(shares)), key=lambda part: shares[part])
    shares[largest] += count - sum(shares)
    if shares[largest] < 1:
        raise ArgumentError(
            expected=f"{least} times or more, one block for each part", got=str(length), remedy="give more data"
        )
    dealt = torch.randperm(count, generator=generator, device="cpu")
    block = rank * count // length
    return [order[torch.isin(block, part)] for part in dealt.split(shares)]


def _is_apart(
    first: Float64[Tensor, " n"],
    last: Float64[Tensor, " n"],
    used_first: Float64[Tensor, " m"],
    used_last: Float64[Tensor, " m"],
    distance: float,
) -> Tensor:
    """Mask of the n intervals that are farther than a distance from all of m other intervals."""
    if not len(used_first):
        return torch.ones(len(first), dtype=torch.bool, device="cpu")
    order = used_first.argsort()
    # Intervals that begin before last + distance are a prefix; the latest of their ends decides.
    latest = used_last[order].cummax(0).values
    count = torch.searchsorted(used_first[order], last + distance, right=True)
    return (count == 0) | (latest[(count - 1).clamp_min(0)] < first - distance)


def _mixed(bits: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
    """Hash of integers: each bit depends on all input bits (the finaliser of SplitMix64)."""
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        bits = (bits ^ ((bits >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return bits ^ ((bits >> 31) & ((1 << 33) - 1))


def clock_coordinates(clock: WindowClock | None) -> dict[str, Any]:
    """Times and trajectories as coordinates of the samples."""
    if clock is None:
        return {}
    about = {"history": clock.history, "lead": clock.lead} | ({} if clock.step is None else {"step": clock.step})
    states = {f"{_STATE}{number}": ("sample", times.numpy()) for number, times in enumerate(clock.states.unbind(1))}
    identities = np.zeros(len(clock), np.int64) if clock.trajectories is None else clock.trajectories.numpy()
    return states | {_TRAJECTORIES: ("sample", identities, about)}


def read_clock(inputs: xarray.DataArray | xarray.Dataset, sample: str) -> WindowClock | None:
    """Times from the coordinates that `to_xarray` writes, or from a time dimension along the samples."""
    if f"{_STATE}0" in inputs.coords and _TRAJECTORIES in inputs.coords:
        count = sum(str(name).startswith(_STATE) for name in inputs.coords)
        states = np.stack([inputs.coords[f"{_STATE}{number}"].values for number in range(count)], axis=1)
        trajectory = inputs.coords[_TRAJECTORIES]
        about = {name: trajectory.attrs[name] for name in ("history", "lead", "step") if name in trajectory.attrs}
        return WindowClock(torch.as_tensor(states), torch.as_tensor(trajectory.values.astype(np.int64)), **about)
    coordinate = inputs.coords.get(sample)
    if coordinate is not None and (is_time(sample, coordinate.attrs) or coordinate.dtype.kind == "M"):
        times = coordinate.values
        return series_clock((times - times.min()) / np.timedelta64(1, "s") if times.dtype.kind == "M" else times)
    return None
