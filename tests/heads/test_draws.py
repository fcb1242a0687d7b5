"""Draws by seed against random samples of the same field: mean, variance and kurtosis, for every head and calibrator."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.calibration import NoveltyScale, ScaleMixture, VarianceScale
from probneural.distributions import FieldDistribution, GaussianField, MixtureField, Predictor, ScaleMixtureField
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.fields import Field
from probneural.functionals import sensors
from probneural.pairs import FieldPairs
from tests.heads.cases import ALL_HEADS, FRESH_DRAWS, fields, fitted, operator_case, operators_of
from tests.helpers import generator

pytestmark = pytest.mark.filterwarnings("ignore::probneural.errors.ConvergenceWarning")
DRAWS, SAMPLES, Z = 800, 4000, 5.0


def conditioned(predictor: Predictor, data: FieldPairs) -> Predictor:
    probe = sensors(data.outputs.grid, data.outputs.grid.points[:2])
    measured = data[:2]
    return predictor.condition(measured.inputs, probe, values=probe(measured.outputs.values), noise=0.1)


def shifted(data: FieldPairs) -> FieldPairs:
    """Held-out pairs with inputs and errors three times as large."""
    return FieldPairs(Field(3.0 * data.inputs.values, data.inputs.grid), Field(3.0 * data.outputs.values, data.outputs.grid))


CALIBRATORS: dict[str, Callable[[Predictor, FieldPairs], Predictor]] = {
    "none": lambda predictor, data: predictor,
    "variance-scale": lambda predictor, data: VarianceScale().fit(predictor, data),
    "scale-mixture": lambda predictor, data: ScaleMixture(draws=50).fit(predictor, data),
    "novelty-scale": lambda predictor, data: NoveltyScale().fit(predictor, data, shifted=shifted(data)),
    "conditioned": lambda predictor, data: conditioned(VarianceScale().fit(predictor, data), data),
    "mixture": lambda predictor, data: MixturePredictor([predictor, VarianceScale().fit(predictor, data)]),
}
HEADS = [head for head in ALL_HEADS if not head.endswith(("-given", "-grown", "-corrected")) and head != "calibrated-scale"]
FAST = {(head, "none") for head in HEADS} | {
    (head, calibrator) for head in ("last-layer", "deep-ensemble", "residual-process") for calibrator in CALIBRATORS
}


@cache
def predictor_of(head: str, calibrator: str) -> Predictor:
    name = operators_of(head)[0]
    case = operator_case(name)
    inputs = fields(case.data.inputs.grid, 40, case.data.inputs.channels, seed=50)
    predictor = fitted(head, name)
    u = predictor(inputs)
    errors = u.std * torch.randn(u.mean.shape, generator=generator(3), dtype=torch.float64)
    return CALIBRATORS[calibrator](predictor, FieldPairs(inputs, Field(u.mean + 2.0 * errors, u.grid)))


def without_white(u: FieldDistribution) -> FieldDistribution:
    """The field without white noise, which draws leave out."""
    if isinstance(u, ScaleMixtureField):
        return ScaleMixtureField(without_white(u.field), u.scales, weights=u.weights)
    if isinstance(u, MixtureField):
        return MixtureField([without_white(field) for field in u.components], u.weights)
    if not isinstance(u, GaussianField) or u.discrepancy is None:
        return u
    return GaussianField(u.mean, u.root, latent=u.latent, grid=u.grid, discrepancy=u.discrepancy.without_white()[0])


def numbers(u: FieldDistribution, values: Float64[Tensor, "s n c *grid"]) -> Float64[Tensor, "s m"]:
    """Standardised random projections of each sample."""
    deviations = (values - u.mean).flatten(2)
    weights = torch.randn(3, deviations.shape[2], generator=generator(8), dtype=torch.float64)
    return torch.einsum("snp,mp->snm", deviations.double(), weights).flatten(1)


def moments(x: Float64[Tensor, "s m"]) -> tuple[Tensor, Tensor, Tensor]:
    mean, variance = x.mean(0), x.var(0)
    return mean, variance, ((x - mean) ** 4).mean(0) / variance**2


@pytest.mark.parametrize(
    ("head", "calibrator"),
    [
        pytest.param(head, calibrator, marks=[] if (head, calibrator) in FAST else pytest.mark.slow)
        for head in HEADS
        for calibrator in CALIBRATORS
    ],
)
def test_draws_by_seed_have_the_moments_of_random_samples(head: str, calibrator: str) -> None:
    inputs = operator_case(operators_of(head)[0]).inputs
    u = without_white(predictor_of(head, calibrator)(inputs))
    drawn, expected = numbers(u, u.draw(range(DRAWS))), numbers(u, u.rsample((SAMPLES,), seed=1))
    (mean, variance, kurtosis), (_, spread, peak) = moments(drawn), moments(expected)
    if float(spread.max()) < 1e-20:
        assert float(variance.max()) < 1e-20
        return
    count = 1.0 / DRAWS + 1.0 / SAMPLES
    if calibrator == "none" and head in FRESH_DRAWS:
        count += 1.0 / min(SAMPLES, len(getattr(u, "samples", torch.empty(SAMPLES, 0))))
    error = (peak.clamp_min(1.0) * count).sqrt()
    assert bool((mean.abs() < Z * (spread * count).sqrt()).all())
    assert bool(((variance / spread).log().abs() < Z * error).all())
    assert bool(((kurtosis / peak).log().abs() < 2.0 * Z * error).all())


@pytest.mark.parametrize("calibrator", ["none", "variance-scale"])
def test_the_draw_of_a_calibrated_ensemble_is_no_member(calibrator: str) -> None:
    """A calibrated ensemble draws from its Gaussian field; the ensemble itself draws members."""
    inputs = operator_case("fno-1d").inputs
    draws = predictor_of("deep-ensemble", calibrator)(inputs).draw(range(60)).flatten(1)
    distinct = len({round(float(value), 9) for value in draws[:, 0]})
    assert distinct == (4 if calibrator == "none" else 60)


def test_each_sample_in_the_draw_of_its_own_seed() -> None:
    inputs = operator_case("fno-1d").inputs
    for head in ("last-layer", "full", "deep-ensemble", "residual-process", "mixture"):
        predictor = fitted(head, "fno-1d")
        u, seeds = predictor(inputs), [7, 3]
        draws = u.draw(seeds)
        expected = torch.stack([draws[index, index] for index in range(2)])
        torch.testing.assert_close(u.draw(seeds, each=True), expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(predictor.draw(3)(inputs.values), draws[1], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(predictor(inputs[1:]).draw([3])[0], draws[1, 1:], rtol=1e-7, atol=1e-9)
