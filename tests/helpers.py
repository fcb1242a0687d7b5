"""What tests of all layers share: random numbers that follow from a seed or a name, grids, functions."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from probneural.grids import Grid

DTYPE = torch.float64


def generator(seed: int | str = 0) -> torch.Generator:
    """A generator that follows from a number or a name."""
    return torch.Generator().manual_seed(zlib.crc32(seed.encode()) if isinstance(seed, str) else seed)


def normal(*shape: int, seed: int | str = 0, dtype: torch.dtype = DTYPE) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=generator(seed), dtype=dtype)


def uniform(*shape: int, seed: int | str = 0) -> Tensor:
    """Uniform numbers in [0, 1)."""
    return torch.rand(shape, generator=generator(seed), dtype=DTYPE)


def designs(*shape: int, dimension: int = 2, seed: int | str = 0) -> Tensor:
    """Points of the unit cube, `(*shape, dimension)`."""
    return uniform(*shape, dimension, seed=seed)


def scattered(count: int, dimension: int, *, seed: int = 0) -> Grid:
    """Points of the unit cube, with equal weights."""
    points = designs(count, dimension=dimension, seed=seed)
    return Grid.scattered(points, torch.full((count,), 1.0 / count))


class BandLimited:
    """A random real function whose frequencies have every sign and magnitudes up to `highest` along each axis."""

    def __init__(self, highest: Sequence[int], *, lengths: Sequence[float], origin: Sequence[float], seed: int = 0) -> None:
        ranges = [range(-top, top + 1) for top in highest]
        self.frequencies = torch.tensor(list(product(*ranges)), dtype=DTYPE)
        count = len(self.frequencies)
        self.cosines, self.sines = normal(2, count, seed=seed) / math.sqrt(count)
        self.lengths, self.origin = torch.tensor(lengths, dtype=DTYPE), torch.tensor(origin, dtype=DTYPE)

    def __call__(self, points: Tensor) -> Tensor:
        angle = 2 * math.pi * ((points - self.origin) / self.lengths) @ self.frequencies.T
        return angle.cos() @ self.cosines + angle.sin() @ self.sines

    def on(self, grid: Grid) -> Tensor:
        return self(grid.points).reshape(grid.shape)
