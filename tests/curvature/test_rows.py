"""Streamed rows against the dense Gauss-Newton matrix."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from probneural.curvature import ParameterVector, gauss_newton, jacobian
from probneural.curvature.rows import GaussNewtonRows
from tests.heads.cases import OperatorCase, operator_case

CASES = ["fno-1d", "fno-outputs", "fno-2d", "complex", "channels-last"]
EVERY = pytest.mark.parametrize("operator", CASES)


def rows_of(case: OperatorCase, **settings: object) -> GaussNewtonRows:
    layout = ParameterVector.of(case.operator)
    return GaussNewtonRows(
        copy.deepcopy(case.operator).eval(), layout, inputs=case.data.inputs, weights=weights_of(case), **settings
    )


def precision_of(case: OperatorCase) -> Tensor:
    return torch.linspace(2.0, 3.0, case.data.outputs.channels, dtype=torch.float64)


def weights_of(case: OperatorCase) -> Tensor:
    grid = case.data.outputs.grid
    return precision_of(case)[:, None] * grid.weights / grid.volume


def dense(case: OperatorCase) -> Tensor:
    operator = copy.deepcopy(case.operator).eval()
    rows = jacobian(operator, ParameterVector.of(operator), inputs=case.data.inputs).detach()
    return gauss_newton(rows, grid=case.data.outputs.grid, precision=precision_of(case))


def summed(rows: GaussNewtonRows, *, chunk: int = 64) -> Tensor:
    return sum(piece.mT @ piece for piece in rows(chunk=chunk))


@EVERY
@pytest.mark.parametrize("chunk", [64, 5])
def test_rows_add_up_to_the_matrix(operator: str, chunk: int) -> None:
    case = operator_case(operator)
    rows = rows_of(case)
    expected = dense(case)
    assert float((summed(rows, chunk=chunk) - expected).abs().max()) <= 1e-12 * float(expected.abs().max())
    pieces = list(rows(chunk=chunk))
    assert max(len(piece) for piece in pieces) <= chunk


@EVERY
def test_spread_scales_columns(operator: str) -> None:
    case = operator_case(operator)
    prior_std = torch.linspace(0.0, 2.0, ParameterVector.of(case.operator).size, dtype=torch.float64)
    expected = prior_std[:, None] * dense(case) * prior_std
    assert float((summed(rows_of(case, prior_std=prior_std)) - expected).abs().max()) <= 1e-12 * float(expected.abs().max())


def test_projections_are_right_on_average_and_repeatable() -> None:
    """The mean over independent seeds lies within four standard errors of the trace."""
    case = operator_case("fno-outputs")
    state = torch.get_rng_state()
    traces = torch.stack([summed(rows_of(case, probes=3, seed=seed)).trace() for seed in range(60)])
    exact = dense(case).trace()
    assert float((traces.mean() - exact).abs()) <= 4 * float(traces.std()) / 60**0.5
    assert float(traces.std()) > 0
    rows = rows_of(case, probes=3, seed=1)
    assert sum(map(len, rows())) == 3 * len(case.data)
    assert torch.equal(summed(rows), summed(rows))
    assert torch.equal(torch.get_rng_state(), state)


def test_projections_do_not_depend_on_the_chunk() -> None:
    case = operator_case("fno-1d")
    torch.testing.assert_close(summed(rows_of(case, probes=7), chunk=2), summed(rows_of(case, probes=7)))
