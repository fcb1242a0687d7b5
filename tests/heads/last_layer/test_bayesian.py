"""Sampled and variational last layers against dense algebra, quadrature and closed optima."""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from probneural.calibration import SimultaneousBand, VarianceScale
from probneural.distributions import EmpiricalField, GaussianField
from probneural.errors import ArgumentError, ConvergenceWarning, DataError, ReadoutError, ShapeError, UnsupportedError
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.heads import NUTS, BayesianLastLayer, LastLayerLaplace, VariationalInference
from probneural.heads.inference import chain_report, effective_size, split_r_hat
from probneural.metrics import score
from probneural.operators import FNO
from probneural.pairs import FieldPairs
from probneural.problems import Burgers
from probneural.storage import load, save
from probneural.training import fit
from tests.heads import test_closed_form_posteriors as gold
from tests.heads.cases import ENDS, fields, operator_case
from tests.heads.last_layer.test_last_layer import features_of

pyro = pytest.importorskip("pyro")
F64 = torch.float64
BAYES = {"show_progress": False, "seed": 3}
SHORTEST = NUTS(samples=4, warmup=5, chains=1)
LARGEST_Z = 4.0
"""Monte Carlo errors in their own standard errors; of some hundred numbers one in a hundred runs has a larger one."""


@dataclass(frozen=True)
class Case:
    """An operator, data and hyper-parameters, with the exact posterior of its last layer by dense algebra."""

    operator: nn.Module
    data: FieldPairs
    noise: Tensor
    prior: Tensor
    counts: Tensor
    layer: str = "readout"
    has_bias: bool = True

    @property
    def settings(self) -> dict[str, Tensor]:
        return {"noise": self.noise, "prior_precision": self.prior, "effective_observations": self.counts}

    @property
    def phi(self) -> Tensor:
        """Features, `(n, p, f)`, float64."""
        rows = features_of(self.operator, self.layer, self.data.inputs).to(F64)
        return rows if self.has_bias else rows[..., :-1]

    def gram(self) -> Tensor:
        share = self.data.outputs.grid.weights / self.data.outputs.grid.volume
        return torch.einsum("npf,p,npg->fg", self.phi, share, self.phi)

    def prior_mean(self) -> Tensor:
        """Zero, but for the constant: the mean training output, `(c, f)`."""
        share = self.data.outputs.grid.weights / self.data.outputs.grid.volume
        mean = torch.zeros(self.prior.shape, dtype=F64)
        if self.has_bias:
            mean[:, -1] = (self.data.outputs.values.to(F64) @ share).mean(0)
        return mean

    def exact(self) -> tuple[Tensor, Tensor]:
        """Mean `(c, f)` and covariance `(c, f, f)` of the weights themselves."""
        share = self.data.outputs.grid.weights / self.data.outputs.grid.volume
        moments = torch.einsum("npf,p,ncp->cf", self.phi, share, self.data.outputs.values.to(F64))
        level = (self.counts / self.noise)[:, None]
        covariance = torch.linalg.inv(level[..., None] * self.gram() + torch.diag_embed(self.prior))
        mean = (covariance @ (level * moments + self.prior * self.prior_mean())[..., None])[..., 0]
        return mean, covariance

    def log_evidence(self) -> float:
        """Of the training outputs at their effective observations: log p(y | w) + log p(w) - log p(w | y) at any w."""
        mean, covariance = self.exact()
        share = self.data.outputs.grid.weights / self.data.outputs.grid.volume
        residuals = self.data.outputs.values.to(F64) - torch.einsum("npf,cf->ncp", self.phi, mean)
        number = self.counts * len(self.data)
        misfits = (residuals.square() @ share).sum(0) * self.counts / self.noise
        likelihood = -0.5 * (number * (2 * math.pi * self.noise).log() + misfits).sum()
        ratio = torch.logdet(covariance).sum() + self.prior.log().sum()
        return float(likelihood - 0.5 * (self.prior * (mean - self.prior_mean()).square()).sum() + 0.5 * ratio)


def weight_of(case: Case) -> Tensor:
    """The trained weights with the bias last, in physical units, `(c, f)`."""
    return LastLayerLaplace(**case.settings).fit(case.operator, case.data).readout.weight


