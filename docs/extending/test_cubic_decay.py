"""Cubic decay: a semigroup in time."""

from __future__ import annotations

import pytest
import torch

from probneural.errors import ArgumentError
from probneural.problems import CubicDecay


def test_times_add_up() -> None:
    inputs = CubicDecay().sample(4, resolution=64, seed=0, dtype=torch.float64).inputs
    two_steps = CubicDecay(time=0.7).solve(CubicDecay(time=0.3).solve(inputs))
    one_step = CubicDecay(time=1.0).solve(inputs)
    torch.testing.assert_close(two_steps.values, one_step.values, atol=1e-14, rtol=0)


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["rate", "time"])
def test_bad_arguments(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"expected .*{name}"):
        CubicDecay(**{name: 0.0})
