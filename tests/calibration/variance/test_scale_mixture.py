"""A random scale for every function: what it recovers, what it covers, and what stays as it was."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import probneural as pn
from probneural.calibration import NoveltyScale, ScaleMixture, SimultaneousBand, VarianceScale
from probneural.calibration.variance.scale_mixture import ScaleMixturePredictor
from probneural.distributions import DenseRoot, GaussianField, MixtureField, ScaleMixtureField
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.errors import ArgumentError, CalibrationError, DataError, DataWarning, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import compare, score, simultaneous_coverage
from probneural.pairs import FieldPairs
from tests.calibration.synthetic import GRID, Members, Synthetic, basis, pairs, scaled_by
from tests.heads.cases import data_for, fields, operator_case
from tests.helpers import normal

NOTHING = torch.zeros(0, dtype=torch.int64)


def scaled_pairs(n: int, *, seed: int, scales: tuple[float, ...] = (0.6, 1.6), channels: int = 1) -> FieldPairs:
    """Outputs that stray from what `Synthetic(noise=0)` predicts as it states, times a scale that is each function's own."""
    weights = normal(n, channels, 3, seed=f"weights {seed}") * (0.5 + normal(n, channels, 1, seed=f"sizes {seed}").abs())
    inputs = Field(weights @ basis(GRID).mT, GRID)
    scale = torch.tensor(scales).double()[torch.arange(n) % len(scales)][:, None, None]
    size = inputs.mean_square().sqrt()[..., None] * scale
    errors = normal(n, channels, 3, seed=f"errors {seed}") @ basis(GRID).mT
    return FieldPairs(inputs, Field(inputs.values + size * errors, GRID))


class Constant(Synthetic):
    """States the same deviation, .5 on average, of every function."""

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        u = super()._field(inputs, query)
        assert isinstance(u, GaussianField)
        root = 0.5 * basis(u.grid).expand(*u.mean.shape[:2], -1, -1)
        return GaussianField(u.mean, DenseRoot(root), latent="constant", grid=u.grid)


def whole(predictor: pn.distributions.Predictor, data: FieldPairs, level: float) -> float:
    """How many functions lie wholly within their band."""
    comparison = compare(predictor(data.inputs), data.outputs, noise=predictor.noise)
    return float(simultaneous_coverage(comparison, level=level).mean())


def test_scales_of_functions_are_found_and_whole_functions_covered() -> None:
    """Each level's standard error over 1,000 functions is below .016; the Gaussian field is off by several of these.

    Over six other seeds the moments of scales have standard deviations of .05 and .1 of themselves, coverage of values .01.
    """
    inner = Synthetic(noise=0.0)
    calibration, test = scaled_pairs(1000, seed=0), scaled_pairs(1000, seed=1)
    mixed = ScaleMixture().fit(inner, calibration)
    second, fourth = (float(mixed.weights @ mixed.scales**power) for power in (2, 4))
    assert second == pytest.approx((0.6**2 + 1.6**2) / 2, rel=0.1)
    assert fourth == pytest.approx((0.6**4 + 1.6**4) / 2, rel=0.25)
    for level in (0.5, 0.8, 0.9, 0.95):
        assert whole(mixed, test, level) == pytest.approx(level, abs=0.045)
    assert abs(whole(inner, test, 0.9) - 0.9) > 0.1
    before, after = (score(one(test.inputs), test.outputs, noise=1e-9) for one in (inner, mixed))
    assert after.joint_nll < before.joint_nll
    assert after.crps < before.crps
    # What is stated of every value is right, too.
    u = mixed(test.inputs)
    probabilities = u.cdf(test.outputs.values)
    away = u.standard_deviation > 0.05  # the basis has a zero
    assert float(((probabilities[away] > 0.05) & (probabilities[away] < 0.95)).double().mean()) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("factor", [0.05, 20.0])
def test_scales_far_from_one_are_found(factor: float) -> None:
    calibration, test = (scaled_pairs(1000, seed=seed, scales=(0.6 * factor, 1.6 * factor)) for seed in (10, 11))
    mixed = ScaleMixture().fit(Synthetic(noise=0.0), calibration)
    assert mixed.variance_factor == pytest.approx(factor**2 * (0.6**2 + 1.6**2) / 2, rel=0.2)
    assert whole(mixed, test, 0.9) == pytest.approx(0.9, abs=0.05)


