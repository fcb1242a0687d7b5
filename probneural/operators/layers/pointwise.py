"""Pointwise layers over channels, and the memory layout of hidden states: grid axes first, then samples, then channels.

Layers take and return `(n, c, *grid)`. Inside, they work on `(*grid, n, c)`: a layer over channels is then one matrix product
over all points and samples, and a transform along an axis is one over all samples and channels, without a copy between the
two. A tensor that lies so keeps its shape `(n, c, *grid)`, as with PyTorch's `channels_last`: only strides differ.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_integer
from probneural.contexts import unrounded


class PointwiseLinear(nn.Module):
    """y_o(x) = sum over i of W_oi u_i(x) + b_o, on any grid, as one matrix product.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.

    Raises:
        ArgumentError: If a number of channels is not a positive integer.

    Examples:
        >>> PointwiseLinear(2, 3)(torch.ones(5, 2, 4, 4)).shape
        torch.Size([5, 3, 4, 4])
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels = check_integer(in_channels, "in_channels")
        self.out_channels = check_integer(out_channels, "out_channels")
        self.weight = nn.Parameter(torch.empty(self.out_channels, self.in_channels))
        self.bias = nn.Parameter(torch.empty(self.out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights uniform in +-1/sqrt(in_channels), as `nn.Linear` does."""
        bound = 1.0 / math.sqrt(self.in_channels)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, values: Float[Tensor, "n in *grid"]) -> Float[Tensor, "n out *grid"]:
        """Map `(n, in_channels, *grid)` to `(n, out_channels, *grid)`, in the memory layout that the values have."""
        if values.stride(1) == 1:  # channels lie innermost: see `layout`
            rows = grid_first(values)
            if self.out_channels == 1:  # the gradient of a matrix of one column is slow
                return functions_first((torch.matmul(rows, self.weight[0]) + self.bias)[..., None])
            return functions_first(nn.functional.linear(rows, self.weight, self.bias))
        weight, bias = self.weight.expand(values.shape[0], -1, -1), self.bias[:, None].expand(values.shape[0], -1, 1)
        return torch.baddbmm(bias, weight, values.flatten(2)).unflatten(-1, values.shape[2:])

    def extra_repr(self) -> str:
        """Channels, for printing."""
        return f"{self.in_channels}, {self.out_channels}"


class ReadoutLinear(PointwiseLinear):
    """The last layer of an operator, without autocast, which would round every output to 8 or 11 bits."""

    def forward(self, values: Float[Tensor, "n in *grid"]) -> Float[Tensor, "n out *grid"]:
        """Map `(n, in_channels, *grid)` to `(n, out_channels, *grid)`, in the precision of the weights under autocast."""
        if not torch.is_autocast_enabled(values.device.type):
            return super().forward(values)
        with unrounded(values.device):
            return super().forward(values.to(self.weight.dtype))


def grid_first(values: Float[Tensor, "n c *grid"]) -> Float[Tensor, "*grid n c"]:
    """View `(n, c, *grid)` as `(*grid, n, c)`."""
    return values.permute(*range(2, values.ndim), 0, 1)


def functions_first(values: Float[Tensor, "*grid n c"]) -> Float[Tensor, "n c *grid"]:
    """View `(*grid, n, c)` as `(n, c, *grid)`."""
    return values.permute(-2, -1, *range(values.ndim - 2))


def channels_innermost(values: Float[Tensor, "n c *grid"]) -> Float[Tensor, "n c *grid"]:
    """Copy values so that they lie as `(*grid, n, c)`, unless they do."""
    return functions_first(grid_first(values).contiguous())
