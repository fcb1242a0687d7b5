"""JSON against annotations: what passes is of these types all the way down."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probneural.errors import FileError
from probneural.training import schema


class Point(TypedDict):
    """An object with keys of its own."""

    name: str
    at: list[float]


FITS: list[tuple[Any, Any]] = [
    (3, int),
    (-(2**63), int),
    (2**64 - 1, int),
    (3, float),
    (0.5, float),
    (float("nan"), float),
    (True, bool),
    ("", str),
    (None, int | None),
    (None, None),
    ([], Sequence[int]),
    ([1, 2], list[int]),
    ({"a": [None, 1]}, Mapping[str, list[int | None]]),
    ("a", Literal["a", "b"]),
    ({"name": "x", "at": [1, 0.5]}, Point),
    ([{"a": object()}], Any),
]
MISFITS: list[tuple[Any, Any, str]] = [
    (True, int, "an integer as it; got True"),
    (1.0, int, "an integer"),
    ("1", int, "an integer"),
    (2**64, int, "an integer"),
    (-(2**63) - 1, int, "an integer"),
    (2**64, float, "a number"),
    (True, float, "a number"),
    ("nan", float, "a number"),
    (None, float, "a number"),
    (1, bool, "true or false"),
    (None, str, "a text"),
    (0, None, "nothing"),
    ("x", int | None, "nothing"),
    ({}, Sequence[int], "a list as it; got {}"),
    ("ab", Sequence[str], "a list"),
    ([1, None], Sequence[int], "an integer as it.1"),
    ([], Mapping[str, int], "an object"),
    ({"a": {"b": "c"}}, Mapping[str, Mapping[str, int]], "an integer as it.a.b"),
    ("c", Literal["a", "b"], "one of 'a', 'b'"),
    (1, Literal[True], "one of True"),
    ({"name": "x"}, Point, "expected it; got no at; load it with the version"),
    ({"name": "x", "at": [], "to": 1}, Point, "got to beside it"),
    ({"nom": "x", "at": []}, Point, "got no name and nom beside it"),
    ({"name": 1, "at": []}, Point, "a text as it.name"),
    ([], Point, "an object"),
    (1, object, "a object as it; got 1"),
]


@pytest.mark.parametrize(("value", "wanted"), FITS, ids=[str(number) for number in range(len(FITS))])
def test_what_fits(value: Any, wanted: Any) -> None:
    schema.check(value, wanted, where="it")


@pytest.mark.parametrize(("value", "wanted", "message"), MISFITS, ids=[str(number) for number in range(len(MISFITS))])
def test_what_does_not_fit(value: Any, wanted: Any, message: str) -> None:
    with pytest.raises(FileError) as caught:
        schema.check(value, wanted, where="it")
    assert message in str(caught.value)


def test_messages_stay_short() -> None:
    with pytest.raises(FileError) as caught:
        schema.check({"k" * 10**6: "x" * 10**6}, Mapping[str, int], where="it")
    assert len(str(caught.value)) < 400


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"x": value}
    return value


def test_depth_is_bounded() -> None:
    assert not schema.is_too_deep(nested(schema.DEEPEST))
    assert schema.is_too_deep(nested(schema.DEEPEST + 1))
    assert schema.is_too_deep(nested(10**5))
    assert schema.parsed(json.dumps(nested(schema.DEEPEST))) == nested(schema.DEEPEST)
    with pytest.raises(ValueError, match="more than 100 levels"):
        schema.parsed(json.dumps(nested(schema.DEEPEST + 1)))
    with pytest.raises(ValueError, match="more than 100 levels"):
        schema.parsed("[" * 10**6 + "]" * 10**6)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "a": 2}}]'])
def test_a_key_is_there_once(text: str) -> None:
    with pytest.raises(ValueError, match="twice"):
        schema.parsed(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_all_other_json_is_parsed_as_python_does(value: Any) -> None:
    assert schema.parsed(json.dumps(value)) == value
