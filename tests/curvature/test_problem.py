"""The problem: its pure functions, its minibatches, and what it refuses."""

from __future__ import annotations

import copy

import pytest
import torch

from probneural.curvature.parameters import ParameterVector
from probneural.curvature.problem import QuadratureGaussian
from probneural.curvature.rows import evaluate_at
from probneural.errors import ArgumentError, DataError, GridError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from tests.curvature.cases import EVERY, F64, ProductCase, changed, close, tiny
from tests.heads.cases import ConvStack


@EVERY
def test_outputs_are_the_operators(case: ProductCase) -> None:
    problem, theta = case.problem, 1.1 * case.parameters
    expected = evaluate_at(problem.operator, problem.layout, vector=theta, inputs=problem.inputs, query=problem.grid).flatten(2)
    close(problem.outputs(theta), expected, 1e-14)
    close(problem.outputs(theta, slice(1, 3)), expected[1:3], 1e-12)
    close(problem.select(slice(2, None)).outputs_for(theta, problem.inputs.values[2:]), expected[2:], 1e-12)
    losses = 0.5 * (problem.likelihood.weights * (expected - problem.targets.values.flatten(2)) ** 2).sum((1, 2))
    close(problem.losses(theta), losses, 1e-12)
    close(problem.loss(theta), losses.sum(), 1e-12)
    close(torch.cat([problem.losses(theta, rows) for rows in problem.minibatches()]), losses, 1e-12)


def test_minibatches_cover_every_function_once() -> None:
    for batch in (1, 2, 3, 5, 9):
        rows = [list(range(5))[part] for part in changed(tiny(), batch=batch).minibatches()]
        assert [index for part in rows for index in part] == list(range(5))
        assert max(map(len, rows)) == min(batch, 5)


def test_chunk_follows_the_minibatch() -> None:
    assert changed(tiny(), chunk=7).width == 7
    assert changed(tiny(), chunk=None).width == 64
    for size, batch, width in ((2**13, 1, 4), (2**9, 2, 16), (2**9, 100, 6)):
        grid = Grid.uniform(size)
        zeros = Field(torch.zeros(5, 1, size, dtype=F64), grid)
        weights = QuadratureGaussian.of(grid, torch.ones(1))
        assert changed(tiny(), inputs=zeros, targets=None, likelihood=weights, chunk=None, batch=batch).width == width


@pytest.mark.bad_input
def test_refuses_what_does_not_fit() -> None:
    case = tiny()
    problem = case.problem
    with pytest.raises(ArgumentError, match="evaluation mode"):
        changed(case, operator=copy.deepcopy(problem.operator).train())
    partly = ConvStack().double().eval()
    partly.norm.train()
    with pytest.raises(ArgumentError, match="evaluation mode"):
        changed(case, operator=partly, layout=ParameterVector.of(partly))
    with pytest.raises(ArgumentError, match="parameters among"):
        changed(case, layout=ParameterVector.of(torch.nn.Linear(1, 1)))
    with pytest.raises(DataError, match="of one dtype"):
        changed(case, inputs=problem.inputs.to(torch.float32))
    with pytest.raises(DataError, match="of one dtype"):
        changed(case, targets=problem.targets.to(torch.float32))
    with pytest.raises(DataError, match="1 or more input functions"):
        changed(case, inputs=problem.inputs[:0], targets=problem.targets[:0])
    with pytest.raises(ShapeError, match=r"weights of shape \(c, 3\)"):
        changed(case, likelihood=QuadratureGaussian.of(Grid.uniform(4), torch.ones(1)))
    with pytest.raises(GridError, match="expected targets on"):
        changed(case, targets=Field(problem.targets.values, Grid.uniform(3, lengths=2.0)))
    with pytest.raises(ShapeError, match="expected 5 targets; got 4"):
        changed(case, targets=problem.targets[:4])
    two = QuadratureGaussian.of(problem.where, torch.ones(2))
    with pytest.raises(ShapeError, match="expected 2 channels of targets; got 1"):
        changed(case, likelihood=two)
    with pytest.raises(ShapeError, match="expected 2 output channels"):
        changed(case, likelihood=two, targets=None).outputs(case.parameters)
    with pytest.raises(DataError, match="expected targets; got none"):
        changed(case, targets=None).loss(case.parameters)


@pytest.mark.bad_input
def test_sharding_is_explicit() -> None:
    with pytest.raises(UnsupportedError, match="an initialised torch.distributed"):
        changed(tiny(), is_sharded=True)
