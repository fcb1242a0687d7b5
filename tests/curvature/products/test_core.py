"""The pure core against dense matrices; its transformations, its derivatives in the data, and its compilation."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacrev, vmap

from probneural.curvature.products import core as products
from tests.curvature.cases import EVERY, F64, ProductCase, Sizes, close, product_case


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


@EVERY
@KINDS
def test_equals_the_dense_matrix(case: ProductCase, kind: str) -> None:
    vectors = case.vectors(4)
    expected = vectors @ case.matrix(kind)
    product = core(case, kind)
    close(product(case.parameters, vectors), expected)
    close(product(case.parameters, vectors, chunk=3), expected)
    close(product(case.parameters, vectors[0]), expected[0])


@EVERY
def test_jacobian_products_equal_the_dense_matrix(case: ProductCase) -> None:
    vectors, cotangents, dense = case.vectors(4), case.cotangents(4), case.jacobian()
    function = case.problem.outputs
    pushed = products.jacobian_product(function, case.parameters, vectors, chunk=3)
    pulled = products.transposed_jacobian_product(function, case.parameters, cotangents, chunk=3)
    close(pushed, torch.einsum("ncpk,sk->sncp", dense, vectors))
    close(pulled, torch.einsum("ncpk,sncp->sk", dense, cotangents))
    close(products.jacobian_product(function, case.parameters, vectors[1]), pushed[1])
    close(products.transposed_jacobian_product(function, case.parameters, cotangents[1]), pulled[1])
    pull, push = products.pull_and_push(function, case.parameters)
    close(push(vectors[2]), pushed[2])
    close(pull(cotangents[2]), pulled[2])


@pytest.mark.parametrize("name", ["fno-1d", "complex"])
def test_pushing_and_pulling_are_adjoint(name: str) -> None:
    case = product_case(name)
    v, u = case.vectors(1)[0], case.cotangents(1)[0]
    pushed = products.jacobian_product(case.problem.outputs, case.parameters, v)
    pulled = products.transposed_jacobian_product(case.problem.outputs, case.parameters, u)
    assert float((pushed * u).sum()) == pytest.approx(float(pulled @ v), rel=1e-12)


def test_differentiable_in_the_inputs() -> None:
    """What a lazy root needs: derivatives of J v and J^T u in the input functions."""
    case = product_case("fno-1d")
    problem, theta = case.problem, case.parameters
    values, v, u = problem.inputs.values[:2], case.vectors(1)[0], case.cotangents(1)[0, :2]

    def pushed(inputs: Tensor) -> Tensor:
        return products.jacobian_product(lambda t: problem.outputs_for(t, inputs), theta, v)

    def pulled(inputs: Tensor) -> Tensor:
        return products.transposed_jacobian_product(lambda t: problem.outputs_for(t, inputs), theta, u)

    wanted = values.clone().requires_grad_(True)
    assert torch.autograd.gradcheck(pushed, (wanted,), fast_mode=True)
    assert torch.autograd.gradcheck(pulled, (wanted,), fast_mode=True)
    dense = jacrev(lambda inputs: (jacrev(lambda t: problem.outputs_for(t, inputs))(theta) @ v * u).sum())(values)
    close(grad(lambda inputs: (pushed(inputs) * u).sum())(values), dense)
    close(grad(lambda inputs: pulled(inputs) @ v)(values), dense)


@KINDS
def test_transformations(kind: str) -> None:
    case = product_case("conv")
    product, theta, vectors = core(case, kind), case.parameters, case.vectors(2)
    several = torch.stack([theta, 1.1 * theta])
    close(vmap(product)(several, vectors), torch.stack([product(t, v) for t, v in zip(several, vectors, strict=True)]))
    scalar = grad(lambda t: product(t, vectors[0]) @ vectors[1])(theta)
    step = 1e-5 * case.vectors(1, seed=5)[0]
    change = (product(theta + step, vectors[0]) - product(theta - step, vectors[0])) @ vectors[1] / 2
    assert float(scalar @ step) == pytest.approx(float(change), rel=1e-5)


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
