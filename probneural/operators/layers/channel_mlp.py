"""A pointwise network between convolutions, beside a gate on what went into them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.operators.layers.layout import functions_first, grid_first
from probneural.operators.layers.pointwise import PointwiseLinear


class ChannelMLP(nn.Module):
    """(v, h) -> B gelu(Av + a) + b + g h at every point, with one gate g per channel, which begins as 1.

    Args:
        channels: Channels of v, of h and of the result.
        hidden: Channels between A and B.

    Attributes:
        gate: g, `(channels,)`, dimensionless.

    Raises:
        ArgumentError: If a number of channels is not a positive integer.

    Reference:
        Kossaifi et al. (2024), Multi-grid tensorized Fourier neural operator for high-resolution PDEs.

    Examples:
        >>> layer = ChannelMLP(3, 2)
        >>> layer(torch.ones(5, 3, 4), torch.ones(5, 3, 4)).shape
        torch.Size([5, 3, 4])
    """

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.first = PointwiseLinear(channels, hidden)
        self.second = PointwiseLinear(hidden, channels)
        self.gate = nn.Parameter(torch.empty(self.first.in_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights anew as `PointwiseLinear` does, and open the gate."""
        self.first.reset_parameters()
        self.second.reset_parameters()
        nn.init.ones_(self.gate)

    def forward(self, values: Float[Tensor, "n c *grid"], skipped: Float[Tensor, "n c *grid"]) -> Float[Tensor, "n c *grid"]:
        """Map v and h, both `(n, channels, *grid)`, to the same shape."""
        mixed = self.second(nn.functional.gelu(self.first(values)))
        return functions_first(torch.addcmul(grid_first(mixed), grid_first(skipped), self.gate))
