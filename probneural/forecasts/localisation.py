"""Localisation: correlations that vanish beyond a distance, against those that few members have by accident."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_floating, check_positive
from probneural.contexts import remembered
from probneural.errors import ArgumentError, GridError
from probneural.grids import Grid, check_grid

_LARGEST = 8192
"""Points of a grid whose distances are formed (512 MiB)."""


def gaspari_cohn(distance: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The fifth-order piecewise rational function of Gaspari and Cohn: a correlation that is zero from distance 1 on.

    It looks like a Gaussian of standard deviation √(3/40) ≈ 0.27, and is positive definite in up to three dimensions.

    Args:
        distance: At least 0, as a fraction of the distance at which it vanishes; dimensionless.

    Reference:
        Gaspari and Cohn (1999), Construction of correlation functions in two and three dimensions, equation 4.10, with c = 1/2.

    Examples:
        >>> [round(one, 6) for one in gaspari_cohn(torch.tensor([0.0, 0.5, 1.0, 2.0])).tolist()]
        [1.0, 0.208333, 0.0, 0.0]
    """
    z = 2.0 * check_floating(distance, "distance")
    near = 1.0 + z.square() * (-5.0 / 3.0 + z * (5.0 / 8.0 + z * (0.5 - 0.25 * z)))
    inverse = torch.where(z > 0, 2.0 / (3.0 * torch.where(z > 0, z, 1.0)), 0.0)
    far = 4.0 + z * (-5.0 + z * (5.0 / 3.0 + z * (5.0 / 8.0 + z * (-0.5 + z / 12.0)))) - inverse
    return torch.where(z <= 1.0, near, torch.where(z < 2.0, far, 0.0)).clamp_min(0.0)


def taper(grid: Grid, radius: float) -> Float64[Tensor, "p p"]:
    """Correlations of the values at any two points of a grid, by their distance; the shorter way around on periodic axes.

    Args:
        grid: Of p points.
        radius: Distance from which on values do not correlate, in the grid's units; at most half of a periodic axis, so that
            the correlations remain positive definite.

    Raises:
        ArgumentError: If the radius is not positive, or too large for a periodic axis.
        GridError: If the grid has more than 8192 points.
    """
    radius = check_positive(radius, "localisation")
    shortest = min((axis.length for axis in check_grid(grid).axes if axis.periodic), default=float("inf"))
    if radius > 0.5 * shortest * (1.0 + 1e-12):
        raise ArgumentError(
            expected=f"a localisation of at most {0.5 * shortest:g}, half of the shortest periodic axis",
            got=f"{radius:g}",
            remedy="choose a shorter distance, or localisation=None for none",
        )
    if grid.size > _LARGEST:
        raise GridError(
            expected=f"a grid of at most {_LARGEST} points to localise on",
            got=str(grid.size),
            remedy="assimilate on a coarser grid, or without localisation and with more members",
        )
    return _taper(grid, radius)


@remembered(8 * _LARGEST**2)
def _taper(grid: Grid, radius: float) -> Tensor:
    points = grid.points
    squares = torch.zeros(grid.size, grid.size, dtype=torch.float64)
    for number in range(points.shape[1]):
        along = (points[:, None, number] - points[None, :, number]).abs()
        if grid.axes and grid.axes[number].periodic:
            along = torch.minimum(along, grid.axes[number].length - along)
        squares += along.square()
    return gaspari_cohn(squares.sqrt() / radius)
