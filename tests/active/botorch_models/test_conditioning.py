"""Conditioning and fantasies against dense Gaussian processes, refitted heads, and the update of the distributions."""

from __future__ import annotations

import pytest
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.sampling.normal import SobolQMCNormalSampler
from torch import Tensor

from probneural.active import OperatorModel
from probneural.active.botorch_models import conditioning
from probneural.active.botorch_models.conditioning import LatentPosterior, check_noise, observation_variance
from probneural.active.botorch_models.posteriors import FieldPosterior, Measurements
from probneural.distributions import FeatureRoot, GaussianField, Predictor
from probneural.errors import ArgumentError, DataError, LatentError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.functionals import MatrixFunctional, derivative, integral, sensors, stack
from probneural.grids import Grid
from probneural.heads import Laplace, LastLayerLaplace, LowRank
from probneural.heads.laplace.structures import Full
from probneural.operators import FNO
from probneural.pairs import FieldPairs
from tests.active.predictors import (
    FINE_GRID,
    GAUSSIAN,
    INPUT_GRID,
    RANK,
    FeaturePredictor,
    encode,
    factor,
    feature_root,
    members,
    single_call_root,
    three_numbers,
)
from tests.heads.cases import data_for, fields


def designs(*shape: int, seed: int = 31) -> Tensor:
    return torch.rand(*shape, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numbers(*shape: int, seed: int = 32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


KINDS = {**GAUSSIAN, "single calls": single_call_root}


def model_of(kind: str = "feature root", *, channels: int = 2, **options: object) -> OperatorModel:
    predictor = FeaturePredictor(KINDS[kind], out_channels=channels)
    return OperatorModel(predictor, encode=encode, functional=three_numbers(FINE_GRID), **options)


def dense(model: OperatorModel, X: Tensor, Y: Tensor, new: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance at `new`, by the textbook formula on the joint prior over all numbers; no batches."""
    joint = model.posterior(torch.cat([X, new]))
    mean, covariance = joint.mean.flatten(), joint.covariance
    seen = X.shape[0] * model.num_outputs
    gain = torch.linalg.solve(covariance[:seen, :seen] + noise.expand(Y.shape).flatten().diag(), covariance[:seen]).mT
    moved = mean + gain @ (Y.flatten() - mean[:seen])
    reduced = covariance - gain @ covariance[:seen]
    return moved[seen:].reshape(new.shape[0], -1), reduced[seen:, seen:]


@pytest.mark.parametrize("noise", [None, 1e-6, 100.0])
@pytest.mark.parametrize("count", [1, 5])  # fewer observations than the latent has dimensions, and more
@pytest.mark.parametrize("kind", KINDS)
def test_conditioning_equals_a_dense_gaussian_process(kind: str, count: int, noise: float | None) -> None:
    model, X, new = model_of(kind), designs(count), designs(4, seed=33)
    assert (count * 6 > RANK) == (count == 5)
    Y, variance = numbers(count, 6), model.noise if noise is None else torch.tensor(noise).double()
    posterior = model.condition_on_observations(X, Y, noise=noise).posterior(new)
    mean, covariance = dense(model, X, Y, new, variance)
    assert isinstance(posterior, FieldPosterior)
    assert posterior.base_sample_shape == (RANK,)
    scale = 1e-8 * max(1.0, float(mean.abs().max()))
    assert (posterior.mean - mean).abs().max() <= scale
    assert (posterior.covariance - covariance).abs().max() <= 1e-8
    assert (model.posterior(new).variance > posterior.variance).all()


@pytest.mark.parametrize("count", [2, 5])
def test_what_is_certain_stays_so_and_teaches_nothing(count: int) -> None:
    """Without variance the triangular factor is the identity, of whatever signs a QR decomposition gives it."""
    root = torch.zeros(1, count, 4, dtype=torch.float64)
    posterior = LatentPosterior.of(root, numbers(1, count), noise=torch.ones(1, count, dtype=torch.float64))
    mean, moved = posterior.move(numbers(2, 1), numbers(2, 1, 4))
    torch.testing.assert_close(mean, numbers(2, 1))
    torch.testing.assert_close(moved, numbers(2, 1, 4))


BATCHES = [
    ((3,), (4, 3)),  # fantasies in front
    ((), (4,)),
    ((3,), ()),  # the same Y in every batch
    ((2, 3), (4, 2, 3)),
    ((3,), (4, 1)),
]


@pytest.mark.parametrize("kind", ["feature root", "single calls"])
@pytest.mark.parametrize(("batch", "read"), BATCHES)
def test_batches_are_conditioned_one_by_one(kind: str, batch: tuple[int, ...], read: tuple[int, ...]) -> None:
    model, X, Y = model_of(kind), designs(*batch, 2), numbers(*read, 2, 6)
    result = model.condition_on_observations(X, Y)
    shape = torch.broadcast_shapes(batch, read)
    assert result.batch_shape == shape
    assert model.batch_shape == ()
    everywhere = result.posterior(designs(5, seed=34))
    posterior = result.posterior(designs(*shape, 1, seed=35))
    assert everywhere.mean.shape == everywhere.variance.shape == (*shape, 5, 6)
    assert posterior.rsample(torch.Size([7])).shape == (7, *shape, 1, 6)
    X, Y = X.expand(*shape, 2, 2), Y.expand(*shape, 2, 6)
    for place in [tuple(0 for _ in shape), tuple(n - 1 for n in shape)]:
        alone = model.condition_on_observations(X[place], Y[place])
        assert (everywhere.mean[place] - alone.posterior(designs(5, seed=34)).mean).abs().max() <= 1e-10
        assert (everywhere.covariance[place] - alone.posterior(designs(5, seed=34)).covariance).abs().max() <= 1e-12
        assert (posterior.mean[place] - alone.posterior(designs(*shape, 1, seed=35)[place]).mean).abs().max() <= 1e-10


@pytest.mark.parametrize("kind", ["feature root", "single calls"])
def test_outputs_of_what_was_observed(kind: str) -> None:
    """Data about all outputs inform a subset, and data about a subset inform exactly what they are correlated with."""
    model, X, Y, new = model_of(kind), designs(3), numbers(3, 6), designs(4, seed=33)
    known = model.condition_on_observations(X, Y)
    torch.testing.assert_close(known.subset_output([4, 1]).posterior(new).mean, known.posterior(new).mean[..., [4, 1]])
    assert torch.equal(known.subset_output([4, 1]).noise, model.noise[[4, 1]])
    part = model.subset_output([4, 1]).condition_on_observations(X, Y[:, :2])
    mean, covariance = dense(model.subset_output([4, 1]), X, Y[:, :2], new, model.noise[[4, 1]])
    assert (part.posterior(new).mean - mean).abs().max() <= 1e-10
    assert (part.posterior(new).covariance - covariance).abs().max() <= 1e-10


def test_nothing_observed_changes_nothing() -> None:
    model, new = model_of(), designs(4, seed=33)
    result = model.condition_on_observations(designs(3, 0), numbers(2, 3, 0, 6))
    assert result.batch_shape == (2, 3)
    assert torch.equal(result.posterior(new).mean, model.posterior(new).mean.expand(2, 3, 4, 6))
    dreamt = model.fantasize(designs(3, 0), SobolQMCNormalSampler(torch.Size([4]), seed=0))
    assert dreamt.batch_shape == (4, 3)
    assert torch.equal(dreamt.posterior(new).variance[0, 0], model.posterior(new).variance)


def real(dtype: torch.dtype = torch.float64) -> tuple[FNO, FieldPairs, FieldPairs]:
    """A tiny operator on a grid of 16 points, pairs to fit a head on, and pairs to learn from later."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        operator = FNO(in_channels=1, out_channels=2, modes=(2,), width=3, depth=1).to(dtype)
    first, later = (data_for(operator, fields(INPUT_GRID, n, 1, seed=n).to(dtype), seed=n) for n in (6, 3))
    return operator, first, later


def whole_field(grid: Grid) -> MatrixFunctional:
    return MatrixFunctional(grid, torch.eye(grid.size, dtype=torch.float64))


HEADS = {
    "last layer": LastLayerLaplace,
    "full": lambda **given: Laplace(Full(), **given),
    "low_rank": lambda **given: Laplace(LowRank(rank=300), **given),
}


@pytest.mark.parametrize("head", HEADS)
def test_observing_whole_fields_equals_the_heads_update(head: str) -> None:
    """The derived noise makes the observations at all points one observation of the function, as the head's update has it."""
    operator, first, later = real()
    predictor = HEADS[head](noise=0.02, prior_precision=3.0, effective_observations=4.0).fit(operator, first)

    def stored(places: Tensor) -> Field:
        return later.inputs[places[:, 0].long()]

    model = OperatorModel(predictor, encode=stored, functional=whole_field(INPUT_GRID))
    torch.testing.assert_close(model.noise, torch.full_like(model.noise, 0.02 * INPUT_GRID.size / 4))
    X = torch.arange(2.0, dtype=torch.float64)[:, None]
    known = model.condition_on_observations(X, later.outputs.values[:2].flatten(1))
    posterior = predictor.update(later[:2])
    expected = posterior(later.inputs)
    posterior = known.posterior(torch.arange(3.0, dtype=torch.float64)[:, None])
    moved = (predictor(later.inputs).mean - expected.mean).abs().max()
    assert moved > 1e-2
    assert (posterior.mean.reshape(expected.mean.shape) - expected.mean).abs().max() <= 1e-8
    root = expected.root.dense().flatten(0, 2)
    assert (posterior.covariance - root @ root.mT).abs().max() <= 1e-8


def test_the_conditioned_predictor_is_the_conditioned_model() -> None:
    """Numbers that functionals read, against `GaussianField.condition` and `under`, which take another road."""
    operator, first, _ = real()
    predictor = LastLayerLaplace(noise=0.02, prior_precision=3.0).fit(operator, first)
    model = OperatorModel(predictor, encode=encode, functional=three_numbers(), noise=0.05)
    X, new, Y = designs(3), designs(2, seed=33), numbers(3, 6)
    read = predictor(encode(X)).condition(three_numbers(), Y.unflatten(-1, (2, 3)), noise=0.05)
    expected = predictor(encode(new)).under(read.latent).apply(three_numbers())
    posterior = model.condition_on_observations(X, Y).posterior(new)
    torch.testing.assert_close(posterior.mean, expected.mean.flatten(1), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(posterior.variance, expected.variance.flatten(1), rtol=1e-9, atol=1e-9)


def test_a_float32_operator_is_conditioned_in_float64() -> None:
    operator, first, _ = real(torch.float32)
    predictor = LastLayerLaplace(noise=0.02).fit(operator, first)
    model = OperatorModel(predictor, encode=encode, functional=three_numbers(), noise=1e-6)
    X, Y = designs(2), numbers(2, 6)
    for dtype in (torch.float32, torch.float64):
        known = model.condition_on_observations(X.to(dtype), Y.to(dtype))
        posterior = known.posterior(X.to(dtype))
        assert {posterior.mean.dtype, posterior.variance.dtype, posterior.root.dtype} == {dtype}
        assert all(part.dtype == torch.float64 for part in (known.latent_posteriors[0].shift, known.latent_posteriors[0].core))
        mean, covariance = dense(model, X, Y, X, torch.tensor(1e-6).double())
        assert (posterior.mean - mean).abs().max() <= 1e-4
        assert (posterior.covariance - covariance).abs().max() <= 1e-6


class TestNoise:
    """`observation_variance` on what its docstring promises."""

    def predictor(self, effective: float | None = 4.0) -> Predictor:
        predictor = FeaturePredictor(feature_root, out_channels=2)
        if effective is not None:
            predictor.effective_observations = torch.tensor([effective, effective])
        return predictor

    @pytest.mark.parametrize("grid", [INPUT_GRID, FINE_GRID, Grid.uniform((16,), lengths=3.0)])
    def test_integrals_average_it_over_effective_observations(self, grid: Grid) -> None:
        variance = observation_variance(self.predictor(), integral(grid))
        torch.testing.assert_close(variance, torch.full((2,), 1e-2 * grid.volume**2 / 4).double(), rtol=1e-6, atol=0.0)

    def test_points_have_the_pointwise_noise_on_every_grid(self) -> None:
        for size in (16, 32, 256):
            variance = observation_variance(self.predictor(), sensors(Grid.uniform((size,)), [[0.25], [0.5]]))
            torch.testing.assert_close(variance, torch.full((4,), 1e-2).double(), rtol=1e-6, atol=0.0)

    def test_without_effective_observations_every_point_is_one(self) -> None:
        variance = observation_variance(self.predictor(None), stack([integral(INPUT_GRID), sensors(INPUT_GRID, [[0.5]])]))
        torch.testing.assert_close(variance, torch.tensor([1e-2 / 16, 1e-2] * 2).double(), rtol=1e-6, atol=0.0)

    def test_many_points_are_worth_no_more_than_the_effective_observations(self) -> None:
        for size in (16, 64):
            grid = Grid.uniform((size,))
            precision = observation_variance(self.predictor(), derivative(grid) * 0.0 + whole_field(grid)).reciprocal()
            assert precision.sum().item() == pytest.approx(2 * 4.0 / 1e-2, rel=1e-6)

    def test_a_grid_tells_no_more_than_its_points(self) -> None:
        grid = Grid.uniform((8,))
        variance = observation_variance(self.predictor(64.0), whole_field(grid))
        torch.testing.assert_close(variance, torch.full((16,), 1e-2).double(), rtol=1e-6, atol=0.0)

    def test_only_what_is_read_counts(self) -> None:
        """Of sixteen points read, four observations' worth; the same three points read alone are three observations."""
        model = OperatorModel(self.predictor(), encode=encode, functional=whole_field(INPUT_GRID))
        torch.testing.assert_close(model.noise, torch.full((32,), 1e-2 * 16 / 4).double(), rtol=1e-6, atol=0.0)
        few = model.subset_output([20, 3, 5, 9])
        torch.testing.assert_close(few.noise, torch.full((4,), 1e-2).double(), rtol=1e-6, atol=0.0)
        alone = OperatorModel(self.predictor(), encode=encode, functional=sensors(INPUT_GRID, INPUT_GRID.points[[3, 5, 9]]))
        torch.testing.assert_close(few.subset_output([1, 2, 3]).noise, alone.noise[:3])
        uneven = observation_variance(
            self.predictor(), whole_field(INPUT_GRID), outputs=[0, 0, *range(16, 24)]
        )  # repeats are one
        torch.testing.assert_close(uneven, torch.tensor([1e-2] * 2 + [1e-2 * 8 / 4] * 8).double(), rtol=1e-6, atol=0.0)

    def test_rows_are_formed_a_few_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        functional = stack([integral(INPUT_GRID), derivative(INPUT_GRID), whole_field(INPUT_GRID)])
        variance = observation_variance(self.predictor(), functional)
        monkeypatch.setattr(conditioning, "_ROWS", 5)
        torch.testing.assert_close(observation_variance(self.predictor(), functional), variance, rtol=1e-14, atol=0.0)

    def test_it_is_the_models_noise_unless_given(self) -> None:
        model = OperatorModel(self.predictor(), encode=encode, functional=three_numbers())
        assert torch.equal(model.noise, observation_variance(self.predictor(), three_numbers()))
        given = torch.arange(1.0, 7.0)
        chosen = OperatorModel(self.predictor(), encode=encode, functional=three_numbers(), noise=given)
        assert torch.equal(chosen.noise, given.double())
        assert torch.equal(
            chosen.subset_output([3]).condition_on_observations(designs(1), numbers(1, 1)).noise, given[[3]].double()
        )
        one = OperatorModel(self.predictor(), encode=encode, functional=three_numbers(), noise=0.3)
        assert torch.equal(one.noise, torch.full((6,), 0.3, dtype=torch.float64))


def test_noisy_posteriors_are_the_posterior_plus_noise() -> None:
    model, X = model_of(), designs(3, 2)
    clean, noisy = model.posterior(X), model.posterior(X, observation_noise=True)
    torch.testing.assert_close(noisy.variance, clean.variance + model.noise)
    extra = model.noise.repeat(2).diag()
    torch.testing.assert_close(noisy.covariance, clean.covariance + extra)
    given = numbers(3, 1, 6).square()
    torch.testing.assert_close(model.posterior(X, observation_noise=given).variance, clean.variance + given)
    part = model.posterior(X, output_indices=[5, -6], observation_noise=True)
    torch.testing.assert_close(part.variance, noisy.variance[..., [5, 0]])
    assert noisy.base_sample_shape == (RANK + 12,)
    base = numbers(9, RANK + 12)
    draws = noisy.rsample_from_base_samples(torch.Size([9]), base)
    function = clean.rsample_from_base_samples(torch.Size([9]), base[:, :RANK])
    errors = (draws - function) / model.noise.sqrt()
    torch.testing.assert_close(errors, base[:, None, RANK:].unflatten(-1, (2, 6)).expand(9, 3, 2, 6), rtol=1e-8, atol=1e-8)
    weights = torch.linspace(-1.0, 2.0, 6, dtype=torch.float64)
    weighted = model.posterior(X, observation_noise=True, posterior_transform=ScalarizedPosteriorTransform(weights))
    alone = model.posterior(X, posterior_transform=ScalarizedPosteriorTransform(weights))
    torch.testing.assert_close(weighted.variance, alone.variance + model.noise @ weights.square())
    known = model.condition_on_observations(X[0], numbers(2, 6))
    torch.testing.assert_close(known.posterior(X, observation_noise=True).variance, known.posterior(X).variance + model.noise)


def test_fantasies_are_draws_of_the_noisy_readings_and_then_observed() -> None:
    model, X, new = model_of(), designs(3, 2), designs(4, seed=33)
    sampler = SobolQMCNormalSampler(torch.Size([8]), seed=5)
    dreamt = model.fantasize(X, sampler)
    assert dreamt.batch_shape == (8, 3)
    assert sampler.base_samples.shape == (8, 1, 2, 6)  # one per observation, the same in all t-batches
    joint = model.posterior(X, observation_noise=True)
    factor = torch.linalg.cholesky(joint.covariance)
    Y = joint.mean + (factor @ sampler.base_samples.flatten(-2)[..., None])[..., 0].unflatten(-1, (2, 6))
    expected = model.condition_on_observations(X, Y).posterior(new)
    torch.testing.assert_close(dreamt.posterior(new).mean, expected.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(dreamt.posterior(new).variance, expected.variance, rtol=1e-9, atol=1e-9)
    quiet = model.fantasize(X, sampler, observation_noise=torch.full((1, 6), 1e-4).double())
    assert (quiet.posterior(X).variance < dreamt.posterior(X).variance).all()
    assert (quiet.posterior(X).variance < 1e-4).all()


def test_the_distribution_of_fantasies_has_its_moments() -> None:
    model, X = model_of(channels=1), designs(2, 2)
    noisy = model.posterior(X, observation_noise=True)
    distribution = Measurements(noisy.mean, noisy.root, noisy.noise)
    torch.testing.assert_close(distribution.variance, noisy.variance)
    assert (distribution.batch_shape, distribution.device, distribution.dtype) == (noisy.batch_shape, noisy.device, noisy.dtype)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert distribution.rsample().shape == (1, 2, 2, 3)
        draws = distribution.rsample(torch.Size([40_000])).flatten(2)
    centred = draws - noisy.mean.flatten(1)
    covariance = torch.einsum("sbi,sbj->bij", centred, centred) / 40_000
    variance = noisy.covariance.diagonal(dim1=-2, dim2=-1)
    spread = ((noisy.covariance.square() + variance[:, :, None] * variance[:, None]) / 40_000).sqrt()
    assert ((covariance - noisy.covariance) / spread).abs().max() < 4.5


def test_fantasies_of_almost_exact_readings() -> None:
    """Of one design read four times: a covariance of rank one but for a noise that rounding would swallow."""
    model, X = model_of(), designs(1).expand(4, 2)
    noise = torch.full((6,), 1e-22).double()
    dreamt = model.fantasize(X, SobolQMCNormalSampler(torch.Size([4]), seed=5), observation_noise=noise)
    assert torch.isfinite(dreamt.posterior(X).mean).all()
    distribution = Measurements(model.posterior(X).mean, model.posterior(X).root, noise.expand(4, 6))
    covariance = model.posterior(X).covariance
    torch.testing.assert_close(distribution.triangle @ distribution.triangle.mT, covariance, rtol=1e-10, atol=1e-12)


@pytest.mark.bad_input
def test_predictions_that_are_no_numbers_are_refused() -> None:
    def broken(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        return feature_root(features, mean * torch.nan, grid)

    def rootless(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        return feature_root(features * torch.nan, mean, grid)

    for output in (broken, rootless):
        model = OperatorModel(FeaturePredictor(output), encode=encode, functional=three_numbers())
        with pytest.raises(DataError, match="finite (predicted means|roots of predictions|predictions where)"):
            model.condition_on_observations(designs(2), numbers(2, 3))
        with pytest.raises(DataError, match="finite predicted means|finite roots of predictions"):
            model.fantasize(designs(2), SobolQMCNormalSampler(torch.Size([2]), seed=0))


@pytest.mark.parametrize("kind", ["feature root", "single calls"])
@pytest.mark.parametrize("count", [2, 5])
def test_looking_ahead_differentiates_in_designs_readings_and_noise(kind: str, count: int) -> None:
    """Also where designs repeat, and the derivatives of singular vectors would not exist."""
    model = model_of(kind, channels=1)

    def looked(X: Tensor, Y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        known = model.condition_on_observations(torch.cat([X, X[:1]]), Y, noise=noise.square())
        posterior = known.fantasize(X, SobolQMCNormalSampler(torch.Size([2]), seed=1)).posterior(X.flip(0))
        return posterior.mean, posterior.variance

    inputs = (designs(count), numbers(count + 1, 3), numbers(3, seed=3).abs() + 0.3)
    assert torch.autograd.gradcheck(looked, tuple(x.requires_grad_() for x in inputs), eps=1e-6, atol=1e-6)


@pytest.mark.bad_input
def test_ensembles_are_refused_with_reason_and_remedy() -> None:
    model = OperatorModel(FeaturePredictor(members), encode=encode, functional=three_numbers())
    for ask in (
        lambda: model.condition_on_observations(designs(2), numbers(2, 3)),
        lambda: model.fantasize(designs(2), SobolQMCNormalSampler(torch.Size([2]), seed=0)),
        lambda: model.posterior(designs(2), observation_noise=True),
    ):
        with pytest.raises(UnsupportedError, match="agree with none of them"):
            ask()


@pytest.mark.bad_input
def test_latents_that_differ_from_call_to_call_are_refused() -> None:
    """A latent that belongs to single calls has to say so."""

    def anew(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        return GaussianField(mean, FeatureRoot(features, factor(1)), latent=f"of {float(mean.sum())}", grid=grid)

    model = OperatorModel(FeaturePredictor(anew), encode=encode, functional=three_numbers())
    known = model.condition_on_observations(designs(1), numbers(1, 3))
    with pytest.raises(LatentError, match="from call to call"):
        known.posterior(designs(2, seed=33))
    assert isinstance(model.posterior(designs(2)), FieldPosterior)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("X", "Y", "noise", "error", "message"),
    [
        (designs(2), numbers(3, 6), None, ShapeError, r"\(..., 2, 6\).*got \(3, 6\)"),
        (designs(2), numbers(2, 5), None, ShapeError, r"got \(2, 5\)"),
        (designs(2), numbers(6), None, ShapeError, r"got \(6,\)"),
        (designs(2), [[1.0]], None, ShapeError, "list"),
        (designs(3, 2), numbers(4, 2, 6), None, ShapeError, "fantasies in front"),
        (designs(2), torch.full((2, 6), torch.nan), None, DataError, "finite observations"),
        (designs(2), numbers(2, 6), 0.0, ArgumentError, "noise > 0, finite"),
        (designs(2), numbers(2, 6), torch.full((6,), torch.inf), ArgumentError, "noise > 0, finite"),
        (designs(2), numbers(2, 6), "much", ArgumentError, "noise as real numbers"),
        (designs(2), numbers(2, 6), torch.ones(5), ShapeError, r"\(..., 2, 6\); got \(5,\)"),
        (designs(2), numbers(2, 6), torch.ones(3, 6), ShapeError, r"got \(3, 6\)"),
        (torch.ones(2, 2, dtype=torch.long), numbers(2, 6), None, DataError, "float32 or float64"),
    ],
)
def test_bad_observations(X: Tensor, Y: object, noise: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        model_of().condition_on_observations(X, Y, noise=noise)


@pytest.mark.bad_input
def test_bad_batches_and_bad_noise_of_other_methods() -> None:
    model = model_of()
    known = model.condition_on_observations(designs(3, 2), numbers(4, 3, 2, 6))
    with pytest.raises(ShapeError, match="broadcast against each other"):
        known.posterior(designs(5, 2))
    with pytest.raises(ArgumentError, match="noise > 0, finite"):
        model.fantasize(designs(2), SobolQMCNormalSampler(torch.Size([2]), seed=0), observation_noise=torch.zeros(6))
    with pytest.raises(ArgumentError, match="noise >= 0, finite"):
        model.posterior(designs(2), observation_noise=torch.full((6,), -1.0))
    with pytest.raises(ShapeError, match=r"broadcast to \(2, 6\); got \(5, 1, 6\)"):
        model.posterior(designs(2), observation_noise=torch.ones(5, 1, 6))
    with pytest.raises(ArgumentError, match="True, False or a tensor of variances; got None"):
        model.posterior(designs(2), observation_noise=None)
    with pytest.raises(ArgumentError, match="noise > 0, finite"):
        model_of(noise=-1.0)
    with pytest.raises(ShapeError, match=r"\(..., 1, 6\)"):
        model_of(noise=torch.ones(7))
    with pytest.raises(ShapeError, match="each of 6 outputs"):
        model_of(noise=torch.ones(2, 6))
    with pytest.raises(ArgumentError, match="a MCSampler as sampler"):
        model.fantasize(designs(2), None)
    with pytest.raises(ShapeError, match="normal samplers"):
        Measurements(*(part for part in (numbers(1, 3), numbers(1, 3, 4), torch.ones(1, 3)))).rsample_from_base_samples(
            torch.Size([2]), numbers(2, 3)
        )
    assert check_noise(2.0, torch.Size([5, 2, 6]), numbers(1)).shape == (2, 6)