@cache
def trained() -> Case:
    """An FNO trained on exact pairs, in single precision, with the hyper-parameters of largest evidence."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        operator = FNO(1, 1, modes=(8,), width=8, depth=2, projection=8)
    data = Burgers(0.1).sample(40, resolution=64, seed=0)
    fit(operator, data, epochs=15, seed=0, show_progress=False)
    predictor = LastLayerLaplace().fit(operator, data)
    return Case(operator, data, predictor.noise, predictor.prior_precision, predictor.effective_observations)


@cache
def waves() -> Case:
    """Frozen waves under a read-out whose exact posterior gold 1 has in closed form."""
    mean, _, pairs = gold.exact()
    module = gold.FrozenWaves().to(F64)
    with torch.no_grad():
        module.last.weight.copy_(0.5 * mean[None, :, None])  # not the mode: it has to be found
    noise, counts = torch.tensor([gold.NOISE**2], dtype=F64), torch.tensor([float(gold.POINTS)], dtype=F64)
    return Case(module, pairs, noise, 1.0 / gold.PRIOR.square()[None], counts, "last", has_bias=False)


@cache
def outputs() -> Case:
    """Two outputs of very different units, and a grid whose weights are not uniform."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        operator = FNO(1, 2, modes=(3,), width=4, depth=1, projection=3, periodic=False).to(F64)
    units = torch.tensor([[50.0], [1e-2]], dtype=F64)
    data = FieldPairs(fields(ENDS, 6, 1, seed=1), Field(units * (fields(ENDS, 6, 2, seed=2).values + 3.0), ENDS))
    operator.fit_normalizers(data)
    prior = torch.tensor([[2e-3], [5e3]], dtype=F64) * torch.linspace(0.5, 2.0, 4, dtype=F64)
    return Case(operator, data, torch.tensor([20.0, 1e-6], dtype=F64), prior, torch.tensor([3.0, 5.0], dtype=F64))


CASES = {"fno": trained, "waves": waves, "outputs": outputs}
SAMPLES = {"samples": 300, "warmup": 250, "chains": 2}
LONG = {"waves": 900}
"""Samples of cases whose R-hat, the largest of so many weights, exceeds its bound by chance after 300."""
WHITENED = {"waves", "outputs"}
"""Cases that chains take fast in these coordinates only; the slow tests have the others."""
FAST = ["fno", "outputs", pytest.param("waves", marks=pytest.mark.slow)]
SLOWLY = ["fno", pytest.param("waves", marks=pytest.mark.slow), pytest.param("outputs", marks=pytest.mark.slow)]


