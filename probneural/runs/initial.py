"""The configuration that a user begins with: defaults, and what the data say."""

from __future__ import annotations

import dataclasses

from probneural.checks import check_instance
from probneural.data import list_variables
from probneural.errors import ArgumentError, ProbneuralError
from probneural.runs.config import Config
from probneural.runs.folder import split_rows
from probneural.runs.recipes import resolved
from probneural.runs.sources import open_pairs, with_names


def initial_config(config: Config) -> tuple[Config, dict[str, str]]:
    """Fill in what the data tell.

    Where inputs, outputs and periodicity are given, settings that follow from the data get their numbers. Otherwise notes
    say which variables there are, and what only the user can know.

    Args:
        config: What is known: at most a path, or nothing.

    Returns:
        The settings, and notes for [`write_config`][probneural.runs.write_config] by `section.name`.

    Raises:
        FileError: If the file is missing or cannot be read.
        ProbneuralError: If what is given does not fit the data.
    """
    check_instance(config, Config, "config", remedy="begin with Config()", error=ArgumentError)
    if not config.data.path:
        return config, {}
    found = list_variables(config.data.path)
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
        pairs = open_pairs(data)
    except ProbneuralError:
        if data.inputs and data.outputs and data.periodic:
            raise
        return config, notes
    rows = split_rows(len(pairs), config, groups=pairs.groups)
    del notes["data.periodic"]
    config = dataclasses.replace(config, data=with_names(data, pairs))
    return resolved(config, pairs, train=len(rows["train"])), notes
