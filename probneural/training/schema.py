"""Validation of JSON from files against type annotations, before anything is built of it.

A schema is an annotation: `int`, `str | None`, `Literal["full", "diagonal"]`, `Sequence[float]`, `Mapping[str, bool]`, or a
`TypedDict`. Valid values have these types at every level.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeAlias, Union, get_args, get_origin, get_type_hints, is_typeddict

from probneural.errors import FileError

JSON: TypeAlias = "str | int | float | bool | Sequence[JSON] | Mapping[str, JSON] | None"

DEEPEST = 100
"""Levels of lists and objects in each other."""
_INTEGERS = (-(2**63), 2**64 - 1)
"""Range of signed and unsigned 64-bit integers."""
_SHOWN = 80
"""Letters of a value that messages show."""


def parsed(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: If it is not JSON, is nested more deeply than `DEEPEST`, or an object repeats a key.
    """
    try:
        content = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError(f"more than {DEEPEST} levels") from None
    if is_too_deep(content):
        raise ValueError(f"more than {DEEPEST} levels")
    return content


def is_too_deep(value: object) -> bool:
    """Whether lists and objects are nested more deeply than `DEEPEST`; without recursion."""
    level: list[object] = [value]
    for _ in range(DEEPEST + 1):
        level = [part for entry in level for part in _parts(entry)]
        if not level:
            return False
    return True


def check(value: object, annotation: Any, *, where: str) -> None:
    """Compare JSON with a type annotation, completely.

    Integers have 64 bits. An integer is valid as a `float`. A `TypedDict` has exactly its keys.

    Args:
        value: Parsed JSON.
        annotation: The annotation.
        where: Name of the value in messages.

    Raises:
        FileError: If the value is of another type.

    Examples:
        >>> check({"rates": [0.1, 1]}, Mapping[str, Sequence[float]], where="settings")
        >>> check([1, True], Sequence[int], where="sizes")
        Traceback (most recent call last):
        ...
        probneural.errors.FileError: expected an integer as sizes.1; got True; the file is damaged, or of another version
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return
    if is_typeddict(annotation):
        _check_keys(value, annotation, where)
    elif origin in (Union, types.UnionType):
        _check_union(value, inner, where)
    elif origin is Literal:
        if not any(type(value) is type(word) and value == word for word in inner):
            refuse(f"one of {', '.join(map(repr, inner))}", value, where=where)
    elif origin in (Sequence, list):
        for number, entry in enumerate(instance(value, list, where=where)):
            check(entry, inner[0], where=f"{where}.{number}")
    elif origin in (Mapping, dict):
        for key, entry in instance(value, dict, where=where).items():
            check(entry, inner[1], where=f"{where}.{key[:_SHOWN]}")
    else:
        _check_plain(value, annotation, where)


def instance(value: object, kind: type, *, where: str) -> Any:
    """Return a value that is of a type, a dict or a list, or raise a FileError."""
    if not isinstance(value, kind):
        refuse("an object" if kind is dict else "a list", value, where=where)
    return value


def refuse(expected: str, value: object, *, where: str) -> NoReturn:
    """Raise a FileError about a value."""
    got = repr(value)
    raise FileError(
        expected=f"{expected} as {where}",
        got=got if len(got) <= _SHOWN else f"{got[:_SHOWN]}...",
        remedy="the file is damaged, or of another version",
    )


def is_integer(value: object) -> bool:
    """Whether a value is an integer of 64 bits, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool) and _INTEGERS[0] <= value <= _INTEGERS[1]


def _check_plain(value: object, annotation: Any, where: str) -> None:
    if annotation is None or annotation is type(None):
        fits, expected = value is None, "nothing"
    elif annotation is bool:
        fits, expected = isinstance(value, bool), "true or false"
    elif annotation is int:
        fits, expected = is_integer(value), "an integer"
    elif annotation is float:
        fits, expected = isinstance(value, float) or is_integer(value), "a number"
    elif annotation is str:
        fits, expected = isinstance(value, str), "a text"
    else:
        fits, expected = False, f"a {getattr(annotation, '__name__', annotation)}"
    if not fits:
        refuse(expected, value, where=where)


def _check_keys(value: object, annotation: Any, where: str) -> None:
    entries, hints = instance(value, dict, where=where), get_type_hints(annotation)
    check_names(entries, hints, where=where)
    for key, hint in hints.items():
        check(entries[key], hint, where=f"{where}.{key}")


def check_names(names: Iterable[str], expected: Iterable[str], *, where: str, optional: Iterable[str] = ()) -> None:
    """Raise a FileError unless names equal the expected ones, in any order."""
    missing, others = {*expected} - {*names} - {*optional}, {*names} - {*expected}
    if missing or others:
        lacks = f"no {', '.join(sorted(missing))}" if missing else ""
        extra = f"{', '.join(name[:_SHOWN] for name in sorted(others)[:5])} beside it" if others else ""
        raise FileError(
            expected=where, got=" and ".join(filter(None, (lacks, extra))), remedy="load it with the version that wrote it"
        )


def _check_union(value: object, annotations: tuple[Any, ...], where: str) -> None:
    for annotation in annotations:
        try:
            return check(value, annotation, where=where)
        except FileError as error:
            last = error
    raise last


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key that is there twice")
    return entries


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()
