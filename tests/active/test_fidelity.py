"""Resolution as fidelity, and value per cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from botorch.acquisition import qUpperConfidenceBound
from botorch.acquisition.cost_aware import GenericCostAwareUtility, InverseCostWeightedUtility
from botorch.models.cost import AffineFidelityCostModel
from botorch.optim import optimize_acqf_mixed
from torch import Tensor

from probneural.active import (
    CostAware,
    Fidelity,
    FieldInformationGain,
    FieldIntegratedVariance,
    OperatorModel,
    discretisation_variance,
)
from probneural.active.information.acquisition import FieldAcquisition
from probneural.active.information.fidelity import Resampling
from probneural.active.information.observation import observation_weights
from probneural.distributions import DenseRoot, FieldDistribution, GaussianField
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.functionals import integral, sensors
from probneural.grids import Grid
from probneural.heads import LastLayerLaplace
from probneural.operators import LinearRegression
from probneural.problems import Heat
from tests.active.predictors import INPUT_GRID, FeaturePredictor, certain, encode, feature_root

FINE = Grid.uniform((24,))
COARSE = FINE.resized((10,))
FIDELITY = Fidelity((COARSE, FINE), costs=(1.0, 4.0), variances=(0.03, 0.0))


def wide_root(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
    """A latent of more dimensions than the fields have values."""
    generator = torch.Generator().manual_seed(31)
    factor = 0.3 * torch.randn(1, mean.shape[1], features.shape[2], 80, generator=generator, dtype=torch.float64)
    return GaussianField(mean, DenseRoot(features[:, None] @ factor), latent="wide", grid=grid)


OUTPUTS = {"moments": feature_root, "rows": wide_root}


def designs(*shape: int, seed: int = 4) -> Tensor:
    return torch.rand(*shape, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def at(X: Tensor, *values: float) -> Tensor:
    """Designs with a fidelity each, in turn."""
    return torch.cat([X, torch.tensor(values).double().expand(*X.shape[:-2], -1)[..., None]], dim=-1)


def model_of(output: Callable[..., FieldDistribution]) -> OperatorModel:
    return OperatorModel(FeaturePredictor(output, out_channels=2), encode=encode, functional=integral(INPUT_GRID))


def dense_gain(model: OperatorModel, X: Tensor, fidelity: Fidelity) -> Tensor:
    """Entropies, with the matrix of sensors at the coarse grid's points and the noise of each resolution."""
    field = model.predict(encode(X[:, :-1]), fidelity.finest)
    assert isinstance(field, GaussianField)
    rows, noises = [], []
    for index, level in enumerate(X[:, -1] < 1.0):
        root = field.root.dense()[index]
        grid = COARSE if level else FINE
        if level:
            matrix = sensors(FINE, COARSE.points)(torch.eye(FINE.size).double()).mT
            root = torch.einsum("qp,cpk->cqk", matrix, root)
        variance = model.predict.noise.double() + (0.03 if level else 0.0)
        rows.append(root.flatten(0, 1))
        # the predictor does not say how many observations a function is: one for each point
        noises.append((variance[:, None] / (grid.size * grid.weights)).flatten())
    joint, noise = torch.cat(rows), torch.cat(noises)
    return 0.5 * (torch.linalg.slogdet(joint @ joint.mT + torch.diag(noise))[1] - noise.log().sum())


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("levels", [(10 / 24, 10 / 24), (1.0, 1.0), (10 / 24, 1.0)], ids=["coarse", "fine", "mixed"])
def test_coarse_fields_are_functionals_of_fine_ones_with_more_noise(name: str, levels: tuple[float, float]) -> None:
    model = model_of(OUTPUTS[name])
    X = at(designs(3, 2), *levels)
    score = FieldInformationGain(model, fidelity=FIDELITY)
    reference = torch.stack([dense_gain(model, one, FIDELITY) for one in X])
    torch.testing.assert_close(score(X), reference, rtol=1e-9, atol=1e-9)
    score.set_X_pending(at(designs(3, seed=5), 1.0, 10 / 24, 10 / 24))
    both = torch.cat([X, score.X_pending.expand(3, -1, -1)], dim=1)
    reference = torch.stack([dense_gain(model, one, FIDELITY) for one in both])
    reference = reference - dense_gain(model, score.X_pending, FIDELITY)
    torch.testing.assert_close(score(X), reference, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_finest_resolution_alone_is_no_fidelity(name: str) -> None:
    model, X = model_of(OUTPUTS[name]), designs(3, 2)
    plain = FieldInformationGain(model, grid=FINE)(X)
    torch.testing.assert_close(FieldInformationGain(model, fidelity=FIDELITY)(at(X, 1.0, 1.0)), plain)


def test_gradients_in_designs_agree_with_differences() -> None:
    model = model_of(feature_root)
    targets = encode(designs(4, seed=6))
    for score in (
        FieldInformationGain(model, fidelity=FIDELITY),
        FieldIntegratedVariance(model, targets=targets, fidelity=FIDELITY),
        CostAware(FieldInformationGain(model, fidelity=FIDELITY), FIDELITY.cost_model()),
    ):
        X = at(designs(2, 2), 10 / 24, 1.0).requires_grad_()
        (gradient,) = torch.autograd.grad(score(X).sum(), X)
        assert torch.equal(gradient[..., -1], torch.zeros(2, 2).double())
        direction = torch.nn.functional.pad(designs(2, 2, seed=7) - 0.5, (0, 1))
        with torch.no_grad():
            numeric = (score(X + 1e-6 * direction) - score(X - 1e-6 * direction)).sum() / 2e-6
        assert abs((gradient * direction).sum() - numeric) <= 1e-7 * numeric.abs() + 1e-8


HEAT = Heat(dimension=1)
PAIRS = HEAT.sample(20, resolution=64, seed=0, dtype=torch.float64)


def heat_model() -> tuple[OperatorModel, FieldAcquisition]:
    """Its solutions are band limited, so that a grid of 64 points holds all that one of 128 does."""
    predict = LastLayerLaplace(noise=1e-4).fit(LinearRegression.fitted(PAIRS), PAIRS)
    fine = PAIRS.inputs.grid.resized((128,))
    model = OperatorModel(predict, encode=lambda X: HEAT.encode(X, grid=fine), functional=integral(fine))
    return model, FieldInformationGain(model)


def test_without_discretisation_error_resolutions_are_worth_the_same() -> None:
    model, score = heat_model()
    fine = model.functional.grid
    X = torch.rand(2, 1, HEAT.design_dim, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    reference = score(X)
    exact = Fidelity((fine.resized((64,)), fine), costs=(1.0, 1.0), variances=(0.0, 0.0))
    tenfold = Fidelity((fine.resized((64,)), fine), costs=(1.0, 1.0), variances=(9e-4, 0.0))
    torch.testing.assert_close(FieldInformationGain(model, fidelity=exact)(at(X, 0.5)), reference, rtol=1e-6, atol=0.0)
    found = FieldInformationGain(model, fidelity=tenfold)
    louder = FieldInformationGain(model, noise=1e-3)(X)
    torch.testing.assert_close(found(at(X, 0.5)), louder, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(found(at(X, 1.0)), reference, rtol=1e-9, atol=0.0)
    assert (louder < reference).all()


def test_value_per_cost_is_botorchs() -> None:
    model = model_of(feature_root)
    gain = FieldInformationGain(model, fidelity=FIDELITY)
    X = at(designs(3, 2), 10 / 24, 1.0)
    expected = gain(X) / 5.0
    torch.testing.assert_close(CostAware(gain, FIDELITY.cost_model())(X), expected)
    torch.testing.assert_close(CostAware(gain, InverseCostWeightedUtility(FIDELITY.cost_model()))(X), expected)
    affine = AffineFidelityCostModel({2: 2.0}, fixed_cost=1.0)
    torch.testing.assert_close(CostAware(gain, affine)(X), gain(X) / (2.0 + 2.0 * 34 / 24), rtol=1e-6, atol=0.0)
    difference = GenericCostAwareUtility(lambda designs, values: values - 0.1 * designs[..., -1].sum(-1))
    torch.testing.assert_close(CostAware(gain, difference)(X), gain(X) - 0.1 * 34 / 24)
    pending = at(designs(2, seed=9), 1.0, 1.0)
    weighed = CostAware(gain, FIDELITY.cost_model())
    assert weighed.X_pending is None
    weighed.set_X_pending(pending)
    assert torch.equal(weighed.X_pending, pending)
    alone = FieldInformationGain(model, fidelity=FIDELITY, X_pending=pending)
    torch.testing.assert_close(weighed(X), alone(X) / 5.0)
    plain = OperatorModel(model.predict, encode=encode, functional=integral(INPUT_GRID)).subset_output([0])
    assert CostAware(qUpperConfidenceBound(plain, beta=1.0), affine).X_pending is None


@pytest.mark.parametrize(("variance", "cost", "chosen"), [(1e-4, 0.25, 10 / 24), (1e3, 0.25, 1.0), (1e-4, 3.99, 1.0)])
def test_the_optimiser_takes_coarse_fields_where_they_pay(variance: float, cost: float, chosen: float) -> None:
    """Points are observations here, and a coarse grid has fewer, so that at equal cost the fine one is worth more."""
    fidelity = Fidelity((COARSE, FINE), costs=(cost, 4.0), variances=(variance, 0.0))
    score = CostAware(FieldInformationGain(model_of(feature_root), fidelity=fidelity), fidelity.cost_model())
    bounds = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]).double()
    found, value = optimize_acqf_mixed(
        score,
        bounds=bounds,
        q=1,
        num_restarts=2,
        raw_samples=8,
        fixed_features_list=fidelity.fixed_features(2),
        options={"seed": 0, "maxiter": 20},
    )
    assert abs(float(found[0, -1]) - chosen) <= 1e-6
    (other,) = (float(level) for level in fidelity.values if abs(float(level) - chosen) > 1e-6)
    assert score(torch.cat([found[:, :-1], torch.tensor([[other]]).double()], dim=1)[None])[0] < value


def test_resampling_is_that_of_fields() -> None:
    fine = Grid.uniform((12, 9), lengths=(1.0, 2.0), periodic=(True, False))
    coarse = fine.resized((7, 8))
    functional = Resampling(fine, coarse)
    values = torch.randn(3, 2, 12, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    numbers = torch.randn(3, 2, 56, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert functional.size == 56
    torch.testing.assert_close(functional(values), Field(values, fine).resample(coarse).values.flatten(2))
    torch.testing.assert_close((functional(values) * numbers).sum(), (values * functional.adjoint(numbers)).sum())


def test_discretisation_variance_is_the_mean_square_error() -> None:
    coarse, fine = (HEAT.sample(5, resolution=n, seed=3, dtype=torch.float64).outputs for n in (64, 128))
    assert discretisation_variance(coarse, fine).item() <= 1e-20
    error = 0.1 * torch.sin(2 * torch.pi * coarse.grid.points[:, 0])
    found = discretisation_variance(Field(coarse.values + error, coarse.grid), fine)
    torch.testing.assert_close(found, torch.tensor([0.005]).double())


def test_costs_and_levels_follow_the_last_coordinate() -> None:
    X = at(designs(3, 2), 10 / 24, 1.0)
    assert FIDELITY.levels(X[..., -1]).tolist() == [[0, 1]] * 3
    assert FIDELITY.levels(X[..., -1].float()).tolist() == [[0, 1]] * 3
    assert FIDELITY.cost_model()(X).tolist() == [[[1.0], [4.0]]] * 3
    per_channel = Fidelity((COARSE, FINE), costs=(1.0, 4.0), variances=torch.tensor([[0.1, 0.2], [0.0, 0.0]]))
    assert per_channel.discretisation.shape == (2, 2)
    assert observation_weights(FeaturePredictor(certain), FINE).shape == (1, 24)


@pytest.mark.bad_input
def test_bad_input() -> None:
    good = {"costs": (1.0, 2.0), "variances": (0.1, 0.0)}
    scattered = Grid.scattered(torch.rand(4, 1).double(), torch.ones(4).double())
    for grids, message in (
        ((COARSE, scattered), "uniform"),
        ((), "uniform"),
        ((COARSE, Grid.uniform((24,), lengths=2.0)), "one domain"),
        ((FINE, COARSE), "increasing"),
        ((FINE, FINE), "increasing"),
    ):
        with pytest.raises(GridError, match=message):
            Fidelity(grids, **good)
    for costs in ((0.0, 1.0), (1.0, float("nan")), (-1.0, 1.0)):
        with pytest.raises(ArgumentError, match="above 0 as costs"):
            Fidelity((COARSE, FINE), costs=costs, variances=(0.1, 0.0))
    for variances in ((-0.1, 0.0), (float("nan"), 0.0)):
        with pytest.raises(ArgumentError, match="variances"):
            Fidelity((COARSE, FINE), costs=(1.0, 2.0), variances=variances)
    with pytest.raises(ArgumentError, match="0 on the finest"):
        Fidelity((COARSE, FINE), costs=(1.0, 2.0), variances=(0.0, 0.5))
    with pytest.raises(GridError, match="coarse ones first"):
        discretisation_variance(*(HEAT.sample(2, resolution=n, seed=3).outputs for n in (128, 64)))
    for costs, variances in (((1.0,), (0.1, 0.0)), ((1.0, 2.0), (0.1,)), ((1.0, 2.0), torch.zeros(2, 1, 1))):
        with pytest.raises(ShapeError, match="for each of 2 grids"):
            Fidelity((COARSE, FINE), costs=costs, variances=variances)
    with pytest.raises(ArgumentError, match="fixed_features"):
        FieldInformationGain(model_of(feature_root), fidelity=FIDELITY)(at(designs(1, 1), 0.7))
    with pytest.raises(ArgumentError, match="cost model"):
        CostAware(FieldInformationGain(model_of(feature_root)), 3.0)
    with pytest.raises(GridError, match="resized"):
        Resampling(FINE, Grid.uniform((8,), lengths=3.0))
    with pytest.raises(GridError, match="resized"):
        Resampling(FINE, scattered)
    for coarse in (PAIRS.outputs[:2], PAIRS.outputs[:0]):
        with pytest.raises(DataError, match="same inputs"):
            discretisation_variance(coarse, PAIRS.outputs[:3] if len(coarse) else coarse)
