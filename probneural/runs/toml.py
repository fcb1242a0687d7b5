"""Configurations as TOML files: written with what each setting means, read with errors that name the line."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from probneural.checks import check_instance, check_path, check_regular, check_text, nearest
from probneural.errors import ArgumentError, ConfigurationError, FileError
from probneural.runs.config import Config, convert, explanations, hints_of, is_section, joined, with_paths
from probneural.training import atomic, schema


def place_in(text: str, name: str, keys: Sequence[str]) -> str:
    """Line of a key in a file, or of the section that lacks it: ` in line 4 of run.toml`."""
    for count in range(len(keys), 0, -1):
        line = line_of(text, keys[:count])
        if line is not None:
            return f" in line {line} of {name}"
    return f" in {name}"


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
            values: Any = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        if _at(values, keys) is not None:
            return start + 1
        start = end
    return None


def _at(tables: Any, keys: Iterable[str]) -> Any:
    """The value under keys; None without one."""
    for key in keys:
        if not isinstance(tables, Mapping) or key not in tables:
            return None
        tables = tables[key]
    return tables


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
    lines = [line for name in hints_of(Config) for line in _section_lines(getattr(config, name), name, notes or {})]
    return "\n".join(lines[1:]) + "\n"


def _section_lines(part: Any, name: str, notes: Mapping[str, str]) -> list[str]:
    """A table, and those inside it, which TOML wants after its own settings."""
    title = " ".join((type(part).__doc__ or "").partition("\n\n")[0].split())
    lines, below = ["", *_comment(title), f"[{name}]"], []
    descriptions = explanations(type(part))
    for setting, hint in hints_of(type(part)).items():
        inner, value = joined(name, setting), getattr(part, setting)
        if is_section(hint):
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
    config: Config = _section(tables, Config, (), text=text, name=name)
    if folder is not None:
        data = with_paths(config.data, lambda path: os.path.abspath(folder / path))
        config = dataclasses.replace(config, data=data)
    return config


def _section(entries: Mapping[str, Any], kind: type[Any], keys: tuple[str, ...], *, text: str, name: str) -> Any:
    """The dataclass of a table; what is wrong in it is named with its line."""
    hints, values = hints_of(kind), {}
    what = f"setting of [{'.'.join(keys)}]" if keys else "section"
    for key, value in entries.items():
        inner = (*keys, key)
        if key not in hints:
            got = f"{key!r}{place_in(text, name, inner)}"
            raise ConfigurationError(expected=f"a known {what}", got=got, remedy=nearest(key, hints))
        if not is_section(hints[key]):
            with _in_line(text, name, inner):
                values[key] = convert(value, hints[key], ".".join(inner))
            continue
        if not isinstance(value, dict):
            title = f"[{'.'.join(inner)}]"
            got = f"{value!r:.80}{place_in(text, name, inner)}"
            raise ConfigurationError(expected=f"a section {title}", got=got, remedy=f"write {title} on a line")
        values[key] = _section(value, hints[key], inner, text=text, name=name)
    with _in_line(text, name, keys):
        return kind(**values)


@contextlib.contextmanager
def _in_line(text: str, name: str, keys: tuple[str, ...]) -> Iterator[None]:
    """Errors of a setting, or of settings that do not fit together, become those of a file."""
    try:
        yield
    except ArgumentError as error:
        got = f"{error.got}{place_in(text, name, keys)}"
        remedy = "change that line" if error.remedy == "change it" else error.remedy
        raise ConfigurationError(expected=error.expected, got=got, remedy=remedy) from error
