"""Configurations as TOML files: written with what each setting means, read with errors that name the line."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import textwrap
import tomllib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from probneural.checks import check_path
from probneural.errors import ArgumentError, ConfigurationError, FileError
from probneural.runs.config import Config
from probneural.runs.values import convert, explanations, hints_of
from probneural.training import atomic

_WIDTH = 110
"""Letters of a comment's line."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def write_config(config: Config, path: str | os.PathLike[str], *, notes: Mapping[str, str] | None = None) -> None:
    """Write every setting, with its explanation as a comment; [`read_config`][probneural.runs.read_config] gives it back.

    Args:
        config: The settings.
        path: Where to; an existing file is replaced in one step.
        notes: More to say of settings, by `section.name`.

    Raises:
        FileError: If the folder cannot be written to.
    """
    atomic.write(check_path(path, "path"), text_of(config, notes=notes or {}).encode())


def text_of(config: Config, *, notes: Mapping[str, str] | None = None) -> str:
    """What [`write_config`][probneural.runs.write_config] writes."""
    lines: list[str] = []
    for section in dataclasses.fields(config):
        part = getattr(config, section.name)
        title = " ".join((type(part).__doc__ or "").partition("\n\n")[0].split())
        lines += ["", *_comment(title), f"[{section.name}]"]
        told = explanations(type(part))
        for setting in dataclasses.fields(part):
            note = (notes or {}).get(f"{section.name}.{setting.name}", "")
            lines += [*_comment(told.get(setting.name, "")), *_comment(note)]
            lines.append(f"{setting.name} = {_written(getattr(part, setting.name))}")
    return "\n".join(lines[1:]) + "\n"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH, break_long_words=False)]


def _written(value: Any) -> str:
    """A value in TOML; one line, so that every setting has one."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        entries = [f"{_key(key)} = {_written(entry)}" for key, entry in value.items()]
        return f"{{ {', '.join(entries)} }}" if entries else "{}"
    return f"[{', '.join(map(_written, value))}]"


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _written(key)


def read_config(path: str | os.PathLike[str]) -> Config:
    """Read a configuration; settings that are left out have their defaults.

    A relative `data.path` is taken from the file's folder.

    Args:
        path: A TOML file, as `probneural init` writes.

    Raises:
        FileError: If there is no such file, or it is no text.
        ConfigurationError: If it is no TOML, or a setting is unknown, of another type or out of range; with its line.
    """
    file = check_path(path, "path")
    try:
        text = file.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(
            expected=f"a configuration at {file}", got=str(error), remedy=f"write one: probneural init --output {file}"
        ) from error
    config = parsed_config(text, name=file.name)
    if not config.data.path:
        return config
    return dataclasses.replace(config, data=dataclasses.replace(config.data, path=str(file.parent / config.data.path)))


def parsed_config(text: str, *, name: str) -> Config:
    """Read the text of a configuration; see [`read_config`][probneural.runs.read_config].

    Args:
        text: TOML.
        name: Of the file, for messages.

    Raises:
        ConfigurationError: If it is no TOML, or a setting is unknown, of another type or out of range; with its line.
    """
    text = text.replace("\r\n", "\n")
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(
            expected=f"TOML in {name}", got=str(error) or "too many brackets", remedy="see https://toml.io, or write it anew"
        ) from error
    kinds = hints_of(Config)
    sections: dict[str, Any] = {}
    for section, entries in tables.items():
        _check_known(section, kinds, place=_Place(text, name, (section,)), what="section")
        place = _Place(text, name, (section,))
        if not isinstance(entries, dict):
            raise ConfigurationError(
                expected=f"a section [{section}]", got=f"{entries!r:.80}{place}", remedy=f"write [{section}] on a line"
            )
        hints = hints_of(kinds[section])
        values = {}
        for key, value in entries.items():
            place = _Place(text, name, (section, key))
            _check_known(key, hints, place=place, what=f"setting of [{section}]")
            try:
                values[key] = convert(value, hints[key], f"{section}.{key}")
            except ArgumentError as error:
                raise ConfigurationError(
                    expected=error.expected, got=f"{error.got}{place}", remedy="change that line"
                ) from error
        sections[section] = kinds[section](**values)
    return Config(**sections)


def nearest(name: str, known: Iterable[str]) -> str:
    """What may have been meant by an unknown name: "did you mean ...?", or all that are known.

    Examples:
        >>> nearest("epoch", ["epochs", "seed"])
        "did you mean 'epochs'?"
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names)}"


def _check_known(name: str, known: Collection[str], *, place: _Place, what: str) -> None:
    if name not in known:
        raise ConfigurationError(expected=f"a known {what}", got=f"{name!r}{place}", remedy=nearest(name, known))


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a key stands in a file; the line is looked for when it is asked for."""

    text: str
    name: str
    keys: tuple[str, ...]

    def __str__(self) -> str:
        line = line_of(self.text, self.keys)
        return f" in {self.name}" if line is None else f" in line {line} of {self.name}"


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
        if _holds(found, keys):
            return start + 1
        start = end
    return None


def _holds(tables: Any, keys: Iterable[str]) -> bool:
    for key in keys:
        if not isinstance(tables, dict) or key not in tables:
            return False
        tables = tables[key]
    return True
