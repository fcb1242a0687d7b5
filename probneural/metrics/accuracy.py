"""Accuracy of a predicted field; distributions enter through their means."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_finite, check_squares
from probneural.distributions.base import check_values
from probneural.errors import DataError, GridError
from probneural.fields import Field, check_field
from probneural.metrics.comparison import domain_average


def relative_l2(prediction: Field, truth: Field) -> Float64[Tensor, "n c"]:
    """The relative L2 error of each function and channel, ‖prediction - truth‖ / ‖truth‖, with norms by quadrature.

    Args:
        prediction: Predicted functions.
        truth: True functions, on the same grid.

    Returns:
        `(n, c)`, dimensionless. Average it: channels of different magnitude then count alike.

    Raises:
        DataError: If a true function is zero everywhere, which leaves nothing to be relative to, a side is no `Field`, or a
            value is not finite.
        GridError: If the grids differ.
        ShapeError: If the shapes differ.

    Reference:
        Li et al. (2021), Fourier Neural Operator, section 5. Deviation: several channels are taken one by one, so that the
        largest does not hide the others.

    Examples:
        >>> from probneural.fields import Grid
        >>> grid = Grid.uniform((8,))
        >>> relative_l2(Field(torch.full((1, 1, 8), 3.0), grid), Field(torch.full((1, 1, 8), 2.0), grid)).item()
        0.5
    """
    error, size = _mean_squares(prediction, truth)
    if bool((size == 0).any()):
        raise DataError(
            expected="true functions that are not zero everywhere",
            got=f"{int((size == 0).sum())} of {size.numel()} (function, channel) pairs that are",
            remedy="read the RMSE, or leave those functions out",
        )
    return (error / size).sqrt()


def rmse(prediction: Field, truth: Field) -> Float64[Tensor, " c"]:
    """The root of the mean squared error of each channel, over the functions and, by quadrature, over the domain.

    Args:
        prediction: Predicted functions.
        truth: True functions, on the same grid.

    Returns:
        `(c,)`, in physical units.

    Raises:
        DataError: If a side is no `Field`, or a value is not finite.
        GridError: If the grids differ.
        ShapeError: If the shapes differ.
    """
    error, _ = _mean_squares(prediction, truth)
    return error.mean(0).sqrt()


def _mean_squares(prediction: Field, truth: Field) -> tuple[Tensor, Tensor]:
    """Mean squares over the domain of the error and of the truth, `(n, c)`."""
    check_field(prediction, "prediction")
    check_field(truth, "truth")
    if not prediction.grid.has_points_of(truth.grid):
        raise GridError(
            expected=f"predictions on the truth's grid {truth.grid!r}",
            got=repr(prediction.grid),
            remedy="predict with query=truth.grid",
        )
    check_values(prediction.values, tuple(truth.values.shape), "predictions")
    check_finite(prediction.values, "predictions")
    check_finite(truth.values, "true values")
    check_squares(prediction.values, "predictions")
    check_squares(truth.values, "true values")
    predicted = prediction.values.detach().to(torch.float64)
    values = truth.values.detach().to(predicted)
    return domain_average((predicted - values).square(), truth.grid), domain_average(values.square(), truth.grid)
