"""Which waves of a discrepancy are kept."""

from __future__ import annotations

import math

import pytest
import torch

from probneural.calibration.variance.stationary_process import Waves, evaluate_waves, waves_of
from probneural.grids import Grid
from tests.helpers import normal


def test_waves_of_little_power_are_kept_where_errors_are_smooth() -> None:
    grid = Grid.uniform(64)
    x = grid.points[:, 0]
    sizes = torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64)
    basis = torch.cat([torch.stack([wave(2 * math.pi * k * x) for k in range(1, 4)]) for wave in (torch.cos, torch.sin)])
    values = (normal(400, 1, 6, seed=0) * sizes.repeat(2)) @ basis
    waves = Waves(grid)
    process = waves.process(waves.coefficients(values).square().mean(0))
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


@pytest.mark.parametrize("most", [31, 32, 128])
def test_what_is_kept_is_stationary(most: int) -> None:
    """A cosine without its sine has a correlation that varies along the axis."""
    grid = Grid.uniform(256)
    waves = Waves(grid)
    process = waves.process(torch.exp(-0.002 * waves.frequencies.double().square().sum(1))[None], most=most)
    root = process.evaluate(grid)[0]
    assert root.shape[1] <= most
    for lag in (1, 7, 100):
        correlation = (root * root.roll(lag, 0)).sum(1)
        torch.testing.assert_close(correlation, correlation[:1].expand(256), rtol=0.0, atol=1e-13)


def test_waves_that_are_enough_are_kept_whole() -> None:
    """In the plane, a frequency has up to four waves."""
    grid = Grid.uniform((8, 8))
    waves = Waves(grid)
    power = torch.zeros(1, len(waves), dtype=torch.float64)
    power[0, (waves.frequencies == 2).all(1)] = 0.9999 / 4.0
    power[0, (waves.frequencies == 4).all(1)] = 1e-4 / 4.0
    process = waves.process(power)
    assert process.modes.shape == (1, 8, 2)
    assert int((process.amplitudes > 0).sum()) == 8
    assert waves.process(power, most=7).modes.shape == (1, 4, 2)
    alone = waves.process(power, most=3)  # more cannot be had
    assert alone.modes.shape == (1, 3, 2)
    assert bool((alone.amplitudes > 0).all())


@pytest.mark.parametrize(
    ("shape", "periodic"),
    [((40,), (True,)), ((3000,), (True,)), ((3000,), (False,)), ((40, 50), (True, False)), ((16, 13, 20), (True, True, False))],
)
def test_candidates_are_the_lowest_of_all_products(shape: tuple[int, ...], periodic: tuple[bool, ...]) -> None:
    waves, frequencies = waves_of(Grid.uniform(shape, periodic=periodic))
    counts = [2 * ((size - 1) // 2) + 1 if flag else size - 1 for size, flag in zip(shape, periodic, strict=True)]
    every = torch.cartesian_prod(*(torch.arange(count) for count in counts)).reshape(-1, len(shape))
    half_periods = torch.where(torch.tensor(periodic), 2 * ((every + 1) // 2), every)
    lowest = half_periods.square().sum(1).argsort(stable=True)[: len(waves)]
    assert torch.equal(waves, every[lowest])
    assert torch.equal(frequencies, half_periods[lowest])
    assert len(waves) > min(len(every), 1024) - 8  # a group in part, at the end, is left out
    different, present = frequencies.unique(dim=0, return_counts=True)
    assert torch.equal(present, 2 ** ((different > 0) & torch.tensor(periodic)).sum(1))
