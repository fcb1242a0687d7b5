"""Warnings that name the user's line."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

_BETWEEN = frozenset({"probneural", "contextlib", "functools", "jaxtyping", "torch"})
"""Packages whose lines are no user's: this one, and those of the decorators around its functions."""


def warn(text: str, category: type[Warning]) -> None:
    """Give a warning in the name of the innermost line that is not this package's, however deep in it this is called.

    Args:
        text: What the user should know.
        category: Which kind of warning.
    """
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_back is not None and _package(frame.f_globals) in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def _package(module: dict[str, Any]) -> str:
    return str(module.get("__name__", "")).partition(".")[0]
