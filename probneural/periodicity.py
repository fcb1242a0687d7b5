"""Whether functions look as periodic as their grid says."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from probneural.errors import DataWarning
from probneural.grids import Grid
from probneural.notices import warn

_FACTOR = 3.0
"""How many times the largest difference between neighbours a jump has to be."""
_LEAST_POINTS = 8
"""Along an axis: with fewer, neighbours may differ by anything."""
_ROWS, _VALUES = 8, 2**22
"""Functions that are looked at, and values of them all at most."""


def jumping_axes(values: Float[Tensor, "n c *grid"], grid: Grid) -> tuple[int, ...]:
    """Periodic axes along which a channel jumps at the end in most functions: by more than 3 times any step inside.

    A function that is periodic on its axis has no reason to have its largest difference between neighbours just there: square
    waves jump inside as well, and rough functions do so everywhere. Channels that are equal in all functions, coordinates for
    example, are left out. Functions that vanish at both ends cannot be told from periodic ones.

    Examples:
        >>> import torch
        >>> grid = Grid.uniform((32,))
        >>> x = grid.points[:, 0]
        >>> jumping_axes(torch.stack([x, 2 * x])[:, None], grid), jumping_axes(torch.stack([x.cos(), x.sign()])[:, None], grid)
        ((0,), ())
    """
    varying = values[:, (values != values[:1]).flatten(2).any(2).any(0)]
    found = []
    for axis, is_periodic in enumerate(grid.periodic if grid.is_uniform and varying.numel() else ()):
        if is_periodic and grid.shape[axis] >= _LEAST_POINTS:
            lines = varying.movedim(2 + axis, -1)
            step = lines.diff(dim=-1).abs().flatten(2).amax(2)
            jump = (lines[..., :1] - lines[..., -1:]).abs().flatten(2).amax(2)
            if bool(((jump > _FACTOR * step).double().mean(0) > 0.5).any()):
                found.append(axis)
    return tuple(found)


def looked_at(count: int, channels: int, grid: Grid) -> int:
    """How many of `count` functions to look at: the first ones, so few that it costs nothing; 0 if that takes too much."""
    rows = min(_ROWS, count, _VALUES // max(1, channels * grid.size))
    return rows if rows > 1 else 0


def warn_of_jumps(sides: Mapping[str, tuple[Float[Tensor, "n c *_"], Grid]]) -> None:
    """Give one DataWarning if functions jump at the ends of axes that are said to be periodic.

    Args:
        sides: Some functions and their grid, by what messages call them.
    """
    told = [
        f"axis {axis} of the {name}" for name, (values, grid) in sides.items() for axis in jumping_axes(values.detach(), grid)
    ]
    if told:
        warn(
            f"{', '.join(told)}: said to be periodic, but most functions jump from the last point to the first, by more than "
            f"{_FACTOR:g} times the largest difference between neighbours. Operators, interpolation and quadrature rely on it: "
            "say periodic=False (pn.Grid.uniform(shape) alone is periodic) where there are ends",
            DataWarning,
        )
