"""Bands between quantiles: as asymmetric as the distribution, Gaussian bands where it is Gaussian, and covered alike."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from probneural.calibration import PointwiseBand, RiskControl, SimultaneousBand, fraction_outside
from probneural.calibration.band_shapes import band_shape
from probneural.calibration.conformal import conformal_scores
from probneural.distributions import EmpiricalField, FieldDistribution, MixtureField
from probneural.errors import DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.calibration.synthetic import GRID, Members, Synthetic, pairs
from tests.helpers import uniform


def skewed(n: int, points: int, *, seed: int) -> Tensor:
    """Exponential variables minus ln 2, their median: `(n, 1, points)`."""
    return -uniform(n, 1, points, seed=seed).clamp_min(1e-300).log() - math.log(2.0)


class Exponential(Synthetic):
    """States that outputs are inputs plus skewed noise, by 120 members at the quantiles of the exponential distribution."""

    def _predict(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        super()._predict(inputs, query)
        where = inputs.grid if query is None else query
        mean = inputs.resample(where).values
        levels = (torch.arange(120, dtype=torch.float64) + 0.5) / 120
        members = -(1 - levels).log() - math.log(2.0)
        return EmpiricalField(mean + members[:, None, None, None], grid=where)


def truths(n: int, *, seed: int = 0) -> FieldPairs:
    inputs = pairs(n, seed=seed).inputs
    return FieldPairs(inputs, Field(inputs.values + skewed(n, 16, seed=seed + 20), GRID))


@pytest.mark.parametrize("kind", [Synthetic, Members])
def test_of_a_gaussian_field_they_are_bands_of_the_standard_deviation(kind: type[Synthetic]) -> None:
    predictor, data, new = kind(channels=2), pairs(40, channels=2), pairs(5, channels=2, seed=50)
    normal_band = SimultaneousBand(0.8).fit(predictor, data)
    band = SimultaneousBand(0.8, modulation="quantiles").fit(predictor, data)
    assert band.quantile == pytest.approx(normal_band.quantile / 1.6448536269514722, rel=1e-9)
    torch.testing.assert_close(band(new.inputs).lower, normal_band(new.inputs).lower)
    torch.testing.assert_close(band(new.inputs).upper, normal_band(new.inputs).upper)


def test_edges_are_where_the_distribution_puts_them() -> None:
    predictor, data = Exponential(noise=0.0), truths(300)
    u = predictor(data.inputs[:3])
    shape = band_shape(u, predictor, modulation="quantiles", floor=0.0)
    torch.testing.assert_close(shape.centre, data.inputs[:3].values, atol=0.01, rtol=0)
    torch.testing.assert_close(shape.below, torch.full_like(shape.below, math.log(2) + math.log(0.95)), atol=0.01, rtol=0)
    torch.testing.assert_close(shape.above, torch.full_like(shape.above, math.log(20) - math.log(2)), atol=0.05, rtol=0)
    band = PointwiseBand(0.9, delta=0.5, modulation="quantiles", floor=0.0).fit(predictor, data)
    assert band.quantile == pytest.approx(1.0, abs=0.1)  # what is stated is true
    bands = band(data.inputs)
    assert bands.offset is not None
    torch.testing.assert_close(bands.upper - bands.lower, 2 * bands.half_width)
    torch.testing.assert_close(bands.middle, bands.mean + bands.offset)
    torch.testing.assert_close((bands.lower + bands.upper) / 2, bands.middle)
    assert bool((bands.upper - data.inputs.values > 3 * (data.inputs.values - bands.lower)).all())


def test_scores_and_bands_agree_on_who_is_inside() -> None:
    """Under rounding the scores decide, so functions within 1e-9 of an edge are left out."""
    predictor, data, new = Exponential(noise=0.0), truths(99), truths(200, seed=70)
    for method in (SimultaneousBand(0.8, modulation="quantiles"), PointwiseBand(0.9, delta=0.2, modulation="quantiles")):
        band = method.fit(predictor, data)
        scores = conformal_scores(predictor, new, modulation="quantiles", fraction=method.fraction).values
        clear = (scores - band.quantile).abs() > 1e-9
        inside = (band(new.inputs).fraction_inside(new.outputs) >= method.fraction - 1e-9).all(1)
        assert (scores <= band.quantile)[clear].tolist() == inside[clear].tolist()
        assert abs(band.coverage(new) - 0.8) < 4 * math.sqrt(0.16 / 100 + 0.16 / 200)


def test_asymmetric_bands_are_narrower_where_errors_are_skewed() -> None:
    data = truths(200)
    width = {
        kind: PointwiseBand(0.9, delta=0.1, modulation=kind).fit(Exponential(noise=0.0), data)(data.inputs).width().mean()
        for kind in ("quantiles", "std")
    }
    assert width["quantiles"] < 0.9 * width["std"]


def test_mixtures_have_quantiles_of_their_own() -> None:
    class Mixed(Synthetic):
        def _predict(self, inputs: Field, query: Grid | None) -> FieldDistribution:
            u = super()._predict(inputs, query)
            far = super()._predict(Field(inputs.values + 6.0, inputs.grid), query)
            return MixtureField([u, far], torch.tensor([0.8, 0.2]))  # type: ignore[list-item]

    predictor, data = Mixed(sd=0.05), pairs(30)
    bands = SimultaneousBand(0.8, modulation="quantiles").fit(predictor, data)(data.inputs)
    assert bool((bands.upper - bands.mean > bands.mean - bands.lower).all())


def test_other_bands_take_them_too() -> None:
    data, predictor = truths(60), Exponential(noise=0.0)
    groups = [row % 2 for row in range(60)]
    grouped = SimultaneousBand(0.8, modulation="quantiles").fit(predictor, data, groups=groups)
    assert grouped(data.inputs, groups=groups).offset is not None
    weighted = SimultaneousBand(0.8, modulation="quantiles").fit(predictor, data, weights=[1.0] * 60)
    bands = weighted(data.inputs[:2], weights=[1.0, 1e6])
    assert torch.isinf(bands.half_width).flatten(1).all(1).tolist() == [False, True]
    assert not bool(torch.isnan(bands.lower).any() | torch.isnan(bands.upper).any())
    risk = RiskControl(fraction_outside, 0.1, modulation="quantiles").fit(predictor, data)
    assert risk(data.inputs).offset is not None
    assert risk.risk(data) <= 0.1


@pytest.mark.bad_input
def test_errors() -> None:
    class Broken(Synthetic):
        def _predict(self, inputs: Field, query: Grid | None) -> FieldDistribution:
            u = super()._predict(inputs, query)
            return EmpiricalField(u.mean * torch.full((120, 1, 1, 1), math.nan), grid=u.grid)

    with pytest.raises(DataError):
        SimultaneousBand(0.8, modulation="quantiles").fit(Broken(), pairs(9))
