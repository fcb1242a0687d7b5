"""Settings as plain values: each is compared with its annotation, whether it comes from Python, a file or a command line."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from probneural.checks import check_integer, check_real, described
from probneural.errors import ArgumentError


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may be, beside its type.

    Attributes:
        least: The smallest, included.
        most: The largest, included.
        above: A bound that is excluded.
        below: Likewise.
    """

    least: int | float = -math.inf
    most: int | float = math.inf
    above: int | float = -math.inf
    below: int | float = math.inf


def hints_of(kind: type[Any]) -> dict[str, Any]:
    """Annotations of a dataclass's settings by name, ranges included: of the fields that are compared."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.compare}


def is_section(hint: Any) -> bool:
    """Whether an annotation is a dataclass, which holds settings of its own."""
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def joined(section: str, name: str) -> str:
    """What messages call a setting of a section, which may be the whole tree, "" or, on a command line, "--".

    Examples:
        >>> joined("training.optimization", "optimizer"), joined("", "training"), joined("--", "path")
        ('training.optimization.optimizer', 'training', '--path')
    """
    return f"{section}.{name}" if section.strip("-") else f"{section}{name}"


def explanations(kind: type[Any]) -> dict[str, str]:
    """What the docstring of a dataclass says of each field, under `Attributes:`, on one line each.

    Examples:
        >>> explanations(Range)["least"]
        'The smallest, included.'
    """
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    parts = re.split(r"^    (\w+): ", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def convert(value: object, hint: Any, name: str) -> Any:
    """Return a value in the type of an annotation: lists become tuples, tables the dataclasses that they stand for.

    Args:
        value: Plain Python: truth values, numbers, texts, lists, dictionaries.
        hint: `bool`, `int`, `float`, `str`, a `Literal`, `tuple[..., ...]`, `dict[str, Any]`, a union of these, a dataclass,
            or one of them with a `Range`.
        name: What messages call the value.

    Raises:
        ArgumentError: If the value is of another type or out of range.

    Examples:
        >>> convert([1, 2.5], tuple[float, ...], "lengths")
        (1.0, 2.5)
        >>> convert("many", Annotated[int, Range(least=1)] | Literal["auto"], "epochs")
        Traceback (most recent call last):
        ...
        probneural.errors.ArgumentError: expected epochs: an integer of at least 1, or 'auto'; got 'many'; change it
    """
    try:
        return _converted(value, hint, name)
    except _OtherTypeError:
        got = repr(value) if isinstance(value, str | int | float | list | tuple) else described(value)
        raise ArgumentError(expected=f"{name}: {_said(hint)}", got=got[:100], remedy="change it") from None


class _OtherTypeError(Exception):
    """A value does not fit an annotation."""


def _converted(value: object, hint: Any, name: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _in_range(_converted(value, inner[0], name), inner[1])
    if origin in (Union, types.UnionType):
        return _first(value, inner, name)
    if origin is Literal:
        return _require(value, any(type(value) is type(word) and value == word for word in inner))
    if origin is tuple:
        entries = _require(value, isinstance(value, list | tuple))
        return tuple(_converted(entry, inner[0], name) for entry in entries)
    if origin is dict:
        entries = _require(value, isinstance(value, Mapping) and all(isinstance(key, str) for key in value))
        return {key: plain(entry, f"{name}.{key}") for key, entry in entries.items()}
    if is_section(hint):
        return value if isinstance(value, hint) else _section(value, hint, name)
    return _scalar(value, hint, name)


def _section(value: object, kind: type[Any], name: str) -> Any:
    """The dataclass that a table stands for, with defaults for what it leaves out."""
    hints = hints_of(kind)
    entries: Mapping[str, object] = _require(value, isinstance(value, Mapping))
    for key in entries:
        if key not in hints:
            raise ArgumentError(expected="known settings", got=joined(name, key), remedy="leave it out")
    return kind(**{key: convert(entry, hints[key], joined(name, key)) for key, entry in entries.items()})


def _scalar(value: object, hint: Any, name: str) -> Any:
    try:
        if hint is int:
            return check_integer(value, name, least=-math.inf)
        if hint is float:
            return check_real(value, name)
    except ArgumentError:
        raise _OtherTypeError from None
    return _require(value, type(value) is hint)


def _first(value: object, hint: tuple[Any, ...], name: str) -> Any:
    for alternative in hint:
        try:
            return _converted(value, alternative, name)
        except _OtherTypeError:
            continue
    raise _OtherTypeError


def _require(value: Any, fits: bool) -> Any:
    if not fits:
        raise _OtherTypeError
    return value


def _in_range(value: Any, allowed: Range) -> Any:
    if isinstance(value, int | float):
        _require(value, allowed.least <= value <= allowed.most and allowed.above < value < allowed.below)
    return value


def plain(value: object, name: str) -> Any:
    """Return what a TOML file can hold, with lists for tuples.

    Raises:
        ArgumentError: If it is anything else, or a number that is not finite.
    """
    if isinstance(value, bool | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(entry, name) for entry in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain(entry, f"{name}.{key}") for key, entry in value.items()}
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, float):
        return check_real(value, name)
    raise ArgumentError(
        expected=f"{name}: true, false, a number, a text, or a list or table of them", got=described(value), remedy="change it"
    )


def _said(hint: Any) -> str:
    """An annotation in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [
            f"{word} {getattr(inner[1], key):g}"
            for key, word in (("least", "at least"), ("most", "at most"), ("above", "above"), ("below", "below"))
            if math.isfinite(getattr(inner[1], key))
        ]
        return f"{_said(inner[0])}{' of ' * bool(bounds)}{' and '.join(bounds)}"
    if origin in (Union, types.UnionType):
        return ", or ".join(_said(alternative) for alternative in inner)
    if origin is Literal:
        return f"one of {', '.join(map(repr, inner))}" if len(inner) > 1 else repr(inner[0])
    if origin is tuple:
        return f"a list, each entry {_said(inner[0])}"
    words = {bool: "true or false", int: "an integer", float: "a finite number", str: "a text"}
    return words.get(hint, "a table")
