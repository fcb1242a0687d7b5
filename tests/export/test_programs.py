"""Traces: any number of functions, constants computed once, and errors that say why a module has none."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from probneural.errors import DataError, GridError, UnsupportedError
from probneural.export.programs import Program, traced
from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators import FNO, DeepONet, HiddenLayers
from tests.heads import cases
from tests.helpers import normal
from tests.operators.cases import CASES, Case

LINE = Grid.uniform(8)


def field(count: int = 2, *, dtype: torch.dtype = torch.float64) -> Field:
    return Field(normal(count, 1, 8).to(dtype), LINE)


def operations(program: Program) -> list[str]:
    return [str(node.target) for node in program.exported.graph.nodes if node.op == "call_function"]


class Function(nn.Module):
    """A module of one function."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.tensor([[0.1, 0.3], [0.5, 0.7]], dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, values: Tensor) -> Tensor:
        return self.function(self, values)


def test_what_depends_on_no_input_is_a_number() -> None:
    program = traced(Function(lambda module, values: values * (module.weight @ module.weight).exp().sum()), field(), None)
    assert [name for name in operations(program) if "sym" not in name and "assert" not in name] == ["aten.mul.Tensor"]
    (constant,) = program.exported.buffers()
    expected = (torch.tensor([[0.1, 0.3], [0.5, 0.7]], dtype=torch.float64).matrix_power(2)).exp().sum()
    torch.testing.assert_close(constant, expected)


def test_trunks_are_numbers() -> None:
    operator = DeepONet(1, 1, sensors=LINE, basis=3, layers=HiddenLayers(width=4, depth=1, activation="tanh"), seed=0).double()
    program = traced(operator, field(), Grid.uniform(20))
    assert operations(program).count("aten.tanh.default") == 1  # the branch's


def test_numbers_beside_tensors_keep_their_precision() -> None:
    program = traced(Function(lambda module, values: 0.1 * values + 1e-9), field(), None)
    assert {float(constant) for constant in program.exported.buffers()} == {0.1, 1e-9}


def test_transforms_are_real_for_any_number_of_modes() -> None:
    operator = FNO(1, 1, modes=(70,), width=2, depth=1, projection=2, seed=0).double()
    inputs = Field(normal(2, 1, 140), Grid.uniform(140))
    program = traced(operator, inputs, None)
    assert not [name for name in operations(program) if "fft" in name or "complex" in name]
    found = program.exported.module()(inputs.values)
    torch.testing.assert_close(found, operator(inputs.values).detach(), rtol=0.0, atol=1e-13)


def test_inputs_of_any_number_and_nothing_of_the_example() -> None:
    operator = FNO(1, 1, modes=(2,), width=2, depth=1, projection=2, seed=0).train()
    for count in (1, 4):
        program = traced(operator, field(count), None)
        for number in (1, 2, 7):
            values = normal(number, 1, 8).float()
            torch.testing.assert_close(program.exported.module()(values), operator(values).detach(), rtol=0.0, atol=1e-6)
    assert operator.training
    assert all(parameter.requires_grad for parameter in operator.parameters())
    assert not bool(program.exported.example_inputs[0][0].any())
    assert not [node for node in program.exported.graph.nodes if "stack_trace" in node.meta]


def doubled_where(condition: Callable[[Tensor], object]) -> Function:
    """A module that asks something of the number of functions."""
    return Function(lambda module, values: 2.0 * values if condition(values) else values)


