"""Mistakes over the whole public surface, and unusual arguments that are none."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch

from probneural.errors import ProbneuralError
from tests.bad_input import accepted, signatures
from tests.bad_input.mistakes import CASES
from tests.bad_input.ranges import RANGES
from tests.bad_input.world import Case, Good

SLOW = re.compile(r"data\.open(_inputs)?|plots\..*|forecasts\.EnsembleAnalysis\..*")
"""Callables whose calls take long; tests of their own make mistakes there, too."""


def named(case: Case | Good) -> str:
    """The case's name without addresses, which differ between processes that collect the tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", case.name)


@pytest.mark.bad_input
@pytest.mark.parametrize("case", CASES, ids=named)
def test_mistakes_are_told(case: Case) -> None:
    """The error is of the stated kind, and says what was expected, what came and what to do."""
    with pytest.raises(case.error, match=case.mentions) as caught:
        case.call()
    assert isinstance(caught.value, ProbneuralError)
    assert caught.value.expected
    assert caught.value.got
    assert caught.value.remedy


@pytest.mark.bad_input
@pytest.mark.parametrize("case", accepted.CASES, ids=named)
def test_what_looks_odd_is_taken(case: Good) -> None:
    """The result is that of the usual way: on the CPU, of the same dtype, equal up to rounding."""
    found, expected = case.call(), case.expected()
    assert isinstance(found, torch.Tensor)
    assert found.device.type == "cpu"
    torch.testing.assert_close(found.detach(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * bool(SLOW.fullmatch(name))) for name in signatures.SIGNATURES]
)
def test_one_bad_argument_of_any_signature_gets_a_typed_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call works, and no longer if one of its arguments is of a wrong kind."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert list(signatures.mistakes(*signatures.SIGNATURES[name], name=name)) == []


@pytest.mark.bad_input
@pytest.mark.parametrize("name", RANGES)
def test_numbers_out_of_range_are_told(name: str) -> None:
    """The error names the argument."""
    make, function = signatures.SIGNATURES[name]
    declared = signatures.parameters(function)
    assert {*RANGES[name]} <= {one.name for one in declared}
    for argument, values in RANGES[name].items():
        for value in values:
            with pytest.raises(ProbneuralError, match=argument):
                signatures.call(make(), signatures.good(name, declared) | {argument: value}, declared)


def test_the_sweep_sees_raw_errors_and_doubtful_acceptances() -> None:
    def careless(level: float = 0.9, count: int = 1) -> object:
        return level, range(count)

    found = list(signatures.mistakes(lambda: careless, careless))
    assert {"level=None is taken", "count=True is taken"} <= set(found)
    assert any(line.startswith("count=text: TypeError") for line in found)
    assert not any(line.startswith("level=1.5") for line in found)


def test_the_sweep_covers_the_public_surface() -> None:
    assert len(signatures.SIGNATURES) >= 300
