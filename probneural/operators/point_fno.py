"""The Fourier neural operator on any points: meshes, scattered points, uniform grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_flag, check_integer
from probneural.grids import Grid, resample
from probneural.operators.base import Operator, initial_weights
from probneural.operators.checks import check_modes
from probneural.operators.layers import ChannelNormalizer, PointwiseLinear, ReadoutLinear
from probneural.operators.layers.box import Box
from probneural.operators.layers.quadrature import FourierBasis, QuadratureConv
from probneural.pairs import Dataset
from probneural.registry import stored


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
        projection: Number of channels between the two projection layers, the features of a last-layer posterior.
        embeds_position: Whether coordinates, scaled to [-1, 1] on the box, are added as input channels.
        seed: Names the initial weights; by default they come from torch's global generator.

    Attributes:
        box: The box of the Fourier series, with `origin` and `lengths`, `(d,)`, in the units of the coordinates. `pn.fit` takes
            it from the training data: the extent of a periodic axis, elsewhere the range of the coordinates with a margin.

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
        self.box = Box(dimension)
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
            grid: Grid of the inputs: one for all samples or a batch; by default a uniform periodic grid of the box.
            query: Grid of the outputs: one or a batch of n.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`.
            DataError: If they are of another dtype than the operator.
            GridError: If the grid has another number of dimensions, or points outside of the box.
        """
        dtype = self.readout.weight.dtype
        where, target = self.box.locate(values, grid, query=query, channels=self.in_channels, dtype=dtype)
        basis = FourierBasis(self.modes, origin=self.box.origin, lengths=self.box.sides)
        hidden = self.input_normalizer(values).flatten(2)
        if self.embeds_position:
            position = (2.0 * self.box.turns(where) - 1.0).mT.to(hidden)
            hidden = torch.cat([hidden, position.expand(len(hidden), -1, -1)], dim=1)
        hidden = self.lift(hidden)
        analysis, synthesis = basis.analysis(where, hidden), basis.synthesis(where, hidden)
        for spectral, pointwise in zip(self.spectral[:-1], self.pointwise[:-1], strict=True):
            hidden = nn.functional.gelu(spectral(hidden, analysis=analysis, synthesis=synthesis) + pointwise(hidden))
        is_elsewhere = target is not where and target != where
        if is_elsewhere:
            synthesis = basis.synthesis(target, hidden)
        result = self.spectral[-1](hidden, analysis=analysis, synthesis=synthesis)
        local = self.pointwise[-1](hidden)
        if is_elsewhere:
            local = resample(local.unflatten(-1, where.shape), where, target).flatten(2)
        hidden = (result + local).unflatten(-1, target.shape)
        features = nn.functional.gelu(self.projection(hidden))
        return self.output_normalizer.inverse(self.readout(features))

    def configuration(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return super().configuration() | {"projection": self.projection.out_channels}

    def fit_normalizers(self, *train: Dataset) -> None:
        """Take means, scales and the box from training data."""
        super().fit_normalizers(*train)
        self.box.fit(*train)
