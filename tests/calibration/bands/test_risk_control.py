"""Risk control: the exact distribution of the risk where there is one, and split conformal as a special case."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from probneural.calibration import RiskControl, SimultaneousBand, fraction_outside
from probneural.calibration.bands.conformal import conformal_scores
from probneural.calibration.bands.risk_control import RiskBand, hoeffding_bentkus
from probneural.calibration.bands.shapes import BandField
from probneural.errors import ArgumentError, CalibrationError, DataError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.calibration.synthetic import Synthetic, pairs

SMALL = Grid.uniform((8,))


def leaves(bands: BandField, truth: Field) -> Tensor:
    """1 for a function that leaves its band."""
    return (~bands.contains(truth)).double()


def test_a_loss_of_0_or_1_in_expectation_is_split_conformal() -> None:
    data = pairs(50, channels=2)
    for level in (0.1, 0.25, 0.5):
        band = RiskControl(leaves, level, delta=None).fit(Synthetic(channels=2), data)
        conformal = SimultaneousBand(1.0 - level).fit(Synthetic(channels=2), data)
        assert conformal.quantile <= band.quantile <= conformal.quantile * (1 + 1e-3)
        assert band.risk(data) == pytest.approx(1.0 - conformal.coverage(data))


def test_with_high_probability_the_risk_is_below_the_level() -> None:
    """For a loss of 0 or 1 the risk given the calibration set is Beta(m + 1, n - m), m being the losses that are allowed."""
    n, sets, level, delta = 40, 50, 0.2, 0.1
    allowed = max(m for m in range(n) if hoeffding_bentkus(m / n, level=level, count=n) <= delta)
    exact = scipy.stats.beta(allowed + 1, n - allowed)
    assert exact.sf(level) <= delta
    assert scipy.stats.beta(allowed + 4, n - allowed - 3).sf(level) > delta  # the bound is not idle
    data = pairs(n * sets + 4000, seed=4, grid=SMALL)
    scores = conformal_scores(Synthetic(sd=0.3), data).values
    risks = []
    for start in range(0, n * sets, n):
        width = RiskControl(leaves, level, delta=delta).fit(Synthetic(sd=0.3), data[start : start + n]).quantile
        risks.append(float((scores[-4000:] > width).double().mean()))
    assert scipy.stats.kstest(risks, exact.cdf).pvalue > 0.01
    assert sum(risk > level for risk in risks) <= delta * sets + 3 * math.sqrt(delta * (1 - delta) * sets)


def test_the_mean_loss_is_as_large_as_stated_in_expectation() -> None:
    """30 calibration sets of 20, for a loss between 0 and 1 and a predictor that is wrong; a tenth more or less is seen."""
    n, sets, level = 20, 30, 0.4
    data, predictor, new = pairs(n * sets, seed=6, grid=SMALL), Synthetic(sd=0.3), pairs(2000, seed=90, grid=SMALL)
    control = RiskControl(fraction_outside, level, delta=None)
    risks = torch.tensor([control.fit(predictor, data[start : start + n]).risk(new) for start in range(0, n * sets, n)])
    error = 3 * float(risks.std()) / sets**0.5 + 3 * 0.3 / 2000**0.5
    assert error < 0.05
    assert level - 2 / (n + 1) - error < float(risks.mean()) < level + error
    high = RiskControl(fraction_outside, level, delta=0.1).fit(predictor, data[:n])
    assert high.quantile > control.fit(predictor, data[:n]).quantile


def test_no_narrower_band_would_do() -> None:
    data = pairs(80, channels=2)
    for control in (RiskControl(fraction_outside, 0.1), RiskControl(fraction_outside, 0.1, delta=None, modulation="constant")):
        band = control.fit(Synthetic(channels=2), data)
        assert isinstance(band, RiskBand)
        losses = [fraction_outside(band(data.inputs), data.outputs).mean().item()]
        assert losses[0] == pytest.approx(band.risk(data))
        narrower = RiskBand(band.predictor, quantile=band.quantile * 0.99, method=control)
        assert control.controls(band.risk(data), count=80)
        assert not control.controls(narrower.risk(data), count=80)
        assert band.level == 0.1
        assert "RiskControl" in repr(band)


@given(st.integers(0, 60), st.integers(1, 60), st.floats(0.02, 0.98))
def test_the_bound_is_a_p_value(misses: int, count: int, level: float) -> None:
    """P(p <= δ) <= δ for Bernoulli losses of risk `level`, and it is above the exact binomial tail."""
    misses = min(misses, count)
    bound = hoeffding_bentkus(misses / count, level=level, count=count)
    assert bound >= scipy.stats.binom.cdf(misses, count, level) * (1 - 1e-9)
    assert 0.0 <= bound <= 1.0


@pytest.mark.parametrize(("misses", "count", "level"), [(15, 237, 0.1), (116 / 15, 40, 0.2), (147 / 20, 60, 0.2)])
def test_the_bound_counts_losses_up_to_rounding(misses: float, count: int, level: float) -> None:
    """count (misses / count) may lie above the integer by a unit in the last place."""
    risk = misses / count
    bentkus = math.e * scipy.stats.binom.cdf(math.ceil(round(count * risk, 9)), count, level)
    entropy = risk * math.log(risk / level) + (1.0 - risk) * math.log((1.0 - risk) / (1.0 - level))
    expected = min(1.0, math.exp(-count * entropy), bentkus)
    assert hoeffding_bentkus(risk, level=level, count=count) == pytest.approx(expected, rel=1e-12)


@pytest.mark.bad_input
def test_errors() -> None:
    data, predictor = pairs(40), Synthetic()
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(ArgumentError, match="as level"):
            RiskControl(fraction_outside, level)
    for delta in (0.0, 1.0, "a"):
        with pytest.raises(ArgumentError, match="as delta"):
            RiskControl(fraction_outside, delta=delta)
    with pytest.raises(ArgumentError, match="loss"):
        RiskControl(0.1)
    with pytest.raises(ArgumentError, match="modulation"):
        RiskControl(fraction_outside, modulation="none")
    with pytest.raises(CalibrationError, match="at least 22 calibration fields for a risk of 0.1 with probability 0.9; got 21"):
        RiskControl(fraction_outside).fit(predictor, data[:21])
    RiskControl(fraction_outside).fit(predictor, data[:22])
    with pytest.raises(CalibrationError, match="at least 9 calibration fields for a risk of 0.1; got 8"):
        RiskControl(fraction_outside, delta=None).fit(predictor, data[:8])
    RiskControl(fraction_outside, delta=None).fit(predictor, data[:9])

    def fit(loss: object) -> RiskBand:
        return RiskControl(loss).fit(predictor, data)  # type: ignore[arg-type]

    with pytest.raises(CalibrationError, match="does not grow"):
        fit(lambda bands, truth: 1.0 - 1.0 / (1.0 + bands.half_width.flatten(1).mean(1)))
    with pytest.raises(CalibrationError, match="however wide"):
        fit(lambda bands, truth: torch.ones(len(bands)))
    with pytest.raises(DataError, match="between 0 and 1"):
        fit(lambda bands, truth: 2.0 * leaves(bands, truth))
    with pytest.raises(DataError, match="losses"):
        fit(lambda bands, truth: "none")
    with pytest.raises(ShapeError, match="losses of shape"):
        fit(lambda bands, truth: leaves(bands, truth).mean())
    with pytest.raises(CalibrationError, match="at least one pair"):
        fit(leaves).risk(data[:0])
    with pytest.raises(DataError, match="between 0 and 1"):
        fit(lambda bands, truth: leaves(bands, truth) * math.nan)
    with pytest.raises(ShapeError, match="outputs of 1 channels"):
        fit(leaves).risk(FieldPairs(data.inputs, pairs(40, channels=2).outputs))
