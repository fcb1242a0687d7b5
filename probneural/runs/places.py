"""Locations of settings in the file that they were read from, for messages."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from probneural.errors import ProbneuralError
from probneural.runs.config import Config


def place_of(config: Config, *keys: str) -> str:
    """Where a setting was read: ` in line 4 of run.toml`; nothing if it came from elsewhere, a command line for example.

    Args:
        config: The settings.
        keys: Section and name, deeper ones too.
    """
    source = config.source
    if source is None or not _agrees(_at(source.values, keys), _at(config.to_dict(), keys)):
        return ""
    return place_in(source.text, source.name, keys)


def place_in(text: str, name: str, keys: Sequence[str]) -> str:
    """Where a key stands in a file, or the section that it is left out of: ` in line 4 of run.toml`."""
    for count in range(len(keys), 0, -1):
        line = line_of(text, keys[:count])
        if line is not None:
            return f" in line {line} of {name}"
    return f" in {name}"


@contextmanager
def located(config: Config, *keys: str) -> Iterator[None]:
    """Errors of the library say where the setting was read that they are about."""
    try:
        yield
    except ProbneuralError as error:
        add_place(error, place_of(config, *keys))
        raise


def add_place(error: ProbneuralError, place: str) -> None:
    """Let an error say where what it got was read."""
    error.got = f"{error.got}{place}"
    error.args = (error.expected, error.got, error.remedy)


def line_of(text: str, keys: Iterable[str]) -> int | None:
    r"""The number, from 1, of the line where a statement begins that first defines a key.

    The text is cut after each line: statements end where what is above the cut is TOML.

    Examples:
        >>> line_of('[data]\ninputs = [\n  "a",\n]\nperiodic = [true]', ("data", "periodic"))
        5
    """
    lines = text.split("\n")
    start = 0
    for end in range(1, len(lines) + 1):
        try:
            found: Any = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        if _at(found, keys) is not None:
            return start + 1
        start = end
    return None


def _at(tables: Any, keys: Iterable[str]) -> Any:
    """What stands under keys; None if nothing does."""
    for key in keys:
        if not isinstance(tables, Mapping) or key not in tables:
            return None
        tables = tables[key]
    return tables


def _agrees(read: Any, now: Any) -> bool:
    """Whether a setting is what was read; options that have been added to a table are no difference."""
    if isinstance(read, Mapping) and isinstance(now, Mapping):
        return all(_agrees(entry, now.get(key)) for key, entry in read.items())
    return bool(read == now)