def test_conditions_that_hold_for_every_number_are_taken_out() -> None:
    """PyTorch 2.13 does not see that n // 2 is at most n; 2.11 asks of an FNO's strides whether 2 n is at most 140 n."""
    always = doubled_where(lambda values: torch.sym_max(values.shape[0], values.shape[0] // 2) == values.shape[0])
    program = traced(always, field(), None)
    assert not [name for name in operations(program) if "assert" in name]
    for number in (1, 2, 9, 200):
        values = normal(number, 1, 8)
        torch.testing.assert_close(program.exported.module()(values), 2.0 * values)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "condition",
    [
        lambda values: values.shape[0] % 3 == 0,
        lambda values: values.shape[0] % 9 != 0,
        lambda values: values.shape[0] != 50,
        lambda values: values.shape[0] < 50,
        lambda values: len(values) == 3,
    ],
)
def test_conditions_that_hold_for_some_numbers_are_refused(condition: Callable[[Tensor], object]) -> None:
    with pytest.raises(UnsupportedError, match="with a batch of any size"):
        traced(doubled_where(condition), field(), None)


def test_the_description_says_what_goes_in_and_comes_out() -> None:
    points = Grid.scattered([[0.25], [0.5]], [0.5, 0.5])
    case = cases.operator_case("fno-outputs")
    predictor = cases.fitted("last-layer", "fno-outputs")
    written = json.loads(traced(predictor, case.inputs, points).metadata)
    (values,) = written["inputs"]
    assert (values["name"], values["shape"], values["dtype"]) == ("values", ["n", 2, 12], "float64")
    uniform = {"shape": [12], "origin": [0.0], "lengths": [1.0], "periodic": [True], "endpoint": [False]}
    assert values["grid"] == uniform
    assert [(one["name"], one["shape"]) for one in written["outputs"]] == [
        ("mean", ["n", 2, 2]),
        ("standard_deviation", ["n", 2, 2]),
    ]
    assert written["outputs"][0]["grid"] == {"points": [[0.25], [0.5]]}
    assert written["noise"] == predictor.noise.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operators_and_scattered_queries(case: Case) -> None:
    operator = case.operator().eval()
    inputs = Field(case.values(count=5), case.grid)
    corner = torch.tensor([axis.origin for axis in case.grid.axes])
    points = corner + torch.tensor(case.grid.lengths) * normal(6, case.grid.dimension).sigmoid()
    for query in (None, Grid.scattered(points, torch.ones(6))):
        program = traced(operator, inputs, query)
        for count in (1, 2, 5):
            expected = operator(inputs.values[:count], grid=case.grid, query=query).detach()
            found = program.exported.module()(inputs.values[:count])
            torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-13 * float(expected.abs().max()))


def _counting(module: nn.Module, values: Tensor) -> Tensor:
    module.count.add_(1.0)
    return values * module.count


BROKEN: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], str]] = {
    "batch": (lambda module, values: values.reshape(len(values), 1, 8), "values.shape\\[0\\] is a size"),
    "values": (lambda module, values: values if values.sum() > 0 else -values, "may not depend on values"),
    "random": (lambda module, values: values + torch.randn_like(values), "draws no random numbers"),
    "state": (_counting, "changes no buffer in evaluation mode"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_modules_without_a_program(name: str) -> None:
    function, message = BROKEN[name]
    with pytest.raises(UnsupportedError, match=message):
        traced(Function(function), field(), None)


def test_a_wrong_program_is_found() -> None:
    program = traced(nn.Conv1d(1, 1, 1), field(), None)
    with pytest.raises(
        UnsupportedError, match=r"PyTorch's output to 3e-04 of its largest value; got a difference of .* 1 func"
    ):
        program.check(lambda values: [1.01 * program.expected[0][: len(values)]])


@pytest.mark.bad_input
def test_other_things() -> None:
    predictor = cases.fitted("last-layer", "fno-1d")
    inputs = cases.operator_case("fno-1d").inputs
    for thing in (predictor.draw(0), LINE, None):
        with pytest.raises(UnsupportedError, match="expected an nn.Module, or a predictor"):
            traced(thing, inputs, None)  # type: ignore[arg-type]


@pytest.mark.bad_input
def test_bad_examples() -> None:
    operator = nn.Conv1d(1, 1, 1)
    with pytest.raises(DataError, match="1 or more functions as example"):
        traced(operator, field()[:0], None)
    with pytest.raises(DataError, match="example"):
        traced(operator, field().values, None)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="finite"):
        traced(operator, Field(torch.full((1, 1, 8), torch.nan), LINE), None)
    with pytest.raises(GridError, match="query"):
        traced(operator, field(), 3)  # type: ignore[arg-type]
    with pytest.raises(GridError, match="domain of the training inputs"):
        traced(cases.fitted("last-layer", "fno-1d"), Field(normal(1, 1, 8), Grid.uniform(8, lengths=3.0)), None)


def test_nothing_is_said() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced(nn.Conv1d(1, 1, 1), field(), None)
