"""Residuals of equations: whether predictions and draws satisfy them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_callable, check_instance, check_integer
from probneural.contexts import undisturbed
from probneural.distributions.base import FieldDistribution
from probneural.fields import Field
from probneural.grids import Grid


class ResidualScore(NamedTuple):
    """Root mean squares of residuals over equations and domain, in the equations' units.

    Attributes:
        mean: Of the mean of each sample, `(n,)`.
        draws: Of draws of each sample, `(s, n)`.
    """

    mean: Float64[Tensor, " n"]
    draws: Float64[Tensor, "s n"]


@undisturbed()
@torch.no_grad()
def residual(
    u: FieldDistribution,
    residual: Callable[[Tensor, Field | None, Grid], Tensor],
    *,
    inputs: Field | None = None,
    draws: int = 16,
) -> ResidualScore:
    """Score predictions by the residual of their equation; no solution is needed.

    Draws are those of operators, `u.draw(seeds)`, without white noise, whose derivatives are unbounded. A small residual is no
    small error: the error is the inverse of the equation applied to it.

    Args:
        u: Predictions.
        residual: A `pn.physics.Residual`, or a function of values `(n, c, *grid)`, inputs and grid that returns
            `(n, k, *grid)`.
        inputs: The predictor's inputs, where the equation depends on them.
        draws: Number of draws; 0 for none.

    Returns:
        The root mean squares.

    Raises:
        ArgumentError: If an argument is of another kind.
        ShapeError: If the equation returns another shape.
    """
    check_instance(u, FieldDistribution, "u", remedy="give predictor(inputs)")
    check_callable(residual, "residual", remedy="write pn.physics.Residual(equation)")
    inputs = None if inputs is None else inputs.to(torch.float64)

    def root_mean_square(values: Tensor) -> Tensor:
        numbers = residual(values.to(torch.float64), inputs, u.grid)
        return u.grid.mean(u.grid.fill(numbers).square().flatten(2)).mean(1).sqrt()

    seeds = range(check_integer(draws, "draws", least=0))
    parts = [root_mean_square(u.draw([seed])[0]) for seed in seeds]
    empty = torch.zeros(0, len(u), dtype=torch.float64, device=u.mean.device)
    return ResidualScore(root_mean_square(u.mean), torch.stack(parts) if parts else empty)
