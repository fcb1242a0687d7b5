"""Jacobians against one backward pass per output, and the Gauss-Newton matrices against explicit sums."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from probneural.curvature import ParameterVector, gauss_newton, jacobian
from probneural.errors import ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators import FNO
from tests.curvature.reference import dense_jacobian
from tests.heads.cases import BranchTrunk, fields, operator_cases, small_fno, to_dtype
from tests.helpers import one_of_each

F64 = torch.float64


@dataclass(frozen=True)
class Case:
    name: str
    operator: nn.Module
    inputs: Field


def built(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return to_dtype(make(), F64).eval()


CASES = [
    *[Case(case.name, copy.deepcopy(case.operator).eval(), case.inputs) for case in operator_cases()],
    Case("branch-trunk", built(BranchTrunk), fields(Grid.uniform(8), 2, 1, seed=0)),
    # few parameters on many points, so that forward mode is taken
    Case("fno-1d-few", built(small_fno(modes=(2,), width=2, depth=1, projection=2)), fields(Grid.uniform(40), 2, 1, seed=0)),
    Case(
        "fno-2d-few", built(small_fno(modes=(2, 2), width=1, depth=1, projection=2)), fields(Grid.uniform((6, 7)), 2, 1, seed=0)
    ),
]
FAST = ("fno-1d", "branch-trunk", "complex", "fno-1d-few")
KINDS = one_of_each(CASES, lambda case: case.name if case.name in FAST else None)
EVERY = pytest.mark.parametrize("case", KINDS, ids=lambda case: case.name)


def finer(grid: Grid) -> Grid:
    return grid.resized([2 * size - int(end) for size, end in zip(grid.shape, grid.endpoint, strict=True)])


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-10) -> None:
    assert actual.shape == expected.shape
    assert float((actual - expected).abs().max()) <= tolerance * float(expected.abs().max())


def modes_seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record which mode is taken."""
    module = sys.modules["probneural.curvature.rows"]
    seen: list[str] = []
    reverse, forward = module.jacrev, module._forward_jacobian

    def watch_reverse(*arguments, **settings):
        seen.append("reverse")
        return reverse(*arguments, **settings)

    def watch_forward(*arguments):
        seen.append("forward")
        return forward(*arguments)

    monkeypatch.setattr(module, "jacrev", watch_reverse)
    monkeypatch.setattr(module, "_forward_jacobian", watch_forward)
    return seen


@EVERY
@pytest.mark.parametrize("chunk", [64, 7])
def test_equals_one_backward_pass_per_value(case: Case, chunk: int) -> None:
    layout = ParameterVector.of(case.operator)
    close(jacobian(case.operator, layout, inputs=case.inputs, chunk=chunk), dense_jacobian(case.operator, case.inputs))


@EVERY
def test_on_a_query_grid(case: Case) -> None:
    layout, query = ParameterVector.of(case.operator), finer(case.inputs.grid)
    rows = jacobian(case.operator, layout, inputs=case.inputs, query=query)
    close(rows, dense_jacobian(case.operator, case.inputs, query))
    scattered = Grid.scattered(query.points[1::3], torch.ones(len(query.points[1::3])))
    close(jacobian(case.operator, layout, inputs=case.inputs, query=scattered), rows[:, :, 1::3], 1e-9)


def test_both_modes_are_taken_and_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES if case.name == "fno-1d-few")
    layout = ParameterVector.of(case.operator)
    seen = modes_seen(monkeypatch)
    many = jacobian(case.operator, layout, inputs=case.inputs)
    few = jacobian(case.operator, layout, inputs=case.inputs, query=Grid.scattered(case.inputs.grid.points[:4], torch.ones(4)))
    assert seen == ["forward", "forward", "reverse", "reverse"]
    close(few, many[:, :, :4], 1e-9)


