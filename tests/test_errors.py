"""Errors say what was expected, what came and what to do, and survive the trip between processes."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from probneural import errors

ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.ProbneuralError) and kind is not errors.ProbneuralError
]
BUILT_IN = {
    errors.FileError: OSError,
    errors.OperatorError: RuntimeError,
    errors.UnsupportedError: NotImplementedError,
    errors.MissingPackageError: ImportError,
    errors.MissingAttributeError: AttributeError,
    errors.TrainingError: RuntimeError,
    errors.SimulationError: RuntimeError,
    errors.ForecastError: RuntimeError,
}


def test_there_are_errors_to_test() -> None:
    assert {errors.ShapeError, errors.GridError, errors.LatentError, errors.FileError} <= set(ERRORS)


@pytest.mark.parametrize("kind", ERRORS)
class TestEveryError:
    def test_says_three_things(self, kind: type[errors.ProbneuralError]) -> None:
        error = kind(expected="a lemon", got="a stone", remedy="squeeze the other one")
        assert str(error) == "expected a lemon; got a stone; squeeze the other one"
        assert (error.expected, error.got, error.remedy) == ("a lemon", "a stone", "squeeze the other one")

    def test_is_caught_as_ours_and_as_the_built_in_one(self, kind: type[errors.ProbneuralError]) -> None:
        for caught in (errors.ProbneuralError, BUILT_IN.get(kind, ValueError)):
            with pytest.raises(caught, match="expected a; got b; c"):
                raise kind(expected="a", got="b", remedy="c")

    @pytest.mark.parametrize("travel", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])  # noqa: S301
    def test_survives_a_copy(self, kind: type[errors.ProbneuralError], travel: object) -> None:
        error = travel(kind(expected="a", got="b", remedy="c"))  # type: ignore[operator]
        assert type(error) is kind
        assert (error.expected, error.got, error.remedy, str(error)) == ("a", "b", "c", "expected a; got b; c")

    def test_takes_keywords_only(self, kind: type[errors.ProbneuralError]) -> None:
        with pytest.raises(TypeError):
            kind("a", "b", "c")  # type: ignore[misc]


def test_a_resolution_error_is_a_grid_error() -> None:
    assert issubclass(errors.ResolutionError, errors.GridError)
