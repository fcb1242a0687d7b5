"""Coordinates as input channels, in a form that does not depend on the resolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.grids import Grid


def position_channels(periodic: Sequence[bool]) -> int:
    """Number of channels that the embedding adds: two on a periodic axis, one on any other."""
    return sum(2 if flag else 1 for flag in periodic)


def position_embedding(grid: Grid, like: Tensor) -> Float[Tensor, "1 c *grid"]:
    """Return the coordinates of a uniform grid as channels.

    A periodic axis gives the sine and cosine of its phase, never a linear coordinate, which would jump where the domain
    closes; any other axis gives its coordinate scaled to [-1, 1].

    Args:
        grid: A uniform grid.
        like: Tensor whose dtype and device to take.

    Returns:
        `(1, channels, *grid.shape)`, dimensionless.
    """
    channels = []
    for number, axis in enumerate(grid.axes):
        turn = (axis.coordinates - axis.origin) / axis.length
        kinds = [torch.sin(2 * torch.pi * turn), torch.cos(2 * torch.pi * turn)] if axis.periodic else [2 * turn - 1]
        shape = [1] * grid.dimension
        shape[number] = axis.size
        channels += [kind.reshape(shape).expand(grid.shape) for kind in kinds]
    return torch.stack(channels)[None].to(like)
