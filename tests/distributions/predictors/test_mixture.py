"""Mixtures of predictors: fields, noise, draws, roll-outs and files."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from probneural.calibration import SimultaneousBand, VarianceScale
from probneural.calibration.variance.scaled_predictor import ScaledPredictor
from probneural.distributions import GaussianField, MixtureField, Predictor
from probneural.distributions.mixture import choose, uniform_numbers
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.errors import CalibrationError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.functionals import integral
from probneural.grids import Grid
from probneural.heads import KernelOperator, Laplace, LastLayerLaplace
from probneural.metrics import score, score_pairs
from probneural.operators import FNO, LinearRegression
from probneural.plots import field as plot_field
from probneural.problems import Antiderivative
from probneural.storage import load, save
from tests.calibration.synthetic import Members, Synthetic, pairs
from tests.heads.cases import PERIODIC, data_for, fields
from tests.helpers import cross_covariance

WEIGHTS = torch.tensor([0.25, 0.75], dtype=torch.float64)
PAIR = [Synthetic(sd=0.5, noise=0.1), Synthetic(sd=2.0, noise=0.4)]
DATA = pairs(24)


def fitted() -> MixturePredictor:
    """Two operators with posteriors of their last layers."""
    operators = [FNO(1, 1, modes=(3,), width=4, depth=1, projection=6, seed=seed).double() for seed in range(2)]
    data = data_for(operators[0], fields(PERIODIC, 6, 1, seed=1))
    return MixturePredictor([LastLayerLaplace().fit(one, data) for one in operators], WEIGHTS)


FITTED = fitted()
INPUTS = fields(PERIODIC, 2, 1, seed=9)


def test_observations_have_the_weighted_sum_of_the_predictors_own_densities() -> None:
    """Each with its own noise: the mixture's is the least, and the rest belongs to the component."""
    mixture = MixturePredictor(PAIR, WEIGHTS)
    assert mixture.noise.tolist() == [pytest.approx(0.1)]
    truth = DATA.outputs.values
    own = [one(DATA.inputs).log_prob(truth, noise=one.noise) for one in PAIR]
    expected = torch.logsumexp(torch.stack(own) + WEIGHTS.log()[:, None], 0)
    torch.testing.assert_close(mixture(DATA.inputs).log_prob(truth, noise=mixture.noise), expected)
    assert float(mixture.residual_variance) == pytest.approx(0.25 * 0.1 + 0.75 * 0.4)


def test_effective_observations_are_the_weighted_mean_of_the_predictors() -> None:
    counts = [one.effective_observations for one in FITTED.predictors]
    found = FITTED.effective_observations
    assert found is not None
    assert counts[0] is not None
    assert counts[1] is not None
    torch.testing.assert_close(found, 0.25 * counts[0].double() + 0.75 * counts[1].double())
    assert MixturePredictor([FITTED.predictors[0], Synthetic()]).effective_observations is None


def test_mixtures_of_mixtures_draw_all_their_components() -> None:
    halves = torch.tensor([0.5, 0.5], dtype=torch.float64)
    outer = MixturePredictor([MixturePredictor(PAIR, halves), MixturePredictor(PAIR[::-1], halves)], halves)
    counts = Counter(choose(outer(INPUTS).weights, uniform_numbers(range(400), outer._key), 1).flatten().tolist())
    assert len(counts) == 4
    assert max(abs(count - 100) for count in counts.values()) < 4 * (400 * 0.25 * 0.75) ** 0.5


def test_draws_of_a_scaled_mixture_have_the_variance_of_its_field() -> None:
    """Misfits of components and of the whole have random numbers of their own: with the same, it is a quarter too large."""
    data = Antiderivative(equation="logistic").sample(120, resolution=65, seed=0, dtype=torch.float64)
    heads = [LastLayerLaplace().fit(LinearRegression.fitted(data[start : start + 10]), data[:14]) for start in (14, 24)]
    scaled = VarianceScale().fit(MixturePredictor(heads, WEIGHTS), data[60:])
    inputs = data[40:44].inputs
    draws = scaled.evaluate_draws(inputs, seeds=range(200))
    assert float(draws.var(0).sum() / scaled(inputs).variance.sum()) == pytest.approx(1.0, abs=0.16)


