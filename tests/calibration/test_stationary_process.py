"""Which waves of a discrepancy are kept."""

from __future__ import annotations

import math

import pytest
import torch

from probneural.calibration.stationary_process import StationaryProcess, Waves, evaluate_waves
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


@pytest.mark.parametrize(
    "grid",
    [
        Grid.uniform(20),
        Grid.uniform((7, 6), periodic=(True, False), lengths=(2.0, 0.5)),
        Grid.uniform((5, 4, 6), periodic=(False, True, False)),
        Grid.scattered(normal(30, 2, seed="points"), normal(30, seed="weights").square()),
    ],
    ids=["line", "cylinder", "box", "scattered"],
)
def test_coefficients_are_averages_over_the_domain(grid: Grid) -> None:
    waves, values = Waves(grid), normal(3, 2, grid.size, seed="values")
    basis = evaluate_waves(waves.candidates, grid.points, lower=waves.lower, lengths=waves.lengths, periodic=grid.periodic)
    for number, (wave, column) in enumerate(zip(waves.candidates, basis.mT, strict=True)):
        expected = torch.ones(grid.size, dtype=torch.float64)
        for axis, along in enumerate(wave.tolist()):
            position = (grid.points[:, axis] - waves.lower[axis]) / waves.lengths[axis]
            if grid.periodic[axis]:
                angle = 2.0 * math.pi * ((along + 1) // 2) * position
                shape = angle.cos() if along % 2 or along == 0 else angle.sin()
            else:
                shape = (math.pi * along * position).cos()
            expected = expected * (shape * math.sqrt(2.0) if along else 1.0)
        assert torch.allclose(column, expected, atol=1e-13)
        assert torch.allclose(waves.coefficients(values)[..., number], grid.mean(values * expected), atol=1e-13)


def test_waves_of_large_numbers_take_no_memory_for_those_between() -> None:
    """A file may name any wave."""
    grid = Grid.uniform(8, periodic=False)
    lower, lengths = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    numbers = torch.tensor([[3], [10**15]])
    found = evaluate_waves(numbers, grid.points, lower=lower, lengths=lengths, periodic=(False,))
    assert found.shape == (8, 2)
    assert torch.allclose(found[:, 0], math.sqrt(2.0) * (3.0 * math.pi * grid.points[:, 0]).cos())
