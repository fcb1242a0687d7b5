"""Settings of data as arguments of `probneural.data`: which file, which variables, which windows of trajectories."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from probneural import data as files
from probneural.data import StoredPairs, Trajectories
from probneural.data.fields import StoredFields
from probneural.data.variables import FUNCTION, TIME
from probneural.errors import ArgumentError, FileError, ProbneuralError
from probneural.grids import Grid
from probneural.runs.config import Config, Data, paths_in
from probneural.runs.places import add_place, place_of

_NAMES = "inputs|outputs|outputs_path|axes|group|periodic|lengths|sample|time|channel|history|lead|stride"
_ARGUMENT = re.compile(rf"\b({_NAMES})=(?P<text>\"[^\"]+\")?(?P<value>[\w(\['\"])?")
"""What messages call an argument."""
_SETTING = re.compile(r"\b(\w+)(?: of 1)? in \[data\]")
"""What messages call a setting."""
_VARIABLE = re.compile(r"a variable '(.*)' of ")
"""What messages call a variable that a file lacks."""
_AUTO = {"sample": "auto", "time": "auto", "channel": "channel", "axes": "", "group": ""}
"""Values of settings by which `probneural.data` decides."""


def open_data(config: Config) -> StoredPairs:
    """Open the pairs of a configuration: errors say where the setting was read that they are about.

    Raises:
        ProbneuralError: As [`open_pairs`][probneural.runs.sources.open_pairs] does.
    """
    try:
        return open_pairs(config.data)
    except ProbneuralError as error:
        concerned = _concerned(error, config.data)
        if concerned is not None:
            add_place(error, place_of(config, "data", concerned))
        raise


def open_pairs(data: Data) -> StoredPairs:
    """Open the pairs that a run learns from; of trajectories, the windows that are asked for. No values are read.

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
    """The rows of all pairs that are of the test file, `(m,)`; None if there is none of its own."""
    if not data.test_path:
        return None
    with _settings_named():
        options = _options(data) | _outputs_path(data, without_test=True)
        first = files.open(paths_in(data.path), inputs=data.inputs or None, outputs=data.outputs or None, **options)
    places = pairs.inputs.places
    is_later = places[:, FUNCTION] >= len(first)
    if isinstance(first, Trajectories) and not bool(is_later.any()):  # one series, which the test file continues
        is_later = places[:, TIME] >= first.steps
    return is_later.nonzero()[:, 0]


def open_inputs(path: str | os.PathLike[str], data: Data, *, domain: Grid | None = None) -> StoredFields:
    """Open inputs alone, named as in the data that a run has learned from; of trajectories, all windows.

    Args:
        path: The file.
        data: The run's settings.
        domain: The grid of the training inputs, on which parameters are constant.

    Raises:
        ProbneuralError: As [`open_pairs`][probneural.runs.sources.open_pairs] does.
    """
    with _settings_named(are_fixed=True):
        options = {"history": data.history, "parameter_grid": domain, **_options(data)}
        return files.open_inputs(os.fspath(path), inputs=data.inputs, **options)


def with_names(data: Data, pairs: StoredPairs) -> Data:
    """The settings with the names of all variables, where a format has a choice of its own."""
    return replace(data, inputs=_names(pairs.inputs), outputs=_names(pairs.outputs))


def is_window(side: StoredFields) -> bool:
    """Whether rows are windows of trajectories."""
    return any(part.variable.count(TIME) is not None for part in side.parts)


def axis_names(side: StoredFields) -> tuple[str, ...]:
    """What a file calls the axes of space; x0, x1, ... where they have no names."""
    return side.labels.space or tuple(axis.name or f"x{number}" for number, axis in enumerate(side.grid.axes))


def _names(side: StoredFields) -> tuple[str, ...]:
    return tuple(part.variable.name for part in side.parts)


def _options(data: Data) -> dict[str, Any]:
    """What both functions of `probneural.data` take; one answer for all axes is a number, not a list."""
    named = {name: None if getattr(data, name) == auto else getattr(data, name) for name, auto in _AUTO.items()}
    axes = {
        name: None if not values else values[0] if len(values) == 1 else values
        for name, values in (("periodic", data.periodic), ("lengths", data.lengths))
    }
    mask = {"none": None, "land": "land", "samples": True}[data.mask]
    return {**named, **axes, "mask": mask, "dtype": getattr(torch, data.dtype)}


def _outputs_path(data: Data, *, without_test: bool = False) -> dict[str, Any]:
    """The files of the outputs: as many as there are of the inputs, those of the test samples last.

    Raises:
        ArgumentError: If there are test inputs, and the files of the outputs are not as many as those of the inputs.
    """
    if not data.outputs_path:
        return {}
    outputs, training, test = (paths_in(setting) for setting in (data.outputs_path, data.path, data.test_path))
    if data.test_path and len(outputs) != len(training) + len(test):
        raise ArgumentError(
            expected=f"{len(training) + len(test)} files in outputs_path=, for {data.path} and {data.test_path}",
            got=f"{len(outputs)}, {data.outputs_path}",
            remedy=f"name them in this order, {os.pathsep!r} between them: outputs.npy{os.pathsep}test_outputs.npy",
        )
    return {"outputs_path": outputs[: len(training)] if without_test else outputs}


def _concerned(error: ProbneuralError, data: Data) -> str | None:
    """The setting that an error is about, if it is about one."""
    if isinstance(error, FileError) or not data.path:
        return "path"
    variable = _VARIABLE.search(error.expected)
    if variable is not None:
        return next((side for side in ("inputs", "outputs") if variable[1] in getattr(data, side)), None)
    named = _SETTING.search(str(error))
    return None if named is None or named[1] not in vars(data) else named[1]


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


def _setting(found: re.Match[str]) -> str:
    """An argument in a message as the setting of a file and of the command line."""
    if found["text"] is not None:
        return f"--{found[1]} {found['text']}"
    value = found["value"]
    return f"{found[1]} in [data] (--{found[1]}){'' if value is None else f' = {value}'}"
