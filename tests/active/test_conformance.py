"""Every acquisition function that a BoTorch user would try, in BoTorch's optimiser, on every kind of predictor.

The list of cases is at the top: an acquisition function put in there runs on Gaussian heads, on an ensemble taken as a
Gaussian, and on the ensemble itself, or is refused there with a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    PosteriorMean,
    qNegIntegratedPosteriorVariance,
    qUpperConfidenceBound,
)
from botorch.acquisition.cost_aware import InverseCostWeightedUtility
from botorch.acquisition.knowledge_gradient import qKnowledgeGradient, qMultiFidelityKnowledgeGradient
from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import qLogExpectedHypervolumeImprovement
from botorch.acquisition.multi_step_lookahead import qMultiStepLookahead
from botorch.acquisition.objective import GenericMCObjective, LinearMCObjective, ScalarizedPosteriorTransform
from botorch.acquisition.utils import project_to_target_fidelity
from botorch.models.cost import AffineFidelityCostModel
from botorch.optim import optimize_acqf
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.multi_objective.box_decompositions.non_dominated import FastNondominatedPartitioning
from torch import Tensor

from probneural.active import OperatorDraws, OperatorModel
from probneural.distributions import Predictor
from probneural.errors import UnsupportedError
from probneural.fields import Field
from probneural.functionals import Functional, sensors
from probneural.heads import Laplace, LastLayerLaplace, LowRank
from probneural.operators import FNO
from tests.active.predictors import (
    INPUT_GRID,
    FeaturePredictor,
    encode,
    feature_root,
    kernel,
    members,
    one_number,
    three_numbers,
)
from tests.heads.cases import data_for, fields
from tests.helpers import accelerator

Make = Callable[[Callable[..., OperatorModel]], AcquisitionFunction]


def designs(*shape: int, dimension: int = 2, seed: int = 41) -> Tensor:
    return torch.rand(*shape, dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def encode_with_fidelity(X: Tensor) -> Field:
    """Designs of three numbers: a lower fidelity sees less of the input."""
    return encode(X[:, :2] * (0.5 + 0.5 * X[:, 2:]))


def sampler(model: OperatorModel) -> object:
    return get_sampler(model.posterior(designs(1)), torch.Size([16]), seed=0)


def noise(draws: int) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([draws]), seed=0)


def improvement(of: Callable[..., OperatorModel]) -> AcquisitionFunction:
    model = of(one_number())
    return qLogExpectedImprovement(model, best_f=model.posterior(designs(4)).mean.max(), sampler=sampler(model))


def closed_improvement(of: Callable[..., OperatorModel]) -> AcquisitionFunction:
    model = of(one_number())
    return LogExpectedImprovement(model, best_f=model.posterior(designs(4)).mean.max())


def noisy_improvement(of: Callable[..., OperatorModel]) -> AcquisitionFunction:
    model = of(one_number())
    return qLogNoisyExpectedImprovement(model, designs(4), sampler=sampler(model), cache_root=False)


def confidence_bound(of: Callable[..., OperatorModel]) -> AcquisitionFunction:
    model = of(one_number())
    return qUpperConfidenceBound(model, beta=1.5, sampler=sampler(model))


def composite(of: Callable[..., OperatorModel]) -> AcquisitionFunction:
    model = of(three_numbers())
    objective = GenericMCObjective(lambda Y, X: -(Y - 0.3).square().sum(-1))
    return qLogExpectedImprovement(model, best_f=-3.0, sampler=sampler(model), objective=objective)


def constrained(of: Callable[..., OperatorModel]) -> AcquisitionFunction:
    """The integral, where two sensors stay below their bounds."""
    model = of(three_numbers())
    return qLogNoisyExpectedImprovement(
        model,
        designs(4),
        sampler=sampler(model),
        objective=LinearMCObjective(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)),
        constraints=[lambda Y: Y[..., 1] - 4.0, lambda Y: Y[..., 2] - 5.0],
        cache_root=False,
    )


def whole_field(of: Callable[..., OperatorModel]) -> AcquisitionFunction:
    """How near the whole field comes to a target."""
    model, target = of(sensors(INPUT_GRID, INPUT_GRID.points)), torch.sin(2 * torch.pi * INPUT_GRID.points[:, 0])

    def nearness(Y: Tensor, X: Tensor | None = None) -> Tensor:
        return -((Y - target).square() @ INPUT_GRID.weights)

    return qLogExpectedImprovement(model, best_f=-2.0, sampler=sampler(model), objective=GenericMCObjective(nearness))


def hypervolume(of: Callable[..., OperatorModel]) -> AcquisitionFunction:
    model = of(three_numbers()).subset_output([0, 2])
    known = model.posterior(designs(4)).mean
    reference = known.amin(0) - 0.5
    partition = FastNondominatedPartitioning(ref_point=reference, Y=known)
    return qLogExpectedHypervolumeImprovement(model, ref_point=reference, partitioning=partition, sampler=sampler(model))


def one_path(of: Callable[..., OperatorModel]) -> AcquisitionFunction:
    return PosteriorMean(OperatorDraws(of(one_number()), seed=4))


def knowledge_gradient(of: Callable[..., OperatorModel]) -> AcquisitionFunction:
    return qKnowledgeGradient(of(one_number()), num_fantasies=None, sampler=noise(4))


def composite_knowledge_gradient(of: Callable[..., OperatorModel]) -> AcquisitionFunction:
    model = of(three_numbers())
    objective = GenericMCObjective(lambda Y, X: -(Y - 0.3).square().sum(-1))
    return qKnowledgeGradient(model, num_fantasies=None, sampler=noise(3), objective=objective, inner_sampler=noise(8))


def fidelity_knowledge_gradient(of: Callable[..., OperatorModel]) -> AcquisitionFunction:
    model = of(one_number(), encode=encode_with_fidelity)
    cost = AffineFidelityCostModel(fidelity_weights={2: 1.0}, fixed_cost=1.0)
    return qMultiFidelityKnowledgeGradient(
        model,
        num_fantasies=None,
        sampler=noise(4),
        current_value=torch.tensor(0.0).double(),
        cost_aware_utility=InverseCostWeightedUtility(cost),
        project=lambda X: project_to_target_fidelity(X, target_fidelities={2: 1.0}, d=3),
    )


def two_steps(of: Callable[..., OperatorModel]) -> AcquisitionFunction:
    return qMultiStepLookahead(
        of(one_number()), batch_sizes=[1, 1], samplers=[noise(3), noise(2)], collapse_fantasy_base_samples=False
    )


def integrated_variance(of: Callable[..., OperatorModel]) -> AcquisitionFunction:
    return qNegIntegratedPosteriorVariance(of(one_number()), mc_points=designs(16, seed=42))


def weighted_integrated_variance(of: Callable[..., OperatorModel]) -> AcquisitionFunction:
    transform = ScalarizedPosteriorTransform(torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64))
    return qNegIntegratedPosteriorVariance(of(three_numbers()), mc_points=designs(16, seed=42), posterior_transform=transform)


CASES: dict[str, Make] = {
    "qLogEI": improvement,
    "LogEI": closed_improvement,
    "qLogNEI": noisy_improvement,
    "qUCB": confidence_bound,
    "composite qLogEI": composite,
    "constrained qLogNEI": constrained,
    "whole fields": whole_field,
    "qLogEHVI": hypervolume,
    "one path": one_path,
}
LOOK_AHEAD: dict[str, Make] = {
    "qKG": knowledge_gradient,
    "composite qKG": composite_knowledge_gradient,
    "qMFKG": fidelity_knowledge_gradient,
    "two steps": two_steps,
    "qNIPV": integrated_variance,
    "weighted qNIPV": weighted_integrated_variance,
}


HEADS = {"last layer": LastLayerLaplace(noise=0.02), "low rank": Laplace(LowRank(rank=12), noise=0.02)}


@cache
def head_of(name: str, device: torch.device) -> Predictor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        operator = FNO(in_channels=1, out_channels=1, modes=(3,), width=4, depth=1).to(torch.float64)
    data = data_for(operator, fields(INPUT_GRID, 5, 1, seed=1))
    return replace(HEADS[name], prior_precision=0.5).fit(operator.to(device), data)


PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "features": lambda: FeaturePredictor(feature_root),
    "last layer": lambda: head_of("last layer", torch.device("cpu")),
    "low rank": lambda: head_of("low rank", torch.device("cpu")),
    "kernel": kernel,
    "members": lambda: FeaturePredictor(members),
}


LOW_RANK = pytest.param("low rank", marks=pytest.mark.slow)  # its latent has a dimension per weight
GAUSSIAN = ["features", "last layer", LOW_RANK, "kernel"]


def in_turn(cases: dict[str, Make], *more: str) -> list[Any]:
    """Every case on every kind of predictor, and in `make test` on one kind each, in turn."""
    fast = ["features", "last layer", "kernel", *more]
    return [
        pytest.param(name, kind, marks=[pytest.mark.slow] * (kind != fast[number % len(fast)]))
        for number, name in enumerate(cases)
        for kind in [*fast, "low rank"]
    ]


def score_of(make: Make, kind: str) -> AcquisitionFunction:
    def of(functional: Functional, encode: Callable[[Tensor], Field] = encode) -> OperatorModel:
        predictor = PREDICTORS[kind]()
        return OperatorModel(predictor, encode=encode, functional=functional)

    return make(of)


@pytest.fixture(autouse=True)
def without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    # BoTorch 0.18 would spend 25 s compiling a C++ version of the same formula at first use.
    monkeypatch.setattr("botorch.acquisition.multi_objective.logei._load_attempted", True, raising=False)


def check_optimised(make: Make, kind: str, *, q: int) -> None:
    """The optimiser finds designs in the cube, at least as good as where it started."""
    score = score_of(make, kind)
    dimension = 3 if make is fidelity_knowledge_gradient else 2
    bounds = torch.stack([torch.zeros(dimension), torch.ones(dimension)]).double()
    options = {"seed": 0, "maxiter": 6, "num_inner_restarts": 2, "raw_inner_samples": 4}
    options |= {"batch_limit": 1, "init_batch_limit": 8}  # together, restarts gain in sum, and the best of them may lose
    augmented = getattr(score, "get_augmented_q_batch_size", lambda q: q)(q)
    size = augmented if make is two_steps else q  # BoTorch leaves it to its users here
    raw: list[tuple[Tensor, Tensor]] = []
    hook = score.register_forward_hook(lambda _, given, values: raw.append((given[0].detach(), values.detach())))
    best, value = optimize_acqf(score, bounds=bounds, q=size, num_restarts=2, raw_samples=8, options=options)
    assert best.shape == (q, dimension)
    assert best.dtype == value.dtype == torch.float64
    assert ((best >= 0) & (best <= 1)).all()
    assert torch.isfinite(value).all()
    hook.remove()
    tried, scores = raw[0]  # the first call is that with all raw samples
    assert scores.shape == (8,)
    # Alone, as the optimiser has it: latents of processes, and so their draws, depend on all designs of a call.
    start = score(tried[scores.argmax()][None]).detach()
    assert value >= start.max() - 1e-9


@pytest.mark.parametrize(("name", "kind"), in_turn(CASES, "members"))
def test_the_optimiser_runs(name: str, kind: str) -> None:
    check_optimised(CASES[name], kind, q=2 if name == "qLogEI" else 1)


@pytest.mark.parametrize(("name", "kind"), in_turn(LOOK_AHEAD))
def test_the_optimiser_runs_looking_ahead(name: str, kind: str) -> None:
    check_optimised(LOOK_AHEAD[name], kind, q=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", GAUSSIAN)
@pytest.mark.parametrize("name", LOOK_AHEAD)
def test_the_optimiser_runs_looking_ahead_for_two(name: str, kind: str) -> None:
    if name != "two steps":
        check_optimised(LOOK_AHEAD[name], kind, q=2)


@pytest.mark.bad_input
@pytest.mark.parametrize("name", LOOK_AHEAD)
def test_ensembles_cannot_look_ahead(name: str) -> None:
    with pytest.raises(UnsupportedError, match="a Gaussian predictor"):
        check_optimised(LOOK_AHEAD[name], "members", q=1)


@pytest.mark.parametrize("kind", GAUSSIAN)
@pytest.mark.parametrize("name", LOOK_AHEAD)
def test_equal_designs_score_equally_looking_ahead(name: str, kind: str) -> None:
    score = score_of(LOOK_AHEAD[name], kind)
    size = getattr(score, "get_augmented_q_batch_size", lambda q: q)(1)
    X = designs(size, dimension=3 if name == "qMFKG" else 2, seed=44)
    with torch.no_grad():
        alone, mixed = score(X[None]), score(torch.stack([X, 1 - X, X, X**2, X]))
    tolerance = 1e-8 if kind == "kernel" else 1e-12  # a joint covariance of equal designs is singular
    assert (mixed[[0, 2, 4]] - alone).abs().max() <= tolerance


class Dense:
    """A Gaussian process by textbook formulas: covariances from the features, one test point at a time."""

    def __init__(self, model: OperatorModel) -> None:
        self.model, self.noise = model, model.noise

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        field = self.model.predictor(encode(X)).apply(self.model.functional)
        root = field.root.dense().flatten(0, 2)
        return field.mean.flatten(), root @ root.mT

    def given(self, X: Tensor, y: Tensor | None, new: Tensor) -> tuple[Tensor, Tensor]:
        mean, covariance = self.joint(torch.cat([X, new]))
        seen = X.shape[0] * self.model.num_outputs
        total = covariance[:seen, :seen] + self.noise.repeat(X.shape[0]).diag()
        gain = torch.linalg.solve(total, covariance[:seen, seen:]).mT
        moved = mean[seen:] if y is None else mean[seen:] + gain @ (y - mean[:seen])
        return moved, covariance[seen:, seen:] - gain @ covariance[:seen, seen:]


@pytest.mark.parametrize("kind", GAUSSIAN[:4])
@pytest.mark.parametrize("q", [1, 3])
@pytest.mark.parametrize("name", ["qNIPV", "weighted qNIPV"])
def test_integrated_variance_is_that_of_a_dense_gaussian_process(name: str, q: int, kind: str) -> None:
    score, points = score_of(LOOK_AHEAD[name], kind), designs(16, seed=42)
    X, dense = designs(4, q, seed=45), Dense(score.model)
    weights = torch.tensor([1.0] if name == "qNIPV" else [1.0, -0.5, 2.0], dtype=torch.float64)
    expected = []
    for batch in X:
        variances = [weights @ dense.given(batch, None, point[None])[1] @ weights for point in points]
        expected.append(-torch.stack(variances).mean())
    values = score(X)
    assert (values - torch.stack(expected)).abs().max() <= 1e-8
    assert values.std() > 1e-2 * values.abs().mean()


@pytest.mark.parametrize("kind", GAUSSIAN[:4])
@pytest.mark.parametrize("q", [1, 2])
def test_knowledge_gradient_is_that_of_a_dense_gaussian_process(q: int, kind: str) -> None:
    score = score_of(LOOK_AHEAD["qKG"], kind)
    X, dense = designs(3, q + 4, seed=46), Dense(score.model)
    values = score(X)
    base = score.sampler.base_samples  # 4 x 1 x q x 1
    for batch, value in zip(X, values, strict=True):
        mean, covariance = dense.joint(batch[:q])
        factor = torch.linalg.cholesky(covariance + dense.noise.repeat(q).diag())
        best = [dense.given(batch[:q], mean + factor @ base[f].flatten(), batch[q + f][None])[0] for f in range(4)]
        assert (value - torch.cat(best).mean()).abs() <= 1e-8


@pytest.mark.parametrize("kind", ["features"])
def test_the_knowledge_gradient_of_two_points_has_its_closed_form(kind: str) -> None:
    """E max(a, b) of two jointly normal posterior means (Frazier, 2009), by many fantasies and the inner maximum."""
    of = score_of(LOOK_AHEAD["qKG"], kind).model
    x, places = designs(1, seed=47), designs(2, seed=48)
    known = of.fantasize(x, SobolQMCNormalSampler(torch.Size([2**14]), seed=0))
    value = known.posterior(places).mean[..., 0].amax(-1).mean()
    mean, covariance = Dense(of).joint(torch.cat([x, places]))
    change = covariance[0, 1:] / (covariance[0, 0] + of.noise).sqrt()
    spread, gap = (change[0] - change[1]).abs(), mean[1] - mean[2]
    normal = torch.distributions.Normal(torch.tensor(0.0).double(), 1.0)
    ratio = gap / spread
    expected = mean[2] + gap * normal.cdf(ratio) + spread * normal.log_prob(ratio).exp()
    assert spread > 1e-2
    assert (value - expected).abs() <= 1e-4 * spread


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["designs only", "predictor and designs"])
@pytest.mark.parametrize("name", ["qLogEI", "qLogNEI", "one path", "qKG", "composite qKG", "qNIPV", "weighted qNIPV"])
def test_designs_on_a_gpu_score_as_on_the_cpu(name: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = {**CASES, **LOOK_AHEAD}[name]
    expected = score_of(make, "last layer")
    if where == "predictor and designs":
        predictor = head_of("last layer", torch.device(accelerator()))
        monkeypatch.setitem(PREDICTORS, "last layer", lambda: predictor)
    size = getattr(expected, "get_augmented_q_batch_size", lambda q: q)(1)
    X = designs(3, size, seed=49)
    with torch.random.fork_rng():  # paths are drawn when they are first asked for
        torch.manual_seed(3)
        value = score_of(make, "last layer").to(accelerator())(X.to(accelerator()).requires_grad_())
    assert value.device.type == accelerator()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        torch.testing.assert_close(value.cpu(), expected(X), rtol=1e-7, atol=1e-8)
    value.sum().backward()
