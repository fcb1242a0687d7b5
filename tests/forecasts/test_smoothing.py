"""Observations at one lead move all leads: equal to dense Gaussian algebra over space, time and functions."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from probneural.distributions import GaussianField
from probneural.errors import ArgumentError, ConstraintError, LatentError
from probneural.forecasts import propagate
from probneural.forecasts.trajectories import GaussianTrajectory
from probneural.functionals import MatrixFunctional, integral, sensors
from probneural.grids import Grid
from tests.forecasts.cases import GRID, affine, dense_forecast, initial_of, start_of
from tests.helpers import cross_covariance, normal

STEPS = 5
CHOICES = list(itertools.product(("trajectory", "step"), ("trajectory", "step", "none"), (False, True)))
FUNCTIONAL = MatrixFunctional(GRID, normal(3, GRID.size, seed="H"))
NOISE = 0.05


def gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def conditioned(mean: Tensor, root: Tensor, observations: list[tuple[int, Tensor, float]]) -> tuple[Tensor, Tensor]:
    """Posterior mean and covariance of all values `(n * leads * c p)`, from the covariance alone.

    An observation is a lead, values `(n, m)` of FUNCTIONAL, and a noise variance; one channel.
    """
    n, leads, size, _ = root.shape
    covariance = torch.einsum("nlpk,mjqk->nlpmjq", root, root).reshape(2 * [n * leads * size])
    vector, rows, values, noise = mean.flatten(), [], [], []
    for lead, observed, variance in observations:
        for i in range(n):
            row = torch.zeros(observed.shape[1], n, leads, size, dtype=torch.float64)
            row[:, i, lead] = FUNCTIONAL.matrix
            rows.append(row.flatten(1))
            values.append(observed[i])
            noise.append(torch.full_like(observed[i], variance))
    H, y, r = torch.cat(rows), torch.cat(values), torch.cat(noise)
    gain = torch.linalg.solve(H @ covariance @ H.mT + r.diag(), H @ covariance).mT
    return (vector + gain @ (y - H @ vector)).view_as(mean), covariance - gain @ H @ covariance


def moments(forecast: GaussianTrajectory) -> tuple[Tensor, Tensor]:
    fields = [forecast.at(lead) for lead in range(forecast.steps + 1)]
    mean = torch.stack([field.mean.flatten(1) for field in fields], dim=1)
    root = torch.stack([field.root.dense().flatten(1, 2) for field in fields], dim=1)
    size = mean.numel()
    return mean, torch.einsum("nlpk,mjqk->nlpmjq", root, root).reshape(size, size)


@pytest.mark.parametrize(("draws", "own", "has_initial"), CHOICES)
def test_an_observation_at_one_lead_moves_all(draws: str, own: str, has_initial: bool) -> None:
    predictor = affine(own=2)
    start = start_of(predictor)
    initial = initial_of(predictor, own=1) if has_initial else None
    mean, root = dense_forecast(predictor, start.values.flatten(1), steps=STEPS, draws=draws, discrepancy=own, initial=initial)
    forecast = propagate(predictor, start, steps=STEPS, initial=initial, draws=draws, discrepancy=own)
    first, second = normal(2, 3, seed="first"), normal(2, 3, seed="second")
    smoothed = forecast.condition(FUNCTIONAL, first[:, None], lead=3, noise=NOISE)
    wanted = conditioned(mean, root, [(3, first, NOISE)])
    found = moments(smoothed)
    assert gap(found[0], wanted[0]) <= 1e-8
    assert gap(found[1], wanted[1]) <= 1e-8
    assert gap(found[0][:, 1], mean[:, 1]) >= 1e-3  # leads before the observation move too
    twice = smoothed.condition(FUNCTIONAL, second[:, None], lead=1, noise=2 * NOISE)
    wanted = conditioned(mean, root, [(3, first, NOISE), (1, second, 2 * NOISE)])
    found = moments(twice)
    assert gap(found[0], wanted[0]) <= 1e-8
    assert gap(found[1], wanted[1]) <= 1e-8


def test_under_takes_what_a_field_has_learned() -> None:
    predictor = affine(own=2)
    forecast = propagate(predictor, start_of(predictor), steps=3, draws="step")
    values = normal(2, 1, 3, seed="values")
    measured = forecast.at(2).condition(FUNCTIONAL, values, noise=NOISE)
    moved = forecast.condition(FUNCTIONAL, values, lead=2, noise=NOISE)
    assert gap(forecast.at(1).under(measured.latent).mean, moved.at(1).mean) == 0.0
    assert gap(forecast.under(measured.latent).at(3).mean, moved.at(3).mean) == 0.0
    with pytest.raises(LatentError):
        forecast.under(propagate(predictor, start_of(predictor), steps=2).latent)


def test_a_trajectory_of_one_operator_is_the_predictors() -> None:
    """Without a start distribution or a discrepancy the latent is the predictor's: what is learned in time holds for it."""
    predictor = affine()
    start = start_of(predictor)
    forecast = propagate(predictor, start, steps=3)
    assert forecast.latent.id == predictor(start).latent.id
    moved = forecast.condition(FUNCTIONAL, normal(2, 1, 3), lead=2, noise=NOISE)
    assert gap(predictor(start).under(moved.latent).mean, moved.at(1).mean) <= 1e-12
    assert gap(predictor(start).under(moved.latent).variance, moved.at(1).variance) <= 1e-12
    once = predictor(start).condition(FUNCTIONAL, normal(2, 1, 3), noise=NOISE)
    assert gap(forecast.under(once.latent).at(1).mean, once.mean) <= 1e-12


