"""The data of a run: settings as arguments of `probneural.data`, and the rows of each part."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probneural import data as files
from probneural.checks import check_count
from probneural.data import FileLayout, StoredPairs, Trajectories
from probneural.data.fields import FUNCTION, TIME, StoredFields
from probneural.errors import ArgumentError, DataError, DataWarning, ProbneuralError, warn
from probneural.grids import Grid
from probneural.pairs.clocks import WindowClock, split_in_time
from probneural.randomness import stream
from probneural.runs.config import Config, Data, Split, paths_in

PARTS = ("train", "scaling", "conformal", "test")
_LEAST_TRAINING = 4
"""Pairs that are trained on, at least."""
RANDOM_IN_TIME = (
    "The pairs are one series in time, and were split at random: neighbours in time of the test functions were trained on, so "
    "errors at later times will be larger and coverage lower. Split them in time: --split.by time."
)
"""Warning about a random split over an axis of time."""
_NAMES = "inputs|outputs|outputs_path|axes|group|periodic|lengths|sample|time|channel|history|lead|stride"
_ARGUMENT = re.compile(rf"\b({_NAMES})=(?P<text>\"[^\"]+\")?(?P<value>[\w(\['\"])?")
"""Names of arguments in messages."""
_AUTO = {"sample": "auto", "time": "auto", "channel": "channel", "axes": "", "group": ""}
"""Values of settings that `probneural.data` resolves."""


def open_pairs(data: Data) -> StoredPairs:
    """Open the pairs or windows of a run without reading values.

    Raises:
        ArgumentError: If a setting is missing, or means nothing for these data.
        ProbneuralError: As [`open`][probneural.data.open] does; messages name settings in place of arguments.
    """
    if not data.path:
        raise ArgumentError(expected="a data file", got="none", remedy="name it: data.nc, or path = ... in [data]")
    with _settings_named():
        options = _options(data)
        options |= _outputs_path(data)
        where = paths_in(data.path) + (paths_in(data.test_path) if data.test_path else [])
        opened = files.open(where, inputs=data.inputs or None, outputs=data.outputs or None, **options)
        if isinstance(opened, Trajectories):
            return opened.windows(history=data.history, lead=data.lead, stride=data.stride)
    windows = [name for name in ("history", "lead", "stride") if getattr(data, name) != 1]
    if windows:
        raise ArgumentError(
            expected=f"{', '.join(windows)} of 1 in [data] where the variables have no axis of time",
            got=str([getattr(data, name) for name in windows]),
            remedy="name that axis: time in [data] (--time)",
        )
    return opened


def test_rows(data: Data, pairs: StoredPairs) -> Tensor | None:
    """Rows of the pairs of the separate test file, `(m,)`; None without such a file."""
    if not data.test_path:
        return None
    with _settings_named():
        options = _options(data) | _outputs_path(data, without_test=True)
        first = files.open(paths_in(data.path), inputs=data.inputs or None, outputs=data.outputs or None, **options)
    places = pairs.inputs.places
    is_later = places[:, FUNCTION] >= len(first)
    if isinstance(first, Trajectories) and not bool(is_later.any()):  # one series, continued in the test file
        is_later = places[:, TIME] >= first.steps
    return is_later.nonzero()[:, 0]


def resolved_split(split: Split, data: StoredPairs) -> Split:
    """The settings with the method of splitting resolved from the data for "auto"."""
    if split.by != "auto":
        return split
    return replace(split, by="time" if data.clock is not None and data.clock.is_series else "random")


def rows_of_parts(data: StoredPairs, config: Config) -> dict[str, list[int]]:
    """Rows of each part; the test part is the test file, if there is one, and no other part shares a state with it.

    Raises:
        ProbneuralError: As [`split_rows`][probneural.runs.sources.split_rows] does.
    """
    test = test_rows(config.data, data)
    if test is None:
        return split_rows(len(data), config, groups=data.groups, clock=data.clock)
    is_free = torch.ones(len(data), dtype=torch.bool, device="cpu")
    is_free[test] = False
    if data.window_keys is not None:
        is_free &= ~torch.isin(data.window_keys, data.window_keys[test]).any(1)
    remaining = is_free.nonzero()[:, 0]
    others = data.subset(remaining)
    split = split_rows(len(remaining), config, groups=others.groups, clock=others.clock, has_test=False)
    return {name: remaining[rows].tolist() for name, rows in split.items()} | {"test": test.tolist()}


def split_rows(
    count: int, config: Config, *, groups: Tensor | None = None, clock: WindowClock | None = None, has_test: bool = True
) -> dict[str, list[int]]:
    """Rows of each part, ascending, from the seed: the same for the same number of pairs.

    Args:
        count: Number of pairs.
        config: Configuration with fractions and seed.
        groups: The trajectory of each pair, `(count,)`; trajectories are not split between parts. Bands need a minimum number
            of trajectories, otherwise there is no conformal part.
        clock: Times of the pairs, for a split by time or blocks, which ignores groups.
        has_test: Whether one part is for tests.

    Raises:
        DataError: If there are too few pairs for all parts.
        ArgumentError: If pairs without times are to be split by time, or there is an embargo in a random split.

    Examples:
        >>> {name: len(rows) for name, rows in split_rows(100, Config()).items()}
        {'train': 60, 'scaling': 10, 'conformal': 10, 'test': 20}
    """
    by, embargo = config.split.by, config.split.embargo
    if by in ("time", "blocks"):
        groups = None
    elif clock is not None and clock.is_series:
        warn(RANDOM_IN_TIME, DataWarning)
    if by == "random" and embargo:
        raise ArgumentError(
            expected="no embargo in a random split", got=f"split.embargo = {embargo}", remedy="write --split.by time"
        )
    names = torch.arange(count, device="cpu") if groups is None else groups.unique()
    units = len(names)
    windows = count // units  # windows of every trajectory are equally many
    level = config.calibration.level
    needed = int(np.ceil(level / (1.0 - level) - 1e-9))
    requested = round(config.split.conformal * units)
    enough = requested >= needed
    conformal = requested if enough else needed if groups is None else 0
    sizes = {
        "test": max(1, round(config.split.test * units)) if has_test else 0,
        "conformal": conformal if config.calibration.bands else 0,
        "scaling": max(-(-2 // windows), round(config.split.scaling * units)) if config.calibration.scales else 0,
    }
    train = units - sum(sizes.values())
    least = -(-_LEAST_TRAINING // windows)
    if train < least:
        parts = ", ".join(f"{size} {name}" for name, size in sizes.items() if size)
        what = "pairs" if groups is None else "trajectories"
        raise DataError(
            expected=f"{least} or more {what} to train on",
            got=f"{units} {what}, of which {parts} ones leave {max(train, 0)}",
            remedy="give more data, lower the fractions in [split], or leave out bands: --calibration.bands false"
            if groups is None
            else "split each trajectory in time, --split.by time, or give more trajectories",
        )
    if by in ("time", "blocks"):
        return _split_in_time([train, sizes["scaling"], sizes["conformal"], sizes["test"]], config, clock)
    order = torch.randperm(units, generator=stream(config.split.seed, "run split"), device="cpu")
    pieces = order.split([train, sizes["scaling"], sizes["conformal"], sizes["test"]])
    if groups is None:
        return {name: sorted(piece.tolist()) for name, piece in zip(PARTS, pieces, strict=True)}
    rows = (torch.isin(groups, names[piece]).nonzero()[:, 0] for piece in pieces)
    return {name: piece.tolist() for name, piece in zip(PARTS, rows, strict=True)}


def _split_in_time(sizes: list[int], config: Config, clock: WindowClock | None) -> dict[str, list[int]]:
    """Rows of each part, in the order of time or by blocks of it."""
    by = str(config.split.by)
    if clock is None:
        got, remedy = "samples without times", "name the dimension of time, --time or --sample, or leave out --split.by"
        raise ArgumentError(expected=f"pairs that have times, for split.by = {by!r}", got=got, remedy=remedy)
    generator = stream(config.split.seed, "run split")
    pieces = split_in_time(clock, sizes, by=by, embargo=config.split.embargo, generator=generator)
    if by == "time":  # the embargo is taken from the training part, so that the other parts have their nominal size
        left_out = [size - len(piece) for size, piece in zip(sizes, pieces, strict=True)]
        sizes = [max(1, sizes[0] - sum(left_out)), *(size + more for size, more in zip(sizes[1:], left_out[1:], strict=True))]
        sizes[-1] = len(clock) - sum(sizes[:-1])
        pieces = split_in_time(clock, sizes, by=by, embargo=config.split.embargo)
    empty = [name for name, size, piece in zip(PARTS, sizes, pieces, strict=True) if size and not len(piece)]
    if empty:
        raise DataError(
            expected="pairs in each part beside those that share states with an earlier part or lie in the embargo",
            got=f"none in {', '.join(empty)}",
            remedy="give more data, raise the fractions in [split], or lower --split.embargo",
        )
    return {name: sorted(piece.tolist()) for name, piece in zip(PARTS, pieces, strict=True)}


def open_inputs(path: str | os.PathLike[str], data: Data, *, domain: Grid | None = None) -> StoredFields:
    """Open inputs alone, named as in the data that a run has learned from; of trajectories, all windows.

    Args:
        path: The file.
        data: The run's settings.
        domain: The grid of the training inputs, for constant parameters.

    Raises:
        ProbneuralError: As [`open_pairs`][probneural.runs.sources.open_pairs] does.
    """
    with _settings_named(are_fixed=True):
        options = _options(data, out_grid=domain)
        return files.open_inputs(os.fspath(path), inputs=data.inputs, history=data.history, **options)


def with_names(data: Data, pairs: StoredPairs) -> Data:
    """The settings with the names of all variables, for formats with defaults."""
    return replace(data, inputs=_names(pairs.inputs), outputs=_names(pairs.outputs))


def is_window(side: StoredFields) -> bool:
    """Whether rows are windows of trajectories."""
    return any(part.variable.count(TIME) is not None for part in side.parts)


def axis_names(side: StoredFields) -> tuple[str, ...]:
    """Names of the space axes in a file; x0, x1, ... without names."""
    names = [axis.name for axis in side.grid.axes] or [""] * side.grid.dimension
    return side.labels.space or tuple(name or f"x{number}" for number, name in enumerate(names))


def _names(side: StoredFields) -> tuple[str, ...]:
    return tuple(part.variable.name for part in side.parts)


def _options(data: Data, *, out_grid: Grid | None = None) -> dict[str, Any]:
    """Common arguments of both functions of `probneural.data`; one value for all axes is a number, not a list."""
    named = {name: None if getattr(data, name) == auto else getattr(data, name) for name, auto in _AUTO.items()}
    axes = {
        name: None if not values else values[0] if len(values) == 1 else values
        for name, values in (("periodic", data.periodic), ("lengths", data.lengths))
    }
    mask = {"none": None, "land": "land", "samples": True}[data.mask]
    layout = FileLayout(**named, lengths=axes["lengths"], out_grid=out_grid)
    return {"layout": layout, "periodic": axes["periodic"], "mask": mask, "dtype": getattr(torch, data.dtype)}


def _outputs_path(data: Data, *, without_test: bool = False) -> dict[str, Any]:
    """The files of the outputs, in the order of the input files, those of the test samples last.

    Raises:
        ArgumentError: If there are test inputs, and the files of the outputs are not as many as those of the inputs.
    """
    if not data.outputs_path:
        return {}
    outputs, training, test = (paths_in(setting) for setting in (data.outputs_path, data.path, data.test_path))
    if data.test_path:
        things = f"files in outputs_path=, for {data.path} and {data.test_path}"
        remedy = f"name them in this order, {os.pathsep!r} between them: outputs.npy{os.pathsep}test_outputs.npy"
        check_count(len(outputs), len(training) + len(test), things, remedy=remedy, error=ArgumentError)
    return {"outputs_path": outputs[: len(training)] if without_test else outputs}


@contextmanager
def _settings_named(*, are_fixed: bool = False) -> Iterator[None]:
    """Messages name settings in place of arguments: `periodic in [data] (--periodic)` for `periodic=`.

    Args:
        are_fixed: Whether the settings are those of a finished run, so that the file has to follow them.
    """
    try:
        yield
    except ProbneuralError as error:
        if are_fixed and _ARGUMENT.search(error.remedy):
            remedy = "write it as the training data are: variables, dimensions and coordinates of the same names"
            raise type(error)(expected=error.expected, got=error.got, remedy=remedy) from error
        expected, got, remedy = (_ARGUMENT.sub(_setting, text) for text in (error.expected, error.got, error.remedy))
        raise type(error)(expected=expected, got=got, remedy=remedy) from error


def _setting(match: re.Match[str]) -> str:
    """An argument in a message as the setting of a file and of the command line."""
    if match["text"] is not None:
        return f"--{match[1]} {match['text']}"
    value = match["value"]
    return f"{match[1]} in [data] (--{match[1]}){'' if value is None else f' = {value}'}"
