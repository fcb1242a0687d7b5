"""Settings: fields of dataclasses, validated by their annotations."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from probneural.checks import (
    check_choice,
    check_flag,
    check_instance,
    check_integer,
    check_positive,
    check_real,
    check_sequence,
)
from probneural.errors import ArgumentError

Count = Annotated[int, check_integer]
"""An integer of at least 1."""
Index = Annotated[int, functools.partial(check_integer, least=0)]
"""An integer of at least 0."""
Seed = Annotated[int, functools.partial(check_integer, least=0, remedy="for example seed=0")]
"""An integer of at least 0 that names random draws."""


def _numbers(value: object, name: str) -> tuple[float, ...]:
    return tuple(check_real(entry, name) for entry in check_sequence(value, name, remedy="give a tuple of numbers"))


Numbers = Annotated[tuple[float, ...], _numbers]
"""Finite numbers."""
Positive = Annotated[float, check_positive]
"""A finite number above 0."""
NotNegative = Annotated[float, functools.partial(check_real, least=0.0)]
"""A finite number of at least 0."""
Level = Annotated[float, functools.partial(check_real, above=0.0, below=1.0)]
"""A number between 0 and 1, both excluded."""
Fraction = Annotated[float, functools.partial(check_real, least=0.0, most=1.0)]
"""A number from 0 to 1."""
ProperFraction = Annotated[float, functools.partial(check_real, least=0.0, below=1.0)]
"""A number from 0 to 1, 1 excluded."""

_Check = Callable[[Any, str], Any]


class Settings:
    """Base class of frozen dataclasses whose fields are validated by their annotations.

    A field `Annotated[type, check]` becomes `check(value, name)`, and a truth value a `bool`. A `Literal` is one of its words;
    other settings are instances of their class. A field that may be None is validated if it is not None. Fields of other
    annotations are left as they are.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Wave(Settings):
        ...     speed: Positive = 1.0
        >>> Wave(-1.0)
        Traceback (most recent call last):
        ...
        probneural.errors.ArgumentError: expected a finite number above 0 as speed; got -1.0; choose speed in that range
    """

    def __post_init__(self) -> None:
        """Convert the fields, or raise an ArgumentError."""
        for name, check in _checks_of(type(self)).items():  # type: ignore[arg-type]
            object.__setattr__(self, name, check(getattr(self, name), name))


@functools.cache
def _checks_of(kind: Any) -> dict[str, _Check]:
    checks = {name: _check_of(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
    return {name: check for name, check in checks.items() if check is not None}


def _check_of(hint: Any) -> _Check | None:
    """The check of an annotation; None without one."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return inner[1]
    if origin is Literal:
        return lambda value, name: check_choice(value, inner, name)
    if origin in (Union, types.UnionType) and len(inner) == 2 and inner[1] is type(None):
        present = _check_of(inner[0])
        return present and (lambda value, name: None if value is None else present(value, name))
    if isinstance(hint, type) and issubclass(hint, Settings):
        remedy = f"build one: {hint.__name__}(...)"
        return lambda value, name: check_instance(value, hint, name, remedy=remedy, error=ArgumentError)
    return check_flag if hint is bool else None
