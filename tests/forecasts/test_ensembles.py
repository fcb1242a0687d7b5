"""Ensemble Kalman filters and smoothers: Kalman's where all is linear, exactly or within Monte Carlo error; localisation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from probneural.distributions import DenseRoot, EmpiricalField, GaussianField
from probneural.distributions.forecasts.trajectory import Forecast
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.forecasts import EnsembleKalmanFilter, EnsembleKalmanSmoother, Observation, StepInputs, propagate
from probneural.forecasts.analysis import EnsembleAnalysis, EnsembleKalmanMethod
from probneural.forecasts.observations import ObservedNumbers, update
from probneural.functionals import MatrixFunctional, sensors
from probneural.grids import Grid
from tests.forecasts.cases import GRID, AffinePredictor, affine
from tests.forecasts.kalman import KalmanReference
from tests.helpers import normal

D, STEPS, NOISE = GRID.size, 4, 0.3
H = normal(2, D, seed="H")
FUNCTIONAL = MatrixFunctional(GRID, H)
VALUES = {lead: normal(2, seed=f"y{lead}") for lead in (1, 2, 4)}
OBSERVATIONS = [Observation(FUNCTIONAL, values[None, None], lead=lead, noise=NOISE) for lead, values in VALUES.items()]
ROOT = 0.7 * normal(D, D, seed="prior root")
MEAN = normal(D, seed="prior mean")


def gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def reference(predictor: AffinePredictor, *, has_errors: bool) -> KalmanReference:
    Q = predictor.R @ predictor.R.mT if has_errors else torch.zeros(D, D, dtype=torch.float64)
    return KalmanReference(predictor.M, predictor.b, Q, H, NOISE)


def spanning(count: int) -> EmpiricalField:
    """Members whose mean and sample covariance are exactly those of the prior."""
    raw = normal(count, D, seed="members")
    raw = raw - raw.mean(0)
    white = raw @ torch.linalg.inv(torch.linalg.cholesky(raw.mT @ raw / (count - 1))).mT
    return EmpiricalField((MEAN + white @ ROOT.mT)[:, None, None], grid=GRID)


def moments(analysis: EnsembleAnalysis, lead: int) -> tuple[Tensor, Tensor]:
    samples = analysis.at(lead).samples[:, 0, 0]
    return samples.mean(0), torch.cov(samples.mT)


START = Field(MEAN[None, None], GRID)


@pytest.mark.parametrize("count", [D + 1, 20])
def test_the_square_root_filter_is_kalmans_where_members_span_the_state(count: int) -> None:
    predictor = affine()

    def step(values: Tensor) -> Tensor:
        return values @ predictor.M.mT + predictor.b

    analysis = EnsembleKalmanFilter(count).assimilate(
        step, START, observations=OBSERVATIONS, steps=STEPS, initial=spanning(count)
    )
    before, after = reference(predictor, has_errors=False).filter(MEAN, ROOT @ ROOT.mT, VALUES, STEPS)
    for lead in range(STEPS + 1):
        mean, covariance = moments(analysis, lead)
        assert gap(mean, after[lead][0]) <= 1e-8
        assert gap(covariance, after[lead][1]) <= 1e-8
        assert gap(analysis.forecast_at(lead).mean.flatten(), before[lead][0]) <= 1e-8
    innovation = VALUES[1] - H @ before[1][0]
    total = H @ before[1][1] @ H.mT + NOISE * torch.eye(2, dtype=torch.float64)
    assert gap(analysis.chi2[1], innovation @ torch.linalg.solve(total, innovation)[None].mT / 2) <= 1e-8


def test_the_square_root_smoother_is_that_of_rauch_tung_and_striebel() -> None:
    """And that of the closed form, which conditions the trajectory's latent."""
    predictor, count = affine(), 12

    def step(values: Tensor) -> Tensor:
        return values @ predictor.M.mT + predictor.b

    analysis = EnsembleKalmanSmoother(count).assimilate(
        step, START, observations=OBSERVATIONS, steps=STEPS, initial=spanning(count)
    )
    wanted = reference(predictor, has_errors=False).smooth(MEAN, ROOT @ ROOT.mT, VALUES, STEPS)
    exact = AffinePredictor(GRID, predictor.M, predictor.R * 0.0, b=predictor.b)
    prior = GaussianField(MEAN[None, None], DenseRoot(ROOT[None, None]), latent="prior", grid=GRID)
    closed = propagate(exact, START, steps=STEPS, initial=prior)
    for one in OBSERVATIONS:
        closed = closed.condition(FUNCTIONAL, one.values, lead=one.lead, noise=NOISE)
    for lead in range(STEPS + 1):
        mean, covariance = moments(analysis, lead)
        assert gap(mean, wanted[lead][0]) <= 1e-8
        assert gap(covariance, wanted[lead][1]) <= 1e-8
        assert gap(closed.at(lead).mean.flatten(), wanted[lead][0]) <= 1e-8
        root = closed.at(lead).root.dense()[0, 0]
        assert gap(root @ root.mT, wanted[lead][1]) <= 1e-8