def test_functions_that_are_certain_say_nothing_of_the_scale() -> None:
    """Where an input is zero, `Synthetic` is certain, and right."""
    data = scaled_pairs(200, seed=12, scales=(2.0,))
    certain = FieldPairs(
        *(Field(torch.cat([one.values, torch.zeros_like(one.values)]), GRID) for one in (data.inputs, data.outputs))
    )
    alone, both = (ScaleMixture().fit(Synthetic(noise=0.0), one) for one in (data, certain))
    assert both.variance_factor == pytest.approx(alone.variance_factor, rel=0.1)
    assert both.variance_factor == pytest.approx(4.0, rel=0.2)


def test_a_gaussian_gets_one_scale_about_one() -> None:
    calibration, test = (scaled_pairs(500, seed=seed, scales=(1.0,)) for seed in (2, 3))
    mixed = ScaleMixture().fit(Synthetic(noise=0.0), calibration)
    assert mixed.variance_factor == pytest.approx(1.0, abs=0.08)
    deviation = float((mixed.weights @ (mixed.scales.log() - mixed.weights @ mixed.scales.log()).square()).sqrt())
    assert deviation < 0.15
    assert whole(mixed, test, 0.9) == pytest.approx(0.9, abs=0.04)


def test_measurement_noise_has_no_random_scale() -> None:
    """Fields twice as far off as stated beside much noise: the scale is that of the field, not of the sum."""
    n, noise = 600, 0.5
    data = scaled_pairs(n, seed=4, scales=(2.0,))
    noisy = FieldPairs(data.inputs, Field(data.outputs.values + math.sqrt(noise) * normal(n, 1, 16, seed="noise"), GRID))
    inner = Synthetic(noise=noise)
    mixed = ScaleMixture().fit(inner, noisy)
    assert sum(count for count, _ in inner.calls) <= 3 * n  # not once for each of the scales that are tried
    assert mixed.variance_factor == pytest.approx(4.0, rel=0.2)
    assert whole(mixed, noisy, 0.9) == pytest.approx(0.9, abs=0.04)
    assert float(mixed.residual_variance) == pytest.approx(noise)


def test_means_and_correlations_stay_and_draws_have_the_scale() -> None:
    inner, data = Synthetic(noise=0.0), scaled_pairs(6, seed=5)
    mixed = ScaleMixturePredictor(inner, torch.tensor([0.5, 2.0]), weights=torch.tensor([3.0, 1.0]), calibrated_on=NOTHING)
    assert mixed.variance_factor == pytest.approx(0.75 * 0.25 + 0.25 * 4.0)
    u, before = mixed(data.inputs), inner(data.inputs)
    assert isinstance(u, MixtureField)
    assert isinstance(before, GaussianField)
    torch.testing.assert_close(u.mean, before.mean)
    torch.testing.assert_close(u.variance, mixed.variance_factor * before.variance)
    ratios = []
    for seed in range(40):
        one, other = (p.draw(seed)(data.inputs.values, grid=GRID) - before.mean for p in (mixed, inner))
        ratio = float((one * other).sum() / other.square().sum())
        torch.testing.assert_close(one, ratio * other)
        ratios.append(ratio)
    assert {round(ratio, 6) for ratio in ratios} == {0.5, 2.0}
    assert sum(ratio > 1 for ratio in ratios) < 20
    # Side by side, draws are the same.
    many = mixed.evaluate_draws(data.inputs, seeds=range(5))
    each = torch.stack([mixed.draw(seed)(data.inputs.values, grid=GRID) for seed in range(5)])
    torch.testing.assert_close(many, each)


def test_it_works_with_what_others_do() -> None:
    calibration, test = pairs(200), pairs(60, seed=9)
    scaling = pairs(100, seed=40)
    for inner in (VarianceScale().fit(Synthetic(), scaling), Members(noise=0.1)):
        mixed = ScaleMixture(draws=100).fit(inner, calibration)
        again = ScaleMixture(draws=100).fit(mixed, calibration)
        assert again.inner is inner  # anew, not twice
        torch.testing.assert_close(again.weights, mixed.weights)
        other = pairs(100, seed=20)
        assert SimultaneousBand(0.9).fit(mixed, other)(test.inputs).half_width.isfinite().all()
        for used in (calibration, *([] if isinstance(inner, Members) else [scaling])):
            with pytest.raises(CalibrationError, match="calibrat"):
                SimultaneousBand(0.9).fit(mixed, used)
        assert isinstance(VarianceScale().fit(mixed, calibration)(test.inputs), GaussianField)
    mixed = ScaleMixture(draws=100).fit(Synthetic(), calibration)
    widened = NoveltyScale().fit(mixed, calibration, shifted=pairs(100, seed=30, errors=3.0))
    u, before = widened(test.inputs), mixed(test.inputs)
    assert isinstance(u, ScaleMixtureField)  # one field's work
    torch.testing.assert_close(u.mean, before.mean)
    factor = widened.factors(test.inputs)[:, None, None]
    torch.testing.assert_close(u.variance, factor * before.variance)
    for one, other in zip(u.components, widened(test.inputs[:7]).components, strict=True):
        assert one.latent.id == other.latent.id  # one operator, whatever it is asked


