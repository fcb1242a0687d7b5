"""Linear maps with precomputed constants.

At fixed parameters a curvature product is linear in the vector. Its graph of tensor operations is traced once per shape, split
into nodes that depend on the vector and nodes that do not. The latter are evaluated once per minibatch and cached. The
remaining operations per product contain no activation functions, derivatives of them or automatic differentiation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, fx
from torch._decomp import get_decompositions
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.dialect.common.cse_pass import CSEPass, get_CSE_banned_ops

from probneural.contexts import AUTOGRAD_STATE
from probneural.curvature.problem import CurvatureProblem
from probneural.curvature.products.core import fisher_product, gauss_newton_product, hessian_product

_MEMORY = 2**29
"""Maximum bytes of cached constants, 512 MiB. A 1-D operator of width 32 needs about 50 MB per minibatch of 32 samples."""

_DECOMPOSED = (
    "gelu_backward",
    "silu_backward",
    "tanh_backward",
    "sigmoid_backward",
    "elu_backward",
    "softplus_backward",
    "leaky_relu_backward",
    "hardtanh_backward",
    "mish_backward",
    "threshold_backward",
)
"""Operations that mix a tangent with a derivative; taken apart, the derivative depends on no vector."""


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """A map (fixed tensors, vector) -> result, split into precomputation and a second part that depends on the vector.

    Attributes:
        prepare: Map from the fixed tensors to the constants of the second part.
        apply: Map from a vector and the constants to the result.
    """

    prepare: fx.GraphModule
    apply: fx.GraphModule

    @classmethod
    def trace(cls, function: Callable[..., Tensor], fixed: tuple[Tensor, ...], vector: Tensor) -> LinearProgram:
        """Trace a pure function of tensors.

        It is traced on shapes only: data-dependent control flow raises an error of torch.
        """
        table: dict[Any, Callable[..., Any]] = get_decompositions([getattr(torch.ops.aten, name) for name in _DECOMPOSED])
        pure = functionalize(function, remove="mutations")
        tracer = make_fx(pure, decomposition_table=table, tracing_mode="fake", _allow_non_fake_inputs=True)
        with AUTOGRAD_STATE:
            traced = tracer(*fixed, vector)
        # Forward and reverse mode both run the forward pass: equal operations are run once.
        shared = CSEPass(get_CSE_banned_ops())(traced)
        assert shared is not None
        shared.graph_module.graph.eliminate_dead_code()
        return cls(*_split(shared.graph_module))

    def __call__(self, vector: Tensor, constants: tuple[Tensor, ...]) -> Tensor:
        """Run the second part."""
        result: Tensor = self.apply(vector, *constants)
        return result


def storage_bytes(tensors: tuple[Tensor, ...]) -> int:
    """Memory that tensors hold, shared storage counted once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _split(traced: fx.GraphModule) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split the graph into nodes that depend on the last placeholder and the others."""
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    moving = {placeholders[-1]}
    for node in traced.graph.nodes:
        if any(source in moving for source in node.all_input_nodes):
            moving.add(node)
    first, second = fx.Graph(), fx.Graph()
    in_first: dict[fx.Node, fx.Node] = {}
    in_second: dict[fx.Node, fx.Node] = {placeholders[-1]: second.placeholder("vector")}
    constants: list[fx.Node] = []
    for node in traced.graph.nodes:
        if node not in moving and node.op != "output":
            in_first[node] = first.node_copy(node, in_first.__getitem__)
    for node in traced.graph.nodes:
        if node in moving or node.op == "output":
            for source in node.all_input_nodes:
                if source not in moving and source not in in_second:
                    in_second[source] = second.placeholder(f"constant_{len(constants)}")
                    constants.append(in_first[source])
    for node in traced.graph.nodes:
        if node.op == "output" or (node in moving and node.op != "placeholder"):
            in_second[node] = second.node_copy(node, in_second.__getitem__)
    first.output(tuple(constants))
    first.eliminate_dead_code()
    return fx.GraphModule(traced, first), fx.GraphModule(traced, second)


Term = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""From parameters, inputs, targets and a block of vectors to a minibatch's part of the product."""


def hessian_term(problem: CurvatureProblem) -> Term:
    """A minibatch's Hessian product."""
    problem.check_targets()
    loss, outputs = problem.likelihood.loss, problem.outputs_for
    return lambda parameters, inputs, targets, vectors: hessian_product(
        lambda theta: loss(outputs(theta, inputs), targets), parameters, vectors
    )