def test_the_closed_form_of_fresh_errors_is_that_of_rauch_tung_and_striebel() -> None:
    predictor = affine()
    prior = GaussianField(MEAN[None, None], DenseRoot(ROOT[None, None]), latent="prior", grid=GRID)
    closed = propagate(predictor, START, steps=STEPS, initial=prior, draws="step")
    for one in OBSERVATIONS:
        closed = closed.condition(FUNCTIONAL, one.values, lead=one.lead, noise=NOISE)
    wanted = reference(predictor, has_errors=True).smooth(MEAN, ROOT @ ROOT.mT, VALUES, STEPS)
    for lead in range(STEPS + 1):
        assert gap(closed.at(lead).mean.flatten(), wanted[lead][0]) <= 1e-8
        assert gap(closed.at(lead).variance.flatten(), wanted[lead][1].diagonal()) <= 1e-8


MEMBERS, REPETITIONS = 40, 150


def repeated(method: type[EnsembleKalmanMethod], members: int) -> tuple[Tensor, Tensor]:
    """Ensemble means and variances of leads 2 and `STEPS`, `(repetitions, 2, d)` each: functions are independent runs."""
    predictor, generator = affine(), torch.Generator().manual_seed(members)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def step(values: Tensor) -> Tensor:
        return values @ predictor.M.mT + predictor.b + draw(len(values), 1, predictor.R.shape[1]) @ predictor.R.mT

    prior = EmpiricalField(MEAN + draw(members, REPETITIONS, 1, D) @ ROOT.mT, grid=GRID)
    observations = [
        Observation(FUNCTIONAL, one.values.expand(REPETITIONS, -1, -1), lead=one.lead, noise=NOISE) for one in OBSERVATIONS
    ]
    start = Field(MEAN.expand(REPETITIONS, 1, -1), GRID)
    analysis = method(members).assimilate(step, start, observations=observations, steps=STEPS, initial=prior)
    samples = torch.stack([analysis.at(lead).samples[:, :, 0] for lead in (2, STEPS)], dim=2)
    return samples.mean(0), samples.var(0)


@pytest.mark.parametrize("method", [EnsembleKalmanFilter, EnsembleKalmanSmoother])
def test_it_is_kalmans_within_monte_carlo_error(method: type[EnsembleKalmanMethod]) -> None:
    """Independent runs agree with Kalman's moments within four standard errors, which are those of their own scatter.

    A gain is a ratio of sample moments, so moments of s members are biased by O(1/s). Of twice the members, the bias is half:
    2 x (mean of 2 s members) - (mean of s) has none of that order.
    """
    system = reference(affine(), has_errors=True)
    run = system.smooth if method is EnsembleKalmanSmoother else lambda *args: system.filter(*args)[1]
    wanted = run(MEAN, ROOT @ ROOT.mT, VALUES, STEPS)
    exact = [torch.stack([part(wanted[lead]) for lead in (2, STEPS)]) for part in (lambda m: m[0], lambda m: m[1].diagonal())]
    few, many = repeated(method, MEMBERS), repeated(method, 2 * MEMBERS)
    for one, two, truth in zip(few, many, exact, strict=True):
        error = ((4 * two.var(0) + one.var(0)) / REPETITIONS).sqrt()
        assert float(((2 * two.mean(0) - one.mean(0) - truth) / error).abs().max()) <= 4.0
        assert float(error.max()) <= 0.07 * float(truth.abs().max())  # so that the comparison says something
        ratio = float((one.std(0) / two.std(0)).mean())  # the scatter falls with members as Monte Carlo error does
        assert math.sqrt(2) - 0.2 <= ratio <= math.sqrt(2) + 0.2


def test_a_predictors_draws_are_the_members_operators() -> None:
    """Without observations before it, a forecast of the filter is the predictor's roll-out, for both kinds of draws."""
    predictor = affine()
    prior = GaussianField(MEAN[None, None], DenseRoot(ROOT[None, None]), latent="prior", grid=GRID)
    late = [Observation(FUNCTIONAL, VALUES[4][None, None], lead=3, noise=NOISE)]
    for draws in ("trajectory", "step"):
        analysis = EnsembleKalmanFilter(6, draws=draws, seed=5).assimilate(
            predictor, START, observations=late, steps=3, initial=prior
        )
        forecast = predictor.rollout(START, steps=3, members=6, draws=draws, initial=prior, seed=5)
        assert isinstance(analysis, Forecast)
        assert (len(analysis), analysis.members, [lead for lead, _ in analysis.leads()]) == (1, 6, [1, 2, 3])
        assert gap(analysis.at(2).samples, forecast.at(2).samples) == 0.0
        assert gap(analysis.forecast_at(3).samples, forecast.at(3).samples) == 0.0
        assert gap(analysis.at(3).samples, forecast.at(3).samples) >= 1e-3
        again = EnsembleKalmanFilter(6, draws=draws, seed=5).assimilate(
            predictor, START, observations=late, steps=3, initial=prior
        )
        assert gap(analysis.at(3).samples, again.at(3).samples) == 0.0


