"""Weights that vary along a function: where the truth is known, beside constant ones, and as one function on all grids."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from probneural.calibration import LocalStacking, LocalWeights, StackedPredictor, Stacking, VarianceScale
from probneural.calibration.local_stacking import _Gate
from probneural.distributions import (
    DenseRoot,
    EmpiricalField,
    FieldDistribution,
    GaussianField,
    MixtureField,
    MixturePredictor,
    Predictor,
    PredictorTraits,
)
from probneural.errors import ArgumentError, CalibrationError, DataError, ShapeError
from probneural.fields import Field
from probneural.functionals import integral
from probneural.grids import Grid
from probneural.heads import LastLayerLaplace
from probneural.metrics import score_pairs
from probneural.operators import FNO
from probneural.pairs import FieldPairs
from probneural.storage import load, save
from tests.calibration.synthetic import stacked_along
from tests.heads.cases import ConvStack, data_for
from tests.helpers import normal

ENDS = Grid.uniform(33, periodic=False)
RING = Grid.uniform(32)
SD = 0.5
"""Of the error that a predictor has where it is wrong."""


def smooth(count: int, grid: Grid, *, seed: int, channels: int = 1) -> Tensor:
    """Functions of four waves with independent coefficients, variance 1: the same ones on every grid."""
    x = grid.points[:, 0]
    waves = [torch.cos(2 * math.pi * k * x) for k in (1, 2)] + [torch.sin(2 * math.pi * k * x) for k in (1, 2)]
    return normal(count, channels, 4, seed=seed) @ torch.stack(waves) * 0.5**0.5


class Half(Predictor):
    """Predicts its first input channel, plus the second where `wrong` says so; states the same variance everywhere.

    The second channel is what it cannot know: an error for each function.
    """

    def __init__(self, wrong: Callable[[Tensor], Tensor], *, grid: Grid = ENDS, channel: int = 1, members: int = 0) -> None:
        variance = torch.full((1,), 0.01, dtype=torch.float64)
        super().__init__(PredictorTraits(in_channels=3, noise=variance, domain=grid, like=variance))
        self.wrong, self.channel, self.members = wrong, channel, members

    def _predict(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        where = inputs.grid if query is None else query
        values = inputs.resample(where).values
        mean = values[:, :1] + SD * self.wrong(where.points[:, 0]) * values[:, self.channel : self.channel + 1]
        x = 2 * math.pi * where.points[:, 0]
        columns = 0.25 * torch.stack([torch.cos(x), torch.sin(x)], -1)
        u = GaussianField(mean, DenseRoot(columns.expand(*mean.shape[:2], -1, -1).clone()), latent="half", grid=where)
        return EmpiricalField(u.rsample((self.members,), seed=0), grid=where) if self.members else u


class Certain(Predictor):
    """Zero, with a variance that is zero at one end."""

    def __init__(self, size: float = 1.0) -> None:
        self.size = size
        nothing = torch.zeros(1, dtype=torch.float64)
        super().__init__(PredictorTraits(in_channels=3, noise=nothing, domain=ENDS, like=nothing))

    def _predict(self, inputs: Field, query: Grid | None) -> GaussianField:
        root = DenseRoot(self.size * ENDS.points.diagflat().expand(len(inputs), 1, -1, -1))
        return GaussianField(torch.zeros_like(inputs.values[:, :1]), root, latent="certain", grid=ENDS)


def right(x: Tensor) -> Tensor:
    """Wrong on the right half, over a tenth of the domain between."""
    return torch.sigmoid((x - 0.5) / 0.03)


def left(x: Tensor) -> Tensor:
    return 1.0 - right(x)


def ring(x: Tensor) -> Tensor:
    """The same on a periodic domain."""
    return torch.sigmoid(torch.sin(2 * math.pi * x) / 0.2)


def everywhere(x: Tensor) -> Tensor:
    return torch.ones_like(x)


def truths(count: int, *, seed: int, grid: Grid = ENDS) -> FieldPairs:
    """The first channel is the answer, up to noise; the others are the errors of two predictors."""
    inputs = torch.cat([smooth(count, grid, seed=seed + channel) for channel in range(3)], 1)
    return FieldPairs(Field(inputs, grid), Field(inputs[:, :1] + 0.1 * normal(count, 1, grid.size, seed=seed + 3), grid))


def halves(grid: Grid = ENDS) -> list[Predictor]:
    """One that is right on the left half, and one that is right on the other."""
    wrong = right if grid is ENDS else ring
    return [Half(wrong, grid=grid), Half(lambda x: 1.0 - wrong(x), grid=grid, channel=2)]


CALIBRATION, TEST = truths(60, seed=10), truths(100, seed=50)


@cache
def stacked(grid: Grid = ENDS) -> StackedPredictor:
    return LocalStacking().fit(halves(grid), CALIBRATION if grid is ENDS else truths(60, seed=10, grid=grid))


def test_each_predictor_gets_the_half_where_it_is_right() -> None:
    found = stacked()
    weights = found.weights_at(TEST.inputs)
    torch.testing.assert_close(weights.sum(0), torch.ones(100, 1, 33, dtype=torch.float64), rtol=0, atol=1e-12)
    assert bool((weights >= 0).all())
    assert weights[0, ..., :13].mean() > 0.9
    assert weights[0, ..., -13:].mean() < 0.1
    torch.testing.assert_close(found.shares, found.weights_at(CALIBRATION.inputs).mul(ENDS.mean_weights).sum(-1).mean((1, 2)))
    assert found.shares.sum() == pytest.approx(1.0, abs=1e-12)


def test_scores_and_errors_are_below_those_of_both_and_of_constant_weights() -> None:
    """An error's variance of .25 on a half: a quarter of it everywhere with equal weights, nothing with the right ones."""
    local = stacked()
    constant = StackedPredictor(Stacking("marginal").fit(halves(), CALIBRATION))
    others = [score_pairs(one, TEST) for one in (*halves(), constant)]
    best = score_pairs(local, TEST)
    assert best.crps < 0.75 * min(one.crps for one in others)
    assert best.relative_l2 < 0.6 * min(one.relative_l2 for one in others)
    scales = [VarianceScale().fit(one, CALIBRATION) for one in (local, constant)]
    assert score_pairs(scales[0], TEST).nll < score_pairs(scales[1], TEST).nll - 0.3


