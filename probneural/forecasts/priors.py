"""Priors of an initial state before any observation."""

from __future__ import annotations

from probneural.checks import check_integer
from probneural.distributions import DenseRoot, GaussianField
from probneural.distributions.latent import digest
from probneural.errors import DataError
from probneural.fields import Field, check_field


def climatology(states: Field, *, functions: int = 1) -> GaussianField:
    """A prior of states by the mean and covariance of a sample of them, for each of n functions independently of the others.

    It is what a start is like before anything was observed. The deviations are each function's own, so the states of one
    say nothing about those of another; of fewer samples than values the covariance is singular.

    Args:
        states: The sample, `(s, c, *grid)`, s at least 2: states at all times of training data, for example.
        functions: n.

    Raises:
        DataError: If there are fewer than two states, or they are no field.
        ArgumentError: If n is not positive.

    Examples:
        >>> import torch
        >>> from probneural.grids import Grid
        >>> u = climatology(Field(torch.tensor([[[1.0, 0.0]], [[3.0, 0.0]]]), Grid.uniform(2)), functions=3)
        >>> u.mean[0].tolist(), u.variance[2].tolist()
        ([[2.0, 0.0]], [[2.0, 0.0]])
    """
    functions = check_integer(functions, "functions")
    if len(check_field(states, "states")) < 2:
        raise DataError(expected="two states or more", got=str(len(states)), remedy="a covariance takes many")
    mean = states.values.mean(0)
    columns = ((states.values - mean) / (len(states) - 1.0) ** 0.5).flatten(2).movedim(0, -1)
    root = DenseRoot(columns.expand(functions, -1, -1, -1))
    return GaussianField(
        mean.expand(functions, *mean.shape),
        DenseRoot(columns[None, ..., :0].expand(functions, -1, -1, -1)),
        latent=f"climatology-{digest(states.values)}",
        grid=states.grid,
        discrepancy=root,
    )
