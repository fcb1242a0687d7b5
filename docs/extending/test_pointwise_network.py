"""The pointwise network: what happens at a point stays there, and it learns a pointwise map."""

from __future__ import annotations

import torch

import probneural as pn
from probneural.operators import PointwiseNetwork


def test_points_do_not_see_each_other() -> None:
    operator = PointwiseNetwork(1, 1, seed=0).double()
    values = torch.linspace(-1.0, 1.0, 8, dtype=torch.float64).reshape(1, 1, 8)
    moved = values.clone()
    moved[..., 3] += 1.0
    changed = operator(moved) != operator(values)
    assert changed[0, 0].tolist() == [index == 3 for index in range(8)]


def test_learns_a_pointwise_map() -> None:
    problem = pn.problems.CubicDecay()
    train, test = (problem.sample(64, resolution=64, seed=seed) for seed in (0, 1))
    operator = PointwiseNetwork(1, 1, seed=0)
    pn.fit(operator, train, epochs=50, learning_rate=0.03, seed=0, show_progress=False)
    error = operator(test.inputs.values) - test.outputs.values
    assert error.norm() < 0.1 * test.outputs.values.norm()
