"""The Fourier neural operator on any points: meshes, scattered points, uniform grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from probneural.checks import check_flag, check_integer
from probneural.contexts import outside_of_export
from probneural.errors import GridError, ShapeError
from probneural.grids import Grid, check_on_grid, resample
from probneural.operators.base import Operator, initial_weights
from probneural.operators.checks import check_input, check_modes, check_where
from probneural.operators.layers import ChannelNormalizer, PointwiseLinear, ReadoutLinear
from probneural.operators.layers.quadrature import FourierBasis, QuadratureConv
from probneural.pairs import Dataset
from probneural.registry import stored

_MARGIN = 0.25
"""Extent of the box beyond the training points on axes that are not periodic, in units of their extent: the Fourier series of
a function on the box is periodic, and the margin is where it may return."""
_SLACK = 1e-6
"""Distance outside the box that counts as rounding, in units of its lengths."""


@stored(parts="configuration")
class PointFNO(Operator):
    """A Fourier neural operator whose Fourier coefficients are sums over points with quadrature weights.

    Lift, `depth` blocks h -> gelu(Kh + Wh + b) with convolutions K by quadrature, and a two-layer pointwise projection. Inputs
    live on one mesh per sample, any scattered points with weights, or a uniform grid. On a uniform periodic grid the operator
    equals an `FNO` of equal weights. Sums run over all pairs of points and frequencies: p * K * width operations a block.

    Args:
        in_channels: Channels of the inputs.
        out_channels: Channels of the outputs.
        modes: Frequencies |k| < m kept per axis of a box that holds all points; their number is that of coordinates, 1 to 3.
        width: Channels of the hidden states.
        depth: Number of blocks.
        projection: Channels between the two projection layers, which a last-layer posterior has as features.
        embeds_position: Whether coordinates, scaled to [-1, 1] on the box, are added as input channels.
        seed: Names the initial weights; by default they come from torch's global generator.

    Attributes:
        origin: Lower corner of the box, `(d,)`, in the units of the coordinates. `pn.fit` takes box and units from the training
            data: the extent of a periodic axis, elsewhere the range of the coordinates with a margin.
        lengths: Lengths of the box, `(d,)`.

    Raises:
        ArgumentError: If a size is not a positive integer, or there are more than three axes.

    Reference:
        Li et al. (2023), Fourier neural operator with learned deformations for PDEs on general geometries, section 3 (Fourier
        transforms of point clouds). Deviations: quadrature weights; no deformation.

    Examples:
        >>> operator = PointFNO(in_channels=1, out_channels=1, modes=(4, 4), width=8, depth=2)
        >>> grid = Grid.scattered(torch.rand(50, 2), torch.full((50,), 0.02))
        >>> operator(torch.zeros(3, 1, 50), grid=grid).shape
        torch.Size([3, 1, 50])
    """

    origin: Tensor
    lengths: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        modes: Sequence[int],
        width: int = 32,
        depth: int = 4,
        projection: int = 64,
        embeds_position: bool = True,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_integer(in_channels, "in_channels")
        self.out_channels = check_integer(out_channels, "out_channels")
        self.width = width = check_integer(width, "width")
        self.depth = check_integer(depth, "depth")
        self.modes = check_modes(modes)
        self.embeds_position = check_flag(embeds_position, "embeds_position")
        projection = check_integer(projection, "projection")
        dimension = len(self.modes)
        self.register_buffer("origin", torch.zeros(dimension, dtype=torch.float64))
        self.register_buffer("lengths", torch.ones(dimension, dtype=torch.float64))
        self.input_normalizer = ChannelNormalizer(in_channels)
        self.output_normalizer = ChannelNormalizer(out_channels)
        with initial_weights(seed):
            self.lift = PointwiseLinear(in_channels + dimension * self.embeds_position, width)
            self.spectral = nn.ModuleList(QuadratureConv(width, width, modes=self.modes) for _ in range(self.depth))
            self.pointwise = nn.ModuleList(PointwiseLinear(width, width) for _ in range(self.depth))
            self.projection = PointwiseLinear(width, projection)
            self.readout = ReadoutLinear(projection, out_channels)

    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate; see the base class. On a query, the last block is evaluated at its points.

        Args:
            values: `(n, in_channels, *grid)`, in physical units.
            grid: Where they live: one grid for all samples or a batch; by default a uniform periodic grid of the box.
            query: Where to evaluate the output: one grid or a batch of as many.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`.
            DataError: If they are of another dtype than the operator.
            GridError: If the grid has another number of dimensions, or points outside of the box.
        """
        check_where(grid, query)
        dimension = len(self.modes) if grid is None else len(grid.shape)
        check_input(values, channels=self.in_channels, dimension=dimension, dtype=self.readout.weight.dtype)
        where = self._uniform(values.shape[2:]) if grid is None else grid
        check_on_grid(values, where)
        if where.has_points_per_sample and len(where.weights) != len(values):
            raise ShapeError(
                expected=f"one grid for each of {len(values)} samples",
                got=str(len(where.weights)),
                remedy="select those of these samples: grid.select(rows)",
            )
        basis = FourierBasis(self.modes, origin=self.origin, lengths=self.lengths)
        self._check_inside(where)
        if query is not None:
            self._check_inside(query)
        hidden = self.input_normalizer(values).flatten(2)
        if self.embeds_position:
            position = self._position(where, hidden)
            hidden = torch.cat([hidden, position.expand(len(hidden), -1, -1)], dim=1)
        hidden = self.lift(hidden)
        analysis, synthesis = basis.analysis(where, hidden), basis.synthesis(where, hidden)
        for spectral, pointwise in zip(self.spectral[:-1], self.pointwise[:-1], strict=True):
            hidden = nn.functional.gelu(spectral(hidden, analysis=analysis, synthesis=synthesis) + pointwise(hidden))
        if query is not None and query != where:
            synthesis = basis.synthesis(query, hidden)
        result = self.spectral[-1](hidden, analysis=analysis, synthesis=synthesis)
        local = self.pointwise[-1](hidden)
        if query is not None and query != where:
            local = resample(local.unflatten(-1, where.shape), where, query).flatten(2)
        hidden = (result + local).unflatten(-1, (where if query is None else query).shape)
        features = nn.functional.gelu(self.projection(hidden))
        return self.output_normalizer.inverse(self.readout(features))

    def configuration(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return super().configuration() | {"projection": self.projection.out_channels}

    def fit_normalizers(self, *train: Dataset) -> None:
        """Take means, scales and the box from training data."""
        self.input_normalizer.fit(*(data.inputs for data in train))
        self.output_normalizer.fit(*(data.outputs for data in train))
        corners = [_box(side.grid) for data in train for side in (data.inputs, data.outputs)]
        lower = torch.stack([origin for origin, _ in corners]).amin(0)
        upper = torch.stack([origin + lengths for origin, lengths in corners]).amax(0)
        self.origin.copy_(lower)
        self.lengths.copy_(upper - lower)

    def _check_inside(self, grid: Grid) -> None:
        """Raise a GridError unless points have as many coordinates as the box, and lie inside it."""
        if grid.dimension != len(self.modes):
            raise GridError(
                expected=f"points of {len(self.modes)} coordinates", got=repr(grid), remedy="build it with modes per coordinate"
            )
        with outside_of_export():
            position = (grid.points - self.origin.cpu()) / self.lengths.cpu()
            position = position[grid.weights > 0] if grid.has_points_per_sample else position
            if bool(((position < -_SLACK) | (position > 1.0 + _SLACK)).any()):
                ends = [f"[{low:g}, {low + length:g}]" for low, length in zip(self.origin, self.lengths, strict=True)]
                raise GridError(
                    expected=f"points in the domain of training, the box {' x '.join(ends)}",
                    got=repr(grid),
                    remedy="train on data that cover the domain: the Fourier series repeats outside",
                )

    def _uniform(self, shape: Sequence[int]) -> Grid:
        """The periodic grid of the box with this many points per axis."""
        return Grid.uniform(tuple(shape), lengths=self.lengths.tolist(), origin=self.origin.tolist())

    def _position(self, grid: Grid, like: Tensor) -> Float[Tensor, "b d p"]:
        points = grid.points if grid.has_points_per_sample else grid.points[None]
        return (2.0 * (points - self.origin.cpu()) / self.lengths.cpu() - 1.0).mT.to(like)


def _box(grid: Grid) -> tuple[Float64[Tensor, " d"], Float64[Tensor, " d"]]:
    """Lower corner and lengths of the box of a grid: periods of periodic axes, elsewhere the range of points and a margin."""
    points = grid.points[grid.weights > 0] if grid.is_batch else grid.points
    lower, upper = points.amin(0), points.amax(0)
    for number, axis in enumerate(grid.axes):
        if axis.periodic:
            lower[number], upper[number] = axis.origin, axis.origin + axis.length
    margins = torch.tensor([0.0 if flag else 0.5 * _MARGIN for flag in grid.periodic]) * (upper - lower)
    return lower - margins, upper - lower + 2.0 * margins
