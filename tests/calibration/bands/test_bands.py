from __future__ import annotations

import math

import pytest
import torch

from probneural.calibration import SimultaneousBand, VarianceScale
from probneural.calibration.bands.conformal import BandField, conformal_scores
from probneural.errors import CalibrationError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.calibration.synthetic import GRID, Members, Synthetic, pairs


@pytest.mark.parametrize("kind", [Synthetic, Members])
@pytest.mark.parametrize("modulation", ["std", "constant"])
def test_a_band_is_mean_and_quantile_times_scale(kind: type[Synthetic], modulation: str) -> None:
    predictor, data, new = kind(channels=2), pairs(40, channels=2), pairs(7, channels=2, seed=50)
    band = SimultaneousBand(0.8, modulation=modulation, floor=0.0).fit(predictor, data)
    prediction = band(new.inputs)
    u = predictor(new.inputs)
    scale = (u.variance + 0.1).sqrt() if modulation == "std" else torch.full_like(u.variance, math.sqrt(0.1))
    torch.testing.assert_close(prediction.mean, u.mean)
    torch.testing.assert_close(prediction.upper, u.mean + band.quantile * scale)
    torch.testing.assert_close(prediction.lower, u.mean - band.quantile * scale)
    torch.testing.assert_close(prediction.width(), 2 * band.quantile * (scale * GRID.weights).sum(-1))
    assert (len(prediction), prediction.grid, band.level) == (7, GRID, 0.8)
    inside = ((new.outputs.values >= prediction.lower) & (new.outputs.values <= prediction.upper)).all(-1).all(-1)
    assert prediction.contains(new.outputs).tolist() == inside.tolist()
    assert band.coverage(new) == pytest.approx(inside.double().mean().item())
    assert "0.8" in repr(band)
    assert "7 x 2" in repr(prediction)


@pytest.mark.parametrize("modulation", ["std", "constant"])
def test_coverage_holds_for_whole_functions_and_a_wrong_predictor(modulation: str) -> None:
    """Pointwise intervals at the same level cover far fewer whole functions."""
    data, new = pairs(999, channels=2), pairs(3000, channels=2, seed=50)
    band = SimultaneousBand(0.9, modulation=modulation).fit(Synthetic(sd=0.2, channels=2), data)
    coverage = band.coverage(new)
    # Given one calibration set, coverage is Beta(900, 100); the new set adds its own binomial error.
    assert abs(coverage - 0.9) < 4 * math.sqrt(0.09 / 1000 + 0.09 / 3000)
    assert band(new.inputs).contains(new.outputs).double().mean().item() == pytest.approx(coverage, abs=1e-3)


def test_a_local_scale_is_narrower_where_sizes_differ() -> None:
    data, new = pairs(200), pairs(50, seed=50)
    local, constant = (
        SimultaneousBand(0.9, modulation=modulation).fit(Synthetic(), data)(new.inputs).width().mean()
        for modulation in ("std", "constant")
    )
    assert local < 0.85 * constant


def test_the_calibration_fields_themselves_are_covered_as_counted() -> None:
    data = pairs(29)
    band = SimultaneousBand(0.9).fit(Synthetic(), data)
    assert band.coverage(data) == pytest.approx(27 / 29)  # ⌈30 * 0.9⌉ = 27


@pytest.mark.parametrize("separate", [False, True])
def test_fields_that_scales_were_fitted_on_are_refused(separate: bool) -> None:
    data = pairs(60)
    scaled = VarianceScale(separate=separate).fit(Synthetic(), data[:40])
    with pytest.raises(CalibrationError, match="20 of 30 used for scaling; split them"):
        SimultaneousBand().fit(scaled, data[20:50])
    other = VarianceScale(separate=separate).fit(scaled, data[40:])  # calibrated anew: the first 40 are free again
    assert SimultaneousBand().fit(other, data[:40]).quantile > 0


def test_why_they_are_refused() -> None:
    """Three channels, nine fields: what the same fields have scaled covers less than promised."""
    covered = {"same": 0.0, "own": 0.0}
    for trial in range(60):
        data = pairs(38, channels=3, seed=10 * trial)
        scaling, own, fresh = data[:9], data[9:18], data[18:]
        scaled = VarianceScale().fit(Synthetic(channels=3, noise=1e-3), scaling)
        quantiles = {name: conformal_scores(scaled, some).quantile(0.9) for name, some in (("same", scaling), ("own", own))}
        scores = conformal_scores(scaled, fresh).values
        for name, quantile in quantiles.items():
            covered[name] += float((scores <= quantile).double().mean()) / 60
    assert covered["same"] < 0.87
    assert 0.87 < covered["own"] < 0.94  # at least .9 on average, by 60 trials of standard deviation .09 each


