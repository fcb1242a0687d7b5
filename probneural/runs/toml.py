"""Configurations as TOML files: written with what each setting means, read with errors that name the line."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from probneural import atomic
from probneural.checks import check_instance, check_path, check_regular, check_text
from probneural.errors import ArgumentError, ConfigurationError, FileError
from probneural.runs.config import Config, explanations, invalid, with_paths
from probneural.training import schema


def place_in(text: str, name: str, keys: Sequence[str]) -> str:
    r"""Line of the statement that first defines a key, or the innermost section around it: ` in line 4 of run.toml`.

    The text is cut after each line: statements end where the part above the cut is TOML.

    Examples:
        >>> place_in('[data]\ninputs = [\n  "a",\n]\nperiodic = [true]', "run.toml", ("data", "periodic"))
        ' in line 5 of run.toml'
    """
    lines, begin, defined, place = text.split("\n"), 1, 0, f" in {name}"
    for end in range(1, len(lines) + 1):
        with contextlib.suppress(tomllib.TOMLDecodeError):
            depth = _depth(tomllib.loads("\n".join(lines[:end])), keys)
            if depth > defined:
                defined, place = depth, f" in line {begin} of {name}"
            begin = end + 1
    return place


def _depth(tables: Any, keys: Sequence[str]) -> int:
    """Number of the leading keys that tables define."""
    if not keys or not isinstance(tables, Mapping) or keys[0] not in tables:
        return 0
    return 1 + _depth(tables[keys[0]], keys[1:])


_WIDTH = 110
"""Letters of a comment's line."""
_MOST = 2**16
"""Bytes of a configuration; with all explanations it has some 8,000."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def write_config(config: Config, path: str | os.PathLike[str], *, notes: Mapping[str, str] | None = None) -> None:
    """Write every setting, with its explanation as a comment; [`read_config`][probneural.runs.read_config] gives it back.

    Args:
        config: The settings.
        path: Path of the file; an existing file is replaced atomically.
        notes: Additional comments on settings, by `section.name`.

    Raises:
        FileError: If the folder cannot be written to.
    """
    check_instance(config, Config, "config", remedy="give runs.Config(), or what read_config returns", error=ArgumentError)
    if notes is not None:
        check_instance(notes, Mapping, "notes", remedy="give texts by section.name", error=ArgumentError)
        for note in notes.values():
            check_text(note, "a note")
    atomic.write(check_path(path, "path"), text_of(config, notes=notes).encode())


def text_of(config: Config, *, notes: Mapping[str, str] | None = None) -> str:
    """The text that [`write_config`][probneural.runs.write_config] writes."""
    lines = [line for name, part in vars(config).items() for line in _section_lines(part, name, notes or {})]
    return "\n".join(lines[1:]) + "\n"


def _section_lines(part: Any, name: str, notes: Mapping[str, str]) -> list[str]:
    """A table, and those inside it, which TOML wants after its own settings."""
    title = " ".join((type(part).__doc__ or "").partition("\n\n")[0].split())
    lines, below = ["", *_comment(title), f"[{name}]"], []
    descriptions = explanations(type(part))
    for setting, value in vars(part).items():
        inner = f"{name}.{setting}"
        if dataclasses.is_dataclass(value):
            below += _section_lines(value, inner, notes)
        else:
            lines += [
                *_comment(descriptions.get(setting, "")),
                *_comment(notes.get(inner, "")),
                f"{setting} = {toml_value(value)}",
            ]
    return lines + below


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH, break_long_words=False)]


def toml_value(value: Any) -> str:
    """A value in TOML; one line, so that every setting has one."""
    if isinstance(value, Mapping):
        entries = [f"{key if _BARE.fullmatch(key) else toml_value(key)} = {toml_value(entry)}" for key, entry in value.items()]
        return f"{{ {', '.join(entries)} }}" if entries else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_config(path: str | os.PathLike[str]) -> Config:
    """Read a configuration; settings that are left out have their defaults.

    A relative `data.path` is taken from the file's folder.

    Args:
        path: A TOML file, as `probneural init` writes.

    Raises:
        FileError: If the file does not exist, or it is not a text.
        ConfigurationError: If it is no TOML, or a setting is unknown, of another type or out of range; with its line.
    """
    file = check_path(path, "path")
    remedy = f"write one: probneural init --output {file}"
    check_regular(file, "a configuration", remedy=remedy)
    try:
        size = file.stat().st_size
        if size > _MOST:
            raise ValueError(f"{size} bytes, more than {_MOST}")
        text = file.read_bytes().decode()
    except (OSError, ValueError) as error:
        raise FileError(expected=f"a configuration at {file}", got=str(error), remedy=remedy) from error
    return parsed_config(text, name=file.name, folder=file.parent)


def parsed_config(text: str, *, name: str, folder: Path | None = None) -> Config:
    """Read the text of a configuration; see [`read_config`][probneural.runs.read_config].

    Args:
        text: TOML.
        name: Of the file, for messages.
        folder: Where a relative path of the data begins; None leaves it relative.

    Raises:
        ConfigurationError: If it is no TOML, or a setting is unknown, of another type or out of range; with its line.
    """
    text = text.replace("\r\n", "\n")
    try:
        tables = tomllib.loads(text)
        if schema.is_too_deep(tables):
            raise ValueError(f"more than {schema.DEEPEST} levels")
    except (ValueError, RecursionError) as error:  # integers of more digits than Python reads, too
        raise ConfigurationError(
            expected=f"TOML in {name}", got=str(error) or "too many brackets", remedy="see https://toml.io, or write it anew"
        ) from error
    try:
        config: Config = TypeAdapter(Config).validate_python(tables)
    except ValidationError as error:
        keys, message = invalid(error, Config)
        raise ConfigurationError(**message | {"got": message["got"] + place_in(text, name, keys)}) from error
    if folder is not None:
        data = with_paths(config.data, lambda path: os.path.abspath(folder / path))
        config = dataclasses.replace(config, data=data)
    return config
