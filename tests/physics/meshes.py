"""Meshes of the unit square."""

from __future__ import annotations

import torch

from probneural.grids import Grid
from tests.helpers import uniform


def square(size: int, *, jitter: float = 0.0) -> Grid:
    """A mesh of `size` points per side, two triangles per square; inner points are moved by a fraction of the spacing."""
    points = Grid.uniform((size, size), periodic=False).points
    inside = ((points > 1e-9) & (points < 1 - 1e-9)).all(1, keepdim=True)
    points = points + inside * jitter / (size - 1) * (uniform(size**2, 2) - 0.5)
    index = torch.arange(size**2).reshape(size, size)
    a, b, c, d = (index[:-1, :-1], index[1:, :-1], index[:-1, 1:], index[1:, 1:])
    return Grid.mesh(points, torch.cat([torch.stack(corners, -1).reshape(-1, 3) for corners in ((a, b, d), (a, d, c))]))


def irregular(size: int) -> Grid:
    """The mesh with moved points."""
    return square(size, jitter=0.6)
