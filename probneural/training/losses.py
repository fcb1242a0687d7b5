"""Losses that do not depend on the resolution."""

from __future__ import annotations

import inspect
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.errors import ShapeError
from probneural.fields import power_of_two
from probneural.grids import Grid


class Loss(Protocol):
    """A loss of a batch: one real number of predictions and targets `(n, c, *grid)` and the grid where they live.

    A loss that has a parameter `inputs` is given the input functions too, a `Field`, by that name.
    """

    def __call__(
        self, predicted: Float[Tensor, "n c *grid"], target: Float[Tensor, "n c2 *grid"], grid: Grid, /
    ) -> Float[Tensor, ""]:
        """The loss, averaged over functions."""


def takes_inputs(loss: object) -> bool:
    """Whether a loss has a parameter `inputs`."""
    try:
        return "inputs" in inspect.signature(getattr(loss, "forward", loss)).parameters  # type: ignore[arg-type]
    except ValueError:  # some built-in callables have no signature
        return False


def relative_l2(
    predicted: Float[Tensor, "n c *grid"], target: Float[Tensor, "n c *grid"], *, grid: Grid
) -> Float[Tensor, "n c"]:
    """Relative L2 error ||predicted - target|| / ||target|| by quadrature, per function and channel, dimensionless.

    A target that is zero everywhere makes the ratio infinite or undefined; then the error is measured against the mean
    norm of that channel's targets, or in absolute terms if all are zero. Targets may be of any scale that their dtype holds:
    squares are formed in units of the target's largest value.

    Args:
        predicted: `(n, c, *grid.shape)`.
        target: The same shape: nothing is broadcast.
        grid: Where both live.

    Returns:
        `(n, c)`; average it over channels first, then over functions.

    Raises:
        ShapeError: If the shapes differ.

    Examples:
        >>> grid = Grid.uniform((4,))
        >>> relative_l2(torch.full((1, 1, 4), 3.0), torch.full((1, 1, 4), 2.0), grid=grid).item()
        0.5
    """
    if predicted.shape != target.shape:
        raise ShapeError(
            expected=f"predictions shaped like the targets {tuple(target.shape)}",
            got=str(tuple(predicted.shape)),
            remedy="check the operator's out_channels; shapes are not broadcast",
        )
    mean_weights = grid.mean_weights.to(target)
    largest = target.detach().abs().flatten(2).amax(2)
    unit = power_of_two(torch.where(largest > 0, largest, largest.amax(0, keepdim=True)))[..., None]
    error = (((predicted - target).flatten(2) / unit).square() @ mean_weights).clamp_min(torch.finfo(target.dtype).tiny).sqrt()
    norm = ((target.flatten(2) / unit).square() @ mean_weights).sqrt()
    fallback = (norm * unit[..., 0]).mean(0, keepdim=True) / unit[..., 0]
    fallback = torch.where(fallback > 0, fallback, torch.ones_like(fallback))
    return error / torch.where(norm > 0, norm, fallback)
