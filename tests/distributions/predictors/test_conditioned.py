"""Predictors that have seen measurements: Bayes' rule for every later call, whether or not the latent outlasts a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from probneural import functionals
from probneural.calibration import NoveltyScale, VarianceScale, synthetic_shifts
from probneural.distributions import FieldDistribution, GaussianField, Predictor
from probneural.distributions.predictors.conditioned import ConditionedPredictor
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.errors import ConstraintError, UnsupportedError
from probneural.fields import Field
from probneural.functionals import Functional
from probneural.grids import Grid
from probneural.heads import DeepEnsemble, KernelOperator, LastLayerLaplace
from probneural.operators import LinearRegression
from probneural.pairs import FieldPairs
from probneural.problems import Antiderivative
from probneural.storage import load, save

PROBLEM = Antiderivative(equation="logistic")
NOISE = 1e-6
"""Of measurements, in the functional's units squared: about the kernel operator's own variance."""


@cache
def pairs() -> FieldPairs:
    return PROBLEM.sample(120, resolution=65, seed=0, dtype=torch.float64)


def measured() -> FieldPairs:
    return pairs()[30:36]


def others(count: int = 4) -> Field:
    return pairs()[40 : 40 + count].inputs


def probe(grid: Grid) -> Functional:
    return functionals.sensors(grid, [[0.3], [0.7]])


def numbers() -> Tensor:
    return probe(measured().outputs.grid)(measured().outputs.values)


@cache
def kernel() -> Predictor:
    return KernelOperator(groups=2, iterations=5).fit(None, pairs()[:14])


@cache
def last_layer() -> Predictor:
    return LastLayerLaplace().fit(LinearRegression.fitted(pairs()[14:24]), pairs()[:14])


@cache
def scaled(name: str) -> Predictor:
    return VarianceScale().fit(kernel() if name == "kernel" else last_layer(), pairs()[60:])


@cache
def mixture() -> Predictor:
    whole = MixturePredictor([kernel(), last_layer()], torch.tensor([0.5, 0.5], dtype=torch.float64))
    return VarianceScale().fit(whole, pairs()[60:])


@cache
def widened() -> Predictor:
    inputs = synthetic_shifts(pairs()[60:80].inputs, seed=0)["stretched"]
    return NoveltyScale().fit(scaled("kernel"), pairs()[60:], shifted=FieldPairs(inputs, PROBLEM.solve(inputs)))


PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "kernel": kernel,
    "last layer": last_layer,
    "scaled kernel": lambda: scaled("kernel"),
    "scaled last layer": lambda: scaled("last layer"),
    "scaled mixture": mixture,
}


@pytest.fixture(params=PREDICTORS)
def predictor(request: pytest.FixtureRequest) -> Predictor:
    return PREDICTORS[request.param]()


def conditioned(predictor: Predictor, *, noise: float = NOISE) -> ConditionedPredictor:
    return predictor.condition(measured().inputs, probe(measured().outputs.grid), values=numbers(), noise=noise)


def gaussian(u: FieldDistribution) -> GaussianField:
    assert isinstance(u, GaussianField)
    return u


def by_dense_algebra(predictor: Predictor, *, noise: float = NOISE) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the other functions given the measurements, from one call's dense joint covariance."""
    together = Field(torch.cat([measured().inputs.values, others().values]), others().grid)
    u = gaussian(predictor(together))
    known, size = len(measured()), u.grid.size
    root = u.root.dense().flatten(0, 2)  # what functions share
    own = torch.zeros(len(root), 0, dtype=root.dtype) if u.discrepancy is None else u.discrepancy.dense()
    covariance = root @ root.mT
    if u.discrepancy is not None:
        covariance = covariance + torch.block_diag(*(one @ one.mT for one in own.flatten(1, 2)))
    mean = u.mean.flatten()
    rows = probe(u.grid).adjoint(torch.eye(2, dtype=torch.float64)).flatten(1)
    observe = torch.block_diag(*[rows] * known)
    observe = torch.cat([observe, torch.zeros(len(observe), len(mean) - known * size, dtype=torch.float64)], dim=1)
    total = observe @ covariance @ observe.mT + noise * torch.eye(len(observe), dtype=torch.float64)
    gain = torch.linalg.solve(total, observe @ covariance).mT
    after = mean + gain @ (numbers().flatten() - observe @ mean)
    left = covariance - gain @ observe @ covariance
    return after[known * size :], left[known * size :, known * size :]


