"""Rewritten graphs: the same values with fewer operations."""

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


@pytest.mark.parametrize("size", [3, 7, 8])
@pytest.mark.parametrize("norm", ["forward", "backward", "ortho"])
def test_half_spectra_are_not_padded(size: int, norm: str) -> None:
    """The derivative of rfft in one dimension, and in two, needs no complex transform of the last axis."""
    program = traced(lambda values: torch.fft.rfft(values.tanh(), norm=norm), torch.randn(3, size, dtype=F64))
    assert any("_fft_c2r" in target for target in targets(program))
    assert not any("_fft_c2c" in target for target in targets(program))
    program = traced(lambda values: torch.fft.rfft2(values.tanh(), norm=norm), torch.randn(2, 5, size, dtype=F64))
    assert not any("_fft_c2c" in target for target in targets(program))


@pytest.mark.parametrize("axis", [0, 1])
def test_other_axes(axis: int) -> None:
    program = traced(lambda values: torch.fft.rfft(values.tanh(), dim=axis), torch.randn(6, 5, 2, dtype=F64))
    assert not any("_fft_c2c" in target for target in targets(program))


@pytest.mark.parametrize(("size", "modes"), [(7, 2), (7, 4), (8, 2), (8, 4), (8, 5)])
def test_scaled_slices_are_products(size: int, modes: int) -> None:
    """The derivative of irfft doubles all but the ends, and the coefficients it was not given are dropped first."""
    where = torch.randn(3, modes, dtype=F64)
    program = traced(lambda values: torch.fft.irfft(torch.complex(values.tanh(), values), n=size), where)
    assert not any("slice_scatter" in target for target in targets(program))


def test_what_only_looks_like_it_stays() -> None:
    """Imaginary parts, forward transforms, spectra longer or shorter than half, or further along."""
    spectra = torch.randn(3, 6, dtype=torch.complex128)

    def padded(part: Tensor, start: int = 0) -> Tensor:
        whole = part.new_zeros(3, 8)
        whole[:, start : start + part.shape[1]] = part
        return whole

    for function in (
        lambda half: torch.fft.ifft(padded(half[:, :5])).real,
        lambda half: torch.fft.ifft(padded(half[:, :5])).imag,
        lambda half: torch.fft.fft(padded(half[:, :5])).real,
        lambda half: torch.fft.ifft(padded(half[:, :4])).real,
        lambda half: torch.fft.ifft(padded(half)).real,
        lambda half: torch.fft.ifft(padded(half[:, :5], 1)).real,
        lambda half: torch.fft.ifft(padded(half[:, :4], 1)).real,
    ):
        program = LinearProgram.trace(function, (), spectra)
        close(program(spectra, program.prepare()), function(spectra), 1e-12)
    where = torch.randn(3, 8, dtype=F64)
    for size in (1, 2):  # torch pads nothing there
        traced(lambda values: torch.fft.rfft(values.tanh()), where[:, :size].clone())


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
