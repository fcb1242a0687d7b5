"""Suggested operators: the class that can represent the map, with its options and its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import probneural as pn
from probneural.errors import DataError, UnsupportedError
from probneural.operators import suggest

LINE = pn.Grid.uniform(16)
WALLED = pn.Grid.uniform((8, 9), periodic=False)
POINTS = pn.Grid.scattered(torch.rand(20, 2, generator=torch.Generator().manual_seed(0)).tolist(), [0.05] * 20)


def random(count: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def pairs(grid: pn.Grid, out_grid: pn.Grid | None = None, *, count: int = 40) -> pn.FieldPairs:
    target = out_grid or grid
    return pn.FieldPairs(pn.Field(random(count, 2, *grid.shape), grid), pn.Field(random(count, 1, *target.shape), target))


def constant(grid: pn.Grid, out_grid: pn.Grid | None = None, *, axes: tuple[int, ...], count: int = 40) -> pn.FieldPairs:
    data = pairs(grid, out_grid, count=count)
    values = data.inputs.values.mean([2 + axis for axis in axes], keepdim=True).expand_as(data.inputs.values)
    return pn.FieldPairs(pn.Field(values, grid), data.outputs)


CASES: dict[str, tuple[Callable[[], pn.FieldPairs], str, dict[str, Any], str]] = {
    "periodic": (lambda: pairs(LINE), "FNO", {"modes": [8], "width": 32, "depth": 4}, "all axes are periodic"),
    "walls": (
        lambda: pairs(WALLED),
        "FNO",
        {"modes": [4, 5], "width": 16, "depth": 4, "embeds_position": True, "continuation": "alternating"},
        "the domain has boundaries",
    ),
    "one wall": (
        lambda: pairs(pn.Grid.uniform(16, periodic=False)),
        "FNO",
        {"modes": [8], "width": 32, "depth": 4, "embeds_position": True},
        "the domain has boundaries, where a position embedding lowered",
    ),
    "finer outputs": (lambda: pairs(LINE, pn.Grid.uniform(32)), "FNO", {"modes": [8], "width": 32, "depth": 4}, "periodic"),
    "parameters": (
        lambda: constant(LINE, axes=(0,)),
        "PODDeepONet",
        {"basis": 16},
        "are constant in space, so they",
    ),
    "parameters, walls": (lambda: constant(WALLED, axes=(0, 1)), "PODDeepONet", {"basis": 26}, "maps constants to constants"),
    "one input point": (
        lambda: pairs(pn.Grid.uniform(1), WALLED),
        "PODDeepONet",
        {"basis": 26},
        "parameters (2 per",
    ),
    "one output point": (lambda: pairs(LINE, pn.Grid.uniform(1)), "PODDeepONet", {"basis": 1}, "numbers at one point"),
    "one constant axis": (
        lambda: constant(pn.Grid.uniform((8, 8)), axes=(1,)),
        "FNO",
        {"modes": [4, 4], "width": 16, "depth": 4, "embeds_position": True},
        "constant along axis 1 and the outputs are not",
    ),
    "scattered": (lambda: pairs(POINTS), "DeepONet", {"basis": 64}, "the inputs and outputs are at scattered points"),
    "scattered outputs": (lambda: pairs(WALLED, POINTS), "DeepONet", {"basis": 64}, "the outputs are at scattered points"),
    "two domains": (lambda: pairs(LINE, WALLED), "DeepONet", {"basis": 64}, "live on different domains"),
    "four dimensions": (lambda: pairs(pn.Grid.uniform((3, 3, 3, 3))), "DeepONet", {"basis": 64}, "at most 3 dimensions"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_suggestion_follows_from_grids_and_rows_and_fits_them(name: str) -> None:
    make, kind, options, reason = CASES[name]
    data = make()
    suggestion = suggest(data)
    assert (suggestion.name, dict(suggestion.options)) == (kind, options)
    assert reason in suggestion.reason
    assert str(suggestion).startswith(f"{kind}(")
    operator = suggestion.build(seed=0)
    assert type(operator).__name__ == kind
    pn.fit(operator, data, epochs=1, show_progress=False)
    query = None if data.outputs.grid == data.inputs.grid else data.outputs.grid
    assert operator(data.inputs.values, grid=data.inputs.grid, query=query).shape == data.outputs.values.shape


def test_few_samples_need_no_trained_operator() -> None:
    data = pairs(LINE, count=29)
    suggestion = suggest(data)
    assert suggestion.is_head
    assert suggestion.name == "KernelOperator"
    assert "29 samples are few" in suggestion.reason
    with pytest.raises(UnsupportedError, match=r"fit it: pn.heads.KernelOperator\(\).fit\(None, data\)"):
        suggestion.build(seed=0)
    assert pn.heads.KernelOperator().fit(None, data)(data.inputs).mean.shape == data.outputs.values.shape
    assert not suggest(pairs(LINE, count=30)).is_head


def test_seed_and_dtype_are_those_asked_for() -> None:
    data = pairs(LINE)
    first, second = (suggest(data.to(torch.float64)).build(seed=3) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), second.parameters(), strict=True))
    assert next(first.parameters()).dtype == torch.float64


def test_the_suggested_operator_learns_a_map_from_parameters() -> None:
    numbers = random(60, 1, 1).abs() + 1.0
    x = LINE.points[:, 0].float()
    outputs = numbers * torch.sin(6.2831853 * x) + 0.2 * numbers**2 * torch.cos(12.5663706 * x)
    data = pn.FieldPairs(pn.Field(numbers.expand(60, 1, 16), LINE), pn.Field(outputs, LINE))
    operator = suggest(data[:50]).build(seed=0)
    pn.fit(operator, data[:50], epochs=60, learning_rate=1e-3, seed=0, show_progress=False)
    error = operator(data.inputs.values[50:]).detach() - outputs[50:]
    assert float((error.norm(dim=-1) / outputs[50:].norm(dim=-1)).mean()) < 0.05


def test_data_that_teach_nothing_are_refused() -> None:
    data = pairs(LINE)
    equal = pn.Field(data.inputs.values[:1].expand(40, -1, -1), LINE)
    with pytest.raises(DataError, match="expected inputs that differ between samples; got 40 equal ones"):
        suggest(pn.FieldPairs(equal, data.outputs))
    with pytest.raises(DataError, match="expected outputs that differ between samples; got 40 equal ones"):
        suggest(pn.FieldPairs(data.inputs, equal))
    with pytest.raises(DataError, match="expected 3 or more training pairs; got 2"):
        suggest(data[:2])
    late = data.inputs.values[:1].expand(40, -1, -1).clone()
    late[39] = 0.0  # outside of the rows that are looked at first
    assert suggest(pn.FieldPairs(pn.Field(late, LINE), data.outputs)).name == "FNO"