@pytest.mark.parametrize("name", ["fno-1d", "fno-1d-few", "complex", "branch-trunk"])
def test_differentiable_in_the_inputs(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    layout = ParameterVector.of(case.operator, None if name != "fno-1d" else ["readout", "projection.bias", "lift.bias"])
    where = case.inputs.grid if name == "fno-1d-few" else Grid.scattered(case.inputs.grid.points[:3], torch.ones(3))
    query = None if where == case.inputs.grid else where
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(1, 1, where.size, layout.size, generator=generator, dtype=F64)

    def total(values: torch.Tensor) -> torch.Tensor:
        return (jacobian(case.operator, layout, inputs=Field(values, case.inputs.grid), query=query) * weights).sum()

    values = case.inputs.values[:1].clone().requires_grad_()
    assert torch.autograd.gradcheck(total, (values,), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["fno-1d", "complex"])
def test_chosen_parameters_are_columns_of_all(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    first = next(iter(dict(case.operator.named_parameters())))
    every, part = ParameterVector.of(case.operator), ParameterVector.of(case.operator, [first])
    rows = jacobian(
        case.operator, part, inputs=case.inputs
    ).detach()  # it depends on the other parameters, which want gradients
    close(rows, jacobian(case.operator, every, inputs=case.inputs)[..., : part.size])


def test_neither_the_operator_nor_the_graph_mode_matters() -> None:
    case = CASES[0]
    layout = ParameterVector.of(case.operator)
    state = copy.deepcopy(case.operator.state_dict())
    rows = jacobian(case.operator, layout, inputs=case.inputs)
    with torch.no_grad():
        assert torch.equal(jacobian(case.operator, layout, inputs=case.inputs), rows)
    frozen = copy.deepcopy(case.operator).requires_grad_(False)
    assert torch.equal(jacobian(frozen, layout, inputs=case.inputs), rows)
    assert not rows.requires_grad
    for name, tensor in case.operator.state_dict().items():
        assert torch.equal(tensor, state[name])
    single = to_dtype(copy.deepcopy(case.operator), torch.float32)
    assert jacobian(single, layout, inputs=case.inputs.to(torch.float32)).dtype == torch.float32


@EVERY
def test_gauss_newton_is_the_explicit_sum(case: Case) -> None:
    layout, grid = ParameterVector.of(case.operator), case.inputs.grid
    rows = jacobian(case.operator, layout, inputs=case.inputs)
    precision = torch.linspace(2.0, 3.0, rows.shape[1], dtype=F64)
    expected = torch.zeros(layout.size, layout.size, dtype=F64)
    for index in range(rows.shape[0]):
        for channel in range(rows.shape[1]):
            for point in range(grid.size):
                row = rows[index, channel, point]
                expected += precision[channel] * grid.weights[point] / grid.volume * torch.outer(row, row)
    result = gauss_newton(rows, grid=grid, precision=precision)
    close(result, expected)
    assert torch.equal(result, result.mT)
    assert gauss_newton(rows.float(), grid=grid, precision=precision.float()).dtype == F64


@pytest.mark.parametrize("periodic", [True, False])
def test_gauss_newton_does_not_grow_with_the_grid(periodic: bool) -> None:
    operator = built(lambda: FNO(1, 1, modes=(3,), width=3, depth=1, projection=4, periodic=periodic))
    layout = ParameterVector.of(operator)
    found = []
    for size in (32, 64, 256):
        grid = Grid.uniform(size + (not periodic), periodic=periodic)
        rows = jacobian(operator, layout, inputs=fields(grid, 3, 1, seed=0))
        found.append(gauss_newton(rows, grid=grid, precision=torch.tensor([5.0], dtype=F64)))
    close(found[0], found[2], 1e-8 if periodic else 5e-3)  # the trapezoidal rule between ends is of second order
    close(found[1], found[2], 1e-8 if periodic else 1.5e-3)


@pytest.mark.bad_input
def test_gauss_newton_wants_its_own_grid() -> None:
    with pytest.raises(ShapeError, match="expected 4 points; got 5"):
        gauss_newton(torch.ones(1, 1, 5, 2), grid=Grid.uniform(4), precision=torch.ones(1))
