"""What the training residuals say: their size, and how many independent observations a field of them is worth."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_finite
from probneural.errors import ArgumentError, DataError
from probneural.fields import Field, FieldPairs
from probneural.grids import Grid


def output_units(outputs: Field) -> tuple[Float64[Tensor, " c"], Float64[Tensor, " c"]]:
    """Mean and standard deviation of the training outputs per channel, by quadrature, in physical units; float64.

    A channel that does not vary has scale 1.
    """
    share = (outputs.grid.weights / outputs.grid.volume).to(outputs.device)
    values = outputs.values.detach().to(torch.float64).flatten(2)
    origin = values[0, :, 0]  # a channel that does not vary is then zero, and the rounding of its mean no spread
    values = values - origin[:, None]
    mean = (values @ share).mean(0)
    scale = ((values - mean[:, None]).square() @ share).mean(0).sqrt()
    mean = mean + origin
    flat = scale <= torch.finfo(outputs.dtype).eps * mean.abs()
    return mean, torch.where(flat, torch.ones_like(scale), scale)


def effective_observations(residuals: Float64[Tensor, "n c *grid"], *, grid: Grid) -> Float64[Tensor, " c"]:
    """How many independent observations one field of residuals holds, whatever its grid: (tr C)^2 / tr C^2.

    C is the covariance operator of the residuals with the grid's quadrature. The traces are estimated from pairs of
    different fields (a U-statistic), so that few fields do not look like few observations:

        m = sum over i != j of |r_i|^2 |r_j|^2 / sum over i != j of <r_i, r_j>^2.

    Args:
        residuals: n fields, not centred: a systematic error is one direction like any other.
        grid: Where they live.

    Returns:
        `(c,)`, dimensionless, between 1 and the number of grid points; 1 for a single field or zero residuals. A few
        fields give a rough number: below some ten, set it instead.

    Reference:
        The participation ratio; see docs/design.md for why it replaces the number of grid points.

    Examples:
        >>> points = 64
        >>> noise = torch.randn(400, 1, points, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> round(float(effective_observations(noise, grid=Grid.uniform((points,)))))
        64
    """
    share = (grid.weights / grid.volume).to(residuals.device).sqrt()
    counts = []
    for channel in range(residuals.shape[1]):
        rows = residuals[:, channel].flatten(1) * share
        largest = rows.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
        gram = (rows / largest) @ (rows / largest).mT
        squares = gram.diagonal()
        independent = torch.outer(squares, squares).fill_diagonal_(0.0).sum()
        alike = gram.square().fill_diagonal_(0.0).sum().clamp_min(torch.finfo(torch.float64).tiny)
        counts.append(torch.where(independent > 0, independent / alike, torch.ones_like(alike)))
    return torch.stack(counts).clamp(1.0, float(grid.size))


def given_per_channel(value: float | Tensor | None, channels: int, *, name: str) -> Float64[Tensor, " c"] | None:
    """Expand a setting that is one positive number, or one per channel; None stays None.

    Raises:
        ArgumentError: If it is neither, or not positive and finite.
    """
    if value is None:
        return None
    numbers = torch.as_tensor(value, dtype=torch.float64).detach().cpu()
    if numbers.ndim > 1 or numbers.numel() not in (1, channels) or not bool((torch.isfinite(numbers) & (numbers > 0)).all()):
        raise ArgumentError(
            expected=f"{name} > 0, finite: one number or one per channel ({channels},)",
            got=str(numbers.tolist()),
            remedy=f"leave {name}=None to have it learned",
        )
    return numbers.reshape(-1).expand(channels)


def check_pairs(data: FieldPairs) -> None:
    """Raise a DataError unless data are finite pairs."""
    if not isinstance(data, FieldPairs) or len(data) == 0:
        raise DataError(expected="FieldPairs with at least one pair", got=str(type(data)), remedy="fit(operator, train)")
    check_finite(data.inputs.values, "training inputs")
    check_finite(data.outputs.values, "training outputs")


def check_some(inputs: Field) -> None:
    """Raise a DataError if there is no input at all: operators cannot transform empty batches."""
    if len(inputs) == 0:
        raise DataError(expected="at least one input", got="none", remedy="leave out empty batches")
