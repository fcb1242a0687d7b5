"""Derivatives of an operator's outputs at query points, by autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.checks import check_instance, check_integer
from probneural.contexts import plain_operations, undisturbed
from probneural.errors import ArgumentError, GridError, UnsupportedError
from probneural.fields import Field, check_field, evaluate
from probneural.grids import Grid, check_grid
from probneural.operators import Operator, PointFNO


@undisturbed()
def derivatives_at(operator: Operator, inputs: Field, *, query: Grid, order: int = 1) -> Field:
    """The gradient or the Laplacian of an operator's outputs at query points, differentiable in weights and inputs.

    For operators whose output at a point depends on that point alone: `PointFNO`, `AttentionOperator`, `DeepONet`, and
    `ByConstruction` of them on uniform domains. One sum over points then has the derivatives at all points: for d coordinates,
    1 + d backward passes suffice, and 1 + 3 d of order 2.

    The local term of `PointFNO` is interpolated: from a mesh it is linear in each cell, so its gradient is that of the cell
    which holds the point, with an error of first order, and second derivatives are refused. From a uniform grid it is smooth
    enough for both orders.

    Args:
        operator: The operator.
        inputs: Input samples.
        query: Points of evaluation, any grid in the domain of d coordinates; one for all samples, or one per sample.
        order: 1 for the gradient, 2 for the Laplacian.

    Returns:
        Gradients `(n, c * d, *query)`, the derivatives of the first channel first, or Laplacians `(n, c, *query)`, in the units
        of the outputs per length to the power of the order.

    Raises:
        ArgumentError: If the operator is of another class, or the order is not 1 or 2.
        UnsupportedError: If the output does not depend on the query points by autograd.
        GridError: If a local term is interpolated from points without cells, or, of order 2, from a mesh.

    Examples:
        >>> from probneural.operators import DeepONet
        >>> grid = Grid.uniform((8, 8))
        >>> operator = DeepONet(1, 1, sensors=grid, basis=4, seed=0)
        >>> derivatives_at(operator, Field(torch.ones(3, 1, 8, 8), grid), query=Grid.uniform((5, 4))).values.shape
        torch.Size([3, 2, 5, 4])
    """
    check_instance(operator, Operator, "operator", remedy="give an operator of pn.operators", error=ArgumentError)
    inputs = check_field(inputs, "inputs")
    inputs, grid = inputs.detached() if inputs.values.is_inference() else inputs, inputs.grid
    order = check_integer(order, "order", most=2)
    check_grid(query, "query")
    is_interpolated = any(isinstance(module, PointFNO) for module in operator.modules()) and not grid.is_uniform
    if is_interpolated and (order == 2 or grid.cells is None):
        raise GridError(
            expected="inputs on a uniform grid" + (", or on a mesh" if order == 1 else ""),
            got=repr(grid),
            remedy="the local term of PointFNO has no derivative: use AttentionOperator",
        )
    with torch.enable_grad(), plain_operations():
        points = query.points.requires_grad_()
        where = Grid(shape=(query.size,), axes=(), _points=points, _weights=query.weights)
        coordinates = range(points.shape[-1])
        slopes = _along_coordinates(evaluate(operator, inputs, where), points, coordinates)
        if order == 2:
            slopes = [torch.stack([_along_coordinates(slopes[k], points, [k])[0] for k in coordinates]).sum(0)]
        values = torch.stack(slopes, 2).flatten(1, 2).unflatten(-1, query.shape)
    return Field(values if torch.is_grad_enabled() else values.detach(), query)


def _along_coordinates(
    values: Float[Tensor, "n c p"], points: Tensor, coordinates: Sequence[int]
) -> list[Float[Tensor, "n c p"]]:
    """Derivatives of values at p points along some coordinates, where each value depends on its own point alone."""
    # grad_v of the sum of g_k, where g = J^T v: J times the tangent e_k at all points
    cotangent = torch.zeros_like(values, requires_grad=True)
    pulled = torch.autograd.grad(values, points, cotangent, create_graph=True, allow_unused=True)[0]
    if pulled is None:
        raise UnsupportedError(
            expected="outputs that depend on the query points by autograd",
            got="others",
            remedy="use differences on a grid: physics.gradient",
        )
    return [
        torch.autograd.grad(pulled[..., number].sum(), cotangent, create_graph=True, retain_graph=True)[0]
        for number in coordinates
    ]
