"""FieldPosterior and MemberPosterior: moments of draws, coherence, samplers, and error paths."""

from __future__ import annotations

import pytest
import torch
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.normal import IIDNormalSampler, SobolQMCNormalSampler
from torch import Tensor

from probneural.active import OperatorModel
from probneural.active.botorch_models.draws import MemberSampler
from probneural.active.botorch_models.posteriors import FieldPosterior, MemberPosterior
from probneural.distributions import EmpiricalField, GaussianField
from probneural.errors import ArgumentError, ShapeError, UnsupportedError
from tests.active.predictors import (
    GAUSSIAN,
    KINDS,
    RANK,
    FeaturePredictor,
    encode,
    feature_root,
    members,
    three_numbers,
)
from tests.helpers import cross_covariance


def designs(*shape: int) -> Tensor:
    return torch.rand(*shape, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def model_of(output: object) -> OperatorModel:
    return OperatorModel(FeaturePredictor(output, out_channels=2), encode=encode, functional=three_numbers())


@pytest.mark.parametrize("kind", GAUSSIAN)
def test_joint_covariance_is_that_of_the_field(kind: str) -> None:
    model, X = model_of(KINDS[kind]), designs(3, 4)
    posterior = model.posterior(X)
    assert posterior.covariance.shape == (3, 24, 24)
    for batch in range(3):
        field = model.predictor(encode(X[batch])).apply(model.functional)
        assert isinstance(field, GaussianField)
        assert (posterior.covariance[batch] - cross_covariance(field, field)).abs().max() <= 1e-10
    diagonal = posterior.covariance.diagonal(dim1=-2, dim2=-1).reshape(3, 4, 6)
    torch.testing.assert_close(posterior.variance, diagonal, rtol=1e-13, atol=1e-13)


def test_moments_over_members_are_those_of_the_field() -> None:
    model, X = model_of(members), designs(3, 4)
    posterior, field = model.posterior(X), model.predictor(encode(X.reshape(-1, 2))).apply(three_numbers())
    assert isinstance(field, EmpiricalField)
    torch.testing.assert_close(posterior.mean.flatten(), field.mean.flatten(), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(posterior.variance.flatten(), field.variance.flatten(), rtol=1e-12, atol=1e-13)
    draws = get_sampler(posterior, torch.Size([512]))(posterior)
    torch.testing.assert_close(draws.mean(0), posterior.mean, rtol=1e-12, atol=1e-13)  # enumeration is exact
    torch.testing.assert_close(draws.var(0, correction=0), posterior.variance, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_is_one_function_wherever_it_is_evaluated(kind: str) -> None:
    """The same base samples give the same function: alone, in a batch, twice in a q-batch, and in a later call."""
    model, X = model_of(KINDS[kind]), designs(5, 3)
    full = model.posterior(X)
    sampler = get_sampler(full, torch.Size([32]), seed=7)
    draws = sampler(full)
    for other in (X[2:3], X[2], X.flip(0)[2:3].repeat(4, 1, 1), torch.cat([X, X], dim=-2)[2]):
        later = sampler(model.posterior(other))
        torch.testing.assert_close(later.reshape(len(draws), -1, 3, 6), draws[:, 2:3].expand(-1, later[0].numel() // 18, 3, 6))
    field = model.predictor(encode(X.reshape(-1, 2))).apply(three_numbers())
    base = sampler.base_samples if kind != "members" else torch.arange(12)
    expected = field.rsample((len(draws),), base_samples=base).flatten(2)
    torch.testing.assert_close(draws.flatten(1, 2), expected, rtol=1e-12, atol=1e-12)


def test_draws_repeat_by_global_seed_or_by_generator_which_leaves_that_alone() -> None:
    def drawn(seed: int | None = None) -> Tensor:
        return posterior.rsample(torch.Size([9]), generator=None if seed is None else torch.Generator().manual_seed(seed))

    for posterior in (model_of(feature_root).posterior(designs(2)), model_of(members).posterior(designs(2))):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            first = drawn()
            state = torch.get_rng_state()
            assert torch.equal(drawn(1), drawn(1))
            assert not torch.equal(drawn(1), drawn(2))
            get_sampler(posterior, torch.Size([9]), seed=0)(posterior)
            assert torch.equal(state, torch.get_rng_state())
            assert not torch.equal(first, drawn())
            torch.manual_seed(3)
            assert torch.equal(first, drawn())


@pytest.mark.parametrize(("rank", "kind"), [(21201, SobolQMCNormalSampler), (21202, IIDNormalSampler)])
def test_sampler_follows_the_rank_up_to_the_limit_of_sobol_sequences(rank: int, kind: type) -> None:
    posterior = FieldPosterior(torch.zeros(1, 1), torch.full((1, 1, rank), rank**-0.5))
    sampler = get_sampler(posterior, torch.Size([4]), seed=0)
    assert isinstance(sampler, kind)
    assert (sampler.sample_shape, sampler.seed) == ((4,), 0)
    assert sampler(posterior).shape == (4, 1, 1)
    assert sampler.base_samples.shape == (4, rank)


@pytest.mark.bad_input
def test_shapes_that_do_not_fit_together() -> None:
    with pytest.raises(ShapeError, match=r"a root of shape \(2, 3, k\)"):
        FieldPosterior(torch.zeros(2, 3), torch.zeros(2, 4, 5))
    with pytest.raises(ShapeError, match=r"a mean of shape \(..., q, m\)"):
        FieldPosterior(torch.zeros(3), torch.zeros(3, 5))
    with pytest.raises(ShapeError, match="s x b x q x m"):
        MemberPosterior(torch.zeros(2, 3))
    with pytest.raises(ShapeError, match="s x b x q x m"):
        MemberPosterior(torch.zeros(0, 2, 3))
    with pytest.raises(ShapeError, match=r"and \(3,\)"):
        MemberPosterior(torch.zeros(4, 2, 3), torch.ones(3))


@pytest.mark.bad_input
def test_base_samples_of_another_shape() -> None:
    posterior = model_of(feature_root).posterior(designs(2))
    for shape in [(4, RANK + 1), (RANK,), (4, 1, RANK)]:
        with pytest.raises(ShapeError, match=rf"base samples of shape \(4, {RANK}\)"):
            posterior.rsample_from_base_samples(torch.Size([4]), torch.zeros(shape))


@pytest.mark.bad_input
@pytest.mark.parametrize("base", [torch.zeros(3), torch.tensor([0, 1]), torch.tensor([0, 1, 12]), torch.tensor([-1, 0, 1])])
def test_base_samples_that_are_no_member_numbers(base: Tensor) -> None:
    posterior = model_of(members).posterior(designs(2))
    with pytest.raises(ArgumentError, match="member numbers from 0 to 11"):
        posterior.rsample_from_base_samples(torch.Size([3]), base)


@pytest.mark.bad_input
def test_a_normal_sampler_on_an_ensemble_says_what_to_do() -> None:
    posterior = model_of(members).posterior(designs(2))
    with pytest.raises(ArgumentError, match="no sampler"):
        SobolQMCNormalSampler(torch.Size([8]), seed=0)(posterior)


@pytest.mark.bad_input
def test_member_sampler_refuses_other_posteriors() -> None:
    posterior = model_of(members).posterior(designs(2))
    with pytest.raises(ArgumentError, match="5 members; got 12 members"):
        MemberSampler(5)(posterior)
    with pytest.raises(ArgumentError, match="5 members; got a Gaussian"):
        MemberSampler(5)(model_of(feature_root).posterior(designs(2)))
    with pytest.raises(ArgumentError, match="one axis"):
        get_sampler(posterior, torch.Size([4, 4]))


@pytest.mark.bad_input
def test_weights_decide_whether_members_can_be_averaged() -> None:
    values = torch.zeros(3, 1, 1)
    MemberPosterior(values, torch.full((3,), 1 / 3) * (1 + torch.tensor([1e-7, 0.0, -1e-7])))
    with pytest.raises(UnsupportedError, match="equal weight"):
        MemberPosterior(values, torch.tensor([0.3333, 0.3333, 0.3334]))


@pytest.mark.bad_input
def test_scalarizing_needs_a_weight_per_output() -> None:
    for output in (feature_root, members):
        posterior = model_of(output).posterior(designs(2))
        for weights in (torch.ones(5), torch.ones(6, 1)):
            with pytest.raises(ShapeError, match=r"weights of shape \(6,\)"):
                posterior.scalarize(weights)