def test_several_states_in_an_input_are_updated_together() -> None:
    """A step of two states is the step of a window, whose halves are channels; observed is the second."""
    predictor, size = affine(history=2, rank=2), D
    companion = torch.zeros(2 * size, 2 * size, dtype=torch.float64)
    companion[:size, size:] = torch.eye(size, dtype=torch.float64)
    companion[size:] = predictor.M
    members = EmpiricalField(normal(8, 1, 2, size, seed="windows"), grid=GRID)
    start = Field(members.mean, GRID)
    exact = AffinePredictor(GRID, predictor.M, 0.0 * predictor.R, b=predictor.b)
    pad = torch.nn.functional.pad

    observations = [Observation(FUNCTIONAL, VALUES[2][None, None], lead=2, noise=NOISE)]
    found = EnsembleKalmanFilter(8).assimilate(
        exact, start, observations=observations, steps=4, initial=members, inputs=StepInputs(history=2)
    )
    covariance = torch.cov(members.samples.flatten(1).mT)
    H_last = pad(H, (size, 0))
    system = KalmanReference(companion, pad(predictor.b, (size, 0)), torch.zeros_like(companion), H_last, NOISE)
    _, after = system.filter(members.mean.flatten(), covariance, {2: VALUES[2]}, 4)
    for lead in (2, 4):
        assert gap(found.at(lead).mean.flatten(), after[lead][0][size:]) <= 1e-8


LONG = Grid.uniform(40)


