"""Fourier transforms of real fields on a periodic grid, with what multiplies their coefficients in derivatives."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from probneural.grids import Grid


class PeriodicTransform:
    """Coefficients `(..., *spectrum)` on the half spectrum of `rfftn`, scaled so that that of a constant is its value.

    Args:
        grid: A uniform periodic grid.
        device: Of the fields.
    """

    def __init__(self, grid: Grid, device: torch.device) -> None:
        self.shape = grid.shape
        self._axes = tuple(range(-len(grid.shape), 0))
        self.wavenumbers: list[Tensor] = []
        """Angular wavenumbers along each axis, float64, which broadcast against each other."""
        self.slopes: list[Tensor] = []
        """ik along each axis: 0 at the Nyquist frequency of an even size, whose sine vanishes at every node."""
        dealiased = torch.ones((), dtype=torch.bool, device=device)
        for number, axis in enumerate(grid.axes):
            last = number == grid.dimension - 1
            counts = (torch.fft.rfftfreq if last else torch.fft.fftfreq)(axis.size, 1.0 / axis.size, dtype=torch.float64)
            counts = counts.to(device).reshape(-1, *(1,) * (grid.dimension - 1 - number))
            angular = 2.0 * math.pi / axis.length * counts
            self.wavenumbers.append(angular)
            self.slopes.append(1j * torch.where(2 * counts.abs() == axis.size, 0.0, angular))
            dealiased = dealiased & (3 * counts.abs() < axis.size)
        self.dealiased = dealiased
        """The frequencies |k| < N/3, whose products of two do not alias onto themselves (Orszag, 1971)."""

    @cached_property
    def squares(self) -> Tensor:
        """|k|²."""
        return sum((along**2 for along in self.wavenumbers[1:]), self.wavenumbers[0] ** 2)

    def forward(self, values: Tensor) -> Tensor:
        """Coefficients of values `(..., *grid)`."""
        coefficients: Tensor = torch.fft.rfftn(values, dim=self._axes, norm="forward")
        return coefficients

    def inverse(self, coefficients: Tensor) -> Tensor:
        """Values of coefficients."""
        values: Tensor = torch.fft.irfftn(coefficients, s=self.shape, dim=self._axes, norm="forward")
        return values
