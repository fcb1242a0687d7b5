"""Curvature products as autograd functions that stream over minibatches, differentiable to any order.

Each is a sum, over minibatches, of a pure map of tensors, and so is each of its derivatives: differentiating one streams again
instead of keeping graphs. Derivatives are reverse over reverse mode, the one combination that works under forward-mode duals,
batched gradients, vmap and torch.func alike. Sums are accumulated in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, vjp, vmap

from probneural.checks import check_instance, check_least, check_shape
from probneural.contexts import forward_mode, plain_operations
from probneural.curvature.problem import CurvatureProblem, QuadratureGaussian
from probneural.curvature.products.core import (
    gauss_newton_product,
    hessian_product,
    jacobian_product,
    pull_and_push,
    transposed_jacobian_product,
)
from probneural.errors import DataError, ShapeError

Term = Callable[..., tuple[Tensor, ...]]
"""From the rows of a minibatch and a chunk of the arguments to this minibatch's part of the results."""


class Kind(Enum):
    """Layout of an argument or result, which defines its splitting and concatenation."""

    SHARED = "the same for all vectors and functions: P numbers; results are summed"
    BLOCK = "one row per vector: (s, P); results are summed over functions"
    LOCAL = "one row per vector, one entry per function: (s, n, c, p); nothing is summed"


