"""Jacobians of operators with respect to their parameters, and the Gauss-Newton matrices built from them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.func import jacrev, vmap

from probneural.checks import check_counts, validated
from probneural.contexts import copy_for_call, jvp
from probneural.curvature.parameters import ParameterVector
from probneural.errors import ShapeError
from probneural.fields import Field, evaluate
from probneural.grids import Grid


def evaluate_at(
    operator: nn.Module, layout: ParameterVector, *, vector: Float[Tensor, " P"], inputs: Field, query: Grid | None = None
) -> Float[Tensor, "n c *grid"]:
    """Evaluate an operator with its chosen parameters replaced: the pure function that derivatives are taken of."""
    return evaluate(copy_for_call(operator, layout.unflatten(vector)), inputs, query)


@validated
def jacobian(
    operator: nn.Module,
    layout: ParameterVector,
    *,
    inputs: Field,
    query: Grid | None = None,
    chunk: int = 64,
) -> Float[Tensor, "n c p P"]:
    """Form the Jacobian of the output values in the parameters, differentiable in the inputs.

    Takes forward mode where there are at most two parameters to a point, else reverse mode; `chunk` passes run at once.

    Args:
        operator: Any module from fields to fields.
        layout: Which parameters.
        inputs: n input functions.
        query: Where to evaluate; the inputs' grid by default.
        chunk: How many tangents or cotangents to push at once.

    Returns:
        `(n, c, p, P)`, in output units per unit of each parameter.
    """
    check_counts(chunk=chunk)
    vector = layout.flatten(dict(operator.named_parameters()))
    pieces = []
    for index in range(len(inputs)):  # one function at a time: n of them in one pass would cost n^2
        single = inputs[index]

        def outputs(parameters: Tensor, single: Field = single) -> Tensor:
            return evaluate_at(operator, layout, vector=parameters, inputs=single, query=query)[0].flatten(1)

        where = single.grid if query is None else query
        forward = layout.size <= 2 * where.size
        pieces.append(_forward_jacobian(outputs, vector, chunk) if forward else jacrev(outputs, chunk_size=chunk)(vector))
    return torch.stack(pieces)


def _forward_jacobian(function: Callable[[Tensor], Tensor], vector: Tensor, chunk: int) -> Tensor:
    """What `torch.func.jacfwd` returns, some columns at a time; jacfwd itself takes them all at once."""

    def column(tangent: Tensor) -> Tensor:
        derivative: Tensor = jvp(function, (vector,), (tangent,))[1]
        return derivative

    unit = torch.eye(len(vector), dtype=vector.dtype, device=vector.device)
    columns: Tensor = vmap(column, out_dims=-1, chunk_size=chunk)(unit)
    return columns


@validated
def gauss_newton(jacobian: Float[Tensor, "n c p P"], *, grid: Grid, precision: Float[Tensor, " c"]) -> Float64[Tensor, "P P"]:
    """Sum over functions of the Gauss-Newton matrices of the quadrature likelihood, in float64.

    G = sum over i, c of precision_c / |D| * integral of J_ic^T J_ic: weighted by quadrature, so it does not grow with the
    number of grid points.

    Args:
        jacobian: `(n, c, p, P)`.
        grid: Where the p points lie.
        precision: One number per channel: effective observations over noise variance.

    Returns:
        `(P, P)`.

    Raises:
        ShapeError: If the points are not the grid's.

    Examples:
        >>> ones = torch.ones(2, 1, 4, 1)
        >>> gauss_newton(ones, grid=Grid.uniform((4,)), precision=torch.tensor([3.0])).round().item()
        6.0
    """
    if jacobian.shape[2] != grid.size:
        raise ShapeError(expected=f"{grid.size} points", got=str(jacobian.shape[2]), remedy="pass the Jacobian's own grid")
    mean_weights = grid.mean_weights.to(jacobian.device)
    weight = (precision.to(mean_weights)[:, None] * mean_weights).sqrt()
    rows = (jacobian.to(torch.float64) * weight[:, :, None]).flatten(0, 2)
    matrix = rows.mT @ rows
    return (matrix + matrix.mT) / 2  # some matrix products round the two halves differently
