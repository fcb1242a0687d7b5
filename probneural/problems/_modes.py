"""Eigenfunctions of the Laplacian along one axis of a grid: waves on a circle, sines between boundaries."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.grids import Grid, along_axis
from probneural.grids.axes import Axis


def modes(axis: Axis) -> tuple[Float64[Tensor, "size modes"], Float64[Tensor, " modes"], Float64[Tensor, " modes"]]:
    """The modes that an axis resolves, with their angular wavenumbers, and their reciprocal squared lengths."""
    numbers, wavenumbers = torch.arange(axis.size), torch.arange(axis.size // 2 + 1)
    if not axis.periodic:
        cells = axis.size - 1
        wavenumbers = torch.arange(1, cells)
        # Whole numbers are reduced to one turn before the sine sees them, which is exact.
        turns = torch.remainder(numbers[:, None] * wavenumbers, 2 * cells).double() / cells
        waves = torch.sin(math.pi * turns)
        waves[0], waves[-1] = 0.0, 0.0
        return waves, math.pi * wavenumbers.double(), torch.full(wavenumbers.shape, 2.0 / cells, dtype=torch.float64)
    phase = 2.0 * math.pi * torch.remainder(numbers[:, None] * wavenumbers, axis.size).double() / axis.size
    weights = torch.full(wavenumbers.shape, 2.0 / axis.size, dtype=torch.float64)
    weights[0] = 1.0 / axis.size
    if axis.size % 2 == 0:
        weights[-1] = 1.0 / axis.size  # the Nyquist term is a cosine; its sine vanishes at every node
    angular = 2.0 * math.pi * wavenumbers.double()
    return torch.cat([phase.cos(), phase.sin()], dim=1), angular.repeat(2), weights.repeat(2)


def eigenvalues(grid: Grid) -> Float64[Tensor, "..."]:
    """Eigenvalue of −Δ for each product of the axes' modes, as many axes as the grid has."""
    total = torch.zeros((), dtype=torch.float64)
    for axis in grid.axes:
        total = total[..., None] + modes(axis)[1] ** 2
    return total


def divide(values: Float64[Tensor, "..."], grid: Grid, *, divisor: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """Divide the coefficients of `(..., *grid.shape)` by a divisor for each product of modes, which broadcasts."""
    transforms = [modes(axis) for axis in grid.axes]
    for number, (waves, _, weights) in enumerate(transforms):
        values = along_axis(values, (waves * weights).T, number - grid.dimension)
    values = values / divisor
    for number, (waves, _, _) in enumerate(transforms):
        values = along_axis(values, waves, number - grid.dimension)
    return values
