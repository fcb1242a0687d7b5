"""Rows of data sets: selections, groups, and splits at random, by group or by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from probneural.checks import check_count, check_instance, check_integer, check_shape
from probneural.errors import ArgumentError, DataError, DataWarning, warn
from probneural.fields import select_rows
from probneural.pairs.clocks import WindowClock, split_in_time
from probneural.randomness import stream

Rows = int | slice | Tensor | Sequence[int]
"""Rows: one number, a slice, integers, or truth values; negative numbers count from the end."""


def split_order(count: int, *, seed: int) -> Tensor:
    """The random order of `split`, the first part first.

    Examples:
        >>> sorted(split_order(4, seed=0).tolist())
        [0, 1, 2, 3]
    """
    return torch.randperm(count, generator=stream(seed, "split"), device="cpu")


def split_rows(
    total: int, count: int, *, seed: int, groups: Int64[Tensor, " n"] | None = None
) -> tuple[Int64[Tensor, " _"], Int64[Tensor, " _"]]:
    """Rows of the two parts of a random split.

    Windows of one trajectory are correlated, so groups are not split: the first part has the smallest number
    of groups that holds `count` rows, in their order.

    Args:
        total: Number of rows.
        count: Number of rows in the first part.
        seed: Seed of the split.
        groups: Group of each row; None if rows are independent.

    Raises:
        ArgumentError: If either part would be empty.

    Examples:
        >>> first, second = split_rows(6, 1, seed=0, groups=torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> len(first), len(second)
        (3, 3)
    """
    count = check_integer(count, "count", most=total - 1)
    if groups is None:
        order = split_order(total, seed=seed)
        return order[:count], order[count:]
    _, group, sizes = groups.unique(return_inverse=True, return_counts=True)
    order = split_order(len(sizes), seed=seed)
    group_count = int((sizes[order].cumsum(0) < count).sum()) + 1
    if group_count == len(sizes):
        raise ArgumentError(
            expected=f"a count that leaves a trajectory of {len(sizes)} to the second part",
            got=str(count),
            remedy=f'split each trajectory in time: split({count}, by="time"); or choose fewer, or give more trajectories',
        )
    is_first = torch.isin(group, order[:group_count])
    return is_first.nonzero()[:, 0], (~is_first).nonzero()[:, 0]


def divided_rows(
    data: Any, count: int, *, seed: int | None, by: str, embargo: int = 0, coordinates: Mapping[str, NDArray[Any]] | None = None
) -> tuple[Int64[Tensor, " _"], Int64[Tensor, " _"]]:
    """Rows of the two parts of a data set.

    See `FieldPairs.split`; with the name of a coordinate, rows of one value stay together, and values are in a random order.

    Args:
        data: Data set with a length, groups and a clock.
        count: Number of rows of the first part.
        seed: Seed of the split.
        by: Method of splitting.
        embargo: Number of time steps between the parts.
        coordinates: Coordinates by name, one value per row.

    Raises:
        ArgumentError: If a part would be empty, the method does not apply to these rows, or the seed is missing.
    """
    clock: WindowClock | None = data.clock
    total, names = len(data), coordinates or {}
    if by in ("time", "blocks") and clock is None:
        raise ArgumentError(
            expected=f"pairs that have times, to split by {by!r}",
            got="pairs without a clock",
            remedy=f"give their times, {data.constructor}(pairs.inputs, pairs.outputs, clock=pn.WindowClock(times)), "
            "or split at random",
        )
    if by not in ("random", "time", "blocks", *names):
        expected = f"by one of {', '.join(map(repr, ('random', 'time', 'blocks', *names)))}"
        raise ArgumentError(expected=expected, got=repr(by), remedy="a coordinate must belong to the axis of samples of a file")
    check_integer(embargo, "embargo", least=0)
    if by != "time" and seed is None:
        raise ArgumentError(expected=f"a seed for by={by!r}", got="none", remedy=f"name the split: split({count}, seed=0)")
    if by not in ("time", "blocks") and embargo != 0:
        raise ArgumentError(
            expected="no embargo without an order in time", got=f"embargo={embargo}", remedy='write by="time" or by="blocks"'
        )
    if by == "random":
        if clock is not None and clock.is_series and data.groups is None:
            warn(
                "these pairs are one series in time, and a random split puts neighbouring times on both sides: errors on the "
                f'second part are then smaller than at later times. Write split({count}, by="time")',
                DataWarning,
            )
        return split_rows(total, count, seed=cast(int, seed), groups=data.groups)
    if by in names:
        _, numbers = np.unique(names[by], return_inverse=True)
        return split_rows(total, count, seed=cast(int, seed), groups=torch.from_numpy(numbers.reshape(-1).astype(np.int64)))
    count = check_integer(count, "count", most=total - 1)
    generator = None if seed is None else stream(seed, "split")
    first, second = split_in_time(cast(WindowClock, clock), [count, total - count], by=by, embargo=embargo, generator=generator)
    if not len(second):
        got, remedy = f"none of the {total - count} others, with embargo={embargo}", "lower count or embargo, or give more data"
        raise ArgumentError(expected="later rows that share no state with the first part", got=got, remedy=remedy)
    return first, second


def select_groups(groups: Int64[Tensor, " n"] | None, index: Rows) -> Int64[Tensor, " m"] | None:
    """Groups of some pairs, on the CPU, for an index on any device; None without groups.

    Raises:
        IndexError: If a number lies outside the pairs.
        DataError: If several do, or the index is of another kind.

    Examples:
        >>> select_groups(torch.tensor([4, 4, 7]), [0, -1])
        tensor([4, 7])
    """
    if groups is None:
        return None
    rows = select_rows(index, len(groups))
    return groups[rows.to(groups.device) if isinstance(rows, Tensor) else rows]


def check_groups(groups: object, count: int) -> None:
    """Raise unless groups are integers on the CPU, one per pair."""
    remedy = "give the number of each pair's trajectory: torch.as_tensor(numbers, dtype=torch.int64), on the CPU"
    tensor = check_instance(groups, Tensor, "groups", remedy=remedy)
    if tensor.dtype != torch.int64 or tensor.device.type != "cpu":
        raise DataError(expected="groups of int64 on the CPU", got=f"{tensor.dtype} on {tensor.device}", remedy=remedy)
    check_shape(tensor, "groups", count, remedy=remedy)


def check_clock(clock: object, count: int) -> WindowClock:
    """Return a clock of `count` pairs, or raise a DataError or ShapeError."""
    remedy = "make it: pn.WindowClock(times), one time per pair"
    checked = check_instance(clock, WindowClock, "clock", remedy=remedy)
    check_count(len(checked), count, "pairs of a clock", remedy=remedy)
    return checked


def joined_groups(parts: Sequence[Any], clock: WindowClock | None) -> Int64[Tensor, " n"] | None:
    """Groups of concatenated data sets; pairs without a group or trajectory are separate groups."""
    are_single = all(part.clock is None for part in parts) if clock is None else clock.is_series
    if are_single and all(part.groups is None for part in parts):
        return None
    joined: list[Tensor] = []
    count = 0
    for part in parts:
        owners = part.groups if part.groups is not None or part.clock is None else part.clock.trajectories
        numbers = torch.arange(len(part), device="cpu") if owners is None else owners.unique(return_inverse=True)[1]
        joined.append(numbers + count)
        count += int(numbers.max()) + 1 if len(numbers) else 0
    return torch.cat(joined)


def evenly_spread_rows(count: int, most: int) -> slice | Tensor:
    """At most `most` of `count` rows, evenly spread, or all as a slice.

    Examples:
        >>> evenly_spread_rows(10, 4)
        tensor([0, 2, 5, 7])
    """
    return slice(0, count) if count <= most else torch.arange(most, device="cpu") * count // most
