"""Products with curvature matrices and Jacobians as pure functions of tensors: no data loop, no state, no graph breaks.

`function` maps a flat real parameter vector to outputs, as `CurvatureProblem.outputs` does on a minibatch. All products can be
transformed by torch.func, differentiated in the parameters, the vectors and in whatever tensors `function` closes over (the
inputs' values, for one), and compiled with `torch.compile(fullgraph=True)`. For many functions use the streaming versions in
`probneural.curvature.products.functions`.

Vectors are `(P,)`, or a block `(s, P)` pushed through at once, `chunk` at a time: memory grows with the chunk.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, vjp, vmap

from probneural.contexts import jvp

Function = Callable[[Tensor], Tensor]


def hessian_product(
    loss: Function, parameters: Float[Tensor, " P"], vectors: Float[Tensor, "*s P"], *, chunk: int | None = None
) -> Float[Tensor, "*s P"]:
    """H v with H the Hessian of a loss, by forward over reverse mode.

    Args:
        loss: From `(P,)` to a scalar.
        parameters: Point of evaluation, `(P,)`.
        vectors: v, `(P,)` or `(s, P)`.
        chunk: Number of vectors per pass; all by default.

    Returns:
        H v, of the vectors' shape.

    Examples:
        >>> hessian_product(lambda x: x.pow(3).sum(), torch.tensor([1.0, 2.0]), torch.tensor([1.0, 10.0]))
        tensor([  6., 120.])
    """
    return jacobian_product(grad(loss), parameters, vectors, chunk=chunk)


def gauss_newton_product(
    function: Function,
    parameters: Float[Tensor, " P"],
    vectors: Float[Tensor, "*s P"],
    weights: Float[Tensor, "..."] | float,
    *,
    chunk: int | None = None,
) -> Float[Tensor, "*s P"]:
    """J^T diag(w) J v, by forward and then reverse mode; one forward pass serves the reverse mode of all vectors.

    Args:
        function: From `(P,)` to outputs.
        parameters: Point of evaluation, `(P,)`.
        vectors: v, `(P,)` or `(s, P)`.
        weights: w, of a shape that broadcasts over the outputs: the Hessian of the loss in them, if it is diagonal.
        chunk: Number of vectors per pass; all by default.

    Returns:
        G v, of the vectors' shape.

    Examples:
        >>> gauss_newton_product(lambda x: x.pow(2), torch.tensor([1.0, 2.0]), torch.ones(2), torch.tensor([1.0, 10.0]))
        tensor([  4., 160.])
    """
    _, pull = vjp(function, parameters)[:2]

    def product(vector: Tensor) -> Tensor:
        change: Tensor = jvp(function, (parameters,), (vector,))[1]
        (pulled,) = pull(change * weights)
        return pulled

    return _over_block(product, vectors, 1, chunk)


def fisher_product(
    losses: Function, parameters: Float[Tensor, " P"], vectors: Float[Tensor, "*s P"], *, chunk: int | None = None
) -> Float[Tensor, "*s P"]:
    """F v with F = sum over i of g_i g_i^T the empirical Fisher matrix, g_i the gradient of function i's loss.

    No gradient of a single function is formed: F = L^T L with L the Jacobian of the losses.

    Args:
        losses: From `(P,)` to `(n,)`, one loss per function.
        parameters: Point of evaluation, `(P,)`.
        vectors: v, `(P,)` or `(s, P)`.
        chunk: Number of vectors per pass; all by default.

    Returns:
        F v, of the vectors' shape.
    """
    return gauss_newton_product(losses, parameters, vectors, 1.0, chunk=chunk)


def jacobian_product(
    function: Function, parameters: Float[Tensor, " P"], vectors: Float[Tensor, "*s P"], *, chunk: int | None = None
) -> Float[Tensor, "..."]:
    """J v, by forward mode.

    Args:
        function: From `(P,)` to outputs, `(n, c, p)` for instance.
        parameters: Point of evaluation, `(P,)`.
        vectors: v, `(P,)` or `(s, P)`.
        chunk: Number of vectors per pass; all by default.

    Returns:
        J v, `(n, c, p)` or `(s, n, c, p)`, in output units.
    """

    def product(vector: Tensor) -> Tensor:
        derivative: Tensor = jvp(function, (parameters,), (vector,))[1]
        return derivative

    return _over_block(product, vectors, 1, chunk)


def transposed_jacobian_product(
    function: Function, parameters: Float[Tensor, " P"], cotangents: Float[Tensor, "..."], *, chunk: int | None = None
) -> Float[Tensor, "*s P"]:
    """J^T u, by reverse mode with one forward pass for all cotangents.

    Args:
        function: From `(P,)` to outputs, `(n, c, p)` for instance.
        parameters: Point of evaluation, `(P,)`.
        cotangents: u, of the outputs' shape or a block of such.
        chunk: Number of cotangents per pass; all by default.

    Returns:
        J^T u, `(P,)` or `(s, P)`.
    """
    outputs, pull = vjp(function, parameters)[:2]

    return _over_block(lambda cotangent: pull(cotangent)[0], cotangents, outputs.ndim, chunk)


def pull_and_push(function: Function, parameters: Float[Tensor, " P"]) -> tuple[Function, Function]:
    """The maps u -> J^T u and v -> J v by reverse mode alone, which works inside forward-mode duals.

    J^T u is linear in u, so that its own transpose is J. The passes through `function` are run here, once for all vectors.
    """
    outputs, pull = vjp(function, parameters)[:2]
    _, transposed = vjp(lambda cotangent: pull(cotangent)[0], torch.zeros_like(outputs))[:2]
    return lambda cotangent: pull(cotangent)[0], lambda vector: transposed(vector)[0]


def _over_block(product: Function, block: Tensor, dimensions: int, chunk: int | None) -> Tensor:
    if block.ndim == dimensions:
        return product(block)
    mapped: Tensor = vmap(product, chunk_size=chunk)(block)
    return mapped
