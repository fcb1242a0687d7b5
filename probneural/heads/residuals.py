"""What the training residuals say: their size, and how many independent observations a field of them is worth."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from probneural.checks import cast, check_scale, check_variances, real_tensor
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs, FieldSource, check_pairs
from probneural.statistics import units


def output_units(outputs: FieldSource) -> tuple[Float64[Tensor, " c"], Float64[Tensor, " c"]]:
    """Mean and standard deviation of the training outputs per channel, by quadrature, in physical units; float64.

    A channel that does not vary has scale 1.

    Raises:
        DataError: If float64 does not hold their squares: heads know variances.
    """
    mean, scale = units(outputs)
    check_scale(scale, "training outputs", dtype=torch.float64, power=2)
    return mean, scale


def training_pairs(data: object, operator: nn.Module | None) -> FieldPairs:
    """Return finite pairs as a head takes them: detached, on an operator's device, inputs in its real dtype.

    Args:
        data: What the user gave.
        operator: Whose parameters tell dtype and device, if it has any; by default the outputs do.

    Raises:
        DataError: If data are no pairs, none, not finite, or beyond the operator's dtype.
    """
    pairs = check_pairs(data).detached()
    example = next(iter(() if operator is None else operator.parameters()), pairs.outputs.values)
    return FieldPairs(pairs.inputs.to(example.dtype.to_real()).to(example.device), pairs.outputs.to(example.device))


def estimate_effective_observations(residuals: Float64[Tensor, "n c *grid"], *, grid: Grid) -> Float64[Tensor, " c"]:
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
        >>> round(float(estimate_effective_observations(noise, grid=Grid.uniform((points,)))))
        64
    """
    mean_weights = grid.mean_weights.to(residuals.device).sqrt()
    counts = []
    for channel in range(residuals.shape[1]):
        rows = residuals[:, channel].flatten(1) * mean_weights
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
    numbers = check_variances(value, name, positive=True).detach().cpu()
    if numbers.ndim > 1 or numbers.numel() not in (1, channels):
        raise ArgumentError(
            expected=f"{name} as one number or one per channel ({channels},)",
            got=f"shape {tuple(numbers.shape)}",
            remedy=f"leave {name}=None to have it learned",
        )
    return numbers.reshape(-1).expand(channels)


def given_noise(value: float | Tensor | None, channels: int, *, dtype: torch.dtype) -> Float64[Tensor, " c"] | None:
    """Expand a noise variance likewise, if the dtype of predictions holds variances of its size.

    Raises:
        ArgumentError: If it does not, or the value is no variance.
    """
    numbers = given_per_channel(value, channels, name="noise")
    if numbers is not None:
        cast(numbers, dtype, "noise variances", error=ArgumentError)
    return numbers


def given_precision(value: object, shapes: Sequence[tuple[int, ...]], *, remedy: str) -> Float64[Tensor, "..."]:
    """Check prior precisions, which may be infinite; on the CPU.

    Raises:
        ArgumentError: If they are no positive numbers.
        ShapeError: If they have none of the shapes.
    """
    numbers = real_tensor(value, "prior_precision", dtype=torch.float64, error=ArgumentError).detach().cpu()
    if tuple(numbers.shape) not in ((), *shapes):
        raise ShapeError(
            expected=f"prior_precision as a number or of shape {' or '.join(map(str, shapes))}",
            got=str(tuple(numbers.shape)),
            remedy=remedy,
        )
    if not bool((numbers > 0).all()):
        raise ArgumentError(expected="prior_precision > 0", got=str(float(numbers.min())), remedy="a flat prior is improper")
    return numbers


def check_some(inputs: Field) -> None:
    """Raise a DataError if there is no input at all: operators cannot transform empty batches."""
    if len(inputs) == 0:
        raise DataError(expected="at least one input", got="none", remedy="leave out empty batches")