class TestConditioning:
    def test_is_dense_gaussian_algebra(self, predictor: Predictor) -> None:
        mean, covariance = by_dense_algebra(predictor)
        u, before = gaussian(conditioned(predictor)(others())), predictor(others())
        largest = before.variance.max()
        assert (u.mean.flatten() - mean).abs().max() < 1e-6 * largest.sqrt()
        root = u.root.dense().flatten(0, 2)
        shared = root @ root.mT
        if u.discrepancy is not None:
            shared = shared + torch.block_diag(*(one @ one.mT for one in u.discrepancy.dense().flatten(1, 2)))
        assert (shared - covariance).abs().max() < 1e-6 * largest
        assert (u.mean - before.mean).abs().max() > 1e-3 * largest.sqrt()

    def test_is_the_same_on_a_finer_grid(self, predictor: Predictor) -> None:
        fine = PROBLEM.sample(120, resolution=129, seed=0, dtype=torch.float64)[40:44].inputs
        told = conditioned(predictor)
        torch.testing.assert_close(told(fine).mean[..., ::2], told(others()).mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(told(others(), fine.grid).mean[..., ::2], told(others()).mean, rtol=1e-5, atol=1e-6)

    def test_measures_on_a_finer_grid(self) -> None:
        fine = PROBLEM.sample(120, resolution=129, seed=0, dtype=torch.float64)[30:36].outputs.grid
        told = kernel().condition(measured().inputs, probe(fine), values=numbers(), noise=NOISE)
        torch.testing.assert_close(told(others()).mean, conditioned(kernel())(others()).mean, rtol=1e-5, atol=1e-6)

    def test_twice_is_once_with_both(self, predictor: Predictor) -> None:
        first, second = measured()[:4], measured()[4:]
        there = probe(first.outputs.grid)
        told = predictor.condition(first.inputs, there, values=numbers()[:4], noise=NOISE)
        told = told.condition(second.inputs, there, values=numbers()[4:], noise=NOISE)
        u, once = told(others()), conditioned(predictor)(others())
        deviation = once.standard_deviation.max()
        assert (u.mean - once.mean).abs().max() < 1e-6 * deviation
        assert (u.standard_deviation - once.standard_deviation).abs().max() < 1e-6 * deviation

    def test_is_what_a_lasting_latent_carries_over(self) -> None:
        u = gaussian(last_layer()(measured().inputs)).condition(probe(measured().outputs.grid), numbers(), noise=NOISE)
        told = conditioned(last_layer())
        assert torch.equal(told(others()).mean, gaussian(last_layer()(others())).under(u.latent).mean)
        assert told.chi2 == u.latent.chi2

    def test_widens_as_the_wrapped_predictor_does(self) -> None:
        u = gaussian(widened()(Field(torch.cat([measured().inputs.values, others().values]), others().grid)))
        latent = u[: len(measured())].condition(probe(u.grid), numbers(), noise=NOISE).latent
        expected = u[len(measured()) :].under(latent)
        torch.testing.assert_close(conditioned(widened())(others()).mean, expected.mean)
        torch.testing.assert_close(conditioned(widened())(others()).variance, expected.variance)

    def test_chi2_tells_contradiction(self) -> None:
        there = probe(measured().outputs.grid)
        wrong = numbers() + torch.tensor([0.3, -0.3])
        assert conditioned(kernel()).chi2 < 3.0
        assert kernel().condition(measured().inputs, there, values=wrong, noise=NOISE).chi2 > 100.0

    def test_keeps_what_the_predictor_says_of_itself(self, predictor: Predictor) -> None:
        told = conditioned(predictor)
        assert torch.equal(told.noise, predictor.noise)
        assert torch.equal(told.calibrated_on, predictor.calibrated_on)
        assert torch.equal(told.residual_variance, predictor.residual_variance)
        assert "2 measurements of each of 6 functions" in repr(told)

    def test_has_derivatives_in_the_inputs(self) -> None:
        told, step, along = conditioned(kernel()), 1e-4, pairs()[:2].inputs.values
        values = others(2).values.clone().requires_grad_()
        u = told(Field(values, others().grid))
        slopes = [torch.autograd.grad(part.sum(), values, retain_graph=True)[0] for part in (u.mean, u.variance)]
        mean, variance = (float((slope * along).sum()) for slope in slopes)
        ahead, behind = (told(Field(others(2).values + sign * step * along, others().grid)) for sign in (1.0, -1.0))
        assert mean == pytest.approx(float((ahead.mean - behind.mean).sum()) / (2 * step), rel=1e-4)
        assert variance == pytest.approx(float((ahead.variance - behind.variance).sum()) / (2 * step), rel=1e-3)

    def test_has_derivatives_where_measurements_repeat_each_other(self) -> None:
        grid = measured().outputs.grid
        many = functionals.sensors(grid, [[index / 16] for index in range(17)])
        told = kernel().condition(measured().inputs, many, values=many(measured().outputs.values), noise=1e-8)
        values = others(2).values.clone().requires_grad_()
        u = told(Field(values, others().grid))
        for part in (u.mean, u.variance):
            (slope,) = torch.autograd.grad(part.sum(), values, retain_graph=True)
            assert bool(torch.isfinite(slope).all())

    def test_knows_measured_functions_again(self) -> None:
        """However certain the process is: a function that was measured, and is asked for, is one function."""
        certain = KernelOperator(groups=1, iterations=5).fit(None, pairs()[:14])
        there, inputs = probe(measured().outputs.grid), measured().inputs
        noise = 0.01 * float(certain(inputs).variance.mean())
        u = gaussian(certain(inputs)).condition(there, numbers(), noise=noise).apply(there)
        told = gaussian(certain.condition(inputs, there, values=numbers(), noise=noise)(inputs)).apply(there)
        torch.testing.assert_close(told.variance, u.variance, rtol=1e-6, atol=0.0)
        assert (told.mean - u.mean).abs().max() < 1e-3 * u.standard_deviation.min()


class TestDraws:
    def test_are_one_function_in_all_calls(self, predictor: Predictor) -> None:
        draw = conditioned(predictor).draw(3)
        whole = draw(others().values)
        torch.testing.assert_close(draw(others().values[1:3]), whole[1:3], rtol=1e-6, atol=1e-8)
        assert (conditioned(predictor).draw(4)(others().values) - whole).abs().max() > 0

    def test_of_two_conditions_have_noise_of_their_own(self) -> None:
        """With the same random numbers twice, the variance would be twice as large."""
        there, inputs = probe(measured().outputs.grid), measured()[:3].inputs
        noise = 0.1 * float(kernel()(inputs).variance.mean())
        told = kernel().condition(inputs, there, values=numbers()[:3], noise=noise)
        told = told.condition(inputs, there, values=numbers()[:3], noise=noise)
        draws = torch.stack([there(told.draw(seed)(inputs.values)) for seed in range(100)])
        ratio = draws.var(0).mean() / gaussian(told(inputs)).apply(there).variance.mean()
        assert 0.6 < float(ratio) < 1.4

    def test_meet_exact_measurements(self) -> None:
        draw = conditioned(kernel(), noise=0.0).draw(0)
        torch.testing.assert_close(probe(others().grid)(draw(measured().inputs.values)), numbers(), rtol=1e-6, atol=1e-7)


class TestErrors:
    def test_of_fields_that_are_not_gaussian(self) -> None:
        operators = [LinearRegression.fitted(pairs()[start : start + 20]) for start in (0, 20)]
        remaining = iter(operators[1:])
        head = DeepEnsemble(
            2, train=lambda one, data, seed: one.load_state_dict(next(remaining).state_dict()), keeps_operator=True
        )
        ensemble = head.fit(operators[0], pairs()[:20])
        with pytest.raises(UnsupportedError, match="VarianceScale"):
            conditioned(ensemble)
        assert conditioned(VarianceScale().fit(ensemble, pairs()[60:])).chi2 > 0.0

    def test_of_contradictions(self) -> None:
        again = Field(measured().inputs.values[[0, 0]], measured().inputs.grid)
        values = numbers()[[0, 0]] + torch.tensor([0.0, 0.1])[:, None, None]
        with pytest.raises(ConstraintError):
            kernel().condition(again, probe(again.grid), values=values)
        twice = functionals.sensors(measured().outputs.grid, [[0.3], [0.3]])
        values = twice(measured().outputs.values) + torch.tensor([0.0, 0.1])
        with pytest.raises(ConstraintError):
            kernel().condition(measured().inputs, twice, values=values)


def test_is_kept_to_the_bit(tmp_path: object) -> None:
    path = f"{tmp_path}/conditioned.pn"
    told = conditioned(scaled("kernel"))
    save(told, path)
    again = load(path)
    assert isinstance(again, ConditionedPredictor)
    assert torch.equal(again(others()).mean, told(others()).mean)
    assert torch.equal(again(others()).variance, told(others()).variance)
