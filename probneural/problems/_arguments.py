"""Checks of constructor arguments that every problem shares."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from probneural.errors import ArgumentError


def check_positive(value: Any, name: str) -> None:
    """Raise an ArgumentError unless `value` is a positive finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 < float(value) < math.inf:
        raise ArgumentError(expected=f"a positive finite {name}", got=repr(value), remedy=f"give {name} as a plain number > 0")


def check_count(value: Any, name: str, *, least: int = 1, most: int | float = math.inf) -> None:
    """Raise an ArgumentError unless `value` is an integer from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        bounds = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ArgumentError(expected=f"an integer {name} {bounds}", got=repr(value), remedy=f"choose {name} in that range")
