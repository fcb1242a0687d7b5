"""Stacking: weights against a truth that is known, optimality, and a calibration score that no single predictor beats."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from probneural.calibration import SimultaneousBand, Stacking, VarianceScale
from probneural.calibration.stacking import selected_weights, stacking_weights
from probneural.distributions import DenseRoot, GaussianField, Predictor, PredictorTraits
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.errors import CalibrationError, DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.helpers import PerSetPredictor, generator, normal

GRID = Grid.uniform((8,))
NOISE = 0.01


class Shifted(PerSetPredictor):
    """Predicts each output as its input plus a shift, with one standard deviation for the whole function."""

    def __init__(self, shift: float, *, sd: float = 0.3) -> None:
        variance = torch.full((1,), NOISE, dtype=torch.float64)
        super().__init__(PredictorTraits(in_channels=1, noise=variance, domain=GRID, like=variance))
        self.shift, self.sd = shift, sd

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        mean = inputs.values + self.shift
        return GaussianField(mean, DenseRoot(torch.full((*mean.shape, 1), self.sd).to(mean)), latent="sd", grid=inputs.grid)


def mixed(count: int, *, fraction: float, seed: int = 0) -> FieldPairs:
    """Outputs that are draws of `Shifted(-0.3)`, and of `Shifted(0.3)` in the given fraction of functions."""
    inputs = normal(count, 1, 8, seed=seed)
    side = torch.rand(count, 1, 1, generator=generator(seed + 1)) < fraction
    level = torch.where(side, 0.3, -0.3) + 0.3 * normal(count, 1, 1, seed=seed + 2)
    return FieldPairs(Field(inputs, GRID), Field(inputs + level + NOISE**0.5 * normal(count, 1, 8, seed=seed + 3), GRID))


def densities(predictors: list[Predictor], data: FieldPairs) -> Tensor:
    return torch.stack([one(data.inputs).log_prob(data.outputs.values, noise=NOISE).flatten() for one in predictors], -1)


PAIR: list[Predictor] = [Shifted(0.3), Shifted(-0.3)]


@pytest.mark.parametrize("fraction", [0.2, 0.5])
def test_the_true_mixing_weight_is_found(fraction: float) -> None:
    """Within four standard errors, by the Fisher information of the weight."""
    data = mixed(300, fraction=fraction)
    weights = Stacking().fit(PAIR, data).weights
    shares = densities(PAIR, data).exp()
    score = (shares[:, 0] - shares[:, 1]) / (shares @ torch.tensor([fraction, 1 - fraction]).double())
    assert abs(float(weights[0]) - fraction) <= 4 * float(score.square().sum().rsqrt())
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-12)


def test_a_dominating_predictor_gets_all_weight() -> None:
    data = mixed(200, fraction=1.0)
    weights = Stacking().fit([Shifted(-3.0), Shifted(0.3), Shifted(0.3, sd=3.0)], data).weights
    assert float(weights[1]) > 0.97
    assert float(weights[0]) == 0.0


def test_no_single_predictor_nor_other_weights_have_a_better_calibration_score() -> None:
    predictors = [Shifted(0.3), Shifted(-0.3), Shifted(0.0, sd=0.5), Shifted(0.1, sd=0.05)]
    data = mixed(100, fraction=0.4, seed=5)
    stacked = Stacking().fit(predictors, data)
    logs = densities(predictors, data)

    def total(weights: Tensor) -> float:
        return float(torch.logsumexp(logs + weights.log(), 1).mean())

    best = total(stacked.weights)
    others = torch.distributions.Dirichlet(torch.ones(4).double())
    torch.manual_seed(0)
    assert all(total(one) <= best + 1e-7 for one in (*torch.eye(4).double(), *others.sample((50,))))
    reported = stacked(data.inputs).log_prob(data.outputs.values, noise=stacked.noise).mean()
    assert float(reported) == pytest.approx(best, abs=1e-10)


class Rough(PerSetPredictor):
    """Predicts each output as its input, with independent errors at every point."""

    def __init__(self) -> None:
        super().__init__(PAIR[0].traits)

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        root = torch.eye(8).double().expand(*inputs.values.shape, 8)
        return GaussianField(inputs.values, DenseRoot(root), latent="rough", grid=inputs.grid)


def pool_density(predictors: list[Predictor], weights: Tensor, data: FieldPairs) -> float:
    """Mean joint log density under the Gaussian with the mean and covariance of the mixture, by dense algebra."""
    fields = [one(data.inputs) for one in predictors]
    mean = sum(weight * u.mean[:, 0] for weight, u in zip(weights, fields, strict=True))
    covariance = NOISE * torch.eye(8).double() - mean[:, :, None] * mean[:, None, :]
    for weight, u in zip(weights, fields, strict=True):
        rows, own = u.root.dense()[:, 0], u.mean[:, 0]
        covariance = covariance + weight * (rows @ rows.mT + own[:, :, None] * own[:, None, :])
    return float(torch.distributions.MultivariateNormal(mean, covariance).log_prob(data.outputs.values[:, 0]).mean())


@pytest.mark.parametrize(("fraction", "others"), [(1.0, PAIR[:1]), (0.5, PAIR)])
def test_a_gaussian_pool_leaves_out_what_widens_it(fraction: float, others: list[Predictor]) -> None:
    """One function in twenty is rougher than stated: a mixture gains by a rough predictor, its Gaussian field loses by it."""
    data, predictors = mixed(200, fraction=fraction), [*others, Rough()]
    is_rough = torch.arange(200)[:, None, None] % 20 == 0
    values = data.outputs.values + torch.where(is_rough, 0.25 * normal(200, 1, 8, seed=9), 0.0)
    data = FieldPairs(data.inputs, Field(values, GRID))
    joint, gaussian = (Stacking(score).fit(predictors, data).weights for score in ("joint", "gaussian"))
    assert 0.01 < float(joint[-1]) < 0.1
    assert float(gaussian[-1]) == 0.0
    torch.testing.assert_close(gaussian[:-1], joint[:-1] / joint[:-1].sum())
    assert pool_density(predictors, gaussian, data) > pool_density(predictors, joint, data) + 1.0


def test_no_part_of_a_gaussian_pool_is_better() -> None:
    predictors = [Shifted(0.3), Shifted(-0.3), Shifted(0.0, sd=0.5), Rough()]
    data = mixed(100, fraction=0.4, seed=5)
    joint, gaussian = (Stacking(score).fit(predictors, data).weights for score in ("joint", "gaussian"))
    best = pool_density(predictors, gaussian, data)
    assert best >= pool_density(predictors, joint, data) - 1e-12
    assert all(best >= pool_density(predictors, one, data) - 1e-9 for one in torch.eye(4).double())
    kept = gaussian > 0
    torch.testing.assert_close(gaussian[kept], joint[kept] / joint[kept].sum(), rtol=1e-9, atol=1e-12)


def test_one_predictor_may_be_better_than_a_gaussian_pool_that_no_step_improves() -> None:
    """Between two that are as wrong on either side: without one of these the mean is off, and without both it is best."""
    predictors, data = [Shifted(0.0, sd=0.45), Shifted(2.0), Shifted(-2.0)], mixed(100, fraction=0.5)
    weights = torch.tensor([0.2, 0.4, 0.4], dtype=torch.float64)
    whole = pool_density(predictors, weights, data)
    for kept in (torch.tensor(rows, dtype=torch.float64) for rows in ([0, 1, 1], [1, 0, 1], [1, 1, 0])):
        assert pool_density(predictors, kept * weights / (kept * weights).sum(), data) < whole
    assert selected_weights(MixturePredictor(predictors, weights), data).tolist() == [1.0, 0.0, 0.0]


def test_optimality_conditions_hold_where_densities_lie_far_apart() -> None:
    """Weights that are positive have derivative 1, others at most that; logs of whole functions differ by hundreds of nats."""
    logs = 300.0 * normal(60, 5, seed=3)
    logs[:, 4] -= 2000.0
    counts = torch.full((60,), 1 / 60, dtype=torch.float64)
    weights = stacking_weights(logs, counts)
    responsibilities = torch.softmax(logs + weights.log(), 1)
    slope = counts @ (responsibilities / weights.clamp_min(1e-300))
    assert float((slope[weights > 0] - 1).abs().max()) <= 1e-4
    assert float(weights[4]) == 0.0


@pytest.mark.parametrize("components", [29, 57])
def test_weights_of_nearly_equal_components_are_found(components: int) -> None:
    """A grid of normal densities, as of scales: 10,000 steps along gradients leave more than 1e-6 nats."""
    values = 0.1 + 0.3 * normal(200, seed=6)
    logs = -0.5 * ((values[:, None] - torch.linspace(-1.4, 1.4, components, dtype=torch.float64)) / 0.15).square()
    weights = stacking_weights(logs, torch.full((200,), 1 / 200, dtype=torch.float64))
    mixed = torch.logsumexp(logs + weights.log(), 1)
    assert float((logs - mixed[:, None]).exp().mean(0).max()) - 1.0 <= 1e-7
    assert int((weights > 0).sum()) <= 12  # of a mixture that is most likely, few components are needed


def test_a_stack_is_calibrated_and_remembers_its_data() -> None:
    data = mixed(60, fraction=0.5)
    stacked = Stacking().fit(PAIR, data)
    assert isinstance(stacked, MixturePredictor)
    assert len(stacked.calibrated_on) == 60
    other = mixed(60, fraction=0.5, seed=9)
    scaled = VarianceScale(local=False).fit(stacked, other)
    assert isinstance(scaled(data.inputs), GaussianField)
    for used in (data, other):  # weights, and with them the scaled variances, were fitted on the former
        with pytest.raises(CalibrationError, match="60 of 60 used for scaling"):
            SimultaneousBand(0.9).fit(scaled, used)


@pytest.mark.bad_input
class TestBadInput:
    def test_predictors_and_fields(self) -> None:
        data = mixed(5, fraction=0.5)
        with pytest.raises(DataError, match="1 or more predictors"):
            Stacking().fit([], data)
        with pytest.raises(CalibrationError, match="1 or more calibration fields"):
            Stacking().fit(PAIR, data[:0])

    def test_observations_without_density(self) -> None:
        with pytest.raises(CalibrationError, match="a finite log density"):
            stacking_weights(torch.full((2, 2), -torch.inf, dtype=torch.float64), torch.full((2,), 0.5, dtype=torch.float64))
