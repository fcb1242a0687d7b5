"""The benchmark of training: every candidate trains every weight, at any rate."""

from __future__ import annotations

import pytest
import torch

import probneural as pn
from benchmarks import training
from tests.training.cases import built, data


@pytest.mark.parametrize("name", list(training.candidates()))
def test_candidates_move_all_weights(name: str) -> None:
    operator, before = built("FNO"), built("FNO")
    history = pn.fit(operator, data(), epochs=4, optimization=training.candidates()[name], show_progress=False)
    assert history.validation[-1] < history.validation[0]
    for moved, kept in zip(operator.parameters(), before.parameters(), strict=True):
        assert not torch.equal(moved, kept)