@dataclass(frozen=True, eq=False)
class Streamed:
    """A map of tensors that is a sum over minibatches, and a concatenation over chunks of vectors.

    Args:
        problem: The data.
        term: Contribution of one minibatch, for one chunk of vectors.
        arguments: Kinds of the arguments.
        results: Kinds of the results.
        transpose: For a map M(theta) v of two arguments, linear in v: the term of M(theta)^T u.
        forward_mode: The same as `term`, and cheaper, by forward mode; for use where no forward-mode duals are about.
    """

    problem: CurvatureProblem
    term: Term
    arguments: tuple[Kind, ...]
    results: tuple[Kind, ...]
    transpose: Term | None = None
    forward_mode: Term | None = None

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Stream over chunks of vectors and, for each, over minibatches."""
        shared: dict[int, Tensor] = {}
        pieces: list[list[Tensor]] = [[] for _ in self.results]
        dtype = tensors[0].dtype
        for chunk in self._chunks(tensors):
            sums: dict[int, Tensor] = {}
            local: list[list[Tensor]] = [[] for _ in self.results]
            for rows in self.problem.minibatches():
                cut = [self._cut(tensor, kind, chunk, rows) for tensor, kind in zip(tensors, self.arguments, strict=True)]
                for index, part in enumerate(self._minibatch(rows, cut)):
                    if self.results[index] is Kind.LOCAL:
                        local[index].append(part)
                    else:
                        _add(sums, index, part)
            for index, kind in enumerate(self.results):
                if kind is Kind.LOCAL:
                    pieces[index].append(torch.cat(local[index], dim=1))
                elif kind is Kind.BLOCK:
                    pieces[index].append(self.problem.batches.summed(sums[index]).to(dtype))
                else:
                    _add(shared, index, sums[index])
        return tuple(
            self.problem.batches.summed(shared[index]).to(dtype) if kind is Kind.SHARED else torch.cat(pieces[index])
            for index, kind in enumerate(self.results)
        )

    def _minibatch(self, rows: slice, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if self.forward_mode is None:
            return self.term(rows, *tensors)
        try:
            with forward_mode() as is_free:
                return self.forward_mode(rows, *tensors) if is_free else self.term(rows, *tensors)
        except NotImplementedError:  # some of PyTorch's operations have no forward mode
            with plain_operations():
                return self.term(rows, *tensors)

    def _chunks(self, tensors: tuple[Tensor, ...]) -> Iterator[slice]:
        count = next(len(tensor) for tensor, kind in zip(tensors, self.arguments, strict=True) if kind is not Kind.SHARED)
        for start in range(0, count, self.problem.width):
            yield slice(start, min(start + self.problem.width, count))

    def _cut(self, tensor: Tensor, kind: Kind, chunk: slice, rows: slice) -> Tensor:
        if kind is Kind.SHARED:
            return tensor
        return tensor[chunk] if kind is Kind.BLOCK else tensor[chunk, rows]

    def transposed(self) -> Streamed:
        """The map u -> M(theta)^T u."""
        assert self.transpose is not None
        return Streamed(self.problem, self.transpose, (Kind.SHARED, *self.results), self.arguments[1:], self.term)

    def pullback(self, indices: tuple[int, ...]) -> Streamed:
        """The map from arguments and cotangents of the results to the gradients in the arguments of these indices."""

        def gradients(function: Callable[..., tuple[Tensor, ...]], at: list[Tensor], cotangents: Any) -> tuple[Tensor, ...]:
            pulled: tuple[Tensor, ...] = vjp(function, *at)[1](cotangents)
            return pulled

        return self._derivative(indices, gradients, self.results, tuple(self.arguments[index] for index in indices))

    def pushforward(self, indices: tuple[int, ...]) -> Streamed:
        """The map from arguments and tangents of those of these indices to the tangents of the results."""

        def tangents(function: Callable[..., tuple[Tensor, ...]], at: list[Tensor], directions: Any) -> tuple[Tensor, ...]:
            outputs, pull = vjp(function, *at)[:2]
            zeros = tuple(torch.zeros_like(output) for output in outputs)
            (pushed,) = vjp(pull, zeros)[1](directions)
            return tuple(pushed)

        return self._derivative(indices, tangents, tuple(self.arguments[index] for index in indices), self.results)

    def _derivative(
        self, indices: tuple[int, ...], derivative: Term, extra: tuple[Kind, ...], results: tuple[Kind, ...]
    ) -> Streamed:
        """The map from arguments and extra ones to a derivative of the term in the arguments of these indices."""
        count, term = len(self.arguments), self.term

        def derived(rows: slice, *tensors: Tensor) -> tuple[Tensor, ...]:
            arguments = tensors[:count]

            def function(*chosen: Tensor) -> tuple[Tensor, ...]:
                replaced = dict(enumerate(arguments)) | dict(zip(indices, chosen, strict=True))
                return term(rows, *replaced.values())

            return derivative(function, [arguments[index] for index in indices], tensors[count:])

        return Streamed(self.problem, derived, self.arguments + extra, results)


def _add(totals: dict[int, Tensor], index: int, part: Tensor) -> None:
    """Add to a total in float64."""
    wide = part.to(torch.float64)
    totals[index] = totals[index] + wide if index in totals else wide


class StreamedFunction(torch.autograd.Function):
    """Any `Streamed` map with its derivatives, which are `Streamed` maps again."""

    @staticmethod
    def forward(streamed: Streamed, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run it."""
        return streamed(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the arguments, and nothing computed from them."""
        streamed, *tensors = inputs
        ctx.streamed = streamed
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """In v one more product; in the parameters the gradient of <u, M(theta) v>, streamed."""
        streamed: Streamed = ctx.streamed
        tensors = ctx.saved_tensors
        gradients: list[Tensor | None] = [None] * len(tensors)
        indices = [index for index in range(len(tensors)) if ctx.needs_input_grad[index + 1]]
        if streamed.transpose is not None and 1 in indices:
            (gradients[1],) = StreamedFunction.apply(streamed.transposed(), tensors[0], *cotangents)
            indices.remove(1)
        if indices:
            pulled = StreamedFunction.apply(streamed.pullback(tuple(indices)), *tensors, *cotangents)
            for index, gradient in zip(indices, pulled, strict=True):
                gradients[index] = gradient
        return (None, *gradients)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        """M v' + DM[theta'] v."""
        streamed: Streamed = ctx.streamed
        tensors = ctx.saved_tensors
        moving = [index for index, tangent in enumerate(tangents) if tangent is not None]
        change: Any = None
        if streamed.transpose is not None and 1 in moving:
            change = StreamedFunction.apply(streamed, tensors[0], tangents[1])
            moving.remove(1)
        if moving:
            pushed = StreamedFunction.apply(
                streamed.pushforward(tuple(moving)), *tensors, *(tangents[index] for index in moving)
            )
            change = pushed if change is None else tuple(map(torch.add, change, pushed))
        return change

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], streamed: Streamed, *tensors: Tensor) -> tuple[Any, Any]:
        """Fold batched vectors into the block; with batched parameters, or a sum over vectors, go one by one."""
        dims, is_shared = in_dims[1:], [kind is Kind.SHARED for kind in streamed.arguments]
        is_fixed = all(dim is None for dim, shared in zip(dims, is_shared, strict=True) if shared)
        results: tuple[Tensor, ...]
        if is_fixed and all(kind is not Kind.SHARED for kind in streamed.results):
            folded = [
                tensor if shared else _leading(tensor, dim, info.batch_size).flatten(0, 1)
                for tensor, dim, shared in zip(tensors, dims, is_shared, strict=True)
            ]
            results = tuple(r.unflatten(0, (info.batch_size, -1)) for r in StreamedFunction.apply(streamed, *folded))
        else:
            singles = [
                StreamedFunction.apply(
                    streamed, *(t if d is None else t.select(d, number) for t, d in zip(tensors, dims, strict=True))
                )
                for number in range(info.batch_size)
            ]
            results = tuple(torch.stack(column) for column in zip(*singles, strict=True))
        return results, (0,) * len(results)


def _leading(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def hessian_vector_product(
    problem: CurvatureProblem, parameters: Float[Tensor, " P"], vectors: Float[Tensor, "*s P"]
) -> Float[Tensor, "*s P"]:
    """H v, with H the Hessian of the loss.

    Like its four siblings it is differentiable in parameters and vectors, to any order and in either mode, and can be vmapped.
    It is not differentiable in the data: use the functions in `probneural.curvature.products.core` for that.

    Args:
        problem: The data and the likelihood.
        parameters: Point of evaluation, `(P,)`.
        vectors: A vector `(P,)` or a block `(s, P)`.

    Returns:
        H v, in nats per unit of each parameter.

    Raises:
        ShapeError: If parameters or vectors do not have these shapes.
        DataError: If the problem is invalid or has no targets, or dtypes differ.
    """
    return _symmetric_product(_checked(problem, needs_targets=True), _hessian_terms(problem), parameters, vectors)


def gauss_newton_vector_product(
    problem: CurvatureProblem, parameters: Float[Tensor, " P"], vectors: Float[Tensor, "*s P"]
) -> Float[Tensor, "*s P"]:
    """J^T diag(w) J v, summed over samples, with w the likelihood's weights.

    Args:
        problem: The data and the likelihood.
        parameters: Point of evaluation, `(P,)`.
        vectors: A vector `(P,)` or a block `(s, P)`.

    Returns:
        G v, in nats per unit of each parameter.

    Raises:
        ShapeError: If parameters or vectors do not have these shapes.
        DataError: If the problem is invalid, or dtypes differ.
    """
    terms = _gauss_newton_terms(_checked(problem).outputs, problem.likelihood)
    return _symmetric_product(problem, terms, parameters, vectors)


def fisher_vector_product(
    problem: CurvatureProblem, parameters: Float[Tensor, " P"], vectors: Float[Tensor, "*s P"]
) -> Float[Tensor, "*s P"]:
    """Sum over samples of g_i (g_i . v), with g_i the gradient of sample i's loss: the empirical Fisher matrix.

    Args:
        problem: The data and the likelihood.
        parameters: Point of evaluation, `(P,)`.
        vectors: A vector `(P,)` or a block `(s, P)`.

    Returns:
        F v, in nats squared per unit of each parameter.

    Raises:
        ShapeError: If parameters or vectors do not have these shapes.
        DataError: If the problem is invalid or has no targets, or dtypes differ.
    """
    terms = _gauss_newton_terms(_checked(problem, needs_targets=True).losses, None)
    return _symmetric_product(problem, terms, parameters, vectors)


def jacobian_vector_product(
    problem: CurvatureProblem, parameters: Float[Tensor, " P"], vectors: Float[Tensor, "*s P"]
) -> Float[Tensor, "*s n c p"]:
    """J v, with J the Jacobian of this rank's outputs in the parameters.

    Args:
        problem: The data and the likelihood.
        parameters: Point of evaluation, `(P,)`.
        vectors: A vector `(P,)` or a block `(s, P)`.

    Returns:
        J v, in output units.

    Raises:
        ShapeError: If parameters or vectors do not have these shapes.
        DataError: If the problem is invalid, or dtypes differ.
    """
    product, forward_mode, transposed = _jacobian_terms(_checked(problem))
    streamed = Streamed(problem, product, (Kind.SHARED, Kind.BLOCK), (Kind.LOCAL,), transposed, forward_mode)
    return _applied(streamed, parameters, vectors, (problem.size,))


def vector_jacobian_product(
    problem: CurvatureProblem, parameters: Float[Tensor, " P"], cotangents: Float[Tensor, "*s n c p"]
) -> Float[Tensor, "*s P"]:
    """J^T u, summed over samples.

    Args:
        problem: The data and the likelihood.
        parameters: Point of evaluation, `(P,)`.
        cotangents: u, one or a block, in inverse output units.

    Returns:
        J^T u, per unit of each parameter.

    Raises:
        ShapeError: If parameters or cotangents do not have these shapes.
        DataError: If the problem is invalid, or dtypes differ.
    """
    product, _, transposed = _jacobian_terms(_checked(problem))
    streamed = Streamed(problem, transposed, (Kind.SHARED, Kind.LOCAL), (Kind.BLOCK,), product)
    expected = (len(problem.inputs), *problem.likelihood.weights.shape[-2:])
    return _applied(streamed, parameters, cotangents, expected, name="cotangents")


def _applied(
    streamed: Streamed, parameters: Tensor, vectors: Tensor, expected: tuple[int, ...], *, name: str = "vectors"
) -> Tensor:
    """Apply to one vector or a block of them."""
    for argument, tensor in (("parameters", parameters), (name, vectors)):
        check_instance(tensor, Tensor, argument, remedy="see problem.parameters")
        if tensor.dtype != streamed.problem.inputs.dtype:
            raise DataError(
                expected=f"{argument} of the problem's {streamed.problem.inputs.dtype}",
                got=str(tensor.dtype),
                remedy="convert them, or make the problem of data and an operator of that dtype",
            )
    check_shape(parameters, "parameters", streamed.problem.size, remedy="see problem.parameters")
    is_single, remedy = vectors.ndim <= len(expected), "give one vector, or a block of one vector or more"
    check_shape(vectors, name, *([] if is_single else ["s"]), *expected, remedy=remedy)
    check_least(len(vectors), 1, name, remedy=remedy, error=ShapeError)
    (result,) = StreamedFunction.apply(streamed, parameters, vectors[None] if is_single else vectors)
    product: Tensor = result[0] if is_single else result
    return product


def _checked(problem: object, *, needs_targets: bool = False) -> CurvatureProblem:
    checked = check_instance(
        problem,
        CurvatureProblem,
        "problem",
        remedy="make a CurvatureProblem; for a function of tensors, see curvature.products.core",
    )
    if needs_targets:
        checked.check_targets()
    return checked


def _symmetric_product(problem: CurvatureProblem, terms: Sequence[Term], parameters: Tensor, vectors: Tensor) -> Tensor:
    """The product with a symmetric matrix, from its term and the same by forward mode."""
    term, forward_mode = terms
    streamed = Streamed(problem, term, (Kind.SHARED, Kind.BLOCK), (Kind.BLOCK,), term, forward_mode)
    return _applied(streamed, parameters, vectors, (problem.size,))


def _terms(function: Callable[[Tensor, slice], Tensor], *products: Callable[..., Tensor]) -> list[Term]:
    """The terms product(theta -> function(theta, rows), parameters, block) of a minibatch."""

    def term(product: Callable[..., Tensor]) -> Term:
        return lambda rows, parameters, block: (product(lambda theta: function(theta, rows), parameters, block),)

    return [term(product) for product in products]


def _hessian_terms(problem: CurvatureProblem) -> list[Term]:
    def product(loss: Callable[[Tensor], Tensor], parameters: Tensor, vectors: Tensor) -> Tensor:
        pull = vjp(grad(loss), parameters)[1]  # the Hessian is its own transpose
        columns: Tensor = vmap(lambda vector: pull(vector)[0])(vectors)
        return columns

    return _terms(problem.loss, product, hessian_product)


def _gauss_newton_terms(function: Callable[[Tensor, slice], Tensor], likelihood: QuadratureGaussian | None) -> list[Term]:
    def scale(parameters: Tensor, rows: slice) -> Tensor | float:  # a tensor made under a transform must not be captured
        return 1.0 if likelihood is None else likelihood.select(rows).weights.to(parameters)

    def term(rows: slice, parameters: Tensor, vectors: Tensor) -> tuple[Tensor, ...]:
        pull, push = pull_and_push(lambda theta: function(theta, rows), parameters)
        return (vmap(lambda vector: pull(scale(parameters, rows) * push(vector)))(vectors),)

    def forward_mode(rows: slice, parameters: Tensor, vectors: Tensor) -> tuple[Tensor, ...]:
        return (gauss_newton_product(lambda theta: function(theta, rows), parameters, vectors, scale(parameters, rows)),)

    return [term, forward_mode]


def _jacobian_terms(problem: CurvatureProblem) -> list[Term]:
    def product(outputs: Callable[[Tensor], Tensor], parameters: Tensor, vectors: Tensor) -> Tensor:
        columns: Tensor = vmap(pull_and_push(outputs, parameters)[1])(vectors)
        return columns

    return _terms(problem.outputs, product, jacobian_product, transposed_jacobian_product)
