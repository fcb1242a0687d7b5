from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from probneural import functionals, metrics
from probneural.calibration import VarianceScale
from probneural.calibration.variance.variance_scale import FRACTIONS
from probneural.distributions import EmpiricalField, GaussianField, Predictor
from probneural.errors import ArgumentError, CalibrationError, DataError, DataWarning, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.calibration.synthetic import GRID, Members, Synthetic, changed, pairs
from tests.helpers import normal


def chi2(predictor: Predictor, data: FieldPairs) -> Tensor:
    """Per channel, by the scores' own route."""
    u = predictor(data.inputs, data.outputs.grid)
    return metrics.chi2(metrics.compare(u, data.outputs, noise=predictor.noise)).mean(0)


@pytest.mark.parametrize("kind", [Synthetic, Members])
@pytest.mark.parametrize("channels", [1, 3])
def test_chi2_on_the_calibration_fields_is_one_in_every_channel(kind: type[Synthetic], channels: int) -> None:
    predictor, data = kind(channels=channels), pairs(30, channels=channels)
    before = chi2(predictor, data)
    scaled = VarianceScale(separate=False).fit(predictor, data)
    torch.testing.assert_close(scaled.scale, before)
    torch.testing.assert_close(chi2(scaled, data), torch.ones(channels, dtype=torch.float64), rtol=1e-12, atol=0)


def test_in_float32_to_rounding() -> None:
    predictor, data = Synthetic(dtype=torch.float32), pairs(30)
    scaled = VarianceScale(separate=False).fit(predictor, data.to(torch.float32))
    assert scaled.noise.dtype == scaled(data.inputs).mean.dtype == torch.float32
    assert chi2(scaled, data.to(torch.float32)).item() == pytest.approx(1.0, rel=1e-5)


def test_the_scale_is_the_mistake_that_was_made() -> None:
    scaled = VarianceScale(separate=False).fit(Synthetic(), pairs(4000, errors=0.5))
    assert scaled.scale.item() == pytest.approx(0.25, rel=0.03)


@given(sd=st.floats(0.01, 100.0))
def test_a_common_factor_of_the_stated_variances_drops_out(sd: float) -> None:
    data = pairs(12, channels=2)
    reference = VarianceScale(separate=False, local=False).fit(Synthetic(channels=2), data)(data.inputs)
    other = VarianceScale(separate=False, local=False).fit(Synthetic(channels=2, sd=sd, noise=0.1 * sd**2), data)
    torch.testing.assert_close(other(data.inputs).variance, reference.variance)
    torch.testing.assert_close(other.noise, VarianceScale(separate=False, local=False).fit(Synthetic(channels=2), data).noise)


def test_it_maximises_the_marginal_likelihood() -> None:
    data = pairs(20)
    scaled = VarianceScale(separate=False).fit(Synthetic(), data)

    def nll(scale: Tensor) -> float:
        predictor = changed(scaled, scale=scale, noise_scale=scale)
        return metrics.nll(metrics.compare(predictor(data.inputs), data.outputs, noise=predictor.noise)).mean().item()

    assert nll(scaled.scale) < min(nll(scaled.scale * 0.99), nll(scaled.scale * 1.01))


def test_the_result_is_a_predictor_with_the_same_mean_and_coherent_draws() -> None:
    inner, data = Synthetic(channels=2), pairs(5, channels=2)
    scaled = VarianceScale(separate=False).fit(inner, data)
    assert (scaled.in_channels, scaled.out_channels, scaled.domain) == (2, 2, GRID)
    assert (scaled.dtype, scaled.device) == (inner.dtype, inner.device)
    u, v = inner(data.inputs), scaled(data.inputs)
    assert torch.equal(u.mean, v.mean)
    torch.testing.assert_close(v.variance + scaled.noise[:, None], (u.variance + inner.noise[:, None]) * scaled.scale[:, None])
    torch.testing.assert_close(scaled.residual_variance, scaled.noise + scaled.decomposition.variance)
    fine = GRID.resized((32,))
    drawn = scaled.draw(4)(data.inputs.values)
    torch.testing.assert_close(scaled.draw(4)(data.inputs.values[2:3]), drawn[2:3])
    torch.testing.assert_close(scaled.draw(4)(data.inputs.values, query=fine)[..., ::2], drawn)
    total = functionals.integral(GRID)
    measured = v[:2].condition(total, total(v.mean[:2]), noise=0.1)
    assert (v.under(measured.latent).variance <= v.variance + 1e-12).all()
    with pytest.raises(AttributeError, match="frozen"):
        scaled.noise = inner.noise
    assert "ScaledPredictor" in repr(scaled)