@pytest.mark.parametrize("is_conditioned", [False, True])
def test_a_start_that_the_same_operator_made(is_conditioned: bool) -> None:
    """A forecast from the predicted state is the rest of the longer forecast, before and after the operator has learned."""
    predictor = affine()
    start = start_of(predictor)
    longer, first = propagate(predictor, start, steps=4), predictor(start)
    if is_conditioned:
        values = normal(2, 1, 3)
        first = first.condition(FUNCTIONAL, values, noise=NOISE)
        longer = longer.condition(FUNCTIONAL, values, lead=1, noise=NOISE)
    rest = propagate(predictor, start, steps=3, initial=first)
    assert rest.latent.id == first.latent.id
    for lead in range(4):
        assert gap(rest.at(lead).mean, longer.at(lead + 1).mean) <= 1e-12
        one, other = rest.at(lead), longer.at(lead + 1)
        assert gap(cross_covariance(one, one), cross_covariance(other, other)) <= 1e-12
    fresh = propagate(predictor, start, steps=3, initial=first, draws="step")
    assert gap(fresh.at(2).variance, rest.at(2).variance) >= 1e-3  # another operator: errors do not add up


def test_the_joint_field_is_all_leads() -> None:
    predictor = affine(own=2)
    initial = initial_of(predictor)
    forecast = propagate(predictor, start_of(predictor), steps=4, initial=initial, draws="step")
    u = forecast.joint()
    assert u.grid.shape == (4, GRID.size)
    assert u.grid.axes[0].coordinates.tolist() == [1.0, 2.0, 3.0, 4.0]
    for lead, at in forecast.leads():
        assert gap(u.mean[:, :, lead - 1], at.mean) == 0.0
        assert gap(u.variance[:, :, lead - 1], at.variance) <= 1e-14
        assert gap(u.rsample((2,), seed=0)[:, :, :, lead - 1], at.rsample((2,), seed=0)) <= 1e-13  # one seed, one trajectory
    values = normal(2, 1, 2)
    probe = sensors(u.grid, [[3.0, 0.2], [3.0, 0.6]])
    at_once = u.condition(probe, values, noise=NOISE)
    single = forecast.condition(sensors(GRID, [[0.2], [0.6]]), values, lead=3, noise=NOISE)
    assert gap(at_once.mean, single.joint().mean) <= 1e-10
    assert gap(at_once.variance, single.joint().variance) <= 1e-10
    assert gap(forecast.under(at_once.latent).at(1).mean, single.at(1).mean) <= 1e-10
    total = integral(u.grid)
    assert gap(u.constrain(total, torch.ones(2, 1, 1)).apply(total).variance, torch.zeros(2, 1, 1)) <= 1e-12
    flat = u.root.dense().flatten(1, 2)
    for index in range(2):
        dense = torch.distributions.MultivariateNormal(
            u.mean[index].flatten(), flat[index] @ flat[index].mT + 0.1 * torch.eye(20, dtype=torch.float64)
        )
        wanted = dense.log_prob(initial.mean.new_ones(20))
        assert gap(u.log_prob(torch.ones_like(u.mean), noise=0.1)[index], wanted) <= 1e-9


def test_joint_fields_of_some_leads() -> None:
    predictor = affine()
    forecast = propagate(predictor, start_of(predictor), steps=4)
    assert forecast.joint([0, 2, 4]).grid.axes[0].coordinates.tolist() == [0.0, 2.0, 4.0]
    single = forecast.joint([3])
    assert single.grid.shape == (1, 5)
    assert gap(single.mean[:, :, 0], forecast.at(3).mean) == 0.0
    uneven = forecast.joint([1, 2, 4])
    assert uneven.grid.shape == (15,)
    assert uneven.grid.points[5].tolist() == [2.0, 0.0]
    assert gap(uneven.mean[..., 10:], forecast.at(4).mean) == 0.0
    durations = torch.tensor([0.5, 1.5, 1.0]).repeat_interleave(5).to(GRID.weights)  # by the trapezoidal rule
    torch.testing.assert_close(uneven.grid.weights, durations * GRID.weights.repeat(3))
    for wrong in ([], [2, 1], [1, 9]):
        with pytest.raises(ArgumentError):
            forecast.joint(wrong)


def test_exact_observations_and_their_limits() -> None:
    predictor = affine(rank=3)
    forecast = propagate(predictor, start_of(predictor, 1), steps=2)
    probe = sensors(GRID, [[0.2], [0.4]])
    values = normal(1, 1, 2)
    moved = forecast.condition(probe, values, lead=2)
    assert gap(moved.at(2).apply(probe).mean, values) <= 1e-10
    with pytest.raises(ConstraintError):
        moved.condition(probe, values + 1.0, lead=2)


def test_scattered_states() -> None:
    grid = Grid.scattered(torch.rand(5, 2, generator=torch.Generator().manual_seed(0)), torch.full((5,), 0.2))
    predictor = affine(grid=grid)
    forecast = propagate(predictor, start_of(predictor), steps=2)
    joint = forecast.joint()
    assert joint.grid.points.shape == (10, 3)
    torch.testing.assert_close(joint.grid.weights, 0.5 * grid.weights.repeat(2))
    torch.testing.assert_close(forecast.joint([2]).grid.weights, grid.weights)
    assert isinstance(joint, GaussianField)
    assert gap(joint.mean[..., 5:], forecast.at(2).mean) == 0.0
