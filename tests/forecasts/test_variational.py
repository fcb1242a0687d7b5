"""Strong-constraint 4D-Var: the smoother's mean where steps are affine, a general minimiser's elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

from probneural.distributions import DenseRoot, FieldDistribution, GaussianField, Predictor, PredictorTraits
from probneural.errors import ArgumentError, ConvergenceWarning, DataError, ShapeError
from probneural.fields import Field
from probneural.forecasts import Observation, StepInputs, four_d_var, propagate
from probneural.forecasts.trajectories import GaussianTrajectory
from probneural.functionals import MatrixFunctional
from probneural.grids import Grid
from tests.forecasts.cases import GRID, AffinePredictor, affine
from tests.helpers import normal

FUNCTIONAL = MatrixFunctional(GRID, normal(2, GRID.size, seed="H"))
NOISE = 0.05


def prior(*, rank: int = 4, channels: int = 1) -> GaussianField:
    root = DenseRoot(0.6 * normal(2, channels, GRID.size, rank, seed="root"))
    return GaussianField(normal(2, channels, GRID.size, seed="mean"), root, latent="prior", grid=GRID)


def observations() -> list[Observation]:
    return [
        Observation(FUNCTIONAL, normal(2, 1, 2, seed=f"y{lead}"), lead=lead, noise=NOISE * (1 + lead)) for lead in (3, 0, 1)
    ]


def gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def test_affine_steps_give_the_smoothers_mean_in_one_iteration() -> None:
    """The functions of the prior share a latent, and are apart here: the smoother takes them one at a time."""
    predictor = affine()
    exact = AffinePredictor(GRID, predictor.M, 0.0 * predictor.R, b=predictor.b)
    found = four_d_var(predictor, prior(), observations=observations())
    assert found.converged
    assert found.iterations == 1
    for index in range(2):
        smoothed = propagate(exact, found.start[index], steps=3, initial=prior()[index])
        for one in observations():
            smoothed = smoothed.condition(FUNCTIONAL, one.values[index : index + 1], lead=one.lead, noise=one.noise)
        for lead in range(4):
            assert gap(found.states[lead, index], smoothed.at(lead).mean[0]) <= 1e-8
    assert gap(found.start.values, found.states[0]) == 0.0


def test_states_before_the_start_are_found_too() -> None:
    predictor = affine(history=2)
    exact = AffinePredictor(GRID, predictor.M, 0.0 * predictor.R, b=predictor.b)
    begin = prior(channels=2)
    found = four_d_var(predictor, begin, observations=observations(), inputs=StepInputs(history=2))
    assert found.start.channels == 2
    smoothed = propagate(exact, found.start[:1], steps=3, initial=begin[0], inputs=StepInputs(history=2))
    for one in observations():
        smoothed = smoothed.condition(FUNCTIONAL, one.values[:1], lead=one.lead, noise=one.noise)
    assert gap(found.states[3, 0], smoothed.at(3).mean[0]) <= 1e-8


def test_deviations_that_are_each_functions_own() -> None:
    """Where a prior puts its deviations does not matter to one function."""
    begin = prior()
    left, right = begin.root.dense().split([1, 3], dim=3)
    split = GaussianField(begin.mean, DenseRoot(left), latent="left", grid=GRID, discrepancy=DenseRoot(right))
    predictor = affine()
    one, other = (
        four_d_var(predictor, begin, observations=observations()),
        four_d_var(predictor, split, observations=observations()),
    )
    assert gap(one.start.values, other.start.values) <= 1e-10


def step(values: Tensor, strength: float = 0.3) -> Tensor:
    """A step of a reaction with several fixed points, and of diffusion."""
    return values + strength * torch.sin(2.0 * values) + 0.1 * (values.roll(1, -1) + values.roll(-1, -1) - 2 * values)


def observed(begin: GaussianField) -> list[Observation]:
    """Observations of a trajectory from a start that the prior thinks of."""
    state, made = begin.mean + begin.root.product_each(normal(2, begin.latent.rank, seed="truth")).view_as(begin.mean), []
    for lead in range(4):
        state = step(state) if lead else state
        noise = NOISE**0.5 * normal(2, 1, 2, seed=f"noise{lead}")
        made.append(Observation(FUNCTIONAL, FUNCTIONAL(state) + noise, lead=lead, noise=NOISE))
    return made


def test_nonlinear_steps_give_what_a_general_minimiser_finds() -> None:
    begin = prior()
    found = four_d_var(step, begin, observations=observed(begin), iterations=50, tolerance=1e-9)
    assert found.converged
    assert 1 < found.iterations < 50
    for index in range(2):
        mean, root = begin.mean[index, 0], begin.root.dense()[index, 0]

        def cost(xi: np.ndarray, index: int = index, mean: Tensor = mean, root: Tensor = root) -> tuple[float, np.ndarray]:
            latent = torch.from_numpy(xi).requires_grad_()
            state, total = (mean + root @ latent)[None], 0.5 * latent.square().sum()
            for lead in range(4):
                state = step(state) if lead else state
                for one in observed(begin):
                    if one.lead == lead:
                        assert isinstance(one.noise, float)
                        total = total + (one.values[index, 0] - FUNCTIONAL(state)[0]).square().sum() / (2 * one.noise)
            (gradient,) = torch.autograd.grad(total, latent)
            return float(total.detach()), gradient.numpy()

        reference = scipy.optimize.minimize(cost, found.latents[index].numpy() + 0.05, jac=True, method="BFGS", tol=1e-10)
        assert abs(reference.fun - float(found.cost[index])) <= 1e-8 * reference.fun
        assert gap(torch.from_numpy(reference.x), found.latents[index]) <= 1e-5


class Reaction(Predictor):
    """The step u + strength sin(2 u) + diffusion, without uncertainty."""

    def __init__(self, strength: float) -> None:
        zero = torch.zeros(1, dtype=torch.float64)
        super().__init__(PredictorTraits(in_channels=1, noise=zero, domain=GRID, like=zero))
        self.strength = strength

    def _predict(self, sets: list[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        roots = [DenseRoot(inputs.values.new_zeros(len(inputs), 1, GRID.size, 1)) for inputs, _ in sets]
        means = [step(inputs.values, self.strength) for inputs, _ in sets]
        return [GaussianField(mean, root, latent="none", grid=GRID) for mean, root in zip(means, roots, strict=True)]


def distance(analysis: GaussianTrajectory, start: Tensor) -> float:
    """Deviation of the analysed start from another one, in standard deviations."""
    field = analysis.at(0)
    return float((field.mean - start).norm() / field.variance.sum().sqrt())


def test_linearisation_about_a_distant_prior_mean_is_reported() -> None:
    begin, one = prior()[0], Observation(FUNCTIONAL, observed(prior())[1].values[:1], lead=1, noise=NOISE**2)

    def analysed(strength: float, start: Tensor) -> GaussianTrajectory:
        trajectory = propagate(Reaction(strength), Field(start, GRID), steps=1, initial=begin)
        return trajectory.condition(FUNCTIONAL, one.values, lead=1, noise=NOISE**2)

    found = four_d_var(Reaction(0.3), begin, observations=[one], iterations=50, tolerance=1e-9)
    with pytest.warns(ConvergenceWarning, match=r"four_d_var\(\.\.\.\)\.start.*pn\.inverse\.InverseProblem"):
        assert distance(analysed(0.3, begin.mean), found.start.values) > 0.5
    # about the most probable start, or of nearly affine steps, warnings would be errors
    assert distance(analysed(0.3, found.start.values), found.start.values) < 1e-4
    analysed(0.003, begin.mean)


def test_steps_that_did_not_suffice_are_reported() -> None:
    first, whole = (
        four_d_var(step, prior(), observations=observed(prior()), iterations=count, tolerance=1e-9) for count in (1, 50)
    )
    assert first.iterations == 1
    assert not first.converged
    assert bool((whole.cost < first.cost).all())


def test_bad_input_is_refused() -> None:
    with pytest.raises(ArgumentError, match="1 or more observations"):
        four_d_var(step, prior(), observations=[])
    with pytest.raises(ArgumentError, match="with a predictor only"):
        four_d_var(step, prior(), observations=observations(), inputs=StepInputs(history=2))
    with pytest.raises(ShapeError):
        four_d_var(lambda values: values[..., 1:], prior(), observations=observations())
    with pytest.raises(DataError, match="a step with derivatives"):
        four_d_var(lambda values: step(values.detach()), prior(), observations=observations())