@cache
def fitted(method: str, name: str):
    """A predictor, fitted once for all tests that only read it."""
    case = CASES[name]()
    coordinates = "whitened" if name in WHITENED else "principal"
    way = (
        NUTS(coordinates=coordinates, **SAMPLES | {"samples": LONG.get(name, SAMPLES["samples"])})
        if method == "nuts"
        else method
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # R-hat of two short chains may well exceed 1.01
        return BayesianLastLayer(method=way, **case.settings, **BAYES).fit(case.operator, case.data)


def standard_errors(draws: Tensor) -> Tensor:
    """Of the means over chains `(m, n, ...)`, given the effective sample size of what is averaged."""
    flat = draws.flatten(2)
    halves = torch.cat([flat[:, : flat.shape[1] // 2], flat[:, flat.shape[1] // 2 :]])
    return (flat.flatten(0, 1).std(0) / effective_size(halves).sqrt()).reshape(draws.shape[2:])


def largest_z(predictor: Any, case: Case) -> tuple[float, float]:
    """Largest z of the means, and of the second moments, of draws that the exact posterior makes standard normal."""
    mean, covariance = case.exact()
    weights = predictor.deviations + weight_of(case)
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (weights - mean)[..., None], upper=False)
    white = white.flatten(1).unflatten(0, (predictor.chains, -1))
    squares = white[..., :, None] * white[..., None, :]
    first = white.mean((0, 1)) / standard_errors(white)
    second = (squares.mean((0, 1)) - torch.eye(white.shape[-1], dtype=F64)) / standard_errors(squares)
    return float(first.abs().max()), float(second.abs().max())


# Chains


@pytest.mark.parametrize("name", FAST)
def test_chains_sample_the_exact_posterior(name: str) -> None:
    predictor, case = fitted("nuts", name), CASES[name]()
    first, second = largest_z(predictor, case)
    assert max(first, second) <= LARGEST_Z
    assert predictor.report["r_hat_max"] <= 1.03
    assert predictor.report["bulk_size_min"] >= 300
    assert predictor.report["divergences"] == 0


@pytest.mark.parametrize("name", FAST)
def test_predictions_have_the_closed_forms_covariance(name: str) -> None:
    case = CASES[name]()
    inputs = case.data.inputs[:2]
    field, closed = fitted("nuts", name)(inputs), LastLayerLaplace(**case.settings).fit(case.operator, case.data)(inputs)
    mean, _ = case.exact()
    exact = torch.einsum("npf,cf->ncp", case.phi[:2], mean)
    ratio = (field.variance / closed.variance).sqrt()
    assert float((ratio - 1).abs().max()) <= 0.15  # five standard errors of a standard deviation from 500 draws
    assert float(((field.mean.flatten(2) - exact) / closed.standard_deviation.flatten(2)).abs().max()) <= 0.2


@pytest.mark.slow
@pytest.mark.parametrize("coordinates", ["principal", "weights", "whitened"])
@pytest.mark.parametrize("name", CASES)
def test_other_coordinates_sample_the_same(name: str, coordinates: str) -> None:
    case = CASES[name]()
    head = BayesianLastLayer(method=NUTS(coordinates=coordinates), **case.settings, **BAYES)
    predictor = head.fit(case.operator, case.data)
    assert predictor.converged
    assert max(largest_z(predictor, case)) <= LARGEST_Z


def test_infinite_prior_precision_fixes_weights() -> None:
    case = outputs()
    prior = case.prior.clone()
    prior[0, 1] = torch.inf
    method = VariationalInference("full_rank", steps=250)
    head = BayesianLastLayer(method=method, **{**case.settings, "prior_precision": prior}, **BAYES)
    with pytest.warns(ConvergenceWarning):
        predictor = head.fit(case.operator, case.data)
    assert float(predictor.posterior.shift[0, 1]) == 0.0
    assert float(predictor.weight_covariance[1].abs().max()) == 0.0
    assert bool((predictor.weight_covariance.diagonal()[[0, 2, 3, 4, 5, 6, 7]] > 0).all())


def test_settings_by_evidence_are_those_of_the_closed_form() -> None:
    case = trained()
    with pytest.warns(ConvergenceWarning):
        predictor = BayesianLastLayer(method=SHORTEST, show_progress=False).fit(case.operator, case.data)
    closed = LastLayerLaplace().fit(case.operator, case.data)
    assert torch.equal(predictor.noise, closed.noise)
    assert torch.equal(predictor.prior_precision, closed.prior_precision)
    assert torch.equal(predictor.effective_observations, closed.effective_observations)


def test_sampling_does_not_touch_the_operator_again() -> None:
    """Data enter through the Gram matrix and moments, so the number of evaluations is that of the set-up."""
    case = trained()

    class Counted(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.inner = copy.deepcopy(case.operator)

        def forward(self, values: Tensor) -> Tensor:
            Counted.calls += 1
            return self.inner(values)

    found = []
    for samples in (4, 20):
        Counted.calls = 0
        head = BayesianLastLayer(
            method=NUTS(samples=samples, warmup=5, chains=1, coordinates="whitened"), **BAYES, **case.settings
        )
        with pytest.warns(ConvergenceWarning):
            head.fit(Counted(), case.data)
        found.append(Counted.calls)
    assert found[0] == found[1]


def hyper_marginal(case: Case, name: str) -> tuple[float, float]:
    """Mean and standard deviation of a logarithm over the given value, by quadrature with the weights integrated out."""
    share = case.data.outputs.grid.weights / case.data.outputs.grid.volume
    values = case.data.outputs.values.to(F64)
    prior_std = ((values - (values @ share).mean()).square() @ share).mean().sqrt()
    size = (torch.einsum("npf,p->f", case.phi.square(), share) / len(values)).mean().sqrt()
    points = torch.linspace(-12.0, 6.0, 145, dtype=F64)

    def density(noise: Tensor, prior: Tensor) -> float:
        moved = Case(
            case.operator, case.data, case.noise * noise.exp(), case.prior * prior.exp(), case.counts, case.layer, case.has_bias
        )
        first, second = moved.noise.sqrt() / prior_std, moved.prior[0, 0].rsqrt() * size / prior_std
        half_cauchy = first.log() - first.square().log1p() + second.log() - second.square().log1p()  # of the logarithms
        return moved.log_evidence() + float(half_cauchy)

    zero = torch.zeros((), dtype=F64)
    pairs = [(point, zero) if name == "noise" else (zero, point) for point in points]
    logarithms = torch.tensor([density(*pair) for pair in pairs], dtype=F64)
    mass = (logarithms - logarithms.max()).exp()
    mass = mass / mass.sum()
    mean = float(mass @ points)
    return mean, math.sqrt(float(mass @ (points - mean).square()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["noise", "prior_precision"])
def test_inferred_hyper_parameters_against_quadrature(name: str) -> None:
    case = trained()
    given = {key: value for key, value in case.settings.items() if key != name}
    method = NUTS(infer_hyperparameters=True, coordinates="whitened", **SAMPLES)
    head = BayesianLastLayer(method=method, **given, **BAYES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        predictor = head.fit(case.operator, case.data)
    reference = LastLayerLaplace(**given).fit(case.operator, case.data)
    base = Case(case.operator, case.data, reference.noise, reference.prior_precision, case.counts)
    mean, deviation = hyper_marginal(base, name)
    draws = predictor.noise_draws / reference.noise if name == "noise" else predictor.prior_factors
    logarithms = draws.log().unflatten(0, (predictor.chains, -1))
    error = float(standard_errors(logarithms))
    found = float(logarithms.mean()), float(logarithms.std())
    assert abs(found[0] - mean) <= LARGEST_Z * error
    assert found[1] == pytest.approx(deviation, rel=0.2)
    assert deviation > 0.02


# Variational inference


@pytest.mark.parametrize("name", SLOWLY)
def test_full_rank_is_the_exact_posterior(name: str) -> None:
    predictor, case = fitted("full_rank", name), CASES[name]()
    mean, covariance = case.exact()
    result = predictor.weight_covariance.reshape(*mean.shape, *mean.shape)
    root = torch.linalg.cholesky(covariance)
    for channel, (rows, exact) in enumerate(zip(root, mean, strict=True)):
        own = result[channel, :, channel]
        white = torch.linalg.solve_triangular(rows, torch.linalg.solve_triangular(rows, own, upper=False).mT, upper=False)
        assert float((white - torch.eye(len(exact), dtype=F64)).abs().max()) <= 0.06
        moved = predictor.posterior.shift[channel] + weight_of(case)[channel] - exact
        assert float(torch.linalg.solve_triangular(rows, moved[:, None], upper=False).abs().max()) <= 0.03
    assert predictor.converged
    assert case.log_evidence() - 0.1 <= predictor.report["bound"] <= case.log_evidence() + 1e-6


@pytest.mark.slow
def test_the_bound_of_gold_1_is_its_marginal_likelihood() -> None:
    coefficients, pairs = gold.data()
    design = gold.waves(coefficients).movedim(1, 2).flatten(0, 1)
    covariance = gold.NOISE**2 * torch.eye(len(design), dtype=F64) + (design * gold.PRIOR.square()) @ design.mT
    zero = torch.zeros(len(design), dtype=F64)
    exact = torch.distributions.MultivariateNormal(zero, covariance).log_prob(pairs.outputs.values.flatten())
    assert -0.1 <= fitted("full_rank", "waves").report["bound"] - float(exact) <= 1e-6


@pytest.mark.parametrize("name", SLOWLY)
@pytest.mark.slow
def test_mean_field_is_its_closed_optimum(name: str) -> None:
    """Of a Gaussian target: its mean, and the conditional standard deviations."""
    predictor, case = fitted("mean_field", name), CASES[name]()
    mean, covariance = case.exact()
    conditional = torch.linalg.inv(covariance).diagonal(dim1=-2, dim2=-1).rsqrt()
    result = predictor.weight_covariance
    assert float((result - result.diagonal().diag()).abs().max()) == 0.0
    torch.testing.assert_close(result.diagonal().sqrt().reshape(mean.shape), conditional, rtol=0.05, atol=0)
    moved = (predictor.posterior.shift + weight_of(case) - mean)[..., None]
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), moved, upper=False)
    assert float(white.abs().max()) <= 0.1
    assert predictor.converged
    divergence = 0.5 * (torch.logdet(covariance) - conditional.square().log().sum(-1)).sum()  # KL(q | p)
    optimum = case.log_evidence() - float(divergence)
    assert optimum - 0.2 <= predictor.report["bound"] <= optimum + 1e-6


def test_mean_field_is_narrower_than_the_margins_of_correlated_features() -> None:
    """By twice the tolerance with which it is compared with conditional deviations: margins would fail there."""
    case = trained()
    _, covariance = case.exact()
    marginal = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    ratio = fitted("mean_field", "fno").weight_covariance.diagonal().sqrt().reshape(marginal.shape) / marginal
    assert bool((ratio < 1.0).all())
    assert float(ratio.min()) < 1.0 - 2 * 0.05


def test_history_rises_and_ends_in_the_bound() -> None:
    predictor = fitted("full_rank", "fno")
    assert float(predictor.history[-1]) == predictor.report["bound"] == predictor.posterior.log_evidence
    assert float(predictor.history.max() - predictor.history[-1]) <= 0.05
    assert predictor.report["windows"] == len(predictor.history)


# Diagnostics


def autoregression(coefficient: float, *, chains: int = 4, length: int = 20_000) -> Tensor:
    noise = torch.randn(length, chains, 1, generator=torch.Generator().manual_seed(0), dtype=F64)
    states = [noise[0] / (1 - coefficient**2) ** 0.5]
    for row in noise[1:]:
        states.append(coefficient * states[-1] + row)
    return torch.stack(states, 1)


@pytest.mark.parametrize("coefficient", [-0.5, 0.0, 0.6, 0.9])
def test_effective_size_of_an_autoregression(coefficient: float) -> None:
    draws = autoregression(coefficient)
    exact = draws.numel() * (1 - coefficient) / (1 + coefficient)
    assert float(effective_size(draws)) == pytest.approx(exact, rel=0.1)
    report = chain_report(draws)
    assert report["bulk_size_max"] == pytest.approx(exact, rel=0.1)
    assert report["r_hat_max"] <= 1.005


def test_diagnostics_agree_with_pyros() -> None:
    from pyro.ops.stats import effective_sample_size, gelman_rubin

    draws = autoregression(0.7, length=500) + torch.tensor([0.0, 0.1, 0.0, 0.2], dtype=F64)[:, None, None]
    assert float(split_r_hat(draws)) == pytest.approx(float(gelman_rubin(draws, 0, 1)), rel=1e-9)
    assert float(effective_size(draws)) == pytest.approx(float(effective_sample_size(draws, 0, 1)), rel=1e-2)


def test_effective_size_is_at_most_what_antithetic_chains_can_claim() -> None:
    assert float(effective_size(autoregression(-0.99, length=1000))) == pytest.approx(4000 * math.log10(4000))


def test_chains_that_disagree_are_seen() -> None:
    draws = torch.randn(4, 1000, 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    assert chain_report(draws)["r_hat_max"] <= 1.01
    shifted = draws.clone()
    shifted[0, :, 2] += 1.0  # a location
    assert chain_report(shifted)["r_hat_max"] > 1.05
    assert chain_report(shifted)["r_hat_min"] <= 1.01
    wider = draws.clone()
    wider[0, :, 1] *= 4.0  # a scale, which only folding sees
    assert chain_report(wider)["r_hat_max"] > 1.05
    drifting = draws.clone()
    drifting[..., 0] += torch.linspace(0, 2, 1000, dtype=F64)  # which only splitting sees
    assert chain_report(drifting)["r_hat_max"] > 1.05
    heavy = draws.clone()
    heavy[..., 3] = torch.tan(0.5 * math.pi * (2 * torch.special.ndtr(draws[..., 3]) - 1))  # ranks, hence all, are the same
    assert chain_report(heavy)["bulk_size_max"] == pytest.approx(chain_report(draws)["bulk_size_max"], rel=1e-9)
    assert 2000 <= chain_report(heavy)["tail_size_min"] <= 6000


def test_what_has_not_converged_says_so() -> None:
    case = trained()
    with pytest.warns(ConvergenceWarning, match=r"nuts has not converged \(r_hat_min .*divergences.*more warmup and samples"):
        sampled = BayesianLastLayer(method=NUTS(samples=10, warmup=10, chains=2), **case.settings, **BAYES).fit(
            case.operator, case.data
        )
    assert not sampled.converged
    with pytest.warns(ConvergenceWarning, match="mean_field has not converged .*more steps"):
        varied = BayesianLastLayer(method=VariationalInference("mean_field", steps=20), **case.settings, **BAYES).fit(
            case.operator, case.data
        )
    assert not varied.converged
    assert varied.effective_observations is varied.posterior.effective_observations


@pytest.mark.parametrize(
    ("name", "value"), [("r_hat_max", 1.02), ("bulk_size_min", 150.0), ("tail_size_min", 150.0), ("divergences", 1.0)]
)
def test_each_criterion_counts(name: str, value: float) -> None:
    predictor = copy.copy(fitted("nuts", "outputs"))
    good = {"r_hat_max": 1.001, "bulk_size_min": 900.0, "tail_size_min": 300.0, "divergences": 0.0}
    predictor.report = good
    assert predictor.converged
    predictor.report = {**good, name: value}
    assert not predictor.converged


# Predictors


@pytest.mark.parametrize("method", ["nuts", "mean_field", "full_rank"])
def test_predictors_go_everywhere(method: str, tmp_path: Path) -> None:
    predictor, case = fitted(method, "fno"), trained()
    problem = Burgers(0.1)
    test = problem.sample(6, resolution=64, seed=5)
    field = predictor(test.inputs)
    assert isinstance(field, EmpiricalField if method == "nuts" else GaussianField)
    assert (predictor.in_channels, predictor.out_channels, predictor.domain) == (1, 1, case.data.inputs.grid)
    assert predictor.noise.shape == (1,)
    assert predictor.dtype == field.mean.dtype == field.variance.dtype == torch.float32
    scaled = VarianceScale().fit(predictor, problem.sample(20, resolution=64, seed=4))
    assert math.isfinite(score(scaled(test.inputs), test.outputs, noise=scaled.noise).crps)
    SimultaneousBand(level=0.8).fit(scaled, problem.sample(20, resolution=64, seed=6))
    draw = predictor.draw(2)(test.inputs.values, grid=test.inputs.grid)
    assert torch.equal(draw, predictor.draw(2)(test.inputs.values, grid=test.inputs.grid))
    coarse = predictor(test.inputs, Grid.uniform(32))
    torch.testing.assert_close(coarse.variance, field.variance[..., ::2], rtol=1e-2, atol=0)
    for thing in (predictor, scaled):
        save(thing, tmp_path / "predictor")
        loaded: Any = load(tmp_path / "predictor")
        again, expected = loaded(test.inputs), thing(test.inputs)
        assert torch.equal(again.mean, expected.mean)
        assert torch.equal(again.variance, expected.variance)
        assert torch.equal(
            loaded.draw(2)(test.inputs.values, grid=test.inputs.grid), thing.draw(2)(test.inputs.values, grid=test.inputs.grid)
        )
    save(predictor, tmp_path / "predictor")
    loaded = load(tmp_path / "predictor")
    assert loaded.report == predictor.report
    assert loaded.converged == predictor.converged


def test_a_prediction_is_the_features_times_each_draw() -> None:
    predictor, case = fitted("nuts", "outputs"), outputs()
    field = predictor(case.data.inputs)
    weights = predictor.deviations + weight_of(case)
    expected = torch.einsum("npf,scf->sncp", case.phi, weights)
    torch.testing.assert_close(field.samples, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(predictor.weight_covariance, torch.cov(weights.flatten(1).mT, correction=0), rtol=1e-9, atol=0)
    with torch.no_grad():
        result = evaluate(case.operator, case.data.inputs)
    assert float((result - field.mean).abs().max()) > 0  # the trained weights are not the posterior mean here
    assert predictor.report["trained_offset"] > 0.1


def test_thinning_keeps_draws_of_every_chain() -> None:
    predictor = fitted("nuts", "outputs")
    thinned = predictor.thinned(10)
    assert torch.equal(thinned.deviations, predictor.deviations[::60])
    assert thinned(outputs().data.inputs).samples.shape[0] == 10
    assert thinned.report == predictor.report


def test_the_trained_offset_is_in_standard_deviations() -> None:
    case = trained()
    mean, covariance = case.exact()
    away = (mean - weight_of(case))[0]
    expected = math.sqrt(float(away @ torch.linalg.solve(covariance[0], away)) / len(away))
    assert fitted("full_rank", "fno").report["trained_offset"] == pytest.approx(expected, rel=0.03)


# The world around


SHORT = (
    NUTS(samples=4, warmup=5, chains=2),
    VariationalInference("mean_field", steps=20),
    VariationalInference("full_rank", steps=20),
)


@pytest.mark.parametrize("method", SHORT)
def test_global_state_is_left_alone_and_seeds_are_explicit(method: NUTS | VariationalInference) -> None:
    case = trained()
    pyro.clear_param_store()
    pyro.param("mine", torch.ones(2))
    state, dtype = torch.get_rng_state(), torch.get_default_dtype()
    others = np.random.get_state()[1].tolist()  # noqa: NPY002 (the global state itself)
    checks = pyro.settings.get(), torch.distributions.Distribution._validate_args
    values = [case.data.inputs.values.clone(), case.data.outputs.values.clone()]
    weights = copy.deepcopy(case.operator.state_dict())
    found = []
    for seed in (0, 0, 1):
        head = BayesianLastLayer(method=method, **case.settings, show_progress=False, seed=seed)
        with pytest.warns(ConvergenceWarning):
            found.append(head.fit(case.operator, case.data)(case.data.inputs[:2]).mean)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == dtype
    assert others == np.random.get_state()[1].tolist()  # noqa: NPY002
    assert checks == (pyro.settings.get(), torch.distributions.Distribution._validate_args)
    assert list(pyro.get_param_store().keys()) == ["mine"]
    pyro.clear_param_store()
    assert torch.equal(values[0], case.data.inputs.values)
    assert torch.equal(values[1], case.data.outputs.values)
    assert all(
        torch.equal(left, right) for left, right in zip(weights.values(), case.operator.state_dict().values(), strict=True)
    )


@pytest.mark.bad_input
def test_pyro_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyro", None)
    case = trained()
    with pytest.raises(ImportError, match=r"BayesianLastLayer needs pyro: pip install pyro-ppl"):
        BayesianLastLayer().fit(case.operator, case.data)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: BayesianLastLayer(method="gibbs"), UnsupportedError, "method among nuts, mean_field, full_rank; got 'gibbs'"),
        (lambda: NUTS(samples=3), ArgumentError, "an integer of at least 4 as samples; got 3"),
        (lambda: NUTS(warmup=0), ArgumentError, "an integer of at least 1 as warmup"),
        (lambda: NUTS(chains=True), ArgumentError, "an integer of at least 1 as chains; got True"),
        (lambda: NUTS(chains=1.0), ArgumentError, "an integer of at least 1 as chains"),
        (lambda: NUTS(coordinates="polar"), ArgumentError, "coordinates among principal, weights, whitened; got 'polar'"),
        (lambda: VariationalInference(steps=0), ArgumentError, "an integer of at least 1 as steps"),
        (lambda: VariationalInference("laplace"), ArgumentError, "family among mean_field, full_rank, low_rank; got 'laplace'"),
        (lambda: BayesianLastLayer(seed=-1), ArgumentError, "seed as an integer of at least 0"),
        (lambda: BayesianLastLayer(seed=0.5), ArgumentError, "seed as an integer of at least 0"),
        (
            lambda: BayesianLastLayer(method=NUTS(infer_hyperparameters=True), noise=1.0, prior_precision=1.0),
            ArgumentError,
            "leave one out, or infer_hyperparameters",
        ),
    ],
)
def test_bad_settings(make: Callable[[], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.bad_input
def test_bad_data_and_priors() -> None:
    case = trained()
    with pytest.raises(ArgumentError, match="leaves some weights free"):
        BayesianLastLayer(noise=1.0, prior_precision=math.inf).fit(case.operator, case.data)
    with pytest.raises(DataError, match="FieldPairs"):
        BayesianLastLayer().fit(case.operator, case.data.inputs)
    with pytest.raises(ReadoutError, match="a submodule among"):
        BayesianLastLayer(readout="nothing").fit(case.operator, case.data)
    with pytest.raises(ShapeError, match="prior_precision"):
        BayesianLastLayer(prior_precision=torch.ones(3)).fit(case.operator, case.data)
    with pytest.warns(ConvergenceWarning):
        predictor = BayesianLastLayer(method=SHORTEST, **case.settings, **BAYES).fit(case.operator, case.data)
    with pytest.raises(DataError, match="at least one input"):
        predictor(case.data.inputs[:0])
    for draws in (0, 5, 2.0, True):
        with pytest.raises(ArgumentError, match="an integer from 1 to 4 as draws"):
            predictor.thinned(draws)


def test_contract_case_of_complex_weights() -> None:
    """Weights of other layers may be complex."""
    case = operator_case("complex")
    with pytest.warns(ConvergenceWarning):
        predictor = BayesianLastLayer(method=SHORTEST, **BAYES).fit(case.operator, case.data)
    assert predictor(case.inputs).mean.dtype == F64