class Refusing(Synthetic):
    """A predictor that must not be asked."""

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        raise AssertionError("evaluated")


def test_a_predictor_without_weight_is_kept_and_not_evaluated() -> None:
    idle = Refusing(sd=0.1, noise=0.01)
    mixture = MixturePredictor([idle, *PAIR], torch.cat([torch.zeros(1), WEIGHTS]))
    alone = MixturePredictor(PAIR, WEIGHTS)
    assert len(mixture.predictors) == len(mixture.weights) == 3
    torch.testing.assert_close(mixture.noise, alone.noise)
    truth = DATA.outputs.values
    found, expected = (one(DATA.inputs).log_prob(truth, noise=one.noise) for one in (mixture, alone))
    torch.testing.assert_close(found, expected)
    assert len(mixture(DATA.inputs).components) == 2
    scaled = VarianceScale().fit(mixture, DATA)
    assert scaled.inner.predictors[0] is idle
    torch.testing.assert_close(scaled.scale, VarianceScale().fit(alone, DATA).scale)


def test_noises_that_differ_by_rounding_are_one() -> None:
    """A discrepancy has a latent number for every channel and point."""
    one, two = Synthetic(sd=0.1, noise=0.1), Synthetic(sd=0.1, noise=float(torch.tensor(0.1, dtype=torch.float32)))
    for found, rank in ((MixturePredictor([one, two]), 0), (MixturePredictor([one, Synthetic(sd=0.1, noise=0.11)]), 1)):
        parts = found(DATA.inputs).components
        own = [0 if part.discrepancy is None else part.discrepancy.shape[3] for part in parts]
        assert own == [0, rank * math.prod(DATA.outputs.values.shape[1:])]


def test_ensembles_take_part_with_their_moments() -> None:
    members = Members(sd=2.0)
    field = MixturePredictor([Synthetic(), members], WEIGHTS)(DATA.inputs)
    assert isinstance(field, MixtureField)
    torch.testing.assert_close(field.components[1].variance, members(DATA.inputs).variance)


def test_zero_shot_resolution_functionals_and_figures() -> None:
    finer = fields(PERIODIC.resized(24), 2, 1, seed=9)
    coarse, fine = FITTED(INPUTS), FITTED(finer)
    torch.testing.assert_close(fine.mean[..., ::2], coarse.mean)
    torch.testing.assert_close(fine.cdf(fine.mean)[..., ::2], coarse.cdf(coarse.mean))
    total = fine.apply(integral(finer.grid))
    lower, upper = total.interval(0.9)
    assert bool((lower < total.mean).all() and (total.mean < upper).all())
    plot_field(fine)


def test_calibration_scales_the_predictors_and_then_the_mixture(tmp_path: Path) -> None:
    """Means are right up to noise here: chi² of the calibrated field is 1, and it is a Gaussian field of one latent."""
    mixture = MixturePredictor([Synthetic(sd=0.1), Synthetic(sd=5.0)])
    scaled = VarianceScale(local=False).fit(mixture, DATA)
    assert isinstance(scaled, ScaledPredictor)
    assert all(isinstance(one, ScaledPredictor) for one in scaled.inner.predictors)  # type: ignore[attr-defined]
    assert score_pairs(scaled, DATA).chi2 == pytest.approx(1.0, rel=1e-6)
    u, again = scaled(DATA.inputs[:3]), scaled(DATA.inputs[3:6])
    assert isinstance(u, GaussianField)
    assert u.latent.id == again.latent.id
    assert bool((cross_covariance(u, again).abs() > 0).any())
    draws = scaled.evaluate_draws(DATA.inputs[:2], seeds=range(200))
    white = u.discrepancy.without_white()[1] if u.discrepancy is not None else 0.0
    expected = (u.variance.flatten(2) - white)[:2]
    ratio = draws.var(0).flatten(2).mean(-1) / expected.mean(-1)
    assert bool(((ratio - 1).abs() < 0.35).all())
    anew = VarianceScale(local=False).fit(scaled, DATA)
    torch.testing.assert_close(anew(DATA.inputs).variance, scaled(DATA.inputs).variance)