def localised(localisation: float | None, *, repetitions: int, method: type[EnsembleKalmanMethod]) -> Tensor:
    """Errors of the analysis of smooth random fields by few members, `(repetitions,)`, relative to those of the prior."""
    members = 8
    distance = (LONG.points - LONG.points.mT).abs()
    distance = torch.minimum(distance, 1.0 - distance)
    root = torch.linalg.cholesky(torch.exp(-0.5 * (distance / 0.06).square()) + 1e-8 * torch.eye(40, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(members + 1, repetitions, 1, 40, generator=generator, dtype=torch.float64) @ root.mT
    truth, prior = drawn[0], EmpiricalField(drawn[1:], grid=LONG)
    probe = sensors(LONG, LONG.points[::4])
    noise = torch.randn(repetitions, 1, 10, generator=generator, dtype=torch.float64) * 0.3
    observations = [Observation(probe, probe(truth) + noise, lead=1, noise=0.09)]
    start = Field(torch.zeros_like(truth), LONG)
    chosen = method(members, localisation=localisation)
    analysis = chosen.assimilate(lambda values: values, start, observations=observations, steps=1, initial=prior)
    error = (analysis.at(1).mean - truth).square().mean((1, 2)).sqrt()
    return error / (prior.mean - truth).square().mean((1, 2)).sqrt()


def test_localisation_reduces_the_error_of_few_members() -> None:
    """Over many repetitions, paired: without it eight members do harm, with it they help; too short a distance loses again."""
    errors = {radius: localised(radius, repetitions=60, method=EnsembleKalmanFilter) for radius in (None, 0.25, 0.03)}
    for radius in (None, 0.03):
        gain = errors[radius] - errors[0.25]
        assert float(gain.mean()) >= 4.0 * float(gain.std()) / math.sqrt(len(gain))
    assert float(errors[0.25].mean()) <= 0.75


def test_a_smoother_localises_earlier_leads_too() -> None:
    """Of states that do not change, the analysis of all leads is the same."""
    found = localised(0.25, repetitions=3, method=EnsembleKalmanSmoother)
    assert gap(found, localised(0.25, repetitions=3, method=EnsembleKalmanFilter)) <= 1e-12


def test_few_members_have_the_variance_that_kalman_gives_them_on_average() -> None:
    """Four members: their variance is Kalman's P R / (P + R)."""
    count, noise = 40, 0.5
    members = normal(4, 1, 1, 1, seed="few members").expand(4, count, 1, 1)
    prior = float(members[:, 0, 0, 0].var())
    observed = ObservedNumbers(
        rows=torch.ones(1, 1, dtype=torch.float64),
        values=torch.zeros(count, 1, 1, dtype=torch.float64),
        noise=torch.full((count, 1, 1), noise, dtype=torch.float64),
        taper=None,
    )
    found, _ = update(members, observed)
    variances = found[:, :, 0, 0].var(0)
    chance = float(variances.std()) / math.sqrt(count)
    assert abs(float(variances.mean()) - prior * noise / (prior + noise)) <= 3.0 * chance + 1e-12


def test_inflation_widens_the_members_before_the_update() -> None:
    """With deviations times f the update is Kalman's of f² P."""
    analysis = EnsembleKalmanFilter(10, inflation=1.5).assimilate(
        lambda values: values, START, observations=OBSERVATIONS[:1], steps=1, initial=spanning(10)
    )
    system = KalmanReference(torch.eye(D, dtype=torch.float64), 0.0 * MEAN, torch.zeros(D, D, dtype=torch.float64), H, NOISE)
    _, after = system.filter(MEAN, 2.25 * ROOT @ ROOT.mT, {1: VALUES[1]}, 1)
    mean, covariance = moments(analysis, 1)
    assert gap(mean, after[1][0]) <= 1e-9
    assert gap(covariance, after[1][1]) <= 1e-9


def test_several_observations_at_one_lead() -> None:
    """Those of two instruments at a lead, and at the start, are all taken in, with the noise of each."""
    both = [
        Observation(MatrixFunctional(GRID, H[:1]), VALUES[1][None, None, :1], lead=1, noise=NOISE),
        Observation(
            MatrixFunctional(GRID, H[1:]), VALUES[1][None, None, 1:], lead=1, noise=torch.tensor([NOISE], dtype=torch.float64)
        ),
    ]

    def run(observations: list[Observation]) -> EnsembleAnalysis:
        return EnsembleKalmanFilter(10).assimilate(lambda v: v, START, observations=observations, steps=1, initial=spanning(10))

    assert gap(run(both).at(1).samples.mean(0), run(OBSERVATIONS[:1]).at(1).samples.mean(0)) <= 1e-10
    first = run([Observation(FUNCTIONAL, VALUES[1][None, None], lead=0, noise=NOISE)])
    assert gap(first.at(0).mean, first.at(1).mean) == 0.0
    assert list(first.chi2) == [0]


@pytest.mark.bad_input
def test_bad_settings_and_observations_are_refused() -> None:
    values = VALUES[1][None, None]
    with pytest.raises(ShapeError):
        Observation(FUNCTIONAL, values[0], lead=1, noise=1.0)
    with pytest.raises(DataError):
        Observation(FUNCTIONAL, values * math.nan, lead=1, noise=1.0)
    run = EnsembleKalmanFilter(4).assimilate
    with pytest.raises(ArgumentError, match="distribution over the states at lead 0"):
        run(lambda v: v, START, observations=OBSERVATIONS, steps=4)
    with pytest.raises(ArgumentError, match="roll out further"):
        run(lambda v: v, START, observations=OBSERVATIONS, steps=3, initial=spanning(6))
    with pytest.raises(ArgumentError, match="1 or more observations"):
        run(lambda v: v, START, observations=[], steps=3, initial=spanning(6))
    with pytest.raises(ArgumentError, match="with a predictor only"):
        run(lambda v: v, START, observations=OBSERVATIONS, steps=4, initial=spanning(6), inputs=StepInputs(history=2))
    with pytest.raises(ArgumentError, match="half of the shortest periodic axis"):
        EnsembleKalmanFilter(6, localisation=0.6).assimilate(
            lambda v: v, START, observations=OBSERVATIONS, steps=4, initial=spanning(6)
        )
    with pytest.raises(GridError):
        run(
            lambda v: v,
            START,
            observations=[Observation(sensors(LONG, [[0.1]]), [[[0.0]]], lead=1, noise=1.0)],
            steps=1,
            initial=spanning(6),
        )
    elsewhere = Field(START.values, Grid.uniform(START.grid.shape, lengths=2.0))
    with pytest.raises(GridError, match="an initial distribution on"):
        run(lambda v: v, elsewhere, observations=OBSERVATIONS, steps=4, initial=spanning(6))
    with pytest.raises(ShapeError):
        run(lambda v: v[..., :3], START, observations=OBSERVATIONS, steps=4, initial=spanning(6))
    with pytest.raises(DataError, match="not stable"):
        run(lambda v: v / 0.0, START, observations=OBSERVATIONS, steps=4, initial=spanning(6))
    two = Observation(FUNCTIONAL, torch.zeros(2, 1, 2), lead=1, noise=1.0)
    with pytest.raises(ShapeError):
        run(lambda v: v, START, observations=[two], steps=1, initial=spanning(6))
