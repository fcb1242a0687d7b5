"""Operators whose outputs satisfy boundary and initial conditions by construction."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_instance, check_sequence
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators.base import Operator
from probneural.operators.checks import check_input
from probneural.pairs import Dataset
from probneural.physics.conditions import Dirichlet, evaluate_values
from probneural.registry import stored


@stored(parts="configuration")
class ByConstruction(Operator):
    """u = g(a) + d(x) v(a): an operator v whose outputs satisfy Dirichlet and initial conditions exactly.

    d vanishes on the sides of all conditions, and g continues their values into the domain: of several conditions, by weights
    that are one on a condition's own sides. Where sides meet, the first condition counts. The read-out of v stays the last
    layer up to g and d, so last-layer posteriors and their draws satisfy the conditions, too. A later discrepancy, as of
    `VarianceScale`, does not.

    Args:
        operator: v, an operator of `pn.operators` or of a class derived from `Operator`.
        conditions: `Dirichlet` conditions, `initial` among them, on different sides.

    Raises:
        ArgumentError: If the operator is of another class, or there is no condition, or one of another class.

    Reference:
        Lagaris, Likas and Fotiadis (1998), Artificial neural networks for solving ordinary and partial differential equations.

    Examples:
        >>> from probneural.operators import FNO
        >>> operator = ByConstruction(FNO(1, 1, modes=(4,), periodic=False, seed=0), Dirichlet(1.0))
        >>> operator(torch.ones(1, 1, 9), grid=Grid.uniform((9,), periodic=False))[0, 0, [0, -1]].tolist()
        [1.0, 1.0]
    """

    def __init__(self, operator: nn.Module, conditions: Dirichlet | Sequence[Dirichlet]) -> None:
        super().__init__()
        self.operator = check_instance(operator, Operator, "operator", remedy="give an operator", error=ArgumentError)
        remedy = "give [initial(), Dirichlet(0.0)] for example; Neumann conditions become terms of Residual"
        listed = (conditions,) if isinstance(conditions, Dirichlet) else check_sequence(conditions, "conditions", remedy=remedy)
        if not listed or not all(isinstance(condition, Dirichlet) for condition in listed):
            raise ArgumentError(expected="Dirichlet conditions", got=repr(conditions), remedy=remedy)
        self.conditions = tuple(listed)
        self.in_channels, self.out_channels = self.operator.in_channels, self.operator.out_channels

    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate; see the base class. Without a grid, the axes have walls unless the operator is periodic along them.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`.
            GridError: If a condition's side does not exist on the grid.
            DataError: If the conditions' values are not finite.
        """
        if grid is None:
            check_input(values, channels=self.in_channels, dimension=max(1, values.ndim - 2), dtype=values.dtype)
            grid = Grid.uniform(tuple(values.shape[2:]), periodic=getattr(self.operator, "periodic", False))
        where = grid if query is None else query
        inner = self.operator(values, grid=grid, query=query)
        inputs = Field(values, grid)
        distances = torch.stack([condition.distance(where, domain=grid).to(inner) for condition in self.conditions])
        data = [
            evaluate_values(condition.values, inputs, where, inner, name="values of the condition")
            for condition in self.conditions
        ]
        weights = _weights(distances)
        if where.has_points_per_sample:
            distances, weights = distances[:, :, None], weights[:, :, None]
        return sum((weight * g for weight, g in zip(weights, data, strict=True)), start=distances.prod(0) * inner)

    def fit_normalizers(self, *train: Dataset) -> None:
        """Fit those of the inner operator."""
        self.operator.fit_normalizers(*train)


def _weights(distances: Float[Tensor, "k *grid"]) -> Float[Tensor, "k *grid"]:
    """w_i = prod_{j != i} d_j / sum_k prod_{j != k} d_j: 1 on the sides of condition i; where two d_j are 0, for the first."""
    rows = range(len(distances))
    products = torch.stack([distances[[other for other in rows if other != row]].prod(0) for row in rows])
    total = products.sum(0)
    is_zero = distances == 0
    first = is_zero & (is_zero.cumsum(0) == 1)
    return torch.where(total > 0, products / torch.where(total > 0, total, 1.0), first.to(products))