@pytest.mark.parametrize("separate", [False, True])
def test_calibrating_anew_replaces_the_scales(separate: bool) -> None:
    first, second = pairs(10), pairs(12, errors=2.0, seed=7)
    once = VarianceScale(separate=separate).fit(Synthetic(), first)
    again, fresh = (VarianceScale(separate=separate).fit(predictor, second) for predictor in (once, Synthetic()))
    assert torch.equal(again.scale, fresh.scale)
    assert torch.equal(again.calibrated_on, fresh.calibrated_on)
    assert again(second.inputs).latent.id == fresh(second.inputs).latent.id != once(second.inputs).latent.id


FINE = GRID.resized((40,))
LOOSE = Grid.scattered(FINE.points[3:30], torch.linspace(0.0, 1.0, 27))


@pytest.mark.parametrize("grid", [FINE, LOOSE], ids=["finer", "scattered"])
def test_outputs_may_live_on_another_grid(grid: Grid) -> None:
    predictor, data = Synthetic(), pairs(12, grid=grid)
    scaled = VarianceScale(separate=False).fit(predictor, data)
    assert chi2(scaled, data).item() == pytest.approx(1.0, rel=1e-12)
    assert predictor.calls[-1] == (12, grid)


def test_fields_are_predicted_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pairs(23, channels=2)
    whole = VarianceScale(separate=False).fit(Synthetic(channels=2), data)
    monkeypatch.setattr("probneural.metrics.scores._BATCH_VALUES", 2 * 16 * 5 + 3)
    predictor = Synthetic(channels=2)
    torch.testing.assert_close(VarianceScale(separate=False).fit(predictor, data).scale, whole.scale)
    assert [count for count, _ in predictor.calls] == [5, 5, 5, 5, 3, 23]  # the last for the discrepancy


def test_values_known_exactly_and_predicted_right_count_nothing() -> None:
    data = pairs(10, errors=0.0)  # at the left end, the stated deviation is zero
    moved = data.outputs.values + 0.3 * data.inputs.values
    scaled = VarianceScale(separate=False).fit(Synthetic(noise=0.0), FieldPairs(data.inputs, Field(moved, GRID)))
    assert torch.isfinite(scaled.scale).all()
    assert chi2(scaled, FieldPairs(data.inputs, Field(moved, GRID))).item() == pytest.approx(1.0, rel=1e-12)