@pytest.mark.parametrize("seed", range(5))
def test_where_position_says_nothing_weights_are_those_of_constant_stacking(seed: int) -> None:
    """Which of two predictors is wrong is drawn for each function, and no feature knows it."""
    data = truths(60, seed=100 * seed)
    side = (torch.rand(60, 1, 1, generator=torch.Generator().manual_seed(seed)) < 0.5).double()
    values = torch.cat(
        [data.inputs.values[:, :1], data.inputs.values[:, 1:2] * side, data.inputs.values[:, 2:] * (1 - side)], 1
    )
    data = FieldPairs(Field(values, ENDS), data.outputs)
    members = [Half(everywhere), Half(everywhere, channel=2)]
    found, constant = LocalStacking().fit(members, data), Stacking("marginal").fit(members, data)
    assert found.local is None
    torch.testing.assert_close(found.shares, constant.weights, rtol=1e-9, atol=0)
    u, mixture = found(data.inputs), constant(data.inputs)
    assert isinstance(mixture, MixtureField)
    expected = mixture.moment_matched()
    for got, wanted in ((u.mean, expected.mean), (u.variance, expected.variance)):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-11)


def test_a_predictor_without_weight_has_none_at_any_point() -> None:
    mixture = MixturePredictor([*halves(), Half(everywhere)], torch.tensor([0.3, 0.0, 0.7], dtype=torch.float64))
    found = StackedPredictor(mixture).weights_at(TEST.inputs[:2])
    torch.testing.assert_close(found, mixture.weights[:, None, None, None].expand(3, 2, 1, 33), rtol=0, atol=0)


def flat(weights: Tensor, *, grid: Grid = ENDS, slope: float = 0.0) -> LocalWeights:
    """Constant weights as local ones, or such that differ along the first wave by `slope`."""
    fitted = stacked(grid).local
    assert fitted is not None
    coefficients = torch.zeros_like(fitted.coefficients)
    coefficients[:, :, 0] = weights.log()
    coefficients[:, 0, -16] = slope
    parts = {name: getattr(fitted, name) for name in ("grid", "width", "reference", "slopes", "amplitudes", "standards")}
    return LocalWeights(**parts, coefficients=coefficients)


