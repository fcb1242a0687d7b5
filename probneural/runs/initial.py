"""The configuration that a user begins with: defaults, and what the data say."""

from __future__ import annotations

import dataclasses
import os

from probneural.checks import check_flag, check_instance, check_path
from probneural.data import list_variables
from probneural.data.opening import paths_of
from probneural.errors import ArgumentError, FileError, ProbneuralError
from probneural.runs.config import Config, paths_in, with_paths
from probneural.runs.folder import resolved_split, rows_of_parts
from probneural.runs.recipes import choose, resolved
from probneural.runs.sources import open_data, with_names
from probneural.runs.toml import write_config


def init(config: Config, path: str | os.PathLike[str], *, overwrite: bool = False) -> Config:
    """Write a TOML file with every setting, its default and what it means; filled in from the data where they tell.

    Where inputs, outputs and periodicity are given, settings that follow from the data get their numbers. Otherwise comments
    say which variables there are, and what only the user can know.

    Args:
        config: What is known: at most a path of data, or nothing.
        path: The file to write.
        overwrite: Whether an existing file is replaced.

    Returns:
        The settings that were written; the path of the data is relative to the file.

    Raises:
        FileError: If there is such a file, it cannot be written, or the data are missing or cannot be read.
        ProbneuralError: If what is given does not fit the data.
    """
    check_instance(config, Config, "config", remedy="begin with Config()", error=ArgumentError)
    file = check_path(path, "path")
    if not check_flag(overwrite, "overwrite") and file.exists():
        raise FileError(expected=f"no file at {file}", got="one", remedy="name another by --output, or say --overwrite")
    config, notes = initial_config(config)
    config = dataclasses.replace(config, data=with_paths(config.data, lambda path: os.path.relpath(path, file.parent)))
    write_config(config, file, notes=notes)
    return config


def initial_config(config: Config) -> tuple[Config, dict[str, str]]:
    """Fill in what the data tell; return notes on the settings by `section.name`, too."""
    if not config.data.path:
        return config, {}
    found = list_variables(paths_of(paths_in(config.data.path))[0])
    notes = {
        "data.inputs": f"The file holds {'; '.join(map(str, found)) or 'no variables'}.",
        "data.periodic": "To be stated: [true] or [false], or one entry for each dimension of space.",
    }
    names = {variable.name for variable in found}
    data = config.data
    if {"inputs", "outputs"} <= names and not data.inputs and not data.outputs:
        data = dataclasses.replace(data, inputs=("inputs",), outputs=("outputs",))
        config = dataclasses.replace(config, data=data)
    try:
        pairs = open_data(config)
    except ProbneuralError:
        if data.inputs and data.outputs and data.periodic:
            raise
        return config, notes
    config = dataclasses.replace(config, data=with_names(data, pairs), split=resolved_split(config.split, pairs))
    rows = rows_of_parts(pairs, config)
    del notes["data.periodic"]
    choice = choose(config, pairs, train=len(rows["train"]))
    if choice is not None:
        notes["operator.name"] = f"Chosen because {choice.reason}."
    return resolved(config, pairs, train=len(rows["train"])), notes
