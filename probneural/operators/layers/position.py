"""Coordinates as input channels, in a form that does not depend on the resolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.contexts import remembered
from probneural.errors import ArgumentError
from probneural.grids import Grid

Embedding = bool | Literal["linear"]
"""Whether coordinates are input channels; `"linear"`: as they are on every axis, a periodic one included."""


REMEMBERED_POINTS = 2**16
"""Maximum number of grid points for cached positions; on larger grids their cost is negligible."""


def check_embedding(value: object) -> Embedding:
    """Return an embedding.

    Raises:
        ArgumentError: If it is neither a truth value nor `"linear"`.
    """
    if value == "linear" and isinstance(value, str):
        return "linear"
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(
            expected='True, False or "linear" as embeds_position', got=repr(value), remedy="write one of the three"
        )
    return bool(value)


def position_channels(embedding: Embedding, periodic: Sequence[bool]) -> int:
    """Number of channels that an embedding adds: two on a periodic axis, one on any other and wherever it is linear."""
    if embedding == "linear":
        return len(periodic)
    return sum(2 if flag else 1 for flag in periodic) if embedding else 0


def position_embedding(
    grid: Grid, like: Tensor, *, embedding: Embedding = True, continuation: str = "even"
) -> Float[Tensor, "1 c *grid"]:
    """Return the coordinates of a uniform grid as channels.

    A periodic axis gives the sine and cosine of its phase, since a linear coordinate jumps where the domain closes; any other
    axis gives its coordinate scaled to [-1, 1]. A linear embedding has the coordinate of every axis, which on an axis that is
    transformed as periodic goes from -1 to 1 over one period, its jump included.

    Args:
        grid: A uniform grid.
        like: Tensor with the dtype and device of the result.
        embedding: True, or `"linear"`.
        continuation: Continuation of non-periodic axes, see `SpectralConv`.

    Returns:
        `(1, channels, *grid.shape)`, dimensionless.
    """
    compute = _remembered_channels if grid.size <= REMEMBERED_POINTS else _channels
    return compute(grid, embedding, continuation, like.dtype, like.device).detach()


def _channels(grid: Grid, embedding: Embedding, continuation: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    channels = []
    for number, axis in enumerate(grid.axes):
        turn = (axis.coordinates - axis.origin) / axis.length
        if embedding == "linear":
            closes = axis.periodic or continuation == "periodic"
            kinds = [2 * (torch.arange(axis.size, dtype=turn.dtype, device="cpu") / axis.size if closes else turn) - 1]
        else:
            kinds = [torch.sin(2 * torch.pi * turn), torch.cos(2 * torch.pi * turn)] if axis.periodic else [2 * turn - 1]
        shape = [1] * grid.dimension
        shape[number] = axis.size
        channels += [kind.reshape(shape).expand(grid.shape) for kind in kinds]
    return torch.stack(channels)[None].to(device, dtype)


_remembered_channels = remembered(2**26)(_channels)


def point_embedding(points: Float64[Tensor, "*p d"], domain: Grid, *, harmonics: int) -> Float64[Tensor, "*p e"]:
    """Return coordinates of points in the domain of a uniform grid as features.

    A periodic axis gives the sines and cosines of its phase times 1, 2, ... `harmonics`, any other axis its coordinate scaled
    to [-1, 1].
    """
    columns = []
    for axis, along in zip(domain.axes, points.unbind(-1), strict=True):
        turn = (along - axis.origin) / axis.length
        if axis.periodic:
            orders = torch.arange(1, harmonics + 1, dtype=turn.dtype, device=turn.device)
            phases = 2.0 * math.pi * torch.remainder(turn[..., None] * orders, 1.0)
            columns.append(torch.stack([phases.sin(), phases.cos()], dim=-1).flatten(-2))
        else:
            columns.append(2.0 * turn[..., None] - 1.0)
    return torch.cat(columns, dim=-1)


def point_features(domain: Grid, *, harmonics: int) -> int:
    """Number of features e of `point_embedding`."""
    return sum(2 * harmonics if flag else 1 for flag in domain.periodic)
