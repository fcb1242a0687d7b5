"""Parameters as one real vector."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from probneural.curvature import ParameterVector
from probneural.errors import ArgumentError, ShapeError
from tests.heads.cases import ComplexSpectral, operator_cases, to_dtype


class Mixed(nn.Module):
    """Real, complex, scalar, empty and tied parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.first_extra = nn.Parameter(torch.randn(()))
        self.spectrum = nn.Parameter(torch.randn(2, 3, dtype=torch.complex64))
        self.tied = self.first
        self.nested = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, bias=False))
        self.empty = nn.Parameter(torch.zeros(0))


def parameters(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters())


@pytest.mark.parametrize(
    "module", [Mixed(), to_dtype(ComplexSpectral(), torch.float32), *[case.operator for case in operator_cases()]]
)
def test_round_trip(module: nn.Module) -> None:
    layout = ParameterVector.of(module)
    vector = layout.flatten(parameters(module))
    assert vector.shape == (layout.size,)
    assert not vector.requires_grad
    assert not vector.is_complex()
    assert layout.size == sum(part.numel() * (2 if part.is_complex() else 1) for part in module.parameters())
    for name, tensor in layout.unflatten(vector).items():
        assert torch.equal(tensor, parameters(module)[name])
        assert tensor.dtype == parameters(module)[name].dtype
    assert torch.equal(layout.flatten(layout.unflatten(vector)), vector)


@given(seed=st.integers(0, 1000))
def test_vectors_and_tensors_correspond_one_to_one(seed: int) -> None:
    layout = ParameterVector.of(Mixed())
    vector = torch.randn(layout.size, generator=torch.Generator().manual_seed(seed))
    tensors = layout.unflatten(vector)
    assert torch.equal(layout.flatten(tensors), vector)
    pairs = {name: torch.view_as_real(part) if part.is_complex() else part for name, part in tensors.items()}
    assert torch.equal(layout.flatten(pairs), vector)  # real pairs say the same
    conjugates = {name: part.conj() for name, part in tensors.items()}
    assert torch.equal(layout.unflatten(layout.flatten(conjugates))["spectrum"], tensors["spectrum"].conj())


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (["first"], ("first.weight", "first.bias")),  # not first_extra
        (["first_extra"], ("first_extra",)),
        (["spectrum", "first.bias"], ("spectrum", "first.bias")),
        (["nested"], ("nested.0.weight", "nested.0.bias", "nested.1.weight")),
        (["nested.1", "nested"], ("nested.0.weight", "nested.0.bias", "nested.1.weight")),
    ],
)
def test_subsets_in_the_modules_order(chosen: list[str], names: tuple[str, ...]) -> None:
    module = Mixed()
    layout = ParameterVector.of(module, chosen)
    assert sorted(layout.names) == sorted(names)
    assert list(layout.names) == [name for name in parameters(module) if name in names]
    assert layout.size == sum(
        torch.view_as_real(part).numel() if part.is_complex() else part.numel()
        for name, part in parameters(module).items()
        if name in names
    )


@pytest.mark.bad_input
def test_errors() -> None:
    module = Mixed()
    for name in ("firs", "first.", "nested.2", ""):
        with pytest.raises(ArgumentError, match="parameters among"):
            ParameterVector.of(module, ["spectrum", name])
    with pytest.raises(ArgumentError, match="a module with parameters"):
        ParameterVector.of(nn.Tanh())
    with pytest.raises(ArgumentError, match="a module with parameters"):
        ParameterVector.of(module, [])
    layout = ParameterVector.of(module, ["spectrum"])
    with pytest.raises(ShapeError, match=r"spectrum of shape \(2, 3, 2\); got \(2, 3\)"):
        layout.flatten({"spectrum": torch.zeros(2, 3)})
    with pytest.raises(ArgumentError, match="a tensor for spectrum"):
        layout.flatten({"first": torch.zeros(2, 3)})
    for size in (11, 13):
        with pytest.raises(ShapeError, match=r"a vector of shape \(12,\)"):
            layout.unflatten(torch.zeros(size))
