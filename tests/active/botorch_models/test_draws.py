"""Function draws as deterministic models: what they are draws of, their shapes, and BoTorch's Thompson sampling."""

from __future__ import annotations

import pytest
import torch
from botorch.acquisition.analytic import PosteriorMean
from botorch.optim import optimize_acqf
from botorch.sampling.get_sampler import get_sampler
from torch import Tensor

from probneural.active import OperatorDraws, OperatorModel
from probneural.distributions import FeatureRoot, GaussianField
from probneural.errors import LatentError, ShapeError
from probneural.grids import Grid
from tests.active.predictors import INPUT_GRID, KINDS, FeaturePredictor, encode, factor, kernel, one_number, three_numbers

CUBE = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def designs(*shape: int, seed: int = 51) -> Tensor:
    return torch.rand(*shape, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def model_of(kind: str, *, functional: object = None, channels: int = 2) -> OperatorModel:
    predictor = kernel(channels) if kind == "kernel" else FeaturePredictor(KINDS[kind], out_channels=channels)
    return OperatorModel(predictor, encode=encode, functional=functional or three_numbers())


@pytest.mark.parametrize("kind", [*KINDS, "kernel"])
def test_one_draw_is_the_predictors_draw_of_that_name(kind: str) -> None:
    model, X = model_of(kind), designs(5)
    path = OperatorDraws(model, seed=3)
    for seed in (3, 4, 5):  # of an ensemble, several members
        operator = model.predictor.draw(seed)
        expected = model.functional(operator(encode(X).values, grid=INPUT_GRID)).flatten(1)
        torch.testing.assert_close(OperatorDraws(model, seed=seed)(X), expected, rtol=1e-12, atol=1e-12)
    assert (path.batch_shape, path.num_outputs) == ((), 6)
    assert torch.equal(path(X), OperatorDraws(model, seed=3)(X))
    torch.testing.assert_close(path(X)[2:3], path(X[2:3]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [*KINDS, "kernel"])
def test_every_draw_is_evaluated_at_its_own_designs_or_at_all(kind: str) -> None:
    model = model_of(kind)
    paths, X = OperatorDraws(model, 4, seed=3), designs(5, 4, 3)
    assert paths.batch_shape == (4,)
    values, shared, plain = paths(X), paths(X[:, :1]), paths(X[0, 0])
    assert values.shape == shared.shape == (5, 4, 3, 6)
    assert plain.shape == (4, 3, 6)
    torch.testing.assert_close(shared[0], plain)
    for place in range(4):
        torch.testing.assert_close(values[:, place], paths(X[:, place : place + 1])[:, place])
    posterior = paths.posterior(X)
    torch.testing.assert_close(posterior.mean, values)
    assert not posterior.variance.any()
    torch.testing.assert_close(paths.subset_output([5, 0])(X), values[..., [5, 0]])
    single = OperatorDraws(model, 1, seed=3)
    torch.testing.assert_close(single(X[:, 0]), OperatorDraws(model, seed=3)(X[:, 0]))  # one draw, five t-batches


def test_draws_agree_with_what_was_observed() -> None:
    model, X = model_of("feature root"), designs(1, seed=52)
    known = model.condition_on_observations(X, torch.ones(1, 6).double(), noise=1e-8)
    assert (OperatorDraws(known, 50, seed=0)(X) - 1.0).abs().max() < 1e-3


@pytest.mark.parametrize("given", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [*KINDS, "kernel"])
def test_draws_have_the_dtype_of_the_designs_and_differentiate(kind: str, given: torch.dtype) -> None:
    paths = OperatorDraws(model_of(kind), 2, seed=0)
    assert paths(designs(3).to(given)).dtype == given
    assert torch.autograd.gradcheck(paths, (designs(3).requires_grad_(),), eps=1e-6, atol=1e-7)


def test_seeds_come_from_the_global_generator_unless_given() -> None:
    model, X = model_of("members"), designs(3)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = OperatorDraws(model, 9)(X)
        state = torch.get_rng_state()
        again = OperatorDraws(model, 9, seed=5)(X)
        assert torch.equal(state, torch.get_rng_state())
        assert not torch.equal(first, again)
        torch.manual_seed(1)
        assert torch.equal(first, OperatorDraws(model, 9)(X))


@pytest.mark.parametrize("kind", ["feature root", "members", "kernel"])
def test_thompson_sampling_maximises_each_draw(kind: str) -> None:
    """The optimiser's design against the maximum of the draw over a fine grid."""
    model = model_of(kind, functional=one_number(), channels=1)
    line = torch.linspace(0, 1, 41, dtype=torch.float64)
    for seed in range(3):
        draw = OperatorDraws(model, seed=seed)
        best, _ = optimize_acqf(PosteriorMean(draw), bounds=CUBE, q=1, num_restarts=6, raw_samples=64, options={"seed": 0})
        with torch.no_grad():
            assert float(draw(best)) >= float(draw(torch.cartesian_prod(line, line)).max()) - 2e-2


@pytest.mark.bad_input
def test_processes_that_have_observed_something_have_no_draws() -> None:
    model, X = model_of("kernel"), designs(2)
    for known in (
        model.condition_on_observations(X, torch.zeros(2, 6).double()),
        model.condition_on_observations(designs(3, 0), torch.zeros(3, 0, 6).double()),
    ):
        with pytest.raises(LatentError, match="observed nothing.*fit the head to what was observed"):
            OperatorDraws(known, 2, seed=0)(X)


@pytest.mark.bad_input
def test_designs_that_do_not_fit_the_draws() -> None:
    with pytest.raises(ShapeError, match=r"against \(4,\), the draws; got \(5,\)"):
        OperatorDraws(model_of("members"), 4, seed=0)(designs(5, 3))


@pytest.mark.bad_input
def test_latents_that_differ_from_call_to_call_are_refused() -> None:
    """A latent that belongs to single calls has to say so."""

    def anew(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
        return GaussianField(mean, FeatureRoot(features, factor(1)), latent=f"of {float(mean.sum())}", grid=grid)

    paths = OperatorDraws(OperatorModel(FeaturePredictor(anew), encode=encode, functional=one_number()), 2, seed=0)
    paths(designs(3))
    with pytest.raises(LatentError, match=r"from call to call, 'of .*is_shared_across_calls=False"):
        paths(designs(4))


@pytest.mark.parametrize("given", ["nothing", "observations", "observations in batches", "a measured field"])
def test_draws_of_a_process_at_a_batch_do_not_depend_on_other_batches(given: str) -> None:
    """Line searches change the number of t-batches. Within one, the joint covariance is that of a single prediction."""
    model, X, seen = model_of("kernel"), designs(6, 3), designs(6, 1, seed=52)
    rows = [slice(number, number + 1) for number in range(6)]
    if given == "a measured field":
        values = torch.ones(1, 2, 3, dtype=torch.float64)
        measured = model.predictor.condition(encode(seen[0]), functional=three_numbers(), values=values, noise=1e-2)
        model = OperatorModel(measured, encode=encode, functional=three_numbers())
    if given == "observations":
        model = model.condition_on_observations(seen[0], torch.zeros(1, 6).double())
    alone = [model] * 6
    if given == "observations in batches":
        alone = [model.condition_on_observations(seen[row], torch.zeros(1, 1, 6).double()) for row in rows]
        model = model.condition_on_observations(seen, torch.zeros(6, 1, 6).double())
    together = model.posterior(X)
    sampler = get_sampler(together, torch.Size([16]), seed=0)
    draws = sampler(together)
    for row, one in zip(rows, alone, strict=True):
        posterior = one.posterior(X[row].clone().requires_grad_())
        assert posterior.base_sample_shape == together.base_sample_shape
        torch.testing.assert_close(sampler(posterior), draws[:, row], rtol=0, atol=1e-12)
    if given in ("nothing", "a measured field"):
        root = model.predictor(encode(X[2])).apply(model.functional).root.dense().flatten(0, 2)
        torch.testing.assert_close(together.covariance[2], root @ root.mT, rtol=1e-9, atol=1e-12)