class TestSeparateScales:
    """Covariance and noise scaled each by its own number."""

    @pytest.mark.parametrize("kind", [Synthetic, Members])
    @pytest.mark.parametrize("channels", [1, 3])
    def test_chi2_is_one(self, kind: type[Synthetic], channels: int) -> None:
        data = pairs(30, channels=channels)
        scaled = VarianceScale().fit(kind(channels=channels), data)
        torch.testing.assert_close(chi2(scaled, data), torch.ones(channels, dtype=torch.float64), rtol=1e-12, atol=0)

    def test_finds_both_mistakes(self) -> None:
        data = pairs(4000, errors=0.5)  # a quarter of the variances that Synthetic() states
        noisy = data.outputs.values + normal(*data.outputs.values.shape, seed=9)
        wrong, noisy_pairs = Synthetic(sd=0.25, noise=8.0), FieldPairs(data.inputs, Field(noisy, GRID))
        scaled = VarianceScale().fit(wrong, noisy_pairs)
        assert scaled.scale.item() == pytest.approx(4.0, rel=0.05)  # 1 % steps of the share, and 12,000 directions
        assert scaled.noise_scale.item() * 8.0 == pytest.approx(1.025, rel=0.05)
        assert (
            scaled.decomposition.root_fraction.item() == scaled.decomposition.white_fraction.item() == 1.0
        )  # as the data were made
        assert scaled.noise.item() == 0.0  # the field holds what is not said to be measurement noise
        told = VarianceScale(noise=1.0).fit(wrong, noisy_pairs)
        assert told.noise.item() == 1.0
        total = [one(data.inputs[:3]).variance + one.noise for one in (scaled, told)]
        torch.testing.assert_close(*total)

    def test_is_at_least_as_likely_as_a_common_scale(self) -> None:
        data = pairs(20)

        def nll(predictor: Predictor) -> float:
            return metrics.nll(metrics.compare(predictor(data.inputs), data.outputs, noise=predictor.noise)).mean().item()

        wrong = Synthetic(noise=10.0)
        common = VarianceScale(separate=False, local=False).fit(wrong, data)
        assert nll(VarianceScale(local=False).fit(wrong, data)) < nll(common) - 0.1

    def test_the_noise_keeps_a_share(self) -> None:
        data = pairs(50)
        for noise in (1e-9, 1e9):
            scaled = VarianceScale(local=False).fit(Synthetic(noise=noise), data)
            total = scaled(data.inputs).variance.mean().item() + scaled.noise.item()
            share = (scaled.noise_scale * noise).item() / total
            assert FRACTIONS[0] - 1e-9 <= share <= FRACTIONS[1] + 1e-9

    def test_a_part_that_is_zero_leaves_one_scale(self) -> None:
        data = pairs(10)
        scaled = VarianceScale().fit(Synthetic(sd=0.0), data)
        torch.testing.assert_close(scaled.noise, VarianceScale(separate=False).fit(Synthetic(sd=0.0), data).noise)


class NearlyCertain(Synthetic):
    """In the first channel."""

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        return super()._field(inputs, query).scale(torch.tensor([1e-17, 1.0], dtype=torch.float64)[: inputs.channels])


@pytest.mark.parametrize("local", [True, False])
def test_where_errors_and_variances_are_rounding_variances_stay(local: bool) -> None:
    """In the first channel; the other one is scaled, and nothing is divided by zero."""

    data = pairs(20, channels=2)
    outputs = torch.stack([data.inputs.values[:, 0], data.outputs.values[:, 1]], 1)
    half_exact = FieldPairs(data.inputs, Field(outputs, GRID))
    predictor = NearlyCertain(noise=torch.tensor([1e-34, 0.1], dtype=torch.float64), channels=2)
    with pytest.warns(DataWarning, match=r"channels \[0\] are predicted exactly, to rounding"):
        scaled = VarianceScale(local=local).fit(predictor, half_exact)
    assert scaled.scale[0] == scaled.noise_scale[0] == 1.0
    assert scaled.scale[1] < 0.5  # errors are half of what is stated
    nearly = half_exact.outputs.values.clone()
    nearly[:, 0] += 1e-10
    other = VarianceScale(local=local).fit(predictor, FieldPairs(data.inputs, Field(nearly, GRID)))
    one, two = (predictor(data.inputs).variance[:, 1] for predictor in (scaled, other))
    torch.testing.assert_close(one, two)  # of which the exact channel says nothing
    found, stated = scaled(data.inputs), predictor(data.inputs)
    torch.testing.assert_close(found.variance[:, 0], stated.variance[:, 0] + predictor.noise[0], rtol=1e-9, atol=0)
    assert bool(found.variance.isfinite().all())
    assert bool(found.rsample(seed=1).isfinite().all())


@pytest.mark.parametrize(("size", "has_local"), [(1e-10, True), (8e-15, False)])
def test_few_errors_beyond_rounding_make_no_local_scale(size: float, has_local: bool) -> None:
    """They lie at the left end, and are of the size of a few roundings or far above them; elsewhere the predictor is right."""
    data = pairs(40)
    outputs = data.inputs.values.clone()
    outputs[:, :, :2] += size * normal(40, 1, 2, seed=5)
    found = VarianceScale().fit(NearlyCertain(noise=1e-34), FieldPairs(data.inputs, Field(outputs, GRID)))
    assert (found.local is not None) == has_local


