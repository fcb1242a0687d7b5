"""Operators whose outputs satisfy boundary and initial conditions by construction."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.checks import check_instance, check_sequence
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators.base import Operator
from probneural.pairs import Dataset
from probneural.physics.conditions import Dirichlet, evaluate_values
from probneural.registry import stored


@stored(parts="configuration")
class ByConstruction(Operator):
    """u = g(a) + d(x) v(a): an operator v whose outputs satisfy Dirichlet and initial conditions exactly.

    d vanishes on the sides of all conditions, and g continues their values into the domain: of several conditions, by weights
    that are one on a condition's own sides. The read-out of v stays the last layer up to g and d, so last-layer posteriors
    and their draws satisfy the conditions, too. A later discrepancy, as of `VarianceScale`, does not.

    Args:
        operator: v.
        conditions: `Dirichlet` conditions, `initial` among them, on different sides.

    Raises:
        ArgumentError: If there is no condition, or one of another class.

    Reference:
        Lagaris, Likas and Fotiadis (1998), Artificial neural networks for solving ordinary and partial differential equations.

    Examples:
        >>> from probneural.operators import FNO
        >>> operator = ByConstruction(FNO(1, 1, modes=(4,), periodic=False, seed=0), Dirichlet(1.0))
        >>> operator(torch.ones(1, 1, 9), grid=Grid.uniform((9,), periodic=False))[0, 0, [0, -1]].tolist()
        [1.0, 1.0]
    """

    def __init__(self, operator: Operator, conditions: Dirichlet | Sequence[Dirichlet]) -> None:
        super().__init__()
        self.operator = check_instance(operator, Operator, "operator", remedy="give an operator", error=ArgumentError)
        remedy = "give [initial(), Dirichlet(0.0)] for example; Neumann conditions become terms of Residual"
        listed = (conditions,) if isinstance(conditions, Dirichlet) else check_sequence(conditions, "conditions", remedy=remedy)
        if not listed or not all(isinstance(condition, Dirichlet) for condition in listed):
            raise ArgumentError(expected="Dirichlet conditions", got=repr(conditions), remedy=remedy)
        self.conditions = tuple(listed)
        self.in_channels, self.out_channels = operator.in_channels, operator.out_channels

    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate; see the base class.

        Raises:
            GridError: If a condition's side does not exist on the grid.
            DataError: If the conditions' values are not finite.
        """
        grid = Grid.uniform(tuple(values.shape[2:]), periodic=False) if grid is None else grid
        inner = self.operator(values, grid=grid, query=query)
        where = grid if query is None else query
        inputs = Field(values, grid)
        distances = [condition.distance(where).to(inner) for condition in self.conditions]
        distances = [part[:, None] if where.has_points_per_sample else part for part in distances]
        data = [
            evaluate_values(condition.values, inputs, where, inner, name="values of the condition")
            for condition in self.conditions
        ]
        product = torch.stack([part.expand_as(distances[0]) for part in distances]).prod(0)
        return _blended(data, distances) + product * inner

    def fit_normalizers(self, *train: Dataset) -> None:
        """Fit those of the inner operator."""
        self.operator.fit_normalizers(*train)


def _blended(data: Sequence[Tensor], distances: Sequence[Tensor]) -> Tensor:
    """The sum of w_k g_k, w_k = prod_{j != k} d_j / sum_i prod_{j != i} d_j; the first condition counts where all d_j are 0."""
    if len(data) == 1:
        return data[0]
    products = [
        torch.stack([part for other, part in enumerate(distances) if other != number]).prod(0)
        for number in range(len(distances))
    ]
    total = torch.stack(products).sum(0)
    blended = torch.where(total > 0, products[0], 1.0) * data[0]
    for product, values in zip(products[1:], data[1:], strict=True):
        blended = blended + product * values
    return blended / torch.where(total > 0, total, 1.0)
