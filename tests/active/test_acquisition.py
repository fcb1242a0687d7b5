"""BoTorch's acquisition functions and optimiser on predictors of both kinds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from botorch.acquisition import AcquisitionFunction, LogExpectedImprovement, qUpperConfidenceBound
from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import (
    qLogExpectedHypervolumeImprovement,
    qLogNoisyExpectedHypervolumeImprovement,
)
from botorch.acquisition.objective import GenericMCObjective, LinearMCObjective, MCAcquisitionObjective
from botorch.sampling.get_sampler import get_sampler
from botorch.utils.multi_objective.box_decompositions.non_dominated import FastNondominatedPartitioning
from torch import Tensor

from probneural.active import OperatorModel
from tests.active.predictors import FINE_GRID, KINDS, FeaturePredictor, certain, encode, one_number, three_numbers

TWO_KINDS = ["feature root", "members"]


def designs(*shape: int, seed: int = 4) -> Tensor:
    return torch.rand(*shape, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


BASELINE = designs(5)


def linear(m: int) -> MCAcquisitionObjective:
    return LinearMCObjective(torch.linspace(-1.0, 1.0, m, dtype=torch.float64))


def squares(m: int) -> MCAcquisitionObjective:
    """A composite objective: minus the sum of squared distances to a target, nonlinear in the outputs."""
    return GenericMCObjective(lambda Y, X: -(Y - torch.linspace(0.0, 1.0, m).to(Y)).square().sum(-1))


OUTPUTS: dict[str, Callable[[int], MCAcquisitionObjective] | None] = {"one": None, "linear": linear, "squares": squares}


def model_of(output: object, outputs: str) -> OperatorModel:
    """One output of one channel, or six of two channels read on a grid that is not the inputs'."""
    if outputs == "one":
        return OperatorModel(FeaturePredictor(output), encode=encode, functional=one_number())
    return OperatorModel(FeaturePredictor(output, out_channels=2), encode=encode, functional=three_numbers(FINE_GRID))


def acquisition(name: str, model: OperatorModel, outputs: str = "one", *, draws: int = 64) -> AcquisitionFunction:
    make = OUTPUTS[outputs]
    objective = None if make is None else make(model.num_outputs)
    posterior = model.posterior(BASELINE)
    sampler = get_sampler(posterior, torch.Size([draws]), seed=8)
    if name == "qLogEI":
        mean = posterior.mean if objective is None else objective(posterior.mean)[..., None]
        return qLogExpectedImprovement(model, best_f=mean.max(), sampler=sampler, objective=objective)
    if name == "qUCB":
        return qUpperConfidenceBound(model, beta=1.5, sampler=sampler, objective=objective)
    prune = name.endswith("pruned")
    return qLogNoisyExpectedImprovement(
        model, BASELINE, sampler=sampler, objective=objective, prune_baseline=prune, cache_root=False
    )


NAMES = ["qLogEI", "qUCB", "qLogNEI", "qLogNEI pruned"]
every_case = pytest.mark.parametrize(
    ("kind", "name", "outputs"), [(kind, name, outputs) for kind in KINDS for name in NAMES for outputs in OUTPUTS]
)


@every_case
def test_six_equal_designs_in_six_restart_slots_score_identically(kind: str, name: str, outputs: str) -> None:
    score = acquisition(name, model_of(KINDS[kind], outputs), outputs)
    X = designs(2, seed=11)
    alone = score(X[None])
    assert torch.isfinite(alone).all()
    values = score(X.repeat(6, 1, 1))
    assert (values - alone).abs().max() <= 1e-12
    mixed = score(torch.stack([X, 1 - X, X, X, X**2, X, X, X]))  # with strangers between them
    assert (mixed[[0, 2, 3, 5, 6, 7]] - alone).abs().max() <= 1e-12


@every_case
def test_design_gradient_agrees_with_central_differences(kind: str, name: str, outputs: str) -> None:
    score = acquisition(name, model_of(KINDS[kind], outputs), outputs)
    X = designs(3, 2, seed=12).requires_grad_()
    (gradient,) = torch.autograd.grad(score(X).sum(), X)
    step, flat = 1e-6, X.detach().reshape(3, -1)
    numeric = torch.empty_like(flat)
    with torch.no_grad():
        for index in range(flat.shape[1]):
            shift = step * torch.eye(flat.shape[1], dtype=torch.float64)[index]
            ahead, behind = (score((flat + sign * shift).reshape(3, 2, 2)) for sign in (1, -1))
            numeric[:, index] = (ahead - behind) / (2 * step)
    scale = numeric.abs().max()
    assert scale > 1e-3
    assert (gradient.reshape(3, -1) - numeric).abs().max() / scale.clamp_min(1.0) <= 1e-6