def gauss_newton_term(problem: CurvatureProblem) -> Term:
    """A minibatch's Gauss-Newton product."""
    weights, outputs = problem.likelihood.weights, problem.outputs_for
    return lambda parameters, inputs, _, vectors: gauss_newton_product(
        lambda theta: outputs(theta, inputs), parameters, vectors, weights.to(parameters)
    )


def fisher_term(problem: CurvatureProblem) -> Term:
    """A minibatch's product with the empirical Fisher matrix."""
    problem.check_targets()
    losses, outputs = problem.likelihood.losses, problem.outputs_for
    return lambda parameters, inputs, targets, vectors: fisher_product(
        lambda theta: losses(outputs(theta, inputs), targets), parameters, vectors
    )


class Linearisation:
    """A symmetric curvature matrix at fixed parameters, made for many products.

    The first product traces the operator (about a second) and caches constants of each minibatch within a memory budget;
    minibatches beyond it are recomputed in every product. Operators with data-dependent control flow cannot be traced, nor
    data on one mesh per sample: all their products are recomputed, and `is_traced` is False.

    Not differentiable: use the autograd functions instead.

    Args:
        problem: The data.
        parameters: Point of evaluation, `(P,)`; copied.
        term: From a problem to the contribution of a minibatch to the product: `gauss_newton_term`, for example.
        memory: Maximum bytes of cached constants.
    """

    def __init__(
        self,
        problem: CurvatureProblem,
        parameters: Float[Tensor, " P"],
        *,
        term: Callable[[CurvatureProblem], Term],
        memory: int = _MEMORY,
    ) -> None:
        self.problem = problem
        self.parameters = parameters.detach().clone(memory_format=torch.contiguous_format)
        self.term = term
        self.memory = memory
        self.has_meshes = problem.where.has_points_per_sample or problem.inputs.grid.has_points_per_sample
        self.is_traced = not self.has_meshes
        self._programs: dict[tuple[int, int], LinearProgram] = {}
        self._constants: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        self._used = 0

    @property
    def remembered(self) -> int:
        """Bytes of constants held."""
        return sum(storage_bytes(constants) for constants in self._constants.values())

    @torch.no_grad()
    def product(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s P"]:
        """M v for a block of vectors, `problem.width` at a time, summed over minibatches (and processes) in float64."""
        if len(vectors) == 0:
            return vectors.clone()
        result = torch.empty_like(vectors)  # filled in place: pieces put together at the end would hold everything twice
        for start in range(0, len(vectors), self.problem.width):
            stop = start + self.problem.width
            result[start:stop] = self._chunk(vectors[start:stop].to(self.parameters))
        return result

    def _chunk(self, vectors: Tensor) -> Tensor:
        count, width = len(vectors), self.problem.width
        if count not in (1, width):  # two widths are traced, no more
            vectors = torch.cat([vectors, vectors.new_zeros(width - count, vectors.shape[1])])
        vectors = vectors.contiguous()  # the trace has fixed strides
        total = torch.zeros(vectors.shape, dtype=torch.float64, device=vectors.device)
        for rows in self.problem.minibatches():
            total += self._minibatch(rows, vectors)
        return self.problem.batches.summed(total[:count].contiguous())

    def _minibatch(self, rows: slice, vectors: Tensor) -> Tensor:
        key = (len(vectors), rows.start)
        constants = self._constants.get(key)
        if constants is None:
            fixed = self._fixed(rows)
            if self.is_traced and self._used < self.memory:
                self._remember(key, rows, fixed, vectors)
            constants = self._constants.get(key)
            if constants is None:
                problem = self.problem.select(rows) if self.has_meshes else self.problem
                return self.term(problem)(*fixed, vectors)
        return self._programs[len(vectors), rows.stop - rows.start](vectors, constants)

    def _fixed(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        inputs = self.problem.inputs[rows].values
        targets = inputs.new_zeros(()) if self.problem.targets is None else self.problem.targets[rows].values.flatten(2)
        return self.parameters, inputs, targets

    def _remember(self, key: tuple[int, int], rows: slice, fixed: tuple[Tensor, ...], vectors: Tensor) -> None:
        shape = (len(vectors), rows.stop - rows.start)
        if shape not in self._programs:
            try:
                self._programs[shape] = LinearProgram.trace(self.term(self.problem), fixed, vectors)
            except RuntimeError:  # its course depends on values; if the operator itself is at fault, the term says so next
                self.is_traced = False
                return
        constants = self._programs[shape].prepare(*fixed)
        used = storage_bytes(constants)
        if self._used + used <= self.memory:
            self._constants[key] = constants
            self._used += used
        else:
            self._used = self.memory  # the next would not fit either