def test_a_flat_gate_is_the_constant_pool() -> None:
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    mixture = MixturePredictor(halves(), weights)
    found, expected = StackedPredictor(mixture, local=flat(weights))(TEST.inputs), mixture(TEST.inputs).moment_matched()
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.covariance.to_dense(), expected.covariance.to_dense())


def test_moments_are_those_of_the_mixture_at_each_point_and_covariances_those_of_independent_parts() -> None:
    found, inputs = stacked(), TEST.inputs[:3]
    u, weights = found(inputs), found.weights_at(inputs)
    parts = [one(inputs) for one in halves()]
    mean = sum(w * one.mean for w, one in zip(weights, parts, strict=True))
    torch.testing.assert_close(u.mean, mean)
    variance = sum(w * (one.variance + (one.mean - mean).square()) for w, one in zip(weights, parts, strict=True))
    torch.testing.assert_close(u.variance, variance)
    expected = torch.zeros(3, 33, 33, dtype=torch.float64)
    for w, one in zip(weights, parts, strict=True):
        gap, root = (one.mean - mean)[:, 0], w.sqrt()[:, 0]
        own = one.covariance.to_dense() + gap[:, :, None] * gap[:, None]
        expected += root[:, :, None] * own * root[:, None]
    torch.testing.assert_close(u.covariance.to_dense(), expected)
    total = u.apply(integral(ENDS))
    torch.testing.assert_close(total.variance.flatten(), torch.einsum("p,npq,q->n", ENDS.weights, expected, ENDS.weights))


def test_draws_are_operators_with_the_fields_covariance() -> None:
    """Over points and inputs alike: the predictors' draws are independent of each other, and one for all inputs."""
    found, inputs, count = stacked(), TEST.inputs[:2], 2000
    u = found(inputs)
    draws = found._joint_draws(range(count))(inputs.values.expand(count, -1, -1, -1), ENDS)
    deviation, root = (draws - u.mean).flatten(1), u.root.dense().flatten(0, 2)
    expected, error = root @ root.mT, deviation.mT @ deviation / count - root @ root.mT
    sizes = expected.diagonal()
    bound = ((sizes[:, None] * sizes + expected.square()) / count).sqrt()
    assert bool((error.abs() < 5.0 * bound + 1e-12).all())
    torch.testing.assert_close(found.draw(3)(inputs.values), draws[3])
    torch.testing.assert_close(found.draw(3)(inputs.values[1:]), draws[3, 1:])
    assert found.draw(3)(inputs.values[:0]).shape == (0, 1, ENDS.size)
    fine = inputs.resample(ENDS.resized(65))
    torch.testing.assert_close(found.draw(3)(fine.values)[..., ::2], draws[3], rtol=0, atol=0.02)


def test_draws_side_by_side_are_draws() -> None:
    found = stacked()
    values = torch.stack([TEST.inputs.values[:3], TEST.inputs.values[3:6]])
    drawn, u = found._draws_with_field((4, 7))(values, ENDS)
    expected = torch.stack([found.draw(seed)(each) for seed, each in zip((4, 7), values, strict=True)])
    torch.testing.assert_close(drawn, expected)
    torch.testing.assert_close(u.variance, found(Field(values.flatten(0, 1), ENDS)).variance)
    torch.testing.assert_close(found._joint_draws((4, 7))(values, ENDS), expected)