def test_components_of_a_widened_mixture_move_apart() -> None:
    """What components disagree about grows as what each states does: the variance of the whole, by the factor."""

    class Shifted(Synthetic):
        def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
            u = super()._field(inputs, query)
            assert isinstance(u, GaussianField)
            return GaussianField(u.mean + 0.7, u.root, latent=u.latent, grid=u.grid)

    calibration, test = pairs(200), pairs(60, seed=9)
    inner = MixturePredictor([Synthetic(), Shifted()])
    widened = NoveltyScale().fit(inner, calibration, shifted=pairs(100, seed=30, errors=3.0))
    factor = widened.factors(test.inputs)[:, None, None]
    assert float(factor.amax()) > 1.2
    u, before = widened(test.inputs), inner(test.inputs)
    torch.testing.assert_close(u.mean, before.mean)
    torch.testing.assert_close(u.variance, factor * before.variance)


def test_two_channels_keep_their_correlations_and_share_a_scale() -> None:
    inner, data = Synthetic(noise=0.0, channels=2), scaled_pairs(500, seed=8, channels=2)
    mixed = ScaleMixture().fit(inner, data)
    u, before = mixed(data.inputs[:3]), inner(data.inputs[:3])
    assert isinstance(before, GaussianField)
    for scale, field in zip(mixed.scales.tolist(), u.components, strict=True):
        torch.testing.assert_close(field.covariance.to_dense(), scale**2 * before.covariance.to_dense())
    assert whole(mixed, scaled_pairs(500, seed=9, channels=2), 0.9) == pytest.approx(0.9, abs=0.06)


def test_what_the_wrapped_predictor_is_stays(tmp_path: Path) -> None:
    """A calibrated last layer: its discrepancy is scaled, its file is read, and what it says of itself is still true."""
    inputs = fields(GRID, 60, 1, seed=1)
    operator = operator_case("fno-1d").operator
    data = data_for(operator, inputs, noise=0.3)
    inner = VarianceScale().fit(pn.heads.LastLayerLaplace().fit(operator, data[:20]), data[20:40])
    mixed = ScaleMixture(draws=60).fit(inner, data[40:])
    assert torch.equal(mixed.effective_observations, inner.effective_observations)
    assert float(inner.noise) == 0.0
    torch.testing.assert_close(mixed.residual_variance, mixed.variance_factor * inner.residual_variance)
    u = inner(data.inputs)
    ratio = (mixed(data.inputs).draw([3]) - u.mean) / (u.draw([3]) - u.mean)
    torch.testing.assert_close(ratio, ratio.median().expand_as(ratio))
    assert (mixed.scales - ratio.median()).abs().min() < 1e-6
    pn.save(mixed, tmp_path / "mixed")
    again = pn.load(tmp_path / "mixed")
    assert torch.equal(again(data.inputs).variance, mixed(data.inputs).variance)
    assert torch.equal(again.calibrated_on, mixed.calibrated_on)


def test_a_process_is_asked_once_for_several_sets() -> None:
    """The latent of a kernel operator belongs to one call: sets that are asked for together share it."""
    data = pairs(40)
    inner = pn.heads.KernelOperator(groups=1, iterations=2).fit(None, data)
    mixed = ScaleMixture(draws=50).fit(inner, pairs(40, seed=5))
    first, second = mixed._predict([(data.inputs[:3], None), (data.inputs[3:6], None)])
    assert isinstance(first, MixtureField)
    assert isinstance(second, MixtureField)
    for one, other in zip(first.components, second.components, strict=True):
        assert one.latent.id == other.latent.id


