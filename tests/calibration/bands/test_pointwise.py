"""Bands that hold most of a function: their score by brute force, their exact distribution, and other grids."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch

from probneural.calibration import PointwiseBand, SimultaneousBand
from probneural.calibration.bands.conformal import conformal_scores
from probneural.errors import ArgumentError, CalibrationError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.calibration.synthetic import GRID, Synthetic, pairs
from tests.helpers import normal, uniform


@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.8, 1.0])
def test_the_score_is_the_least_width_that_holds_the_fraction(fraction: float) -> None:
    grid = Grid.scattered(GRID.points, torch.tensor([0.0, 1.0, 2.0, 0.5] * 4))
    predictor, data = Synthetic(channels=2), pairs(5, channels=2, grid=grid)
    scores = conformal_scores(predictor, data, floor=0.0, fraction=fraction).values
    u, weights = predictor(data.inputs, grid), grid.weights / grid.weights.sum()
    ratios = (data.outputs.values - u.mean).abs() / (u.variance + 0.1).sqrt()
    for row in range(5):
        held = [t for t in ratios[row].flatten() if bool(((ratios[row] <= t).double() @ weights >= fraction - 1e-9).all())]
        if fraction == 1.0:  # the supremum counts points of weight zero too
            held = [ratios[row].max()]
        assert scores[row].item() == pytest.approx(float(min(held)), rel=1e-12)


def test_coverage_given_the_calibration_set_is_beta() -> None:
    """For a predictor that is wrong in size and in shape; one rank further down is told from it."""
    n, sets, delta = 19, 300, 0.15
    data = pairs(n * sets + 3000, channels=2, seed=3, grid=Grid.uniform((8,)))
    skewed = Field(data.outputs.values + 0.3 * data.outputs.values.square(), data.outputs.grid)
    predictor = Synthetic(sd=0.3, channels=2)
    scores = conformal_scores(predictor, FieldPairs(data.inputs, skewed), fraction=0.75)
    new = scores.values[n * sets :]
    blocks = [scores[n * k : n * (k + 1)] for k in range(sets)]
    covered = [float((new <= block.quantile(1.0 - delta)).double().mean()) for block in blocks]
    rank = 17  # ⌈20 * .85⌉
    assert scipy.stats.kstest(covered, scipy.stats.beta(rank, n + 1 - rank).cdf).pvalue > 0.01
    below = [float((new <= block.values.sort().values[rank - 2]).double().mean()) for block in blocks]
    assert scipy.stats.kstest(below, scipy.stats.beta(rank, n + 1 - rank).cdf).pvalue < 1e-6
    band = PointwiseBand(0.75, delta=delta).fit(predictor, FieldPairs(data.inputs, skewed)[:n])
    assert band.quantile == pytest.approx(blocks[0].quantile(0.85), rel=1e-12)


def test_the_whole_domain_is_a_simultaneous_band() -> None:
    data = pairs(40, channels=2)
    pointwise = PointwiseBand(1.0, delta=0.2, modulation="constant").fit(Synthetic(channels=2), data)
    assert pointwise.quantile == SimultaneousBand(0.8, modulation="constant").fit(Synthetic(channels=2), data).quantile
    most = PointwiseBand(0.9, delta=0.2, modulation="constant").fit(Synthetic(channels=2), data)
    assert most.quantile < pointwise.quantile


def test_coverage_counts_functions_that_are_inside_on_the_fraction() -> None:
    data, new = pairs(60, channels=2), pairs(80, channels=2, seed=50)
    band = PointwiseBand(0.75, delta=0.3).fit(Synthetic(channels=2), data)
    inside = band(new.inputs).fraction_inside(new.outputs)
    between = (new.outputs.values >= band(new.inputs).lower) & (new.outputs.values <= band(new.inputs).upper)
    torch.testing.assert_close(inside, between.double() @ GRID.mean_weights)
    assert band.coverage(new) == (inside >= 0.75 - 1e-9).all(1).double().mean().item()
    assert band.coverage(data) == pytest.approx(43 / 60)  # ⌈61 * .7⌉ = 43
    assert "PointwiseBand(level=0.75, delta=0.3" in repr(band)
    assert (band.level, band.method.probability, band.method.fraction) == (0.75, 0.7, 0.75)


def waves(n: int, grid: Grid, *, modes: int) -> torch.Tensor:
    """The same n random functions on any grid."""
    angles = 2 * math.pi * torch.arange(1, modes + 1, dtype=torch.float64)[:, None] * grid.points[:, 0]
    basis = torch.cat([angles.sin(), angles.cos()])
    return (normal(n, 2 * modes, seed=1) @ basis / modes**0.5)[:, None]


def test_the_statement_holds_on_a_finer_grid_up_to_quadrature() -> None:
    """Of 400 functions, each that is inside on the coarse grid is so on the fine one, up to half a spacing per crossing."""
    coarse, fine, n = Grid.uniform((32,)), Grid.uniform((256,)), 400
    inputs = Field(torch.zeros(n, 1, 16, dtype=torch.float64), GRID)
    truths = {grid.size: Field(waves(n, grid, modes=8), grid) for grid in (coarse, fine)}
    predictor = Synthetic(sd=0.0, noise=1.0)
    band = PointwiseBand(0.8, delta=0.1).fit(predictor, FieldPairs(inputs, truths[32]))
    inside = {grid.size: band(inputs, grid).fraction_inside(truths[grid.size])[:, 0] for grid in (coarse, fine)}
    is_in = band(inputs, fine).inside(truths[256])[:, 0]
    crossings = (is_in != is_in.roll(1, -1)).sum(-1)
    bound = crossings * (1 / 32 + 1 / 256) / 2
    assert crossings.max() >= 8
    assert bool(((inside[256] - inside[32]).abs() <= bound + 1e-12).all())
    assert (inside[256] - inside[32]).abs().max() > 0.02  # the bound is not idle
    held = inside[32] >= 0.8 - 1e-9
    assert held.double().mean() == pytest.approx(361 / 400)
    assert bool((inside[256] >= 0.8 - bound - 1e-12)[held].all())
    whole = SimultaneousBand(0.9).fit(predictor, FieldPairs(inputs, truths[32]))  # a supremum has more points to fail at
    assert whole.coverage(FieldPairs(inputs, truths[256])) < 0.87 < whole.coverage(FieldPairs(inputs, truths[32]))
    assert band.coverage(FieldPairs(inputs, truths[256])) > 0.87


def test_noise_that_the_predictor_does_not_know_is_covered_all_the_same() -> None:
    inputs = Field(torch.zeros(3199, 1, 16, dtype=torch.float64), GRID)
    data = FieldPairs(inputs, Field(uniform(3199, 1, 16, seed=5).pow(-0.9), GRID))  # heavy tails on one side
    band = PointwiseBand(0.5, delta=0.1).fit(Synthetic(noise=1e-4), data[:199])
    assert abs(band.coverage(data[199:]) - 0.9) < 4 * math.sqrt(0.09 / 200 + 0.09 / 3000)


@pytest.mark.bad_input
def test_errors() -> None:
    with pytest.raises(ArgumentError, match="fraction"):
        conformal_scores(Synthetic(), pairs(3), fraction=0.0)
    with pytest.raises(CalibrationError, match="at least 19 calibration fields"):
        PointwiseBand().fit(Synthetic(), pairs(18))