def test_the_floor_keeps_certain_points_from_deciding_the_width() -> None:
    predictor, data = Synthetic(noise=0.0), pairs(30)  # stated deviation 0 at the left end, and errors there
    bare = SimultaneousBand(floor=0.1).fit(predictor, data)(data.inputs)
    low = SimultaneousBand(floor=0.001).fit(predictor, data)(data.inputs)
    assert (bare.half_width > 0).all()
    assert bare.width().mean() < 0.1 * low.width().mean()
    with pytest.raises(CalibrationError, match="infinite scores"):
        SimultaneousBand(floor=0.0).fit(predictor, data)


def test_outputs_and_queries_on_other_grids() -> None:
    fine = GRID.resized((48,))
    predictor, data = Synthetic(), pairs(30, grid=fine)
    band = SimultaneousBand().fit(predictor, data)
    assert predictor.calls[-1] == (30, fine)
    on_fine, on_coarse = band(data.inputs, fine), band(data.inputs)
    assert on_fine.grid == fine
    assert on_coarse.grid == GRID
    torch.testing.assert_close(on_fine.mean[..., ::3], on_coarse.mean)
    torch.testing.assert_close(on_fine.half_width[..., ::3], on_coarse.half_width)
    loose = Grid.scattered(fine.points[5:20], torch.linspace(0.0, 1.0, 15))
    prediction = SimultaneousBand().fit(predictor, pairs(30, grid=loose))(data.inputs, loose)
    torch.testing.assert_close(prediction.width(), 2 * prediction.half_width @ torch.linspace(0.0, 1.0, 15).double() / 7.5)


def test_constant_bands_of_channels_without_noise() -> None:
    """Their unit is the root mean variance of the sample: one width along each, and conformal coverage as for any band."""
    noise = torch.tensor([0.1, 0.0], dtype=torch.float64)
    band = SimultaneousBand(modulation="constant").fit(Synthetic(channels=2, noise=noise), pairs(40, channels=2, seed=7))
    test = pairs(200, channels=2, seed=70)
    width = band(test.inputs).half_width.flatten(2)
    assert bool((width > 0).all())
    torch.testing.assert_close(width, width[..., :1].expand_as(width))
    assert band.coverage(test) >= 0.8


@pytest.mark.bad_input
def test_errors() -> None:
    data = pairs(12)
    for level, needed in ((0.95, 19), (0.99, 99)):
        with pytest.raises(CalibrationError, match=f"at least {needed} calibration fields for a band at level {level}; got 12"):
            SimultaneousBand(level).fit(Synthetic(), data)
    SimultaneousBand(0.9).fit(Synthetic(), data[:9])
    with pytest.raises(CalibrationError, match="at least 9"):
        SimultaneousBand(0.9).fit(Synthetic(), data[:8])
    band = SimultaneousBand().fit(Synthetic(), data)
    prediction = band(data.inputs)
    with pytest.raises(GridError, match=r"query=truth\.grid"):
        prediction.contains(pairs(12, grid=GRID.resized((20,))).outputs)
    with pytest.raises(ShapeError, match="truth of shape"):
        prediction.contains(data.outputs[:1])
    with pytest.raises(DataError, match="true values"):
        prediction.contains(Field(data.outputs.values * math.nan, GRID))
    with pytest.raises(CalibrationError, match="1 or more pairs"):
        band.coverage(data[:0])
    with pytest.raises(DataError, match="inputs"):
        band(Field(data.inputs.values * math.nan, GRID))
    with pytest.raises(ShapeError, match="half width of shape"):
        BandField(prediction.mean, half_width=prediction.half_width[:1], grid=GRID)
    with pytest.raises(ShapeError, match="mean of shape"):
        BandField(prediction.mean, half_width=prediction.half_width, grid=GRID.resized((8,)))
    with pytest.raises(ShapeError, match="1 channels of outputs"):
        band.coverage(FieldPairs(data.inputs, pairs(12, channels=2).outputs))
