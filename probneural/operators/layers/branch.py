"""A branch network: coefficients of an input from its values at sensors."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_integer
from probneural.contexts import outside_of_export
from probneural.grids import Grid, check_grid, resample
from probneural.operators.checks import check_input
from probneural.operators.layers.mlp import MLP, HiddenLayers
from probneural.operators.layers.normalizer import ChannelNormalizer


class SensorBranch(nn.Module):
    """b_gk(a): K coefficients in each of g groups for an input a, from its values at sensors.

    Inputs on any uniform grid are brought to the sensors by their interpolant, so the same sample gives the same numbers at
    every resolution: exactly where the grid resolves it on periodic axes, else to the order of the interpolation.

    Args:
        in_channels: Channels of the input.
        sensors: Where the network sees it; every sensor counts alike, so quadrature weights have no effect.
        groups: g.
        basis: K.
        layers: Hidden layers of the network.

    Raises:
        ArgumentError: If a size is not a positive integer.
        GridError: If the sensors are no grid.

    Reference:
        Lu et al. (2021), Learning nonlinear operators via DeepONet based on the universal approximation theorem of operators.
        Deviation: inputs on other grids are interpolated.

    Examples:
        >>> import torch
        >>> branch = SensorBranch(2, sensors=Grid.uniform(16), groups=1, basis=4, layers=HiddenLayers(width=8, depth=1))
        >>> branch(torch.zeros(3, 2, 32), Grid.uniform(32)).shape
        torch.Size([3, 1, 4])
    """

    def __init__(self, in_channels: int, *, sensors: Grid, groups: int, basis: int, layers: HiddenLayers) -> None:
        super().__init__()
        self.in_channels = check_integer(in_channels, "in_channels")
        self.sensors = check_grid(sensors, "sensors")
        self.groups = check_integer(groups, "groups")
        self.basis = check_integer(basis, "basis")
        self.normalizer = ChannelNormalizer(in_channels)
        self.network = MLP(in_channels * sensors.size, groups * basis, layers=layers)

    def reset_parameters(self) -> None:
        """Draw all weights anew; the normaliser keeps its units."""
        self.network.reset_parameters()

    def locate(self, values: Tensor, grid: Grid | None) -> Grid:
        """Check input values and return where they live.

        Args:
            values: `(n, in_channels, *grid)`.
            grid: The grid of the values; None is a uniform grid on the domain of uniform sensors, or scattered sensors.

        Raises:
            ShapeError: If the values are not of that shape.
            DataError: If they are of another dtype than the network.
        """
        where = self.sensors if grid is None else check_grid(grid)
        dtype = next(self.network.parameters()).dtype
        check_input(values, channels=self.in_channels, dimension=len(where.shape), dtype=dtype)
        return where.resized(tuple(values.shape[2:])) if grid is None and where.is_uniform else where

    def forward(self, values: Float[Tensor, "n c *grid"], grid: Grid) -> Float[Tensor, "n g k"]:
        """Describe samples on a grid.

        Args:
            values: `(n, in_channels, *grid.shape)`, in physical units.
            grid: Where they live.

        Returns:
            `(n, groups, basis)`, dimensionless.

        Raises:
            ShapeError: If the values do not fit the grid.
            GridError: If sensors lie outside the grid's domain, or the grid is scattered and its points are not the sensors.
        """
        where = self.sensors if self._are_sensors(grid) else grid
        at_sensors = self.normalizer(resample(values, where, self.sensors))
        return self.network(at_sensors.flatten(1)).unflatten(1, (self.groups, self.basis))

    def _are_sensors(self, grid: Grid) -> bool:
        """Whether scattered points are the sensors, with any quadrature weights."""
        if grid is self.sensors or grid.is_uniform or self.sensors.is_uniform:
            return grid is self.sensors
        with outside_of_export():
            return torch.equal(grid.points, self.sensors.points)
