"""The mean square of standardised residuals without the largest of them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.grids import Grid
from probneural.randomness import stream

KEPT = 0.9
"""Fraction of squares that are kept."""
_EDGE = math.sqrt(2.0) * float(torch.special.erfinv(torch.tensor(KEPT, dtype=torch.float64, device="cpu")))
"""What absolute values of standard normal numbers exceed with the rest of the probability."""
GAUSSIAN = 1.0 - 2.0 * _EDGE * math.exp(-0.5 * _EDGE**2) / math.sqrt(2.0 * math.pi) / KEPT
"""Mean square of the kept ones of standard normal numbers, by parts: E z² where |z| is below the edge."""
_VALUES = 2**20
"""Squares of each channel that are looked at, about: points are chosen at random, the same in every function."""


def trimmed_mean_square(parts: Iterable[Float64[Tensor, "_ c *grid"]], *, count: int, grid: Grid) -> Float64[Tensor, " c"]:
    """Mean of the smaller nine tenths of squares, over functions and points, over what it is of standard normal numbers.

    Squares that are zero, of values that are known exactly, take no part; where there are no others, the result is 0.

    Args:
        parts: Squares of standardised residuals, some functions at a time.
        count: How many functions there are.
        grid: Where they live: averages are weighted by quadrature. Squares at masked points are zero.

    Examples:
        >>> one = torch.tensor([[[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 50.0]]], dtype=torch.float64)
        >>> round(trimmed_mean_square([one], count=1, grid=Grid.uniform((10,))).item() * GAUSSIAN, 9)
        1.0
    """
    wanted = max(1, min(grid.size, _VALUES // count))
    points = torch.randperm(grid.size, generator=stream(0, "trimmed points"))[:wanted].sort().values
    squares = torch.cat([part.flatten(2)[..., points].cpu() for part in parts]).movedim(1, 0).flatten(1)  # (c, n * points)
    each = grid.unmasked.mean_weights[points].to(squares).repeat(count)
    found = torch.zeros(len(squares), dtype=torch.float64)
    for channel, own in enumerate(squares):
        order = own.argsort()
        weights = torch.where(own > 0, each, 0.0)[order]
        known = weights.sum()
        if bool(known > 0):
            before = weights.cumsum(0) - weights
            kept = torch.minimum(weights, (KEPT * known - before).clamp_min(0.0))  # of the last one, a fraction
            found[channel] = (kept * own[order]).sum() / (KEPT * known) / GAUSSIAN
    return found
