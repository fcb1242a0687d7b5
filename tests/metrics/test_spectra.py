from __future__ import annotations

import math

import pytest
import torch

from probneural.distributions import EmpiricalField
from probneural.errors import GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import compare, power_spectrum
from probneural.metrics.spectra import compared_spectra, spectrum_error, spectrum_ratio
from tests.helpers import normal
from tests.metrics.cases import GRIDS, gaussian, truth_for


@pytest.mark.parametrize("shape", [(16,), (15,), (8, 12), (4, 6, 5)])
def test_power_is_the_variance(shape: tuple[int, ...]) -> None:
    values = normal(3, 2, *shape, seed=1)
    spectrum = power_spectrum(values, Grid.uniform(shape, lengths=2.0))
    torch.testing.assert_close(spectrum.power.sum(-1), values.flatten(2).var(-1, correction=0))


def test_waves_are_found_in_their_octaves() -> None:
    """Waves over the longest side: on a domain of 2 by 1, k waves along the short side are 2 k of them."""
    grid = Grid.uniform((16, 16), lengths=(2.0, 1.0))
    x, y = 2 * math.pi * grid.points.T.reshape(2, 16, 16)
    values = torch.stack([(1.5 * x).cos(), 3.0 * (2 * y).sin(), (0.5 * x + y).cos() + 7.0])
    edges, power = power_spectrum(values, grid)
    assert edges[:4].tolist() == [1.0, 2.0, 4.0, 8.0]
    expected = torch.zeros_like(power)
    expected[0, 1], expected[1, 2], expected[2, 1] = 0.5, 4.5, 0.5  # 3; 4; √(1 + 4)
    torch.testing.assert_close(power, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("endpoint", [True, False])
def test_axes_with_ends_have_cosines(endpoint: bool) -> None:
    grid = Grid.uniform(33, periodic=False, endpoint=endpoint)
    x = grid.points[:, 0] if endpoint else grid.points[:, 0] + 0.5 / 33
    edges, power = power_spectrum((math.pi * 6 * x).cos()[None], grid)  # 3 waves
    assert edges[0] == 0.5
    assert power[0, 2].item() == pytest.approx(0.5, rel=0.05)
    assert power[0].sum().item() == pytest.approx(0.5, rel=0.05)
    straight = power_spectrum(x[None], grid).power[0]
    assert straight[0] > 0.98 * straight.sum()  # no jump, as a periodic continuation would have


def test_draws_are_compared_not_the_mean() -> None:
    grid = Grid.uniform(32)
    samples = normal(9, 400, 1, 32, seed=2)
    truth = Field(normal(400, 1, 32, seed=3), grid)
    true, drawn = compared_spectra(compare(EmpiricalField(samples, grid=grid), truth))
    torch.testing.assert_close(drawn, power_spectrum(samples, grid).power.mean(0))
    ratio = spectrum_ratio(true.power.mean(0), drawn.mean(0), eps=1e-16)
    torch.testing.assert_close(ratio, torch.ones(5).double(), rtol=0.15, atol=0)
    noisy = Field(truth.values + 2.0 * normal(400, 1, 32, seed=4), grid)
    true, drawn = compared_spectra(compare(EmpiricalField(samples, grid=grid), noisy, noise=4.0))
    ratio = spectrum_ratio(true.power.mean(0), drawn.mean(0), eps=1e-16)
    torch.testing.assert_close(ratio, torch.ones(5).double(), rtol=0.2, atol=0)


def test_a_gaussian_field_is_drawn_from() -> None:
    u = gaussian(GRIDS["periodic"], n=2)
    _, drawn = compared_spectra(compare(u, truth_for(u)), draws=3000)
    root = u.root.dense()
    expected = power_spectrum(u.mean, u.grid).power + power_spectrum(root.movedim(-1, 0), u.grid).power.sum(0)
    torch.testing.assert_close(drawn, expected, rtol=0.12, atol=0)


def test_the_error_is_that_of_bands_with_power() -> None:
    true = torch.tensor([[1.0, 0.5, 1e-4, 1e-9]]).double()
    drawn = torch.tensor([[1.0, 5.0, 1e-5, 1.0]]).double()
    assert spectrum_error(true, drawn, eps=1e-16).item() == pytest.approx(math.sqrt(2 / 3))


def test_scattered_points_have_no_spectrum() -> None:
    for grid in (GRIDS["scattered"], Grid.uniform(1)):
        with pytest.raises(GridError, match="uniform grid"):
            power_spectrum(torch.zeros(1, *grid.shape), grid)


@pytest.mark.parametrize("shape", [(1, 9), (8,), (2, 4, 4)])
def test_values_of_another_grid_have_no_spectrum(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="channels, 8"):
        power_spectrum(torch.zeros(shape), Grid.uniform(8))
