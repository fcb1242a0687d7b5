"""Typed errors: what was expected, what came, what to do.

Every error that this package raises on purpose derives from [`ProbneuralError`][probneural.errors.ProbneuralError], and
each also derives from the built-in exception a caller would have guessed (`ValueError` for most), so that both
`except pn.errors.GridError` and `except ValueError` work.
"""

from __future__ import annotations

from typing import Any


class ProbneuralError(Exception):
    """Base class of the package's errors.

    Args:
        expected: What the call needs.
        got: What it was given.
        remedy: What the caller can do about it.

    Examples:
        >>> print(ShapeError(expected="values of shape (n, c, 64)", got="(64,)", remedy="add the two leading axes"))
        expected values of shape (n, c, 64); got (64,); add the two leading axes
    """

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
        return _rebuild, (type(self), self.expected, self.got, self.remedy)


def _rebuild(kind: type[ProbneuralError], expected: str, got: str, remedy: str) -> ProbneuralError:
    return kind(expected=expected, got=got, remedy=remedy)


def _rebuild_from(kind: type[ProbneuralError], arguments: dict[str, Any]) -> ProbneuralError:
    return kind(**arguments)


class ArgumentError(ProbneuralError, ValueError):
    """An argument lies outside the values a function accepts."""


class KeywordError(ArgumentError, TypeError):
    """A function has no argument of this name."""


class MissingAttributeError(ProbneuralError, AttributeError):
    """A class has no attribute of this name; the message names the one that does what other libraries call so."""


class ShapeError(ProbneuralError, ValueError):
    """A tensor has the wrong number or length of axes."""


class GridError(ProbneuralError, ValueError):
    """Two objects live on different grids, or a grid cannot carry what was asked of it."""


class ResolutionError(GridError):
    """A grid has too few points to hold the frequencies asked of it."""


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
    """Calibration data cannot support the guarantee asked for."""


class OperatorError(ProbneuralError, RuntimeError):
    """A module failed on the functions it was given, as one does that was built for another grid."""


class FileError(ProbneuralError, OSError):
    """A file is missing, damaged, or was not written by this package."""


class ConfigurationError(ProbneuralError, ValueError):
    """A configuration file says something that it cannot; the message names the line."""


class UnsupportedError(ProbneuralError, NotImplementedError):
    """The combination asked for is mathematically or technically out of reach, and the message says why."""


class SolverError(ProbneuralError, RuntimeError):
    """The solver of a differential equation found no step that meets its tolerances."""


class TrainingError(ProbneuralError, RuntimeError):
    """Training met a value it cannot continue from."""


class ForecastError(ProbneuralError, RuntimeError):
    """Members of a roll-out have left the finite numbers; earlier leads stand.

    Args:
        expected: What the call needs.
        got: What it was given.
        remedy: What the caller can do about it.
        lead: The first lead that is not finite.
        members: Which members.
    """

    def __init__(self, *, expected: str, got: str, remedy: str, lead: int = 0, members: tuple[int, ...] = ()) -> None:
        super().__init__(expected=expected, got=got, remedy=remedy)
        self.lead = lead
        self.members = members

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip between worker processes."""
        kept = {"expected": self.expected, "got": self.got, "remedy": self.remedy, "lead": self.lead, "members": self.members}
        return _rebuild_from, (type(self), kept)


class SimulationError(ProbneuralError, RuntimeError):
    """Simulations failed in a way that choosing others cannot make up for."""


class ConvergenceWarning(UserWarning):
    """What was fitted may not be what it should be: an optimiser or a sampler has not converged."""


class DataWarning(UserWarning):
    """Data may not be what is said of them: they are used as said."""