@pytest.mark.parametrize("grid", [ENDS, RING], ids=["ends", "periodic"])
def test_it_is_one_function_on_all_grids(grid: Grid) -> None:
    found, inputs = stacked(grid), truths(3, seed=7, grid=grid).inputs
    assert found.local is not None
    u, fine = found(inputs), inputs.resample(grid.resized(65 if grid is ENDS else 64))
    torch.testing.assert_close(found(fine).mean[..., ::2], u.mean, rtol=0, atol=0.02)
    torch.testing.assert_close(found(fine).std[..., ::2], u.std, rtol=0.02, atol=0.01)
    torch.testing.assert_close(found(inputs, fine.grid).mean[..., ::2], u.mean, rtol=0, atol=0.02)
    some = [3, 16, 30]
    scattered = Grid.scattered(grid.points[some], torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(found.weights_at(inputs, scattered), found.weights_at(inputs)[..., some], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found(inputs, scattered).std, u.std[..., some], rtol=1e-9, atol=1e-12)


def test_ensembles_and_mixtures_take_part_with_their_moments() -> None:
    members = [Half(right, members=6), MixturePredictor([Half(left), Half(left, channel=2)])]
    found = LocalStacking().fit(members, CALIBRATION)
    assert found.local is not None
    u, weights = found(TEST.inputs), found.weights_at(TEST.inputs)
    torch.testing.assert_close(u.mean, sum(w * one(TEST.inputs).mean for w, one in zip(weights, members, strict=True)))
    draws = found._joint_draws(range(400))(TEST.inputs.values[:4].expand(400, -1, -1, -1), ENDS)
    assert float(draws.var(0).sum() / u[:4].variance.sum()) == pytest.approx(1.0, abs=0.25)


def operators() -> list[nn.Module]:
    """An operator of ours, and a module that knows nothing of this library."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [FNO(1, 1, modes=(3,), width=4, depth=1, projection=6, seed=0).double(), ConvStack().double().eval()]


def two_worlds() -> tuple[StackedPredictor, Field]:
    """Last layers of both, with weights that follow the position."""
    ours, theirs = operators()
    data = data_for(ours, Field(smooth(8, RING, seed=1), RING))
    members = [LastLayerLaplace().fit(one, data) for one in (ours, theirs)]
    weights = torch.tensor([0.4, 0.6], dtype=torch.float64)
    mixture = MixturePredictor(members, weights, calibrated_on=torch.arange(3))
    return StackedPredictor(mixture, local=flat(weights, grid=RING, slope=1.5)), Field(smooth(2, RING, seed=5), RING)


def test_foreign_modules_and_files(tmp_path: Path) -> None:
    found, inputs = two_worlds()
    u = found(inputs)
    assert isinstance(u, GaussianField)
    assert found.weights_at(inputs).std(-1).amin() > 0.1
    save(found, tmp_path / "stacked")
    again = load(tmp_path / "stacked", operator=[ConvStack().double()])
    assert isinstance(again, StackedPredictor)
    assert torch.equal(again.shares, found.shares)
    assert torch.equal(again.calibrated_on, found.calibrated_on)
    assert again(inputs).latent.id == u.latent.id
    for name in ("mean", "variance"):
        assert torch.equal(getattr(again(inputs), name), getattr(u, name))
    assert torch.equal(again.draw(3)(inputs.values), found.draw(3)(inputs.values))
    assert torch.equal(copy.deepcopy(found)(inputs).variance, u.variance)


def test_gradients_in_the_inputs_pass_through_the_weights() -> None:
    by_position, inputs = two_worlds()
    found = stacked_along([*by_position.inner.predictors], RING)  # weights that follow slopes and variances, too
    values, along = inputs.values.clone().requires_grad_(), smooth(2, RING, seed=8)

    def total(at: Tensor) -> Tensor:
        u = found(Field(at, RING))
        return u.mean.sin().sum() + u.variance.sum() + u.rsample(seed=1).cos().sum()

    (gradient,) = torch.autograd.grad(total(values), values)
    ahead, behind = (float(total(inputs.values + sign * 1e-5 * along)) for sign in (1.0, -1.0))
    assert float((gradient * along).sum()) == pytest.approx((ahead - behind) / 2e-5, rel=1e-5)


def test_measurements_and_calibration_work_on_it() -> None:
    found = stacked()
    probe = integral(ENDS)
    told = found.condition(TEST.inputs[:4], probe, values=probe(TEST.outputs.values[:4]), noise=1e-4)
    assert bool((told(TEST.inputs[4:6]).variance <= found(TEST.inputs[4:6]).variance + 1e-12).all())
    scaled = VarianceScale().fit(found, TEST)
    assert score_pairs(scaled, TEST).chi2 == pytest.approx(1.0, rel=1e-6)
    assert len(scaled.inner.calibrated_on) == 60


def test_few_functions_scattered_points_or_one_predictor_give_constant_weights() -> None:
    assert LocalStacking().fit(halves(), CALIBRATION[:9]).local is None
    points = Grid.scattered(ENDS.points, ENDS.weights)
    elsewhere = FieldPairs(CALIBRATION.inputs, Field(CALIBRATION.outputs.values, points))
    assert LocalStacking().fit(halves(), elsewhere).local is None
    alone = LocalStacking().fit(halves()[:1], CALIBRATION)
    assert alone.local is None
    torch.testing.assert_close(alone(TEST.inputs).variance, halves()[0](TEST.inputs).variance)


def gate(count: int = 12) -> _Gate:
    return _Gate(
        design=normal(count, 5, 3, seed=1), logs=normal(count, 5, 3, seed=2), weights=torch.full((5,), 0.2, dtype=torch.float64)
    )


def test_the_search_ends_where_automatic_derivatives_vanish() -> None:
    one, penalty = gate(), torch.tensor([0.3, 1.0, math.inf], dtype=torch.float64)
    found = one.maximiser(penalty, start=one.constant())
    assert bool((found[:, 3] == 0).all())
    free = found.clone().requires_grad_()
    score = one.values(free).sum() - 0.5 * (penalty[:2] * free[:, 1:3].square()).sum()
    (gradient,) = torch.autograd.grad(score, free)
    assert gradient[:, :3].abs().max() < 1e-3
    assert one.values(found).mean() > one.values(one.constant()).mean()


def test_penalties_without_end_leave_the_constant_weights() -> None:
    one = gate()
    found = one.maximiser(torch.full((3,), math.inf, dtype=torch.float64), start=one.constant())
    torch.testing.assert_close(found[:, 0].softmax(0), one.constant()[:, 0].softmax(0), rtol=0, atol=1e-3)


def test_values_that_all_predictors_are_certain_of_count_for_nothing() -> None:
    """As at a wall: errors are as the second one states."""
    errors = normal(60, 1, ENDS.size, seed=1) * ENDS.points[:, 0]
    data = FieldPairs(CALIBRATION.inputs, Field(errors, ENDS))
    found = LocalStacking().fit([Certain(3.0), Certain()], data)
    assert found.shares[1] > 0.95


def test_rounding_at_a_wall_is_no_error() -> None:
    """The observed value there is one unit in the last place off."""
    errors = normal(60, 1, ENDS.size, seed=1) * ENDS.points[:, 0]
    errors[:, :, 0] = torch.finfo(torch.float64).eps * errors.abs().amax(2)
    found = LocalStacking().fit([Certain(3.0), Certain()], FieldPairs(CALIBRATION.inputs, Field(errors, ENDS)))
    assert found.shares[1] > 0.95


@pytest.mark.bad_input
class TestBadInput:
    def test_predictors_and_fields(self) -> None:
        with pytest.raises(DataError, match="at least one predictor"):
            LocalStacking().fit([], CALIBRATION)
        with pytest.raises(CalibrationError, match="at least one calibration field"):
            LocalStacking().fit(halves(), CALIBRATION[:0])

    @pytest.mark.parametrize("stacking", [LocalStacking(), Stacking("marginal")])
    def test_a_predictor_that_states_no_variance(self, stacking: LocalStacking | Stacking) -> None:
        with pytest.raises(ArgumentError, match="a positive (predictive )?variance (at|in) every"):
            stacking.fit([*halves(), Certain()], CALIBRATION)

    def test_parts_that_do_not_fit_together(self) -> None:
        weights = torch.tensor([0.4, 0.6], dtype=torch.float64)
        local = flat(weights)
        parts = {name: getattr(local, name) for name in ("grid", "width", "slopes", "amplitudes", "standards", "coefficients")}
        with pytest.raises(ShapeError, match="slopes, standards and coefficients"):
            LocalWeights(**parts, reference=torch.ones(3, dtype=torch.float64) / 3)
        with pytest.raises(ShapeError, match="1 channels and 3 predictors"):
            StackedPredictor(MixturePredictor([*halves(), *halves()[:1]]), local=local)
        with pytest.raises(ArgumentError, match="mean weights > 0"):
            StackedPredictor(MixturePredictor(halves(), torch.tensor([0.0, 1.0])), local=local)
