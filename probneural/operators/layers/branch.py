"""Layers of DeepONets: the branch network, and a read-out with separate features for each output channel."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_integer
from probneural.contexts import outside_of_export, unrounded
from probneural.errors import GridError
from probneural.grids import Grid, check_grid, check_on_grid, resample
from probneural.operators.checks import check_input, check_samples
from probneural.operators.layers.mlp import MLP, HiddenLayers
from probneural.operators.layers.normalizer import ChannelNormalizer
from probneural.operators.layers.position import point_embedding, point_features


class SensorBranch(nn.Module):
    """b_gk(a): K coefficients in each of g groups for an input a, from its values at sensors.

    Inputs on any uniform grid are brought to the sensors by their interpolant, so the same sample gives the same numbers at
    every resolution: exactly where the grid resolves it on periodic axes, else to the order of the interpolation.

    Args:
        in_channels: Channels of the input.
        sensors: Sensor grid; sensors have equal weight, quadrature weights have no effect.
        groups: g.
        basis: K.
        layers: Hidden layers of the network.

    Raises:
        ArgumentError: If a size is not a positive integer.
        GridError: If `sensors` is not a grid.

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
        """Reinitialise all weights; the normaliser keeps its units."""
        self.network.reset_parameters()

    def locate(self, values: Tensor, grid: Grid | None) -> Grid:
        """Check input values and return their grid.

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
            grid: Grid of the values.

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


class PointBranch(nn.Module):
    """b(a) = H(mean over x of E(a(x), x)): K coefficients in each of g groups for an input a, from its values at any points.

    E and H are networks, and the mean is an integral by quadrature weights, so samples may have different points: their
    order has no effect, nor have points of weight zero. Memory is linear in points: p * layers.width numbers per sample and
    layer of E.

    Args:
        in_channels: Channels of the input.
        domain: A uniform grid on the domain of the points.
        harmonics: Harmonics of a periodic axis that E is shown.
        groups: g.
        basis: K.
        layers: Hidden layers of each network; the mean has as many numbers as they are wide.

    Raises:
        ArgumentError: If a size is not a positive integer.

    Reference:
        Zaheer et al. (2017), Deep sets, section 2. Deviation: quadrature weights.
    """

    def __init__(
        self, in_channels: int, *, domain: Grid, harmonics: int, groups: int, basis: int, layers: HiddenLayers
    ) -> None:
        super().__init__()
        self.in_channels = check_integer(in_channels, "in_channels")
        self.domain, self.harmonics, self.groups, self.basis = domain, harmonics, groups, basis
        self.normalizer = ChannelNormalizer(in_channels)
        self.encoder = MLP(in_channels + point_features(domain, harmonics=harmonics), layers.width, layers=layers)
        self.network = MLP(layers.width, groups * basis, layers=layers)

    def reset_parameters(self) -> None:
        """Reinitialise all weights; the normaliser keeps its units."""
        self.encoder.reset_parameters()
        self.network.reset_parameters()

    def locate(self, values: Tensor, grid: Grid | None) -> Grid:
        """Check input values and return their grid.

        Args:
            values: `(n, in_channels, *grid)`.
            grid: One grid or a batch; None is a uniform grid on the domain.

        Raises:
            ShapeError: If the values are not of that shape, or a batch has another number of grids.
            DataError: If they are of another dtype than the network.
            GridError: If points lie outside the domain.
        """
        where = self.domain if grid is None else check_grid(grid)
        check_input(values, channels=self.in_channels, dimension=len(where.shape), dtype=next(self.network.parameters()).dtype)
        where = where.resized(tuple(values.shape[2:])) if grid is None else where
        check_on_grid(values, where)
        check_samples(where, values)
        check_in_domain(where, self.domain, name="inputs")
        return where

    def forward(self, values: Float[Tensor, "n c *grid"], grid: Grid) -> Float[Tensor, "n g k"]:
        """Describe samples on a grid, or on a batch of grids; see `SensorBranch`."""
        units = self.normalizer(values).flatten(2).mT
        position = point_embedding(grid.points, self.domain, harmonics=self.harmonics).to(units)
        features = torch.cat([units, position.expand(*units.shape[:2], -1)], dim=-1)
        encoded = self.encoder(features.flatten(0, 1)).unflatten(0, units.shape[:2]).mT
        with outside_of_export():
            weights = grid.sample_weights
        mean = (encoded * weights.to(encoded)).sum(-1)
        return self.network(mean).unflatten(1, (self.groups, self.basis))


@outside_of_export()
def check_in_domain(grid: Grid, domain: Grid, *, name: str) -> None:
    """Raise a GridError unless a uniform grid is on the domain of another one, or scattered points lie in it."""
    fits = grid.dimension == domain.dimension
    if fits and grid.is_uniform:
        fits = grid.domain == domain.domain
    elif fits:
        points = grid.points[grid.weights > 0] if grid.has_points_per_sample else grid.points
        for axis, along in zip(domain.axes, points.unbind(1), strict=True):
            low, high = axis.origin - 1e-9 * axis.length, axis.origin + (1.0 + 1e-9) * axis.length
            fits &= axis.periodic or bool(((along >= low) & (along <= high)).all())
    if not fits:
        raise GridError(
            expected=f"{name} in the outputs' domain, that of {domain!r}",
            got=repr(grid),
            remedy="build the operator with a domain= of all points, or give query= there, uniform on all of it or scattered",
        )


class GroupedLinear(nn.Module):
    """u_c(x) = sum over k of W_ck phi_ck(x) + b_c: pointwise, and channel c sees the features of channel c only.

    It begins as the plain sum over k, so only the features are drawn at random. A last-layer posterior varies the
    weights of a channel for its own features only.

    Args:
        channels: Number of output channels c.
        features: Number of features per channel, ordered channel by channel.

    Raises:
        ArgumentError: If a size is not a positive integer.

    Examples:
        >>> GroupedLinear(2, 3)(torch.ones(1, 6, 4))[0, :, 0].tolist()
        [3.0, 3.0]
    """

    def __init__(self, channels: int, features: int) -> None:
        super().__init__()
        self.channels = check_integer(channels, "channels")
        self.features = check_integer(features, "features")
        self.weight = nn.Parameter(torch.empty(self.channels, self.features))
        self.bias = nn.Parameter(torch.empty(self.channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return to the plain sum."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, values: Float[Tensor, "n features *grid"]) -> Float[Tensor, "n c *grid"]:
        """Map `(n, channels * features, *grid)` to `(n, channels, *grid)`."""
        grouped = values.flatten(2).unflatten(1, (self.channels, self.features))
        flat = torch.matmul(self.weight[:, None], grouped)[:, :, 0] + self.bias[:, None]
        return flat.unflatten(-1, values.shape[2:])

    def contract(
        self,
        coefficients: Float[Tensor, "n c features"],
        functions: Float[Tensor, "b c features *grid"],
        *,
        units: ChannelNormalizer,
    ) -> Float[Tensor, "n c *grid"]:
        """Apply the layer, and the units of its outputs, to products of coefficients and basis functions.

        The products are n x c x features x p numbers. A hook on the layer sees them, so where there is one they are formed;
        elsewhere weights and units go into the coefficients, and one matrix product is left. Autocast leaves it alone: means
        may be far larger than deviations from them.

        Args:
            coefficients: `(n, c, features)`.
            functions: Basis functions, `(b, c, features, *grid)`, with b = 1 if all samples share them, else n.
            units: Normaliser of the outputs, whose inverse is applied.

        Returns:
            `(n, c, *grid)`, in the units' units.
        """
        with unrounded(functions.device):
            return self._contract(coefficients.to(self.weight.dtype), functions.to(self.weight.dtype), units=units)

    def _contract(self, coefficients: Tensor, functions: Tensor, *, units: ChannelNormalizer) -> Tensor:
        shape = functions.shape[3:]
        flat = functions.flatten(3)
        if self._forward_hooks or self._forward_pre_hooks:
            products = coefficients[..., None] * flat
            return units.inverse(self(products.flatten(1, 2).unflatten(-1, shape)))
        weighted = coefficients * (self.weight * units.scale[:, None])
        bias = torch.addcmul(units.mean, self.bias, units.scale)[:, None]
        if flat.shape[0] > 1:
            return (torch.matmul(weighted[:, :, None], flat)[:, :, 0] + bias).unflatten(-1, shape)
        if self.channels == 1:
            return torch.addmm(bias, weighted[:, 0], flat[0, 0])[:, None].unflatten(-1, shape)
        return torch.baddbmm(bias[:, None], weighted.movedim(1, 0), flat[0]).movedim(0, 1).unflatten(-1, shape)

    def extra_repr(self) -> str:
        """Sizes, for printing."""
        return f"{self.channels}, {self.features}"
