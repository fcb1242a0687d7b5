"""OperatorModel: shapes, order of the outputs, dtype, transforms and error paths, for every kind of predictor."""

from __future__ import annotations

import pytest
import torch
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.posteriors.posterior import Posterior
from botorch.posteriors.transformed import TransformedPosterior
from botorch.sampling.get_sampler import get_sampler
from torch import Tensor

from probneural.active import OperatorModel
from probneural.active.botorch_models.posteriors import FieldPosterior, MemberPosterior
from probneural.distributions import FieldDistribution
from probneural.errors import DataError, ShapeError, UnsupportedError
from probneural.grids import Grid
from tests.active.predictors import (
    INPUT_GRID,
    KINDS,
    FeaturePredictor,
    encode,
    feature_root,
    three_numbers,
    weighted_members,
)

BATCHES = [(), (5,), (2, 3), (0,)]


def designs(*shape: int) -> Tensor:
    return torch.rand(*shape, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def model_of(kind: str, *, channels: int = 2, grid: Grid = INPUT_GRID) -> OperatorModel:
    return OperatorModel(FeaturePredictor(KINDS[kind], out_channels=channels), encode=encode, functional=three_numbers(grid))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_shapes(kind: str, batch: tuple[int, ...]) -> None:
    posterior = model_of(kind).posterior(designs(*batch, 4))
    assert isinstance(posterior, MemberPosterior if kind == "members" else FieldPosterior)
    assert posterior.mean.shape == posterior.variance.shape == (*batch, 4, 6)
    assert posterior.batch_shape == batch
    assert posterior.batch_range == (0, 0)
    assert posterior.rsample().shape == posterior._extended_shape(torch.Size([1])) == (1, *batch, 4, 6)
    assert posterior.rsample(torch.Size()).shape == posterior._extended_shape() == (*batch, 4, 6)
    assert posterior.sample(torch.Size([3, 2])).shape == (3, 2, *batch, 4, 6)
    assert not posterior.sample().requires_grad
    draws = get_sampler(posterior, torch.Size([32]), seed=0)(posterior)
    assert draws.shape == (12 if kind == "members" else 32, *batch, 4, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_is_the_functional_of_the_field_at_its_own_design(kind: str) -> None:
    model, X = model_of(kind), designs(2, 3, 4)
    posterior = model.posterior(X)
    for place in [(0, 0, 0), (1, 0, 3), (0, 2, 1)]:
        field = model.predictor(encode(X[place][None]))
        expected = torch.cat([model.functional(channel) for channel in field.mean[0]])  # channel by channel
        torch.testing.assert_close(posterior.mean[place], expected, rtol=1e-12, atol=1e-12)
        spread = torch.cat([model.predictor(encode(X[place][None])).apply(model.functional).variance[0, c] for c in range(2)])
        torch.testing.assert_close(posterior.variance[place], spread, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [torch.float32, torch.float64])
@pytest.mark.parametrize("computed", [torch.float32, torch.float64])
def test_results_have_the_dtype_of_the_designs(kind: str, given: torch.dtype, computed: torch.dtype) -> None:
    predictor = FeaturePredictor(KINDS[kind], out_channels=2, dtype=computed)
    model = OperatorModel(predictor, encode=encode, functional=three_numbers())
    X = designs(3, 2).to(given).requires_grad_()
    posterior = model.posterior(X)
    draws = get_sampler(posterior, torch.Size([4]), seed=0)(posterior)
    assert {posterior.dtype, posterior.mean.dtype, posterior.variance.dtype, draws.dtype} == {given}
    (gradient,) = torch.autograd.grad(draws.sum(), X)
    assert gradient.dtype == given
    torch.testing.assert_close(posterior.mean.double(), model_of(kind).posterior(designs(3, 2)).mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_selected_and_subsets_stay_coherent(kind: str) -> None:
    model, X = model_of(kind), designs(3, 2)
    full = model.posterior(X)
    chosen = model.posterior(X, output_indices=[4, -5])
    nested = model.subset_output([5, 4, 1]).subset_output([1, 2])
    assert (model.num_outputs, nested.num_outputs, model.batch_shape) == (6, 2, ())
    sampler = get_sampler(full, torch.Size([16]), seed=3)
    for part in (chosen, nested.posterior(X)):
        torch.testing.assert_close(part.mean, full.mean[..., [4, 1]], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(sampler(part), sampler(full)[..., [4, 1]], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_scalarizing_transform_equals_weighting_the_draws(kind: str) -> None:
    model, X = model_of(kind), designs(3, 2)
    weights = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0, 1.0])
    full = model.posterior(X)
    posterior = model.posterior(X, posterior_transform=ScalarizedPosteriorTransform(weights, offset=0.7))
    assert type(posterior) is type(full)
    sampler = get_sampler(full, torch.Size([16]), seed=3)
    expected = (sampler(full) @ weights.double() + 0.7)[..., None]
    torch.testing.assert_close(sampler(posterior), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(posterior.mean, (full.mean @ weights.double() + 0.7)[..., None], rtol=1e-12, atol=1e-12)
    if isinstance(full, FieldPosterior):
        blocks = full.covariance.reshape(3, 2, 6, 2, 6).diagonal(dim1=1, dim2=3)
        spread = torch.einsum("bijq,i,j->bq", blocks, weights.double(), weights.double())
        torch.testing.assert_close(posterior.variance[..., 0], spread, rtol=1e-10, atol=1e-12)


class Shifted(PosteriorTransform):
    """Squares the outputs and adds the design's first coordinate, so it has to see the designs."""

    def evaluate(self, Y: Tensor, X: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def forward(self, posterior: Posterior, X: Tensor | None = None) -> Posterior:
        assert X is not None
        return TransformedPosterior(posterior, lambda samples: samples.square() + X[..., :1])


@pytest.mark.parametrize("kind", KINDS)
def test_other_transforms_are_called_with_the_designs(kind: str) -> None:
    model, X = model_of(kind), designs(3, 2)
    transformed, full = model.posterior(X, posterior_transform=Shifted()), model.posterior(X)
    sampler = get_sampler(transformed, torch.Size([16]), seed=3)
    torch.testing.assert_close(sampler(transformed), sampler(full).square() + X[..., :1])


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (torch.rand(2), ShapeError, r"\(\.\.\., q, d\)"),
        (torch.rand(4, 3), ShapeError, r"designs \(..., 2\)"),  # what the encoder says reaches the user
        (torch.ones(4, 2, dtype=torch.long), DataError, "torch.int64"),
        ([[0.1, 0.2]], DataError, "list"),
        (torch.full((4, 2), torch.nan), DataError, "finite inputs"),
    ],
)
def test_bad_designs(X: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        model_of("feature root").posterior(X)


@pytest.mark.bad_input
def test_bad_encoders() -> None:
    predictor = FeaturePredictor(feature_root)
    with pytest.raises(DataError, match="a Field as what encode returns"):
        OperatorModel(predictor, encode=lambda X: X, functional=three_numbers()).posterior(designs(2))
    with pytest.raises(ShapeError, match="4 fields from encode, one per design; got 1"):
        OperatorModel(predictor, encode=lambda X: encode(X[:1]), functional=three_numbers()).posterior(designs(2, 2))


@pytest.mark.bad_input
def test_unequal_weights_are_refused_with_their_remedy() -> None:
    model = OperatorModel(FeaturePredictor(weighted_members), encode=encode, functional=three_numbers())
    with pytest.raises(UnsupportedError, match="equal weight.*moment_matched"):
        model.posterior(designs(2))


@pytest.mark.bad_input
def test_unknown_kinds_of_field_are_refused() -> None:
    class Other(FieldDistribution):
        mean = variance = torch.zeros(2, 1, 3)
        base_shape = torch.Size()

        def rsample(self, sample_shape=(), *, seed=None, base_samples=None):
            raise NotImplementedError

        def apply(self, functional):
            return self

        def scale(self, factors):
            raise NotImplementedError

        def __getitem__(self, index):
            raise NotImplementedError

    model = OperatorModel(FeaturePredictor(lambda *_: Other()), encode=encode, functional=three_numbers())
    with pytest.raises(UnsupportedError, match="Gaussian or empirical fields; got Other"):
        model.posterior(designs(2))


def test_noise_of_chosen_outputs_is_that_of_their_model() -> None:
    model = OperatorModel(FeaturePredictor(KINDS["feature root"]), encode=encode, functional=three_numbers())
    X = torch.full((1, 2), 0.3, dtype=torch.float64)
    chosen = model.posterior(X, output_indices=[2], observation_noise=True)
    alone = model.subset_output([2]).posterior(X, observation_noise=True)
    torch.testing.assert_close(chosen.variance, alone.variance)