def test_bands_refuse_what_any_part_was_scaled_on() -> None:
    scaled = VarianceScale(local=False).fit(Synthetic(), DATA)
    mixture = MixturePredictor([scaled, Synthetic()])
    with pytest.raises(CalibrationError, match="variances were not scaled on"):
        SimultaneousBand().fit(mixture, DATA)
    fresh = pairs(30, seed=50)
    band = SimultaneousBand().fit(mixture, fresh)
    assert 0.7 <= band.coverage(pairs(60, seed=60)) <= 1.0


def test_scores_of_a_predictor_are_those_of_its_fields() -> None:
    mixture = MixturePredictor(PAIR, WEIGHTS)
    few = DATA[:6]
    assert score_pairs(mixture, few) == score(mixture(few.inputs), few.outputs, noise=mixture.noise)


@pytest.mark.bad_input
def ensemble(seed: int) -> Predictor:
    operator = FNO(1, 1, modes=(3,), width=4, depth=1, projection=6, seed=0).double()
    data = data_for(operator, fields(PERIODIC, 6, 1, seed=1))
    return Laplace(structure="diagonal").fit(operator, data).sampled(3, seed=seed)


def test_latents_of_members_are_named_by_contents(tmp_path: Path) -> None:
    """Equal for copies and files, and different for other members: a count would repeat in every process."""
    first, second = (MixturePredictor([ensemble(seed), FITTED.predictors[0]]) for seed in range(2))
    save(first, tmp_path / "first.safetensors")
    loaded = load(tmp_path / "first.safetensors", operator=first.predictors[0].operator)
    u, again, other = (one(INPUTS).components[0] for one in (first, loaded, second))
    assert again.latent.id == u.latent.id
    torch.testing.assert_close(again.root.dense(), u.root.dense())
    assert other.latent.id != u.latent.id


class TestIndependence:
    """Draws of one seed of two predictors, whose sum has the sum of the variances."""

    @pytest.mark.parametrize(
        "head", [LastLayerLaplace(), pytest.param(Laplace("diagonal"), marks=pytest.mark.slow), KernelOperator()]
    )
    def test_of_independent_fits(self, head: Any) -> None:
        operator = FNO(1, 1, modes=(3,), width=4, depth=1, projection=6, seed=0).double()
        fits = [head.fit(operator, data_for(operator, fields(PERIODIC, 6, 1, seed=seed), seed=seed)) for seed in range(2)]
        mixtures = [MixturePredictor([one]) for one in fits]
        for pair in (fits, mixtures):
            a, b = (one.evaluate_draws(INPUTS, seeds=range(100)) for one in pair)
            assert abs(float((a + b).var(0).sum() / (a.var(0) + b.var(0)).sum()) - 1.0) < 0.35
            if not isinstance(head, KernelOperator):  # whose random features depend on the fit
                a, b = (torch.stack([one.draw(seed, shared=True)(INPUTS.values) for seed in range(100)]) for one in pair)
                assert float((a + b).var(0).sum() / (a.var(0) + b.var(0)).sum()) > 1.5


@pytest.mark.bad_input
class TestBadInput:
    def test_predictors_that_do_not_fit_together(self) -> None:
        with pytest.raises(DataError, match="1 or more predictors"):
            MixturePredictor([])
        with pytest.raises(DataError, match="a Predictor as predictor"):
            MixturePredictor([torch.nn.Linear(1, 1)])  # type: ignore[list-item]
        with pytest.raises(ShapeError, match="1 input channels of predictor 1"):
            MixturePredictor([Synthetic(), Synthetic(channels=2)])
        operator = FNO(1, 1, modes=(3,), width=4, depth=1, projection=6, seed=0).double()
        longer = fields(Grid.uniform((12,), lengths=(2.0,)), 6, 1, seed=1)
        elsewhere = LastLayerLaplace().fit(operator, data_for(operator, longer))
        with pytest.raises(GridError, match="predictors of one domain"):
            MixturePredictor([FITTED, elsewhere])

    def test_weights(self) -> None:
        with pytest.raises(ShapeError, match=r"weights \(2,\)"):
            MixturePredictor(PAIR, torch.ones(3))
        with pytest.raises(DataError, match="finite weights >= 0"):
            MixturePredictor(PAIR, torch.tensor([-1.0, 2.0]))

    def test_inputs(self) -> None:
        with pytest.raises(ShapeError, match="1 channels"):
            FITTED(Field(torch.zeros(1, 2, 12), PERIODIC))
