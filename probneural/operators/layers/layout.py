"""The memory layout of hidden states: grid axes first, then functions, then channels.

Layers take and return `(n, c, *grid)`. Inside, they work on `(*grid, n, c)`: a layer over channels is then one matrix product
over all points and functions, and a transform along an axis is one over all functions and channels, without a copy between the
two. A tensor that lies so keeps its shape `(n, c, *grid)`, as with PyTorch's `channels_last`: only strides differ.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def grid_first(values: Float[Tensor, "n c *grid"]) -> Float[Tensor, "*grid n c"]:
    """View `(n, c, *grid)` as `(*grid, n, c)`."""
    return values.permute(*range(2, values.ndim), 0, 1)


def functions_first(values: Float[Tensor, "*grid n c"]) -> Float[Tensor, "n c *grid"]:
    """View `(*grid, n, c)` as `(n, c, *grid)`."""
    return values.permute(-2, -1, *range(values.ndim - 2))


def channels_innermost(values: Float[Tensor, "n c *grid"]) -> Float[Tensor, "n c *grid"]:
    """Copy values so that they lie as `(*grid, n, c)`, unless they do."""
    return functions_first(grid_first(values).contiguous())
