"""The Gaussian likelihood of a field, weighted by quadrature instead of summed over grid points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import validated
from probneural.errors import DataError, ShapeError
from probneural.grids import Grid


@validated
@dataclass(frozen=True, eq=False)
class QuadratureGaussian:
    """-log p(y | f) = 1/2 sum over i, c, p of w_cp (f_icp - y_icp)^2 + const, with w_cp = precision_c * share_p.

    The weights are those of quadrature over the domain's volume, so that the loss is a mean over the domain and does not
    grow with the number of grid points. Its Hessian in the outputs is diag(w) for every function, whatever the targets.

    Args:
        weights: w, `(c, p)`, float64, in output units to the power -2.

    Raises:
        ShapeError: If the weights are not a matrix.
        DataError: If they are not float64, not finite or negative.

    Examples:
        >>> likelihood = QuadratureGaussian.of(Grid.uniform((4,)), torch.tensor([2.0]))
        >>> likelihood.loss(torch.ones(3, 1, 4), torch.zeros(3, 1, 4)).item()
        3.0
    """

    weights: Float64[Tensor, "c p"]

    def __post_init__(self) -> None:
        """Check the weights."""
        if not bool((torch.isfinite(self.weights) & (self.weights >= 0.0)).all()):
            raise DataError(expected="finite weights >= 0", got="others", remedy="precisions must be finite and >= 0")

    @classmethod
    def of(cls, grid: Grid, precision: Float[Tensor, " c"]) -> QuadratureGaussian:
        """Weight the points of a grid.

        Args:
            grid: Where the outputs live, p points.
            precision: Effective observations over noise variance, one number per channel, in output units to the power -2.

        Raises:
            ShapeError: If there is not one precision per channel.
        """
        if precision.ndim != 1:
            raise ShapeError(expected="precision (c,)", got=str(tuple(precision.shape)), remedy="one number per channel")
        mean_weights = grid.mean_weights.to(precision.device)
        return cls(precision.detach().to(torch.float64)[:, None] * mean_weights)

    def losses(self, values: Float[Tensor, "n c p"], targets: Float[Tensor, "n c p"]) -> Float[Tensor, " n"]:
        """Negative log likelihood of each function up to a constant, in nats.

        Raises:
            ShapeError: If values and targets are not both `(n, c, p)`; they are not broadcast.
        """
        if values.shape != targets.shape or values.shape[1:] != self.weights.shape:
            raise ShapeError(
                expected=f"values and targets (n, {self.weights.shape[0]}, {self.weights.shape[1]})",
                got=f"{tuple(values.shape)} and {tuple(targets.shape)}",
                remedy="flatten the grid axes into one",
            )
        return 0.5 * ((values - targets).square() * self.weights.to(values)).sum((1, 2))

    def loss(self, values: Float[Tensor, "n c p"], targets: Float[Tensor, "n c p"]) -> Float[Tensor, ""]:
        """Sum of the losses of all functions, in nats.

        Raises:
            ShapeError: If values and targets are not both `(n, c, p)`.
        """
        return self.losses(values, targets).sum()
