"""Typed errors with the expected value, the actual one and a remedy, and warnings in the name of the user's line.

Every error that this package raises on purpose derives from [`ProbneuralError`][probneural.errors.ProbneuralError], and
each also derives from the built-in exception a caller would have guessed (`ValueError` for most), so that both
`except pn.errors.GridError` and `except ValueError` work.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any, ClassVar


class ProbneuralError(Exception):
    """Base class of the package's errors.

    Args:
        expected: The expected value.
        got: The actual value.
        remedy: The caller's remedy.

    Examples:
        >>> print(ShapeError(expected="values of shape (n, c, 64)", got="(64,)", remedy="add the two leading axes"))
        expected values of shape (n, c, 64); got (64,); add the two leading axes
    """

    _arguments: ClassVar[tuple[str, ...]] = ("expected", "got", "remedy")

    def __init__(self, *, expected: str, got: str, remedy: str) -> None:
        super().__init__(expected, got, remedy)
        self.expected = expected
        self.got = got
        self.remedy = remedy

    def __str__(self) -> str:
        """One sentence: expected, got, remedy."""
        return f"expected {self.expected}; got {self.got}; {self.remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip between worker processes, keyword-only arguments included."""
        return _rebuild, (type(self), {name: getattr(self, name) for name in self._arguments})


def _rebuild(kind: type[ProbneuralError], arguments: dict[str, Any]) -> ProbneuralError:
    return kind(**arguments)


class ArgumentError(ProbneuralError, ValueError):
    """An argument lies outside the values a function accepts."""


class KeywordError(ArgumentError, TypeError):
    """A function has no argument of this name."""


class MissingAttributeError(ProbneuralError, AttributeError):
    """A class has no attribute of this name; the message names its counterpart in this library."""


class ShapeError(ProbneuralError, ValueError):
    """A tensor has the wrong number or length of axes."""


class GridError(ProbneuralError, ValueError):
    """Grids differ, or a grid does not support an operation."""


class ResolutionError(GridError):
    """A grid has too few points for the frequencies."""


class DataError(ProbneuralError, ValueError):
    """Values are unusable: not finite, of a wrong type, or too few."""


class LatentError(ProbneuralError, ValueError):
    """Two distributions do not share the randomness an operation needs them to share."""


class ConstraintError(ProbneuralError, ValueError):
    """Observations cannot be met: more exact ones than the rank, or contradictory ones."""


class ReadoutError(ProbneuralError, ValueError):
    """The named read-out is not a pointwise affine last layer."""


class EvidenceError(ProbneuralError, ValueError):
    """The evidence has no maximum in the hyper-parameters it should determine."""


class CalibrationError(ProbneuralError, ValueError):
    """Calibration data cannot support the requested guarantee."""


class OperatorError(ProbneuralError, RuntimeError):
    """A module failed on the functions it was given, as one does that was built for another grid."""


class FileError(ProbneuralError, OSError):
    """A file is missing, damaged, or was not written by this package."""


class ConfigurationError(ProbneuralError, ValueError):
    """A configuration file has an invalid entry; the message names the line."""


class UnsupportedError(ProbneuralError, NotImplementedError):
    """The requested combination is mathematically or technically out of reach; the message gives the reason."""


class MissingPackageError(UnsupportedError, ImportError):
    """A package of an extra is not installed; the message names both, and the command that installs it."""


class TrainingError(ProbneuralError, RuntimeError):
    """Training met a value it cannot continue from."""


class ForecastError(ProbneuralError, RuntimeError):
    """Members of a roll-out have left the finite numbers; earlier leads stand.

    Args:
        expected: The expected value.
        got: The actual value.
        remedy: The caller's remedy.
        lead: The first lead that is not finite.
        members: Indices of the members.
    """

    _arguments = (*ProbneuralError._arguments, "lead", "members")

    def __init__(self, *, expected: str, got: str, remedy: str, lead: int = 0, members: tuple[int, ...] = ()) -> None:
        super().__init__(expected=expected, got=got, remedy=remedy)
        self.lead = lead
        self.members = members


class SimulationError(ProbneuralError, RuntimeError):
    """Simulations failed in a way that choosing others cannot make up for."""


class ConvergenceWarning(UserWarning):
    """A fit may be inaccurate: an optimiser or a sampler has not converged."""


class DataWarning(UserWarning):
    """Data may contradict their description, which is used nevertheless."""


_BETWEEN = frozenset({"probneural", "contextlib", "functools", "jaxtyping", "torch"})
"""Packages whose lines are no user's: this one, and those of the decorators around its functions."""


def warn(text: str, category: type[Warning]) -> None:
    """Give a warning in the name of the innermost line that is not this package's, however deep in it this is called.

    Args:
        text: The message.
        category: Class of the warning.
    """
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_back is not None and _package(frame.f_globals) in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def _package(module: dict[str, Any]) -> str:
    return str(module.get("__name__", "")).partition(".")[0]


def __dir__() -> list[str]:
    """Errors and warnings."""
    return [name for name in globals() if name.endswith(("Error", "Warning"))]
