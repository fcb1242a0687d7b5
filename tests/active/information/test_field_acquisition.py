"""Acquisition functions over whole fields, against dense Gaussian processes, refitting, and finite differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from botorch.acquisition.active_learning import qNegIntegratedPosteriorVariance
from botorch.optim import optimize_acqf
from torch import Tensor

from probneural.active import FieldInformationGain, FieldIntegratedVariance, OperatorModel
from probneural.active.information import acquisition
from probneural.active.information.acquisition import FieldAcquisition
from probneural.active.information.observation import observation_weights
from probneural.curvature.jacobian_root import JacobianRoot
from probneural.distributions import DenseRoot, EmpiricalField, FeatureRoot, FieldDistribution, GaussianField, Predictor
from probneural.errors import ArgumentError, DataError, LatentError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.functionals import integral, sensors
from probneural.grids import Grid
from probneural.heads import KernelOperator, Laplace, LastLayerLaplace, LowRank
from probneural.heads.laplace import laplace as laplace_module
from probneural.operators import FNO, LinearRegression
from probneural.pairs import FieldPairs
from probneural.problems import Burgers, Heat
from tests.active.predictors import FINE_GRID, INPUT_GRID, FeaturePredictor, certain, dense_root, encode, feature_root, members

RANK = 60
CALLS = itertools.count()


def wide_root(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
    """A latent of more dimensions than the fields have values."""
    generator = torch.Generator().manual_seed(31)
    factor = 0.4 * torch.randn(1, mean.shape[1], features.shape[2], RANK, generator=generator, dtype=torch.float64)
    return GaussianField(mean, DenseRoot(features[:, None] @ factor), latent="wide", grid=grid)


def restless(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
    """Another latent in every call."""
    field = dense_root(features, mean, grid)
    return GaussianField(mean, field.root, latent=f"call {next(CALLS)}", grid=grid)


OUTPUTS = {"feature root": feature_root, "dense root": dense_root, "wide root": wide_root, "members": members}
every_output = pytest.mark.parametrize("name", OUTPUTS)


def designs(*shape: int, seed: int = 4, dim: int = 2) -> Tensor:
    return torch.rand(*shape, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def model_of(output: Callable[..., FieldDistribution], **options: Any) -> OperatorModel:
    return OperatorModel(FeaturePredictor(output, out_channels=2), encode=encode, functional=integral(INPUT_GRID), **options)


def dense_covariance(predictor: Predictor, inputs: Field, grid: Grid) -> Tensor:
    """The joint covariance of all values of the fields, `(n c p, n c p)`."""
    field = predictor(inputs, grid)
    if isinstance(field, EmpiricalField):
        deviations = (field.samples - field.samples.mean(0)).flatten(1).double()
        return deviations.mT @ deviations / len(deviations)
    assert isinstance(field, GaussianField)
    rows = field.root.dense().flatten(0, 2).double()
    return rows @ rows.mT


def dense_gain(predictor: Predictor, inputs: Field, grid: Grid) -> Tensor:
    """Entropy of noisy fields less that of noise."""
    noise = observation_weights(predictor, grid).reciprocal().flatten().repeat(len(inputs))
    covariance = dense_covariance(predictor, inputs, grid) + torch.diag(noise)
    return 0.5 * (torch.linalg.slogdet(covariance)[1] - noise.log().sum())


def dense_reduction(
    predictor: Predictor, inputs: Field, targets: Field, grid: Grid, distribution: Tensor, channels: Tensor
) -> Tensor:
    """What Gaussian process conditioning takes off the variance of the targets, integrated."""
    together = Field(torch.cat([inputs.values, targets.values]), inputs.grid)
    covariance = dense_covariance(predictor, together, grid)
    noise = observation_weights(predictor, grid).reciprocal().flatten().repeat(len(inputs))
    seen = len(noise)
    gain = torch.linalg.solve(covariance[:seen, :seen] + torch.diag(noise), covariance[:seen, seen:])
    reductions = (covariance[seen:, :seen] * gain.mT).sum(1).reshape(len(targets), -1, grid.size)
    return torch.einsum("ncp,n,c,p->", reductions, distribution / distribution.sum(), channels, grid.weights / grid.volume)


TARGETS = encode(designs(5, seed=9))
WEIGHTS = torch.tensor([1.0, 2.0, 0.0, 3.0, 0.5]).double()
CHANNELS = torch.tensor([1.0, 0.3]).double()


def score_of(kind: str, model: OperatorModel, **options: Any) -> FieldAcquisition:
    if kind == "gain":
        return FieldInformationGain(model, **options)
    return FieldIntegratedVariance(model, targets=TARGETS, target_weights=WEIGHTS, channel_weights=CHANNELS, **options)


def reference_of(kind: str, predictor: Predictor, X: Tensor, grid: Grid) -> Tensor:
    if kind == "gain":
        return dense_gain(predictor, encode(X), grid)
    return dense_reduction(predictor, encode(X), TARGETS, grid, WEIGHTS, CHANNELS)


every_kind = pytest.mark.parametrize("kind", ["gain", "variance"])


@every_kind
@every_output
@pytest.mark.parametrize("grid", [None, FINE_GRID], ids=["inputs' grid", "another grid"])
@pytest.mark.parametrize("q", [1, 3])
def test_values_agree_with_a_dense_gaussian_process(kind: str, name: str, grid: Grid | None, q: int) -> None:
    model = model_of(OUTPUTS[name])
    X = designs(4, q)
    value = score_of(kind, model, grid=grid)(X)
    reference = torch.stack([reference_of(kind, model.predictor, one, grid or INPUT_GRID) for one in X])
    torch.testing.assert_close(value, reference, rtol=1e-9, atol=1e-9)
    assert (value > 1e-3).all()


@every_kind
@every_output
def test_pending_designs_are_conditioned_on(kind: str, name: str) -> None:
    model = model_of(OUTPUTS[name])
    pending, X = designs(4, seed=21), designs(3, 2, seed=22)
    score = score_of(kind, model)
    alone = score(X)
    score.set_X_pending(pending)
    before = reference_of(kind, model.predictor, pending, INPUT_GRID)
    reference = torch.stack([reference_of(kind, model.predictor, torch.cat([one, pending]), INPUT_GRID) for one in X]) - before
    torch.testing.assert_close(score(X), reference, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(score_of(kind, model, X_pending=pending)(X), reference, rtol=1e-8, atol=1e-9)
    score.set_X_pending(None)
    torch.testing.assert_close(score(X), alone)
    score.set_X_pending(pending[:0])
    torch.testing.assert_close(score(X), alone)


@every_kind
@pytest.mark.parametrize("name", ["feature root", "dense root", "wide root"])
def test_what_the_model_has_observed_is_known(kind: str, name: str) -> None:
    """Observations of fields first, then whole fields: one Gaussian process that sees both."""
    probe = sensors(INPUT_GRID, [[0.2], [0.7]])
    model = OperatorModel(FeaturePredictor(OUTPUTS[name], out_channels=2), encode=encode, functional=probe, noise=0.05)
    first, X = designs(3, seed=23), designs(2, 2, seed=24)
    known = model.condition_on_observations(first, torch.zeros(3, 4).double())
    known = known.condition_on_observations(first[:1] / 2, torch.ones(1, 4).double())
    seen = torch.cat([first, first[:1] / 2])
    everything = encode(torch.cat([seen, *X, *(designs(5, seed=9)[None])]))
    field = model.predictor(everything)
    assert isinstance(field, GaussianField)
    rows = field.root.dense().flatten(1, 2)
    read = field.apply(probe).root.dense().flatten(1, 2)[:4].flatten(0, 1)
    prior = torch.linalg.inv(torch.eye(rows.shape[2]).double() + read.mT @ read / 0.05)
    weights = observation_weights(model.predictor, INPUT_GRID).flatten().sqrt()
    whitened = (rows * weights[:, None])[4:8].reshape(2, -1, rows.shape[2])
    joint = torch.linalg.inv(torch.linalg.inv(prior) + whitened.mT @ whitened)
    if kind == "gain":
        reference = 0.5 * (torch.linalg.slogdet(prior)[1] - torch.linalg.slogdet(joint)[1])
    else:
        share = (CHANNELS[:, None] * INPUT_GRID.weights).flatten()
        moments = torch.einsum("n,p,npk,npl->kl", WEIGHTS / WEIGHTS.sum(), share, rows[8:], rows[8:])
        reference = ((prior - joint) * moments).sum((-2, -1))
    torch.testing.assert_close(score_of(kind, known)(X), reference, rtol=1e-8, atol=1e-9)
    assert (score_of(kind, known)(X) < score_of(kind, model)(X)).all()


@every_kind
def test_certainty_is_worth_nothing(kind: str) -> None:
    X = designs(3, 2).requires_grad_()
    values = score_of(kind, model_of(certain))(X)
    assert torch.equal(values, torch.zeros(3).double())
    (gradient,) = torch.autograd.grad(values.sum(), X)
    assert torch.equal(gradient, torch.zeros_like(X))


@every_kind
@every_output
def test_t_batches_do_not_know_of_each_other(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    score = score_of(kind, model_of(OUTPUTS[name]))
    X = designs(2, 3, 2).requires_grad_()
    (reference,) = torch.autograd.grad(score(X.flatten(0, 1)).sum(), X)
    values = score(X)
    assert values.shape == (2, 3)
    monkeypatch.setattr(acquisition, "_POINTS", 1)
    torch.testing.assert_close(score(X), values, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(score(X).sum(), X)
    torch.testing.assert_close(gradient, reference, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(score(X[0, 0]), values[0, :1], rtol=1e-12, atol=1e-12)
    assert score(X.float()).dtype == torch.float32


# Real heads: a tiny Fourier neural operator, in double precision so that differences of its values mean something.

BURGERS = Burgers(viscosity=0.1)
TRAIN = BURGERS.sample(24, resolution=64, seed=0, dtype=torch.float64)
GRID = TRAIN.inputs.grid


def burgers_encode(X: Tensor) -> Field:
    return BURGERS.encode(X, grid=GRID)


@cache
def head(name: str) -> Predictor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        operator = FNO(1, 1, modes=(3,), width=4, depth=1, projection=6).double()
    operator.fit_normalizers(TRAIN)
    if name == "last layer":
        return LastLayerLaplace(noise=1e-3, prior_precision=1.0).fit(operator, TRAIN)
    return Laplace(LowRank(rank=4), noise=1e-3, prior_precision=0.1).fit(operator, TRAIN[:4])


ROOTS = {"feature root": ("last layer", 0), "dense root of a Jacobian": ("low rank", 2**25), "Jacobian root": ("low rank", 0)}
every_root = pytest.mark.parametrize("root", ROOTS)


def prepared(root: str, monkeypatch: pytest.MonkeyPatch, grid: Grid) -> OperatorModel:
    name, materialised = ROOTS[root]
    monkeypatch.setattr(laplace_module, "_MATERIALISED", materialised)
    model = OperatorModel(head(name), encode=burgers_encode, functional=integral(grid))
    kinds = {"feature root": FeatureRoot, "dense root of a Jacobian": DenseRoot, "Jacobian root": JacobianRoot}
    assert isinstance(model.predictor(TRAIN.inputs[:1], grid).root, kinds[root])  # type: ignore[union-attr]
    return model


def scores(model: OperatorModel, **options: Any) -> dict[str, FieldAcquisition]:
    targets = BURGERS.sample(6, resolution=64, seed=5, dtype=torch.float64).inputs
    return {
        "gain": FieldInformationGain(model, **options),
        "variance": FieldIntegratedVariance(model, targets=targets, **options),
    }


@every_root
def test_gradients_in_the_coefficients_agree_with_differences(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = prepared(root, monkeypatch, GRID.resized((8,)))
    X = 0.2 + 0.6 * designs(1, 2, seed=14, dim=BURGERS.design_dim)
    directions = designs(2, 1, 2, seed=15, dim=BURGERS.design_dim) - 0.5
    step = 1e-5
    for name, score in scores(model).items():
        leaf = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(score(leaf).sum(), leaf)
        for direction in directions:
            with torch.no_grad():
                numeric = (score(X + step * direction) - score(X - step * direction)).sum() / (2 * step)
            along = (gradient * direction).sum()
            assert numeric.abs() > 1e-5 * score(X).sum(), name
            assert abs(along - numeric) <= 1e-5 * numeric.abs() + 1e-8 * score(X).sum(), name


@pytest.mark.parametrize("name", ["last layer", "low rank"])
def test_values_agree_with_refitting(name: str) -> None:
    """The head's own closed-form update: variance before less variance after, and the evidence's normalising constant."""
    predictor = head(name)
    model = OperatorModel(predictor, encode=burgers_encode, functional=integral(GRID))
    X = designs(2, 3, seed=16, dim=BURGERS.design_dim)
    by_name = scores(model)
    targets = BURGERS.sample(6, resolution=64, seed=5, dtype=torch.float64).inputs
    share = GRID.weights / GRID.volume
    now = (predictor(targets).variance.double() @ share).sum(1).mean()
    torch.testing.assert_close(by_name["variance"].variance, now, rtol=1e-9, atol=0.0)  # type: ignore[attr-defined]
    for index, one in enumerate(X):
        inputs = burgers_encode(one)
        updated = predictor.update(FieldPairs(inputs, BURGERS.solve(inputs)))  # type: ignore[attr-defined]
        after = (updated(targets).variance.double() @ share).sum(1).mean()
        torch.testing.assert_close(by_name["variance"](X)[index], now - after, rtol=1e-6, atol=1e-9 * float(now))
        torch.testing.assert_close(by_name["gain"](X)[index], dense_gain(predictor, inputs, GRID), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["gain", "variance"])
def test_optimised_input_functions_beat_random_ones(name: str) -> None:
    """BoTorch's optimiser over the coefficients of the problem's input functions, by gradients through the operator."""
    score = scores(OperatorModel(head("last layer"), encode=burgers_encode, functional=integral(GRID)))[name]
    dim = BURGERS.design_dim
    with torch.no_grad():
        random = score(designs(200, 1, seed=18, dim=dim))
    cube = torch.tensor([[0.0], [1.0]]).double().repeat(1, dim)
    best, value = optimize_acqf(score, bounds=cube, q=1, num_restarts=2, raw_samples=16, options={"seed": 0, "maxiter": 30})
    assert value > random.max()
    torch.testing.assert_close(score(best[None])[0].detach(), value, rtol=1e-9, atol=0.0)


@every_kind
def test_sequential_batches_are_greedy_joint_ones(kind: str) -> None:
    """BoTorch passes the designs that it has chosen as pending ones."""
    score = score_of(kind, model_of(feature_root))
    cube = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    optimum, _ = optimize_acqf(score, bounds=cube, q=2, num_restarts=2, raw_samples=16, sequential=True, options={"seed": 0})
    assert score.X_pending is None
    line = torch.linspace(0, 1, 21).double()
    grid = torch.cartesian_prod(line, line)[:, None]
    with torch.no_grad():
        best = grid[score(grid).argmax()]
        second = score(torch.cat([best.expand(len(grid), -1, -1), grid], dim=1)).max()
        assert score(optimum[None])[0] >= second - 1e-3 * second


def test_integrated_variance_is_botorchs_where_fields_are_single_numbers() -> None:
    """`qNegIntegratedPosteriorVariance` of a mean value, seen through noise of the same variance."""
    point = Grid.uniform((1,))

    def mean_value(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        field = feature_root(features.mean(1, keepdim=True), mean.mean(-1, keepdim=True), point)
        return GaussianField(field.mean, field.root, latent=field.latent, grid=point)

    predictor = FeaturePredictor(mean_value)
    model = OperatorModel(predictor, encode=encode, functional=integral(point), noise=float(predictor.noise))
    X, targets = designs(4, 2, seed=25), designs(5, seed=26)
    ours = FieldIntegratedVariance(model, targets=encode(targets))
    theirs = qNegIntegratedPosteriorVariance(model, mc_points=targets)
    torch.testing.assert_close(ours(X) - ours.variance, theirs(X), rtol=1e-8, atol=1e-12)


@every_kind
def test_second_derivatives_are_refused_not_zero(kind: str) -> None:
    score, X = score_of(kind, model_of(feature_root)), designs(2, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(score(X).sum(), X)
    assert gradient.abs().max() > 1e-3
    with pytest.raises(UnsupportedError, match="take differences of gradients"):
        torch.autograd.grad(score(X).sum(), X, create_graph=True)
    with pytest.raises(UnsupportedError, match="first derivatives"):
        torch.autograd.functional.hessian(lambda x: score(x).sum(), X.detach())


@every_kind
def test_pending_designs_that_fail_leave_those_before(kind: str) -> None:
    score, X = score_of(kind, model_of(feature_root), X_pending=designs(2, seed=21)), designs(3, 1, seed=22)
    before = score(X)
    with pytest.raises(DataError, match="finite"):
        score.set_X_pending(torch.full((2, 2), torch.nan).double())
    assert torch.equal(score.X_pending, designs(2, seed=21))
    assert torch.equal(score(X), before)


def test_units_of_channels_do_not_matter_unless_weighted() -> None:
    def in_metres(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        return dense_root(features, mean, grid)

    def in_millimetres(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        field, factors = dense_root(features, mean, grid), torch.tensor([1.0, 1e3]).double()[:, None]
        return GaussianField(field.mean * factors, DenseRoot(field.root.dense() * factors[..., None]), latent="xi", grid=grid)

    X, found = designs(4, 2), []
    for output, noise in ((in_metres, [0.01, 0.01]), (in_millimetres, [0.01, 1e4])):
        score = FieldIntegratedVariance(
            model_of(output), targets=TARGETS, target_weights=WEIGHTS, noise=torch.tensor(noise).double()
        )
        found.append(score(X))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=0.0)
    field = model_of(in_metres).predictor(TARGETS)
    assert isinstance(field, GaussianField)
    values = [
        torch.repeat_interleave(field.mean[:, c], (2 * WEIGHTS).long(), dim=0) for c in range(2)
    ]  # the distribution, in copies
    variance = (field.variance * WEIGHTS[:, None, None] / WEIGHTS.sum()).sum(0).mean(-1)
    weights = 1 / (torch.stack([value.var(correction=0) for value in values]) + variance)
    explicit = FieldIntegratedVariance(
        model_of(in_metres), targets=TARGETS, target_weights=WEIGHTS, channel_weights=weights, noise=0.01
    )
    torch.testing.assert_close(found[0], explicit(X), rtol=1e-10, atol=0.0)


@pytest.mark.bad_input
def test_predictions_that_are_no_numbers_are_refused() -> None:
    broken = model_of(lambda features, mean, grid: dense_root(features * torch.nan, mean, grid))
    with pytest.raises(DataError, match="fields to be observed"):
        FieldInformationGain(broken)(designs(2, 1))
    with pytest.raises(DataError, match="finite predict"):
        FieldIntegratedVariance(broken, targets=TARGETS, channel_weights=CHANNELS)
    broken = model_of(lambda features, mean, grid: dense_root(features, mean * torch.nan, grid))
    with pytest.raises(DataError, match="finite predict"):
        FieldIntegratedVariance(broken, targets=TARGETS)
    wide = model_of(lambda features, mean, grid: wide_root(features * torch.nan, mean, grid))
    with pytest.raises(DataError, match="finite predict"):
        FieldIntegratedVariance(wide, targets=TARGETS[:1], channel_weights=CHANNELS)


def test_a_head_without_a_lasting_latent_compares_designs_of_one_call_only() -> None:
    problem = Heat(dimension=1)
    clean = problem.sample(6, resolution=64, seed=0, dtype=torch.float64)
    disturbance = 0.01 * torch.randn(6, 1, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    pairs = FieldPairs(clean.inputs, Field(clean.outputs.values + disturbance, clean.outputs.grid))
    settings = {"input_components": 3, "output_components": 3, "groups": 1, "iterations": 1}
    predictor = KernelOperator("rbf", **settings).fit(LinearRegression.fitted(pairs[:4]), pairs)
    model = OperatorModel(
        predictor, encode=lambda X: problem.encode(X, grid=pairs.inputs.grid), functional=integral(pairs.inputs.grid)
    )
    X = designs(2, 2, dim=problem.design_dim)
    reference = torch.stack([dense_gain(predictor, model.encode(one), pairs.inputs.grid) for one in X])
    torch.testing.assert_close(FieldInformationGain(model)(X), reference, rtol=1e-6, atol=1e-6)
    with pytest.raises(LatentError, match=r"call to call.*predict.sampled\(members"):
        FieldIntegratedVariance(model, targets=pairs.inputs)(X)
    known = model.condition_on_observations(X[0], torch.zeros(2, 1).double(), noise=1e-9)
    assert (known.posterior(X[0]).variance < 0.01 * model.posterior(X[0]).variance).all()
    with pytest.raises(LatentError, match=r"observed nothing.*predict.sampled\(members"):
        FieldInformationGain(known)
    lasting = OperatorModel(predictor.sampled(8, seed=0), encode=model.encode, functional=model.functional, moment_matched=True)
    score = FieldIntegratedVariance(lasting, targets=pairs.inputs)  # what the messages recommend
    assert (score(X) > 0).all()
    known = lasting.condition_on_observations(X[0], torch.zeros(2, 1).double())
    assert (known.posterior(X[1]).variance < lasting.posterior(X[1]).variance).all()


@pytest.mark.bad_input
def test_bad_input() -> None:
    model = model_of(feature_root)
    with pytest.raises(ArgumentError, match="OperatorModel"):
        FieldInformationGain(model.predictor)
    batch = model.condition_on_observations(designs(3, 1), torch.zeros(3, 1, 2).double())
    with pytest.raises(UnsupportedError, match="batch"):
        FieldInformationGain(batch)
    with pytest.raises(ArgumentError, match="noise > 0"):
        FieldInformationGain(model, noise=0.0)
    with pytest.raises(ShapeError, match="2 channels"):
        FieldInformationGain(model, noise=torch.ones(3))
    for targets in (TARGETS[:0], TARGETS.values):
        with pytest.raises(DataError, match="at least one"):
            FieldIntegratedVariance(model, targets=targets)
    with pytest.raises(ShapeError, match="each target"):
        FieldIntegratedVariance(model, targets=TARGETS, target_weights=WEIGHTS[:2])
    with pytest.raises(ShapeError, match="each channel"):
        FieldIntegratedVariance(model, targets=TARGETS, channel_weights=WEIGHTS)
    for distribution in (-WEIGHTS, 0.0 * WEIGHTS, WEIGHTS * float("nan")):
        with pytest.raises(ArgumentError, match="not all zero"):
            FieldIntegratedVariance(model, targets=TARGETS, target_weights=distribution)
    with pytest.raises(UnsupportedError, match="empirical"):
        FieldInformationGain(model_of(lambda features, mean, grid: torch.zeros(1)))(designs(1, 1))
    with pytest.raises(LatentError, match="call to call"):
        FieldInformationGain(model_of(restless), X_pending=designs(2))(designs(1, 1))
