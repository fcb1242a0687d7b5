"""The streaming autograd functions: dense agreement, and derivatives in every mode torch has."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

from probneural.curvature.problem import CurvatureProblem, Minibatches
from probneural.curvature.products import core as products
from probneural.curvature.products.functions import (
    fisher_vector_product,
    gauss_newton_vector_product,
    hessian_vector_product,
    jacobian_vector_product,
    vector_jacobian_product,
)
from probneural.errors import DataError, ShapeError
from tests.curvature.cases import EVERY, F64, ProductCase, Sizes, changed, close, in_single, product_case, tiny

FUNCTIONS = {
    "hessian": hessian_vector_product,
    "gauss-newton": gauss_newton_vector_product,
    "fisher": fisher_vector_product,
    "jacobian": jacobian_vector_product,
    "transposed-jacobian": vector_jacobian_product,
}
ALL = pytest.mark.parametrize("kind", FUNCTIONS)


def block(case: ProductCase, kind: str, count: int = 4) -> Tensor:
    return case.cotangents(count) if kind == "transposed-jacobian" else case.vectors(count)


def expected(case: ProductCase, kind: str, vectors: Tensor) -> Tensor:
    if kind == "jacobian":
        return torch.einsum("ncpk,sk->sncp", case.jacobian(), vectors)
    if kind == "transposed-jacobian":
        return torch.einsum("ncpk,sncp->sk", case.jacobian(), vectors)
    return vectors @ case.matrix(kind)


def applied(kind: str, problem: CurvatureProblem) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda parameters, vectors: FUNCTIONS[kind](problem, parameters, vectors)


@EVERY
@ALL
def test_equals_the_dense_matrix(case: ProductCase, kind: str) -> None:
    vectors = block(case, kind)
    right = expected(case, kind, vectors)
    result = applied(kind, case.problem)(case.parameters, vectors)
    close(result, right)
    assert not result.requires_grad
    close(applied(kind, case.problem)(case.parameters, vectors[1]), right[1])


@ALL
@pytest.mark.parametrize("batch", [1, pytest.param(3, marks=pytest.mark.slow), 5, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("chunk", [1, 64, None])
def test_neither_batch_nor_chunk_matters(kind: str, batch: int, chunk: int | None) -> None:
    case = product_case("conv")
    vectors = block(case, kind)
    result = applied(kind, changed(case, batch=batch, chunk=chunk))(case.parameters, vectors)
    close(result, expected(case, kind, vectors), 1e-12)


@ALL
def test_derivatives(kind: str) -> None:
    """First derivatives by reverse and forward mode, batched too, in vectors and parameters."""
    case = tiny()
    arguments = (case.parameters.requires_grad_(True), block(case, kind, 3).requires_grad_(True))
    assert gradcheck(
        applied(kind, case.problem),
        arguments,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        fast_mode=True,
    )


@pytest.mark.slow
@ALL
def test_second_derivatives(kind: str) -> None:
    case = tiny()
    arguments = (case.parameters.requires_grad_(True), block(case, kind, 3).requires_grad_(True))
    assert gradgradcheck(applied(kind, case.problem), arguments, check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("name", [pytest.param("fno-1d", marks=pytest.mark.slow), "complex"])
@ALL
def test_derivatives_of_operators(name: str, kind: str) -> None:
    """Complex parameters are pairs, and their derivatives too."""
    case = product_case(name)
    arguments = (case.parameters.requires_grad_(True), block(case, kind, 2).requires_grad_(True))
    assert gradcheck(applied(kind, case.problem), arguments, check_forward_ad=True, fast_mode=True)


@pytest.mark.slow
@ALL
def test_transforms_of_torch_func(kind: str) -> None:
    case = tiny()
    function, theta, vectors = applied(kind, case.problem), case.parameters, block(case, kind, 3)
    moved, turned = 0.1 * case.vectors(1, seed=3)[0], torch.randn(vectors.shape, dtype=vectors.dtype)

    def scalar(theta: Tensor, vectors: Tensor) -> Tensor:
        return function(theta, vectors).square().sum()

    leaves = (theta.clone().requires_grad_(True), vectors.clone().requires_grad_(True))
    for actual, right in zip(grad(scalar, (0, 1))(theta, vectors), torch.autograd.grad(scalar(*leaves), leaves), strict=True):
        close(actual, right, 1e-12)
    value, tangent = jvp(function, (theta, vectors), (moved, turned))
    close(value, function(theta, vectors), 1e-12)
    jacobians = jacrev(function, (0, 1))(theta, vectors)
    by_hand = torch.tensordot(jacobians[0], moved, 1) + torch.tensordot(jacobians[1], turned, turned.ndim)
    close(tangent, by_hand, 1e-12)
    with forward_ad.dual_level():
        dual = function(forward_ad.make_dual(theta, moved), forward_ad.make_dual(vectors, turned))
        close(forward_ad.unpack_dual(dual).tangent, tangent, 1e-12)
        dual = function(theta, forward_ad.make_dual(vectors, turned))
        close(forward_ad.unpack_dual(dual).tangent, function(theta, turned), 1e-12)
    _, curved = jvp(grad(scalar), (theta, vectors), (moved, turned))  # forward over reverse mode
    assert float(curved @ moved) == pytest.approx(
        float(jvp(lambda t, v: grad(scalar)(t, v) @ moved, (theta, vectors), (moved, turned))[1]), rel=1e-10
    )


@ALL
@pytest.mark.parametrize("dims", [(None, 0), (0, None), (0, 0), (None, 1)])
def test_vmap(kind: str, dims: tuple[int | None, int | None]) -> None:
    case = tiny()
    function = applied(kind, case.problem)
    thetas = torch.stack([case.parameters, 1.2 * case.parameters])
    blocks = torch.stack([block(case, kind, 3), -2.0 * block(case, kind, 3).flip(0)])
    arguments = (thetas[0] if dims[0] is None else thetas, blocks[0] if dims[1] is None else blocks.movedim(0, dims[1]))

    def scalar(theta: Tensor, vectors: Tensor) -> Tensor:
        return function(theta, vectors).pow(3).sum()

    def one(number: int) -> tuple[Tensor, Tensor]:
        return thetas[0 if dims[0] is None else number], blocks[0 if dims[1] is None else number]

    close(vmap(function, dims)(*arguments), torch.stack([function(*one(number)) for number in range(2)]), 1e-12)
    for place in (0, 1):
        right = torch.stack([grad(scalar, place)(*one(number)) for number in range(2)])
        close(vmap(grad(scalar, place), dims)(*arguments), right, 1e-12)


def test_sums_are_accumulated_in_double_precision() -> None:
    """Four hundred equal minibatches would lose digits in float32; here one rounding is left."""
    case = tiny()
    problem = in_single(case.problem)
    rows = torch.zeros(400, dtype=torch.long)
    one = replace(problem, inputs=problem.inputs[:1], targets=problem.targets[:1])
    many = replace(problem, inputs=problem.inputs[rows], targets=problem.targets[rows], batches=Minibatches(size=1))
    v = case.vectors(1).float()
    single = gauss_newton_vector_product(one, one.parameters, v)
    close(gauss_newton_vector_product(many, many.parameters, v).double(), 400 * single.double(), 1.2e-7)


@pytest.mark.slow
@ALL
def test_memory_does_not_grow_with_vectors(kind: str) -> None:
    """No field-shaped tensor holds more vectors than a chunk, in derivatives neither; arguments and results aside."""
    case = product_case("conv")
    widest = []
    for count in (6, 48):
        theta = case.parameters.requires_grad_(True)
        vectors = block(case, kind, count).requires_grad_(True)
        with Sizes() as sizes:
            result = applied(kind, case.problem)(theta, vectors)
            torch.autograd.grad(result, (theta, vectors), torch.ones_like(result))
        widest.append(max(number for number in sizes.seen if number not in (result.numel(), vectors.numel())))
    assert widest[0] == widest[1]


@pytest.mark.bad_input
@ALL
def test_refuses_other_shapes(kind: str) -> None:
    case = tiny()
    function, vectors = applied(kind, case.problem), block(case, kind, 2)
    for wrong in (case.parameters[:-1], case.parameters[None]):
        with pytest.raises(ShapeError, match=r"expected parameters of shape \(6,\)"):
            function(wrong, vectors)
    for wrong in (vectors[..., :-1], vectors[None], vectors[0, 0], vectors[:0]):
        with pytest.raises(ShapeError, match="(vectors|cotangents) of shape|1 or more (vectors|cotangents)"):
            function(case.parameters, wrong)


@pytest.mark.bad_input
@ALL
def test_refuses_other_kinds_and_dtypes(kind: str) -> None:
    case = tiny()
    theta, vectors = case.parameters, block(case, kind, 2)
    other = torch.float32 if theta.dtype == torch.float64 else torch.float64
    for first, second in ((theta.to(other), vectors), (theta, vectors.to(other))):
        with pytest.raises(DataError, match=f"of the problem's {theta.dtype}; got {other}"):
            applied(kind, case.problem)(first, second)


@pytest.mark.bad_input
@pytest.mark.parametrize("kind", ["hessian", "fisher"])
def test_needs_targets(kind: str) -> None:
    case = tiny()
    with pytest.raises(DataError, match="expected targets"):
        applied(kind, changed(case, targets=None))(case.parameters, case.vectors(1))


# The pure core against dense matrices; its transformations, its derivatives in the data, and its compilation


def core(case: ProductCase, kind: str) -> Callable[..., Tensor]:
    """One of the matrices' products by the core alone, without minibatches."""
    problem = case.problem
    return {
        "hessian": lambda theta, v, **s: products.hessian_product(problem.loss, theta, v, **s),
        "gauss-newton": lambda theta, v, **s: products.gauss_newton_product(
            problem.outputs, theta, v, problem.likelihood.weights, **s
        ),
        "fisher": lambda theta, v, **s: products.fisher_product(problem.losses, theta, v, **s),
    }[kind]


