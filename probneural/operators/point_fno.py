"""The Fourier neural operator on any points: meshes, scattered points, uniform grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from probneural.checks import check_flag, check_integer
from probneural.grids import Grid, resample
from probneural.grids.mesh import simplex_volumes
from probneural.operators.base import Operator, initial_weights
from probneural.operators.checks import check_modes
from probneural.operators.layers import ChannelNormalizer, PointwiseLinear, ReadoutLinear
from probneural.operators.layers.box import Box
from probneural.operators.layers.spectral import FrequencyMixing
from probneural.pairs import Dataset
from probneural.registry import stored

_CHUNK_ELEMENTS = 2**23
"""Values of waves per chunk of cells (32 MiB in float32)."""


class QuadratureConv(FrequencyMixing):
    """A convolution with a band-limited kernel on any points x_j with quadrature weights w_j.

    With the volume |B| of a box of lengths L that holds the points, for retained frequencies k:

        c_k = sum_j w_j / |B| exp(-2 pi i k.x_j / L) v_j,    d_k = R_k c_k,    (Kv)(x) = Re sum_k d_k exp(2 pi i k.x / L)

    On a uniform periodic grid it equals `SpectralConv` of the same weight. On other points it converges with the order of the
    quadrature. Points of weight zero have no influence.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        modes: Frequencies |k| < m kept per axis of the box.

    Attributes:
        weight: R as real pairs, `(*retained, in_channels, out_channels, 2)`, as in `SpectralConv`.

    Raises:
        ArgumentError: If a size is not a positive integer.
    """

    def forward(
        self, values: Float[Tensor, "n in p"], *, analysis: Float[Tensor, "b p k2"], synthesis: Float[Tensor, "b2 q k2"]
    ) -> Float[Tensor, "n out q"]:
        """Convolve.

        Args:
            values: At the points, `(n, in_channels, p)`.
            analysis: Weighted basis at the points: see [`FourierBasis.analysis`][probneural.operators.point_fno].
            synthesis: Basis at the points of the output.
        """
        # One matrix product for all samples at the same points; a batch of one would be copied for each.
        analysis, synthesis = (basis[0] if len(basis) == 1 else basis for basis in (analysis, synthesis))
        real, imaginary = (values @ analysis).chunk(2, dim=-1)  # c_k = real - i imaginary
        weight_real, weight_imaginary = self.weight.flatten(0, -4).unbind(-1)
        real_out = torch.einsum("nik,kio->nok", real, weight_real) + torch.einsum("nik,kio->nok", imaginary, weight_imaginary)
        imaginary_out = torch.einsum("nik,kio->nok", real, weight_imaginary) - torch.einsum(
            "nik,kio->nok", imaginary, weight_real
        )
        # Re (d exp(i phase)) = Re d cos(phase) - Im d sin(phase)
        return torch.cat([real_out, -imaginary_out], -1) @ synthesis.mT


class FourierBasis:
    """Cosines and sines of the retained frequencies on a box.

    Args:
        modes: Frequencies |k| < m kept per axis.
        origin: Lower corner of the box, `(d,)`, in the units of the coordinates.
        lengths: Lengths of the box, `(d,)`, in those units.
    """

    def __init__(self, modes: Sequence[int], *, origin: Float[Tensor, " d"], lengths: Float[Tensor, " d"]) -> None:
        self.axes = [torch.tensor([*range(mode), *range(1 - mode, 0)]) for mode in modes[:-1]] + [torch.arange(modes[-1])]
        self.origin, self.lengths = origin.cpu(), lengths.cpu()

    def synthesis(self, grid: Grid, like: Tensor) -> Float[Tensor, "b q k2"]:
        """Values of the basis at a grid's points, cosines first; frequencies of both signs of the last axis are joined."""
        factors = torch.where(self.axes[-1] > 0, 2.0, 1.0).repeat(self._size // len(self.axes[-1]))
        return self._waves(_of_samples(grid.points), like).mul_(factors.to(like))

    def analysis(self, grid: Grid, like: Tensor) -> Float[Tensor, "b p k2"]:
        """Weights of values at a grid's points in their Fourier coefficients on the box.

        On a mesh, values are linear in each cell, and the product with a wave is integrated by the rule of degree 2 with one
        node per corner, x_q = a x_q' + b (sum of the other corners). Elsewhere the grid's quadrature weights are used.

        Reference:
            Stroud (1971), Approximate calculation of multiple integrals, rule T_n: 2-1.
        """
        volume = self.lengths.prod()
        if grid.cells is None or grid.cells.shape[-1] != grid.dimension + 1:
            weights = _of_samples(grid.weights, axes=1) / volume
            return self._waves(_of_samples(grid.points), like).mul_(weights.to(like)[..., None])
        points, cells = _of_samples(grid.points), _of_samples(grid.cells)
        is_cell, corners = cells[..., 0] >= 0, cells.shape[-1]
        rows = torch.arange(len(points))[:, None, None]
        vertices = points[rows, cells.clamp_min(0)]  # (b, m, k, d)
        volumes = torch.where(is_cell, simplex_volumes(vertices), 0.0) / volume / corners
        small = (corners + 1 - math.sqrt(corners + 1)) / (corners * (corners + 1))
        large = 1.0 - (corners - 1) * small
        gathered = torch.zeros(len(points) * points.shape[1], self._size, dtype=like.dtype, device=like.device)
        flat = rows * points.shape[1] + cells.clamp_min(0)
        step = max(1, _CHUNK_ELEMENTS // (flat[:, :1].numel() * self._size))  # cells at a time
        for corner, place, share in zip(vertices.split(step, 1), flat.split(step, 1), volumes.split(step, 1), strict=True):
            nodes = small * corner.sum(2, keepdim=True) + (large - small) * corner
            waves = self._waves(nodes.flatten(1, 2), like).unflatten(1, nodes.shape[1:3]) * share.to(like)[..., None, None]
            parts = small * waves.sum(2, keepdim=True) + (large - small) * waves  # (b, m, k, 2K): of each corner's value
            gathered.index_add_(0, place.flatten().to(like.device), parts.flatten(0, 2))
        return gathered.unflatten(0, points.shape[:2])

    @property
    def _size(self) -> int:
        """Number of cosines and sines."""
        return 2 * math.prod(len(axis) for axis in self.axes)

    def _waves(self, points: Float64[Tensor, "b p d"], like: Tensor) -> Float[Tensor, "b p k2"]:
        """Cosines and sines of 2 pi k.x / L, as products of the exponentials along each axis."""
        turns = 2.0 * math.pi * (points - self.origin) / self.lengths
        product: Tensor | None = None
        for number, frequencies in enumerate(self.axes):
            phases = turns[..., number, None] * frequencies
            along = torch.complex(phases.cos().to(like), phases.sin().to(like))
            product = along if product is None else (product[..., :, None] * along[..., None, :]).flatten(-2)
        assert product is not None  # there is an axis
        return torch.cat([product.real, product.imag], -1)


def _of_samples(tensor: Tensor, *, axes: int = 2) -> Tensor:
    """A tensor of a grid with a leading axis of samples, of length 1 if all share it."""
    return tensor if tensor.ndim > axes else tensor[None]


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
