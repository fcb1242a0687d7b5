"""Mistakes over the whole public surface, and unusual arguments that are none."""

from __future__ import annotations

import pytest

from probneural.errors import ProbneuralError
from tests.bad_input import data, learning, models, posteriors
from tests.bad_input.world import Case

CASES = [*data.CASES, *models.CASES, *posteriors.CASES, *learning.CASES]


@pytest.mark.bad_input
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_mistakes_are_told(case: Case) -> None:
    """The error is of the stated kind, and says what was expected, what came and what to do."""
    with pytest.raises(case.error, match=case.mentions) as caught:
        case.call()
    assert isinstance(caught.value, ProbneuralError)
    assert caught.value.expected
    assert caught.value.got
    assert caught.value.remedy