KINDS = pytest.mark.parametrize("kind", ["hessian", "gauss-newton", "fisher"])


@KINDS
def test_memory_follows_the_chunk(kind: str) -> None:
    case = product_case("conv")
    widest = []
    for count, chunk in ((2, None), (16, 2), (16, None)):
        vectors = case.vectors(count)
        with Sizes() as sizes:
            core(case, kind)(case.parameters, vectors, chunk=chunk)
        widest.append(max(sizes.seen))
    assert widest[0] == widest[1] < widest[2]


def quartic(theta: Tensor) -> Tensor:
    return torch.stack([theta.pow(2).sum(), theta.sin().prod(), theta[0] * theta[-1]])


# Marked so because the runtime checks, which that run leaves out, have graph breaks of their own.
@pytest.mark.bad_input
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.slow
def test_plain_functions_compile_without_graph_breaks(backend: str) -> None:
    theta, vectors = torch.linspace(0.2, 1.0, 4, dtype=F64), torch.eye(4, dtype=F64)[:3]

    def everything(theta: Tensor, vectors: Tensor) -> tuple[Tensor, ...]:
        pushed = products.jacobian_product(quartic, theta, vectors)
        return (
            products.hessian_product(lambda t: quartic(t).pow(2).sum(), theta, vectors),
            products.gauss_newton_product(quartic, theta, vectors, theta.new_ones(3)),
            products.fisher_product(quartic, theta, vectors),
            pushed,
            products.transposed_jacobian_product(quartic, theta, pushed),
        )

    torch.compiler.reset()
    compiled = torch.compile(everything, fullgraph=True, backend=backend)
    for actual, expected in zip(compiled(theta, vectors), everything(theta, vectors), strict=True):
        close(actual, expected, 1e-12)
    dense = hessian(lambda t: quartic(t).pow(2).sum())(theta)
    close(compiled(theta, vectors)[0], vectors @ dense, 1e-12)


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["fno-1d", "conv"])
@pytest.mark.slow
def test_operators_compile_without_graph_breaks(name: str) -> None:
    case = product_case(name)
    operator, layout = copy.deepcopy(case.problem.operator), case.problem.layout
    sizes = [shape.numel() for shape in layout.shapes]

    def product(theta: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
        def outputs(theta: Tensor) -> Tensor:
            pieces = zip(layout.names, theta.split(sizes), layout.shapes, strict=True)
            return functional_call(operator, {name: piece.reshape(shape) for name, piece, shape in pieces}, (values,))

        return products.gauss_newton_product(outputs, theta, vectors, 2.0)

    torch.compiler.reset()
    compiled = torch.compile(product, fullgraph=True, backend="aot_eager")
    arguments = (case.parameters, case.problem.inputs.values[:2], case.vectors(2))
    with torch.no_grad():
        close(compiled(*arguments), product(*arguments), 1e-12)
