"""Linear programs: the part that depends on the vector, without repeated operations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import vjp

from probneural.curvature.products.linearisation import LinearProgram
from tests.curvature.cases import F64, close

pytestmark = pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")


def pulled(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda where, cotangent: vjp(function, where)[1](cotangent)[0]


def targets(program: LinearProgram) -> list[str]:
    return [str(node.target) for node in program.apply.graph.nodes if node.op == "call_function"]


def traced(function: Callable[[Tensor], Tensor], where: Tensor) -> LinearProgram:
    """The transpose of the derivative; checked against the untraced one at another point and cotangent."""
    cotangent = torch.randn_like(function(where))
    program = LinearProgram.trace(pulled(function), (where,), torch.zeros_like(cotangent))
    other = torch.randn_like(where)
    close(program(cotangent, program.prepare(other)), pulled(function)(other, cotangent), 1e-12)
    return program


def test_nothing_that_depends_on_no_vector_is_left() -> None:
    """The derivative of an activation function is a constant, one multiplication is left."""
    program = traced(torch.nn.functional.gelu, torch.randn(4, dtype=F64))
    assert targets(program) == ["aten.mul.Tensor"]
    (constant,) = program.prepare(torch.zeros(4, dtype=F64))
    close(constant, torch.full((4,), 0.5, dtype=F64), 1e-12)


def test_equal_operations_are_run_once() -> None:
    program = traced(lambda values: torch.sin(values) * torch.sin(values), torch.randn(4, dtype=F64))
    names = [str(node.target) for node in program.prepare.graph.nodes]
    assert names.count("aten.sin.default") == 1