@pytest.mark.parametrize("noise", [0.1, 0.0])
def test_a_channel_predicted_exactly_keeps_its_variances(noise: float) -> None:
    data = pairs(24, channels=2)
    outputs = torch.stack([data.outputs.values[:, 0], data.inputs.values[:, 1]], 1)
    predictor = Synthetic(channels=2, noise=torch.tensor([0.1, noise], dtype=torch.float64))
    with pytest.warns(DataWarning, match=r"channels \[1\] are predicted exactly"):
        scaled = VarianceScale().fit(predictor, FieldPairs(data.inputs, Field(outputs, GRID)))
    assert float(scaled.scale[1]) == 1.0
    alone = VarianceScale().fit(Synthetic(), FieldPairs(Field(data.inputs.values[:, :1], GRID), Field(outputs[:, :1], GRID)))
    assert float(scaled.scale[0]) == pytest.approx(float(alone.scale), rel=1e-6)


@pytest.mark.bad_input
def test_errors() -> None:
    data = pairs(5)
    with pytest.raises(CalibrationError, match="2 or more calibration fields"):
        VarianceScale(separate=False).fit(Synthetic(), data[:1])
    with pytest.raises(CalibrationError, match="zero everywhere"):
        VarianceScale(separate=False).fit(Synthetic(sd=0.0, noise=0.0), data)
    with pytest.raises(CalibrationError, match="inf"):  # the basis vanishes at some points, the errors do not
        VarianceScale(separate=False).fit(Synthetic(noise=0.0), data)
    with pytest.raises(CalibrationError, match="nothing to calibrate"):
        VarianceScale(separate=False).fit(Synthetic(), FieldPairs(data.inputs, data.inputs))
    with pytest.raises(ShapeError, match="1 channels of outputs"):
        VarianceScale(separate=False).fit(Synthetic(), FieldPairs(data.inputs, pairs(5, channels=2).outputs))
    broken = data.outputs.values.clone()
    broken[2, 0, 1] = torch.nan
    with pytest.raises(DataError, match="calibration outputs"):
        VarianceScale(separate=False).fit(Synthetic(), FieldPairs(data.inputs, Field(broken, GRID)))
    for scale in (torch.tensor([0.0]), torch.tensor([torch.inf]), torch.ones(2)):
        with pytest.raises((ArgumentError, ShapeError), match="positive finite scale|scale of shape"):
            changed(VarianceScale().fit(Synthetic(), data), scale=scale.double())
    for fraction in (torch.tensor([-0.1]), torch.tensor([1.1]), torch.ones(2)):
        with pytest.raises(ArgumentError, match="fractions between 0 and 1"):
            replace(VarianceScale().fit(Synthetic(), data).decomposition, white_fraction=fraction.double())


@pytest.mark.bad_input
def test_predictions_that_are_not_finite_are_named() -> None:
    class Diverged(Synthetic):
        def _field(self, inputs: Field, query: Grid | None) -> EmpiricalField:
            values = inputs.values[None].expand(2, *inputs.values.shape).clone()
            values[self.bad] = torch.tensor(self.sizes, dtype=torch.float64)
            return EmpiricalField(values, grid=inputs.grid)

        bad: object = (slice(None), 0, 0, 0)
        sizes: tuple[float, ...] = (torch.nan, torch.nan)

    with pytest.raises(DataError, match="predicted means"):
        VarianceScale(separate=False).fit(Diverged(), pairs(3))
    Diverged.sizes = (1e200, -1e200)
    with pytest.raises(DataError, match="variances that torch.float64 holds"):
        VarianceScale(separate=False).fit(Diverged(), pairs(3))


def test_more_noise_than_errors_leave_is_left_out_with_a_warning() -> None:
    data = pairs(60, errors=0.5)
    with pytest.warns(DataWarning, match="more than errors leave for noise"):
        scaled = VarianceScale(noise=1e3, local=False).fit(Synthetic(), data)
    known = VarianceScale(local=False).fit(Synthetic(), data)
    assert float(scaled.noise) == pytest.approx(float(known.noise_scale) * 0.1)
    comparison = metrics.compare(scaled(data.inputs), data.outputs, noise=scaled.noise)
    assert float(metrics.chi2(comparison).mean()) == pytest.approx(1.0, rel=1e-6)
