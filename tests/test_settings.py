"""Settings validated by their annotations."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import Any, Literal

import numpy as np
import pytest

from probneural.errors import ArgumentError
from probneural.settings import Count, Numbers, Positive, Settings


@dataclass(frozen=True)
class Inner(Settings):
    size: Count = 1


@dataclass(frozen=True)
class Outer(Settings):
    speed: Positive = 1.0
    limit: Positive | None = None
    kind: Literal["even", "odd"] = "even"
    is_open: bool = True
    bounds: Numbers = ()
    inner: Inner = Inner()
    note: object = None


def test_fields_become_plain_values() -> None:
    settings = Outer(np.float32(0.5), 2, "odd", np.bool_(False), [1, 2], note=3)  # type: ignore[arg-type]
    assert settings == Outer(0.5, 2.0, "odd", False, (1.0, 2.0), note=3)
    assert [type(value) for value in (settings.speed, settings.limit, settings.is_open)] == [float, float, bool]
    with pytest.raises(FrozenInstanceError):
        settings.speed = 1.0  # type: ignore[misc]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "field",
    [
        {"speed": 0.0},
        {"speed": None},
        {"limit": -1.0},
        {"kind": "none"},
        {"is_open": 1},
        {"bounds": 1.0},
        {"bounds": [np.nan]},
        {"inner": 3},
    ],
)
def test_a_value_of_another_kind_is_an_error_with_its_name(field: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(field))):
        Outer(**field)


@pytest.mark.bad_input
def test_subclasses_validate_inherited_fields() -> None:
    @dataclass(frozen=True)
    class Sub(Inner):
        depth: int = 1

    with pytest.raises(ArgumentError, match="size"):
        Sub(0)