def test_deviations_that_are_rounding_leave_the_scale_as_it_is() -> None:
    """A few functions of small values, whose rounding is smaller, must not scale all others."""
    small = scaled_pairs(10, seed=13, scales=(0.1,))
    large = small.inputs.values.repeat(9, 1, 1) * 1e17
    values = [torch.cat([one.values, large]) for one in (small.inputs, small.outputs)]
    data = FieldPairs(*(Field(one, GRID) for one in values))
    inner = Constant(noise=0.0)
    with pytest.warns(DataWarning, match="91% of the predicted deviations are rounding"):
        mixed = ScaleMixture().fit(inner, data)
    assert mixed.scales.tolist() == mixed.weights.tolist() == [1.0]
    assert ScaleMixture().fit(inner, small).variance_factor < 0.6  # what the ten would do to all
    with pytest.warns(DataWarning, match="100%"):
        ScaleMixture().fit(inner, FieldPairs(*(Field(one[10:], GRID) for one in values)))


def test_errors_that_are_all_zero_are_small() -> None:
    data = scaled_pairs(20, seed=6)
    exact = FieldPairs(data.inputs, data.inputs)
    assert float(ScaleMixture().fit(Synthetic(noise=0.0), exact).scales.max()) < 0.4


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_densities_take_a_few_functions_at_a_time(noise: float) -> None:
    """All at once, 400 draws at 29 scales of a thousand functions take 400 MiB."""
    calibration = ScaleMixture(draws=50)
    predictor, data = Synthetic(noise=noise), scaled_pairs(21, seed=0)
    drawn, logs = normal(50, 21, seed="drawn"), torch.tensor([-0.5, 0.0, 0.5]).double()
    parts = list(calibration._scaled(predictor, data, drawn, logs=logs))
    assert [part.shape for part in parts] == [(50, 8, 3), (50, 8, 3), (50, 5, 3)]
    if not noise:
        assert torch.equal(torch.cat(parts, 1), drawn[:, :, None] + logs)
    _, densities, _ = calibration._log_densities(predictor, data)
    assert densities.shape == (21, 29)
    assert bool(densities.isfinite().all())


@pytest.mark.bad_input
def test_errors() -> None:
    data = scaled_pairs(20, seed=7)
    with pytest.raises(CalibrationError, match="1 or more calibration fields"):
        ScaleMixture().fit(Synthetic(), data[:0])
    with pytest.raises(CalibrationError, match="a variance wherever there are errors"):
        ScaleMixture().fit(scaled_by(1e-300, Synthetic(sd=0.0, noise=0.0)), data)
    flat = FieldPairs(Field(torch.zeros(5, 1, 16).double(), GRID), Field(torch.zeros(5, 1, 16).double(), GRID))
    with pytest.raises(CalibrationError, match="no variance at all"):
        ScaleMixture().fit(Synthetic(noise=0.0), flat)
    for scales in (torch.tensor([0.0, 1.0]), torch.tensor([math.nan, 1.0]), torch.ones(2, 1)):
        with pytest.raises(ArgumentError, match="positive finite scales"):
            ScaleMixturePredictor(Synthetic(), scales, weights=torch.ones(2), calibrated_on=NOTHING)
    with pytest.raises(ShapeError, match="weights"):
        ScaleMixturePredictor(Synthetic(), torch.ones(2), weights=torch.ones(3), calibrated_on=NOTHING)
    with pytest.raises(DataError, match="finite weights"):
        ScaleMixturePredictor(Synthetic(), torch.ones(2), weights=-torch.ones(2), calibrated_on=NOTHING)


def test_what_is_scaled_after_it_remembers_both() -> None:
    first, second = pairs(60, seed=0), pairs(60, seed=5)
    mixed = ScaleMixture(seed=0).fit(Synthetic(), first)
    scaled = VarianceScale(local=False).fit(mixed, second)
    for used in (first, second):
        with pytest.raises(CalibrationError, match="60 of 60"):
            SimultaneousBand(0.9).fit(scaled, used)


def test_chance_does_not_depend_on_how_many_functions_are_predicted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that were predicted at once shared their random numbers, and each next chunk had the same ones again."""
    data = pairs(61, errors=0.7)
    predictor = VarianceScale().fit(Synthetic(), data)
    found = [ScaleMixture().fit(predictor, data)]
    for functions in (32, 8):
        monkeypatch.setattr("probneural.metrics.scores._BATCH_VALUES", functions * GRID.size)
        found.append(ScaleMixture().fit(predictor, data))
    for one in found[1:]:
        torch.testing.assert_close(one.weights, found[0].weights)
        torch.testing.assert_close(one.scales, found[0].scales)
