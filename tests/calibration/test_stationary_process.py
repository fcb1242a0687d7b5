"""Which waves of a discrepancy are kept."""

from __future__ import annotations

import math

import torch

from probneural.calibration.stationary_process import StationaryProcess
from probneural.grids import Grid
from tests.helpers import normal


def test_waves_of_little_power_are_kept_where_errors_are_smooth() -> None:
    grid = Grid.uniform(64)
    x = grid.points[:, 0]
    sizes = torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64)
    basis = torch.cat([torch.stack([wave(2 * math.pi * k * x) for k in range(1, 4)]) for wave in (torch.cos, torch.sin)])
    values = (normal(400, 1, 6, seed=0) * sizes.repeat(2)) @ basis
    process = StationaryProcess.estimated(values, grid)
    assert set(process.modes.flatten().tolist()) >= {1, 2, 3, 4, 5, 6}  # the smallest have a ten thousandth of the power
