"""Calibration in one call: guarantees on fresh samples, small data sets, every kind of head, files."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import probneural as pn
from probneural.calibration import ScaleMixture, SimultaneousBand, VarianceScale, calibrate
from probneural.calibration.calibrate import CalibratedPredictor
from probneural.distributions import Predictor
from probneural.errors import CalibrationError
from probneural.pairs import FieldPairs
from tests.bad_input.world import halve
from tests.calibration.synthetic import Members, Synthetic, pairs
from tests.helpers import normal

BURGERS = pn.problems.Burgers(viscosity=0.1, random_field=pn.problems.GaussianRandomField(1, 15))
HEADS = ("last layer", "ensemble", "kernel operator")


def sampled(count: int, seed: int) -> FieldPairs:
    return BURGERS.sample(count, resolution=32, seed=seed, dtype=torch.float64)


@cache
def head(name: str) -> Predictor:
    train = sampled(48, 0)
    operator = pn.operators.FNO(1, 1, modes=(4,), width=8, depth=2, seed=0).double()
    pn.fit(operator, train, epochs=5, seed=0, show_progress=False)
    if name == "ensemble":
        return pn.heads.DeepEnsemble(3, train=halve, show_progress=False).fit(operator, train)
    if name == "kernel operator":
        return pn.heads.KernelOperator().fit(None, train)
    return pn.heads.LastLayerLaplace().fit(operator, train)


@cache
def calibrated(name: str) -> CalibratedPredictor:
    return calibrate(head(name), sampled(80, 1), seed=3)


def test_bands_cover_fresh_samples_and_p_values_are_uniform() -> None:
    """Over 16 draws of 40 held-out samples: 19 of 21 for the band of 20 samples, floor(21 t) of 21 for 20 ranks."""
    inside, p_values = [], []
    for draw in range(16):
        data = pairs(140, seed=10 * draw)
        fitted = calibrate(Members() if draw % 2 else Synthetic(), data[:40], seed=draw)
        inside.append(fitted.band(data[40:].inputs).contains(data[40:].outputs).double().mean())
        p_values.append(fitted.novelty(data[40:].inputs))
    assert float(torch.stack(inside).mean()) == pytest.approx(19 / 21, abs=0.045)
    for level, expected in ((0.1, 2 / 21), (0.25, 5 / 21), (0.5, 10 / 21), (0.75, 15 / 21)):
        assert float((torch.cat(p_values) <= level).double().mean()) == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("name", HEADS)
def test_heads_are_calibrated_from_end_to_end(name: str) -> None:
    fitted, test = calibrated(name), sampled(100, 2)
    u, report = fitted(test.inputs), fitted.report
    assert fitted.is_calibrated
    assert report.sizes == {"variance scale": 40, "scale mixture": 40, "simultaneous band": 40, "novelty": 80}
    assert not report.left_out
    assert torch.equal(u.mean, fitted.inner(test.inputs).mean)
    assert report.simultaneous_coverage[1] == pytest.approx(0.9, abs=0.1)
    assert float(fitted.band(test.inputs).contains(test.outputs).double().mean()) > 0.75
    scores = pn.metrics.score(u, test.outputs, noise=fitted.noise)
    assert scores.coverage == pytest.approx(report.coverage[1], abs=0.1)
    assert float((fitted.novelty(replace(test.inputs, values=3.0 * test.inputs.values)) <= 0.05).double().mean()) > 0.5
    for text in ("coverage at 0.9, pointwise", "coverage at 0.9, simultaneous", "variance factor", "novelty: 80 samples"):
        assert text in str(report)


@pytest.mark.parametrize("outliers", [0.0, 0.5])
def test_the_parts_are_those_of_the_calibrators(outliers: float) -> None:
    """Each part equals its own calibrator on its samples; without outliers the scale mixture would reduce variances."""
    data = pairs(40)
    heavy_tailed = normal(40, 1, 16, seed=7) / normal(40, 1, 16, seed=8).abs().clamp_min(0.05)
    data = FieldPairs(data.inputs, replace(data.outputs, values=data.outputs.values + outliers * heavy_tailed))
    fitted = calibrate(Synthetic(), data, level=0.8, seed=1)
    order = pn.pairs.split_order(40, seed=1)
    scaling, conformal = (data[rows.sort().values] for rows in (order[:20], order[20:]))
    scaled = VarianceScale().fit(Synthetic(), scaling)
    mixed = ScaleMixture(seed=1).fit(scaled, scaling)
    assert (mixed.variance_factor > 1.0) == (outliers > 0)
    expected = mixed(data.inputs) if outliers else scaled(data.inputs)
    assert torch.allclose(fitted(data.inputs).variance, expected.variance, rtol=1e-12)
    assert fitted.band.quantile == SimultaneousBand(0.8).fit(fitted.inner, conformal).quantile
    assert fitted.band.level == 0.8
    scores = [pn.metrics.score_pairs(one, conformal, level=0.8) for one in (Synthetic(), fitted.inner)]
    assert fitted.report.coverage == pytest.approx([one.coverage for one in scores])
    assert fitted.report.simultaneous_coverage == pytest.approx([one.simultaneous_coverage for one in scores])


def test_draws_are_those_of_the_predictor_inside() -> None:
    fitted, values = calibrated("last layer"), sampled(3, 2).inputs.values
    assert torch.equal(fitted.draw(5)(values), fitted.inner.draw(5)(values))
    forecasts = [one.rollout(sampled(2, 2).inputs, steps=2, members=3, show_progress=False) for one in (fitted, fitted.inner)]
    assert torch.equal(forecasts[0].at(2).mean, forecasts[1].at(2).mean)


def test_a_calibrated_predictor_is_calibrated_anew_from_its_head() -> None:
    fitted = calibrated("last layer")
    again = calibrate(fitted, sampled(80, 1), seed=3)
    assert again.report == fitted.report
    assert again.band.quantile == fitted.band.quantile


def test_a_small_data_set_leaves_parts_out() -> None:
    """The band takes as many samples as its level needs, and the report names all parts without enough."""
    fitted = calibrate(Synthetic(), pairs(15))
    assert fitted.report.sizes == {"variance scale": 6, "simultaneous band": 9}
    assert set(fitted.report.left_out) == {"scale mixture", "novelty"}
    assert "scale mixture left out: needs 10 independent samples, got 6" in str(fitted.report)
    with pytest.raises(CalibrationError, match="held-out samples for novelty"):
        _ = fitted.novelty
    fitted = calibrate(Synthetic(), pairs(10))
    assert fitted.report.left_out["simultaneous band"] == "needs 9 independent samples at level 0.9 and 2 others, got 10"
    assert fitted.report.coverage == ()
    with pytest.raises(CalibrationError, match="needs 9 independent samples"):
        fitted.band(pairs(3).inputs)


def test_windows_of_a_trajectory_stay_together() -> None:
    data = pairs(60)
    grouped = FieldPairs(data.inputs, data.outputs, groups=torch.arange(60) // 3)
    report = calibrate(Synthetic(), grouped).report
    assert report.sizes == {"variance scale": 30, "scale mixture": 30, "simultaneous band": 30, "novelty": 60}
    few = FieldPairs(data.inputs, data.outputs, groups=torch.arange(60) // 6)
    assert "others, got 10" in calibrate(Synthetic(), few).report.left_out["simultaneous band"]


def test_samples_of_training_or_of_another_calibration_are_refused() -> None:
    with pytest.raises(CalibrationError, match="trained"):
        calibrate(head("last layer"), sampled(48, 0))
    mixture = pn.calibration.Stacking().fit([Synthetic(), Synthetic(sd=2.0)], pairs(40))
    with pytest.raises(CalibrationError, match="scaled on"):
        calibrate(mixture, pairs(40))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(CalibrationError, match="2 or more calibration fields"):
        calibrate(Synthetic(), pairs(1))


@pytest.mark.parametrize("name", HEADS)
def test_files_keep_band_novelty_and_report(name: str, tmp_path: Path) -> None:
    fitted, inputs = calibrated(name), sampled(5, 2).inputs
    pn.save(fitted, tmp_path / "calibrated.safetensors")
    loaded = pn.load(tmp_path / "calibrated.safetensors")
    assert isinstance(loaded, CalibratedPredictor)
    assert loaded.report == fitted.report
    assert torch.equal(loaded.band(inputs).upper, fitted.band(inputs).upper)
    assert torch.equal(loaded.novelty(inputs), fitted.novelty(inputs))
    assert torch.equal(loaded.draw(1)(inputs.values), fitted.draw(1)(inputs.values))
