"""The Fourier neural operator in one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_flag, check_integer
from probneural.fields import FieldPairs
from probneural.grids import Grid, per_axis, resample
from probneural.operators.base import Operator, initial_weights
from probneural.operators.checks import check_carries, check_input, check_modes, check_where
from probneural.operators.layers import (
    ChannelNormalizer,
    PointwiseLinear,
    SpectralConv,
    channels_innermost,
    position_channels,
    position_embedding,
)


class FNO(Operator):
    """Lift, `depth` blocks h -> gelu(Kh + Wh + b) with spectral convolutions K, and a two-layer pointwise projection.

    The last block has no activation. The output is evaluated anywhere by interpolating the last hidden state, which is exact
    on periodic axes that resolve it, and projecting it there. Without a position embedding and on periodic axes the
    operator commutes with translations.

    Args:
        in_channels: Channels of the inputs.
        out_channels: Channels of the outputs.
        modes: Frequencies |k| < m kept per axis; their number sets the dimension, 1 to 3.
        width: Channels of the hidden states.
        depth: Number of blocks.
        projection: Channels between the two projection layers, which a last-layer posterior has as features.
        periodic: Whether each axis is periodic; others are continued evenly (see `SpectralConv`).
        embeds_position: Whether coordinates are added as input channels. Off by default; problems with boundaries need it.
        seed: Names the initial weights; by default they come from torch's global generator.

    Raises:
        ArgumentError: If a size is not a positive integer, or the dimension is not 1, 2 or 3.

    Reference:
        Li et al. (2021), Fourier neural operator for parametric partial differential equations.

    Examples:
        >>> operator = FNO(in_channels=1, out_channels=2, modes=(4, 4), width=8, depth=2)
        >>> operator(torch.zeros(3, 1, 16, 16)).shape
        torch.Size([3, 2, 16, 16])
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
        periodic: bool | Sequence[bool] = True,
        embeds_position: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_integer(in_channels, "in_channels")
        self.out_channels = check_integer(out_channels, "out_channels")
        self.width = width = check_integer(width, "width")
        self.depth = depth = check_integer(depth, "depth")
        projection = check_integer(projection, "projection")
        self.modes = check_modes(modes)
        self.periodic = per_axis(periodic, len(self.modes), "periodic", check_flag)
        self.embeds_position = check_flag(embeds_position, "embeds_position")
        extra = position_channels(self.periodic) if embeds_position else 0
        self.input_normalizer = ChannelNormalizer(in_channels)
        self.output_normalizer = ChannelNormalizer(out_channels)
        with initial_weights(seed):
            self.lift = PointwiseLinear(in_channels + extra, width)
            self.spectral = nn.ModuleList(
                SpectralConv(width, width, modes=self.modes, periodic=self.periodic) for _ in range(depth)
            )
            self.pointwise = nn.ModuleList(PointwiseLinear(width, width) for _ in range(depth))
            self.projection = PointwiseLinear(width, projection)
            self.readout = PointwiseLinear(projection, out_channels)

    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate; see the base class.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`.
            DataError: If they are of another dtype than the operator.
            GridError: If the grid does not fit the values or the operator's periodicity.
            ResolutionError: If an axis has fewer than 2m - 1 points.
        """
        check_input(values, channels=self.in_channels, dimension=len(self.modes), dtype=self.readout.weight.dtype)
        check_where(grid, query)
        where = Grid.uniform(tuple(values.shape[2:]), periodic=self.periodic) if grid is None else grid
        check_carries(where, values, periodic=self.periodic)
        hidden = self.input_normalizer(values)
        if self.embeds_position:
            position = position_embedding(where, hidden)
            hidden = torch.cat([hidden, position.expand(hidden.shape[0], *position.shape[1:])], dim=1)
        hidden = self.lift(channels_innermost(hidden))
        last = len(self.spectral) - 1
        for number, (spectral, pointwise) in enumerate(zip(self.spectral, self.pointwise, strict=True)):
            hidden = spectral(hidden, endpoint=where.endpoint, pointwise=pointwise)
            if number < last:
                hidden = _gelu_of_output(hidden, spectral)
        if query is not None:
            hidden = resample(hidden, where, query)
        features = _gelu_of_output(self.projection(hidden), self.projection)
        return self.output_normalizer.inverse(self.readout(features)).contiguous()

    def configuration(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return super().configuration() | {"projection": self.projection.out_channels}

    def reset_parameters(self) -> None:
        """Draw all weights anew from their initial distributions; normalisers keep their units."""
        for module in self.modules():
            if isinstance(module, (SpectralConv, PointwiseLinear)):
                module.reset_parameters()

    def fit_normalizers(self, train: FieldPairs) -> None:
        """Take means and scales from training data."""
        self.input_normalizer.fit(train.inputs)
        self.output_normalizer.fit(train.outputs)


def _gelu_of_output(values: Tensor, layer: nn.Module) -> Tensor:
    """Activate what a layer has just returned: in its memory where nothing else refers to it, be it a gradient or a hook."""
    is_watched = layer._forward_hooks or nn.modules.module._global_forward_hooks
    is_transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if torch.is_grad_enabled() or is_watched or is_transformed:
        return nn.functional.gelu(values)
    result: Tensor = torch.ops.aten.gelu_(values)
    return result