def test_log_expected_improvement_has_its_closed_form() -> None:
    """BoTorch's analytic function uses mean and variance only, so the two agree if the draws do."""
    model, X = model_of(KINDS["feature root"], "one"), designs(20, 1, seed=15)
    best = model.posterior(BASELINE).mean.max()
    exact = LogExpectedImprovement(model, best_f=best)(X)
    sampler = get_sampler(model.posterior(X), torch.Size([8192]), seed=0)
    sampled = qLogExpectedImprovement(model, best_f=best, sampler=sampler)(X)
    likely = exact > -4
    assert likely.sum() > 5
    assert (sampled - exact)[likely].abs().max() < 0.02


def test_expectations_over_members_are_exact_sums() -> None:
    model, X = model_of(KINDS["members"], "one"), designs(20, 2, seed=16)
    values = model.posterior(X).values[..., 0]
    known = model.posterior(BASELINE)
    best, known = known.mean.max(), known.values[..., 0].amax(-1)
    improvement = (values.amax(-1) - best).relu().mean(0)
    noisy = (values.amax(-1) - known[:, None]).relu().mean(0)
    spread = (values.mean(0) + (1.5 * torch.pi / 2) ** 0.5 * (values - values.mean(0)).abs()).amax(-1).mean(0)
    for gain, score in (
        (improvement, qLogExpectedImprovement(model, best_f=best, fat=False, tau_max=1e-6)(X).exp()),
        (noisy, qLogNoisyExpectedImprovement(model, BASELINE, fat=False, tau_max=1e-6, cache_root=False)(X).exp()),
        (spread, qUpperConfidenceBound(model, beta=1.5)(X)),
    ):
        assert gain.max() > 0.05
        assert (gain - score).abs().max() < 2e-5  # the smoothing of both maxima


def test_noisy_improvement_is_that_of_coherent_draws() -> None:
    """Baseline and candidates must be the same function in each draw; drawn apart, the improvement is another."""
    model, X = model_of(KINDS["feature root"], "one"), designs(20, 1, seed=17)
    base = torch.randn(64, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sampler = get_sampler(model.posterior(X), torch.Size([64]), seed=0)
    sampler.register_buffer("base_samples", base)
    score = qLogNoisyExpectedImprovement(model, BASELINE, sampler=sampler, prune_baseline=False, cache_root=False, fat=False)
    field = model.predictor(encode(torch.cat([BASELINE, X[:, 0]]))).apply(model.functional)
    draws = field.rsample((64,), base_samples=base)[:, :, 0, 0]
    gain = (draws[:, 5:] - draws[:, :5].amax(1, keepdim=True)).relu().mean(0)
    assert gain.max() > 0.05
    assert (score(X).exp() - gain).abs().max() < 2e-5
    assert score(BASELINE[:, None]).exp().max() < 2e-5  # nothing is gained where one has been


@pytest.mark.parametrize("name", NAMES)
def test_certain_predictions_score_and_differentiate(name: str) -> None:
    """Without variance: gpytorch's clamp would make these random, and a Cholesky factor would not exist."""
    X = designs(3, 2, seed=18).requires_grad_()
    values = acquisition(name, model_of(certain, "one"))(X)
    (gradient,) = torch.autograd.grad(values.sum(), X)
    assert torch.isfinite(values).all()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("kind", TWO_KINDS)
def test_several_objectives(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # BoTorch 0.18 would spend 25 s compiling a C++ version of the same formula at first use.
    monkeypatch.setattr("botorch.acquisition.multi_objective.logei._load_attempted", True, raising=False)
    model = model_of(KINDS[kind], "linear").subset_output([0, 4])
    reference = model.posterior(BASELINE).mean.amin(0) - 0.5
    partition = FastNondominatedPartitioning(ref_point=reference, Y=model.posterior(BASELINE).mean)
    X = designs(2, seed=19)
    sampler = get_sampler(model.posterior(X), torch.Size([16]), seed=8)
    for score in (
        qLogExpectedHypervolumeImprovement(model, ref_point=reference, partitioning=partition, sampler=sampler),
        qLogNoisyExpectedHypervolumeImprovement(
            model, ref_point=reference, X_baseline=BASELINE, sampler=sampler, prune_baseline=True, cache_root=False
        ),
    ):
        values = score(X.repeat(6, 1, 1))
        assert torch.isfinite(values).all()
        assert (values - values[0]).abs().max() <= 1e-12
